"""Convex weights of several models of hazards, fitted by likelihood: a super learner for competing risks.

For each cause e, with H_{m,e}(t) the cumulative hazard of model m, at the edges of the run's grid

    log H_e(t) = Σ_m w_{e,m} · log H_{m,e}(t)        w_{e,m} ≥ 0,  Σ_m w_{e,m} = 1

A convex mean of logarithms of rising functions rises, so that the hazard between two edges is never negative. After the
last edge the hazard stays what the mean's slope is there. The likelihood is a sum over causes, and convex in w.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.metrics.hazards import event_bin
from ehrsequencing.records.timelines import TaskRows

PRIOR_SD = 0.2  # of a weight around equal weights
_LEAST = 1e-290  # of a cumulative hazard, so that its logarithm is finite
_SAME = 1e-9  # of a weight
_STEP = 1e-4  # of a weight, over which the likelihood's curvature is measured


def log_cumulative(hazards: Floats, edges_days: Sequence[float]) -> Floats:
    """Logarithm (..., K − 1) of the cumulative hazard at the edges, of hazards (..., K) per day."""
    cumulative = np.cumsum(hazards[..., :-1] * np.diff(edges_days, prepend=0.0), axis=-1)
    return np.log(np.maximum(cumulative, _LEAST))


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
    logs = [log_cumulative(part, edges_days) for part in parts]
    mean = sum(weights[:, m, None] * log for m, log in enumerate(logs))
    cumulative = np.exp(mean)
    rate = sum(
        weights[:, m] * part[..., -1] * np.exp(-log[..., -1])
        for m, (part, log) in enumerate(zip(parts, logs, strict=True))
    )
    inner = np.diff(cumulative, axis=-1, prepend=0.0) / np.diff(edges_days, prepend=0.0)
    last = cumulative[..., -1] * rate
    return np.maximum(np.concatenate([inner, last[..., None]], axis=-1), _LEAST)


def points_at(
    parts: Sequence[Floats], edges_days: Sequence[float], days: NDArray[np.floating]
) -> Floats:
    """What the likelihood needs of several models' hazards at one time t of each row.

    Args:
        parts: Of each model hazards (R, E, K) per day.
        edges_days: The K − 1 inner edges.
        days: (R,) t.

    Returns:
        (3, R, E, models): log cumulative hazard at the edge before t, 0 where t lies in the first bin; at the edge
        after t, 0 where t lies in the last bin; hazard of the last bin over the cumulative hazard where it starts.
    """
    at = event_bin(edges_days, np.asarray(days, dtype=np.float64))[:, None, None]
    last = len(edges_days)
    columns = []
    for part in parts:
        log = log_cumulative(part, edges_days)
        shape = (*log.shape[:2], 1)
        lower = np.broadcast_to(np.maximum(at - 1, 0), shape)
        upper = np.broadcast_to(np.minimum(at, last - 1), shape)
        before = np.where(at > 0, np.take_along_axis(log, lower, axis=2), 0.0)
        after = np.where(at < last, np.take_along_axis(log, upper, axis=2), 0.0)
        columns.append(np.stack([before, after, part[..., -1:] * np.exp(-log[..., -1:])]))
    return np.concatenate(columns, axis=3)


@dataclass(frozen=True)
class BlendRows:
    """Labelled prediction times, and what each model says of them.

    Attributes:
        duration_days: (R,).
        entry_days: (R,) when exposure starts.
        cause: (R,) 0 = censored.
        subject: (R,) who.
        at_duration: (3, R, E, models) `points_at` the end of each row.
        at_entry: (3, R, E, models) and when its exposure starts.
        edges_days: Of the grid.
    """

    duration_days: Floats
    entry_days: NDArray[np.floating]
    cause: NDArray[np.integer]
    subject: Ints
    at_duration: Floats
    at_entry: Floats
    edges_days: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.duration_days)

    @classmethod
    def of(
        cls, parts: Sequence[Floats], edges_days: Sequence[float], rows: TaskRows, some: slice
    ) -> "BlendRows":
        """Of some labelled rows, with the hazards (r, E, K) per day of each model there."""
        duration, entry = np.array(rows.duration_days[some]), np.array(rows.entry_days[some])
        return cls(
            duration,
            entry,
            rows.cause[some].astype(np.int64),
            np.asarray(rows.subject[some]),
            points_at(parts, edges_days, duration),
            points_at(parts, edges_days, entry),
            tuple(edges_days),
        )

    @classmethod
    def joined(cls, parts: Sequence["BlendRows"]) -> "BlendRows":
        """The rows of several, one after another."""
        return cls(
            np.concatenate([part.duration_days for part in parts]),
            np.concatenate([part.entry_days for part in parts]),
            np.concatenate([part.cause for part in parts]),
            np.concatenate([part.subject for part in parts]),
            np.concatenate([part.at_duration for part in parts], axis=1),
            np.concatenate([part.at_entry for part in parts], axis=1),
            parts[0].edges_days,
        )

    def score(self, cause: int, weight: float) -> Floats:
        """(R,) slope of each row's NLL by the weight of the first of two models."""
        w = np.array([weight, 1 - weight])
        gradient = _of_cumulative(self.at_duration, self.edges_days, self.duration_days, cause, w)
        if np.any(self.entry_days > 0):
            entry = np.asarray(self.entry_days, dtype=np.float64)
            gradient = gradient - _of_cumulative(self.at_entry, self.edges_days, entry, cause, w)
        had = np.flatnonzero(self.cause == cause)
        gradient[had] -= _of_log_hazard(
            self.at_duration[:, had], self.edges_days, self.duration_days[had], cause, w
        )
        return np.asarray(gradient[:, 0] - gradient[:, 1])


