"""Swapped codes: tell visits as they were recorded from visits that were put together of other visits' codes."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config.parts import objective
from ehrsequencing.models.segments import gather_rows, to_device
from ehrsequencing.training.pretraining.objective import (
    Glance,
    Objective,
    Tally,
    World,
    subjects_of,
    wide,
)
from ehrsequencing.training.pretraining.targets import TargetCodes

LAST = 3  # visits, the newest first, of which a state must know whether their codes belong together
SCALE = 0.5  # of a score, relative to the component of the vector that it is


@dataclass(frozen=True)
class Swapped:
    """A batch in which some visits hold codes of other visits in place of their own."""

    batch: VisitBatch
    row: Tensor  # (M,) rows of the batch that are asked about, rising
    is_swapped: Tensor  # (N,) which rows hold other visits' codes


@objective("swapped_codes")
class SwappedCodes(Objective):
    """Do the codes of a visit belong together? Noise-contrastive estimation (Gutmann & Hyvärinen 2010) of whole visits.

        s_v = ρ ⟨r_1, x_v⟩ + b_0,   t_{v,j} = ρ ⟨r_{j+1}, z_v⟩ + b_j          j = 1 … 3
        loss_v = ½ BCE(s_v, y_v) + ½ mean over j of BCE(t_{v,j}, y_{v−j+1})

    x_v is the visit as it enters the timeline, z_v its state after it (flat: means over its tokens), and y_v says
    whether its codes were swapped: each, with its numbers and copies, for a code of the same type (MEDS prefix) from
    another visit of the batch. So codes are as frequent as before, and the best score is the log of how much likelier
    the visit is than if its codes were drawn one by one. A state is asked about the last three visits.

    The vectors r are fixed, orthonormal and sum to zero; ρ is fixed, too. So what is learned of a visit makes up a
    large part of the variance of its vector, where a head finds it with few labels. With a free vector in place of
    ρ r the score was learned as well, and took .4 % of the variance: nothing that 300 events could find
    (docs/lab-notes/15-2026-11-23-few-labels.md).
    """

    sees_ahead = True
    needs_states = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.register_buffer(
            "vectors", SCALE * cosines(world.config.dim, 1 + LAST), persistent=False
        )
        self.vectors: Tensor
        self.bias = nn.Parameter(torch.zeros(1 + LAST))

    def forward(self, glance: Glance, tally: Tally | None = None) -> Tensor:
        """Mean loss of the visits that are asked about."""
        share, most = self.world.settings.masked_share, self.world.most_visits
        chosen = torch.from_numpy(glance.step.positions)
        found = swap(glance.step.batch.host, chosen, glance.codes, share=share, most=most)
        if found is None:
            return self.bias.new_zeros(())
        device = self.bias.device
        batch = found.batch.pin_memory() if device.type == "cuda" else found.batch
        x, z = glance.model.states(batch.to(device, non_blocking=True))
        asked, y = last_rows(found), found.is_swapped.to(wide(x).dtype)
        of_visit = self._nll(gather_rows(x, to_device(found.row, device)), y[found.row], 0)
        of_states = [
            self._nll(gather_rows(z, to_device(rows, device)), y[before], 1 + j)
            for j, (rows, before) in enumerate(asked)
            if len(rows)
        ]
        losses = {
            "visit loss": of_visit.mean(),
            "state loss": torch.stack([each.mean() for each in of_states]).mean(),
        }
        loss = (losses["visit loss"] + losses["state loss"]) / 2
        if tally is not None:
            n, rate = len(found.row), float(y[found.row].mean().clamp(1e-6, 1 - 1e-6))
            entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
            position = np.full(glance.step.batch.n_visits, -1)
            position[glance.step.positions] = glance.step.rows
            subjects = subjects_of(glance, position[found.row.numpy()])
            tally.add_gain(
                "visit loss", entropy - of_visit.detach().double().cpu().numpy(), subjects
            )
            for name, value in {"loss": loss, **losses}.items():
                tally.add(name, value.double() * n, n)
                tally.add(f"frequency {name}", n * entropy, n)
        return loss

    def _nll(self, vectors: Tensor, y: Tensor, number: int) -> Tensor:
        """(n, d) → (n,) of one of the scores."""
        score = wide(vectors) @ self.vectors[number] + self.bias[number]
        return F.binary_cross_entropy_with_logits(
            score, to_device(y, score.device), reduction="none"
        )


def cosines(dim: int, count: int) -> Tensor:
    """`r_j = √(2/d) cos(π (i + ½) j / d)`, j = 1 …: orthonormal, and components sum to zero; (count, dim)."""
    place, number = torch.arange(dim) + 0.5, torch.arange(1, 1 + count)
    return math.sqrt(2 / dim) * torch.cos(math.pi * number[:, None] * place / dim)


def last_rows(found: Swapped) -> list[tuple[Tensor, Tensor]]:
    """For each of the last visits: rows that are asked about and have one, and where it stands in the batch."""
    batch = found.batch
    real = (~batch.is_query).long()
    order = real.cumsum(0) - 1  # number of each real visit
    row_of = real.nonzero().squeeze(1)
    first = F.pad(real.cumsum(0), (1, 0))[batch.subject_offsets[:-1]][batch.subject_of_visit]
    pairs = []
    for back in range(LAST):
        has = order[found.row] - back >= first[found.row]
        rows = found.row[has]
        pairs.append((rows, row_of[order[rows] - back]))
    return pairs


def swap(
    batch: VisitBatch, positions: Tensor, codes: TargetCodes, *, share: float, most: int
) -> Swapped | None:
    """Swap all target codes of some visits for other visits' codes; None where no visit has a target code.

    Args:
        batch: On the CPU.
        positions: Rows of the batch that are asked about.
        codes: What may be swapped; a code's joint tokens (`CODE//Q3`) and copies go with it.
        share: Chance that a visit takes part. It gives every target code away, and gets as many of each type; a code
            that it gets twice counts once. A visit that gets exactly its own codes is as it was.
        most: At most so many visits are asked about, drawn at random.
    """
    n, count = batch.n_visits, len(codes)
    number = torch.from_numpy(codes.number)[batch.codes]
    asked = torch.zeros(n, dtype=torch.bool)
    asked[positions] = True
    may = (number >= 0) & (asked & ~batch.is_query)[batch.visit_of_code]
    row = torch.unique(batch.visit_of_code[may])
    if not len(row):
        return None
    if len(row) > most:
        row = row[torch.randperm(len(row))[:most].sort().values]
    takes_part = torch.zeros(n, dtype=torch.bool)
    takes_part[row[torch.rand(len(row)) < share]] = True
    items = (may & takes_part[batch.visit_of_code]).nonzero().squeeze(1)
    key = batch.visit_of_code[items] * count + number[items]
    # the codes of the visits that take part, visit by visit
    group, of_item = torch.unique(key, return_inverse=True)
    giver = _same_kind(torch.from_numpy(codes.kind)[group % count])
    new = torch.div(group, count, rounding_mode="floor") * count + (group % count)[giver]
    used = torch.zeros(len(group), dtype=torch.bool)
    used[_first_of_each(new)] = True
    is_swapped = torch.zeros(n, dtype=torch.bool)
    is_swapped[torch.div(group[~used | ~torch.isin(new, group)], count, rounding_mode="floor")] = (
        True
    )
    left = torch.ones(batch.n_codes, dtype=torch.bool)
    left[items] = False
    return Swapped(
        _put_together(batch, left, items, of_item, torch.where(used, giver, -1)), row, is_swapped
    )


def _same_kind(kind: Tensor) -> Tensor:
    """(n,) a random permutation of places that keeps the kind of each."""
    shuffled = torch.randperm(len(kind))
    out = torch.empty_like(shuffled)
    out[kind.argsort(stable=True)] = shuffled[kind[shuffled].argsort(stable=True)]
    return out


def _first_of_each(key: Tensor) -> Tensor:
    """Where each different key comes first."""
    order = key.argsort(stable=True)
    is_first = torch.ones(len(key), dtype=torch.bool)
    is_first[1:] = key[order][1:] != key[order][:-1]
    return order[is_first]


def _put_together(
    batch: VisitBatch, left: Tensor, items: Tensor, of_item: Tensor, giver: Tensor
) -> VisitBatch:
    """The batch with the items that are left, and in place of each group the items of its giver (-1: none).

    They stand where the first item of the group stood, so that no place tells which they are.
    """
    by_group = of_item.argsort(stable=True)
    size = torch.bincount(of_item, minlength=len(giver))
    start = size.cumsum(0) - size
    taker = (giver >= 0).nonzero().squeeze(1)
    many = size[giver[taker]]
    within = torch.arange(int(many.sum())) - (many.cumsum(0) - many).repeat_interleave(many)
    added = items[by_group[start[giver[taker]].repeat_interleave(many) + within]]
    place = items[by_group[start[taker]]].repeat_interleave(many)
    kept = left.nonzero().squeeze(1)
    order = torch.cat([kept, place]).argsort(stable=True)
    origin = torch.cat([kept, added])[order]
    owner = torch.cat([batch.visit_of_code[kept], batch.visit_of_code[place]])[order]
    return replace(
        batch,
        codes=batch.codes[origin],
        visit_offsets=F.pad(torch.bincount(owner, minlength=batch.n_visits).cumsum(0), (1, 0)),
        values=None if batch.values is None else batch.values[origin],
        code_types=None if batch.code_types is None else batch.code_types[origin],
    )
