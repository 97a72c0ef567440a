"""Module 2, the other visit encoders: mean, sums and maximum of the codes, and a transformer over them."""

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.config.base import visit_encoder
from ehrsequencing.models import attention
from ehrsequencing.models.code_vectors import CodeVectors
from ehrsequencing.models.segments import pool
from ehrsequencing.models.transformer import TransformerLayer


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
