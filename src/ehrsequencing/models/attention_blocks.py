"""The fast path of attention: the rules of `attention`, cut into dense blocks.

Rows of similar length share a block and one call of `scaled_dot_product_attention`. Inside a block, rows are padded on
the right; pads repeat a row of the same group, so no block ever mixes two subjects. A plan is built once a batch, on
the CPU from what the CPU knows of the batch (`VisitBatch.host`), and shared by all layers, so that nothing waits for a
device. Tests compare every plan with the masks and with plain loops.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models.segments import gather_rows, to_device

CHUNK = 256  # rows of one chunk beyond the window: its keys are the window's more
FREE_PADS = 128  # rows of padding that are cheaper than one more call
PAD_SHARE = 1 / 8  # ... and the share of a block's rows that may be padding beyond that


@dataclass(frozen=True)
class Block:
    """One dense attention: G groups of `query_length` rows, each against its `key_length` rows."""

    groups: int  # G
    query_length: int  # Lq
    key_length: int  # Lk
    mask: Tensor | None = None  # broadcasts to (G, heads, Lq, Lk), True = attended to; None: all
    causal: bool = False  # instead of a mask: slot i sees the slots up to i


@dataclass(frozen=True)
class AttentionPlan:
    """What each of N packed rows attends to, as dense blocks."""

    query_rows: Tensor  # (P,) packed rows of all blocks' query slots, one block after another
    key_rows: Tensor  # (Q,) packed rows of all blocks' key slots
    answer_slot: Tensor  # (N,) the query slot that answers for each packed row
    blocks: tuple[Block, ...]  # the dense attentions

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, heads: int) -> Tensor:
        """See `attention.attend`; in at least float32, also under autocast."""
        if not self.blocks:
            return q  # no rows
        query_slots = [block.groups * block.query_length for block in self.blocks]
        key_slots = [block.groups * block.key_length for block in self.blocks]
        queries = _cut(q, self.query_rows, query_slots, heads=heads)
        keys = _cut(k, self.key_rows, key_slots, heads=heads)
        values = _cut(v, self.key_rows, key_slots, heads=heads)
        answers: list[Tensor] = []
        for part in zip(queries, keys, values, strict=True):
            block = self.blocks[len(answers)]
            # each (G, heads, L, d/heads)
            q, k, v = (x.view(block.groups, -1, *x.shape[1:]).transpose(1, 2) for x in part)
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=block.mask, is_causal=block.causal
            )
            answers.append(out.transpose(1, 2).reshape(block.groups * block.query_length, -1))
        return gather_rows(torch.cat(answers), self.answer_slot)


def _cut(x: Tensor, rows: Tensor, sizes: list[int], *, heads: int) -> tuple[Tensor, ...]:
    """(N, d) packed rows → one (slots, heads, d/heads) a block. Splitting, unlike slicing, has a cheap backward."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.split(gather_rows(x, rows).to(wide).view(rows.shape[0], heads, -1), sizes)


# ---- builders ----------------------------------------------------------------------------------------------


class _Blocks:
    """Collects blocks and the packed rows in their slots."""

    def __init__(self, n_rows: int) -> None:
        self.answer_slot = torch.zeros(n_rows, dtype=torch.int64)
        self.query_rows: list[Tensor] = []
        self.key_rows: list[Tensor] = []
        self.blocks: list[Block] = []
        self.n_slots = 0  # query slots so far

    def add_rows(self, query_rows: Tensor, key_rows: Tensor, *, answers: Tensor) -> None:
        """The rows in the slots of the blocks added last; `answers` says which query slots are no pads."""
        slots = answers.nonzero().squeeze(1)
        self.answer_slot[query_rows[slots]] = self.n_slots + slots
        self.query_rows.append(query_rows)
        self.key_rows.append(key_rows)
        self.n_slots += len(query_rows)

    def add_each(
        self, asks: Tensor, own_row: Tensor, seen: Tensor, *, real_rows: Tensor, before: Tensor
    ) -> None:
        """Each of some rows against itself (first key) and the last real visits before it.

        Args:
            asks: (R,) the plan's number of each row.
            own_row: (R,) its packed row.
            seen: (R,) how many real visits it sees.
            real_rows: The packed rows of all real visits.
            before: (R,) where the visits that it sees end (exclusive) among `real_rows`.
        """
        order = seen.argsort(stable=True)
        lengths = seen[order] + 1
        groups, group, place, real = _padded(lengths)
        nth = (before[order] - lengths)[group] + place  # among real_rows: the last `seen` before it
        keys = own_row[order][group]
        visits = real & (place > 0)
        keys[visits] = real_rows[nth[visits]]
        for (size, length), mask in zip(groups, _key_masks(real, groups), strict=True):
            self.blocks.append(Block(size, 1, length, mask))
        self.add_rows(asks[order], keys, answers=torch.ones(len(order), dtype=torch.bool))

    def plan(self, device: torch.device) -> AttentionPlan:
        """Everything collected, moved to a device without waiting for it."""
        none = torch.zeros(0, dtype=torch.int64)
        blocks = (
            block if block.mask is None else replace(block, mask=to_device(block.mask, device))
            for block in self.blocks
        )
        return AttentionPlan(
            to_device(torch.cat([*self.query_rows, none]), device),
            to_device(torch.cat([*self.key_rows, none]), device),
            to_device(self.answer_slot, device),
            tuple(blocks),
        )


