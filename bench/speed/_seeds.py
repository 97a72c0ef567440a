"""The seeds' own designs on dense padded tensors: what `bench/speed/engine.py` compares the packed engine with.

Two models of a fair implementer of the seed documents: hierarchical on (B, V, C), flat on (B, L), every slot computed,
pads masked. They take each fast path that padded tensors offer (one matrix product for q, k and v,
`scaled_dot_product_attention`, causal attention without a mask because pads stand last, no mask at all where nothing is
padded), and hold the parameters of the packed models under the same names, so that they load the same weights and must
give the same numbers (`tests/bench/test_bench_engine.py`). Unlike the other references they are written for speed.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.config import ModelConfig

INDEX_ROWS = 512  # rows of a learned table of visits or tokens; later ones share the last
CODE_PLACES = 128  # ... and of a code's place within its visit


@dataclass(frozen=True)
class PaddedVisits:
    """Dense tensors of B subjects, V visits, C codes; real slots first, everywhere."""

    codes: Tensor  # (B, V, C), 0 in pads
    code_mask: Tensor  # (B, V, C)
    ages: Tensor  # (B, V) years, 0 in pads
    deltas: Tensor  # (B, V) days, 0 in pads
    visit_mask: Tensor  # (B, V)
    has_event: Tensor  # (B,) the event falls in the interval after the last visit


@dataclass(frozen=True)
class PaddedTokens:
    """The same subjects as one sequence of L tokens each; real slots first."""

    codes: Tensor  # (B, L), 0 in pads
    ages: Tensor  # (B, L) years
    visit_ids: Tensor  # (B, L) number of the token's visit, 0 in pads
    mask: Tensor  # (B, L)
    visit_mask: Tensor  # (B, V)
    has_event: Tensor  # (B,)

    @classmethod
    def of(cls, x: PaddedVisits) -> "PaddedTokens":
        """Every visit's codes, one after another; each visit needs at least one."""
        sizes = x.code_mask.sum((1, 2))
        mask = torch.arange(int(sizes.max())) < sizes.unsqueeze(1)  # (B, L)

        def flat(per_code: Tensor) -> Tensor:
            return per_code.new_zeros(mask.shape).masked_scatter(mask, per_code[x.code_mask])

        visits = torch.arange(x.codes.shape[1]).view(1, -1, 1)
        return cls(
            flat(x.codes),
            flat(x.ages.unsqueeze(2).expand(x.codes.shape)),
            flat(visits.expand(x.codes.shape)),
            mask,
            x.visit_mask,
            x.has_event,
        )


# ---- both ------------------------------------------------------------------------------------------------------------


class Table(nn.Module):
    """A learned vector for each number from 0; numbers beyond the table share its last row."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, dim)

    def forward(self, number: Tensor) -> Tensor:
        """(...) → (..., d)."""
        vectors: Tensor = self.table(number.clamp(max=self.table.num_embeddings - 1))
        return vectors


def _age_bin(ages: Tensor, bin_years: float) -> Tensor:
    return (ages / bin_years).floor().long().clamp(0, math.ceil(120 / bin_years))


class Layers(nn.Module):
    """The transformer: pre-LN blocks and a last LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config.dim, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """(B, L, d) → (B, L, d)."""
        for layer in self.layers:
            x = layer(x, mask=mask, causal=causal)
        z: Tensor = self.norm(x)
        return z


class Block(nn.Module):
    """`x + s1·Attn(LN x)`, then `x + s2·W2 gelu(W1 LN x)`."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.W1, self.W2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.attention_scale, self.mlp_scale = (
            nn.Parameter(torch.ones(dim)),
            nn.Parameter(torch.ones(dim)),
        )

    def forward(self, x: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
        """(B, L, d) → (B, L, d)."""
        q, k, v = (
            self.qkv(self.attention_norm(x))
            .unflatten(-1, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        x = x + self.attention_scale * self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp_scale * self.W2(F.gelu(self.W1(self.mlp_norm(x))))
        return out


class Head(nn.Module):
    """MLP hazard head, on logits."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.W1, self.W2 = nn.LayerNorm(dim), nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, z: Tensor) -> Tensor:
        """(B, V, d) → (B, V)."""
        logits: Tensor = self.W2(F.gelu(self.W1(self.norm(z)))).squeeze(-1)
        return logits


