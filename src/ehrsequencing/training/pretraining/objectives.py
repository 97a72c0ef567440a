"""The objectives: guess a code taken from a visit, and how long after each visit every code is recorded next."""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config.base import objective
from ehrsequencing.metrics.hazards import event_bin
from ehrsequencing.models.outcomes import (
    OutcomeHead,
    OutcomeLabels,
    events_and_days,
    outcomes_nll,
    starting_rates,
)
from ehrsequencing.models.segments import gather_rows, to_device
from ehrsequencing.training.pretraining.objective import (
    CodeObjective,
    CodeScores,
    Measures,
    ObjectiveInputs,
    RecordBatch,
    ranks_of,
    subjects_of,
    target_rows,
)
from ehrsequencing.training.pretraining.targets import TargetCodes, TimesToCodes, times_to_codes

# bins of the hazards: quantiles of the training subjects' times to the next record of a code
TIME_BINS = 6
RANK = 32  # width of a code's vector, at most that of a state

# ---- masked codes ----


@dataclass(frozen=True)
class Masked:
    """A batch from which codes were taken."""

    batch: VisitBatch
    row: Tensor  # (M,) rows of the batch that lack a code, rising
    code: Tensor  # (M,) the target code that each lacks


@objective("masked_codes")
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
        self.scores = CodeScores(inputs.config.dim, np.log(inputs.rates.share))
        self.register_buffer(
            "start", torch.from_numpy(np.log(inputs.rates.share)).float(), persistent=False
        )
        self.start: Tensor

    def forward(self, batch: RecordBatch, measures: Measures | None = None) -> Tensor:
        """Mean loss of the visits that lack a code."""
        visits = batch.step.batch
        device = visits.codes.device
        masked = mask(
            visits.host,
            torch.from_numpy(batch.step.positions),
            batch.codes,
            share=self.inputs.masked_share,
            most=self.inputs.most_visits,
        )
        if masked is None:
            return self.start.new_zeros(())
        left_visits = masked.batch.pin_memory() if device.type == "cuda" else masked.batch
        _, states = batch.model.states(left_visits.to(device, non_blocking=True))
        z = gather_rows(states, to_device(masked.row, device))
        left = _left(masked, batch.codes)
        scores = self.scores(z, target_rows(batch))
        scores = scores.masked_fill(to_device(left, device), float("-inf"))
        loss = F.cross_entropy(scores, to_device(masked.code, device))
        if measures is not None:
            self._measure(scores.detach().cpu(), left, masked, batch, measures)
        return loss

    def _measure(
        self, scores: Tensor, left: Tensor, masked: Masked, batch: RecordBatch, measures: Measures
    ) -> None:
        """Loss and recall of the model and of frequencies."""
        row, code = np.arange(len(masked.row)), masked.code.numpy()
        by_frequency = self.start.cpu().expand_as(scores).masked_fill(left, float("-inf"))
        position = np.full(batch.step.batch.n_visits, -1)
        position[batch.step.positions] = batch.step.rows
        of_subject = subjects_of(batch, position[masked.row.numpy()])
        guesses = {"model": scores, "frequency": by_frequency}
        measures.add_recalls(
            {name: ranks_of(guess, row, code) for name, guess in guesses.items()}, of_subject
        )
        for name, guess in (("loss", scores), ("frequency loss", by_frequency)):
            each = F.cross_entropy(guess, masked.code, reduction="none")
            measures.add(name, each.double().sum(), len(each))


