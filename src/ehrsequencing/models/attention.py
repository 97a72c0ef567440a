"""Module 4: attention over packed rows (which row attends to which, cut into dense blocks), and the layers of it.

Three rules say what a row attends to:

- *Visits in time* (`time_plan`). A real visit sees itself and the real visits of its subject before it, as far as a
  window reaches; bidirectional, also those after it. A query sees itself and the past, and nothing sees a query.
- *Tokens in time* (`time_plan` with `offsets`), for flat BEHRT: the same with whole visits of several tokens each. All
  tokens of a visit see one another, and the window counts tokens.
- *Codes of a visit* (`codes_plan`), each seeing all of them.

Rows of similar length share a block and one call of `scaled_dot_product_attention`. Inside a block, rows are padded on
the right; pads repeat a row of the same group, so no block ever mixes two subjects. A plan is built once a batch, on
the CPU from what the CPU knows of the batch (`VisitBatch.host`), and shared by all layers, so that nothing waits for a
device. Tests compare every plan with plain loops.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.positions import Rotation, rotation
from ehrsequencing.models.segments import dropout, gather_rows, to_device

LAYER_SCALE = 0.1  # start of the learned scale of each residual branch
CHUNK = 256  # tokens of one run beyond the window: its keys are the window's more
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
        """Multi-head attention: `softmax(q kᵀ / √(d/heads)) v` over the rows that each row may see.

        Outside autocast, whose half precision softmax would not survive, and in at least float32. No weights are
        dropped, which would leave the fast kernels.

        Args:
            q: (N, d) queries of all packed rows, or of those that the plan is of.
            k: (·, d) keys.
            v: (·, d) values.
            heads: Number of heads; divides d.

        Returns:
            (N, d)
        """
        if not self.blocks:
            return q  # no rows
        query_slots = [block.groups * block.query_length for block in self.blocks]
        key_slots = [block.groups * block.key_length for block in self.blocks]
        answers: list[Tensor] = []
        with torch.autocast(q.device.type, enabled=False):
            queries = _cut(q, self.query_rows, query_slots, heads=heads)
            keys = _cut(k, self.key_rows, key_slots, heads=heads)
            values = _cut(v, self.key_rows, key_slots, heads=heads)
            for block, *parts in zip(self.blocks, queries, keys, values, strict=True):
                # each (G, heads, L, d/heads)
                q, k, v = (x.view(block.groups, -1, *x.shape[1:]).transpose(1, 2) for x in parts)
                out = F.scaled_dot_product_attention(
                    q, k, v, attn_mask=block.mask, is_causal=block.causal
                )
                answers.append(out.transpose(1, 2).reshape(block.groups * block.query_length, -1))
            return gather_rows(torch.cat(answers), self.answer_slot)


def _cut(x: Tensor, rows: Tensor, sizes: list[int], *, heads: int) -> tuple[Tensor, ...]:
    """(N, d) packed rows → one (slots, heads, d/heads) a block. Splitting, unlike slicing, has a cheap backward."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.split(gather_rows(x, rows).to(wide).view(rows.shape[0], heads, -1), sizes)


# ---- plans -----------------------------------------------------------------------------------------------------------


def time_plan(
    batch: VisitBatch, *, window: int, bidirectional: bool = False, offsets: Tensor | None = None
) -> AttentionPlan:
    """How visits attend in time, or their tokens.

    Args:
        batch: The packed visits.
        window: Most visits (tokens of whole visits) that one visit sees back, its own included.
        bidirectional: Whether real visits also see as far ahead.
        offsets: (N+1,) row n owns tokens `offsets[n]:offsets[n+1]`, at least one; on the CPU, or there is a wait. None:
            a row is one token.
    """
    made = _OverTime(batch.host, window, offsets)
    made.add_visits(bidirectional=bidirectional)
    query = batch.host.is_query.nonzero().squeeze(1)
    made.add_alone(query, made.offsets[query])
    return made.plan(batch.codes.device)


