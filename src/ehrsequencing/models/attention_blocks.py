"""Dense attention in blocks: rows of similar length share one call of `scaled_dot_product_attention`.

Inside a block, rows are padded on the right; pads repeat a row of the same group, so no block ever mixes two subjects.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.models.segments import gather_rows, to_device


@dataclass(frozen=True)
class Block:
    """One dense attention: G groups of `query_length` rows, each against its `key_length` rows."""

    groups: int  # G
    query_length: int  # Lq
    key_length: int  # Lk
    # broadcastable to (G, heads, Lq, Lk), `True` = attended to; None: all
    mask: Tensor | None = None
    causal: bool = False  # instead of a mask: slot i sees the slots up to i


@dataclass(frozen=True)
class AttentionPlan:
    """What each of N packed rows attends to, as dense blocks."""

    query_rows: Tensor  # (P,) packed rows of all blocks' query slots, one block after another
    key_rows: Tensor  # (Q,) packed rows of all blocks' key slots
    answer_slot: Tensor  # (N,) the query slot that answers for each packed row
    blocks: tuple[Block, ...]  # the dense attentions

    def to(self, device: torch.device) -> "AttentionPlan":
        """The plan on a device, without waiting for it."""
        blocks = (
            block if block.mask is None else replace(block, mask=to_device(block.mask, device))
            for block in self.blocks
        )
        return AttentionPlan(
            to_device(self.query_rows, device),
            to_device(self.key_rows, device),
            to_device(self.answer_slot, device),
            tuple(blocks),
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, heads: int) -> Tensor:
        """See `attention`; in at least float32, also under autocast."""
        if not self.blocks:
            return q  # no rows
        query_slots = [block.groups * block.query_length for block in self.blocks]
        key_slots = [block.groups * block.key_length for block in self.blocks]
        queries = _cut(q, self.query_rows, query_slots, heads=heads)
        keys = _cut(k, self.key_rows, key_slots, heads=heads)
        values = _cut(v, self.key_rows, key_slots, heads=heads)
        answers = [_attend(*part) for part in zip(queries, keys, values, self.blocks, strict=True)]
        return gather_rows(torch.cat(answers), self.answer_slot)


def _cut(x: Tensor, rows: Tensor, sizes: list[int], *, heads: int) -> tuple[Tensor, ...]:
    """(N, d) packed rows → one (slots, heads, d/heads) a block. Splitting, unlike slicing, has a cheap backward."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.split(gather_rows(x, rows).to(wide).view(rows.shape[0], heads, -1), sizes)


def _attend(q: Tensor, k: Tensor, v: Tensor, block: Block) -> Tensor:
    """(G·Lq, heads, d/heads), twice (G·Lk, heads, d/heads) → (G·Lq, d)."""
    q, k, v = (x.view(block.groups, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=block.mask, is_causal=block.causal)
    return out.transpose(1, 2).reshape(block.groups * block.query_length, -1)