def mask(
    batch: VisitBatch, positions: Tensor, codes: TargetCodes, *, share: float, most: int
) -> Masked | None:
    """Take one target code, with all its copies, from each of some visits; None where there is none to take.

    Args:
        batch: On the CPU.
        positions: Rows of the batch that may lose a code.
        codes: What may be taken; a code's joint tokens (`CODE//Q3`) are taken with it.
        share: Chance that a visit with a target code loses one.
        most: At most so many visits, drawn at random.
    """
    number = torch.from_numpy(codes.number)[batch.codes]
    allowed = torch.zeros(batch.n_visits, dtype=torch.bool)
    allowed[positions] = True
    allowed &= ~batch.is_query & (torch.rand(batch.n_visits) < share)
    may = (number >= 0) & allowed[batch.visit_of_code]
    order = torch.rand(batch.n_codes).masked_fill(~may, -1.0)
    best = torch.segment_reduce(order, "max", offsets=batch.visit_offsets, initial=-1.0)
    row = (best >= 0).nonzero().squeeze(1)
    if len(row) > most:
        row = row[torch.randperm(len(row))[:most].sort().values]
    if not len(row):
        return None
    taken = torch.full((batch.n_visits,), -2)
    picked = ((order == best[batch.visit_of_code]) & may).nonzero().squeeze(1)
    taken[batch.visit_of_code[picked]] = number[picked]
    is_kept_row = torch.zeros(batch.n_visits, dtype=torch.bool)
    is_kept_row[row] = True
    taken[~is_kept_row] = -2
    left = number != taken[batch.visit_of_code]
    count = torch.zeros(batch.n_visits, dtype=torch.int64).index_add_(
        0, batch.visit_of_code, left.long()
    )
    seen = replace(
        batch,
        codes=batch.codes[left],
        visit_offsets=F.pad(count.cumsum(0), (1, 0)),
        values=None if batch.values is None else batch.values[left],
        code_types=None if batch.code_types is None else batch.code_types[left],
    )
    return Masked(seen, row, taken[row])


def _left(masked: Masked, codes: TargetCodes) -> Tensor:
    """(M, C) which target codes are still in each visit."""
    place = torch.full((masked.batch.n_visits,), -1)
    place[masked.row] = torch.arange(len(masked.row))
    row, code = (
        place[masked.batch.visit_of_code],
        torch.from_numpy(codes.number)[masked.batch.codes],
    )
    both = (row >= 0) & (code >= 0)
    left = torch.zeros(len(masked.row), len(codes), dtype=torch.bool)
    left[row[both], code[both]] = True
    return left


# ---- time to every code ----


@objective("time_to_code")
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
        waits, n = inputs.rates.waits, len(inputs.codes)
        inner = (
            np.quantile(waits.days, np.arange(1, TIME_BINS) / TIME_BINS)
            if len(waits.days)
            else np.zeros(0)
        )
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

    def forward(self, batch: RecordBatch, measures: Measures | None = None) -> Tensor:
        """Mean loss of the visits that are not their subject's last."""
        times = times_to_codes(batch.timelines, batch.step.rows, batch.codes, most=self.most)
        n, device = len(times.chosen), self.start.device
        if not n or batch.states is None:
            return self.start.new_zeros(())
        positions = torch.from_numpy(batch.step.positions[times.chosen])
        z = gather_rows(batch.states, to_device(positions, device))
        stop = torch.from_numpy(times.stop_days).float().to(device)
        days = torch.from_numpy(times.days).float().to(device)
        row, code = (
            to_device(torch.from_numpy(index), device) for index in (times.row, times.code)
        )
        labels = OutcomeLabels(row, code, days)
        factors, vectors, edges = self.head(z), self.head.vectors.weight, self.head.edges_days
        each = outcomes_nll(
            factors, vectors, self.head.bias, edges_days=edges, stop_days=stop, labels=labels
        )
        loss = each.sum() / n
        if measures is not None:
            measures.add("loss", loss.double() * n, n)
            none = torch.zeros_like(factors)
            each = outcomes_nll(
                none, vectors, self.start, edges_days=edges, stop_days=stop, labels=labels
            )
            measures.add("frequency loss", each.double().sum(), n)
            self._measure(self.head.log_hazards(z), times, batch, measures)
        return loss

    def _measure(
        self, log_hazards: Tensor, times: TimesToCodes, batch: RecordBatch, measures: Measures
    ) -> None:
        """Recall of the codes that come first after each visit, by their hazards in the bin of that time."""
        n = len(times.chosen)
        first = np.full(n, np.inf)
        np.minimum.at(first, times.row, times.days)
        is_first = times.days <= first[times.row]
        first[np.isinf(first)] = 0.0
        bins, every = (
            torch.from_numpy(event_bin(self.head.edges_days, first)),
            torch.arange(n),
        )
        by_frequency = self.start.cpu().T[bins]
        ours = log_hazards.detach().cpu()[every, :, bins]
        row, code = times.row[is_first], times.code[is_first]
        guesses = {"model": ours, "frequency": by_frequency}
        ranks = {name: ranks_of(guess, row, code) for name, guess in guesses.items()}
        measures.add_recalls(ranks, subjects_of(batch, batch.step.rows[times.chosen])[row])
