"""The one seam of visit attention: `attention(q, k, v, plan)`.

A plan is built once a batch and shared by all layers. It lists dense blocks, each computed by one call of
`scaled_dot_product_attention`:

1. **squares**: real visits of subjects of similar length, padded on the right inside the block only. Under the causal
   mask no real visit sees a pad, so no other mask is needed.
2. **chunks**: visits beyond the window of `max_visits`. A chunk of queries meets the keys of its windows, so that the
   cost is linear in a subject's length.
3. **queries** (moments asked about): one query row against itself and the real visits before it. Nobody sees a query.

Pads repeat a row of the same subject, so no block ever mixes two subjects.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batch import VisitBatch
from ehrsequencing.models.segments import gather_rows

CHUNK = 256  # visits of one chunk: its keys are max_visits - 1 more
FREE_PADS = 128  # rows of padding that are cheaper than one more call
PAD_SHARE = 1 / 8  # ... and the share of a block's rows that may be padding beyond that


@dataclass(frozen=True)
class Block:
    """One dense attention: G groups of `query_length` rows, each against its `key_length` rows.

    Attributes:
        groups: G.
        query_length: Lq.
        key_length: Lk.
        mask: Broadcastable to (G, heads, Lq, Lk), `True` = seen; None means the causal square.
    """

    groups: int
    query_length: int
    key_length: int
    mask: Tensor | None


@dataclass(frozen=True)
class AttentionPlan:
    """Who sees whom in a batch.

    Attributes:
        query_rows: (P,) packed rows of all blocks' query slots, one block after another.
        key_rows: (Q,) packed rows of all blocks' key slots.
        answer_slot: (N,) the query slot that answers for each packed row.
        blocks: The dense attentions.
    """

    query_rows: Tensor
    key_rows: Tensor
    answer_slot: Tensor
    blocks: tuple[Block, ...]


def attention(q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, *, heads: int) -> Tensor:
    """Multi-head attention over visits: `softmax(q kᵀ / √(d/heads)) v` over the rows that the plan lets each row see.

    Runs in at least float32, also under autocast, and without dropout on the weights (which would leave the fast path).

    Args:
        q: (N, d) queries of all packed visits.
        k: (N, d) keys.
        v: (N, d) values.
        plan: From `build_plan`.
        heads: Number of heads; divides d.

    Returns:
        (N, d)
    """
    if not plan.blocks:
        return v
    with torch.autocast(q.device.type, enabled=False):
        query_slots = [block.groups * block.query_length for block in plan.blocks]
        key_slots = [block.groups * block.key_length for block in plan.blocks]
        queries = _cut(q, plan.query_rows, query_slots, heads=heads)
        keys = _cut(k, plan.key_rows, key_slots, heads=heads)
        values = _cut(v, plan.key_rows, key_slots, heads=heads)
        answers = [_attend(*part) for part in zip(queries, keys, values, plan.blocks, strict=True)]
        return gather_rows(torch.cat(answers), plan.answer_slot)


def _cut(x: Tensor, rows: Tensor, sizes: list[int], *, heads: int) -> tuple[Tensor, ...]:
    """(N, d) packed rows → one (slots, heads, d/heads) a block. Splitting, unlike slicing, has a cheap backward."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.split(gather_rows(x, rows).to(wide).view(len(rows), heads, -1), sizes)