def discrete_time_loss(logits: Tensor, visit_mask: Tensor, has_event: Tensor) -> Tensor:
    """The seeds' `DiscreteTimeSurvivalLoss`, on logits: survived intervals, and the event after the last visit."""
    last = visit_mask & ~F.pad(visit_mask[:, 1:], (0, 1))
    survived = F.softplus(logits) * (visit_mask & ~last)
    event = F.softplus(-logits) * (last & has_event.unsqueeze(1))
    mean: Tensor = (survived + event).sum() / visit_mask.sum()
    return mean


# ---- hierarchical ----------------------------------------------------------------------------------------------------


class PaddedHierarchical(nn.Module):
    """Modules 1 to 5 of the hierarchical seed on (B, V, C), with attention pooling (its Option B)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.code_embedding = CodeEmbedding(config)
        self.visit_encoder = VisitEncoder(config.dim)
        self.visit_time_embedding = VisitTimeEmbedding(config)
        self.timeline = Layers(config)
        self.head = Head(config.dim)

    def forward(self, x: PaddedVisits) -> Tensor:
        """(B, V) logits of the visits' hazards; anything in pads."""
        e = self.code_embedding(x.codes)  # (B, V, C, d)
        u = self.visit_encoder(e, x.code_mask) + self.visit_time_embedding(x)  # (B, V, d)
        z = self.timeline(u, causal=True)  # pads stand last: no real visit sees one
        logits: Tensor = self.head(z)
        return logits

    def loss(self, x: PaddedVisits) -> Tensor:
        """Mean negative log-likelihood of a visit."""
        return discrete_time_loss(self(x), x.visit_mask, x.has_event)


class CodeEmbedding(nn.Module):
    """Identity, and on request the place within the visit."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.vocab_size, config.dim, padding_idx=0)
        self.position_table = (
            nn.Embedding(CODE_PLACES, config.dim) if config.code_position else None
        )

    def forward(self, codes: Tensor) -> Tensor:
        """(B, V, C) → (B, V, C, d)."""
        e: Tensor = self.table(codes)
        if self.position_table is not None:
            place = torch.arange(codes.shape[-1]).clamp(max=self.position_table.num_embeddings - 1)
            e = e + self.position_table(place)
        return e


class VisitEncoder(nn.Module):
    """Where the packed model keeps its pooling."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pooling = AttentionPooling(dim)

    def forward(self, e: Tensor, mask: Tensor) -> Tensor:
        """(B, V, C, d) and (B, V, C) → (B, V, d)."""
        u: Tensor = self.pooling(e, mask)
        return u


class AttentionPooling(nn.Module):
    """The seed's learned importance: a softmax over the visit's codes of `q·tanh(W e + b)`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.W = nn.Linear(dim, dim)
        self.q = nn.Parameter(torch.randn(dim))

    def forward(self, e: Tensor, mask: Tensor) -> Tensor:
        """(B, V, C, d) and (B, V, C) → (B, V, d); zero for a visit without codes."""
        scores = torch.tanh(self.W(e)) @ self.q
        lowest = torch.finfo(scores.dtype).min  # finite, so that an empty visit has no NaN
        alpha = scores.masked_fill(~mask, lowest).softmax(-1) * mask
        return (alpha.unsqueeze(-2) @ e).squeeze(-2)


class VisitTimeEmbedding(nn.Module):
    """Visit index + binned age + binned gap."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.age_years, self.gap_days, self.top_days = config.age_bin_years, 7.0, 365.0
        self.position = Table(min(config.max_visits, INDEX_ROWS), config.dim)
        self.age = Table(math.ceil(120 / self.age_years) + 2, config.dim)
        self.delta = Table(math.ceil(self.top_days / self.gap_days) + 1, config.dim)

    def forward(self, x: PaddedVisits) -> Tensor:
        """(B, V, d)."""
        gap = (x.deltas.clamp(max=self.top_days) / self.gap_days).floor().long()
        gap = gap.masked_fill(x.deltas >= self.top_days, self.delta.table.num_embeddings - 1)
        index = torch.arange(x.ages.shape[1])
        signals: Tensor = (
            self.position(index) + self.age(_age_bin(x.ages, self.age_years)) + self.delta(gap)
        )
        return signals


