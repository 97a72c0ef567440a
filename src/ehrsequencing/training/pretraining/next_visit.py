"""Next visit: which codes it will have, new ones and repeats apart, and the ranks of its numbers."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.config.parts import objective
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.models.segments import to_device
from ehrsequencing.training.pretraining.ahead import AheadObjective, moved
from ehrsequencing.training.pretraining.objective import (
    CodeScores,
    Glance,
    Tally,
    World,
    pairs_of,
    ranks_of,
    subjects_of,
    target_rows,
)
from ehrsequencing.training.pretraining.targets import NextVisits


@objective("next_visit")
class NextVisit(AheadObjective):
    """The codes of the next visit, each a yes or no (multi-label), and how high their numbers will be.

        onsets     Σ over codes c that the subject never had   BCE(σ(s_c(z_v)), c in visit v+1)
        repeats    Σ over codes c that the subject had         BCE(σ(s'_c(z_v)), c in visit v+1)
        numbers    Σ over codes c of visit v+1 with a number   ½ (rank_c − m_c(z_v))²

    The loss is the sum of the three, averaged over visits that have a next one. z_v is the state of v after the causal
    timeline, so v+1 is unknown to it. s, s' and m are `CodeScores` of their own: what makes a disease begin is not what
    writes it down again. They start at the rates of the training subjects (m: at 0).
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        d, rates = world.config.dim, world.rates
        self.onsets = CodeScores(d, _logit(rates.onset))
        self.repeats = CodeScores(d, _logit(rates.repeat))
        self.numbers = CodeScores(d, np.zeros(len(world.codes)))
        for name, start in {"onset": rates.onset, "repeat": rates.repeat}.items():
            self.register_buffer(
                f"{name}_start", torch.from_numpy(_logit(start)).float(), persistent=False
            )
        self.onset_start: Tensor
        self.repeat_start: Tensor

    def forward(self, glance: Glance, tally: Tally | None = None) -> Tensor:
        """Mean loss of the visits that have a next one."""
        if (ahead := self.ahead(glance)) is None:
            return self.share.new_zeros(())
        found, z = ahead
        n, device, rows = len(z), z.device, target_rows(glance)
        onset_scores = self.onsets.all(z, rows)
        repeat_scores = self.repeats.some(
            z, rows, moved(found.had_row, device), moved(found.had_code, device)
        )
        ranks = torch.from_numpy(found.next_rank)
        numeric = (~ranks.isnan()).nonzero().squeeze(1)
        number_row, number_code = (
            moved(a[numeric.numpy()], device) for a in (found.next_row, found.next_code)
        )
        means = self.numbers.some(z, rows, number_row, number_code)
        error = means - to_device(ranks[numeric], device).to(means.dtype)
        onsets, repeats = _onset_loss(onset_scores, found), _repeat_loss(repeat_scores, found)
        loss = (onsets + repeats + 0.5 * error.square().sum()) / n
        if tally is not None:
            repeat_matrix = self.repeats.all(z, rows)
            subjects = subjects_of(glance, glance.step.rows[found.chosen])
            self._measure(
                onset_scores.detach().cpu(), repeat_matrix.detach().cpu(), found, subjects, tally
            )
            tally.add("loss", loss.double() * n, n)
            tally.add("onset loss", onsets.double(), n)
            tally.add("repeat loss", repeats.double(), n)
            self._measure_numbers(error.detach().double().cpu(), ranks[numeric], found, tally)
        return loss

    def _measure(
        self, onsets: Tensor, repeats: Tensor, found: NextVisits, subjects: Ints, tally: Tally
    ) -> None:
        """Losses of the starting rates; recall of all codes, of new ones among new ones, of repeats among repeats."""
        n = len(found.chosen)
        had = torch.zeros(onsets.shape, dtype=torch.bool)
        had[found.had_row, found.had_code] = True
        start = self.onset_start.cpu().expand_as(onsets)
        of_had = self.repeat_start.cpu()[found.had_code]
        of_onsets, of_repeats = _onset_loss(start, found), _repeat_loss(of_had, found)
        tally.add("frequency onset loss", of_onsets.double(), n)
        tally.add("frequency repeat loss", of_repeats.double(), n)
        # logits of the chance that the next visit has the code
        ours = torch.where(had, repeats, onsets)
        no = float("-inf")
        guesses, subject = {"model": ours, **self.baselines(found)}, subjects[found.next_row]
        every, nowhere = np.ones(len(found.next_row), dtype=np.bool_), torch.zeros_like(had)
        kinds = {
            "": (every, nowhere),
            "onset": (~found.is_repeat, had),
            "repeat": (found.is_repeat, ~had),
        }
        for kind, (mask, hidden) in kinds.items():
            row, code = found.next_row[mask], found.next_code[mask]
            ranks = {
                name: ranks_of(guess.masked_fill(hidden, no), row, code)
                for name, guess in guesses.items()
            }
            tally.add_recalls(ranks, subject[mask], kind=kind)

    @staticmethod
    def _measure_numbers(error: Tensor, rank: Tensor, found: NextVisits, tally: Tally) -> None:
        """Squared errors of the ranks: the model's, those of the mean rank, and of the last known rank."""
        n = len(rank)
        carried = found.carried_rank[~np.isnan(found.next_rank)]
        known = ~np.isnan(carried)
        tally.add("model rank error", error.square().sum(), n)
        tally.add("mean rank error", rank.double().square().sum(), n)
        tally.add("model rank error, known before", error[known].square().sum(), int(known.sum()))
        last = rank.double().numpy()[known] - carried[known]
        tally.add("last rank error, known before", float(np.square(last).sum()), int(known.sum()))


def _onset_loss(scores: Tensor, found: NextVisits) -> Tensor:
    """Σ BCE over codes that were never had: all softplus, less the positives' scores, less what was had."""
    new = ~found.is_repeat
    device = scores.device
    positive = pairs_of(
        scores, moved(found.next_row[new], device), moved(found.next_code[new], device)
    )
    had = pairs_of(scores, moved(found.had_row, device), moved(found.had_code, device))
    return F.softplus(scores).sum() - F.softplus(had).sum() - positive.sum()


def _repeat_loss(scores: Tensor, found: NextVisits) -> Tensor:
    """Σ BCE over codes that were had; `scores` (H,) are theirs."""
    label = to_device(torch.from_numpy(found.had_next), scores.device).to(scores.dtype)
    return F.binary_cross_entropy_with_logits(scores, label, reduction="sum")


def _logit(rate: Floats) -> Floats:
    logit: Floats = np.log(rate) - np.log1p(-rate)
    return logit
