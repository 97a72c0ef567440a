"""What pretraining learns: to guess a code taken from a visit, and how long after each visit every code comes next.

`PretrainingObjective` is the weighted sum of these objectives, which the training loop learns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.loader import Step, SubjectLoader, on_device
from ehrsequencing.config import ModelConfig, TrainingConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.behrt import BEHRTForSurvival
from ehrsequencing.models.embeddings import CodeEmbedding
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.models.outcomes import (
    OutcomeHead,
    OutcomeLabels,
    events_and_days,
    outcomes_nll,
    starting_rates,
)
from ehrsequencing.models.segments import gather_rows, to_device
from ehrsequencing.records.timelines import Timelines
from ehrsequencing.training.loop import step_seed
from ehrsequencing.training.objectives import autocast, mask_codes
from ehrsequencing.training.pretraining.targets import TargetCodes, TimesToCodes, times_to_codes

MOST_SCORES = 2**21  # of visits times codes in one step: 8 MiB
MOST_VISITS = 1024  # that one objective predicts from, in one step
MASKED_SHARE = 0.5  # of the visits, which lose one of their codes
# bins of the hazards: quantiles of the training subjects' times to the next record of a code
TIME_BINS = 6
RANK = 32  # width of a code's vector, at most that of a state


@dataclass(frozen=True)
class ObjectiveInputs:
    """What an objective is made from."""

    config: ModelConfig
    codes: TargetCodes
    share: Floats  # (C,) of all pairs of visit and target code, those with this code
    waits: TimesToCodes  # times to every code, from some visits of training subjects

    @property
    def most_visits(self) -> int:
        """At most so many visits of a step are predicted from, so that memory does not grow with the vocabulary."""
        return max(16, min(MOST_VISITS, MOST_SCORES // len(self.codes)))


@dataclass(frozen=True)
class Guesses:
    """What an objective loses at each visit with a target, in nats."""

    loss: Tensor  # (n,)
    visit: Ints  # (n,) of the timelines
    by_frequency: Tensor | None = (
        None  # (n,) what the codes' frequencies alone would lose, where it is asked for
    )


class CodeObjective(nn.Module):
    """Guesses codes of a record. Its own weights live here; a pretrained model has none of them.

    Attributes:
        is_bidirectional: Whether it may be used with `model.attention=bidirectional`.
        needs_states: Whether it looks at the states of the whole record.
    """

    is_bidirectional = False
    needs_states = True

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__()
        self.inputs = inputs

    def forward(
        self,
        model: SurvivalModel,
        step: Step,
        timelines: Timelines,
        states: Tensor | None,
        *,
        measure: bool = False,
    ) -> Guesses | None:
        """The losses of a batch; None where it has no target.

        Args:
            model: Whose states are looked at.
            step: One batch of whole records: `rows` are visits of `timelines`, `positions` their rows in the batch.
            timelines: What its targets are looked up in.
            states: (N, d) after the timeline; None where no objective looks at the whole record.
            measure: Whether to say what frequencies would lose, too.
        """
        raise NotImplementedError


# ---- masked codes ----------------------------------------------------------------------------------------------------


class MaskedCodes(CodeObjective):
    """BERT's masked token (Devlin et al. 2019), one code of a visit at a time.

        loss_v = −log softmax over c of s_c(z_v) at the code that was taken from v,   c not among the codes left in v

    with z_v the state of v after the timeline (flat: the mean state of its tokens) and s the `CodeScores`. The code is
    taken from the input with all its copies in that visit, before the visit is pooled, so no vector of the visit holds
    it. Other visits may, as they do in use. A visit that had no other code is seen as an empty one.
    """

    is_bidirectional = True
    needs_states = False

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self.scores = CodeScores(inputs.config.dim, np.log(inputs.share))
        self.register_buffer("start", self.scores.bias.detach().clone(), persistent=False)
        self.start: Tensor

    def forward(
        self,
        model: SurvivalModel,
        step: Step,
        timelines: Timelines,
        states: Tensor | None,
        *,
        measure: bool = False,
    ) -> Guesses | None:
        """The losses of the visits that lack a code."""
        visits, codes = step.batch.host, self.inputs.codes
        device = step.batch.codes.device
        number = torch.from_numpy(codes.number)[visits.codes]
        among = torch.zeros(visits.n_visits, dtype=torch.bool)
        among[torch.from_numpy(step.positions)] = True
        among &= torch.rand(visits.n_visits) < MASKED_SHARE
        masked = mask_codes(visits, number, among, most=self.inputs.most_visits)
        if masked is None:
            return None
        left_visits = masked.batch.pin_memory() if device.type == "cuda" else masked.batch
        _, left_states = model.states(left_visits.to(device, non_blocking=True))
        z = gather_rows(left_states, to_device(masked.row, device))
        # (M, C) which target codes are still in each visit
        left = torch.zeros(len(masked.row), len(codes), dtype=torch.bool)
        place = torch.full((masked.batch.n_visits,), -1)
        place[masked.row] = torch.arange(len(masked.row))
        row = place[masked.batch.visit_of_code]
        number = torch.from_numpy(codes.number)[masked.batch.codes]
        both = (row >= 0) & (number >= 0)
        left[row[both], number[both]] = True
        left, code = (to_device(x, device) for x in (left, masked.code))
        table = code_embedding(model).table
        scores = self.scores(z, table(torch.from_numpy(codes.tokens).to(device)))
        loss, by_frequency = _log_share(scores, left, code), None
        if measure:
            by_frequency = _log_share(self.start.expand_as(scores), left, code)
        position = np.full(visits.n_visits, -1)
        position[step.positions] = step.rows
        return Guesses(loss, position[masked.row.numpy()], by_frequency)


def _log_share(scores: Tensor, left: Tensor, code: Tensor) -> Tensor:
    """(M,) −log softmax of scores (M, C) at one code each (M,), among the codes that are not left in the visit."""
    return F.cross_entropy(scores.masked_fill(left, float("-inf")), code, reduction="none")


class CodeScores(nn.Module):
    """Scores of codes, tied to the model's code embedding: `b_c + (W_q LN z) · (W_k E_c) / √d`.

    Args:
        dim: d.
        start: (C,) b at the start.
    """

    def __init__(self, dim: int, start: Floats) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.W_q, self.W_k = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.W_q.weight, std=0.1 * dim**-0.5)  # starts near b
        nn.init.zeros_(self.W_q.bias)
        self.bias = nn.Parameter(torch.from_numpy(start).float())

    def forward(self, z: Tensor, rows: Tensor) -> Tensor:
        """(n, d) states and (C, d) rows of the code embedding → (n, C) scores, at least float32."""
        queries = self.W_q(self.norm(z)) * z.shape[1] ** -0.5
        scores = torch.addmm(self.bias.to(z.dtype), queries, self.W_k(rows).T)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))


def code_embedding(model: SurvivalModel) -> CodeEmbedding:
    """The code embedding of either architecture."""
    if isinstance(model, BEHRTForSurvival):
        return model.encoder.embedding.code
    assert isinstance(model, HierarchicalBEHRTForSurvival)
    return model.code_embedding


# ---- time to every code ----------------------------------------------------------------------------------------------


class TimeToCode(CodeObjective):
    """A hazard for the next record of every code, from one head of low rank (MOTOR, arXiv 2301.03150).

        loss_v = Σ_c ( ∫_0^{t_c} λ_c(s | z_v) ds − [c is recorded later] · log λ_c(t_c | z_v) )

    z_v is the state of v after the causal timeline, t_c the days until the code's next record, or until the record
    ends where there is none. The head and the likelihood are those of `models/outcomes.py`, for the next record of each
    code: exact, with memory that does not grow with the codes. Hazards start at the training rates. Targets exclude
    the outcome and its relatives (`targets.py`); without that this objective is supervised learning.
    """

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        waits, n = inputs.waits, len(inputs.codes)
        quantiles = np.arange(1, TIME_BINS) / TIME_BINS
        inner = np.quantile(waits.days, quantiles) if len(waits.days) else np.zeros(0)
        edges = tuple(float(edge) for edge in np.unique(np.round(inner, 4)) if edge > 0)
        dim = inputs.config.dim
        self.head = OutcomeHead(
            dim, outcomes=n, rank=min(RANK, dim), edges_days=edges, dropout=inputs.config.dropout
        )
        labels = OutcomeLabels(*map(torch.from_numpy, (waits.row, waits.code, waits.days)))
        stop = torch.from_numpy(waits.stop_days)
        counted = events_and_days(
            edges, labels, outcomes=n, stop_days=stop, entry_days=torch.zeros_like(stop)
        )
        self.head.set_bias(starting_rates(*counted))
        self.register_buffer("start", self.head.bias.detach().clone(), persistent=False)
        self.start: Tensor
        self.most = max(16, inputs.most_visits // self.head.bins)

    def forward(
        self,
        model: SurvivalModel,
        step: Step,
        timelines: Timelines,
        states: Tensor | None,
        *,
        measure: bool = False,
    ) -> Guesses | None:
        """The losses of the visits that are not their subject's last."""
        device = self.start.device
        times = times_to_codes(timelines, step.rows, self.inputs.codes, most=self.most)
        if not len(times.chosen) or states is None:
            return None
        positions = torch.from_numpy(step.positions[times.chosen])
        factors = self.head(gather_rows(states, to_device(positions, device)))
        stop = torch.from_numpy(times.stop_days).float().to(device)
        days = torch.from_numpy(times.days).float().to(device)
        row, code = (to_device(torch.from_numpy(x), device) for x in (times.row, times.code))
        labels = OutcomeLabels(row, code, days)

        def nll(factors: Tensor, bias: Tensor) -> Tensor:
            vectors, edges = self.head.vectors.weight, self.head.edges_days
            return outcomes_nll(
                factors, vectors, bias, edges_days=edges, stop_days=stop, labels=labels
            )

        by_frequency = nll(torch.zeros_like(factors), self.start) if measure else None
        return Guesses(nll(factors, self.head.bias), step.rows[times.chosen], by_frequency)


