"""What is summed into a vector: code, place, age, visit, time gap. Lookup tables, each with the rule for its bins.

Shapes: B subjects, V visits, C codes a visit, L codes a subject (all padded), d the width.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Self

import torch
from torch import Tensor, nn

MAX_AGE_YEARS = 120.0  # the last bin is open
# Lower edges of the bins of a time gap: 0, 1 h, 2 h, 4 h, 8 h, 12 h, 1 d, 2 d, 4 d … 2048 d, 10 y (open)
GAP_EDGES_DAYS = (
    *(0.0, 1 / 24, 2 / 24, 4 / 24, 8 / 24, 12 / 24),
    *(float(2**j) for j in range(12)),
    3652.5,
)


class Plain(nn.Module):
    """A module of this package: a `ValueError` names the packed class that takes what is given."""

    packed = ""  # the class of `ehrsequencing.models` that answers, where it has another name

    def __new__(cls, *sizes: object, **named: object) -> Self:
        """Refuse a configuration of the packed engine."""
        cls._only(Real | str | nn.Module | None, "numbers", "ModelConfig", sizes, named)
        return super().__new__(cls)

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """`forward`, of tensors alone: no batch of the packed engine, no list, no array."""
        self._only(Tensor | bool | None, "tensors", "VisitBatch", tensors, named)
        return super().__call__(*tensors, **named)

    @classmethod
    def _only(cls, kinds: Any, what: str, theirs: str, given: Any, named: Any) -> None:
        is_ours = cls.__module__.startswith(__package__)  # somebody's subclass takes what it likes
        for one in (*given, *named.values()):
            if is_ours and not isinstance(one, kinds):
                raise ValueError(
                    f"nn.{cls.__name__} takes {what}, got {type(one).__name__}; a {theirs} belongs "
                    f"to ehrsequencing.models.{cls.packed or cls.__name__}"
                )


def check_sizes(kind: Any = Integral, **sizes: Any) -> None:
    """Refuse what is no number above 0; without `Real`, what is no whole one."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, kind) or not size > 0:
            whole = "whole " if kind is Integral else ""
            raise ValueError(f"{name} must be a {whole}number above 0, got {size!r}")


def dropout_of(share: object) -> nn.Dropout:
    """The layer that drops a share, from 0 to 1."""
    p = float(share) if isinstance(share, Real) else math.nan
    if not 0 <= p <= 1:
        raise ValueError(f"dropout must be a number from 0 to 1, got {share!r}")
    return nn.Dropout(p)


def check_indexes(x: Tensor, name: str, rows: float = math.inf) -> None:
    """Refuse a tensor of anything but whole numbers from 0 to below `rows`."""
    if x.is_floating_point() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be whole numbers (torch.long), got {x.dtype}")
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < rows:
        raise ValueError(f"{name} must be from 0 on and below {rows}")


def check_shapes(shape: Sequence[int], legend: str = "", **tensors: Tensor | None) -> None:
    """Refuse tensors of another shape, and a shape of another number of axes than its legend ("B, V") has."""
    for name, x in tensors.items():
        axes = legend.count(",") + 1 if legend else len(shape)
        if x is None or x.shape != tuple(shape) or len(shape) != axes:
            got = None if x is None else tuple(x.shape)
            raise ValueError(f"{name} must have the shape ({legend}) = {tuple(shape)}, got {got}")


def check_vectors(x: Tensor, name: str, d: int) -> None:
    """Refuse anything but floats (…, d)."""
    if not x.is_floating_point() or x.shape[-1:] != (d,):
        raise ValueError(f"{name} must be floats (…, {d}), got {x.dtype} {tuple(x.shape)}")


def as_floats(x: Tensor) -> Tensor:
    """Numbers as floats: whole ones become float32."""
    return x if x.is_floating_point() else x.to(torch.float32)


class CodeEmbedding(Plain):
    """Module 1: code identity, its place within the visit and, on request, its type (hierarchical, "Embedding Layer").

        e_{v,c} = E[code] + P[c] (+ Y[type])

    Args:
        n_codes: Number of token ids; 0 is the pad, whose vector is zero.
        d: Width.
        max_codes_per_visit: Rows of P; codes further on share the last row. 0: no places.
        n_types: Number of types of codes (diagnosis, procedure, drug, laboratory …). None: no types.

    Example:
        >>> CodeEmbedding(100, 8)(torch.randint(1, 100, (2, 3, 4))).shape
        torch.Size([2, 3, 4, 8])
    """

    def __init__(
        self, n_codes: int, d: int, max_codes_per_visit: int = 128, n_types: int | None = None
    ) -> None:
        super().__init__()
        check_sizes(n_codes=n_codes, d=d, n_types=1 if n_types is None else n_types)
        check_sizes(max_codes_per_visit=1 if max_codes_per_visit == 0 else max_codes_per_visit)
        self.table = nn.Embedding(n_codes, d, padding_idx=0)
        self.position_table = nn.Embedding(max_codes_per_visit, d) if max_codes_per_visit else None
        self.type_table = None if n_types is None else nn.Embedding(n_types, d)

    def forward(self, codes: Tensor, types: Tensor | None = None) -> Tensor:
        """(B, V, C) token ids → (B, V, C, d).

        Args:
            codes: (B, V, C), 0 in pads.
            types: (B, V, C) type of each code, from 0; needed where there are types.

        Raises:
            ValueError: Codes are no whole numbers or outside the vocabulary, or types are missing or not expected.
        """
        check_indexes(codes, "codes", self.table.num_embeddings)
        if (types is None) != (self.type_table is None):
            raise ValueError("types and n_types belong together: give both or neither")
        e: Tensor = self.table(codes)
        if self.position_table is not None:
            place = torch.arange(codes.shape[-1], device=codes.device)
            e = e + self.position_table(place.clamp(max=self.position_table.num_embeddings - 1))
        if self.type_table is not None and types is not None:
            check_shapes(codes.shape, types=types)
            check_indexes(types, "types", self.type_table.num_embeddings)
            e = e + self.type_table(types)
        return e