# ---- visits of a subject ---------------------------------------------------------------------------------------------


def visits_blocks(batch: VisitBatch, *, window: int, bidirectional: bool) -> AttentionPlan:
    """Squares, chunks and queries; the rule is `attention.visits_mask`."""
    builder = _VisitsPlan(batch.host, window, bidirectional)
    builder.add_squares()
    builder.add_chunks()
    builder.add_queries()
    return builder.plan(batch.codes.device)


def rows_blocks(batch: VisitBatch, rows: Tensor, *, window: int) -> AttentionPlan:
    """Causal attention of some rows alone (R,), each a query to itself and to the visits that it sees.

    The plan's queries are numbered from 0 to R − 1, its keys are rows of the batch. Always in dense blocks.
    """
    query, batch = rows.cpu(), batch.host
    subjects = SubjectRows(batch)
    seen = batch.visits_before[query]
    builder = _Blocks(len(query))
    builder.add_each(
        torch.arange(len(query)),
        query,
        seen.clamp(max=window - 1),
        real_rows=subjects.real_rows,
        before=subjects.first[batch.subject_of_visit[query]] + seen,
    )
    return builder.plan(rows.device)


class _VisitsPlan(_Blocks):
    """Squares (the first visits, up to the window), chunks (visits beyond it), and queries."""

    def __init__(self, batch: VisitBatch, window: int, bidirectional: bool) -> None:
        super().__init__(batch.n_visits)
        self.window, self.bidirectional = window, bidirectional
        self.subjects = SubjectRows(batch)
        self.length = self.subjects.length
        self.real_rows, self.first = self.subjects.real_rows, self.subjects.first
        fits = self.length.clamp(max=window)
        self.in_square = fits if not bidirectional else fits.where(self.length <= window, 0)

    def add_squares(self) -> None:
        """The first visits of each subject, up to the window: one causal square a group of similar lengths."""
        subjects = self.in_square.argsort(stable=True)
        subjects = subjects[self.in_square[subjects] > 0]
        lengths = self.in_square[subjects]
        groups, group, place, real = _padded(lengths)
        rows = self.real_rows[self.first[subjects][group] + place.minimum(lengths[group] - 1)]
        for (size, length), mask in zip(groups, _key_masks(real, groups), strict=True):
            if self.bidirectional:
                self.blocks.append(Block(size, length, length, mask))
            else:  # no real visit sees a pad, for pads come last
                self.blocks.append(Block(size, length, length, causal=True))
        self.add_rows(rows, rows, answers=real)

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
        query = start.unsqueeze(1) + torch.arange(size)  # (G, Lq)
        keys = start.unsqueeze(1) - back + torch.arange(back + size + ahead)  # (G, Lk)
        # (Lq, Lk) place of the key minus that of the query
        distance = torch.arange(back + size + ahead) - back - torch.arange(size).unsqueeze(1)
        mask = (distance >= -back) & (distance <= ahead)  # (Lq, Lk)
        if self.bidirectional:  # else a window starts inside the subject and ends at the query
            inside = ((keys >= 0) & (keys <= last)).unsqueeze(1)
            mask = (mask & inside | (distance == 0)).unsqueeze(1)
        self.blocks.append(Block(len(subject), size, keys.shape[1], mask))
        query_rows = self.real_rows[first + query.minimum(last)].flatten()
        key_rows = self.real_rows[first + keys.clamp(min=0).minimum(last)].flatten()
        self.add_rows(query_rows, key_rows, answers=(query <= last).flatten())

    def add_queries(self) -> None:
        """Each query against itself and the real visits that it sees."""
        row, seen = self.subjects.query_row, self.subjects.seen.clamp(max=self.window - 1)
        self.add_each(row, row, seen, real_rows=self.real_rows, before=self.subjects.before)


