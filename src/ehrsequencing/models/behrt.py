"""Flat BEHRT: all codes of a subject in one sequence, visits recovered by averaging → hazards."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.attention import TransformerLayer, time_plan
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.embeddings import AgeEmbedding, CodeEmbedding
from ehrsequencing.models.positions import MAX_INDEX_ROWS, PositionalEmbedding, positions
from ehrsequencing.models.segments import code_dropout, dropout, gather_rows, pool, to_device


class VisitEmbedding(PositionalEmbedding):
    """The structural visit id of flat BEHRT: "this token belongs to visit 3". It knows nothing of what is in visit 3.

    What a visit contains is the *aggregated* visit embedding, after the transformer (`aggregate_visits`).
    """


@dataclass(frozen=True)
class Tokens:
    """The T tokens of flat BEHRT: a batch's codes, and a marker in front of each query and each empty visit."""

    offsets: Tensor  # (N+1,) row n owns tokens `offsets[n]:offsets[n+1]`, at least one
    row: Tensor  # (T,) the row that owns each token
    of_code: Tensor  # (K,) the token of each code
    is_query_marker: Tensor  # (T,) markers of queries
    place: Tensor  # (T,) number of the subject's real-visit tokens before the row, plus the place within the row
    host_offsets: Tensor  # `offsets`, on the CPU

    @classmethod
    def of_batch(cls, batch: VisitBatch) -> "Tokens":
        """The tokens of a batch: counted on the CPU, for their number decides shapes, then moved to its device."""
        device, batch = batch.codes.device, batch.host
        has_marker = batch.is_query | (batch.codes_per_visit == 0)
        count = batch.codes_per_visit + has_marker
        offsets = torch.cat([count.new_zeros(1), count.cumsum(0)])
        total = int(offsets[-1])
        row = torch.arange(batch.n_visits).repeat_interleave(count, output_size=total)
        of_code = torch.arange(batch.n_codes) + has_marker.cumsum(0)[batch.visit_of_code]
        is_query_marker = torch.zeros(total, dtype=torch.bool)
        is_query_marker[offsets[:-1][batch.is_query]] = True
        real = count * ~batch.is_query
        before = real.cumsum(0) - real  # real tokens before each row, of all subjects
        first = batch.subject_offsets[batch.subject_of_visit]
        before = before - before[first]  # ... of its own subject
        place = before[row] + torch.arange(total) - offsets[row]
        return cls(
            to_device(offsets, device),
            to_device(row, device),
            to_device(of_code, device),
            to_device(is_query_marker, device),
            to_device(place, device),
            offsets,
        )


class BEHRTEmbedding(nn.Module):
    """Flat BEHRT's input: `LN(code + age + visit + position (+ static, + q))`, then dropout; one vector a token.

    - code: `CodeEmbedding`; a marker token has none. age: of the token's visit.
    - visit: `VisitEmbedding` of the number of real visits before the token's own, or of the id that it was given.
    - position: place among the subject's tokens, learned (up to 512) or sinusoidal.
    - static: mean of the subject's codes without a time, on every token. q: on the marker of a query.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.code = CodeEmbedding(config)
        self.age = AgeEmbedding(config) if config.age_bin_years else None
        self.visit = VisitEmbedding(min(config.max_visits, MAX_INDEX_ROWS), config.dim)
        self.position = positions(config, rows=config.max_tokens)
        self.query = nn.Parameter(torch.zeros(config.dim))
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = config.dropout

    def forward(self, batch: VisitBatch, tokens: Tokens) -> Tensor:
        """T tokens of all rows → (T, d)."""
        e = self.code(batch)
        rows = e.rows
        before = [rows.new_zeros(1, rows.shape[1]), self.query.unsqueeze(0).to(rows.dtype)]
        rows = torch.cat([*before, rows])
        index = tokens.is_query_marker.long()  # 0: a visit's marker, 1: a query's
        index[tokens.of_code] = e.index + 2
        x = gather_rows(rows, index)
        visit_ids = batch.visit_index if batch.visit_ids is None else batch.visit_ids
        of_row = gather_rows(self.code.of_static(batch), batch.subject_of_visit)
        of_row = of_row + self.visit(visit_ids)
        if self.age is not None:
            of_row = of_row + self.age(batch.age_years)
        x = x + gather_rows(of_row, tokens.row)
        if self.position is not None:
            x = x + self.position(tokens.place).to(x.dtype)
        return dropout(self.norm(x), self.dropout, training=self.training)


class BEHRT(nn.Module):
    """Transformer over all codes of a subject: each code sees its own visit and the visits before it.

    Causal at visit level: codes of one visit are known together. Whole visits back, up to `max_tokens`.
    `attention=bidirectional` (pretraining) also looks ahead.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = BEHRTEmbedding(config)
        self.max_tokens, self.bidirectional = config.max_tokens, config.attention == "bidirectional"
        self.layers = nn.ModuleList(
            TransformerLayer(config, value_dropout=config.history_dropout)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, batch: VisitBatch, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Token embeddings and contextual token states, (T, d) each."""
        x = inputs = self.embedding(batch, tokens)
        plan = time_plan(
            batch,
            window=self.max_tokens,
            bidirectional=self.bidirectional,
            offsets=tokens.host_offsets,
        )
        for layer in self.layers:
            x = layer(x, plan)
        return inputs, self.norm(x)


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

    architecture = "flat"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.encoder = BEHRT(config)
        self._add_head()

    def forward(self, batch: VisitBatch) -> Tensor:
        """Logits per row: (N, causes, bins) log-hazards per day, or (N,) for the `visit` head (NaN for queries)."""
        x, z = self.states(batch)
        return self._without_queries(self.hazard_logits(z, wide=x), batch.is_query)

    def states(self, batch: VisitBatch) -> tuple[Tensor, Tensor]:
        """What stands beside the layers, with means of token embeddings, and means (N, d) of token states."""
        seen = code_dropout(batch, self.config.code_dropout) if self.training else batch
        tokens = Tokens.of_batch(seen)
        inputs, states = self.encoder(seen, tokens)
        x = self.aggregate_visits(inputs, tokens)
        z = self.aggregate_visits(states, tokens)
        h = z[:, :0] if self.table is None else self.table(batch)
        beside = self._beside(batch, x, h)
        return beside, z if self.table is None else z + self.table.W_x(h)

    @staticmethod
    def aggregate_visits(states: Tensor, tokens: Tokens) -> Tensor:
        """Mean of each row's tokens: (T, d) → (N, d), the aggregated visit embedding of the embeddings seed."""
        return pool(states, torch.arange(len(states), device=states.device), tokens.offsets)
