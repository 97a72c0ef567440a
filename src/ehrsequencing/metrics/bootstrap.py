"""Intervals by resampling subjects: a subject comes with all its rows, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Floats, Ints32
from ehrsequencing.core.errors import EhrseqError

#: Elements of one block of weights.
BLOCK_ELEMENTS = 2**22


def bootstrap_subjects(subject_ids: ArrayLike, n_resamples: int, seed: int) -> Iterator[Ints32]:
    """Draw subjects with replacement and count how often each row's subject was drawn.

    Resample r depends only on the seed, r and the set of distinct subjects, so that two models (or two landmarks, as
    slices of one block) are compared on the same resamples, and the block size changes nothing.

    Args:
        subject_ids: (n,) the subject of each row; several rows may share one.
        n_resamples: How many.
        seed: Of the random numbers.

    Yields:
        (block, n) int32 multiplicities, `n_resamples` rows over all blocks.

    Raises:
        EhrseqError: No rows.
    """
    subjects, row_subject = np.unique(np.asarray(subject_ids), return_inverse=True)
    n_subjects, row_subject = len(subjects), row_subject.reshape(-1)
    if n_subjects == 0:
        raise EhrseqError(
            "no subjects to draw", where="subject_ids", fix="give one subject per row"
        )
    step = max(1, BLOCK_ELEMENTS // max(len(row_subject), n_subjects))
    for start in range(0, n_resamples, step):
        block = np.empty((min(step, n_resamples - start), len(row_subject)), dtype=np.int32)
        for i in range(len(block)):
            drawn = np.random.default_rng([seed, start + i]).integers(n_subjects, size=n_subjects)
            block[i] = np.bincount(drawn, minlength=n_subjects)[row_subject]
        yield block


def bootstrap_table(
    table: Callable[[Ints32], Mapping[str, Floats]],
    subject_ids: ArrayLike,
    n_resamples: int,
    seed: int,
) -> dict[str, Floats]:
    """Every value of a table for every resample.

    Args:
        table: Weights (block, n) → name → (block, ...), say `registry.values` of the rows with these weights.
        subject_ids: (n,) the subject of each row.
        n_resamples: How many.
        seed: Of the random numbers.

    Returns:
        Name → (n_resamples, ...).
    """
    blocks = [table(weights) for weights in bootstrap_subjects(subject_ids, n_resamples, seed)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def percentile_interval(
    samples: ArrayLike, *, level: float = 0.95, largest_undefined_share: float = 0.05
) -> tuple[Floats, Floats]:
    """Percentile interval over the first axis.

    Args:
        samples: (resamples, ...) values; NaN where a resample left the metric undefined.
        level: Share of the resamples between the limits.
        largest_undefined_share: Above this share of NaN the interval is undefined too: what is left would be a
            selection of the lucky resamples.

    Returns:
        Lower and upper limit, each (...); NaN where undefined.
    """
    values = np.asarray(samples, dtype=np.float64)
    undefined = np.isnan(values).mean(axis=0) > largest_undefined_share
    # A NaN becomes a 0 only where the result is thrown away; elsewhere nanquantile leaves it out.
    limits = np.nanquantile(
        np.where(undefined, 0.0, values), [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0
    )
    lower, upper = np.where(undefined, np.nan, limits)
    return lower, upper


def interval_around(value: ArrayLike, samples: ArrayLike) -> tuple[Floats, Floats]:
    """Percentile interval of an estimate, where it holds the estimate; elsewhere none.

    An estimate outside of 95 % of its own resamples is of a metric that resampling biases by more than its spread. Then
    neither the percentiles nor their reflection cover what is estimated, and no interval is better than a wrong one.

    Args:
        value: (...) the estimate.
        samples: (resamples, ...); no resamples: no interval.

    Returns:
        Lower and upper limit, each (...), with lower ≤ value ≤ upper; NaN where undefined.
    """
    point = np.asarray(value, dtype=np.float64)
    if not len(np.asarray(samples)):
        return np.full_like(point, np.nan), np.full_like(point, np.nan)
    lower, upper = percentile_interval(samples)
    near = 1e-9 * np.maximum(1.0, np.abs(point))  # sums in another order
    held = (lower - near <= point) & (point <= upper + near)
    return np.where(held, np.minimum(lower, point), np.nan), np.where(
        held, np.maximum(upper, point), np.nan
    )
