"""Small operations on packed arrays, chosen for speed and for the same result at any number of threads.

`x[index]` and `index_add` on (K, d) arrays are slow on the CPU or differ between runs; `F.embedding`,
`F.embedding_bag` and one-dimensional `index_select` are neither (docs: PERFORMANCE).
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch

__all__ = ["pool"]

# A sum over visits is one dense product, visits × rows of tables, while that matrix has at most so many cells a code.
MOST_CELLS_A_CODE = 16


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x: (N, d) and (P,) → (P, d)."""
    return F.embedding(index, x)


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for it; x itself if it is there already."""
    if device.type == "cuda":  # from pageable memory the copy would wait for all earlier work
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def batch_to_device(batch: VisitBatch, device: torch.device) -> VisitBatch:
    """Copy a batch that was made on the CPU to a device without waiting for it; the batch itself on the CPU."""
    if device.type == "cuda":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)


@lru_cache(maxsize=64)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers that never change, as a tensor: copied to each device once, not every step."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def dropout(x: Tensor, probability: float, *, training: bool) -> Tensor:
    """Dropout; on the CPU from 16 random bits an element, four times as fast as Bernoulli draws (1/65536 exact)."""
    if not training or not probability:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    dropped = round(probability * 2**16)  # of all 2^16 values
    bits = (
        torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
        .random_(-(2**63), None)
        .view(torch.int16)
    )
    keep = bits[: x.numel()].view(x.shape) >= dropped - 2**15
    return x * (keep.to(x.dtype) * (2**16 / (2**16 - dropped)))


def code_dropout(batch: VisitBatch, probability: float) -> VisitBatch:
    """The batch without each of its codes with this probability, as if nobody had recorded it.

    Codes leave before anything is computed of them, as a code does that an explanation strikes. Static codes stay.
    """
    if not probability:
        return batch
    host = batch.host
    kept = dropout(torch.ones(host.n_codes), probability, training=True) > 0
    return batch_to_device(host.with_codes(kept), batch.codes.device)


def segment_softmax(scores: Tensor, offsets: Tensor, segment_of: Tensor) -> Tensor:
    """Softmax within each segment: `α_k = exp(s_k − max s) / Σ exp(s_j − max s)` over k's segment.

    Args:
        scores: (K,) one number an item.
        offsets: (N+1,) segment n holds items `offsets[n]:offsets[n+1]`; empty segments are legal and give nothing.
        segment_of: (K,) the segment of each item.

    Returns:
        (K,) weights that sum to 1 over every segment that is not empty.
    """
    peak = torch.segment_reduce(scores.detach(), "max", offsets=offsets)
    weights = (scores - peak.index_select(0, segment_of)).exp()
    total = torch.segment_reduce(weights, "sum", offsets=offsets)
    return weights / total.index_select(0, segment_of)


def pool(
    rows: Tensor,
    index: Tensor,
    offsets: Tensor,
    *,
    weights: Tensor | None = None,
    mode: str = "mean",
) -> Tensor:
    """Mean, sum or maximum of each segment's rows, or their weighted sum; zero for an empty segment.

    Args:
        rows: (R, d) distinct vectors.
        index: (K,) the row of each item.
        offsets: (N+1,) segment n holds items `offsets[n]:offsets[n+1]`.
        weights: (K,) weight of each item; the mode is then the sum.
        mode: `mean`, `sum` or `max`.

    Returns:
        (N, d)
    """
    if not index.shape[0]:  # embedding_bag wants at least one row
        return rows.new_zeros(offsets.shape[0] - 1, rows.shape[1]) + 0 * rows.sum()
    mode = mode if weights is None else "sum"
    return F.embedding_bag(
        index, rows, offsets, mode=mode, per_sample_weights=weights, include_last_offset=True
    )


# ---- the vectors of a batch's codes, kept as what they are made of: linear maps and sums need no vector a code ---


@dataclass(frozen=True)
class NumberCells:
    """Codes that have a number, ordered by kind and laid in blocks of B cells of one kind.

        e_{m,b} = Σ_t coefficients_{m,b,t} · tables_{kind_m, t}

    Attributes:
        coefficients: (M, B, T) what a code's number weighs each row of its kind with: 1 the first one, the code's own;
            0 in cells without a code.
        tables: (C, T, d) rows of each kind.
        kind: (M,) of each block.
    """

    coefficients: Tensor
    tables: Tensor
    kind: Tensor

    def vectors(self, tables: Tensor) -> Tensor:
        """(M·B, d') of all cells, made of such tables (C, T, d')."""
        of_block = gather_rows(tables.flatten(1), self.kind).view(-1, *tables.shape[1:])
        return torch.bmm(self.coefficients, of_block).flatten(0, 1)


@dataclass(frozen=True)
class CodeVectors:
    """The vectors of K codes, held as R rows: identical codes without numbers share one, those with numbers have cells.

    Attributes:
        plain: (R', d) rows of codes without a number.
        index: (K,) the row of each code, among the plain ones and then the cells.
        cells: Of codes with a number.
    """

    plain: Tensor
    index: Tensor
    cells: NumberCells | None = None

    @property
    def rows(self) -> Tensor:
        """(R, d)."""
        if self.cells is None:
            return self.plain
        # the numbers of a record would lose their digits in bfloat16
        with torch.autocast(self.plain.device.type, enabled=False):
            return torch.cat([self.plain, self.cells.vectors(self.cells.tables)])

    def linear(self, weight: Tensor, bias: Tensor) -> list[Tensor]:
        """W e + b of the plain rows and of the cells, (·, d'); of cells the tables are mapped, and not each code."""
        parts = [F.linear(self.plain, weight, bias)]
        if self.cells is not None:
            mapped = F.linear(self.cells.tables, weight)
            first = mapped[:, :1] + bias  # its coefficient is 1
            parts.append(self.cells.vectors(torch.cat([first, mapped[:, 1:]], 1)))
        return parts

    def expand(self) -> Tensor:
        """(K, d), one row a code."""
        return gather_rows(self.rows, self.index)

    def pool(
        self, batch: VisitBatch, *, weights: Tensor | None = None, mode: str = "mean"
    ) -> Tensor:
        """Mean, sum or maximum of each visit's codes, or their weighted sum, (N, d); zero for an empty visit.

        Args:
            batch: Whose codes they are.
            weights: (K,) of each code; the mode is then the sum.
            mode: `mean`, `sum` or `max`.
        """
        cells, n, width = self.cells, batch.n_visits, len(self.plain)
        width += 0 if cells is None else cells.tables.shape[:2].numel()
        if mode == "max" or cells is None or n * width > MOST_CELLS_A_CODE * len(self.index):
            return pool(self.rows, self.index, batch.visit_offsets, weights=weights, mode=mode)
        with torch.autocast(self.plain.device.type, enabled=False):
            if weights is None:
                weights = self.plain.new_ones(len(self.index))
                if mode == "mean":
                    weights = weights / batch.codes_per_visit[batch.visit_of_code]
            cell = self.index - len(self.plain)
            terms, size = cells.coefficients.shape[2], cells.coefficients.shape[1]
            has_number, cell = cell >= 0, cell.clamp(min=0)
            own = gather_rows(cells.coefficients.flatten(0, 1), cell) * has_number.unsqueeze(1)
            first = len(self.plain) + cells.kind.index_select(0, cell // size) * terms
            columns = first.unsqueeze(1) + torch.arange(terms, device=cell.device)
            plain = self.index.clamp(max=max(len(self.plain) - 1, 0))
            columns = torch.cat([plain.unsqueeze(1), columns], 1)
            share = torch.cat([(~has_number).to(own.dtype).unsqueeze(1), own], 1)
            place = batch.visit_of_code.unsqueeze(1) * width + columns
            values = (share * weights.to(share.dtype).unsqueeze(1)).flatten()
            matrix = values.new_zeros(n * width).index_add(0, place.flatten(), values)
            return matrix.view(n, width) @ torch.cat([self.plain, cells.tables.flatten(0, 1)])


def blocks_of(kinds: Tensor, n_kinds: int) -> tuple[Tensor, Tensor, int]:
    """Lay items of some kinds in blocks of one kind, at most about twice as many cells as items.

    Args:
        kinds: (K',) kind of each item, on the CPU.
        n_kinds: How many kinds there are, each with an item.

    Returns:
        (K',) cell of each item; (M,) kind of each block; cells of a block.
    """
    counts = torch.bincount(kinds, minlength=n_kinds)
    size = max(1, round(len(kinds) / max(n_kinds, 1)))
    blocks = (counts + size - 1) // size
    first_block, first_item = blocks.cumsum(0) - blocks, counts.cumsum(0) - counts
    order = kinds.argsort(stable=True)
    place = torch.empty_like(kinds)
    place[order] = torch.arange(len(kinds)) - first_item[kinds[order]]
    return first_block[kinds] * size + place, torch.arange(n_kinds).repeat_interleave(blocks), size
