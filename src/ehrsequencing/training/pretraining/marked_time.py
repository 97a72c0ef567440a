"""Marked time: when the next visit will be, and which code with which number it will have, given when it is."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.config.parts import objective
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.models.hazards import horizon_nll
from ehrsequencing.models.segments import constant, gather_rows, to_device
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
    wide,
)
from ehrsequencing.training.pretraining.targets import NextVisits

TIME_BINS = 12  # of the hazard of the next visit: quantiles of the training subjects' gaps
VALUE_BINS = 5  # of a code's rank, equally likely; one bin more without a number
_RANK_SD = float(np.sqrt(12.0))


@objective("marked_time")
class MarkedTime(AheadObjective):
    """A marked point process, with a code and the bin of its number as the mark (as in ORA, arXiv 2602.00541).

        p(Δ, c, b | z_v) = λ_k(z_v) exp(−Λ(Δ | z_v)) · p(c | k, z_v) · p(b | c, k, z_v)
        loss_v = −log p(Δ | z_v) − mean over codes c of visit v+1 of log p(c | k, z_v) + log p(b_c | c, k, z_v)

    Δ is the gap in days from v to the next visit, λ a hazard that is constant in each of 12 bins of time, k the bin of
    Δ. The mark sees z_v + t_k, t a learned vector for each bin: what comes after a week is not what comes after a year.
    b is one of 5 bins of the code's rank, or "no number". A subject's last visit has no target: the records do not
    say how long after it the subject was still observed.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        d, gaps = world.config.dim, np.sort(world.rates.gap_days)
        inner = np.quantile(gaps, np.arange(1, TIME_BINS) / TIME_BINS) if len(gaps) else np.zeros(0)
        self.edges_days = tuple(float(edge) for edge in np.unique(np.round(inner, 4)) if edge > 0)
        bins = len(self.edges_days) + 1
        self.norm = nn.LayerNorm(d)
        self.hazards = nn.Linear(d, bins)
        self.times = nn.Embedding(bins, d)
        self.scores = CodeScores(d, np.log(world.rates.share))
        self.value_norm, self.W_v = nn.LayerNorm(d), nn.Linear(d, d, bias=False)
        self.values = nn.Linear(d, VALUE_BINS + 1)
        nn.init.normal_(self.hazards.weight, std=0.1 * d**-0.5)
        nn.init.normal_(self.times.weight, std=d**-0.5)
        start = _rates(gaps, self.edges_days)
        with torch.no_grad():
            self.hazards.bias.copy_(torch.from_numpy(start))
        self.register_buffer("start", torch.from_numpy(start).float(), persistent=False)
        self.start: Tensor

    def forward(self, glance: Glance, tally: Tally | None = None) -> Tensor:
        """Mean loss of the visits that have a next one."""
        if (ahead := self.ahead(glance)) is None:
            return self.share.new_zeros(())
        found, z = ahead
        n, device = len(z), z.device
        gap = to_device(torch.from_numpy(found.gap_days).float(), device)
        logits = wide(self.hazards(self.norm(z))).unsqueeze(1)
        when = self._time_loss(logits, gap)
        # an edge belongs below, as above
        bin_of = torch.bucketize(gap, constant(self.edges_days, gap.dtype, device))
        marked = z + self.times(bin_of).to(z.dtype)
        rows = target_rows(glance)
        scores = self.scores.all(marked, rows)
        row, code = moved(found.next_row, device), moved(found.next_code, device)
        weight = 1.0 / torch.bincount(row, minlength=n).clamp(min=1).to(scores.dtype)[row]
        what = scores.logsumexp(1).index_select(0, row) - pairs_of(scores, row, code)
        value_logits = wide(
            self.values(
                gather_rows(self.value_norm(marked), row) * gather_rows(self.W_v(rows), code)
            )
        )
        number = to_device(value_bins(found.next_rank), device)
        value = F.cross_entropy(value_logits, number, reduction="none")
        loss = when.mean() + (weight * (what + value)).sum() / n
        if tally is not None:
            tally.add("loss", loss.double() * n, n)
            parts = (("time", when), ("code", weight * what), ("value", weight * value))
            for name, terms in parts:
                tally.add(f"{name} loss", terms.double().sum(), n)
            subjects = subjects_of(glance, glance.step.rows[found.chosen])
            self._measure(scores.detach().cpu(), gap.cpu(), found, subjects, tally)
        return loss

    def _measure(
        self, scores: Tensor, gap: Tensor, found: NextVisits, subjects: Ints, tally: Tally
    ) -> None:
        """Losses of the training subjects' rates, and recall of the next visit's codes, given when it is."""
        n, row, code = len(gap), found.next_row, found.next_code
        start = self.start.cpu().expand(n, 1, -1)
        tally.add("frequency time loss", self._time_loss(start, gap).double().sum(), n)
        weight = 1.0 / np.maximum(np.bincount(row, minlength=n), 1)[row]
        share = self.share.cpu()
        tally.add("frequency code loss", float(-(weight * share.double().numpy()[code]).sum()), n)
        guesses = {"model": scores, **self.baselines(found)}
        ranks = {name: ranks_of(guess, row, code) for name, guess in guesses.items()}
        tally.add_recalls(ranks, subjects[row])

    def _time_loss(self, logits: Tensor, gap_days: Tensor) -> Tensor:
        """(n,) −log density of each gap, in days."""
        cause = torch.ones(len(gap_days), dtype=torch.int64, device=gap_days.device)
        return horizon_nll(
            logits, self.edges_days, duration_days=gap_days, cause=cause, entry_days=None
        )


def value_bins(rank: Floats32) -> Tensor:
    """Bin of each rank (scaled to sd 1): 0 without a number, else 1 … 5.

    >>> value_bins(np.array([np.nan, -1.7, 0.0, 1.7], dtype=np.float32)).tolist()
    [0, 1, 3, 5]
    """
    place = np.nan_to_num(rank / _RANK_SD + 0.5, nan=0.0)
    bins = 1 + np.clip((place * VALUE_BINS).astype(np.int64), 0, VALUE_BINS - 1)
    return torch.from_numpy(np.where(np.isnan(rank), 0, bins))


def _rates(gaps: Floats, edges: tuple[float, ...]) -> Floats:
    """Log hazard per day of the next visit in each bin: events over days at risk."""
    lower, upper = np.array([0.0, *edges]), np.array([*edges, np.inf])
    at_risk = np.clip(gaps[:, None], lower, upper) - lower
    events = ((gaps[:, None] > lower) & (gaps[:, None] <= upper)).sum(0)
    rates: Floats = np.log((events + 0.5) / (at_risk.sum(0) + 1.0))
    return rates
