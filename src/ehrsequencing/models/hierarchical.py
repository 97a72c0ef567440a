"""The hierarchical model: codes → visits → timeline → hazards. Start reading here."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.attention import TimelineEncoder
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.embeddings import CodeEmbedding, VisitTimeEmbedding
from ehrsequencing.models.segments import code_dropout, gather_rows
from ehrsequencing.models.visit_encoder import AttnPoolingVisitEncoder, VisitEncoder


class HierarchicalBEHRTForSurvival(SurvivalModel):
    """Two-level BEHRT: a visit encoder over codes, a causal timeline over visits, hazards at every visit and query.

    Example:
        >>> import torch
        >>> from ehrsequencing.config import ModelConfig
        >>> model = HierarchicalBEHRTForSurvival(ModelConfig(vocab_size=10, size="small", edges_days=(30.0, 365.0)))
        >>> mask = torch.ones(2, 3, 4, dtype=torch.bool)
        >>> codes, years = torch.randint(1, 10, (2, 3, 4)), torch.full((2, 3), 60.0)
        >>> batch = VisitBatch.from_padded(codes, mask, years, torch.zeros(2, 3), mask.any(-1))
        >>> model(batch).shape, model.risk(batch, horizons_days=[30, 365]).shape
        (torch.Size([6, 1, 3]), torch.Size([6, 1, 2]))
    """

    architecture = "hierarchical"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.code_embedding = CodeEmbedding(config)
        self.visit_encoder = VisitEncoder(config)
        self.visit_time_embedding = VisitTimeEmbedding(config)
        self.timeline = TimelineEncoder(config)
        self._add_head()

    def forward(self, batch: VisitBatch) -> Tensor:
        """Logits per row: (N, causes, bins) log-hazards per day, or (N,) for the `visit` head (NaN for queries)."""
        x, z = self.states(batch)
        logits = self.hazard_logits(z, wide=x)  # (N, causes, bins)  module 5
        return self._without_queries(logits, batch.is_query)

    def states(self, batch: VisitBatch) -> tuple[Tensor, Tensor]:
        """What stands beside the timeline, and (N, d) what leaves it; see `SurvivalModel`."""
        x, h = self._inputs(batch)
        z = self.timeline(x, batch)  # (N, d)  module 4: causal transformer
        return self._beside(batch, x, h), z

    def logits_at(self, batch: VisitBatch, rows: Tensor) -> Tensor:
        """Logits of some rows (R,); where few are asked, the timeline's last layer computes no others."""
        x, h = self._inputs(batch)
        z = self.timeline(x, batch, rows)
        logits = self.hazard_logits(z, wide=self._beside(batch, x, h).index_select(0, rows))
        return self._without_queries(logits, batch.is_query[rows])

    def code_attention(self, batch: VisitBatch) -> Tensor:
        """See `SurvivalModel`."""
        encoder = self.visit_encoder.pooling
        if not isinstance(encoder, AttnPoolingVisitEncoder):
            return super().code_attention(batch)
        return encoder.weights(self.code_embedding(batch), batch)

    def _inputs(self, batch: VisitBatch) -> tuple[Tensor, Tensor]:
        """(N, d) what enters the timeline, and (N, width) h of the table branch; K codes, N visits, all packed."""
        seen = code_dropout(batch, self.config.code_dropout) if self.training else batch
        e = self.code_embedding(seen)  # (K, d)  module 1, as `CodeVectors`
        u = self.visit_encoder(e, seen)  # (N, d)  module 2: mean, attention …
        # (N, width)  the visit's numbers side by side; (N, 0) without the table branch
        h = u[:, :0] if self.table is None else self.table(batch)
        if self.config.query_follows_visit:
            # (N,) of a query the subject's last visit before it; −1 of visits, and of a query without one
            last = torch.arange(batch.n_visits, device=u.device)
            last = last.masked_fill(batch.is_query, -1).cummax(0).values
            first = batch.subject_offsets[batch.subject_of_visit]
            last = last.masked_fill(~batch.is_query | (last < first), -1)
            u = u + gather_rows(F.pad(u, (0, 0, 1, 0)), last + 1)
        static = gather_rows(self.code_embedding.of_static(batch), batch.subject_of_visit)  # (N, d)
        x: Tensor = self.visit_time_embedding(u + static, batch)  # module 3: index + age + time gap
        return x if self.table is None else x + self.table.W_x(h), h
