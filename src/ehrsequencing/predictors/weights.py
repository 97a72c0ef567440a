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
from scipy.optimize import minimize

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.metrics.bootstrap import bootstrap_subjects
from ehrsequencing.records.hazards import event_bin

RESAMPLES = 500  # of subjects, for the intervals of the weights
MOST_DRAWN = 1_000_000  # above so many rows × resamples there are fewer resamples
FEWEST_RESAMPLES = 100
PRIOR_SD = 0.2  # of a weight around equal weights
_LEAST = 1e-290  # of a cumulative hazard, so that its logarithm is finite
_MOST_STEPS = 100
_SAME = 1e-13  # relative gain that ends the fit


def log_cumulative(hazards: Floats, edges_days: Sequence[float]) -> Floats:
    """Logarithm (..., K − 1) of the cumulative hazard at the edges, of hazards (..., K) per day."""
    cumulative = np.cumsum(hazards[..., :-1] * np.diff(edges_days, prepend=0.0), axis=-1)
    found: Floats = np.log(np.maximum(cumulative, _LEAST))
    return found


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
    found: Floats = np.maximum(np.concatenate([inner, last[..., None]], axis=-1), _LEAST)
    return found


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

    def take(self, rows: Ints) -> "BlendRows":
        """Some rows."""
        return BlendRows(
            self.duration_days[rows],
            self.entry_days[rows],
            self.cause[rows],
            self.subject[rows],
            self.at_duration[:, rows],
            self.at_entry[:, rows],
            self.edges_days,
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

    def _terms(self, cause: int, weights: Floats) -> tuple[Floats, Floats]:
        """Value (R,) and gradient (R, M) of each row's NLL by the weights of one cause."""
        value, gradient = _cumulative(
            self.at_duration, self.edges_days, self.duration_days, cause, weights
        )
        if np.any(self.entry_days > 0):
            entry = np.asarray(self.entry_days, dtype=np.float64)
            before = _cumulative(self.at_entry, self.edges_days, entry, cause, weights)
            value, gradient = value - before[0], gradient - before[1]
        had = np.flatnonzero(self.cause == cause)
        log = _log_hazard(
            self.at_duration[:, had], self.edges_days, self.duration_days[had], cause, weights
        )
        value[had] -= log[0]
        gradient[had] -= log[1]
        return value, gradient

    def mean(self, cause: int, weights: Floats, counts: Floats) -> tuple[float, Floats]:
        """Mean of value and gradient (M,) over rows that count so often, (R,)."""
        value, gradient = self._terms(cause, weights)
        return float(np.average(value, weights=counts)), counts @ gradient / counts.sum()


def _place(edges: Sequence[float], days: Floats) -> tuple[Bools, Bools, Floats, Floats]:
    """Whether a row is in the first bin, in the last; days since the bin began; and the bin's length."""
    at = event_bin(edges, days)
    start = np.r_[0.0, edges][at]
    width = np.r_[edges, np.inf][at] - start
    return at == 0, at == len(edges), days - start, width


def _cumulative(
    points: Floats, edges: Sequence[float], days: Floats, cause: int, w: Floats
) -> tuple[Floats, Floats]:
    """H(t) of the blend, with its gradient by w."""
    first, last, since, width = _place(edges, days)
    a, b, r = points[:, :, cause - 1]
    part = np.where(last, 0.0, since / width)
    low = np.where(first, 0.0, np.exp(a @ w)) * (1 - part)
    high = np.where(last, 0.0, np.exp(b @ w)) * part
    more = np.where(last, low * since, 0.0)  # after the last edge: days × slope
    slope = r @ w
    gradient = (low + more * slope)[:, None] * a + high[:, None] * b + more[:, None] * r
    return low + high + more * slope, gradient


def _log_hazard(
    points: Floats, edges: Sequence[float], days: Floats, cause: int, w: Floats
) -> tuple[Floats, Floats]:
    """Logarithm of λ(t) of the blend, with its gradient by w."""
    first, last, _, width = _place(edges, days)
    a, b, r = points[:, :, cause - 1]
    low, high = np.where(first, 0.0, np.exp(a @ w)), np.where(last, 0.0, np.exp(b @ w))
    rise = np.where(last, 1.0, np.maximum(high - low, _LEAST))
    inside = (high[:, None] * b - low[:, None] * a) / rise[:, None]
    slope = r @ w
    return (
        np.where(last, a @ w + np.log(slope), np.log(rise) - np.log(np.where(last, 1.0, width))),
        np.where(last[:, None], a + r / slope[:, None], inside),
    )


@dataclass(frozen=True)
class BlendWeights:
    """Weights with bootstrap intervals over subjects.

    Attributes:
        value: (E, models), each row convex.
        low: (E, models) 2.5 % point.
        high: (E, models) 97.5 % point.
    """

    value: Floats
    low: Floats
    high: Floats


def fit_weights(
    rows: BlendRows, *, n_causes: int, seed: int = 0, resamples: int = RESAMPLES
) -> BlendWeights:
    """The weights of most likelihood ŵ, drawn towards equal ones; equal ones for a cause without an event.

        w = a ŵ + (1 − a) / M        a = τ² / (τ² + v)

    v is the mean variance of the M weights over fits to resamples of subjects, and τ = `PRIOR_SD` says how far from
    equal the best weights of a study are. With many events v is small and w is ŵ. With few, ŵ follows chance. (On
    out-of-fold predictions of PBC2 left out of the fit, w was more likely than ŵ in seven of eight splits.) Intervals
    are percentiles over the same resamples, drawn towards equal weights alike.

    Args:
        rows: Predictions of models that were fitted without these rows' subjects.
        n_causes: E.
        seed: Of the resamples.
        resamples: How many, where there are few rows.
    """
    models = rows.at_duration.shape[3]
    people, subject = np.unique(rows.subject, return_inverse=True)
    wanted = min(resamples, max(FEWEST_RESAMPLES, MOST_DRAWN // max(len(rows), 1)))
    draws: list[Ints] = []
    if wanted:
        for block in bootstrap_subjects(np.arange(len(people)), wanted, seed):
            draws += list(block)
    value = np.full((n_causes, models), 1 / models)
    low, high = np.zeros_like(value), np.ones_like(value)
    for e in range(n_causes):
        had = rows.cause == e + 1
        if not had.any():
            continue
        equal, best = value[e].copy(), _most_likely(rows, e + 1, value[e], np.ones(len(rows)))
        counts = (draw[subject].astype(np.float64) for draw in draws)
        again = [_most_likely(rows, e + 1, best, count) for count in counts if count[had].any()]
        share = 1.0
        if again:
            share = PRIOR_SD**2 / (PRIOR_SD**2 + float(np.var(again, axis=0).mean()))
            low[e], high[e] = np.percentile(
                share * np.stack(again) + (1 - share) * equal, [2.5, 97.5], axis=0
            )
        value[e] = share * best + (1 - share) * equal
    return BlendWeights(value, np.minimum(low, value), np.maximum(high, value))


def _most_likely(rows: BlendRows, cause: int, start: Floats, counts: Floats) -> Floats:
    """The convex weights of most likelihood, by sequential quadratic programming; rows count so often, (R,).

    The likelihood is convex in them, so any end above the start is a failure of the numbers: then the start is kept.
    """
    drawn = np.flatnonzero(counts)
    rows, counts = rows.take(drawn), counts[drawn]
    found = minimize(
        lambda w: rows.mean(cause, w, counts),
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * len(start),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": _SAME, "maxiter": _MOST_STEPS},
    )
    if not found.success and not found.fun <= rows.mean(cause, start, counts)[0]:  # or not a number
        return start
    w = np.maximum(found.x, 0.0)
    return np.asarray(w / w.sum(), dtype=np.float64)
