"""Flat BEHRT: all codes of a subject in one sequence, visits recovered by averaging → hazards."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.attention import AttentionMask, Plan, is_plain
from ehrsequencing.models.attention_blocks import tokens_blocks
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.embeddings import AgeEmbedding, CodeEmbedding
from ehrsequencing.models.positions import MAX_INDEX_ROWS, PositionalEmbedding, positions
from ehrsequencing.models.segments import dropout, gather_rows, pool, to_device
from ehrsequencing.models.transformer import TransformerLayer


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
        if batch.tokens_skipped is not None:
            before = before + batch.tokens_skipped[batch.subject_of_visit]
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
        plan = tokens_plan(
            batch, tokens.host_offsets, max_tokens=self.max_tokens, bidirectional=self.bidirectional
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
        return self._logits(z, batch, wide=x)

    def states(self, batch: VisitBatch) -> tuple[Tensor, Tensor]:
        """Means of each row's token embeddings beside its table, (N, d + width), and of its token states, (N, d)."""
        tokens = Tokens.of_batch(batch)
        inputs, states = self.encoder(batch, tokens)
        x = self.aggregate_visits(inputs, tokens)
        z = self.aggregate_visits(states, tokens)
        h = self._of_table(batch, z)
        return torch.cat([x, h], 1), self._with_table(z, h)

    @staticmethod
    def aggregate_visits(states: Tensor, tokens: Tokens) -> Tensor:
        """Mean of each row's tokens: (T, d) → (N, d), the aggregated visit embedding of the embeddings seed."""
        return pool(states, torch.arange(len(states), device=states.device), tokens.offsets)


# ---- attention ---------------------------------------------------------------------------------------------------


def tokens_mask(
    batch: VisitBatch, token_offsets: Tensor, *, max_tokens: int, bidirectional: bool = False
) -> Tensor:
    """(T, T) bool: which tokens of its subject each token attends to, by whole visits.

    A token sees every token of its own visit, and of each real visit before it while the tokens from that visit to its
    own, both included, number at most `max_tokens`; `bidirectional`, also of real visits after it, as far. A query's
    tokens see the past in the same way, and are seen by themselves alone.

    Args:
        batch: The packed visits.
        token_offsets: (N+1,) row n owns tokens `token_offsets[n]:token_offsets[n+1]`, at least one.
        max_tokens: How far back, and forward where `bidirectional`.
        bidirectional: Whether real visits also see the future.
    """
    subject, is_query = batch.subject_of_visit, batch.is_query
    count = token_offsets.diff()
    end = (count * ~is_query).cumsum(0)  # real tokens up to the end of each row
    start = end - count * ~is_query
    row = torch.arange(len(count), device=count.device)
    is_past = row.unsqueeze(1) > row
    seen = is_past & (start.unsqueeze(1) - start + count.unsqueeze(1) <= max_tokens)
    if bidirectional:
        later = ~is_past & (end - start.unsqueeze(1) <= max_tokens)
        seen |= later & ~is_query.unsqueeze(1)
    seen &= (subject.unsqueeze(1) == subject) & ~is_query
    seen |= row.unsqueeze(1) == row
    row_of_token = row.repeat_interleave(count)
    return seen[row_of_token][:, row_of_token]


def tokens_plan(
    batch: VisitBatch, token_offsets: Tensor, *, max_tokens: int, bidirectional: bool = False
) -> Plan:
    """How flat BEHRT's tokens attend; arguments as of `tokens_mask`, offsets on the CPU, or there is a wait."""
    if is_plain.get():
        offsets = token_offsets.to(batch.codes.device)
        mask = tokens_mask(batch, offsets, max_tokens=max_tokens, bidirectional=bidirectional)
        return AttentionMask(mask)
    return tokens_blocks(batch, token_offsets, max_tokens=max_tokens, bidirectional=bidirectional)
