"""Module 1 (codes) and module 3 (time signals) of the hierarchical model: what happened, and when."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.models.segments import dropout, gather_rows, pool

MAX_AGE_YEARS = 120.0  # the top bin is open
MAX_INDEX_ROWS = 512  # later visits share the last row
CODE_SD = 0.5  # of the code table at the start. Smaller ones learn pairs of codes too late (docs/decisions.md)
# Lower edges of the gap bins: 0, 1 h, 2 h, 4 h, 8 h, 12 h, 1 d, 2 d, 4 d ... 2048 d, 10 y (the last is open).
GAP_EDGES_DAYS = (0.0, *(h / 24 for h in (1, 2, 4, 8, 12)), *(float(2**j) for j in range(12)), 3652.5)


@dataclass(frozen=True)
class CodeVectors:
    """The vectors of K codes, held as their R distinct rows (identical codes without values share one).

    Attributes:
        rows: (R, d) distinct vectors.
        index: (K,) the row of each code.
    """

    rows: Tensor
    index: Tensor

    def expand(self) -> Tensor:
        """(K, d), one row a code."""
        return gather_rows(self.rows, self.index)


class CodeEmbedding(nn.Module):
    """Code identity, and what a code's number adds to it.

    With rank r (scaled to sd 1) and standardised value z of a code c that has a number:

        polynomial    e = E_c + r·V1_c + (r² − 1)·V2_c + z·V3_c
        interpolate   e = E_c + (1 − w)·T_{c,j} + w·T_{c,j+1},   j + w = (r/√12 + ½)·(bins − 1), clipped to the knots

    and e = E_c for a code without one. (r/√12 + ½ turns a uniform rank of sd 1 back into 0..1.)
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mode = config.values
        self.terms = {"polynomial": 3, "interpolate": config.value_bins, "none": 0}[config.values]
        self.table = nn.Embedding(config.vocab_size, config.dim, padding_idx=0)
        self.value_table = nn.Embedding(config.vocab_size * self.terms, config.dim) if self.terms else None
        nn.init.normal_(self.table.weight, std=CODE_SD)
        with torch.no_grad():
            self.table.weight[0] = 0.0
        if self.value_table is not None:
            nn.init.normal_(self.value_table.weight, std=0.1 * CODE_SD)

    def forward(self, batch: VisitBatch) -> CodeVectors:
        """Vectors of all codes of all visits."""
        self._check_ids(batch.codes)
        if self.value_table is None or batch.values is None:
            distinct, index = _distinct(batch.codes, self.table.num_embeddings)
            return CodeVectors(self.table(distinct), index)
        has_value = ~batch.values[:, 0].isnan()
        plain, valued = (~has_value).nonzero().squeeze(1), has_value.nonzero().squeeze(1)
        distinct, index_of_plain = _distinct(batch.codes[plain], self.table.num_embeddings)
        codes = batch.codes[valued]
        rows = torch.cat([self.table(distinct), self.table(codes) + self._of_values(codes, batch.values[valued])])
        index = torch.empty_like(batch.codes)
        index[plain] = index_of_plain
        index[valued] = torch.arange(len(distinct), len(rows), device=index.device)
        return CodeVectors(rows, index)

    def of_static(self, batch: VisitBatch) -> Tensor:
        """(S, d) mean embedding of each subject's static codes (the same table); zero without any."""
        self._check_ids(batch.static_codes)
        return pool(self.table.weight, batch.static_codes, batch.static_offsets)

    def _of_values(self, codes: Tensor, values: Tensor) -> Tensor:
        """(K',) codes that have a number and (K', 2) those → (K', d). One weighted bag of table rows a code."""
        assert self.value_table is not None
        rank, value = values.to(self.value_table.weight.dtype).unbind(1)
        first = codes * self.terms
        if self.mode == "polynomial":
            rows = torch.stack([first, first + 1, first + 2], 1)
            weights = torch.stack([rank, rank.square() - 1, value], 1)
        else:
            position = ((rank / math.sqrt(12) + 0.5) * (self.terms - 1)).clamp(0, self.terms - 1)
            knot = position.floor().clamp(max=self.terms - 2)
            rows = torch.stack([first + knot.long(), first + knot.long() + 1], 1)
            weights = torch.stack([1 - (position - knot), position - knot], 1)
        return F.embedding_bag(rows, self.value_table.weight, per_sample_weights=weights, mode="sum")

    def _check_ids(self, codes: Tensor) -> None:
        size = self.table.num_embeddings
        if codes.device.type == "cpu" and len(codes) and int(codes.max()) >= size:
            raise EhrseqError(
                f"holds token ids outside the model's vocabulary of {size}",
                where="VisitBatch.codes",
                mend="use the vocabulary that the model was made for",
            )


