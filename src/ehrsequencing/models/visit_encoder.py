"""Module 2: one visit's codes → one vector."""

from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.embeddings import CodeVectors
from ehrsequencing.models.segments import dropout, pool, segment_softmax


class MeanPoolingVisitEncoder(nn.Module):
    """`u_v = mean of e_k over the visit's codes`; zero for an empty visit."""

    def forward(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """K code vectors → (N, d)."""
        return pool(e.rows, e.index, batch.visit_offsets)


class AttnPoolingVisitEncoder(nn.Module):
    """Learned importance: `u_v = Σ α_k e_k`, `α = softmax over the visit of q·tanh(W e_k + b)`.

    Each code is scored alone, so the same code has the same score in any place; α sums to 1 over a visit's codes. It
    is importance, not cause. An empty visit gives the zero vector and no gradient.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.W = nn.Linear(config.dim, config.dim)
        self.q = nn.Parameter(torch.randn(config.dim) * config.dim**-0.5)  # near the mean at the start

    @overload
    def forward(self, e: CodeVectors, batch: VisitBatch, *, return_weights: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, e: CodeVectors, batch: VisitBatch, *, return_weights: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def forward(
        self, e: CodeVectors, batch: VisitBatch, *, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """K code vectors → (N, d); with `return_weights` also α (K,)."""
        alpha = segment_softmax(self.score(e.rows).index_select(0, e.index), batch.visit_offsets, batch.visit_of_code)
        u = pool(e.rows, e.index, batch.visit_offsets, weights=alpha)
        return (u, alpha) if return_weights else u

    def score(self, rows: Tensor) -> Tensor:
        """(R, d) → (R,) scores, up to the constant Σq that softmax cancels.

        `q·tanh(z) = 2 q·σ(2z) − Σq`, and on the CPU σ is ten times as fast as tanh. Kept out of autocast: in bf16 the
        gradient of b loses its direction.
        """
        with torch.autocast(rows.device.type, enabled=False):
            return F.linear(rows, 2 * self.W.weight, 2 * self.W.bias).sigmoid() @ (2 * self.q)


class VisitMLP(nn.Module):
    """Residual MLP after the pooling: `u + W2·gelu(W1·LN(u))`; lets codes of one visit act together.

    An empty visit stays the zero vector: the MLP's constant is not added to it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim)
        self.W1 = nn.Linear(config.dim, 2 * config.dim)
        self.W2 = nn.Linear(2 * config.dim, config.dim)
        self.dropout = config.dropout

    def forward(self, u: Tensor, batch: VisitBatch) -> Tensor:
        """(N, d) → (N, d)."""
        update = dropout(self.W2(F.gelu(self.W1(self.norm(u)))), self.dropout, training=self.training)
        return u + update * (batch.codes_per_visit > 0).unsqueeze(1)


class VisitEncoder(nn.Module):
    """The pooling that the configuration names, then the residual MLP unless it is off (the seeds' encoder)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooling: MeanPoolingVisitEncoder | AttnPoolingVisitEncoder = (
            AttnPoolingVisitEncoder(config) if config.visit_encoder == "attention" else MeanPoolingVisitEncoder()
        )
        self.mlp = VisitMLP(config) if config.visit_mlp else None

    def forward(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """K code vectors → (N, d)."""
        u: Tensor = self.pooling(e, batch)
        return u if self.mlp is None else self.mlp(u, batch)
