"""Additive effects of codes beside the network: what a proportional-hazards model with one term a code would say."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.hazards import CURVES, curves_of_time
from ehrsequencing.models.segments import gather_rows, to_device

HALF_LIFE_DAYS = 180.0  # of what is recent
STEP = 5.0  # an effect moves so many times as far in a step as a weight of a matrix
FACTS = 4  # of a code's history


class CodeEffects(nn.Module):
    """Effects on the log hazards that are linear in four facts of each code's history.

        log λ_{e,k} += slope_{e,k} · Σ_j φ_j(s_k) · a_{e,j}        a = 5 · Σ_c ⟨w_c, f_c⟩

    φ are the curves of `HazardsOverTime`. The facts f_c of code c at a row, from the visits up to it: whether it was
    ever recorded, log₂ of how often, its last number (standardised; the mean of the visit's, which is a set of codes),
    and how much of it is recent: every record counts one, and half as much each 180 days. Codes without a time are not
    among them: they are part of every input.

    All four are sums over records, so that a row is its subject's running sum, in part a fading one. w begins at zero.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.causes, self.width = config.causes, config.causes * CURVES
        self.bins = config.bins
        self.effect = nn.Parameter(torch.zeros(config.vocab_size, FACTS * self.width))
        self.slope: Tensor
        self.register_buffer("slope", torch.ones(config.causes, config.bins))

    def forward(self, batch: VisitBatch) -> Tensor:
        """(N, causes · curves) a of every row."""
        kept, facts = facts_of_records(batch)
        of_codes = STEP * gather_rows(self.effect, batch.codes.index_select(0, kept))
        of_codes = of_codes.view(-1, FACTS, self.width)
        lasting = torch.einsum("kfc,kf->kc", of_codes[:, :-1], facts.to(of_codes.dtype))
        visit = batch.visit_of_code.index_select(0, kept)
        added = of_codes.new_zeros(batch.n_visits, 2 * self.width)
        added = added.index_add(0, visit, torch.cat([lasting, of_codes[:, -1]], 1))
        fading = added.new_full((self.width,), HALF_LIFE_DAYS)
        lasting, recent = running_sums(
            added, batch, torch.cat([torch.full_like(fading, float("inf")), fading])
        ).chunk(2, 1)
        return lasting + recent

    def over_time(self, a: Tensor) -> Tensor:
        """(N, causes · curves) → (N, causes, bins)."""
        curves = curves_of_time(self.bins, a)
        return torch.einsum("nej,kj->nek", a.view(-1, self.causes, CURVES), curves) * self.slope


def facts_of_records(batch: VisitBatch) -> tuple[Tensor, Tensor]:
    """Which codes (k,) are those of visits, and (k, 3) what each of them adds to the facts that last.

    That it is the first of its code, how log₂ of their number grows, and its number less the one before it.
    """
    host, device = batch.host, batch.codes.device  # on the CPU, since their number is a shape
    kept = (~host.is_query)[host.visit_of_code].nonzero().squeeze(1)
    codes, visit = host.codes[kept], host.visit_of_code[kept]
    subject = host.subject_of_visit[visit]
    by_code = codes.argsort(stable=True)
    order = by_code[subject[by_code].argsort(stable=True)]  # by subject, then code, then time
    is_next = torch.zeros(len(order), dtype=torch.bool)  # a later record of the same code
    is_next[1:] = (codes[order].diff() == 0) & (subject[order].diff() == 0)
    place = torch.arange(len(order))
    earlier = (place - place.masked_fill(is_next, 0).cummax(0).values).double()
    number = torch.zeros_like(earlier)
    if host.values is not None:
        numbers = host.values[kept, 1][order].double()
        stays = is_next.clone()  # another record of the code in the same visit
        stays[1:] &= visit[order].diff() == 0
        group = (~stays).cumsum(0) - 1
        known = number.index_add(0, group, numbers.isfinite().double()).clamp(min=1)
        number = (number.index_add(0, group, numbers.nan_to_num(0.0)) / known)[group]
    before = number.roll(1).masked_fill(~is_next, 0.0)
    grows = torch.log2((earlier + 1) / earlier.clamp(min=1))
    facts = number.new_zeros(len(order), FACTS - 1)
    facts[order] = torch.stack([(~is_next).double(), grows, number - before], 1)
    return to_device(kept, device), to_device(facts, device)


def running_sums(x: Tensor, batch: VisitBatch, half_lives_days: Tensor) -> Tensor:
    """Each subject's sums of its rows so far (N, D), of which every column fades with a half-life in days (D,).

        y_n = Σ_{m ≤ n} x_m · 2^{−(t_n − t_m) / h}

    They are doubled in length until they reach over the longest record.
    """
    delta = batch.delta_days.double()
    days = delta.masked_fill(batch.is_query, 0.0).cumsum(0) + delta.masked_fill(
        ~batch.is_query, 0.0
    )
    subject, length = batch.subject_of_visit, 1
    while length < max(batch.host.subject_offsets.diff().tolist(), default=0):
        elapsed = (days[length:] - days[:-length]).to(x.dtype)
        share = torch.exp2(-elapsed.unsqueeze(1) / half_lives_days)
        share = share.masked_fill((subject[length:] != subject[:-length]).unsqueeze(1), 0.0)
        x = x + F.pad(x[:-length] * share, (0, 0, length, 0))
        length *= 2
    return x
