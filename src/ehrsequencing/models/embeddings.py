"""Module 1 (codes → vectors) and module 3 (visit index, age and time gap → vectors that are added).

All tables but that of the codes start with standard deviation d^-½, so that rows have norm 1, as the sinusoid has.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.positions import positions
from ehrsequencing.models.segments import (
    MOST_CELLS_A_CODE,
    CodeVectors,
    NumberCells,
    blocks_of,
    constant,
    dropout,
    pool,
    to_device,
)

MAX_AGE_YEARS = 120.0  # the top bin is open
MAX_CODE_POSITIONS = 128  # later codes of a visit share the last row
CODE_NORM = 4.0  # of a code's vector at the start. Smaller norms learn pairs of codes too late (docs/decisions.md)
# Lower edges of the gap bins: 0, 1 h, 2 h, 4 h, 8 h, 12 h, 1 d, 2 d, 4 d ... 2048 d, 10 y (the last is open).
GAP_EDGES_DAYS = (
    0.0,
    *(h / 24 for h in (1, 2, 4, 8, 12)),
    *(float(2**j) for j in range(12)),
    3652.5,
)
GAP_BIN_DAYS, GAP_TOP_DAYS = (
    7.0,
    365.0,
)  # of equal gap bins: their width, and from where on the last is open


class CodeEmbedding(nn.Module):
    """Code identity, what a code's number adds to it, and on request its place within the visit and its type.

    With rank r (scaled to sd 1) and standardised value z of a code c that has a number:

        polynomial    e = E_c + r·V1_c + (r² − 1)·V2_c + z·V3_c
        interpolate   e = E_c + (1 − w)·T_{c,j} + w·T_{c,j+1},   j + w = (r/√12 + ½)·(bins − 1), clipped to the knots

    and e = E_c for a code without one. (r/√12 + ½ turns a uniform rank of sd 1 back into 0..1.) `code_position` adds
    P_j for the j-th code of its visit (codes of a visit are then ordered), `code_types` adds
    Y_t for the type t of `VisitBatch.code_types`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mode = config.values
        self.terms = {"polynomial": 3, "interpolate": config.value_bins, "none": 0}[config.values]
        self.table = nn.Embedding(config.vocab_size, config.dim, padding_idx=0)
        self.value_table = (
            nn.Embedding(config.vocab_size * self.terms, config.dim) if self.terms else None
        )
        self.position_table = (
            nn.Embedding(MAX_CODE_POSITIONS, config.dim) if config.code_position else None
        )
        self.type_table = (
            nn.Embedding(config.n_code_types, config.dim) if config.code_types else None
        )
        sd = CODE_NORM * config.dim**-0.5
        nn.init.normal_(self.table.weight, std=sd)
        with torch.no_grad():
            self.table.weight[0] = 0.0
        if self.value_table is not None:
            nn.init.normal_(self.value_table.weight, std=0.1 * sd)
        for table in (self.position_table, self.type_table):
            if table is not None:
                nn.init.normal_(table.weight, std=config.dim**-0.5)

    def forward(self, batch: VisitBatch) -> CodeVectors:
        """Vectors of all codes of all visits.

        Raises:
            EhrseqError: A token id outside the vocabulary, or types that the model wants and the batch lacks.
        """
        size = self.table.num_embeddings
        for ids in (batch.host.codes, batch.host.static_codes):
            if len(ids) and int(ids.max()) >= size:
                raise EhrseqError(
                    f"holds token ids outside the model's vocabulary of {size}",
                    where="VisitBatch.codes",
                    fix="use the vocabulary that the model was made for",
                )
        layout = self._layout(batch.host)
        plain, index, numbered, kinds, cell, kind_of_block = (
            to_device(x, batch.codes.device) for x in layout[:-1]
        )
        cells = None
        if len(numbered):
            cells = self._cells(batch, numbered, kinds, cell, kind_of_block, size=layout[-1])
        return CodeVectors(self._of_keys(plain), index, cells)

    def _layout(
        self, batch: VisitBatch
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
        """What decides shapes, on the CPU: see `CodeVectors` and `blocks_of`.

        A code's kind is its id, with its place and type where these have vectors.

        Returns:
            (R',) kinds of codes without a number; (K,) row of each code; (K',) codes with a number; (C,) their kinds;
            (K',) cell of each; (M,) kind of each block, as a place among those; cells of a block.
        """
        kinds, keys = self.table.num_embeddings, batch.codes
        if self.position_table is not None:
            rank = torch.arange(batch.n_codes) - batch.visit_offsets[batch.visit_of_code]
            kinds = kinds * MAX_CODE_POSITIONS
            keys = keys * MAX_CODE_POSITIONS + rank.clamp(max=MAX_CODE_POSITIONS - 1)
        if self.type_table is not None:
            n_types, types = self.type_table.num_embeddings, batch.code_types
            fix = "make the batch with the types of its codes"
            if types is None:
                raise EhrseqError("has no code_types", where="VisitBatch", fix=fix)
            if len(types) and int(types.max()) >= n_types:
                raise EhrseqError(
                    f"holds types outside the model's {n_types}", where="VisitBatch", fix=fix
                )
            kinds, keys = kinds * n_types, keys * n_types + types
        has_value = torch.zeros_like(batch.codes, dtype=torch.bool)
        if self.value_table is not None and batch.values is not None:
            has_value = ~batch.values[:, 0].isnan()
        plain, numbered = (~has_value).nonzero().squeeze(1), has_value.nonzero().squeeze(1)
        distinct, index_of_plain = _distinct(keys[plain], kinds)
        of_number, place = _distinct(keys[numbered], kinds)
        cell, kind_of_block, size = blocks_of(place, len(of_number))
        index = torch.empty_like(batch.codes)
        index[plain] = index_of_plain
        index[numbered] = len(distinct) + cell
        return distinct, index, numbered, of_number, cell, kind_of_block, size

    def _of_keys(self, keys: Tensor) -> Tensor:
        """(R, d) vectors of kinds, without what a number adds."""
        types = None
        rows: Tensor = self.table(self._code_of(keys))
        if self.type_table is not None:
            keys, types = (
                keys // self.type_table.num_embeddings,
                keys % self.type_table.num_embeddings,
            )
        if self.position_table is not None:
            rows = rows + self.position_table(keys % MAX_CODE_POSITIONS)
        return rows if self.type_table is None else rows + self.type_table(types)

    def _code_of(self, keys: Tensor) -> Tensor:
        """(R,) token id of each kind."""
        if self.type_table is not None:
            keys = keys // self.type_table.num_embeddings
        return keys if self.position_table is None else keys // MAX_CODE_POSITIONS

    def of_static(self, batch: VisitBatch) -> Tensor:
        """(S, d) mean embedding of each subject's static codes (the same table); zero without any.

        `forward` has looked at the ids.
        """
        return pool(self.table.weight, batch.static_codes, batch.static_offsets)

    def _cells(
        self,
        batch: VisitBatch,
        numbered: Tensor,
        kinds: Tensor,
        cell: Tensor,
        kind_of_block: Tensor,
        *,
        size: int,
    ) -> NumberCells:
        """The codes that have a number, as `_layout` lays them."""
        weight = cast(nn.Embedding, self.value_table).weight
        rank, value = cast(Tensor, batch.values)[numbered].to(weight.dtype).unbind(1)
        one = torch.ones_like(rank)
        if self.mode == "polynomial":
            own = torch.stack([one, rank, rank.square() - 1, value], 1)
        else:
            position = ((rank / math.sqrt(12) + 0.5) * (self.terms - 1)).clamp(0, self.terms - 1)
            knot = position.floor().clamp(max=self.terms - 2)
            own = rank.new_zeros(len(rank), 1 + self.terms)
            own[:, 0], first, part = (
                one,
                1 + knot.long().unsqueeze(1),
                (position - knot).unsqueeze(1),
            )
            own = own.scatter(1, first, 1 - part).scatter(1, first + 1, part)
        coefficients = own.new_zeros(len(kind_of_block) * size, own.shape[1]).index_copy(
            0, cell, own
        )
        of_numbers = F.embedding(
            self._code_of(kinds), weight.view(-1, self.terms * weight.shape[1])
        )
        tables = torch.cat(
            [self._of_keys(kinds).unsqueeze(1), of_numbers.view(-1, self.terms, weight.shape[1])], 1
        )
        return NumberCells(coefficients.view(-1, size, own.shape[1]), tables, kind_of_block)


def _distinct(keys: Tensor, kinds: int) -> tuple[Tensor, Tensor]:
    """Distinct keys in rising order (R,), and the index of each key among them (K,)."""
    if kinds > 2**20:  # too many to mark each
        distinct, index = torch.unique(keys, return_inverse=True)
        return distinct, index
    present = torch.zeros(kinds, dtype=torch.bool, device=keys.device)  # cheaper than a sort
    present[keys] = True
    return present.nonzero().squeeze(1), (present.cumsum(0) - 1)[keys]


class AgeEmbedding(nn.Module):
    """Binned age: `⌊age / bin_years⌋`, the top bin open at 120 years, an own bin where the age is unknown.

    `polynomial` adds what is lost inside a bin, with a = (age − 50) / 20 years; nothing where the age is unknown:

        a·V1 + (a² − 1)·V2 + (a³ − 3a)·V3
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bin_years = config.age_bin_years
        self.table = nn.Embedding(math.ceil(MAX_AGE_YEARS / self.bin_years) + 2, config.dim)
        nn.init.normal_(self.table.weight, std=config.dim**-0.5)
        self.terms = None
        if config.age_polynomial:
            terms = torch.empty(3, config.dim)
            self.terms = nn.Parameter(nn.init.normal_(terms, std=0.5 * config.dim**-0.5))

    def forward(self, age_years: Tensor) -> Tensor:
        """(N,) ages, NaN where unknown → (N, d)."""
        # age → bin: `⌊age / bin_years⌋`, the top bin open at 120 years, one bin more for an unknown age
        top = math.ceil(MAX_AGE_YEARS / self.bin_years)
        known = (age_years.nan_to_num(0.0) / self.bin_years).floor().clamp(0, top).long()
        vectors: Tensor = self.table(known.masked_fill(age_years.isnan(), top + 1))
        if self.terms is None:
            return vectors
        a = ((age_years.clamp(0, MAX_AGE_YEARS) - 50) / 20).to(self.terms.dtype)
        powers = torch.stack([a, a.square() - 1, a * (a.square() - 3)], 1).nan_to_num(0.0)
        return vectors + powers @ self.terms


class DeltaTEmbedding(nn.Module):
    """Binned time gap since the visit before.

    - `log`: an own bin without a visit before, then from 0, 1 h, 2 h … 1 d, 2 d, 4 d … 10 y (`GAP_EDGES_DAYS`).
    - `linear`: whole weeks, the top bin open from a year on; a first visit has gap 0.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.linear = config.delta_bins == "linear"
        edges = math.ceil(GAP_TOP_DAYS / GAP_BIN_DAYS) if self.linear else len(GAP_EDGES_DAYS)
        self.table = nn.Embedding(edges + 1, config.dim)
        nn.init.normal_(self.table.weight, std=config.dim**-0.5)

    def forward(self, delta_days: Tensor, is_first: Tensor) -> Tensor:
        """(N,) gaps and whether no visit came before → (N, d)."""
        if self.linear:
            top = self.table.num_embeddings - 1
            bins = (delta_days / GAP_BIN_DAYS).floor().clamp(max=top).long()
            bins = bins.masked_fill(delta_days >= GAP_TOP_DAYS, top)
        else:
            # gap → bin: 0 without a visit before, then one bin from each of `GAP_EDGES_DAYS` to the next
            edges = constant(GAP_EDGES_DAYS[1:], delta_days.dtype, delta_days.device)
            bins = (torch.bucketize(delta_days, edges, right=True) + 1).masked_fill(is_first, 0)
        return self.table(bins)


class VisitTimeEmbedding(nn.Module):
    """Visit signals: `x_v = u_v + index_v + age_v + gap_v (+ q for a query)`, then dropout.

    - index: number of the subject's real visits before v, learned (up to 512) or sinusoidal.
    - age, gap: `AgeEmbedding`, `DeltaTEmbedding`.
    - q: a learned vector (zero at the start) that tells a query from a visit.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.position = positions(config, rows=config.max_visits)
        self.age = AgeEmbedding(config) if config.age_bin_years else None
        self.delta = DeltaTEmbedding(config) if config.delta_bins != "none" else None
        self.query = nn.Parameter(torch.zeros(config.dim))
        self.dropout = config.dropout

    def forward(self, u: Tensor, batch: VisitBatch) -> Tensor:
        """(N, d) visit vectors → (N, d)."""
        x = u + batch.is_query.unsqueeze(1) * self.query
        if self.position is not None:
            x = x + self.position(batch.visit_index).to(x.dtype)
        if self.age is not None:
            x = x + self.age(batch.age_years)
        if self.delta is not None:
            x = x + self.delta(batch.delta_days, batch.visit_index == 0)
        return dropout(x, self.dropout, training=self.training)


# ---- the table branch ------------------------------------------------------------------------------------------------


TERMS = 4  # vectors of a column
TABLE_DROPOUT = 0.2  # probability that training hides a code's number and its summaries


class TableBranch(nn.Module):
    """Every number of a row adds vectors of its own column; then norm and MLP.

    A column is a token that carries numbers: a code, or one of the summaries that queries carry. With r_j the rank of
    column j's number (scaled to sd 1) and z_j its standardised value:

        t_v = Σ_j V0_j + r_j·V1_j + (r_j² − 1)·V2_j + z_j·V3_j      over the columns j that row v knows
        h_v = GELU(W1 LN(t_v)),   x_v += W_x h_v                    W_x starts at zero; the wide head sees h_v too

    Attention pooling takes the *mean* of a query's hundreds of summaries, so that each moves it by a hundredth; here
    each counts wholly. A row sees its own numbers alone, and one without numbers gets nothing. In training whole
    variables are dropped: a code's number with all of its summaries, which say nearly the same.
    """

    column: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, columns = config.table_dim, config.table_columns or config.vocab_size
        # (V,) the column of each token; -1: it carries no number
        self.register_buffer("column", torch.arange(config.vocab_size))
        self.variable: Tensor | None = None  # (V,) the code of each token; None: itself
        # vectors of norm 1 would turn with the first steps: a query sums hundreds of them
        self.vectors = nn.Embedding(columns * TERMS, width)
        self.norm = nn.LayerNorm(width)
        self.W1 = nn.Linear(width, width)
        self.W_x = nn.Linear(width, config.dim, bias=False)
        nn.init.zeros_(self.W_x.weight)
        self.table_dropout, self.dropout = TABLE_DROPOUT, config.dropout

    def set_columns(self, column: Ints, variable: Ints) -> None:
        """Take the columns of a vocabulary, and the code behind each of its tokens (V,)."""
        self.column.copy_(torch.from_numpy(column))
        self.variable = torch.from_numpy(variable)

    def forward(self, batch: VisitBatch) -> Tensor:
        """(N, width) h of each row; zero without numbers."""
        if batch.values is None or not batch.n_codes:
            return self.vectors.weight.new_zeros(batch.n_visits, self.W1.in_features)
        column = self.column[batch.codes]
        known = ~batch.values[:, 0].isnan() & (column >= 0)
        if self.training and self.table_dropout:
            known = known & self._kept(batch)
        numbers = batch.values.to(self.vectors.weight.dtype)
        rank, value = numbers.masked_fill(~known.unsqueeze(1), 0).unbind(1)
        weights = torch.stack([torch.ones_like(rank), rank, rank.square() - 1, value], 1)
        weights = weights * known.unsqueeze(1)
        column = column.clamp(min=0)  # without a choice of rows, for which a GPU would wait
        terms = column.unsqueeze(1) * TERMS + torch.arange(TERMS, device=column.device)
        counts = F.pad(known.cumsum(0), (1, 0))[batch.visit_offsets].diff()
        total = self._sum(terms, weights, batch)
        h = F.gelu(self.W1(self.norm(total)))
        return dropout(h, self.dropout, training=self.training) * (counts > 0).unsqueeze(1)

    def _sum(self, terms: Tensor, weights: Tensor, batch: VisitBatch) -> Tensor:
        """(N, width) Σ of the vectors of each visit's codes (K, TERMS), weighted; dense where its matrix is small."""
        width = len(self.vectors.weight)
        if batch.n_visits * width <= MOST_CELLS_A_CODE * batch.n_codes:
            place = batch.visit_of_code.unsqueeze(1) * width + terms
            matrix = weights.new_zeros(batch.n_visits * width)
            matrix.index_add_(0, place.flatten(), weights.flatten())
            with torch.autocast(weights.device.type, enabled=False):
                return matrix.view(-1, width) @ self.vectors.weight
        return F.embedding_bag(
            terms.flatten(),
            self.vectors.weight,
            batch.visit_offsets * TERMS,
            mode="sum",
            per_sample_weights=weights.flatten(),
            include_last_offset=True,
        )

    def _kept(self, batch: VisitBatch) -> Tensor:
        """(K,) one draw for each row and variable: a hash of both and of a random number."""
        variable = batch.codes
        if self.variable is not None:
            variable = to_device(self.variable, batch.codes.device)[batch.codes]
        key = batch.visit_of_code * len(self.column) + variable
        mixed = (key ^ int(torch.randint(2**62, ()))) * 0x9E3779B97F4A7C1
        mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B
        return (mixed >> 24 & 0xFFFFFF) >= round(self.table_dropout * 2**24)