def rows_plan(batch: VisitBatch, rows: Tensor, *, window: int) -> AttentionPlan:
    """How some rows alone (R,) attend, causally: queries are numbered from 0 to R − 1, keys are rows of the batch."""
    made = _OverTime(batch.host, window, n_rows=len(rows))
    made.add_alone(rows.cpu(), torch.arange(len(rows)))
    return made.plan(rows.device)


def codes_plan(offsets: Tensor, *, device: torch.device | None = None) -> AttentionPlan:
    """How the codes of a visit attend.

    Args:
        offsets: (N+1,) visit n holds the codes `offsets[n]:offsets[n+1]`; on the CPU, or there is a wait.
        device: Where the codes are; None: where the offsets are.
    """
    device, offsets = device or offsets.device, offsets.cpu()
    made, lengths = _Blocks(int(offsets[-1])), offsets.diff()
    order = lengths.argsort(stable=True)
    order = order[lengths[order] > 0]
    for size, length in _similar_lengths(lengths[order].tolist()):
        chosen, order = order[:size], order[size:]
        rows, real = _slots(offsets[chosen], offsets[chosen + 1], length)
        mask = None if bool(real.all()) else real.view(size, 1, 1, length)
        made.add(Block(size, length, length, mask), rows, rows, answers=real)
    return made.plan(device)


# ---- layers: visits in time → contextual visit states; codes of a visit and flat tokens use them too ---