class AgeEmbedding(Plain):
    """Binned age (embeddings, "Age Embedding"): `A[⌊age / age_bin_size⌋]`.

    The last bin is open at 120 years. An unknown age (NaN) has a bin of its own.

    Example:
        >>> AgeEmbedding(8)(torch.tensor([[67.0, 68.5, float("nan")]])).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, d: int, age_bin_size: float = 5) -> None:
        super().__init__()
        check_sizes(d=d)
        check_sizes(Real, age_bin_size=age_bin_size)
        self.age_bin_size = float(age_bin_size)
        self.table = nn.Embedding(math.ceil(MAX_AGE_YEARS / age_bin_size) + 2, d)

    def bins(self, ages: Tensor) -> Tensor:
        """The bin of each age.

        >>> AgeEmbedding(8).bins(torch.tensor([0.0, 67.0, 119.9, 130.0, float("nan")])).tolist()
        [0, 13, 23, 24, 25]
        """
        ages = as_floats(ages)
        top = self.table.num_embeddings - 2
        bins = (ages.nan_to_num(0.0) / self.age_bin_size).floor().clamp(0, top).long()
        return bins.masked_fill(ages.isnan(), top + 1)

    def forward(self, ages: Tensor) -> Tensor:
        """(B, V) or (B, L) ages in years → the same shape and d."""
        return self.table(self.bins(ages))


class DeltaTEmbedding(Plain):
    """Binned days since the visit before (hierarchical, "Visit-Level Embeddings").

    Bins grow from an hour to ten years, and a first visit has one of its own. With `bin_days` they are all as wide,
    the last one open at `top_days`, and a first visit has the gap 0.

    Example:
        >>> DeltaTEmbedding(8)(torch.tensor([[0.0, 3.0, 1100.0]])).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, d: int, bin_days: float | None = None, top_days: float = 365.0) -> None:
        super().__init__()
        check_sizes(d=d)
        check_sizes(Real, bin_days=top_days if bin_days is None else bin_days, top_days=top_days)
        self.bin_days, self.top_days = bin_days, top_days
        rows = len(GAP_EDGES_DAYS) if bin_days is None else math.ceil(top_days / bin_days)
        self.table = nn.Embedding(rows + 1, d)

    def bins(self, time_deltas: Tensor, is_first: Tensor | None = None) -> Tensor:
        """The bin of each gap.

        >>> DeltaTEmbedding(8).bins(torch.tensor([[0.0, 0.0, 1 / 24, 1.0, 3.9, 4000.0]])).tolist()
        [[0, 1, 2, 7, 8, 19]]
        """
        time_deltas = as_floats(time_deltas)
        if self.bin_days is not None:
            top = self.table.num_embeddings - 1
            bins = (time_deltas.nan_to_num(0.0) / self.bin_days).floor().clamp(0, top).long()
            return bins.masked_fill(time_deltas >= self.top_days, top)
        if is_first is None:
            is_first = torch.zeros_like(time_deltas, dtype=torch.bool)
            is_first[..., :1] = True
        check_shapes(time_deltas.shape, is_first=is_first)
        edges = torch.tensor(GAP_EDGES_DAYS[1:], dtype=time_deltas.dtype, device=time_deltas.device)
        return (torch.bucketize(time_deltas, edges, right=True) + 1).masked_fill(is_first, 0)

    def forward(self, time_deltas: Tensor, is_first: Tensor | None = None) -> Tensor:
        """(B, V) days → (B, V, d).

        Args:
            time_deltas: (B, V) days since the visit before.
            is_first: (B, V) whether no visit came before; None: the first slot of each row.
        """
        return self.table(self.bins(time_deltas, is_first))


