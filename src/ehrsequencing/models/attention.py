"""The one seam of attention: `attention(q, k, v, plan)` over packed rows. Who sees whom is decided in `plans`.

A plan lists dense blocks, each computed by one call of `scaled_dot_product_attention`. Inside a block, rows are padded
on the right; pads repeat a row of the same group, so no block ever mixes two subjects.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.models.segments import gather_rows


@dataclass(frozen=True)
class Block:
    """One dense attention: G groups of `query_length` rows, each against its `key_length` rows.

    Attributes:
        groups: G.
        query_length: Lq.
        key_length: Lk.
        mask: Broadcastable to (G, heads, Lq, Lk), `True` = seen; None: every row sees every row.
        causal: Instead of a mask: slot i sees the slots up to i.
    """

    groups: int
    query_length: int
    key_length: int
    mask: Tensor | None = None
    causal: bool = False


@dataclass(frozen=True)
class AttentionPlan:
    """Who sees whom among N packed rows.

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
    """Multi-head attention over packed rows: `softmax(q kᵀ / √(d/heads)) v` over the rows that each row may see.

    Runs in at least float32, also under autocast, and without dropout on the weights (which would leave the fast path).

    Args:
        q: (N, d) queries of all packed rows.
        k: (N, d) keys.
        v: (N, d) values.
        plan: From `plans`.
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
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=block.mask, is_causal=block.causal)
    return out.transpose(1, 2).reshape(block.groups * block.query_length, -1)
