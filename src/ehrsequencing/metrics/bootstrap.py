"""What chance does: intervals by resampling subjects, and the calibration of risks that are all right.

A subject comes with all its rows, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from ehrsequencing.core.arrays import Floats, Ints, Ints32
from ehrsequencing.metrics.calibration import (
    clipped_logit,
    distance_indices,
    fit_logistic,
    largest_gap,
    spline_design,
    spline_knots,
)
from ehrsequencing.metrics.censoring import RiskSets, divide
from ehrsequencing.metrics.outcomes import ScoredRows

__all__ = ["bootstrap_subjects", "percentile_interval"]

Z95 = 1.959964
#: A share of a resample is taken to be so far from 0 and 1.
LEAST_SHARE = 1e-3
#: The scales on which metrics are symmetric: to them, cut off at a least share, and back.
SCALES: dict[str, tuple[Callable[..., Floats], Callable[[Floats], Floats]]] = {
    "logit": (lambda v, least=0.0: logit(np.clip(v, least, 1.0 - least)), expit),
    "log": (lambda v, least=0.0: np.log(np.maximum(v, least)), np.exp),
    "log of the rest": (
        lambda v, least=0.0: np.log(np.maximum(1.0 - v, least)),
        lambda x: 1.0 - np.exp(x),
    ),
}
#: Elements of one block of weights.
BLOCK_ELEMENTS = 2**22
#: Elements of one (simulations, n) work array of `calibration_null`.
SIMULATED_ELEMENTS = 2**20


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
    """
    subjects, row_subject = np.unique(np.asarray(subject_ids), return_inverse=True)
    n_subjects, row_subject = len(subjects), row_subject.reshape(-1)
    step = max(1, BLOCK_ELEMENTS // max(len(row_subject), n_subjects))
    for start in range(0, n_resamples, step):
        block = np.empty((min(step, n_resamples - start), len(row_subject)), dtype=np.int32)
        for i in range(len(block)):
            drawn = np.random.default_rng([seed, start + i]).integers(n_subjects, size=n_subjects)
            block[i] = np.bincount(drawn, minlength=n_subjects)[row_subject]
        yield block


def mean_by_subject(values: Floats, subject: Ints) -> tuple[float, float]:
    """Mean of values over rows, and its standard error by subject: the rows of one belong together.

    Args:
        values: (n,).
        subject: (n,) whose row it is.

    Example:
        >>> mean, error = mean_by_subject(np.array([0.0, 1.0, 2.0]), np.array([0, 0, 1]))
        >>> round(mean, 3), round(error, 3)
        (1.0, 0.471)
    """
    mean = float(values.mean())
    residual = np.bincount(subject, weights=values - mean)
    return mean, float(np.sqrt(np.square(residual).sum())) / len(values)


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
    # A NaN becomes a 0 only where the result is thrown away; elsewhere nanquantile leaves it out, one column at a time.
    known = np.where(undefined, 0.0, values)
    quantile = np.nanquantile if np.isnan(known).any() else np.quantile
    limits = quantile(known, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
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


def scaled_interval(value: ArrayLike, samples: ArrayLike, scale: str) -> tuple[Floats, Floats]:
    """Interval of an estimate by the sd of its resamples on one of `SCALES`: g⁻¹(g(v) ± 1.96 · sd of g).

    Percentiles hold what they should too seldom where events are few (docs/metrics.md), and this stays in range.

    Args:
        value: (...) the estimate.
        samples: (resamples, ...); no resamples, or a value at the end of the scale: no interval.
        scale: `logit` of a share, `log` of a ratio, `log of the rest` of a share that may be negative, as IPA.

    Returns:
        Lower and upper limit, each (...); NaN where undefined, as of `percentile_interval`.
    """
    to, back = SCALES[scale]
    point, drawn = np.asarray(value, dtype=np.float64), np.asarray(samples, dtype=np.float64)
    if not len(drawn):
        return np.full(point.shape, np.nan), np.full(point.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = to(point)
    known = ~np.isnan(percentile_interval(drawn)[0]) & np.isfinite(middle)
    spread = np.nanstd(np.where(known, to(drawn, LEAST_SHARE), 0.0), axis=0, ddof=1)
    lower, upper = np.sort([back(middle + sign * Z95 * spread) for sign in (-1, 1)], axis=0)
    return np.where(known, lower, np.nan), np.where(known, upper, np.nan)


def calibration_null(
    rows: ScoredRows, *, n_simulations: int = 200, seed: int = 0
) -> dict[str, Floats]:
    """Simulate outcomes under the predicted risks and compute ICI, E50, E90 and KS on each simulated data set.

    Per simulation and horizon: each row gets cause e by the horizon with its predicted probability, at a time drawn
    from the Aalen–Johansen jumps of that cause, and a censoring time drawn from G; what censoring leaves visible is
    evaluated just as the rows were, with G fitted again. An observed ICI above the 95th percentile of
    its null is miscalibration; below, it is what a perfect model of this sample size shows.

    Args:
        rows: The scored rows, without a block of weights.
        n_simulations: How many.
        seed: Of the random numbers.

    Returns:
        `ici`, `e50`, `e90`, `ks`, each (n_simulations, causes, horizons); NaN where the index itself is undefined.
    """
    drawn = np.repeat(np.arange(len(rows.cause)), rows.weights[0].astype(np.int64))
    values = np.full((4, n_simulations, *rows.risk.shape[1:]), np.nan)
    step = max(1, SIMULATED_ELEMENTS // max(1, len(drawn)))
    for h in np.flatnonzero(rows.covered[0]):
        causes = [e for e, at in rows.places() if at == h]
        if not causes:
            continue
        world = _World.of(rows, int(h))
        risk = rows.risk[drawn][:, :, h]
        designs = {
            e: spline_design(clipped_logit(risk[:, e]), spline_knots(rows.risk[:, e, h]))
            for e in causes
        }
        for start in range(0, n_simulations, step):
            rng = np.random.default_rng([seed, int(h), start])
            n_block = min(step, n_simulations - start)
            status, known = world.simulate(risk, n_block, rng)
            ones = np.ones_like(known)
            for e, design in designs.items():
                outcome = (status == e + 1).astype(np.float64)
                fitted = expit(fit_logistic(design, outcome, known) @ design.T)
                block = slice(start, start + n_block)
                values[:3, block, e, h] = distance_indices(np.abs(fitted - risk[:, e]), ones)
                values[3, block, e, h] = largest_gap(known * outcome, ones, risk[:, e])
    return dict(zip(("ici", "e50", "e90", "ks"), values, strict=True))


@dataclass(frozen=True)
class _World:
    """Event and censoring times of the rows, as draws from their own estimates, up to one horizon."""

    grid_days: Floats  # (m,) all times at which anything may happen
    horizon_days: float  # the horizon
    event_cdf: Floats  # (causes, m) distribution of the event time, given an event of that cause by the horizon
    censoring_cdf: Floats  # (m,) P(C ≤ grid)

    @classmethod
    def of(cls, rows: ScoredRows, h: int) -> _World:
        horizon = float(rows.horizons_days[h])
        grid = np.union1d(rows.counts.times_days, rows.censoring.times_days)
        incidence = rows.counts.incidence.at(np.minimum(grid, horizon))[0]
        # A cause that was never seen takes the times of all causes; without any event, all at the start.
        pooled = np.broadcast_to(incidence.sum(axis=0), incidence.shape)
        incidence = np.where(incidence[:, -1:] > 0, incidence, pooled)
        censoring = np.atleast_2d(rows.censoring.at(grid))[0]
        return cls(
            grid,
            horizon,
            divide(incidence, incidence[:, -1:], undefined=1.0),
            1.0 - censoring,
        )

    def simulate(self, risk: Floats, n_block: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Draw outcomes for `risk` (n, causes).

        Returns:
            status: (n_block, n) int, the cause seen by the horizon, 0 for none.
            known: (n_block, n) inverse probability of being known at the horizon, 0 where censored before.
        """
        n, n_causes = risk.shape
        upto = np.cumsum(risk, axis=1)
        upto /= np.maximum(upto[:, -1:], 1.0)
        drawn = rng.random((n_block, n))
        cause = (drawn[:, :, None] >= upto).sum(axis=2, dtype=np.int8) + np.int8(1)
        after = len(self.grid_days)  # index of "later than anything here"
        event_at = np.full((n_block, n), after)
        moment = rng.random((n_block, n))
        for e in range(n_causes):
            of_cause = cause == e + 1
            event_at[of_cause] = np.searchsorted(self.event_cdf[e], moment[of_cause], side="right")
        censored_at = np.searchsorted(self.censoring_cdf, rng.random((n_block, n)), side="right")
        seen = event_at <= censored_at  # at one instant the event comes first
        seen_at = np.minimum(event_at, censored_at)
        is_event = seen & (event_at < after)
        del drawn, moment, event_at, censored_at  # large
        # G just before each grid time and after all, (n_block, m + 1)
        width = len(self.grid_days) + 1
        cell = seen_at + width * np.arange(n_block)[:, None]
        leaving = np.bincount(cell.ravel(), minlength=n_block * width).reshape(n_block, width)
        events = np.bincount(cell[is_event], minlength=n_block * width).reshape(n_block, width)
        at_risk = np.cumsum(leaving[:, ::-1].astype(np.float64), axis=1)[:, ::-1]
        counts = RiskSets(self.grid_days, at_risk[:, :-1], events[:, None, :-1].astype(np.float64))
        g_before = counts.censoring.values
        horizon_at = int(np.searchsorted(self.grid_days, self.horizon_days, side="left"))
        days = np.r_[self.grid_days, np.inf][seen_at]
        is_free = ~is_event & (days >= self.horizon_days)
        inverse = np.where(
            is_event, divide(1.0, np.take_along_axis(g_before, seen_at, axis=1), undefined=0.0), 0.0
        )
        inverse += is_free * divide(1.0, g_before[:, horizon_at], undefined=np.nan)[:, None]
        return np.where(is_event, cause, 0), inverse
