"""Networks as predictors, and their other answers, row by row: hazards before the next visit, states, outcomes."""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch

from ehrsequencing.batches.loader import SubjectLoader, on_device
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import Ensemble
from ehrsequencing.models.outcomes import onset_risk
from ehrsequencing.models.segments import to_device
from ehrsequencing.predictors.predictor import NETWORK, Known, Predictor
from ehrsequencing.records.timelines import TaskRecords, Timelines

VISIT_BUDGET = 16_384  # visits in one forward pass of prediction
OUTCOME_HAZARDS = 2**21  # hazards of outcomes that exist at once
FEW_ROWS = (
    0.25  # share of a batch's rows up to which a model computes only those that are asked for
)


class Network(Predictor):
    """A network with the `horizon` head, or an ensemble of them, whose hazards are averaged in every bin.

        λ_{e,k} = (1/M) Σ_m λ^m_{e,k}

    Args:
        model: On its device.
        code_types: (V,) type of each token, where the model wants types (`Run.code_types`).
    """

    name = NETWORK

    def __init__(self, model: SurvivalModel, code_types: Ints | None = None) -> None:
        self.model, self.code_types = model, code_types
        self.edges_days, self.n_causes = model.config.edges_days, model.config.causes
        each = model.members if isinstance(model, Ensemble) else ()
        self.members = [Network(cast(SurvivalModel, one), code_types) for one in each]

    def _of_part(self, part: TaskRecords, known: Known) -> Floats:
        if self.members:
            return np.mean([one.of_part(part, known) for one in self.members], axis=0)
        loader = SubjectLoader.of_model(self.model.config, part, code_types=self.code_types)
        at, eta = log_hazards(self.model, loader)
        out = np.empty(eta.shape)
        out[at] = np.exp(eta.astype(np.float64))
        return out


@torch.no_grad()
def log_hazards(
    model: SurvivalModel, loader: SubjectLoader, *, visit_budget: int = VISIT_BUDGET
) -> tuple[Ints, Floats32]:
    """Rows of the task as they come (R,), and their log-hazards per day (R, E, K); on the model's device."""
    model.eval()
    device = next(model.parameters()).device
    row, eta = [], []
    for step in on_device(loader.in_order(visit_budget=visit_budget), device):
        at = to_device(torch.from_numpy(step.positions), device)
        if len(at) <= FEW_ROWS * step.batch.n_visits:
            logits = model.logits_at(step.batch, at)
        else:
            logits = model(step.batch).index_select(0, at)
        row.append(step.rows)
        eta.append(logits.float().cpu().numpy())
    return np.concatenate(row), np.concatenate(eta)


@torch.no_grad()
def all_logits(
    model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None
) -> Floats:
    """(R, ·) what the model gives at every row, whatever its head, of whole records; NaN for rows without an answer."""
    loader = SubjectLoader(records, queries=model.config.head == "horizon", code_types=code_types)
    out: Floats = np.full((len(records), 1), np.nan)
    for step in loader.in_order(visit_budget=VISIT_BUDGET):
        output = model(step.batch)
        logits = output.reshape(len(output), -1).numpy()
        if out.shape[1] != logits.shape[1]:
            out = np.full((len(records), logits.shape[1]), np.nan)
        out[step.rows] = logits[step.positions]
    return out


@torch.no_grad()
def visit_hazards(
    model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None
) -> Floats32:
    """Hazard (R, 1, 1) before the next visit, by the `visit` head; NaN for queries that fall on no visit's end."""
    logits = torch.from_numpy(all_logits(model, records, code_types=code_types))
    return logits.sigmoid().float().numpy()[:, :, None]


@torch.no_grad()
def outcome_risks(
    model: SurvivalModel,
    records: TaskRecords,
    *,
    codes: Ints,
    horizons_days: Sequence[float],
    code_types: Ints | None = None,
    start_days: float = 0.0,
) -> Iterator[tuple[Ints, Floats32]]:
    """Risks of outcomes, some prediction times after others; memory does not grow with the number of outcomes.

    Args:
        model: In evaluation mode, with outcomes.
        records: Visits and prediction times.
        codes: (c,) numbers of the outcomes asked about.
        horizons_days: Days after the prediction time.
        code_types: (V,) type of each token, where the model wants types.
        start_days: Given no event for so long after the prediction time.

    Yields:
        (n,) rows of the task, and (n, c, horizons) cumulative incidence, each outcome alone against the task's causes.
    """
    assert model.outcomes is not None
    chosen, edges = torch.from_numpy(codes), model.config.edges_days
    step_rows = max(1, OUTCOME_HAZARDS // max(len(codes) * model.config.bins, 1))
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    for step in loader.in_order(visit_budget=VISIT_BUDGET):
        positions = torch.from_numpy(step.positions)
        x, z = (state.index_select(0, positions) for state in model.states(step.batch))
        for low in range(0, len(positions), step_rows):
            part = slice(low, low + step_rows)
            causes = model.hazard_logits(z[part], wide=x[part])
            own = model.outcomes.log_hazards(z[part], chosen)
            risk = onset_risk(
                own, causes, edges, horizons_days=horizons_days, start_days=start_days
            )
            yield step.rows[part], risk.float().numpy()


@torch.no_grad()
def states_of_rows(
    model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """State (R, d) and logits (R, causes, bins) of the task's causes at every prediction time; `horizon` head only.

    The states of an ensemble are those of its members beside one another, (R, M d).
    """
    states = torch.zeros(len(records), model.config.dim * model.config.members)
    logits = torch.zeros(len(records), model.config.causes, model.config.bins)
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    for step in loader.in_order(visit_budget=VISIT_BUDGET):
        positions, rows = torch.from_numpy(step.positions), torch.from_numpy(step.rows)
        x, z = (state.index_select(0, positions) for state in model.states(step.batch))
        states[rows], logits[rows] = z, model.hazard_logits(z, wide=x)
    return states, logits


@torch.no_grad()
def code_attention(
    model: SurvivalModel, timelines: Timelines, *, code_types: Ints | None = None
) -> Floats:
    """The weight (K,) of every code in its visit's vector; see `SurvivalModel.code_attention`."""
    batch = VisitBatch(
        codes=torch.from_numpy(timelines.codes.astype(np.int64)),
        visit_offsets=torch.from_numpy(np.array(timelines.visit_offsets)),
        subject_offsets=torch.from_numpy(np.array(timelines.subject_offsets)),
        age_years=torch.from_numpy(np.array(timelines.age_years)),
        delta_days=torch.from_numpy(np.array(timelines.delta_days)),
        static_codes=torch.from_numpy(timelines.static_codes.astype(np.int64)),
        static_offsets=torch.from_numpy(np.array(timelines.static_offsets)),
        values=torch.from_numpy(np.array(timelines.values)),
        code_types=None if code_types is None else torch.from_numpy(code_types[timelines.codes]),
    )
    return np.asarray(model.code_attention(batch).double().numpy())
