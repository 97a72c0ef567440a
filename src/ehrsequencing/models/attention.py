"""The one seam of attention: `attention(q, k, v, plan)` over packed rows. Who sees whom is decided in `plans`.

A plan is of one of two kinds:

- `AttentionPlan`: dense blocks, each computed by one call of `scaled_dot_product_attention`. Inside a block, rows are
  padded on the right; pads repeat a row of the same group, so no block ever mixes two subjects.
- `RaggedPlan`: spans of rows of any length without a pad, each stream of them computed by one call of
  `torch.nn.attention.varlen`: CUDA, half precision.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.segments import gather_distinct_rows, gather_rows, to_device

WIDEST_HEAD = 256  # of the ragged kernel


@dataclass(frozen=True)
class Block:
    """One dense attention: G groups of `query_length` rows, each against its `key_length` rows."""

    groups: int  # G
    query_length: int  # Lq
    key_length: int  # Lk
    # broadcastable to (G, heads, Lq, Lk), `True` = seen; None: every row sees every row
    mask: Tensor | None = None
    causal: bool = False  # instead of a mask: slot i sees the slots up to i


@dataclass(frozen=True)
class AttentionPlan:
    """Who sees whom among N packed rows, as dense blocks."""

    query_rows: Tensor  # (P,) packed rows of all blocks' query slots, one block after another
    key_rows: Tensor  # (Q,) packed rows of all blocks' key slots
    answer_slot: Tensor  # (N,) the query slot that answers for each packed row
    blocks: tuple[Block, ...]  # the dense attentions

    def to(self, device: torch.device) -> "AttentionPlan":
        """The plan on a device, without waiting for it."""
        return AttentionPlan(
            to_device(self.query_rows, device),
            to_device(self.key_rows, device),
            to_device(self.answer_slot, device),
            tuple(
                b if b.mask is None else replace(b, mask=to_device(b.mask, device))
                for b in self.blocks
            ),
        )


@dataclass(frozen=True)
class Spans:
    """One call of the ragged kernel: G spans of queries, each against its own span of keys.

    Query i of a span of Lq sees key j of its Lk where `−left ≤ j − (i + Lk − Lq) ≤ right`: the last query stands
    beside the last key. A bound of −1 is none.
    """

    query_offsets: Tensor  # (G+1,) int32, span g holds queries `query_offsets[g]:query_offsets[g+1]`, at least one
    key_offsets: Tensor  # (G+1,) int32, the same for keys
    queries: int  # number of queries; like the lengths known on the CPU, so that nobody waits for the device
    keys: int  # number of keys
    longest_query: int  # most queries of a span
    longest_key: int  # most keys of a span
    window: tuple[int, int]  # (left, right)


@dataclass(frozen=True)
class Stream:
    """Packed rows, and the calls that cut them into spans, one after another."""

    # (P,) packed rows of the queries, none twice; None: all rows in their order
    rows: Tensor | None
    # (Q,) packed rows of the keys, which may repeat; None: the queries are the keys
    key_rows: Tensor | None
    calls: tuple[Spans, ...]  # the kernel's calls


@dataclass(frozen=True)
class RaggedPlan:
    """Who sees whom among N packed rows, as streams without pads.

    Attributes:
        streams: Together they ask every row once.
        answer_slot: (N,) which of the streams' queries answers for each packed row; None: they stand in order.
    """

    streams: tuple[Stream, ...]
    answer_slot: Tensor | None

    def to(self, device: torch.device) -> "RaggedPlan":
        """The plan on a device, without waiting for it."""

        def moved(x: Tensor | None) -> Tensor | None:
            return None if x is None else to_device(x, device)

        def moved_call(call: Spans) -> Spans:
            offsets = to_device(call.query_offsets, device), to_device(call.key_offsets, device)
            return replace(call, query_offsets=offsets[0], key_offsets=offsets[1])

        streams = (
            Stream(moved(s.rows), moved(s.key_rows), tuple(map(moved_call, s.calls)))
            for s in self.streams
        )
        return RaggedPlan(tuple(streams), moved(self.answer_slot))


Plan = AttentionPlan | RaggedPlan


def attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, heads: int) -> Tensor:
    """Multi-head attention over packed rows: `softmax(q kᵀ / √(d/heads)) v` over the rows that each row may see.

    Dense plans run in at least float32, also under autocast; ragged ones in the half precision of q, k and v, with
    sums and softmax in float32. Neither drops weights, which would leave the fast path.

    Args:
        q: (N, d) queries of all packed rows.
        k: (N, d) keys.
        v: (N, d) values.
        plan: From `plans`.
        heads: Number of heads; divides d.

    Returns:
        (N, d)

    Raises:
        EhrseqError: A ragged plan with heads wider than the kernel's 256.
    """
    with torch.autocast(q.device.type, enabled=False):
        if isinstance(plan, RaggedPlan):
            return _ragged(q, k, v, plan, heads=heads)
        if not plan.blocks:
            return q  # no rows
        query_slots = [block.groups * block.query_length for block in plan.blocks]
        key_slots = [block.groups * block.key_length for block in plan.blocks]
        queries = _cut(q, plan.query_rows, query_slots, heads=heads)
        keys = _cut(k, plan.key_rows, key_slots, heads=heads)
        values = _cut(v, plan.key_rows, key_slots, heads=heads)
        answers = [_attend(*part) for part in zip(queries, keys, values, plan.blocks, strict=True)]
        return gather_rows(torch.cat(answers), plan.answer_slot)


# ---- dense blocks ----------------------------------------------------------------------------------------------------


def _cut(x: Tensor, rows: Tensor, sizes: list[int], *, heads: int) -> tuple[Tensor, ...]:
    """(N, d) packed rows → one (slots, heads, d/heads) a block. Splitting, unlike slicing, has a cheap backward."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.split(gather_rows(x, rows).to(wide).view(rows.shape[0], heads, -1), sizes)


