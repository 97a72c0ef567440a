"""Attention over packed rows: what each row may attend to, and the attention itself. The plain path is here.

Two rules say what a row attends to, each as one mask over all rows (flat BEHRT's is in `behrt.py`):

- `visits_mask`: a subject's visits in time: causal, in a sliding window, queries seen by none but themselves.
- `codes_mask`: the codes of one visit, each seeing all of them.

Two kinds of plan compute `attend(q, k, v, plan)` by these rules and give the same numbers:

- `AttentionMask`: the mask itself, a few lines. Models use it inside `with plain_attention():`.
- `attention_blocks.AttentionPlan`: dense blocks of rows of similar length. The default.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models.attention_blocks import codes_blocks, rows_blocks, visits_blocks


class Plan(Protocol):
    """What each packed row attends to, and how that is computed."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, heads: int) -> Tensor:
        """See `attend`."""
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
        return (weights @ v).transpose(0, 1).flatten(1)


def attend(q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, heads: int) -> Tensor:
    """Multi-head attention over packed rows: `softmax(q kᵀ / √(d/heads)) v` over the rows that each row may see.

    Outside autocast, whose half precision softmax would not survive. No plan drops weights, which would leave the fast
    kernels.

    Args:
        q: (N, d) queries of all packed rows.
        k: (N, d) keys.
        v: (N, d) values.
        plan: From `visits_plan`, `codes_plan` or `behrt.tokens_plan`.
        heads: Number of heads; divides d.

    Returns:
        (N, d)
    """
    with torch.autocast(q.device.type, enabled=False):
        return plan.attend(q, k, v, heads=heads)


is_plain = ContextVar("plain_attention", default=False)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Inside the block, models attend by one mask over all rows: slow, and easy to follow with a debugger."""
    token = is_plain.set(True)
    try:
        yield
    finally:
        is_plain.reset(token)


# ---- visits of a subject ---------------------------------------------------------------------------------------------


def visits_mask(batch: VisitBatch, *, window: int, bidirectional: bool = False) -> Tensor:
    """(N, N) bool: which visits and queries each of them attends to.

    A real visit sees itself and the `window - 1` real visits before it; `bidirectional`, also as many after it. A
    query sees itself and the last `window - 1` real visits before it, either way.

    Args:
        batch: The packed visits.
        window: Most visits that one visit sees, itself included.
        bidirectional: Whether real visits also see the future.
    """
    subject, is_query = batch.subject_of_visit, batch.is_query
    back = batch.visits_before.unsqueeze(1) - batch.visits_before  # real visits from j up to i
    seen = (back > 0) & (back < window)
    if bidirectional:
        seen |= (back < 0) & (back > -window) & ~is_query.unsqueeze(1)
    seen &= (subject.unsqueeze(1) == subject) & ~is_query
    return seen | torch.eye(batch.n_visits, dtype=torch.bool, device=seen.device)


def visits_plan(batch: VisitBatch, *, window: int, bidirectional: bool = False) -> Plan:
    """How the timeline attends; arguments as of `visits_mask`."""
    if is_plain.get():
        return AttentionMask(visits_mask(batch, window=window, bidirectional=bidirectional))
    return visits_blocks(batch, window=window, bidirectional=bidirectional)


def rows_plan(batch: VisitBatch, rows: Tensor, *, window: int) -> Plan:
    """How some rows alone (R,) attend, causally: queries are numbered from 0 to R − 1, keys are rows of the batch."""
    if is_plain.get():
        return AttentionMask(visits_mask(batch, window=window)[rows])
    return rows_blocks(batch, rows, window=window)


# ---- codes of a visit ------------------------------------------------------------------------------------------------


def codes_mask(offsets: Tensor) -> Tensor:
    """(K, K) bool: each code attends to all codes of its visit, `offsets[n]:offsets[n+1]` of visit n."""
    visit = torch.arange(len(offsets) - 1, device=offsets.device).repeat_interleave(offsets.diff())
    return visit.unsqueeze(1) == visit


def codes_plan(offsets: Tensor, *, device: torch.device | None = None) -> Plan:
    """How the codes of a visit attend.

    Args:
        offsets: (N+1,) visit n holds the codes `offsets[n]:offsets[n+1]`; on the CPU, or there is a wait.
        device: Where the codes are; None: where the offsets are.
    """
    device = device or offsets.device
    if is_plain.get():
        return AttentionMask(codes_mask(offsets).to(device))
    return codes_blocks(offsets, device=device)
