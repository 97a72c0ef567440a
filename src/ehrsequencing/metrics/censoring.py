"""Kaplan–Meier, Aalen–Johansen and the censoring distribution, for one set of weights or a block of them.

One tie rule holds everywhere: **at one instant events come first, censoring after**. A subject censored
on day 30 is known to be event-free through day 30, is at risk for events of day 30, and an event of day 30 leaves the
risk set of the censoring process before that day's censorings are counted. With this rule inverse-probability weights
and the Aalen–Johansen estimator are two spellings of the same number (Satten & Datta 2001), ties included.

Weights are multiplicities (how often the bootstrap drew a row), shape (n,) or (resamples, n); a leading resample axis
of the weights becomes the leading axis of every result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Bools, Floats, Ints, detached
from ehrsequencing.core.errors import EhrseqError


def divide(numerator: ArrayLike, denominator: ArrayLike, *, undefined: float = np.nan) -> Floats:
    """Divide, with `undefined` (not a warning, not an infinity) where the denominator is 0."""
    top, bottom = np.broadcast_arrays(
        np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    )
    return np.divide(top, bottom, out=np.full(top.shape, undefined), where=bottom != 0)


@dataclass(frozen=True)
class StepFunction:
    """A right-continuous step function of time."""

    times_days: Floats  # (m,) where it jumps, increasing
    values: Floats  # (..., m + 1) its value before the first jump, then from each jump on; constant after the last

    def at(self, days: ArrayLike) -> Floats:
        """Value at `days`, jumps at `days` included: f(t), shape (..., *days.shape)."""
        return np.take(self.values, np.searchsorted(self.times_days, days, side="right"), axis=-1)

    def before(self, days: ArrayLike) -> Floats:
        """Value just before `days`, jumps at `days` not included: f(t−), shape (..., *days.shape)."""
        return np.take(self.values, np.searchsorted(self.times_days, days, side="left"), axis=-1)


DAY_US = 86_400e6


def moment_days(since_days: ArrayLike, later_days: ArrayLike) -> Floats:
    """Days on a subject's clock at which a moment lies: the sum in whole microseconds, in days again.

    Two rounded floats may add up to different sums for one moment, which a step function would then tell apart.

    >>> 0.1 + 0.2 == 0.3, bool(moment_days(0.1, 0.2) == moment_days(0.0, 0.3))
    (False, True)
    """
    start, step = (np.rint(np.asarray(x, np.float64) * DAY_US) for x in (since_days, later_days))
    return (start + step) / DAY_US


@dataclass(frozen=True)
class SubjectClock:
    """Censoring on each subject's own clock, which runs from the index: G_i(t) = G₀(p_i + t) / G₀(p_i).

    A row at a late prediction time is there only because its subject was still followed. A Kaplan–Meier curve over rows
    of many prediction times does not know that; G₀, from one row a subject, does.
    """

    dropout: StepFunction  # G₀ by time since the index
    support_days: float  # the last time since the index at which anybody is under observation
    since_days: (
        Floats  # (n,) p, days from the subject's index to the prediction time, of `moment_days`
    )

    is_by_history = False  # whether G depends on what is known of each subject

    @classmethod
    def fit(
        cls, since_days: Floats, duration_days: Floats, cause: Ints, subject: Ints
    ) -> SubjectClock:
        """G₀ of rows, by the last row of each subject.

        Args:
            since_days: (n,) p.
            duration_days: (n,) from the prediction time to the event or the end of follow-up.
            cause: (n,) 0 where the subject drops out; an end by design is none (`dropout_cause`).
            subject: (n,) whose row it is.
        """
        end = moment_days(since_days, duration_days)
        order = np.lexsort((end, subject))
        last = order[np.r_[subject[order][1:] != subject[order][:-1], True]]
        dropout = censoring_survival(end[last], cause[last])
        return cls(dropout, float(end.max(initial=0.0)), moment_days(since_days, 0.0))

    def take(self, rows: Bools | Ints) -> SubjectClock:
        """Some of the rows."""
        return replace(self, since_days=self.since_days[rows])

    def of_rows(self, since_days: Floats) -> SubjectClock:
        """The same curve for other rows, p days after their index."""
        return replace(self, since_days=moment_days(since_days, 0.0))

    def covers(self, horizon_days: float) -> Bools:
        """(n,) whether p + t lies within the support of G₀."""
        late = moment_days(self.since_days, horizon_days)
        return (late <= self.support_days) & (self.dropout.before(late) > 0)

    def before(self, days: ArrayLike) -> Floats:
        """G_i(t−) of every row at common times, (n, *days.shape)."""
        shape = (-1, *[1] * np.ndim(days))
        until = moment_days(self.since_days.reshape(shape), days)
        start = self.dropout.at(self.since_days)
        return divide(self.dropout.before(until).T, start, undefined=0.0).T

    def before_own(self, days: ArrayLike) -> Floats:
        """G_i(t_i−) of every row at its own time, `days` (n,)."""
        until = moment_days(self.since_days, days)
        return divide(self.dropout.before(until), self.dropout.at(self.since_days), undefined=0.0)

    def smallest(self, days: ArrayLike, *, duration_days: ArrayLike, cause: ArrayLike) -> Floats:
        """The smallest G_i that divides anything at each horizon, (h,): look at it. 1 where nothing is divided.

        That is G_i(t−) of rows event-free at t and G_i(T_i−) of rows with an event by t; rows censored before count
        for nothing there, however small their G.

        Args:
            days: (h,) horizons.
            duration_days: (n,) to the event or censoring.
            cause: (n,) int, 0 = censored.
        """
        duration, is_event = np.asarray(duration_days, dtype=np.float64), np.asarray(cause) > 0
        own = self.before_own(duration)
        out = []
        for day in np.atleast_1d(np.asarray(days, dtype=np.float64)):
            is_free = (duration > day) | ((duration == day) & ~is_event)
            used = np.r_[self.before(day)[is_free], own[is_event & (duration <= day)]]
            out.append(used.min(initial=1.0))
        return np.array(out)


def dropout_cause(duration_days: ArrayLike, cause: ArrayLike, potential_days: ArrayLike) -> Ints:
    """(n,) the causes with 1 where follow-up ended by design: what is left at 0 dropped out before.

    Args:
        duration_days: (n,) to the event or the end of follow-up.
        cause: (n,) 0 = censored.
        potential_days: (n,) when follow-up would have ended by design; infinite where nothing ends it so.
    """
    is_designed = np.asarray(duration_days) >= np.asarray(potential_days)
    codes = np.asarray(cause).astype(np.int64)
    return np.where((codes == 0) & is_designed, 1, codes)


@dataclass(frozen=True)
class RiskSets:
    """Who was at risk, who had which event and who was censored, at each distinct observed time."""

    times_days: Floats  # (m,) distinct durations, increasing
    at_risk: Floats  # (..., m) weight of the rows with duration ≥ time
    events: Floats  # (..., causes, m) weight of the rows with an event of each cause at that time

    @classmethod
    def count(
        cls, duration_days: ArrayLike, cause: ArrayLike, n_causes: int, weights: ArrayLike | None
    ) -> RiskSets:
        """Count the risk sets of `duration_days` (n,) and `cause` (n,), O(n log n) and O(resamples · n)."""
        duration, codes, weight = checked_outcome(duration_days, cause, n_causes, weights)
        order = np.argsort(duration, kind="stable")
        duration, codes, weight = duration[order], codes[order], weight[..., order]
        first = np.flatnonzero(np.r_[True, duration[1:] != duration[:-1]])
        leaving = np.add.reduceat(weight, first, axis=-1)
        at_risk = np.cumsum(leaving[..., ::-1], axis=-1)[..., ::-1]
        of_cause = [
            np.add.reduceat(weight * (codes == e), first, axis=-1) for e in range(1, n_causes + 1)
        ]
        return cls(duration[first], at_risk, np.stack(of_cause, axis=-2))

    @cached_property
    def survival(self) -> StepFunction:
        """Kaplan–Meier estimate of no event of any cause, values (..., m + 1)."""
        return self._product(self.events.sum(axis=-2), self.at_risk)

    @cached_property
    def incidence(self) -> StepFunction:
        """Aalen–Johansen cumulative incidence of each cause, values (..., causes, m + 1)."""
        hazard = divide(self.events, self.at_risk[..., None, :], undefined=0.0)
        jumps = np.zeros((*hazard.shape[:-1], hazard.shape[-1] + 1))
        np.cumsum(hazard * self.survival.values[..., None, :-1], axis=-1, out=jumps[..., 1:])
        return StepFunction(self.times_days, jumps)

    @cached_property
    def censoring(self) -> StepFunction:
        """Kaplan–Meier estimate G of no censoring, values (..., m + 1); events of the same instant left before."""
        leaving = self.at_risk - np.concatenate(
            [self.at_risk[..., 1:], np.zeros_like(self.at_risk[..., :1])], axis=-1
        )
        n_events = self.events.sum(axis=-2)
        return self._product(leaving - n_events, self.at_risk - n_events)

    def reaches(self, days: ArrayLike) -> Bools:
        """Whether incidence is estimable at `days`: someone is observed until then, or nobody is left event-free.

        Returns:
            (..., *days.shape) bool. False exactly where the last ones observed before `days` were censored.
        """
        padded = np.concatenate([self.at_risk, np.zeros_like(self.at_risk[..., :1])], axis=-1)
        still_observed = (
            np.take(padded, np.searchsorted(self.times_days, days, side="left"), axis=-1) > 0
        )
        observed_at_all = (
            self.at_risk[..., :1].reshape(*self.at_risk.shape[:-1], *([1] * np.ndim(days))) > 0
        )
        return still_observed | (observed_at_all & (self.survival.at(days) == 0))

    def _product(self, leaving: Floats, at_risk: Floats) -> StepFunction:
        survival = np.ones((*leaving.shape[:-1], leaving.shape[-1] + 1))
        np.cumprod(1.0 - divide(leaving, at_risk, undefined=0.0), axis=-1, out=survival[..., 1:])
        return StepFunction(self.times_days, survival)


def checked_outcome(
    duration_days: ArrayLike, cause: ArrayLike, n_causes: int, weights: ArrayLike | None
) -> tuple[Floats, Ints, Floats]:
    """Check durations, causes and weights, and return them as float64, int64 and float64 (ones without weights).

    Raises:
        EhrseqError: No rows, shapes that differ, durations not finite or negative, causes outside 0..`n_causes`.
    """
    given, codes = detached(duration_days), np.asarray(cause)
    is_elapsed = given.dtype.kind == "m"  # a difference of dates
    duration = (given / np.timedelta64(1, "D") if is_elapsed else given).astype(np.float64)
    weight = np.ones(duration.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if duration.ndim != 1 or duration.size == 0:
        raise EhrseqError(
            "no rows to evaluate",
            where="duration_days",
            fix="give one duration per row, shape (n,)",
        )
    if codes.shape != duration.shape or not np.issubdtype(codes.dtype, np.integer):
        raise EhrseqError(
            "not one integer per duration", where="cause", fix="0 is censored, 1.. the causes"
        )
    if not np.isfinite(duration).all() or duration.min() < 0:
        raise EhrseqError(
            "negative or not finite", where="duration_days", fix="drop rows without follow-up"
        )
    if codes.min() < 0 or codes.max() > n_causes:
        raise EhrseqError(
            f"outside 0..{n_causes}",
            where="cause",
            fix="0 is censored, 1.. the causes in task order",
        )
    return duration, codes.astype(np.int64), weight


def aalen_johansen(
    duration_days: ArrayLike, cause: ArrayLike, *, n_causes: int, weights: ArrayLike | None = None
) -> StepFunction:
    """Aalen–Johansen cumulative incidence, F_e(t) = Σ_{s ≤ t} S(s−) d_e(s) / n(s) (Aalen & Johansen 1978).

    Args:
        duration_days: (n,) observed times.
        cause: (n,) int, 0 = censored, 1..`n_causes`.
        n_causes: How many causes the task has, seen in these rows or not.
        weights: (n,) or (resamples, n) multiplicities.

    Returns:
        The step function, values (..., n_causes, m + 1); `at(horizons)` is (..., n_causes, horizons).

    Example:
        >>> aalen_johansen([1.0, 2.0, 3.0, 4.0], [1, 2, 0, 1], n_causes=2).at(2.0).tolist()
        [0.25, 0.25]
    """
    return RiskSets.count(duration_days, cause, n_causes, weights).incidence


def censoring_survival(
    duration_days: ArrayLike, cause: ArrayLike, *, weights: ArrayLike | None = None
) -> StepFunction:
    """Kaplan–Meier distribution G(t) = P(C > t) of the censoring time; `before` gives G(t−) = P(C ≥ t).

    Metrics fit it on the rows they evaluate unless given another one, say from the training subjects at risk. Its value
    just before a horizon, `before(horizons)`, is the smallest G that divides anything there: look at it.

    Args:
        duration_days: (n,) observed times.
        cause: (n,) int, 0 = censored, anything above = an event.
        weights: (n,) or (resamples, n) multiplicities.

    Returns:
        The step function, values (..., m + 1).
    """
    return RiskSets.count(
        duration_days, (np.asarray(cause) > 0).astype(np.int64), 1, weights
    ).censoring


def median_follow_up_days(
    duration_days: ArrayLike, cause: ArrayLike, *, weights: ArrayLike | None = None
) -> Floats:
    """Median follow-up by the reverse Kaplan–Meier method (Schemper & Smith 1996): the first t with G(t) ≤ ½.

    Returns:
        () or (resamples,), in days; NaN where fewer than half would have been censored.
    """
    censoring = censoring_survival(duration_days, cause, weights=weights)
    reached = censoring.values <= 0.5
    first = np.maximum(reached.argmax(axis=-1) - 1, 0)
    return np.where(reached.any(axis=-1), censoring.times_days[first], np.nan)


def conditional_risk(
    cumulative: Callable[[Floats], Floats], horizons_days: ArrayLike, *, start_days: float = 0.0
) -> Floats:
    """Incidence by each horizon given no event until `start_days`, of any model of the incidence from 0 on.

        F_e(t | s) = (F_e(t) − F_e(s)) / S(s),     S(s) = 1 − Σ_e F_e(s),     0 for t ≤ s

    Args:
        cumulative: Days (h,) → F (n, causes, h).
        horizons_days: (horizons,).
        start_days: s.

    Returns:
        (n, causes, horizons); NaN where S(s) is 0.

    Example:
        >>> conditional_risk(lambda days: 1 - np.exp(-days)[None, None], [1.0, 3.0], start_days=1.0).round(4).tolist()
        [[[0.0, 0.8647]]]
    """
    horizons = np.asarray(horizons_days, dtype=np.float64)
    if start_days <= 0:
        return cumulative(horizons)
    risk = cumulative(np.r_[start_days, horizons])
    at_start, later = risk[..., :1], risk[..., 1:]
    survival = 1.0 - at_start.sum(axis=-2, keepdims=True)
    return np.where(horizons > start_days, divide(np.maximum(later - at_start, 0.0), survival), 0.0)


def aalen_johansen_se(
    duration_days: ArrayLike,
    cause: ArrayLike,
    horizons_days: ArrayLike,
    *,
    n_causes: int,
    weights: ArrayLike | None = None,
) -> Floats:
    """Delta-method standard error of the Aalen–Johansen estimate; with one cause it is Greenwood's.

        Var F_e(t) = Σ_{s ≤ t} (F_e(t) − F_e(s))² d / (n (n − d)) + S(s−)² (n − d_e) d_e / n³
                     − 2 (F_e(t) − F_e(s)) S(s−) d_e / n²

    with n at risk, d events of any cause and d_e of cause e at s (Dinse & Larson 1986, eq. 6; Marubini & Valsecchi).

    Returns:
        (..., n_causes, horizons).
    """
    counts = RiskSets.count(duration_days, cause, n_causes, weights)
    at_risk, d_e = counts.at_risk[..., None, :], counts.events
    d, survival = d_e.sum(axis=-2, keepdims=True), counts.survival.values[..., None, :-1]
    variances = []
    for horizon in np.atleast_1d(np.asarray(horizons_days, dtype=np.float64)):
        rest = counts.incidence.at(horizon)[..., None] - counts.incidence.values[..., 1:]
        terms = rest**2 * divide(d, at_risk * (at_risk - d), undefined=0.0)
        terms += survival**2 * divide((at_risk - d_e) * d_e, at_risk**3, undefined=0.0)
        terms -= 2.0 * rest * survival * divide(d_e, at_risk**2, undefined=0.0)
        variances.append(np.where(counts.times_days <= horizon, terms, 0.0).sum(axis=-1))
    return np.sqrt(np.maximum(np.stack(variances, axis=-1), 0.0))