def _attend(q: Tensor, k: Tensor, v: Tensor, block: Block) -> Tensor:
    """(G·Lq, heads, d/heads), twice (G·Lk, heads, d/heads) → (G·Lq, d)."""
    q, k, v = (x.view(block.groups, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=block.mask, is_causal=block.causal)
    return out.transpose(1, 2).reshape(block.groups * block.query_length, -1)


# ---- ragged spans ----------------------------------------------------------------------------------------------------


def _ragged(q: Tensor, k: Tensor, v: Tensor, plan: RaggedPlan, *, heads: int) -> Tensor:
    if not plan.streams:
        return v
    answers = []
    for stream in plan.streams:
        of_queries, of_keys = (
            [call.queries for call in stream.calls],
            [call.keys for call in stream.calls],
        )
        queries = torch.split(gather_distinct_rows(q, stream.rows), of_queries)
        if stream.key_rows is None:
            keys, values = (
                torch.split(gather_distinct_rows(x, stream.rows), of_keys) for x in (k, v)
            )
        else:
            keys, values = (torch.split(gather_rows(x, stream.key_rows), of_keys) for x in (k, v))
        parts = zip(queries, keys, values, stream.calls, strict=True)
        answers += [_attend_spans(*part, heads=heads) for part in parts]
    return gather_distinct_rows(torch.cat(answers), plan.answer_slot)


def _attend_spans(q: Tensor, k: Tensor, v: Tensor, spans: Spans, *, heads: int) -> Tensor:
    """(queries, d), twice (keys, d) → (queries, d)."""
    from torch.nn.attention.varlen import (
        varlen_attn,  # loads the compiler: two seconds that only a GPU shall cost
    )

    size = q.shape[1] // heads
    if size > WIDEST_HEAD:
        raise EhrseqError(
            f"heads wider than {WIDEST_HEAD}", where="ModelConfig.heads", fix="use more heads"
        )
    q, k, v = (x.view(len(x), heads, size) for x in (q, k, v))
    if size % 8:  # the kernel's heads are multiples of 8; zeros change no score
        q, k, v = (F.pad(x, (0, -size % 8)) for x in (q, k, v))
    out = varlen_attn(
        q,
        k,
        v,
        spans.query_offsets,
        spans.key_offsets,
        spans.longest_query,
        spans.longest_key,
        scale=size**-0.5,
        window_size=spans.window,
    )
    assert isinstance(out, Tensor)  # not the pair that `return_aux` asks for
    return out[..., :size].flatten(1)
