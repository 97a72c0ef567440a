"""Positions in a record: learned or sinusoidal vectors that are added, and rotary ones within attention.

Rotary positions let attention know how many days and how many visits lie between two visits. Each head's queries and
keys are turned, pair of dimensions by pair, by an angle that grows with the row's position:

    (a_j, b_j) → (a_j cos φ_j − b_j sin φ_j,  a_j sin φ_j + b_j cos φ_j),    φ_j = 2π · position / period_j

so that a product of two depends only on the difference of their positions (Su et al. 2021, RoFormer). Half of the pairs
use the days since the subject's first row as position, the others the number of real visits before the row. Added
positions say where a visit is in the record. Rotary ones say how far it is from another visit, as in "the visit
before" or "within two months".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.segments import constant

MAX_INDEX_ROWS = 512  # later visits (flat: tokens) share the last row
DAYS = (60.0, 7305.0)  # shortest and longest period of the pairs that count days: to twenty years
VISITS = (6.0, 200.0)  # ... and of those that count visits


def positions(config: ModelConfig, *, rows: int) -> nn.Module | None:
    """The configured kind of positions, learned ones for up to so many rows (at most 512)."""
    if config.position == "learned":
        return PositionalEmbedding(min(rows, MAX_INDEX_ROWS), config.dim)
    return SinusoidalPositionalEncoding(config.dim) if config.position == "sinusoidal" else None


class PositionalEmbedding(nn.Module):
    """A learned vector for each position from 0; positions beyond the table share its last row."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)

    def forward(self, place: Tensor) -> Tensor:
        """(N,) positions → (N, d)."""
        return self.table(place.clamp(max=self.table.num_embeddings - 1))


class SinusoidalPositionalEncoding(nn.Module):
    """Fixed positions: `PE(i)_{2j} = sin(i / 10000^{2j/d})`, `PE(i)_{2j+1} = cos(…)`, times √(2/d).

    It has no parameters and no last position: positions beyond those seen in training have their own vectors. The
    factor gives it the norm that rows of a learned table start with.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, place: Tensor) -> Tensor:
        """(N,) positions → (N, d) float64."""
        pair = torch.arange((self.dim + 1) // 2, dtype=torch.float64, device=place.device)
        angle = place.double().unsqueeze(1) * torch.exp(-math.log(10_000.0) * 2 * pair / self.dim)
        waves = torch.stack([angle.sin(), angle.cos()], 2).flatten(1)[:, : self.dim]
        return waves * math.sqrt(2 / self.dim)


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
