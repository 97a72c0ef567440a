"""Module 4: visits in time → contextual visit states, by layers that codes of a visit and flat tokens use too."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models import attention
from ehrsequencing.models.attention import AttentionPlan
from ehrsequencing.models.positions import Rotation, rotation
from ehrsequencing.models.segments import dropout

LAYER_SCALE = 0.1  # start of the learned scale of each residual branch


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

    def forward(self, x: Tensor, batch: VisitBatch) -> Tensor:
        """(N, d) visits with their time signals → (N, d) contextual states."""
        plan = attention.time_plan(batch, window=self.window, bidirectional=self.bidirectional)
        turn = rotation(batch, head_dim=self.head_dim, dtype=x.dtype) if self.rotary else None
        for layer in self.layers:
            x = layer(x, plan, turn)
        return self.norm(x)

    def at_rows(self, x: Tensor, batch: VisitBatch, rows: Tensor) -> Tensor:
        """(R, d) states of some rows (R,): the last layer computes no others."""
        if self.bidirectional:
            return self(x, batch).index_select(0, rows)
        turn = rotation(batch, head_dim=self.head_dim, dtype=x.dtype) if self.rotary else None
        *before, last = self.layers
        if before:
            plan = attention.time_plan(batch, window=self.window)
            for layer in before:
                x = layer(x, plan, turn)
        return self.norm(
            last(x, attention.rows_plan(batch, rows, window=self.window), turn, rows=rows)
        )


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

        With `rows` (R,) only these are computed, (R, d): the plan is then of these (`attention.rows_plan`).
        """
        qk, v = self.qkv(self.attention_norm(x)).split([2 * x.shape[1], x.shape[1]], dim=1)
        q, k = (qk if turn is None else turn(qk, heads=2 * self.heads)).chunk(2, dim=1)
        if self.value_dropout and self.training:
            v = v * dropout(v.new_ones(len(v), 1), self.value_dropout, training=True)
        if rows is not None:
            x, q = x.index_select(0, rows), q.index_select(0, rows)
        x = x + self._residual(
            self.attention_scale * self.out(plan.attend(q, k, v, heads=self.heads))
        )
        return x + self._residual(self.mlp_scale * self.W2(F.gelu(self.W1(self.mlp_norm(x)))))

    def _residual(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, training=self.training)
