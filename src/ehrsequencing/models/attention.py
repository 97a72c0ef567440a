"""The one place where attention is computed: `attention(q, k, v, plan)` over packed rows.

What each row may attend to is decided in `attention_masks`. Three plans give the same numbers:

- `AttentionMask`: one mask over all rows. Read this one; tests compare the others with it.
- `attention_blocks.AttentionPlan`: dense blocks of rows of similar length, the default.
- `attention_spans.RaggedPlan`: spans without pads, on a GPU in half precision.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Plan(Protocol):
    """What each packed row attends to, and how that is computed."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, heads: int) -> Tensor:
        """See `attention`."""
        ...


@dataclass(frozen=True)
class AttentionMask:
    """Attention by one mask over all rows: time and memory grow with the square of the batch."""

    seen: Tensor  # (R, N) bool, `True` where query row i attends to key row j; at least one in each row

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, heads: int) -> Tensor:
        """`softmax(q kᵀ / √(d/heads)) v`: queries (R, d), keys and values (N, d) → (R, d)."""
        q, k, v = (x.view(len(x), heads, -1).transpose(0, 1) for x in (q, k, v))
        scores = q @ k.transpose(1, 2) / k.shape[2] ** 0.5  # (heads, R, N)
        weights = scores.masked_fill(~self.seen, float("-inf")).softmax(2)
        out: Tensor = (weights @ v).transpose(0, 1).flatten(1)
        return out


def attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, heads: int) -> Tensor:
    """Multi-head attention over packed rows: `softmax(q kᵀ / √(d/heads)) v` over the rows that each row may see.

    Outside autocast, whose half precision softmax would not survive. No plan drops weights, which would leave the fast
    kernels.

    Args:
        q: (N, d) queries of all packed rows.
        k: (N, d) keys.
        v: (N, d) values.
        plan: From `attention_masks`.
        heads: Number of heads; divides d.

    Returns:
        (N, d)

    Raises:
        EhrseqError: A ragged plan with heads wider than the kernel's 256.
    """
    with torch.autocast(q.device.type, enabled=False):
        return plan.attend(q, k, v, heads=heads)
