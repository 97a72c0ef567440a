"""Convex weights of several models of hazards, fitted by likelihood: a super learner for competing risks.

For each cause e, with H_{m,e}(t) the cumulative hazard of model m, at the edges of the run's grid

    log H_e(t) = Σ_m w_{e,m} · log H_{m,e}(t)        w_{e,m} ≥ 0,  Σ_m w_{e,m} = 1

A convex mean of logarithms of rising functions rises, so that the hazard between two edges is never negative. After the
last edge the hazard stays what the mean's slope is there. The likelihood is a sum over causes, and convex in w.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.metrics.hazards import horizon_nll
from ehrsequencing.predictors.recalibration import Labels

PRIOR_SD = 0.2  # of a weight around equal weights
_LEAST = 1e-290  # of a cumulative hazard, so that its logarithm is finite
_SAME = 1e-9  # of a weight
_STEP = 1e-4  # of a weight, over which the likelihood's slope and curvature are measured
_FLAT = 1e-6  # curvature for each event, below which the two models say the same


def blended_hazards(
    parts: Sequence[Floats], weights: Floats, edges_days: Sequence[float]
) -> Floats:
    """Hazards of the blend.

    Args:
        parts: Of each model (R, E, K) hazards per day, above 0.
        weights: (E, models), each row convex.
        edges_days: The K − 1 inner edges.

    Returns:
        (R, E, K) hazards per day, above 0.

    >>> parts = [np.full((1, 1, 2), 0.01), np.full((1, 1, 2), 0.04)]
    >>> blended_hazards(parts, np.array([[0.5, 0.5]]), [100.0]).round(6).tolist()  # the geometric mean of the two
    [[[0.02, 0.02]]]
    """
    days = np.diff(edges_days, prepend=0.0)
    # log H at the edges
    logs = [np.log(np.maximum((part[..., :-1] * days).cumsum(-1), _LEAST)) for part in parts]
    mean = sum(weights[:, m, None] * log for m, log in enumerate(logs))
    cumulative = np.exp(mean)
    rate = sum(
        weights[:, m] * part[..., -1] * np.exp(-log[..., -1])
        for m, (part, log) in enumerate(zip(parts, logs, strict=True))
    )
    inner = np.diff(cumulative, axis=-1, prepend=0.0) / days
    last = cumulative[..., -1] * rate
    return np.maximum(np.concatenate([inner, last[..., None]], axis=-1), _LEAST)


@dataclass(frozen=True)
class BlendWeights:
    """Weights of some models with 95 % intervals.

    Attributes:
        value: (E, models), each row convex.
        low: (E, models).
        high: (E, models).
    """

    value: Floats
    low: Floats
    high: Floats

    @classmethod
    def equal(cls, n_causes: int, models: int) -> "BlendWeights":
        """Equal weights, of which nothing is known."""
        value = np.full((n_causes, models), 1 / models)
        return cls(value, np.zeros_like(value), np.ones_like(value))

    def before(self, others: "BlendWeights") -> "BlendWeights":
        """Those of a model with weight w and then of others, whose weights share out 1 − w.

        Args:
            others: Whose convex mean is the second of the two models that these weights are of.

        >>> one, rest = BlendWeights.equal(1, 2), BlendWeights.equal(1, 2)
        >>> one.before(rest).value.tolist()
        [[0.5, 0.25, 0.25]]
        """
        pairs = ((self.value, others.value), (self.low, others.low), (self.high, others.high))
        first, left = [own[:, :1] for own, _ in pairs], 1 - self.value[:, :1]
        parts = [np.hstack([own, left * rest]) for own, (_, rest) in zip(first, pairs, strict=True)]
        return BlendWeights(*parts)


def fit_weights(
    hazards: Sequence[Floats],
    edges_days: Sequence[float],
    labels: Labels,
    *,
    prior_sd: float = PRIOR_SD,
) -> BlendWeights:
    """The weights of two models, of most likelihood (ŵ), drawn towards ½; ½ for a cause without an event.

        w = a ŵ + (1 − a) / 2        a = τ² / (τ² + v)

    v is the variance of ŵ by the sandwich, summed by subject (Lin & Wei 1989), since prediction times of one subject
    share their future; τ = `prior_sd` says how far from ½ the best weights of a study are. With many events v is small
    and w is ŵ. With few, ŵ follows chance. Where the likelihood does not depend on w, v is infinite.

    Args:
        hazards: Of each model (R, E, K) per day; they were fitted without these rows' subjects.
        edges_days: The K − 1 inner edges.
        labels: Of the R rows.
        prior_sd: τ.
    """
    from scipy.optimize import brentq  # which predictions need not load

    made = BlendWeights.equal(hazards[0].shape[1], 2)
    _, owner = np.unique(labels.subject, return_inverse=True)
    for e in range(len(made.value)):
        had = (labels.cause == e + 1).astype(np.int64)
        if not had.any():
            continue
        of_cause = [one[:, [e]].astype(np.float64) for one in hazards]
        score = partial(_score, of_cause, edges_days, replace(labels, cause=had))

        def slope(weight: float, score: Callable[[float], Floats] = score) -> float:
            return float(score(weight).sum())

        if slope(0.0) >= 0:
            best = 0.0
        elif slope(1.0) <= 0:
            best = 1.0
        else:
            best = float(brentq(slope, 0.0, 1.0, xtol=_SAME))
        curvature = (slope(best + _STEP) - slope(best - _STEP)) / (2 * _STEP)
        if curvature > _FLAT * had.sum():
            variance = float((np.bincount(owner, score(best)) ** 2).sum()) / curvature**2
            share = prior_sd**2 / (prior_sd**2 + variance)
            reach = 1.96 * share * np.sqrt(variance)
            value = share * best + (1 - share) / 2
            made.value[e] = value, 1 - value
            made.low[e] = np.clip(made.value[e] - reach, 0, 1)
            made.high[e] = np.clip(made.value[e] + reach, 0, 1)
    return made


def _score(
    hazards: Sequence[Floats], edges_days: Sequence[float], labels: Labels, weight: float
) -> Floats:
    """(R,) slope of each row's NLL of one cause by the weight of the first of two models, by differences."""

    def nll(first: float) -> Floats:
        blended = blended_hazards(hazards, np.array([[first, 1 - first]]), edges_days)
        return horizon_nll(
            blended,
            edges_days,
            duration_days=labels.duration_days,
            cause=labels.cause,
            entry_days=labels.entry_days,
        )

    return (nll(weight + _STEP) - nll(weight - _STEP)) / (2 * _STEP)