class SubjectRows:
    """Where real visits and queries stand in a batch.

    `real_rows` are the packed rows of all real visits; subject s owns `length[s]` of them from `first[s]` on. The j-th
    query is row `query_row[j]`; it may see the `seen[j]` real visits of its subject that end at `before[j]` (exclusive)
    among `real_rows`.
    """

    def __init__(self, batch: VisitBatch) -> None:
        is_query, subject = batch.is_query, batch.subject_of_visit
        self.real_rows = (~is_query).nonzero().squeeze(1)
        self.length = subject[self.real_rows].bincount(minlength=batch.n_subjects)
        self.first = self.length.cumsum(0) - self.length
        self.query_row = is_query.nonzero().squeeze(1)
        self.seen = batch.visits_before[self.query_row]
        self.before = self.first[subject[self.query_row]] + self.seen


# ---- codes of a visit ------------------------------------------------------------------------------------------------


def codes_blocks(offsets: Tensor, *, device: torch.device) -> AttentionPlan:
    """Visits of similar length beside one another; the rule is `attention.codes_mask`."""
    offsets = offsets.cpu()
    builder = _Blocks(int(offsets[-1]))
    order = offsets.diff().argsort(stable=True)
    order = order[offsets.diff()[order] > 0]
    lengths = offsets.diff()[order]
    groups, group, place, real = _padded(lengths)
    rows = offsets[order][group] + place.minimum(lengths[group] - 1)
    for (size, length), mask in zip(groups, _key_masks(real, groups), strict=True):
        builder.blocks.append(Block(size, length, length, None if bool(mask.all()) else mask))
    builder.add_rows(rows, rows, answers=real)
    return builder.plan(device)


# ---- tokens of a subject ---------------------------------------------------------------------------------------------


def tokens_blocks(
    batch: VisitBatch, token_offsets: Tensor, *, max_tokens: int, bidirectional: bool
) -> AttentionPlan:
    """Runs of visits, and queries; the rule is `attention.tokens_mask`."""
    builder = _TokensPlan(batch.host, token_offsets.cpu(), max_tokens, bidirectional)
    builder.add_visits()
    builder.add_queries()
    return builder.plan(batch.codes.device)


