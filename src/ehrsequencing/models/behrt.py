"""Flat BEHRT: all codes of a subject in one sequence, visits recovered by averaging → hazards."""

import torch
from torch import Tensor, nn

from ehrsequencing.batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.config.parts import architecture
from ehrsequencing.models import plans
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.embeddings import BEHRTEmbedding, Tokens
from ehrsequencing.models.segments import pool
from ehrsequencing.models.transformer import TransformerLayer


class BEHRT(nn.Module):
    """Transformer over all codes of a subject: each code sees its own visit and the visits before it.

    Causal at visit level: codes of one visit are known together. Whole visits back, up to `max_tokens`.
    `attention=bidirectional` (pretraining) also looks ahead.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = BEHRTEmbedding(config)
        self.max_tokens, self.bidirectional = config.max_tokens, config.attention == "bidirectional"
        layers = (TransformerLayer(config, value_dropout=config.history_dropout) for _ in range(config.layers))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, batch: VisitBatch, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Token embeddings and contextual token states, (T, d) each."""
        x = inputs = self.embedding(batch, tokens)
        plan = plans.tokens_plan(
            batch, tokens.host_offsets, max_tokens=self.max_tokens, bidirectional=self.bidirectional
        )
        for layer in self.layers:
            x = layer(x, plan)
        return inputs, self.norm(x)


@architecture(
    "flat", uses=("max_tokens", "history_dropout", "attention"), defaults={"history_dropout": 0.0}, relates_codes=True
)
class BEHRTForSurvival(SurvivalModel):
    """Flat BEHRT with hazards at every visit and query.

    Example:
        >>> import torch
        >>> model = BEHRTForSurvival(ModelConfig(vocab_size=10, architecture="flat", size="small", head="visit"))
        >>> codes, visit_ids = torch.randint(1, 10, (2, 6)), torch.tensor([[0, 0, 0, 1, 1, 2]] * 2)
        >>> batch = VisitBatch.from_flat(codes, torch.full((2, 6), 60.0), visit_ids, torch.ones(2, 6))
        >>> batch.to_padded(model(batch).sigmoid()).shape
        torch.Size([2, 3])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.encoder = BEHRT(config)
        self._add_head()
        self._freeze(age=self.encoder.embedding.age, visit=self.encoder.embedding.visit)

    def forward(self, batch: VisitBatch) -> Tensor:
        """Logits per row: (N, causes, bins) log-hazards per day, or (N,) for the `visit` head (NaN for queries)."""
        tokens = Tokens.of(batch)
        inputs, states = self.encoder(batch, tokens)
        wide = self.aggregate_visits(inputs, tokens) if self.wide_head is not None else None
        return self._logits(self.aggregate_visits(states, tokens), batch, wide=wide)

    @staticmethod
    def aggregate_visits(states: Tensor, tokens: Tokens) -> Tensor:
        """Mean of each row's tokens: (T, d) → (N, d), the aggregated visit embedding of the embeddings seed."""
        return pool(states, torch.arange(len(states), device=states.device), tokens.offsets)
