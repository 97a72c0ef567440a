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

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.metrics.hazards import event_bin, exposure
from ehrsequencing.records.timelines import TaskRows

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

    def applied(self, hazards: Floats) -> Floats:
        """Recalibrated hazards (R, E, K)."""
        return np.exp(self.intercept + self.slope * np.log(hazards))

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


@dataclass(frozen=True)
class Labels:
    """What happened after R prediction times."""

    duration_days: Floats  # to the event or censoring
    cause: NDArray[np.integer]  # 0 = censored, 1..E
    entry_days: NDArray[np.floating]  # when exposure starts
    subject: Ints  # whose prediction time it is

    @classmethod
    def of(cls, rows: TaskRows, chosen: Ints | Bools) -> "Labels":
        """Of some labelled rows."""
        return cls(
            np.asarray(rows.duration_days[chosen]),
            rows.cause[chosen].astype(np.int64),
            np.asarray(rows.entry_days[chosen], dtype=np.float64),
            np.asarray(rows.subject[chosen]),
        )

    def take(self, rows: NDArray[np.generic]) -> "Labels":
        """Some of them."""
        return Labels(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def people(self, cause: int) -> int:
        """How many people have a cause, counted from 0."""
        return len(np.unique(self.subject[self.cause == cause + 1]))


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fit_recalibration(
    log_hazard: NDArray[np.floating],
    edges_days: Sequence[float],
    labels: Labels,
    *,
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
        labels: Of the R rows.
        prior_sd: τ; None: no prior.
    """
    n_causes, bins = log_hazard.shape[1:]
    place = np.linspace(-1.0, 1.0, bins)
    theta, intercept = np.zeros((n_causes, 3)), np.zeros((n_causes, bins))
    slope, subjects = np.ones((n_causes, bins)), np.zeros(n_causes, dtype=np.int64)
    for e in range(n_causes):
        subjects[e] = labels.people(e)
        if subjects[e] < FEWEST:
            continue
        eta = log_hazard[:, e].astype(np.float64)
        if prior_sd is None:
            of_cause = CauseLikelihood(eta, edges_days, labels, cause=e)
            estimate = of_cause.fit(2)[0]
        else:
            # (K,) mean of η in each bin, weighted by expected events; unweighted where nobody is at risk
            days = exposure(edges_days, labels.entry_days, labels.duration_days)
            expected = days * np.exp(eta)
            total = expected.sum(axis=0)
            weighted = (expected * eta).sum(axis=0) / np.where(total > 0, total, 1.0)
            centre = np.asarray(np.where(total > 0, weighted, eta.mean(axis=0)))
            of_cause = CauseLikelihood(eta, edges_days, labels, cause=e, centre=centre)
            estimate, *_, covariance = of_cause.fit(3)
            drawn = prior_sd**2 * np.eye(3)
            estimate = drawn @ np.linalg.solve(drawn + covariance, estimate)
        theta[e, : len(estimate)] = estimate
        slope[e] = 1 + theta[e, 1] + theta[e, 2] * place
        intercept[e] = theta[e, 0] + (1 - slope[e]) * of_cause.centre
    return Recalibration(intercept, slope, theta[:, 0], theta[:, 1], theta[:, 2], subjects)


class CauseLikelihood:
    """The likelihood of one cause in `log λ' = η + θ_0 + (θ_1 + θ_2 s) · (η − m)`, s from −1 (first bin) to 1 (last).

    Args:
        eta: (R, K) η, log-hazards per day of the cause.
        edges_days: The K − 1 inner edges.
        labels: Of the R rows; some have the cause.
        cause: Which one, from 0.
        centre: m, one number or (K,); None: the mean of η at the events.
    """

    def __init__(
        self,
        eta: Floats,
        edges_days: Sequence[float],
        labels: Labels,
        *,
        cause: int,
        centre: Floats | float | None = None,
    ) -> None:
        days = exposure(edges_days, labels.entry_days, labels.duration_days)
        self.events = np.flatnonzero(labels.cause == cause + 1)
        at = event_bin(edges_days, labels.duration_days)[self.events]
        self.centre = eta[self.events, at].mean() if centre is None else centre
        self.row, column = np.nonzero(days)
        self.owner: Ints = np.unique(labels.subject, return_inverse=True)[1]
        x, place = eta - self.centre, np.linspace(-1.0, 1.0, eta.shape[1])
        own, self.offset = (
            x[self.row, column],
            np.log(days[self.row, column]) + eta[self.row, column],
        )
        self.features = np.stack([np.ones(len(own)), own, own * place[column]])
        own = x[self.events, at]
        self.at_events = np.stack([np.ones(len(own)), own, own * place[at]])

    def fit(self, size: int) -> tuple[Floats, float, Floats, Floats]:
        """Fit the first `size` parameters, the others 0.

        Returns:
            θ̂, its log-likelihood, the inverse Hessian, and the covariance of θ̂: the sandwich, summed by subject.
        """
        some, own = self.features[:size], self.at_events[:size]
        total = own.sum(axis=1)
        theta, hessian = fit_hazards(some, self.offset, total) if size else (np.zeros(0), np.eye(0))
        expected, n = np.exp(self.offset + theta @ some), int(self.owner.max()) + 1
        of_event, of_cell = self.owner[self.events], self.owner[self.row]
        score = np.zeros((size, n))  # gradient of each subject's NLL
        for f in range(size):
            score[f] = np.bincount(of_cell, some[f] * expected, n) - np.bincount(
                of_event, own[f], n
            )
        bread = inverse(hessian)
        value = float(theta @ total - expected.sum())
        return theta, value, bread, bread @ (score @ score.T) @ bread


def fit_hazards(
    features: Floats, offset: Floats, at_events: Floats, *, penalty: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """Maximum likelihood of θ in `log λ = offset + Σ_f θ_f x_f`: a piecewise-exponential model is a Poisson one.

        NLL(θ) = Σ_{cells} exp(offset + θ·x) − θ · Σ_{events} x + ½ Σ_f penalty_f θ_f²

    over all cells (prediction time × bin) with days at risk. It is convex, and Newton's method with step halving finds
    the minimum. θ stays 0 in directions that change no cell (everybody has the same hazard).

    Args:
        features: (F, n) x of each cell.
        offset: (n,) of the log-hazard, plus the log of the days at risk.
        at_events: (F,) sum of x over the cells of the events.
        penalty: (F,), or one for all.

    Returns:
        θ (F,), and the NLL's Hessian there (F, F).
    """

    def loss(theta: Floats) -> float:
        fit = np.exp(offset + theta @ features).sum() - theta @ at_events
        return float(fit + 0.5 * (penalty * theta**2).sum())

    theta = np.zeros(len(features))
    hessian = np.zeros((len(theta), len(theta)))
    with np.errstate(over="ignore"):
        for _ in range(_STEPS):
            expected = np.exp(offset + theta @ features)
            gradient = features @ expected - at_events + penalty * theta
            hessian = (features * expected) @ features.T + np.diag(penalty + 0.0 * theta)
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
class CauseUpdate:
    """What was chosen for one cause.

    Attributes:
        method: Of `METHODS`, the one that was chosen.
        largest: The one that it was tested against, the largest that the events allow.
        p: Of each smaller method, the p-value of its test.
        shrinkage: By which the estimates were multiplied: 1 − df / LR of the chosen method against none.
        level: ℓ, the shift where the log-hazard has its mean at the events.
        intercept: a in log λ' = a + b · log λ.
        slope: b.
    """

    method: str
    largest: str
    p: dict[str, float]
    shrinkage: float
    level: float = 0.0
    intercept: float = 0.0
    slope: float = 1.0

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
    if not largest or not labels.people(cause):
        return CauseUpdate(METHODS[0], METHODS[0], {}, 1.0)
    from scipy.special import chdtrc  # which no prediction needs

    likelihood = CauseLikelihood(eta, edges_days, labels, cause=cause)
    fits = [likelihood.fit(size) for size in range(largest + 1)]

    def ratio(small: int, large: int) -> float:
        """The likelihood ratio of two methods, as if rows were independent."""
        new = slice(small, large)
        bread, sandwich = (one[new, new] for one in fits[large][2:])
        spread = np.trace(inverse(bread) @ sandwich) / (large - small)
        return float(max(2 * (fits[large][1] - fits[small][1]), 0.0) / max(spread, 1e-9))

    p = {
        METHODS[small]: float(chdtrc(largest - small, ratio(small, largest)))
        for small in range(largest)
    }
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
        level=float(level),
        intercept=float(level - stretch * likelihood.centre),
        slope=1.0 + float(stretch),
    )
