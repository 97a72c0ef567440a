"""Recalibration: log-hazards shifted and stretched, cause by cause, by what labelled prediction times say.

    log λ'_{e,k} = a_{e,k} + b_{e,k} · log λ_{e,k}

Recalibrated hazards are hazards again: survival and all cumulative incidences still sum to one, which they would not if
each risk were shifted on its own. The fit has two uses. Training ends with it, on all prediction times of the tuning
split, and folds the result into the head. `ehrseq evaluate --recalibrate` fits it at landmarks and keeps it apart
(`predictor.Recalibrated`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.metrics.hazards import event_bin, exposure

FEWEST = SMALLEST_COUNT  # subjects with the event, below which a cause is left as it is
MOST_ROWS = 200_000  # prediction times: of a larger tuning split every second subject is taken, or every third …
_STEPS = 100
_FLAT = 1e-9  # of the greatest curvature


@dataclass(frozen=True)
class Recalibration:
    """What was fitted: a and b, and the three numbers of each cause that give them."""

    intercept: Floats  # (E, K) a
    slope: Floats  # (E, K) b
    level: Floats  # (E,) ℓ, the shift of the log-hazard where it has its mean
    stretch: Floats  # (E,) β, the stretch in the middle of the grid, less 1
    trend: Floats  # (E,) γ, how much more the last bin is stretched than the middle one
    subjects: Ints  # (E,) subjects with the event; events, where subjects were not given

    def as_json(self, causes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The three numbers of each cause, and the intercepts that were folded into the head (for the audit)."""
        columns = (self.level, self.stretch, self.trend, self.subjects, self.intercept)
        return {
            name: {
                "level": float(level),
                "stretch": float(stretch),
                "trend": float(trend),
                "subjects_with_event": int(subjects),
                "intercept": intercept.tolist(),
            }
            for name, level, stretch, trend, subjects, intercept in zip(
                causes, *columns, strict=True
            )
        }


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fit_recalibration(
    log_hazard: NDArray[np.floating],
    edges_days: Sequence[float],
    *,
    duration_days: Floats,
    cause: NDArray[np.integer],
    entry_days: NDArray[np.floating],
    subject: NDArray[np.integer] | None = None,
    prior_sd: float | None = None,
) -> Recalibration:
    """Fit how far log-hazards are to be shifted and stretched, cause by cause, by the `horizon` likelihood.

        log λ'_{e,k} = η_{e,k} + ℓ_e + (β_e + γ_e s_k) · (η_{e,k} − m_{e,k})      s_k from −1 (first bin) to 1 (last)

    Without a prior, θ = (ℓ, β) has maximum likelihood, γ = 0, and m is one number a cause, so that a and b are the same
    in all bins. With a prior, θ = (ℓ, β, γ), and m is the bin's mean of η, weighted by the events that η expects.
    Prediction times of one subject share their future, so the covariance V of the maximum θ̂ is the sandwich, summed by
    subject (Lin & Wei 1989). A trained model is nearly right, θ ~ N(0, τ² I) with τ = `prior_sd`, and the result is the
    posterior mean by the normal approximation, which changes little where events are few:

        θ* = τ² (τ² I + V)⁻¹ θ̂

    Args:
        log_hazard: (R, E, K) η, log-hazards per day.
        edges_days: The K − 1 inner edges.
        duration_days: (R,) to the event or censoring.
        cause: (R,) 0 = censored, 1..E.
        entry_days: (R,) when exposure starts.
        subject: (R,) whose prediction time it is; None: each is of another subject.
        prior_sd: τ; None: no prior.
    """
    n_causes, bins = log_hazard.shape[1:]
    days = exposure(edges_days, entry_days, duration_days)
    at = event_bin(edges_days, duration_days)
    owner: Ints = np.unique(
        np.arange(len(cause)) if subject is None else subject, return_inverse=True
    )[1]
    place = np.linspace(-1.0, 1.0, bins)
    # what β and γ multiply
    stretches = np.stack([np.ones(bins)] if prior_sd is None else [np.ones(bins), place])
    theta, intercept = np.zeros((n_causes, 3)), np.zeros((n_causes, bins))
    slope, subjects = np.ones((n_causes, bins)), np.zeros(n_causes, dtype=np.int64)
    for e in range(n_causes):
        events = np.flatnonzero(cause == e + 1)
        subjects[e] = len(np.unique(owner[events]))
        if subjects[e] < FEWEST:
            continue
        eta = log_hazard[:, e].astype(np.float64)
        centre = (
            _centres(eta, days)
            if prior_sd is not None
            else np.full(bins, eta[events, at[events]].mean())
        )
        estimate, covariance = _fit_cause(
            eta, eta - centre, stretches, days, events, at[events], owner
        )
        if prior_sd is not None:
            estimate = np.asarray(
                prior_sd**2 * np.linalg.solve(prior_sd**2 * np.eye(3) + covariance, estimate)
            )
        theta[e, : len(estimate)] = estimate
        slope[e] = 1 + theta[e, 1] + theta[e, 2] * place
        intercept[e] = theta[e, 0] + (1 - slope[e]) * centre
    return Recalibration(intercept, slope, theta[:, 0], theta[:, 1], theta[:, 2], subjects)


