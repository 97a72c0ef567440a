"""Few numbers that fix many log-hazards, by maximum likelihood: the piecewise-exponential model is a Poisson one."""

from collections.abc import Sequence

import numpy as np

from ehrsequencing.arrays import Floats

_STEPS = 100
_FLAT = 1e-9  # of the greatest curvature


def fit_hazards(
    features: Floats, log_days: Floats, at_events: Floats, *, start: Sequence[float]
) -> tuple[Floats, Floats]:
    """Maximum likelihood of θ in `log λ = offset + Σ_f θ_f x_f` for one cause of a piecewise-constant hazard.

        NLL(θ) = Σ_{cells} days · exp(offset + θ·x) − θ · Σ_{events} x

    over all cells (prediction time × bin) with days at risk. It is convex: Newton's method with step halving finds
    the minimum. Directions that no cell tells apart (everybody has the same hazard) stay at `start`.

    Args:
        features: (F, n) x of each cell.
        log_days: (n,) log of the days at risk, plus the offset if there is one.
        at_events: (F,) sum of x over the events' own cells.
        start: (F,) where to begin.

    Returns:
        θ (F,), and the NLL's Hessian there (F, F).
    """

    def loss(theta: Floats) -> float:
        return float(np.exp(log_days + theta @ features).sum() - theta @ at_events)

    theta = np.array(start, dtype=np.float64)
    hessian = np.zeros((len(theta), len(theta)))
    with np.errstate(over="ignore"):
        for _ in range(_STEPS):
            expected = np.exp(log_days + theta @ features)
            gradient = features @ expected - at_events
            hessian = (features * expected) @ features.T
            step = -inverse(hessian) @ gradient
            size, before = 1.0, loss(theta)
            while not loss(theta + size * step) <= before and size > 1e-9:
                size /= 2
            theta = theta + size * step
            if np.abs(step).max() < 1e-10:
                break
    return theta, hessian


def inverse(hessian: Floats) -> Floats:
    """Inverse of a symmetric matrix; zero along directions in which it is flat."""
    return np.asarray(np.linalg.pinv(hessian, rcond=_FLAT, hermitian=True))
