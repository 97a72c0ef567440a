"""Masked codes: guess a code that was taken from a visit, from the rest of the visit and the timeline."""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config.parts import objective
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
from ehrsequencing.training.pretraining.targets import TargetCodes


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