def _centres(eta: Floats, days: Floats) -> Floats:
    """(K,) mean of η in each bin, weighted by expected events; unweighted where nobody is at risk."""
    expected = days * np.exp(eta)
    total = expected.sum(axis=0)
    weighted = (expected * eta).sum(axis=0) / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(total > 0, weighted, eta.mean(axis=0)))


def _fit_cause(
    eta: Floats, x: Floats, stretches: Floats, days: Floats, events: Ints, at: Ints, owner: Ints
) -> tuple[Floats, Floats]:
    """θ̂ (F,) of one cause and its covariance (F, F); η and x = η − m are (R, K), `stretches` (F − 1, K)."""
    row, column = np.nonzero(days)
    features = np.ones((1 + len(stretches), len(row)))
    for feature, stretch in zip(features[1:], stretches, strict=True):
        np.multiply(x[row, column], stretch[column], out=feature)
    offset = np.log(days[row, column]) + eta[row, column]
    own = np.stack([np.ones(len(events)), *(x[events, at] * stretches[:, at])])  # (F, events)
    theta, hessian = fit_hazards(features, offset, own.sum(axis=1))
    expected = features * np.exp(offset + theta @ features)
    score = scores_of_subjects(expected, row, own, events, owner)
    bread = inverse(hessian)
    return theta, bread @ (score @ score.T) @ bread


def scores_of_subjects(
    expected: Floats, row: Ints, own: Floats, events: Ints, owner: Ints
) -> Floats:
    """(F, S) gradient of each subject's NLL: features times expected events (F, cells), less those at events (F, m)."""
    n = int(owner.max()) + 1
    score = [
        np.bincount(owner[row], seen, n) - np.bincount(owner[events], had, n)
        for seen, had in zip(expected, own, strict=True)
    ]
    return np.reshape(score, (len(expected), n))


def fit_hazards(features: Floats, offset: Floats, at_events: Floats) -> tuple[Floats, Floats]:
    """Maximum likelihood of θ in `log λ = offset + Σ_f θ_f x_f`: a piecewise-exponential model is a Poisson one.

        NLL(θ) = Σ_{cells} exp(offset + θ·x) − θ · Σ_{events} x

    over all cells (prediction time × bin) with days at risk. It is convex, and Newton's method with step halving finds
    the minimum. θ stays 0 in directions that change no cell (everybody has the same hazard).

    Args:
        features: (F, n) x of each cell.
        offset: (n,) of the log-hazard, plus the log of the days at risk.
        at_events: (F,) sum of x over the cells of the events.

    Returns:
        θ (F,), and the NLL's Hessian there (F, F).
    """

    def loss(theta: Floats) -> float:
        return float(np.exp(offset + theta @ features).sum() - theta @ at_events)

    theta = np.zeros(len(features))
    hessian = np.zeros((len(theta), len(theta)))
    with np.errstate(over="ignore"):
        for _ in range(_STEPS):
            expected = np.exp(offset + theta @ features)
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
