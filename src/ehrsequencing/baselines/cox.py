"""Ridge Cox regression, cause by cause, and the cumulative incidence that several of them give together.

    h(t | x) = h_0(t) · exp(β·z),     z = (x − mean) / sd over the rows that fitted it

β maximises the penalised partial likelihood (Cox 1972; ties by Breslow 1974) of rows at risk during (entry, duration]:

    ℓ(β) = Σ_i w_i δ_i (β·z_i − log Σ_{j: entry_j < T_i ≤ T_j} w_j exp(β·z_j)) − ½ ridge |β|²

Breslow's ties, because with them a row of weight two is two rows, as the bootstrap needs it, and expected events equal
observed ones at every time. All sums over risk sets are differences of cumulative sums over rows sorted in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.censoring import StepFunction, divide

#: Ridge per event: a standardised covariate carries information of the order of one per event.
RIDGES_PER_EVENT = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
UNWATCHED_RIDGE_PER_EVENT = 0.3  # of a cause that no tuning subject had: nothing says how much
_MOST_ITERATIONS, _TOLERANCE = 60, 1e-13
_FLAT = 1e-8  # information per event of a standardised covariate whose coefficient is on its way to infinity


@dataclass(frozen=True)
class CoxRows:
    """What a Cox regression is fitted to. Make it with `of`."""

    x: Floats  # (n, F) covariates, finite
    entry_days: Floats  # (n,) at risk after this time
    duration_days: Floats  # (n,) at risk up to this time, included
    event: Bools  # (n,) bool, False = left without the event
    weights: Floats  # (n,) multiplicities

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        duration_days: ArrayLike,
        event: ArrayLike,
        *,
        entry_days: ArrayLike = 0.0,
        weights: ArrayLike = 1.0,
    ) -> CoxRows:
        """Check the inputs and bring them into one form.

        Raises:
            EhrseqError: Shapes that do not fit, covariates not finite, negative weights, rows that end before they
                begin.
        """
        covariates, duration = (
            np.asarray(x, dtype=np.float64),
            np.asarray(duration_days, dtype=np.float64),
        )
        if (
            covariates.ndim != 2
            or duration.shape != covariates.shape[:1]
            or np.shape(event) != duration.shape
        ):
            raise EhrseqError(
                "not (n, F), (n,) and (n,)", where="x, duration_days, event", fix="align them"
            )
        entry, weight = (
            np.broadcast_to(np.asarray(v, np.float64), duration.shape)
            for v in (entry_days, weights)
        )
        if (
            not np.isfinite(covariates).all()
            or not np.isfinite(duration).all()
            or not np.isfinite(entry).all()
        ):
            raise EhrseqError(
                "missing or not finite", where="x, duration_days", fix="impute what is not known"
            )
        if not np.isfinite(weight).all() or (weight < 0).any():
            raise EhrseqError(
                "negative or not finite",
                where="weights",
                fix="weights count how often a row was drawn",
            )
        if (duration < entry).any():
            raise EhrseqError(
                "rows end before they begin", where="entry_days", fix="drop rows without follow-up"
            )
        return cls(covariates, entry, duration, np.asarray(event, dtype=bool), weight)

    @property
    def n_events(self) -> float:
        """Weight of the rows with an event."""
        return float(self.weights[self.event].sum())


class CoxRiskSets:
    """Rows that were at risk at some event time, sorted by when they leave; who was at risk when.

    Row j is at risk at the distinct event times number [start_j, stop_j).
    """

    def __init__(self, rows: CoxRows) -> None:
        has_event = rows.event & (rows.weights > 0) & (rows.entry_days < rows.duration_days)
        self.times_days: Floats = np.unique(rows.duration_days[has_event])
        stop = np.searchsorted(self.times_days, rows.duration_days, side="right")
        start = np.searchsorted(self.times_days, rows.entry_days, side="right")
        here = np.flatnonzero((stop > start) & (rows.weights > 0))
        self.row: Ints = here[np.argsort(stop[here], kind="stable")]
        self.start, self.stop = start[self.row], stop[self.row]
        self.weight, self.event = rows.weights[self.row], has_event[self.row]
        # Every time has a row that leaves at it (the one with the event), so that no group is empty.
        self.leaving = np.searchsorted(
            self.stop, np.arange(1, len(self.times_days) + 1), side="left"
        )
        late = np.flatnonzero(self.start > 0)
        self.entering = late[np.argsort(self.start[late], kind="stable")]
        self.entered, self.entering_at = np.unique(self.start[self.entering], return_index=True)
        events = np.bincount(
            self.stop[self.event] - 1,
            weights=self.weight[self.event],
            minlength=len(self.times_days),
        )
        self.events = events.astype(np.float64)

    def sums(self, values: Floats) -> Floats:
        """Sum of `values` (rows, ...) over the risk set of each time, (m, ...)."""
        if not len(self.times_days):
            return np.zeros((0, *values.shape[1:]))
        total: Floats = np.add.reduceat(values, self.leaving, axis=0)[::-1].cumsum(axis=0)[::-1]
        if len(self.entering):
            waiting = np.zeros((len(self.times_days) + 1, *values.shape[1:]))
            waiting[self.entered] = np.add.reduceat(values[self.entering], self.entering_at, axis=0)
            total -= waiting[::-1].cumsum(axis=0)[::-1][1:]  # those who enter at or after the time
        return total

    def over_time(self, per_time: Floats) -> Floats:
        """Sum of `per_time` (m,) over the times at which each row was at risk, (rows,)."""
        cumulative = np.r_[0.0, np.cumsum(per_time)]
        return np.asarray(cumulative[self.stop] - cumulative[self.start], dtype=np.float64)


def partial_log_likelihood(
    z: Floats, beta: Floats, sets: CoxRiskSets
) -> tuple[float, Floats, Floats]:
    """ℓ(β) without the ridge, its gradient (F,) and its negative Hessian (F, F); `z` (rows, F) in the order of `sets`.

    ∂ℓ/∂β = Σ_j w_j z_j (δ_j − θ_j A_j),        A_j = Σ_{t in (entry_j, T_j]} d(t) / S0(t),   θ = exp(β·z)
    −∂²ℓ/∂β² = Σ_j w_j θ_j A_j z_j z_jᵀ − Σ_t d(t) m(t) m(t)ᵀ,   m = S1 / S0 the mean of z at risk
    """
    score = z @ beta
    shift = score.max(initial=-np.inf) if len(score) else 0.0  # cancels; keeps exp within bounds
    theta = sets.weight * np.exp(score - shift)
    at_risk = sets.sums(theta)
    event_weight = sets.weight * sets.event
    value = float(event_weight @ (score - shift) - sets.events @ np.log(at_risk))
    expected = theta * sets.over_time(sets.events / at_risk)
    gradient = (event_weight - expected) @ z
    means = sets.sums(theta[:, None] * z) / at_risk[:, None]
    information = (z * expected[:, None]).T @ z - (means * sets.events[:, None]).T @ means
    return value, gradient, information


@dataclass(frozen=True)
class CoxFit:
    """A fitted Cox regression."""

    mean: Floats  # (F,) of the covariates over the rows that fitted it
    scale: Floats  # (F,) their standard deviations; 1 where a covariate did not vary
    beta: Floats  # (F,) log hazard ratio of one standard deviation
    baseline: StepFunction  # Breslow's cumulative hazard H_0 of a row at the mean, a right-continuous step function
    ridge: float  # the strength it was fitted with

    def log_hazard(self, x: ArrayLike) -> Floats:
        """β·z of covariates (n, F), relative to a row at the mean."""
        return ((np.asarray(x, dtype=np.float64) - self.mean) / self.scale) @ self.beta

    def cumulative_hazard(self, x: ArrayLike, days: ArrayLike) -> Floats:
        """H(t | x) = H_0(t) exp(β·z), (n, *days.shape)."""
        factor = np.exp(self.log_hazard(x))
        return np.multiply.outer(factor, self.baseline.at(days))


class CoxRegression:
    """Fits the same rows with one ridge after another.

    Args:
        rows: What to fit.

    Raises:
        EhrseqError: No row has an event.
    """

    def __init__(self, rows: CoxRows) -> None:
        self.rows, self.sets = rows, CoxRiskSets(rows)
        if not len(self.sets.times_days):
            raise EhrseqError(
                "no row has an event", where="event", fix="a hazard needs events to be fitted"
            )
        used = rows.x[self.sets.row]
        self.mean = np.average(used, axis=0, weights=self.sets.weight)
        scale = np.sqrt(np.average((used - self.mean) ** 2, axis=0, weights=self.sets.weight))
        self.scale = np.where(scale > 1e-12 * np.maximum(np.abs(self.mean), 1.0), scale, 1.0)
        self.z = (used - self.mean) / self.scale

    def fit(
        self, *, ridge: float, start: Floats | None = None, tolerance: float = _TOLERANCE
    ) -> CoxFit:
        """Newton's method with step halving from `start`, or from 0.

        Args:
            ridge: See `fit_cox`.
            start: (F,) where to begin.
            tolerance: Relative gain that another step must promise; one is still taken when it does not.

        Raises:
            EhrseqError: Without a ridge, where the likelihood has no single finite maximum.
        """
        beta = np.zeros(self.z.shape[1]) if start is None else start.copy()
        value, gradient, information = self._penalised(beta, ridge)
        for _ in range(_MOST_ITERATIONS):
            step = _solve(information, gradient)
            gain = float(gradient @ step)
            if ridge == 0 and (information.diagonal() < _FLAT * self.sets.events.sum()).any():
                break
            if gain <= tolerance * max(1.0, abs(value)):
                return self._finished(beta + step, ridge)
            size = 1.0
            while size > 1e-8:
                found = self._penalised(beta + size * step, ridge)
                if found[0] >= value:
                    break
                size /= 2
            else:  # nothing higher within rounding
                return self._finished(beta, ridge)
            beta = beta + size * step
            value, gradient, information = found
        raise EhrseqError(
            "the likelihood has no finite maximum",
            where="Cox regression",
            fix="use a ridge above 0",
        )

    def _penalised(self, beta: Floats, ridge: float) -> tuple[float, Floats, Floats]:
        value, gradient, information = partial_log_likelihood(self.z, beta, self.sets)
        return (
            value - 0.5 * ridge * float(beta @ beta),
            gradient - ridge * beta,
            information + ridge * np.eye(len(beta)),
        )

    def _finished(self, beta: Floats, ridge: float) -> CoxFit:
        theta = self.sets.weight * np.exp(self.z @ beta)
        hazard = np.r_[0.0, np.cumsum(self.sets.events / self.sets.sums(theta))]
        return CoxFit(
            self.mean, self.scale, beta, StepFunction(self.sets.times_days, hazard), ridge
        )


def _solve(information: Floats, gradient: Floats) -> Floats:
    try:
        factor = np.linalg.cholesky(information)
    except np.linalg.LinAlgError as error:
        fix = "leave out covariates that follow from others, or use a ridge above 0"
        raise EhrseqError(
            "the covariates are collinear", where="Cox regression", fix=fix
        ) from error
    return np.linalg.solve(factor.T, np.linalg.solve(factor, gradient))


def fit_cox(rows: CoxRows, *, ridge: float = 0.0) -> CoxFit:
    """Fit a Cox regression.

    Args:
        rows: Covariates and outcome of one cause; other causes are `event=False`.
        ridge: λ of the penalty ½ λ |β|² on the sum over events, β per standard deviation.

    Raises:
        EhrseqError: No event, or without a ridge no single maximum.

    Example:
        >>> rows = CoxRows.of([[1.0], [0.0], [1.0], [0.0]], [1.0, 2.0, 3.0, 4.0], [True, True, True, False])
        >>> fit = fit_cox(rows)
        >>> round(float(fit.beta[0] / fit.scale[0]), 4)  # log hazard ratio: log((1 + √17) / 2), by hand
        0.9406
    """
    return CoxRegression(rows).fit(ridge=ridge)


def choose_ridge(
    train: CoxRows, tuning: CoxRows, *, per_event: Sequence[float] = RIDGES_PER_EVENT
) -> CoxFit:
    """The ridge under which other subjects' partial likelihood is highest; from strong to weak, until it falls twice.

    Args:
        train: Rows to fit.
        tuning: Rows of other subjects. Without an event among them the ridge is `UNWATCHED_RIDGE_PER_EVENT`.
        per_event: Falling strengths, in multiples of the number of training events.
    """
    regression, sets = CoxRegression(train), CoxRiskSets(tuning)
    events = train.n_events
    if not len(sets.times_days):
        return regression.fit(ridge=UNWATCHED_RIDGE_PER_EVENT * events)
    z = (tuning.x[sets.row] - regression.mean) / regression.scale
    best: CoxFit | None = None
    best_value, falls, start = -np.inf, 0, None
    for strength in per_event:
        fit = regression.fit(ridge=strength * events, start=start, tolerance=1e-6)
        start = fit.beta
        value = partial_log_likelihood_value(z, fit.beta, sets)
        if best is None or value > best_value:
            best, best_value, falls = fit, value, 0
        else:
            falls += 1
            if falls == 2:
                break
    assert best is not None
    return regression.fit(ridge=best.ridge, start=best.beta)


def partial_log_likelihood_value(z: Floats, beta: Floats, sets: CoxRiskSets) -> float:
    """ℓ(β) alone."""
    score = z @ beta
    shift = float(score.max())
    at_risk = sets.sums(sets.weight * np.exp(score - shift))
    return float((sets.weight * sets.event) @ (score - shift) - sets.events @ np.log(at_risk))


def cox_incidence(
    fits: Sequence[CoxFit | None], x: ArrayLike, days: ArrayLike, *, most_times: int = 400
) -> Floats:
    """Cumulative incidence of every cause, from one Cox regression per cause.

        F_e(t | x) = Σ_{s ≤ t} S(s−) · (ΔH_e(s) / ΔH(s)) · (1 − exp(−ΔH(s))),    S(t) = exp(−Σ_e H_e(t | x))

    The form of Aalen and Johansen with survival as an exponential, so that S + Σ F_e = 1 and no hazard, however large,
    makes S negative. With more than `most_times` event times, neighbours share one step; H_e stays exact at `days`.

    Args:
        fits: One per cause; None = a hazard of 0.
        x: (n, F).
        days: (H,) in any order.
        most_times: Steps at most, besides `days`.

    Returns:
        (n, causes, H).
    """
    covariates, wanted = np.asarray(x, dtype=np.float64), np.asarray(days, dtype=np.float64)
    known = [fit for fit in fits if fit is not None]
    times = np.unique(np.concatenate([fit.baseline.times_days for fit in known] or [np.zeros(0)]))
    if len(times) > most_times:
        times = times[np.linspace(0, len(times) - 1, most_times).astype(np.int64)]
    grid = np.unique(np.r_[times, wanted])
    grid = grid[grid <= wanted.max(initial=0.0)]
    place = np.searchsorted(grid, wanted, side="right")
    out = np.zeros((len(covariates), len(fits), len(wanted)))
    if not known:
        return out
    jumps = [None if fit is None else np.diff(fit.baseline.at(grid), prepend=0.0) for fit in fits]
    factors = [None if fit is None else np.exp(fit.log_hazard(covariates)) for fit in fits]
    rows = max(1, 2_000_000 // max(len(grid), 1))
    for first in range(0, len(covariates), rows):
        part = slice(first, first + rows)
        steps = [
            None if jump is None or factor is None else np.multiply.outer(factor[part], jump)
            for jump, factor in zip(jumps, factors, strict=True)
        ]
        total = np.sum([step for step in steps if step is not None], axis=0)
        before = np.exp(-(np.cumsum(total, axis=1) - total))
        leaving = before * divide(-np.expm1(-total), total, undefined=1.0)
        for e, step in enumerate(steps):
            if step is not None:
                sums = np.concatenate(
                    [np.zeros((len(step), 1)), np.cumsum(leaving * step, axis=1)], axis=1
                )
                out[part, e] = sums[:, place]
    return out
