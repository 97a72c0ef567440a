"""Module 4: visits in time → contextual visit states, by transformer layers with rotary positions.

The layer is the one that codes of a visit and flat tokens use as well. Rotary positions let attention know how many
days and how many visits lie between two visits. Each head's queries and keys are turned, pair of dimensions by pair, by
an angle that grows with the row's position:

    (a_j, b_j) → (a_j cos φ_j − b_j sin φ_j,  a_j sin φ_j + b_j cos φ_j),    φ_j = 2π · position / period_j

so that a product of two depends only on the difference of their positions (Su et al. 2021, RoFormer). Half of the pairs
use the days since the subject's first row as position, the others the number of real visits before the row. Module 3
encodes where a visit is in the record. This encodes how far it is from another visit, as in "the visit before" or
"within two months".
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models import attention
from ehrsequencing.models.attention import Plan, attend
from ehrsequencing.models.segments import constant, dropout

LAYER_SCALE = 0.1  # start of the learned scale of each residual branch
DAYS = (60.0, 7305.0)  # shortest and longest period of the pairs that count days: to twenty years
VISITS = (6.0, 200.0)  # ... and of those that count visits


class TimelineEncoder(nn.Module):
    """Transformer over a subject's visits: causal, with a sliding window of `max_visits`; queries are seen by none.

    With `rotary`, attention knows the days and visits between two rows (`rotation`).
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


class TransformerLayer(nn.Module):
    """Pre-LN block: `x + s1·Attn(LN x)`, then `x + s2·W2 gelu(W1 LN x)`, s learned per channel (LayerScale).

    With `value_dropout` p, training drops a row's whole value with probability p for all rows that attend to it, and
    divides the other values by 1 − p.
    """

    def __init__(self, config: ModelConfig, *, value_dropout: float = 0.0) -> None:
        super().__init__()
        d = config.dim
        self.heads = config.heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.W1, self.W2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.attention_scale = nn.Parameter(torch.full((d,), LAYER_SCALE))
        self.mlp_scale = nn.Parameter(torch.full((d,), LAYER_SCALE))
        self.dropout, self.value_dropout = config.dropout, value_dropout

    def forward(
        self, x: Tensor, plan: Plan, turn: "Rotation | None" = None, *, rows: Tensor | None = None
    ) -> Tensor:
        """(N, d) packed rows → (N, d); `turn` encodes the distance between rows.

        With `rows` (R,) only these are computed, (R, d): the plan is then of these (`attention.rows_plan`).
        """
        qk, v = self.qkv(self.attention_norm(x)).split([2 * x.shape[1], x.shape[1]], dim=1)
        q, k = (qk if turn is None else turn(qk, heads=2 * self.heads)).chunk(2, dim=1)
        if self.value_dropout and self.training:
            v = v * dropout(v.new_ones(len(v), 1), self.value_dropout, training=True)
        if rows is not None:
            x, q = x.index_select(0, rows), q.index_select(0, rows)
        x = x + self._residual(
            self.attention_scale * self.out(attend(q, k, v, plan, heads=self.heads))
        )
        return x + self._residual(self.mlp_scale * self.W2(F.gelu(self.W1(self.mlp_norm(x)))))

    def _residual(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, training=self.training)


# ---- rotary positions ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of a batch's angles."""

    cos: Tensor  # (N, 1, P) for the P pairs of a head
    sin: Tensor  # (N, 1, P)

    def __call__(self, x: Tensor, *, heads: int) -> Tensor:
        """(N, d) queries or keys, turned; an odd dimension of a head stays as it is."""
        pairs = self.cos.shape[2]
        parts = x.reshape(x.shape[0], heads, x.shape[1] // heads)
        a, b, rest = parts[..., :pairs], parts[..., pairs : 2 * pairs], parts[..., 2 * pairs :]
        turned = torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos, rest], -1)
        return turned.flatten(1).to(x.dtype)


def rotation(batch: VisitBatch, *, head_dim: int, dtype: torch.dtype) -> Rotation:
    """The rotation of a batch's rows for heads of a width.

    Args:
        batch: The packed visits.
        head_dim: d / heads.
        dtype: Of the queries and keys; angles are float64 whatever it is.
    """
    pairs = head_dim // 2
    of_days = (pairs + 1) // 2
    places = torch.stack([days_since_first(batch), batch.visit_index.double()], 1)  # (N, 2)
    turns_per_day = constant(
        tuple(1 / p for p in _periods(*DAYS, of_days)), torch.float64, places.device
    )
    turns_per_visit = constant(
        tuple(1 / p for p in _periods(*VISITS, pairs - of_days)), torch.float64, places.device
    )
    turns = torch.cat(
        [places[:, :1] * turns_per_day, places[:, 1:] * turns_per_visit], 1
    ).unsqueeze(1)
    angles = 2 * math.pi * (turns - turns.floor())  # small ones, which float32 can hold
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def days_since_first(batch: VisitBatch) -> Tensor:
    """(N,) float64 days from the subject's first row to each: the sum of the gaps between real visits so far.

    Stays themselves are not counted. A query is its own gap after the last real visit before it. Gaps are rounded
    to 2⁻²⁰ days, a tenth of a second: sums over the batch are then exact, and no subject moves another by a rounding.
    """
    gap = (batch.delta_days.double() * 2**20).round() / 2**20
    of_visits = gap.masked_fill(batch.is_query, 0)
    total = of_visits.cumsum(0)
    before = (total - of_visits)[batch.subject_offsets[:-1][batch.subject_of_visit]]
    return total - before + (gap - of_visits)


def _periods(shortest: float, longest: float, count: int) -> list[float]:
    """So many periods from the shortest to the longest, each the same number of times the one before.

    >>> _periods(1.0, 100.0, 3)
    [1.0, 10.0, 100.0]
    """
    return [shortest * (longest / shortest) ** (j / max(count - 1, 1)) for j in range(count)]
