"""Module 4: visits in time → contextual visit states."""

from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.config.parts import timeline
from ehrsequencing.models import attention
from ehrsequencing.models.rotary import rotation
from ehrsequencing.models.transformer import TransformerLayer


@timeline("transformer", uses=("history_dropout", "attention"))
class TransformerTimeline(nn.Module):
    """Transformer over a subject's visits: causal, with a sliding window of `max_visits`; queries are seen by none.

    With `rotary`, attention knows the days and visits between two rows (`models.rotary`).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.window, self.bidirectional = config.max_visits, config.attention == "bidirectional"
        self.rotary, self.head_dim = config.rotary, config.dim // config.heads
        layers = (
            TransformerLayer(config, value_dropout=config.history_dropout)
            for _ in range(config.layers)
        )
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, x: Tensor, batch: VisitBatch) -> Tensor:
        """(N, d) visits with their time signals → (N, d) contextual states."""
        plan = attention.visits_plan(batch, window=self.window, bidirectional=self.bidirectional)
        turn = rotation(batch, head_dim=self.head_dim, dtype=x.dtype) if self.rotary else None
        for layer in self.layers:
            x = layer(x, plan, turn)
        z: Tensor = self.norm(x)
        return z

    def at_rows(self, x: Tensor, batch: VisitBatch, rows: Tensor) -> Tensor:
        """(R, d) states of some rows (R,): the last layer computes no others."""
        if self.bidirectional or attention.is_ragged(x.device):
            every: Tensor = self(x, batch)
            return every.index_select(0, rows)
        turn = rotation(batch, head_dim=self.head_dim, dtype=x.dtype) if self.rotary else None
        *before, last = self.layers
        if before:
            plan = attention.visits_plan(batch, window=self.window)
            for layer in before:
                x = layer(x, plan, turn)
        z: Tensor = self.norm(
            last(x, attention.rows_plan(batch, rows, window=self.window), turn, rows=rows)
        )
        return z
