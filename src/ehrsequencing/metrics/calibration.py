"""Calibration per cause and horizon: intercept and slope, smooth curve with ICI, its null, groups, KS statistic.

All of it sets the outcome by the horizon, y_i = 1[T_i ≤ t, cause_i = e] with the censoring weight ω_i(t) of
`ScoredRows.known_weights`, against the predicted risk, so that one censoring model serves the Brier score, the AUC and
calibration alike (the groups, being Aalen–Johansen estimates, need no G).
Observed/expected is in `metrics`. Undefined (no event, no non-event, separated, not converged) is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.metrics.censoring import SubjectClock, divide
from ehrsequencing.metrics.outcomes import Metric, ScoredRows

#: Risks are cut off here before their logit is taken: a risk of exactly 0 or 1 would decide the slope alone.
SMALLEST_RISK = 1e-6
#: Restricted cubic spline knots of the smooth curve, as quantiles of the predicted risk (Harrell's three).
KNOT_QUANTILES = (0.1, 0.5, 0.9)
MOST_JUMPS = 1000  # of the observed incidence that are followed one by one


def calibration_intercept_slope(rows: ScoredRows) -> tuple[Floats, Floats]:
    """Logistic recalibration: how far the logit of the risk has to be shifted, and stretched.

    Two censoring-weighted logistic regressions per cause and horizon:

        intercept a:  logit P(y = 1) = a + logit(risk)            0 is right, > 0 means under-prediction
        slope b:      logit P(y = 1) = a' + b · logit(risk)       1 is right, < 1 means too extreme (over-fitted)

    Weighted logistic regression rather than pseudo-values: it takes bootstrap weights without a jackknife in each
    resample, and its likelihood has one maximum.

    Returns:
        Intercept and slope, each (causes, horizons) or (resamples, causes, horizons).
    """
    intercept = np.full((len(rows.weights), *rows.risk.shape[1:]), np.nan)
    slope = intercept.copy()
    for e, h in rows.places():
        x = clipped_logit(rows.risk[:, e, h])
        y, known = rows.has_event_by(h)[e].astype(np.float64), rows.known_weights[h]
        counts = known.any(axis=0)  # whoever was censored before the horizon counts in no resample
        x, y, known = x[counts], y[counts], known[:, counts]
        ones = np.ones_like(x)[:, None]
        intercept[:, e, h] = fit_resamples(ones, y, known, offset=x)[:, 0]
        if len(x) and np.ptp(x) > 0:  # one risk for everyone has no slope
            slope[:, e, h] = fit_resamples(np.column_stack([ones, x]), y, known)[:, 1]
    return rows.finish(rows.where_covered(intercept)), rows.finish(rows.where_covered(slope))


def smooth_calibration(rows: ScoredRows, *, points: int = 50) -> dict[str, Floats]:
    """Smooth calibration curve with ICI, E50 and E90 (Austin & Steyerberg 2019; Austin et al. 2020, 2022).

    A censoring-weighted logistic regression on a restricted cubic spline (three knots) of the logit of the predicted
    risk. The knots are quantiles of all rows, the same in every resample. ICI is never 0 in a finite sample, however
    good the model: compare it with `calibration_null`.

    Args:
        rows: The scored rows.
        points: Where the curve is evaluated.

    Returns:
        `predicted` risks (causes, horizons, points), from the 1st to the 99th percentile of the rows; the smoothed
        `observed` risk there; and each (causes, horizons), the integrated calibration index `ici`, which is the mean
        |predicted − smoothed observed| over the rows, its median `e50` and its 90th percentile `e90`. All but the
        first have a leading resample axis for a block of weights.
    """
    shape = (len(rows.weights), *rows.risk.shape[1:])
    observed, indices = np.full((*shape, points), np.nan), np.full((3, *shape), np.nan)
    predicted = np.full((*shape[1:], points), np.nan)
    for e, h in rows.places():
        risk = rows.risk[:, e, h]
        predicted[e, h] = np.linspace(np.quantile(risk, 0.01), np.quantile(risk, 0.99), points)
        knots = spline_knots(risk)
        design = spline_design(clipped_logit(risk), knots)
        known = rows.known_weights[h]
        counts = known.any(axis=0)
        outcome = rows.has_event_by(h)[e].astype(np.float64)
        beta = fit_resamples(design[counts], outcome[counts], known[:, counts])
        observed[:, e, h] = expit(beta @ spline_design(clipped_logit(predicted[e, h]), knots).T)
        distance = np.abs(expit(beta @ design.T) - risk)
        indices[:, :, e, h] = distance_indices(distance, rows.weights)
    ici, e50, e90 = (rows.finish(rows.where_covered(index)) for index in indices)
    curve = rows.finish(rows.where_covered(observed))
    return {
        "predicted": predicted,
        "observed": curve,
        "ici": ici,
        "e50": e50,
        "e90": e90,
    }


def ks_calibration(rows: ScoredRows) -> Floats:
    """Kolmogorov–Smirnov calibration statistic (Gupta et al. 2021), bin-free, with censoring weights.

        KS = max over c of | (1 / n) Σ_{i: risk_i ≤ c} (ω_i y_i − risk_i) |

    the largest gap between the events observed and the events expected among all rows up to some predicted risk. At the
    largest c it is |observed − expected|.

    Returns:
        (causes, horizons) or (resamples, causes, horizons).
    """
    values = np.empty((len(rows.weights), *rows.risk.shape[1:]))
    for e, h in np.ndindex(*rows.risk.shape[1:]):
        events = rows.known_weights[h] * rows.has_event_by(h)[e]
        values[:, e, h] = largest_gap(events, rows.weights, rows.risk[:, e, h])
    return rows.finish(rows.where_covered(values))


def gap_days(rows: ScoredRows) -> Floats:
    """Days between which the gap of `incidence_gap` is linear: 0, the horizons, and when the observed incidence jumps.

    Above `MOST_JUMPS` only some of the jumps. With a clock of each row the observed incidence is known at the horizons.
    """
    known: Floats = np.r_[0.0, rows.horizons_days]
    if isinstance(rows.fixed_censoring, SubjectClock):
        return known
    jumps = rows.counts.times_days[rows.counts.times_days < known[-1]]
    return np.union1d(known, jumps[:: 1 + len(jumps) // MOST_JUMPS])


def incidence_gap(rows: ScoredRows) -> Floats:
    """Mean predicted less observed incidence, at the beginning and at the end of each piece between `gap_days`.

    The predicted incidence is linear between two horizons, the observed one constant until it jumps.

    Returns:
        (causes, pieces, 2) or (resamples, causes, pieces, 2); NaN where follow-up does not reach the last horizon.
    """
    days, known = gap_days(rows), np.r_[0.0, rows.horizons_days]
    total = rows.weights @ rows.risk.reshape(len(rows.risk), -1)
    mean = divide(total, rows.total_weight[:, None]).reshape(len(total), *rows.risk.shape[1:])
    k = np.clip(np.searchsorted(known, days, side="right") - 1, 0, len(known) - 2)
    share = (days - known[k]) / np.diff(known)[k]
    mean = np.concatenate([np.zeros_like(mean[..., :1]), mean], axis=-1)
    predicted = mean[..., k] * (1 - share) + mean[..., k + 1] * share
    if isinstance(rows.fixed_censoring, SubjectClock):
        seen = rows.observed_risk
        before, after = (
            np.concatenate([np.zeros_like(seen[..., :1]), seen[..., :-1]], axis=-1),
            seen,
        )
    else:
        before = after = rows.counts.incidence.at(days[:-1])
    gap = np.stack([predicted[..., :-1] - before, predicted[..., 1:] - after], axis=-1)
    return rows.finish(np.where(rows.covered[:, -1, None, None, None], gap, np.nan))


def mean_distance(gap: Floats, days: Floats) -> Floats:
    """A gap (..., pieces, 2), linear in each piece between days, as (1 / t) ∫₀ᵗ |gap(u)| du, (...)."""
    start, end = gap[..., 0], gap[..., 1]
    size = np.abs(start) + np.abs(end)
    crossed = divide(start**2 + end**2, 2 * size, undefined=0.0)  # two triangles
    mean = np.where(start * end < 0, crossed, size / 2)
    return np.asarray((mean * np.diff(days)).sum(axis=-1) / days[-1], dtype=np.float64)


def aalen_johansen_error(rows: ScoredRows) -> Floats:
    """Aalen–Johansen calibration error per cause (Alberge et al. 2026): proper with competing causes.

        (1 / t) ∫₀ᵗ | (1 / n) Σ_i F_e(u | x_i) − F̂_e(u) | du       F̂: the Aalen–Johansen incidence of the rows

    exact for risks that are linear between `rows.horizons_days`, which end at t: the mean distance between the two
    curves. (The paper squares the distance.)

    Returns:
        (causes,) or (resamples, causes); NaN where follow-up does not reach t.
    """
    return mean_distance(incidence_gap(rows), gap_days(rows))


def quantile_groups(risk: Floats, groups: int) -> Ints:
    """(n,) number of each row's quantile group of the risk; equal risks share a group.

    >>> quantile_groups(np.array([0.1, 0.2, 0.2, 0.9]), 2).tolist()
    [0, 0, 0, 1]
    """
    edges = np.unique(np.quantile(risk, np.arange(1, groups) / groups, method="inverted_cdf"))
    return np.searchsorted(edges, risk, side="left").astype(np.int64)


def _smooth_index(name: str) -> Callable[[ScoredRows], Floats]:
    """ICI, E50 or E90 of the smooth curve, which is fitted once for all three."""
    return lambda rows: rows.once(smooth_calibration)[name]


#: Distances are printed in percent. They have no interval: a distance is positive even for right risks, and every
#: resample adds its own noise to it.
_DISTANCE: dict[str, Any] = {
    "part": "calibration",
    "digits": 1,
    "scale": 100.0,
    "interval": False,
}
RECORDS = (
    Metric(
        key="intercept",
        name="intercept",
        meaning="shift of the log odds that would put the risks right; 0 is right",
        of=lambda rows: rows.once(calibration_intercept_slope)[0],
        target=0.0,
        digits=2,
        part="calibration",
        taken="causes",
    ),
    Metric(
        key="slope",
        name="slope",
        meaning="calibration slope; 1 is right, below 1 the risks are too extreme",
        of=lambda rows: rows.once(calibration_intercept_slope)[1],
        target=1.0,
        digits=2,
        part="calibration",
        taken="causes",
    ),
    Metric(
        key="ici",
        name="ICI",
        meaning="mean distance between predicted and observed risk; lower is better",
        of=_smooth_index("ici"),
        better=-1,
        taken="strongest",
        **_DISTANCE,
    ),
    Metric(
        key="ici_null",
        name="chance",
        meaning="what the ICI of right risks stays under 95 times in 100",
        taken="elsewhere",
        **_DISTANCE,
    ),
    Metric(
        key="aj",
        name="AJ error",
        meaning="mean distance over time between the mean predicted and the observed incidence",
        of=aalen_johansen_error,
        better=-1,
        taken="over time",
        **_DISTANCE,
    ),
    Metric(
        key="aj_null",
        name="chance (AJ)",
        meaning="what the AJ error of right risks stays under 95 times in 100",
        taken="elsewhere",
        **_DISTANCE,
    ),
    Metric(
        key="e50",
        name="E50",
        meaning="median distance between predicted and observed risk",
        of=_smooth_index("e50"),
        better=-1,
        taken="strongest",
        **_DISTANCE,
    ),
    Metric(
        key="e90",
        name="E90",
        meaning="distance that 90% of the subjects stay under",
        of=_smooth_index("e90"),
        better=-1,
        taken="strongest",
        **_DISTANCE,
    ),
    Metric(
        key="ks",
        name="KS",
        meaning="largest gap between events expected and observed up to some risk",
        of=ks_calibration,
        better=-1,
        taken="strongest",
        **_DISTANCE,
    ),
    Metric(
        key="ks_p",
        name="p (KS)",
        meaning="how often right risks would show so large a gap; small speaks against the risks",
        part="calibration",
        taken="elsewhere",
        interval=False,
    ),
)


def clipped_logit(risk: Floats, least: float = SMALLEST_RISK) -> Floats:
    """Logit of the risk, cut off at `least` from 0 and 1."""
    clipped = np.clip(risk, least, 1.0 - least)
    return np.asarray(np.log(clipped / (1.0 - clipped)))


def spline_knots(risk: Floats) -> Floats:
    """Distinct knots on the logit scale, at `KNOT_QUANTILES` of the risks, each the risk of some row."""
    return np.unique(np.quantile(clipped_logit(risk), KNOT_QUANTILES, method="inverted_cdf"))


def spline_design(x: Floats, knots: Floats) -> Floats:
    """Restricted cubic spline basis (Harrell): intercept, x, and one cubic term per inner knot; linear in the tails.

    Args:
        x: (n,) where to evaluate it.
        knots: (k,) strictly increasing.

    Returns:
        (n, k): with one knot only the intercept, with two a straight line.
    """
    t = knots
    if len(t) == 1:
        return np.ones((len(x), 1))
    cubed = np.maximum(x[:, None] - t, 0.0) ** 3 / (t[-1] - t[0]) ** 2
    inner = [
        cubed[:, j]
        - cubed[:, -2] * (t[-1] - t[j]) / (t[-1] - t[-2])
        + cubed[:, -1] * (t[-2] - t[j]) / (t[-1] - t[-2])
        for j in range(len(t) - 2)
    ]
    return np.column_stack([np.ones_like(x), x - t.mean(), *inner])


def distance_indices(distance: Floats, weights: Floats) -> Floats:
    """(3, resamples): mean, median and 90th percentile of `distance` (resamples, n) under the weights."""
    order = np.argsort(distance, axis=1)
    ordered = np.take_along_axis(distance, order, axis=1)
    share = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
    total = share[:, -1:]
    quantiles = [
        np.take_along_axis(
            ordered,
            np.minimum((share < q * total).sum(axis=1, keepdims=True), len(order[0]) - 1),
            axis=1,
        )
        for q in (0.5, 0.9)
    ]
    mean = divide((distance * weights).sum(axis=1), total[:, 0])
    return np.stack([mean, *(q[:, 0] for q in quantiles)])


def largest_gap(events: Floats, weights: Floats, risk: Floats) -> Floats:
    """(resamples,) KS statistic of weighted events (resamples, n) against the risks (n,)."""
    order = np.argsort(risk, kind="stable")
    last_of_ties = np.flatnonzero(np.r_[risk[order][1:] != risk[order][:-1], True])
    gap = np.cumsum((events - weights * risk)[:, order], axis=1)[:, last_of_ties]
    return divide(np.abs(gap).max(axis=1), weights.sum(axis=1))


# ---- weighted logistic regressions, one for each resample of the rows --------------------------------------------

MOST_STEPS = 50  # of Newton's method
FLAT = 1e-9  # a likelihood of less curvature, for each unit of weight, has no maximum
#: Leaves an error of some 1e-6 in a slope whose interval is a thousand times as wide.
RESAMPLE_TOLERANCE = 1e-3


def fit_logistic(
    design: Floats,
    outcome: Floats,
    weights: Floats,
    *,
    offset: Floats | float = 0.0,
    start: Floats | None = None,
    tolerance: float = 1e-7,
) -> Floats:
    """Weighted logistic regressions by Newton's method, one for each row of the weights.

    Args:
        design: (n, columns), with an intercept among what its columns can make.
        outcome: (n,) or (resamples, n), 0 or 1.
        weights: (resamples, n), not negative.
        offset: (n,) added to the linear predictor.
        start: (columns,) where to begin, say the fit without resampling.
        tolerance: A shorter step is the last one; the error is of the order of its square.

    Returns:
        (resamples, columns) coefficients; NaN where the likelihood has no maximum (only events, only non-events,
        separated by the design) or it was not found in `MOST_STEPS`.
    """
    n_columns = design.shape[1]
    squares = (design[:, :, None] * design[:, None, :]).reshape(len(design), n_columns**2)
    beta, step = np.zeros((2, len(weights), n_columns))
    if start is not None and np.isfinite(start).all():
        beta[:] = start
    loss, converged = np.full(len(weights), np.inf), np.zeros(len(weights), dtype=bool)
    total, events = weights.sum(axis=1), (weights * outcome).sum(axis=1)
    todo = np.flatnonzero((events > 0) & (events < total))
    for number in range(MOST_STEPS if len(todo) else 0):
        w = weights if len(todo) == len(weights) else weights[todo]
        y = outcome[todo] if outcome.ndim == 2 else outcome
        trial = beta[todo] + step[todo]
        is_common = number == 0 and outcome.ndim == 1  # all begin at one place
        eta = (trial[0] if is_common else trial) @ design.T + offset
        small_side = np.exp(-np.abs(eta))  # one exponential serves the loss and the mean
        mean = np.where(eta >= 0, 1.0, small_side) / (1.0 + small_side)
        losses = np.maximum(eta, 0.0) + np.log1p(small_side) - y * eta
        spread = mean * (1.0 - mean)
        if is_common:
            now = w @ losses
            gradient = w @ ((y - mean)[:, None] * design)
            curvature = w @ (spread[:, None] * squares)
        else:
            now = np.einsum("rn,rn->r", w, losses)
            gradient = (w * (y - mean)) @ design
            curvature = (w * spread) @ squares
        accepted = now <= loss[todo] * (1.0 + 1e-12)
        step[todo[~accepted]] /= 2.0
        moved = todo[accepted]
        beta[moved], loss[moved], gradient = trial[accepted], now[accepted], gradient[accepted]
        # Curvature vanishes as the fitted probabilities reach 0 or 1: there is no maximum, give this one up.
        scale, axes = np.linalg.eigh(curvature[accepted].reshape(-1, n_columns, n_columns))
        curved = scale[:, 0] > FLAT * total[moved]
        moved, scale, axes, gradient = moved[curved], scale[curved], axes[curved], gradient[curved]
        step[moved] = np.einsum("rij,rj->ri", axes, np.einsum("rji,rj->ri", axes, gradient) / scale)
        small = np.abs(step[moved]).max(axis=1, initial=0.0) < tolerance
        beta[moved[small]] += step[moved[small]]
        converged[moved[small]] = True
        todo = np.sort(np.concatenate([todo[~accepted], moved[~small]]))
        if todo.size == 0:
            break
    beta[~converged] = np.nan
    return beta


def fit_resamples(
    design: Floats, outcome: Floats, weights: Floats, *, offset: Floats | float = 0.0
) -> Floats:
    """`fit_logistic` in every resample, begun at the fit to the mean of all; an interval needs no seven digits."""
    if len(weights) == 1:
        return fit_logistic(design, outcome, weights, offset=offset)
    start = fit_logistic(design, outcome, weights.mean(axis=0, keepdims=True), offset=offset)[0]
    tolerance = RESAMPLE_TOLERANCE
    return fit_logistic(design, outcome, weights, offset=offset, start=start, tolerance=tolerance)