class _TokensPlan(_Blocks):
    """Runs of visits, each against the visits in its reach, and queries. Visits are counted along `real_rows`."""

    def __init__(
        self, batch: VisitBatch, token_offsets: Tensor, max_tokens: int, bidirectional: bool
    ) -> None:
        super().__init__(int(token_offsets[-1]))
        self.token_offsets, self.max_tokens = token_offsets, max_tokens
        self.subjects = subjects = SubjectRows(batch)
        tokens = token_offsets.diff()
        real_tokens = tokens[subjects.real_rows]
        # where each real visit's real tokens begin among all of them
        self.start = torch.cat([real_tokens.new_zeros(1), real_tokens.cumsum(0)])
        # the packed place of each real token
        self.token_of_real = ranges(token_offsets[subjects.real_rows], real_tokens)
        place = torch.arange(len(subjects.real_rows))
        first = subjects.first.repeat_interleave(subjects.length)
        end = first + subjects.length.repeat_interleave(subjects.length)
        self.low = self._reach_back(self.start[1:], first, place)
        self.high = place + 1
        if bidirectional:
            ahead = torch.searchsorted(self.start, self.start[:-1] + max_tokens, right=True) - 1
            self.high = ahead.maximum(place + 1).minimum(end)

    def _reach_back(self, end_token: Tensor, first: Tensor, own: Tensor) -> Tensor:
        """The first visit within `max_tokens` of each end, not before the subject's first nor after `own`."""
        return (
            torch.searchsorted(self.start, end_token - self.max_tokens).maximum(first).minimum(own)
        )

    def add_visits(self) -> None:
        """Runs of visits; a mask says which of the run's keys each token sees."""
        runs = sorted(self._runs(), key=lambda run: self._tokens(run[1]))
        low, high = self.start[self.low], self.start[self.high]  # real tokens that each visit sees
        visit_of_token = torch.arange(len(self.low)).repeat_interleave(self.start.diff())
        done = 0
        for size, key_length in _similar_lengths([self._tokens(keys) for _, keys in runs]):
            group, done = runs[done : done + size], done + size
            query_length = max(self._tokens(visits) for visits, _ in group)
            query, answers = self._slots([visits for visits, _ in group], query_length)
            keys, real = self._slots([keys for _, keys in group], key_length)
            visit = visit_of_token[query].unsqueeze(2)  # (G, Lq, 1)
            mask = (
                (keys.unsqueeze(1) >= low[visit])
                & (keys.unsqueeze(1) < high[visit])
                & real.unsqueeze(1)
            )
            seen = None if bool(mask.all()) else mask.unsqueeze(1)
            self.blocks.append(Block(size, query_length, key_length, seen))
            query_rows = self.token_of_real[query].flatten()
            key_rows = self.token_of_real[keys].flatten()
            self.add_rows(query_rows, key_rows, answers=answers.flatten())

    def _runs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Cut each subject's visits: as many as fit into `max_tokens`, then chunks; at least one visit a run.

        Of each run its visits, and the real visits that some of them sees; ends are exclusive.
        """
        start, low, high = self.start.tolist(), self.low.tolist(), self.high.tolist()
        runs = []
        for first, length in zip(
            self.subjects.first.tolist(), self.subjects.length.tolist(), strict=True
        ):
            here, room = first, self.max_tokens
            while here < first + length:
                end = here + 1
                while end < first + length and start[end + 1] - start[here] <= room:
                    end += 1
                runs.append(((here, end), (low[here], high[end - 1])))
                here, room = end, min(self.max_tokens, CHUNK)
        return runs

    def _tokens(self, visits: tuple[int, int]) -> int:
        return int(self.start[visits[1]] - self.start[visits[0]])

    def _slots(self, ranges: list[tuple[int, int]], length: int) -> tuple[Tensor, Tensor]:
        """Real tokens of each range of visits, padded to a length by its last: (G, L), and which are no pads."""
        ends = self.start[torch.tensor(ranges, dtype=torch.int64)]  # (G, 2)
        place = ends[:, :1] + torch.arange(length)
        return place.minimum(ends[:, 1:] - 1), place < ends[:, 1:]

    def add_queries(self) -> None:
        """Each query's tokens against themselves (first keys) and the tokens of the real visits that it sees."""
        row, before = self.subjects.query_row, self.subjects.before
        own = self.token_offsets.diff()[row]
        low = self._reach_back(self.start[before] + own, before - self.subjects.seen, before)
        seen = self.start[before] - self.start[low]
        order = (own + seen).argsort(stable=True)
        done = 0
        for size, key_length in _similar_lengths((own + seen)[order].tolist()):
            group, done = order[done : done + size], done + size
            own_tokens, past = own[group].unsqueeze(1), seen[group].unsqueeze(1)
            query = torch.arange(int(own_tokens.max())).expand(size, -1)
            first = self.token_offsets[row[group]].unsqueeze(1)
            place = torch.arange(key_length).expand(size, -1)
            nth = (self.start[low[group]].unsqueeze(1) + place - own_tokens).clamp(
                min=0, max=len(self.token_of_real) - 1
            )
            is_own, is_real = place < own_tokens, place < own_tokens + past
            past_keys = (
                self.token_of_real[nth] if len(self.token_of_real) else torch.zeros_like(place)
            )
            keys = torch.where(is_own | ~is_real, first + place.minimum(own_tokens - 1), past_keys)
            mask = None if bool(is_real.all()) else is_real.view(size, 1, 1, key_length)
            self.blocks.append(Block(size, query.shape[1], key_length, mask))
            query_rows = (first + query.minimum(own_tokens - 1)).flatten()
            self.add_rows(query_rows, keys.flatten(), answers=(query < own_tokens).flatten())


# ---- padding ---------------------------------------------------------------------------------------------------------


def ranges(start: Tensor, length: Tensor) -> Tensor:
    """The numbers of several ranges, one after another.

    >>> ranges(torch.tensor([5, 0]), torch.tensor([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    skipped = start - (length.cumsum(0) - length)
    return torch.arange(int(length.sum())) + skipped.repeat_interleave(length)


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


def _padded(lengths: Tensor) -> tuple[list[tuple[int, int]], Tensor, Tensor, Tensor]:
    """Groups of similar lengths; for every slot of them whose it is, its place from 0, and whether it is no pad."""
    groups = _similar_lengths(lengths.tolist())
    padded = torch.tensor(
        [longest for size, longest in groups for _ in range(size)], dtype=torch.int64
    )
    whose = torch.arange(len(lengths)).repeat_interleave(padded)
    place = torch.arange(len(whose)) - (padded.cumsum(0) - padded)[whose]
    return groups, whose, place, place < lengths[whose]


def _key_masks(real: Tensor, groups: list[tuple[int, int]]) -> list[Tensor]:
    """The slots of padded groups that are real, as one (G, 1, 1, L) mask a group."""
    parts = torch.split(real, [size * length for size, length in groups])
    return [
        part.view(size, 1, 1, length) for part, (size, length) in zip(parts, groups, strict=True)
    ]