# ---- flat ------------------------------------------------------------------------------------------------------------


class PaddedFlat(nn.Module):
    """Flat BEHRT on (B, L): summed embeddings, LayerNorm, attention among all tokens, mean of each visit's tokens.

    `attention=bidirectional` is the seed's: a token sees all real ones. `causal` hides later visits by (B, L, L) masks.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bidirectional = config.attention == "bidirectional"
        self.encoder = FlatEncoder(config)
        self.head = Head(config.dim)

    def forward(self, x: PaddedTokens) -> Tensor:
        """(B, V) logits of the visits' hazards; anything in pads."""
        states = self.encoder(self.encoder.embedding(x), mask=self._seen(x))  # (B, L, d)
        logits: Tensor = self.head(aggregate_visits(states, x))
        return logits

    def loss(self, x: PaddedTokens) -> Tensor:
        """Mean negative log-likelihood of a visit."""
        return discrete_time_loss(self(x), x.visit_mask, x.has_event)

    def _seen(self, x: PaddedTokens) -> Tensor | None:
        """(B, 1, 1 or L, L) `True` = seen; None where every token sees every other."""
        if self.bidirectional:
            return None if bool(x.mask.all()) else x.mask[:, None, None]
        return (
            (x.visit_ids.unsqueeze(1) <= x.visit_ids.unsqueeze(2)) & x.mask.unsqueeze(1)
        ).unsqueeze(1)


class FlatEncoder(Layers):
    """Where the packed model keeps its token embedding: beside the layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = TokenEmbedding(config)


class TokenEmbedding(nn.Module):
    """`LN(code + age + visit + position)`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.age_years = config.age_bin_years
        self.code = Table(config.vocab_size, config.dim)
        self.age = Table(math.ceil(120 / self.age_years) + 2, config.dim)
        self.visit = Table(min(config.max_visits, INDEX_ROWS), config.dim)
        self.position = Table(min(config.max_tokens, INDEX_ROWS), config.dim)
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, x: PaddedTokens) -> Tensor:
        """(B, L, d)."""
        e = (
            self.code(x.codes)
            + self.age(_age_bin(x.ages, self.age_years))
            + self.visit(x.visit_ids)
        )
        normed: Tensor = self.norm(e + self.position(torch.arange(x.codes.shape[1])))
        return normed


def aggregate_visits(states: Tensor, x: PaddedTokens) -> Tensor:
    """The mean over each visit's real tokens: (B, L, d) → (B, V, d), by one addition into B·V rows."""
    b, v = x.visit_mask.shape
    rows = (torch.arange(b).unsqueeze(1) * v + x.visit_ids).flatten()
    kept = (states * x.mask.unsqueeze(2)).flatten(0, 1)
    total = kept.new_zeros(b * v, kept.shape[1]).index_add(0, rows, kept)
    count = kept.new_zeros(b * v).index_add(0, rows, x.mask.flatten().to(kept.dtype))
    return (total / count.clamp(min=1).unsqueeze(1)).view(b, v, -1)


# ---- weights ---------------------------------------------------------------------------------------------------------


def load_packed(model: nn.Module, weights: dict[str, Any]) -> None:
    """Take a packed model's weights; only its vectors for queries, which the seeds do not have, stay behind."""
    missing, unknown = model.load_state_dict(weights, strict=False)
    if missing or any(not name.endswith("embedding.query") for name in unknown):
        raise ValueError(f"not the weights of this model: missing {missing}, unknown {unknown}")