OBJECTIVES: dict[str, type[CodeObjective]] = {
    "masked_codes": MaskedCodes,
    "time_to_code": TimeToCode,
}


# ---- their weighted sum ----------------------------------------------------------------------------------------------


class PretrainingObjective:
    """The weighted sum of some objectives, for the training loop.

    Args:
        bundle: `model` and `objectives`, which are trained together.
        weights: Of each objective's loss.
        train: The training subjects, with their visits as rows.
        tuning: The tuning subjects, likewise.
        settings: Of the training.
        tuning_budget: Visits in a batch of the tuning split.
    """

    word, of_rows = "loss", False
    divisor = 1.0

    def __init__(
        self,
        bundle: nn.ModuleDict,
        weights: Mapping[str, float],
        train: SubjectLoader,
        tuning: SubjectLoader,
        settings: TrainingConfig,
        *,
        tuning_budget: int,
    ) -> None:
        self.bundle, self.weights, self.train = bundle, dict(weights), train
        self.tuning, self.settings, self.tuning_budget = tuning, settings, tuning_budget

    def loss(self, step: Step) -> Tensor:
        """The weighted sum of a batch's losses, each a mean over its targets; without a gradient where it has none."""
        total = torch.zeros(())
        for name, guesses in self._guesses(self.bundle, step, self.train.timelines).items():
            if guesses is not None:
                total = total + self.weights[name] * guesses.loss.mean()
        return total

    def tuning_losses(self, module: nn.Module, stop: Stop) -> dict[str, float]:
        """The weighted loss on the tuning split, and that of each objective."""
        losses = {name: one["loss"] or 0.0 for name, one in self.measure(module, stop).items()}
        total = sum(self.weights[name] * one for name, one in losses.items())
        return {"tuning_loss": total, **{f"tuning_{name}": one for name, one in losses.items()}}

    def measure(self, bundle: nn.Module, stop: Stop | None = None) -> dict[str, dict[str, Any]]:
        """The losses of every objective on the tuning split, with the same masks each time; see `measured`."""
        kept = {name: ([np.zeros(0)], [np.zeros(0)], [np.zeros(0)]) for name in self.weights}
        device, timelines = next(bundle.parameters()).device, self.tuning.timelines
        bundle.eval()
        with (
            torch.no_grad(),
            autocast(device, self.settings.precision),
            torch.random.fork_rng(devices=[]),
        ):
            torch.manual_seed(step_seed(self.settings.seed, 2**32))
            steps = self.tuning.in_order(visit_budget=self.tuning_budget)
            for step in on_device(steps, device):
                for name, one in self._guesses(bundle, step, timelines, measure=True).items():
                    if one is not None and one.by_frequency is not None:
                        losses = (x.double().cpu().numpy() for x in (one.loss, one.by_frequency))
                        for column, x in zip(
                            kept[name], (timelines.owner[one.visit], *losses), strict=True
                        ):
                            column.append(x)
                if stop is not None:
                    stop.leave_if_asked()
        return {name: measured(*map(np.concatenate, columns)) for name, columns in kept.items()}

    def _guesses(
        self, bundle: Any, step: Step, timelines: Timelines, *, measure: bool = False
    ) -> dict[str, Guesses | None]:
        """Those of each objective; the states of the whole records are computed once for all of them."""
        model, objectives = bundle["model"], dict(bundle["objectives"].items())
        states = None
        if any(one.needs_states for one in objectives.values()):
            states = model.states(step.batch)[1]
        return {
            name: one(model, step, timelines, states, measure=measure)
            for name, one in objectives.items()
        }