def _place(edges: Sequence[float], days: Floats) -> tuple[Bools, Bools, Floats, Floats]:
    """Whether a row is in the first bin, in the last; days since the bin began; and the bin's length."""
    at = event_bin(edges, days)
    start = np.r_[0.0, edges][at]
    width = np.r_[edges, np.inf][at] - start
    return at == 0, at == len(edges), days - start, width


def _of_cumulative(
    points: Floats, edges: Sequence[float], days: Floats, cause: int, w: Floats
) -> Floats:
    """Gradient (R, M) by w of the blend's H(t)."""
    first, last, since, width = _place(edges, days)
    a, b, r = points[:, :, cause - 1]
    part = np.where(last, 0.0, since / width)
    low = np.where(first, 0.0, np.exp(a @ w)) * (1 - part)
    high = np.where(last, 0.0, np.exp(b @ w)) * part
    more = np.where(last, low * since, 0.0)  # after the last edge: days × slope
    gradient = (low + more * (r @ w))[:, None] * a + high[:, None] * b + more[:, None] * r
    return np.asarray(gradient)


def _of_log_hazard(
    points: Floats, edges: Sequence[float], days: Floats, cause: int, w: Floats
) -> Floats:
    """Gradient (R, M) by w of the logarithm of the blend's λ(t)."""
    first, last, _, _ = _place(edges, days)
    a, b, r = points[:, :, cause - 1]
    low, high = np.where(first, 0.0, np.exp(a @ w)), np.where(last, 0.0, np.exp(b @ w))
    rise = np.where(last, 1.0, np.maximum(high - low, _LEAST))
    inside = (high[:, None] * b - low[:, None] * a) / rise[:, None]
    return np.asarray(np.where(last[:, None], a + r / (r @ w)[:, None], inside))


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


def fit_weights(rows: BlendRows, *, n_causes: int, prior_sd: float = PRIOR_SD) -> BlendWeights:
    """The weights of two models, of most likelihood (ŵ), drawn towards ½; ½ for a cause without an event.

        w = a ŵ + (1 − a) / 2        a = τ² / (τ² + v)

    v is the variance of ŵ by the sandwich, summed by subject (Lin & Wei 1989), since prediction times of one subject
    share their future; τ = `prior_sd` says how far from ½ the best weights of a study are. With many events v is small
    and w is ŵ. With few, ŵ follows chance. Where the likelihood does not depend on w, v is infinite.

    Args:
        rows: Predictions of models that were fitted without these rows' subjects.
        n_causes: E.
        prior_sd: τ.
    """
    made = BlendWeights.equal(n_causes, 2)
    _, owner = np.unique(rows.subject, return_inverse=True)
    for e in range(n_causes):
        if not np.any(rows.cause == e + 1):
            continue
        best = _most_likely(rows, e + 1)
        score, slope = rows.score(e + 1, best), 0.0
        for other in (best - _STEP, best + _STEP):
            slope += abs(float((rows.score(e + 1, other) - score).sum())) / (2 * _STEP)
        meat = float((np.bincount(owner, score) ** 2).sum())
        share = 0.0
        if slope > 0:
            variance = meat / slope**2
            share = prior_sd**2 / (prior_sd**2 + variance)
            reach = 1.96 * share * np.sqrt(variance)
            value = share * best + (1 - share) / 2
            made.value[e] = value, 1 - value
            made.low[e] = np.clip(made.value[e] - reach, 0, 1)
            made.high[e] = np.clip(made.value[e] + reach, 0, 1)
    return made


def _most_likely(rows: BlendRows, cause: int) -> float:
    """The weight of the first of two models, between 0 and 1, of most likelihood, which is convex in it: by halving."""
    low, high = 0.0, 1.0
    while high - low > _SAME:
        middle = (low + high) / 2
        if float(rows.score(cause, middle).sum()) > 0:  # the NLL rises
            high = middle
        else:
            low = middle
    return (low + high) / 2