def _attend(q: Tensor, k: Tensor, v: Tensor, block: Block) -> Tensor:
    """(G·Lq, heads, d/heads), twice (G·Lk, heads, d/heads) → (G·Lq, d)."""
    q, k, v = (x.view(block.groups, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=block.mask, is_causal=block.mask is None)
    return out.transpose(1, 2).reshape(block.groups * block.query_length, -1)


def build_plan(batch: VisitBatch, *, window: int, bidirectional: bool = False) -> AttentionPlan:
    """Cut a batch's attention into dense blocks.

    A real visit sees itself and the `window - 1` real visits before it; `bidirectional`, also as many after it. A
    query sees itself and the last `window - 1` real visits before it, either way.

    Args:
        batch: The packed visits.
        window: Most visits that one visit sees, itself included.
        bidirectional: Whether real visits also see the future.
    """
    builder = _Builder(batch, window, bidirectional)
    builder.add_squares()
    builder.add_chunks()
    builder.add_queries()
    return builder.plan()


class _Builder:
    """Collects blocks; all indices are made on the CPU and move to the batch's device at the end."""

    def __init__(self, batch: VisitBatch, window: int, bidirectional: bool) -> None:
        self.window, self.bidirectional, self.device = window, bidirectional, batch.codes.device
        is_query = batch.is_query.cpu()
        self.real_rows = (~is_query).nonzero().squeeze(1)
        subject_of_row = batch.subject_of_visit.cpu()
        self.length = subject_of_row[self.real_rows].bincount(minlength=batch.n_subjects)  # (S,) real visits
        self.first = self.length.cumsum(0) - self.length  # (S,) where a subject's rows start in real_rows
        self.query_row = is_query.nonzero().squeeze(1)
        self.seen = batch.visit_index.cpu()[self.query_row].clamp(max=window - 1)  # (queries,) real visits seen
        self.before = self.first[subject_of_row[self.query_row]] + batch.visit_index.cpu()[self.query_row]
        fits = self.length.clamp(max=window)
        self.in_square = fits if not bidirectional else fits.where(self.length <= window, 0)
        self.answer_slot = torch.zeros(batch.n_visits, dtype=torch.int64)
        self.query_rows: list[Tensor] = []
        self.key_rows: list[Tensor] = []
        self.blocks: list[Block] = []
        self.n_slots = 0  # query slots so far

    def add_squares(self) -> None:
        """The first visits of each subject, up to the window: one causal square a group of similar lengths."""
        subjects = self.in_square.argsort(stable=True)
        subjects = subjects[self.in_square[subjects] > 0]
        lengths = self.in_square[subjects]
        groups = _similar_lengths(lengths.tolist())
        group, place = _padded_places(lengths, groups)
        real = place < lengths[group]
        rows = self.real_rows[self.first[subjects][group] + place.minimum(lengths[group] - 1)]
        self.answer_slot[rows[real]] = real.nonzero().squeeze(1)
        for (size, length), mask in zip(groups, _key_masks(real, groups), strict=True):
            self._add_block(size, length, length, mask if self.bidirectional else None)
        self._add_rows(rows, rows)

    def add_chunks(self) -> None:
        """The visits beyond the squares: chunks of queries against the keys of their windows."""
        back, ahead = self.window - 1, (self.window - 1 if self.bidirectional else 0)
        size = min(self.window, CHUNK)
        left = self.length - self.in_square
        chunks = (left + size - 1) // size  # (S,)
        subject = torch.arange(len(left)).repeat_interleave(chunks)
        if not len(subject):
            return
        nth = torch.arange(len(subject)) - (chunks.cumsum(0) - chunks)[subject]
        start = self.in_square[subject] + nth * size  # (G,) first visit of each chunk
        last, first = (self.length[subject] - 1).unsqueeze(1), self.first[subject].unsqueeze(1)
        asked = start.unsqueeze(1) + torch.arange(size)  # (G, Lq)
        keys = start.unsqueeze(1) - back + torch.arange(back + size + ahead)  # (G, Lk)
        distance = torch.arange(back + size + ahead) - back - torch.arange(size).unsqueeze(1)  # key minus query
        mask = (distance >= -back) & (distance <= ahead)  # (Lq, Lk)
        if self.bidirectional:  # causal windows start inside the subject and end at the query itself
            mask = (mask & ((keys >= 0) & (keys <= last)).unsqueeze(1) | (distance == 0)).unsqueeze(1)
        rows = self.real_rows[first + asked.minimum(last)]
        real = asked <= last
        self.answer_slot[rows[real]] = self.n_slots + real.flatten().nonzero().squeeze(1)
        self._add_block(len(subject), size, keys.shape[1], mask)
        self._add_rows(rows.flatten(), self.real_rows[first + keys.clamp(min=0).minimum(last)].flatten())

    def add_queries(self) -> None:
        """Each query against itself (first key) and the real visits that it sees."""
        order = self.seen.argsort(stable=True)
        lengths = self.seen[order] + 1
        groups = _similar_lengths(lengths.tolist())
        group, place = _padded_places(lengths, groups)
        real = place < lengths[group]
        nth = (self.before[order] - lengths)[group] + place  # among real_rows: the last `seen` before the query
        keys = self.query_row[order][group]
        visits = real & (place > 0)
        keys[visits] = self.real_rows[nth[visits]]
        self.answer_slot[self.query_row[order]] = self.n_slots + torch.arange(len(order))
        for (size, length), mask in zip(groups, _key_masks(real, groups), strict=True):
            self._add_block(size, 1, length, mask)
        self._add_rows(self.query_row[order], keys)

    def _add_block(self, groups: int, query_length: int, key_length: int, mask: Tensor | None) -> None:
        mask = None if mask is None else mask.to(self.device)
        self.blocks.append(Block(groups, query_length, key_length, mask))

    def _add_rows(self, query_rows: Tensor, key_rows: Tensor) -> None:
        self.query_rows.append(query_rows)
        self.key_rows.append(key_rows)
        self.n_slots += len(query_rows)

    def plan(self) -> AttentionPlan:
        query_rows, key_rows = torch.cat(self.query_rows), torch.cat(self.key_rows)
        query_rows, key_rows, slot = (r.to(self.device) for r in (query_rows, key_rows, self.answer_slot))
        return AttentionPlan(query_rows, key_rows, slot, tuple(self.blocks))


def _similar_lengths(lengths: list[int]) -> list[tuple[int, int]]:
    """Cut rising lengths into groups of similar ones: [(size, longest)]; little padding, few calls.

    >>> _similar_lengths([1, 2, 2, 40, 200])
    [(4, 40), (1, 200)]
    """
    groups: list[tuple[int, int]] = []
    size = real = longest = 0
    for length in lengths:
        pads = (size + 1) * length - (real + length)
        if size and pads > FREE_PADS + PAD_SHARE * real:
            groups.append((size, longest))
            size = real = 0
        size, real, longest = size + 1, real + length, length
    return [*groups, (size, longest)] if size else groups


def _padded_places(lengths: Tensor, groups: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """For every slot of the padded groups: whose it is, and its place from 0."""
    padded = torch.tensor([longest for size, longest in groups for _ in range(size)], dtype=torch.int64)
    whose = torch.arange(len(lengths)).repeat_interleave(padded)
    return whose, torch.arange(len(whose)) - (padded.cumsum(0) - padded)[whose]


def _key_masks(real: Tensor, groups: list[tuple[int, int]]) -> list[Tensor]:
    """The slots of padded groups that are real, as one (G, 1, 1, L) mask a group."""
    parts = torch.split(real, [size * length for size, length in groups])
    return [part.view(size, 1, 1, length) for part, (size, length) in zip(parts, groups, strict=True)]