def _distinct(codes: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Distinct codes in rising order (R,), and where each code stands among them (K,); cheaper than `unique`."""
    present = torch.zeros(vocab_size, dtype=torch.bool, device=codes.device)
    present[codes] = True
    return present.nonzero().squeeze(1), (present.cumsum(0) - 1)[codes]


class VisitTimeEmbedding(nn.Module):
    """Visit signals: `x_v = u_v + index_v + age_v + gap_v (+ q for a query)`, then dropout.

    - index: number of the subject's real visits before v; the table saturates at its last row.
    - age: bins of `age_bin_years`, the top one open at 120 years, an own bin where the age is unknown.
    - gap: log-spaced bins of the days since the visit before; an own bin where there is none.
    - q: a learned vector (zero at the start) that tells a query from a visit.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.age_bin_years = config.age_bin_years
        ages = math.ceil(MAX_AGE_YEARS / config.age_bin_years) + 2 if config.age_bin_years else 0
        indices = min(config.max_visits, MAX_INDEX_ROWS) if config.position == "learned" else 0
        gaps = len(GAP_EDGES_DAYS) + 1 if config.delta_bins == "log" else 0
        self.index_table = nn.Embedding(indices, config.dim) if indices else None
        self.age_table = nn.Embedding(ages, config.dim) if ages else None
        self.gap_table = nn.Embedding(gaps, config.dim) if gaps else None
        for table in (self.index_table, self.age_table, self.gap_table):
            if table is not None:
                nn.init.normal_(table.weight, std=config.dim**-0.5)
        self.query = nn.Parameter(torch.zeros(config.dim))
        self.dropout = config.dropout

    def forward(self, u: Tensor, batch: VisitBatch) -> Tensor:
        """(N, d) visit vectors → (N, d)."""
        x = u + batch.is_query.unsqueeze(1) * self.query
        if self.index_table is not None:
            x = x + self.index_table(batch.visit_index.clamp(max=self.index_table.num_embeddings - 1))
        if self.age_table is not None:
            x = x + self.age_table(age_bins(batch.age_years, bin_years=self.age_bin_years))
        if self.gap_table is not None:
            x = x + self.gap_table(gap_bins(batch.delta_days, batch.visit_index == 0))
        return dropout(x, self.dropout, training=self.training)


def age_bins(age_years: Tensor, *, bin_years: float) -> Tensor:
    """Age → bin: `⌊age / bin_years⌋`, the top bin open at 120 years, one bin more for an unknown age.

    >>> age_bins(torch.tensor([0.0, 67.0, 119.9, 120.0, 400.0, float("nan")]), bin_years=5.0).tolist()
    [0, 13, 23, 24, 24, 25]
    """
    top = math.ceil(MAX_AGE_YEARS / bin_years)
    known = (age_years.nan_to_num(0.0) / bin_years).floor().clamp(0, top).long()
    return known.masked_fill(age_years.isnan(), top + 1)


def gap_bins(delta_days: Tensor, is_first: Tensor) -> Tensor:
    """Gap → bin: 0 without a visit before, then one bin from each of `GAP_EDGES_DAYS` to the next.

    >>> days = torch.tensor([0.0, 0.0, 1 / 24, 1.0, 3.9, 4000.0])
    >>> gap_bins(days, torch.tensor([True, False, False, False, False, False])).tolist()
    [0, 1, 2, 7, 8, 19]
    """
    edges = torch.tensor(GAP_EDGES_DAYS[1:], dtype=delta_days.dtype, device=delta_days.device)
    return (torch.bucketize(delta_days, edges, right=True) + 1).masked_fill(is_first, 0)