class PositionalEmbedding(Plain):
    """Where a token or a visit stands, from 0 (embeddings, "Sinusoidal vs Learned Positional Encoding").

    Learned: a row each, and places from `max_length` on share the last. Sinusoidal: fixed, without a last place,

        PE(i)_{2j} = √(2/d) · sin(i / 10000^{2j/d}),    PE(i)_{2j+1} = √(2/d) · cos(…)

    computed in float64 when asked, so that nothing of it is stored or trained.

    Example:
        >>> PositionalEmbedding(8)(torch.arange(5)).shape
        torch.Size([5, 8])
    """

    packed = "HierarchicalBEHRTForSurvival"
    as_weights: Tensor

    def __init__(self, d: int, max_length: int = 512, use_sinusoidal: bool = False) -> None:
        super().__init__()
        check_sizes(d=d, max_length=max_length)
        self.d = d
        self.table = None if use_sinusoidal else nn.Embedding(max_length, d)
        self.register_buffer("as_weights", torch.empty(0), persistent=False)  # of their type

    def forward(self, positions: Tensor) -> Tensor:
        """Whole numbers of any shape → the same shape and d.

        Raises:
            ValueError: Positions are no whole numbers.
        """
        check_indexes(positions, "positions")
        if self.table is None:
            pair = torch.arange((self.d + 1) // 2, dtype=torch.float64, device=positions.device)
            turns = torch.exp(-math.log(10_000.0) * 2 * pair / self.d)
            angle = positions.double().unsqueeze(-1) * turns
            waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., : self.d]
            return (waves * math.sqrt(2 / self.d)).to(self.as_weights.dtype)
        return self.table(positions.clamp(max=self.table.num_embeddings - 1))


class VisitEmbedding(PositionalEmbedding):
    """Which visit a token belongs to (embeddings, "Visit ID Embedding"): structure alone, nothing of its content.

    What a visit contains is the aggregated visit embedding, after the transformer: `BEHRTForSurvival.aggregate_visits`.
    """

    def __init__(self, d: int, max_visits: int = 512) -> None:
        super().__init__(d, max_length=max_visits)


class VisitTimeEmbedding(Plain):
    """Module 3: visit signals (hierarchical, "Visit-Level Embeddings"): `x_v = u_v + index_v + age_v + gap_v`.

    Example:
        >>> u, ages, days = torch.randn(2, 3, 8), torch.full((2, 3), 60.0), torch.zeros(2, 3)
        >>> VisitTimeEmbedding(8)(u, ages, days).shape
        torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        d: int,
        max_visits: int = 512,
        age_bin_size: float = 5,
        use_sinusoidal: bool = False,
        use_delta: bool = True,
    ) -> None:
        super().__init__()
        self.position = PositionalEmbedding(d, max_visits, use_sinusoidal)
        self.age = AgeEmbedding(d, age_bin_size)
        self.delta = DeltaTEmbedding(d) if use_delta else None

    def forward(
        self, u: Tensor, ages: Tensor, time_deltas: Tensor, visit_mask: Tensor | None = None
    ) -> Tensor:
        """(B, V, d) visit vectors → (B, V, d).

        Args:
            u: (B, V, d) what the visit encoder gives.
            ages: (B, V) years.
            time_deltas: (B, V) days since the visit before.
            visit_mask: (B, V) True or 1 = real; pads become zero. None: all real.
        """
        check_vectors(u, "u", self.age.table.embedding_dim)
        check_shapes(u.shape[:-1], "B, V", ages=ages, time_deltas=time_deltas)
        real = torch.ones_like(ages) if visit_mask is None else visit_mask
        check_shapes(ages.shape, visit_mask=real)
        visit = torch.arange(u.shape[1], device=u.device)
        x: Tensor = u + self.position(visit) + self.age(ages)
        if self.delta is not None:
            x = x + self.delta(time_deltas)
        return x.masked_fill(~real.bool().unsqueeze(-1), 0.0)


class BEHRTEmbedding(Plain):
    """Flat BEHRT's input (embeddings, "Embedding Sum as Model Prior").

        token = LayerNorm(code + age + visit + position), then dropout

    Example:
        >>> codes, ages = torch.randint(1, 100, (2, 6)), torch.full((2, 6), 60.0)
        >>> BEHRTEmbedding(100, 8)(codes, ages, torch.tensor([[0, 0, 0, 1, 1, 2]] * 2)).shape
        torch.Size([2, 6, 8])
    """

    def __init__(
        self,
        n_codes: int,
        d: int,
        age_bin_size: float = 5,
        use_sinusoidal: bool = False,
        max_visits: int = 512,
        max_length: int = 512,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.code = CodeEmbedding(n_codes, d, max_codes_per_visit=0)
        self.age = AgeEmbedding(d, age_bin_size)
        self.visit = VisitEmbedding(d, max_visits)
        self.position = PositionalEmbedding(d, max_length, use_sinusoidal)
        self.norm = nn.LayerNorm(d)
        self.dropout = dropout_of(dropout)

    def forward(self, codes: Tensor, ages: Tensor, visit_ids: Tensor) -> Tensor:
        """(B, L) token ids, ages in years and visit numbers from 0 → (B, L, d)."""
        check_shapes(codes.shape, "B, L", ages=ages, visit_ids=visit_ids)
        check_indexes(visit_ids, "visit_ids")
        place = torch.arange(codes.shape[1], device=codes.device)
        total = self.code(codes) + self.age(ages) + self.visit(visit_ids) + self.position(place)
        return self.dropout(self.norm(total))
