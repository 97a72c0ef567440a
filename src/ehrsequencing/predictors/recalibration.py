"""Recalibration: log-hazards shifted and stretched, cause by cause, by what labelled prediction times say.

    log λ'_{e,k} = a_{e,k} + b_{e,k} · log λ_{e,k}

Recalibrated hazards are hazards again: survival and all cumulative incidences still sum to one, which they would not if
each risk were shifted on its own. Training ends with it, on all prediction times of the tuning split, and folds
the result into the head; `ehrseq update` keeps its own apart (`predictor.Recalibrated`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

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


# ---- an update for other people --------------------------------------------------------------------------------------


METHODS = ("none", "level", "level and slope")
FEWEST_EVENTS = (0, SMALLEST_COUNT, 50)  # people with the event that each method needs
ALPHA = 0.05


@dataclass(frozen=True)
class Labels:
    """What happened after R prediction times; see `fit_recalibration`."""

    duration_days: Floats
    cause: NDArray[np.integer]
    entry_days: NDArray[np.floating]
    subject: Ints

    def take(self, rows: NDArray[np.generic]) -> "Labels":
        """Some of them."""
        return Labels(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def people(self, cause: int) -> int:
        """How many people have a cause, counted from 0."""
        return len(np.unique(self.subject[self.cause == cause + 1]))


@dataclass(frozen=True)
class CauseUpdate:
    """What was chosen for one cause.

    Attributes:
        method: Of `METHODS`, the one that was chosen.
        largest: The one that it was tested against, the largest that the events allow.
        p: Of each smaller method, the p-value of its test.
        shrinkage: By which the estimates were multiplied: 1 − df / LR of the chosen method against none.
        centre: m.
        level: ℓ.
        stretch: β.
    """

    method: str
    largest: str
    p: dict[str, float]
    shrinkage: float
    centre: float = 0.0
    level: float = 0.0
    stretch: float = 0.0

    @property
    def intercept(self) -> float:
        """A in log λ' = a + b · log λ."""
        return self.level - self.stretch * self.centre

    @property
    def slope(self) -> float:
        """B."""
        return 1.0 + self.stretch

    def applied(self, eta: Floats) -> Floats:
        """(R, K) log-hazards of this cause, updated."""
        return self.intercept + self.slope * eta


def largest_allowed(people: int) -> int:
    """Place in `METHODS` of the largest update that so many people with the event allow."""
    return sum(people >= fewest for fewest in FEWEST_EVENTS) - 1


def fit_update(
    eta: Floats,
    edges_days: Sequence[float],
    labels: Labels,
    *,
    cause: int,
    largest: int,
) -> CauseUpdate:
    """Choose and fit the update of one cause.

    Several prediction times of a person share their future, so that likelihood ratios are divided by the mean of
    the generalised eigenvalues of the two covariances, that of independent rows and the sandwich by person (Rotnitzky &
    Jewell 1990); with one row a person the divisor is near 1.

    Args:
        eta: (R, K) log-hazards per day of the cause.
        edges_days: The K − 1 inner edges.
        labels: Of the R rows.
        cause: Which one, from 0.
        largest: As of `largest_allowed`.
    """
    days = exposure(edges_days, labels.entry_days, labels.duration_days)
    events = np.flatnonzero(labels.cause == cause + 1)
    if not largest or not len(events):
        return CauseUpdate(METHODS[0], METHODS[0], {}, 1.0)
    at = event_bin(edges_days, labels.duration_days)[events]
    owner: Ints = np.unique(labels.subject, return_inverse=True)[1]
    centre = float(eta[events, at].mean())
    row, column = np.nonzero(days)
    x = eta - centre
    features = np.vstack([np.ones(len(row)), x[row, column]])
    own = np.vstack([np.ones(len(events)), x[events, at]])
    offset = np.log(days[row, column]) + eta[row, column]

    def fit(size: int) -> tuple[Floats, float, Floats, Floats]:
        """θ of the first features, its log-likelihood, the inverse Hessian, and the sandwich."""
        some, total = features[:size], own[:size].sum(axis=1)
        theta, hessian = fit_hazards(some, offset, total) if size else (np.zeros(0), np.eye(0))
        expected = np.exp(offset + theta @ some)
        score = scores_of_subjects(some * expected, row, own[:size], events, owner)
        bread = inverse(hessian)
        return theta, float(theta @ total - expected.sum()), bread, bread @ score @ score.T @ bread

    fits = [fit(size) for size in range(largest + 1)]

    def ratio(small: int, large: int) -> float:
        """The likelihood ratio of two methods, as if rows were independent."""
        new = slice(small, large)
        bread, sandwich = (one[new, new] for one in fits[large][2:])
        spread = np.trace(inverse(bread) @ sandwich) / (large - small)
        return float(max(2 * (fits[large][1] - fits[small][1]), 0.0) / max(spread, 1e-9))

    def p_value(small: int, large: int) -> float:
        return float(chdtrc(large - small, ratio(small, large)))

    p = {METHODS[small]: p_value(small, largest) for small in range(largest)}
    chosen = next((place for place in range(largest) if p[METHODS[place]] >= ALPHA), largest)
    if not chosen:
        return CauseUpdate(METHODS[0], METHODS[largest], p, 1.0)
    shrinkage = max(0.0, 1 - chosen / max(ratio(0, chosen), 1e-9))
    level, stretch = [*(shrinkage * fits[chosen][0]), 0.0][:2]
    return CauseUpdate(
        METHODS[chosen],
        METHODS[largest],
        p,
        shrinkage,
        centre=centre,
        level=float(level),
        stretch=float(stretch),
    )
