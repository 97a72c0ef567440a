"""Small operations on packed arrays, chosen for speed and for the same result at any number of threads.

`x[index]` and `index_add` on (K, d) arrays are slow on the CPU or differ between runs; `F.embedding`,
`F.embedding_bag` and one-dimensional `index_select` are neither (docs: PERFORMANCE).
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["pool"]


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x: (N, d) and (P,) → (P, d)."""
    return F.embedding(index, x)


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for it; x itself if it is there already."""
    if device.type == "cuda":  # from pageable memory the copy would wait for all earlier work
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


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