def measured(owner: Ints | Floats, loss: Floats, by_frequency: Floats) -> dict[str, Any]:
    """Mean losses of n targets, the model's and frequencies'; and the gain, with its 95 % interval over subjects.

        m = Σ_s T_s / Σ_s n_s,   se² = S / (S − 1) · Σ_s (T_s − m n_s)² / (Σ_s n_s)²

    with n_s targets of subject s and T_s the sum of their gains. One subject has no interval.

    Args:
        owner: (n,) whose targets they are.
        loss: (n,) what the model loses.
        by_frequency: (n,) what frequencies lose.

    >>> measured(np.array([3, 3, 5, 5]), np.ones(4), np.full(4, 2.0))["gain"]
    {'value': 1.0, 'low': 1.0, 'high': 1.0}
    """
    n, (_, who) = len(loss), np.unique(owner, return_inverse=True)
    means: dict[str, Any] = {"targets": n, "loss": None, "frequency_loss": None}
    gain: dict[str, float | None] = {"value": None, "low": None, "high": None}
    if n:
        gains, people = by_frequency - loss, int(who.max()) + 1
        mean = float(gains.mean())
        means |= {"loss": float(loss.mean()), "frequency_loss": float(by_frequency.mean())}
        gain["value"] = mean
        if people > 1:
            of_subject = np.bincount(who, gains - mean)
            half = 1.96 * float(np.sqrt(people / (people - 1) * np.square(of_subject).sum())) / n
            gain |= {"low": mean - half, "high": mean + half}
    return {**means, "gain": gain}
