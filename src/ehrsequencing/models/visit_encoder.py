"""Module 2: one visit's codes → one vector.

A visit encoder is one class with `@visit_encoder("name")`, in any file of this folder or in a module of your own. It is
made from a `ModelConfig`. Its `forward(codes, batch)` takes K code vectors and gives one vector a visit, (N, d).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.config.base import visit_encoder
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models import attention
from ehrsequencing.models.attention import TransformerLayer
from ehrsequencing.models.segments import CodeVectors, dropout, pool, segment_softmax


@visit_encoder("attention")
@visit_encoder("bottleneck")
class AttnPoolingVisitEncoder(nn.Module):
    """Learned importance: `u_v = Σ α_k e_k`, `α = softmax over the visit of score(e_k)`.

        attention    score(e) = q·tanh(W e + b)                       W: d → d
        bottleneck   score(e) = W2 tanh(W1 e + b1) + b2                W1: d → d/2

    Each code is scored alone, so the same code has the same score everywhere. α sums to 1 over a visit's codes; it is
    importance, not cause. An empty visit gives the zero vector and no gradient.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.has_query = config.visit_encoder != "bottleneck"
        if self.has_query:
            self.W = nn.Linear(config.dim, config.dim)
            # small, so that attention starts near the mean
            self.q = nn.Parameter(nn.init.normal_(torch.empty(config.dim), std=config.dim**-0.5))
        else:
            self.W1, self.W2 = nn.Linear(config.dim, config.dim // 2), nn.Linear(config.dim // 2, 1)

    def forward(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """K code vectors → (N, d)."""
        return e.pool(batch, weights=self.weights(e, batch))

    def weights(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """(K,) α of the codes.

        `v·tanh(z) = 2 v·σ(2z) − Σv`, and on the CPU σ is ten times as fast as tanh; softmax cancels the constant. Kept
        out of autocast: in bf16 the gradient of b loses its direction.
        """
        with torch.autocast(e.plain.device.type, enabled=False):
            if self.has_query:
                hidden = e.linear(2 * self.W.weight, 2 * self.W.bias)
                scores = torch.cat([one.sigmoid() @ (2 * self.q) for one in hidden])
            else:
                hidden = e.linear(2 * self.W1.weight, 2 * self.W1.bias)
                last, bias = 2 * self.W2.weight[0], self.W2.bias
                scores = torch.cat([one.sigmoid() @ last for one in hidden]) + bias
        scores = scores.index_select(0, e.index)
        return segment_softmax(scores, batch.visit_offsets, batch.visit_of_code)


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
        update = dropout(
            self.W2(F.gelu(self.W1(self.norm(u)))), self.dropout, training=self.training
        )
        return u + update * (batch.codes_per_visit > 0).unsqueeze(1)


class VisitEncoder(nn.Module):
    """The encoder that the configuration names, then the residual MLP unless `visit_mlp` is off."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        encoder = visit_encoder.class_of(config.visit_encoder)
        try:
            self.pooling = encoder(config)
        except (TypeError, AttributeError) as error:
            raise EhrseqError(
                f"cannot be made of the model's configuration: {error}",
                where=f"visit_encoder={config.visit_encoder}",
                fix="write __init__(self, config), in which config.dim is the width",
            ) from error
        self.mlp = VisitMLP(config) if config.visit_mlp else None

    def forward(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """K code vectors → (N, d)."""
        u: Tensor = self.pooling(e, batch)
        return u if self.mlp is None else self.mlp(u, batch)


# ---- the other encoders: mean, sums and maximum of the codes, and a transformer over them ----------------------------


@visit_encoder("mean")
class MeanPoolingVisitEncoder(nn.Module):
    """`u_v` = mean of e_k over the visit's codes; zero for an empty visit."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()

    def forward(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """K code vectors → (N, d)."""
        return e.pool(batch)


@visit_encoder("sum")
@visit_encoder("scaled_sum")
@visit_encoder("max")
class PoolingVisitEncoder(nn.Module):
    """`u_v` = sum, sum over √n of n codes, or elementwise maximum of e_k over the visit's codes; zero without any."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_scaled = config.visit_encoder == "scaled_sum"
        self.mode = "max" if config.visit_encoder == "max" else "sum"

    def forward(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """K code vectors → (N, d)."""
        u = e.pool(batch, mode=self.mode)
        if not self.is_scaled:
            return u
        return u * batch.codes_per_visit.clamp(min=1).to(u.dtype).rsqrt().unsqueeze(1)


@visit_encoder("transformer")
class TransformerVisitEncoder(nn.Module):
    """Mini-transformer: the codes of a visit see one another in one layer, then their mean.

        e' = layer(e),   u_v = mean of e'_k over the visit's codes

    Within a visit attention is full: codes of one visit are known together. An empty visit gives the zero vector.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TransformerLayer(config)])

    def forward(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """K code vectors → (N, d)."""
        x = e.expand()
        plan = attention.codes_plan(batch.host.visit_offsets, device=x.device)
        for layer in self.layers:
            x = layer(x, plan)
        return pool(x, torch.arange(len(x), device=x.device), batch.visit_offsets)
