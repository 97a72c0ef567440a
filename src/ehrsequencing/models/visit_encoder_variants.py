"""Module 2, the other visit encoders: mean, sums and maximum of the codes, and a transformer over them."""

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.config.base import visit_encoder
from ehrsequencing.models import attention
from ehrsequencing.models.code_vectors import CodeVectors
from ehrsequencing.models.embeddings import CODE_NORM
from ehrsequencing.models.segments import gather_rows, pool
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
    """Mini-transformer: the codes of a visit see one another, then their masked mean, or a CLS token's state.

        e' = layers(e),   u_v = mean of e'_k over the visit's codes            visit_pool=mean
        [c', e'] = layers([c, e]),   u_v = c'                                  visit_pool=cls

    Within a visit attention is full: codes of one visit are known together. An empty visit gives the zero vector.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.visit_layers))
        cls = (
            torch.randn(config.dim) * CODE_NORM * config.dim**-0.5
            if config.visit_pool == "cls"
            else None
        )
        self.cls = None if cls is None else nn.Parameter(cls)

    def forward(self, e: CodeVectors, batch: VisitBatch) -> Tensor:
        """K code vectors → (N, d)."""
        if self.cls is None:
            x = self._contextual(e.expand(), batch.host.visit_offsets)
            return pool(x, torch.arange(len(x), device=x.device), batch.visit_offsets)
        visits = torch.arange(batch.n_visits, device=e.index.device)
        first = batch.visit_offsets[:-1] + visits  # each visit's CLS token is before its codes
        row = e.index.new_zeros(batch.n_codes + batch.n_visits)  # 0: the CLS token
        row[torch.arange(batch.n_codes, device=row.device) + batch.visit_of_code + 1] = e.index + 1
        offsets = batch.host.visit_offsets + torch.arange(batch.n_visits + 1)
        x = self._contextual(gather_rows(torch.cat([self.cls.unsqueeze(0), e.rows]), row), offsets)
        return gather_rows(x, first) * (batch.codes_per_visit > 0).unsqueeze(1)

    def _contextual(self, x: Tensor, offsets: Tensor) -> Tensor:
        plan = attention.codes_plan(offsets, device=x.device)
        for layer in self.layers:
            x = layer(x, plan)
        return x
