"""A model and encoded records → risks and likelihoods, row by row. What a run is, this file does not know."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.risks import onset_risk
from ehrsequencing.records.timelines import TaskRecords

VISIT_BUDGET = 16_384  # visits in one forward pass of prediction
OUTCOME_HAZARDS = 2**21  # hazards of outcomes that exist at once


@torch.no_grad()
def risk_of_rows(
    model: SurvivalModel,
    records: TaskRecords,
    *,
    horizons_days: Sequence[float] | Floats,
    code_types: Ints | None = None,
    start_days: float = 0.0,
) -> Floats32:
    """Risk at every prediction time; memory does not grow with a record (`ehrsequencing.batches.loader`).

    Args:
        model: In evaluation mode.
        records: Visits and prediction times.
        horizons_days: Days after the prediction time; ignored by the `visit` head.
        code_types: (V,) type of each token, where the model wants types (`Run.code_types`).
        start_days: Given no event for so long after the prediction time (a task's blanking).

    Returns:
        (R, causes, horizons) cumulative incidence; for the `visit` head (R, 1, 1), the hazard before the next visit,
        NaN for queries that fall on no visit's end.
    """
    is_visit = model.config.head == "visit"
    days = [float(horizon) for horizon in horizons_days]
    shape = (1, 1) if is_visit else (model.config.causes, len(days))
    out = np.full((len(records), *shape), np.nan, dtype=np.float32)
    for step in steps(model, records, code_types=code_types):
        if is_visit:
            answers = model(step.batch).double().sigmoid()[:, None, None]
        else:
            answers = model.risk(step.batch, horizons_days=days, start_days=start_days)
        out[step.rows] = answers.numpy()[step.positions]
    return out


def steps(
    model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None
) -> Iterator[Step]:
    """The batches in which these functions answer."""
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    return loader.in_order(visit_budget=VISIT_BUDGET)


def batches(
    model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None
) -> tuple[Ints, Ints]:
    """The batches in which these functions answer: the first subject (b,) and the visits and queries (b,) of each.

    Records cut at the first subject of a batch are answered in the same batches as before.
    """
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    found = loader.groups_in_order(visit_budget=VISIT_BUDGET)
    first, cost = [one[0] for one in found], [loader.cost[one].sum() for one in found]
    return np.array(first, dtype=np.int64), np.array(cost, dtype=np.int64)


@torch.no_grad()
def nll_of_rows(
    model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None
) -> Floats:
    """Negative log-likelihood (R,) of every labelled prediction time; NaN for rows that the head does not answer."""
    out = np.full(len(records), np.nan)
    for step in steps(model, records, code_types=code_types):
        out[step.rows] = model.nll(step.batch).double().numpy()[step.positions]
    return out


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
        code_types: As of `risk_of_rows`.
        start_days: Given no event for so long after the prediction time.

    Yields:
        (n,) rows of the task, and (n, c, horizons) cumulative incidence, each outcome alone against the task's causes.
    """
    assert model.outcomes is not None
    chosen, edges = torch.from_numpy(codes), model.config.edges_days
    step_rows = max(1, OUTCOME_HAZARDS // max(len(codes) * model.config.bins, 1))
    for step in steps(model, records, code_types=code_types):
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
    for step in steps(model, records, code_types=code_types):
        positions, rows = torch.from_numpy(step.positions), torch.from_numpy(step.rows)
        x, z = (state.index_select(0, positions) for state in model.states(step.batch))
        states[rows], logits[rows] = z, model.hazard_logits(z, wide=x)
    return states, logits