class TimelineEncoder(nn.Module):
    """Transformer over a subject's visits: causal, with a sliding window of `max_visits`; queries are seen by none.

    With `rotary`, attention knows the days and visits between two rows (`rotation`).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.window, self.bidirectional = config.max_visits, config.attention == "bidirectional"
        self.rotary, self.head_dim = config.rotary, config.dim // config.heads
        self.layers = nn.ModuleList(
            TransformerLayer(config, value_dropout=config.history_dropout)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, x: Tensor, batch: VisitBatch, rows: Tensor | None = None) -> Tensor:
        """(N, d) visits with their time signals → (N, d) contextual states.

        With `rows` (R,) only theirs, (R, d): where attention is causal, the last layer computes no others.
        """
        plan = time_plan(batch, window=self.window, bidirectional=self.bidirectional)
        turn = rotation(batch, head_dim=self.head_dim, dtype=x.dtype) if self.rotary else None
        *before, last = self.layers
        for layer in before:
            x = layer(x, plan, turn)
        if rows is None or self.bidirectional:
            x = last(x, plan, turn)
            x = x if rows is None else x.index_select(0, rows)
        else:
            x = last(x, rows_plan(batch, rows, window=self.window), turn, rows=rows)
        return self.norm(x)


class TransformerLayer(nn.Module):
    """Pre-LN block: `x + s1·Attn(LN x)`, then `x + s2·W2 gelu(W1 LN x)`, s learned per channel (LayerScale).

    With `value_dropout` p, training drops a row's whole value with probability p for all rows that attend to it, and
    divides the other values by 1 − p.
    """

    def __init__(self, config: ModelConfig, *, value_dropout: float = 0.0) -> None:
        super().__init__()
        d = config.dim
        self.heads = config.heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.W1, self.W2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.attention_scale = nn.Parameter(torch.full((d,), LAYER_SCALE))
        self.mlp_scale = nn.Parameter(torch.full((d,), LAYER_SCALE))
        self.dropout, self.value_dropout = config.dropout, value_dropout

    def forward(
        self,
        x: Tensor,
        plan: AttentionPlan,
        turn: Rotation | None = None,
        *,
        rows: Tensor | None = None,
    ) -> Tensor:
        """(N, d) packed rows → (N, d); `turn` encodes the distance between rows.

        With `rows` (R,) only these are computed, (R, d): the plan is then of these (`rows_plan`).
        """
        qk, v = self.qkv(self.attention_norm(x)).split([2 * x.shape[1], x.shape[1]], dim=1)
        q, k = (qk if turn is None else turn(qk, heads=2 * self.heads)).chunk(2, dim=1)
        if self.value_dropout and self.training:
            v = v * dropout(v.new_ones(len(v), 1), self.value_dropout, training=True)
        if rows is not None:
            x, q = x.index_select(0, rows), q.index_select(0, rows)
        more = self.attention_scale * self.out(plan.attend(q, k, v, heads=self.heads))
        x = x + dropout(more, self.dropout, training=self.training)
        more = self.mlp_scale * self.W2(F.gelu(self.W1(self.mlp_norm(x))))
        return x + dropout(more, self.dropout, training=self.training)


# ---- blocks of a plan ------------------------------------------------------------------------------------------------


class _Blocks:
    """Collects blocks and the packed rows in their slots."""

    def __init__(self, n_rows: int) -> None:
        self.answer_slot = torch.zeros(n_rows, dtype=torch.int64)
        none = torch.zeros(0, dtype=torch.int64)
        self.query_rows, self.key_rows = [none], [none]
        self.blocks: list[Block] = []
        self.n_slots = 0  # query slots so far

    def add(self, block: Block, query: Tensor, key: Tensor, *, answers: Tensor) -> None:
        """A block, the rows in its slots (G, L), and which query slots are no pads."""
        slots = answers.flatten().nonzero().squeeze(1)
        self.answer_slot[query.flatten()[slots]] = self.n_slots + slots
        self.query_rows.append(query.flatten())
        self.key_rows.append(key.flatten())
        self.n_slots += query.numel()
        self.blocks.append(block)

    def plan(self, device: torch.device) -> AttentionPlan:
        """Everything collected, moved to a device without waiting for it."""
        blocks = (
            block if block.mask is None else replace(block, mask=to_device(block.mask, device))
            for block in self.blocks
        )
        return AttentionPlan(
            to_device(torch.cat(self.query_rows), device),
            to_device(torch.cat(self.key_rows), device),
            to_device(self.answer_slot, device),
            tuple(blocks),
        )


class _OverTime(_Blocks):
    """Runs of real visits, each against the visits in its reach, and rows alone. Real tokens are counted on their own.

    Args:
        batch: On the CPU.
        window: See `time_plan`.
        offsets: See `time_plan`.
        n_rows: Of how many rows the plan is; None: of all tokens.
    """

    def __init__(
        self,
        batch: VisitBatch,
        window: int,
        offsets: Tensor | None = None,
        *,
        n_rows: int | None = None,
    ) -> None:
        self.is_one_each = offsets is None
        self.offsets = torch.arange(batch.n_visits + 1) if offsets is None else offsets.cpu()
        super().__init__(int(self.offsets[-1]) if n_rows is None else n_rows)
        self.batch, self.window = batch, window
        tokens, is_real = self.offsets.diff(), ~batch.is_query
        # where each real visit's tokens begin among all real ones, and the packed place of each of these
        self.start = F.pad(tokens[is_real].cumsum(0), (1, 0))
        self.place = is_real.repeat_interleave(tokens).nonzero().squeeze(1)
        # a subject's real visits are number `first` to `first + length` of all
        self.length = batch.subject_of_visit[is_real].bincount(minlength=batch.n_subjects)
        self.first = self.length.cumsum(0) - self.length

    def add_visits(self, *, bidirectional: bool) -> None:
        """Runs of visits: of each subject as many as fit into the window, then chunks; at least one visit a run."""
        own, start = torch.arange(len(self.start) - 1), self.start
        first, last = (
            x.repeat_interleave(self.length) for x in (self.first, self.first + self.length)
        )
        low = torch.searchsorted(start, start[1:] - self.window).maximum(first).minimum(own)
        high = own + 1
        if bidirectional:
            ahead = torch.searchsorted(start, start[:-1] + self.window, right=True) - 1
            high = ahead.maximum(high).minimum(last)
        begins, reach = start.tolist(), list(zip(low.tolist(), high.tolist(), strict=True))
        squares, chunks = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for here, end in zip(self.first.tolist(), (self.first + self.length).tolist(), strict=True):
            runs, room = squares, self.window
            while here < end:
                stop = max(bisect_right(begins, begins[here] + room, here, end + 1) - 1, here + 1)
                runs.append((here, stop, reach[here][0], reach[stop - 1][1]))
                here, runs, room = stop, chunks, min(self.window, CHUNK)
        is_causal = self.is_one_each and not bidirectional
        self._add_runs(squares, start[low], start[high], is_causal=is_causal)
        self._add_runs(chunks, start[low], start[high], is_causal=False)

    def _add_runs(
        self, runs: list[tuple[int, ...]], low: Tensor, high: Tensor, *, is_causal: bool
    ) -> None:
        """Runs of visits; a mask says which of the run's keys each token sees.

        Args:
            runs: Of each the first visit and the last (exclusive), and those of the visits that some of them see.
            low: (visits,) the first real token that each visit sees.
            high: (visits,) and the last, exclusive.
            is_causal: Whether each token of a run sees the run's tokens up to itself: no mask is needed.
        """
        bounds = self.start[
            torch.tensor(runs, dtype=torch.int64).view(-1, 4)
        ]  # (runs, 4) in tokens
        bounds = bounds[(bounds[:, 3] - bounds[:, 2]).argsort(stable=True)]
        visit_of_token = torch.arange(len(low)).repeat_interleave(self.start.diff())
        for size, key_length in _similar_lengths((bounds[:, 3] - bounds[:, 2]).tolist()):
            group, bounds = bounds[:size], bounds[size:]
            query_length = int((group[:, 1] - group[:, 0]).max())
            query, answers = _slots(group[:, 0], group[:, 1], query_length)
            keys, real = _slots(group[:, 2], group[:, 3], key_length)
            mask = None
            if not is_causal:
                visit, key = (
                    visit_of_token[query].unsqueeze(2),
                    keys.unsqueeze(1),
                )  # (G, Lq, 1), (G, 1, Lk)
                mask = (key >= low[visit]) & (key < high[visit]) & real.unsqueeze(1)
                mask = None if bool(mask.all()) else mask.unsqueeze(1)
            block = Block(size, query_length, key_length, mask, is_causal)
            self.add(block, self.place[query], self.place[keys], answers=answers)

    def add_alone(self, row: Tensor, number: Tensor) -> None:
        """Some rows (R,), each's tokens against themselves (first keys) and the real visits before that it sees.

        Args:
            row: The rows, queries or visits.
            number: (R,) the plan's number of the first token of each.
        """
        first = self.first[self.batch.subject_of_visit[row]]
        before = first + self.batch.visit_index[row]
        own, stop = self.offsets.diff()[row], self.start[before]
        low = (
            torch.searchsorted(self.start, stop + own - self.window).maximum(first).minimum(before)
        )
        seen = stop - self.start[low]
        order = (own + seen).argsort(stable=True)
        for size, key_length in _similar_lengths((own + seen)[order].tolist()):
            some, order = order[:size], order[size:]
            tokens = own[some].unsqueeze(1)
            place = torch.arange(int(own[some].max())).expand(size, -1)
            query = number[some].unsqueeze(1) + place.minimum(tokens - 1)
            key = torch.arange(key_length).expand(size, -1)
            is_past = (key >= tokens) & (key < tokens + seen[some].unsqueeze(1))
            keys = self.offsets[row[some]].unsqueeze(1) + key.minimum(tokens - 1)
            nth = self.start[low[some]].unsqueeze(1) + key - tokens
            keys[is_past] = self.place[nth[is_past]]
            real = is_past | (key < tokens)
            mask = None if bool(real.all()) else real.view(size, 1, 1, key_length)
            block = Block(size, place.shape[1], key_length, mask)
            self.add(block, query, keys, answers=place < tokens)


def _slots(begin: Tensor, end: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The numbers of some ranges (G,), padded to a length by their last: (G, L), and which are no pads."""
    place = begin.unsqueeze(1) + torch.arange(length)
    return place.minimum(end.unsqueeze(1) - 1), place < end.unsqueeze(1)


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
