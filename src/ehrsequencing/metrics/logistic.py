"""Weighted logistic regressions, one for each resample of the rows: by Newton's method, or by one series for all."""

from itertools import combinations_with_replacement, product

import numpy as np

from ehrsequencing.core.arrays import Floats

MOST_STEPS = 50  # of Newton's method
FLAT = 1e-9  # a likelihood of less curvature, for each unit of weight, has no maximum
#: Leaves an error of some 1e-6 in a slope whose interval is a thousand times as wide.
RESAMPLE_TOLERANCE = 1e-3
#: Steps on the series of a likelihood, how far a linear predictor may move on it, so that errors are as small there,
#: and from how many rows on it pays.
SERIES_STEPS, SERIES_REACH, SERIES_ROWS = 4, 0.3, 1000


def expit(x: Floats) -> Floats:
    """The inverse of the logit."""
    return np.asarray(0.5 + 0.5 * np.tanh(x / 2.0))


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
    """`fit_logistic` in every resample, begun at the fit to the mean of all; an interval needs no seven digits.

    Resamples whose answer is near that fit share one expansion of the likelihood, the others take Newton's steps.
    """
    if len(weights) == 1:
        return fit_logistic(design, outcome, weights, offset=offset)
    start = fit_logistic(design, outcome, weights.mean(axis=0, keepdims=True), offset=offset)[0]
    beta, far = np.empty((len(weights), len(start))), np.ones(len(weights), dtype=bool)
    if len(design) >= SERIES_ROWS and np.isfinite(start).all():
        moved = _near(design, outcome, expit(design @ start + offset), weights)
        beta, far = start + moved, np.isnan(moved[:, 0])
    tolerance = RESAMPLE_TOLERANCE
    beta[far] = fit_logistic(
        design, outcome, weights[far], offset=offset, start=start, tolerance=tolerance
    )
    return beta


def _near(design: Floats, outcome: Floats, mean: Floats, weights: Floats) -> Floats:
    """(resamples, columns): from one logistic fit to that of each resample, by a series of the log-likelihood.

    The derivatives Σ w·ℓ⁽ᵏ⁾·d⊗…⊗d at the common fit, to the fifth, are matrix products for all resamples at once;
    Newton's steps then cost nothing that grows with the rows.

    Args:
        design: (n, columns): an intercept, and what is made of one covariate, itself first.
        outcome: (n,) 0 or 1.
        mean: (n,) its probability by the common fit.
        weights: (resamples, n).

    Returns:
        NaN where a linear predictor would move by more than `SERIES_REACH`, where the series says little, and where
        there is no maximum.
    """
    q, r = mean * (1.0 - mean), 1.0 - 2.0 * mean
    slopes = (outcome - mean, -q, -q * r, -q * (1.0 - 6.0 * q), -q * r * (1.0 - 12.0 * q))
    n, columns = design.shape
    tensors = []
    # of equal products, as of columns 0, 1 and 1, 0, one is made
    for order, slope in enumerate(slopes, start=1):
        place = {of: k for k, of in enumerate(combinations_with_replacement(range(columns), order))}
        products = np.stack([design[:, list(of)].prod(axis=1) for of in place], axis=1)
        every = [place[tuple(sorted(of))] for of in product(range(columns), repeat=order)]
        tensors.append((weights @ (slope[:, None] * products))[:, every])

    def at(moved: Floats, derivatives: list[Floats]) -> Floats:
        """The series of a derivative, by Horner's rule."""
        total = derivatives[-1]
        for k in range(len(derivatives) - 1, 0, -1):
            by_column = total.reshape(len(moved), -1, columns)
            total = derivatives[k - 1] + np.einsum("rij,rj->ri", by_column, moved) / k
        return total

    moved = np.zeros((len(weights), columns))
    square = (-1, columns, columns)
    for _ in range(SERIES_STEPS):
        curvature = np.linalg.pinv(at(moved, tensors[1:]).reshape(square), rcond=FLAT)
        step = np.einsum("rij,rj->ri", curvature, at(moved, tensors))
        moved = np.clip(moved - step, -1e3, 1e3)
    along = design[np.argsort(design[:, 1 % columns])[np.linspace(0, n - 1, 50).astype(np.int64)]]
    is_near = np.abs(moved @ along.T).max(axis=1) < SERIES_REACH
    is_near &= np.abs(step).max(axis=1) < RESAMPLE_TOLERANCE
    is_curved = np.linalg.eigvalsh(-tensors[1].reshape(square))[:, 0] > FLAT * weights.sum(axis=1)
    moved[~(is_near & is_curved)] = np.nan
    return moved
