"""Piecewise-constant hazards per day in NumPy: likelihood, incidence, and the events that given risks expect.

Bin k covers `[τ_{k−1}, τ_k)` days after the prediction time, with τ_0 = 0, the inner edges `edges_days` = τ_1 …
τ_{K−1}, and an open last bin. A test compares each function with its twin in torch (`models/hazards.py`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats, Ints, row_blocks
from ehrsequencing.metrics.censoring import SubjectClock, divide

#: Survival is taken to be at least this: where risks sum to 1, hazards would be infinite.
LEAST_SURVIVAL = 1e-12


def hazards_through(
    risk: Floats, knots_days: Floats, *, start_days: float = 0.0, least_survival: float = 0.0
) -> Floats:
    """Piecewise-constant hazards with exactly the given cumulative incidences at the knots.

        λ_{e,k} = ΔF_e / Σ_e' ΔF_e' · log(S(τ_{k−1}) / S(τ_k)) / (τ_k − τ_{k−1}),     ΔF_e = F_e(τ_k) − F_e(τ_{k−1})

    with S = 1 − Σ_e F_e and τ_0 = s, where F_e = 0.

    Args:
        risk: (R, E, K) cumulative incidence at each knot; never falling.
        knots_days: (K,) rising.
        start_days: s.
        least_survival: S is taken to be at least this.

    Returns:
        (R, E, K) per day; 0 where nothing happens between two knots, infinite or NaN from where S is 0.
    """
    incidence = np.concatenate([np.zeros_like(risk[:, :, :1]), risk], axis=2)
    survival = np.maximum(1 - incidence.sum(axis=1), least_survival)
    gained = np.diff(incidence, axis=2)
    either = gained.sum(axis=1, keepdims=True)
    share = np.divide(gained, either, out=np.zeros_like(gained), where=either > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.log(survival[:, :-1] / survival[:, 1:]) / np.diff(np.r_[start_days, knots_days])
        return np.asarray(total[:, None] * share, dtype=np.float64)


def expected_events(
    risk: Floats,
    knots_days: Floats,
    *,
    duration_days: Floats,
    horizons_days: Floats,
    start_days: float = 0.0,
    inverse: Floats | None = None,
) -> Floats:
    """Events that a model expects of each row by each horizon while it is under observation.

        Λ_e(t) = ∫ₛ^min(duration, t) λ_e(u) du        λ: the hazards through the risks (`hazards_through`)

    The events seen less these are a martingale: their mean is 0 if the hazards are right, whatever ends follow-up, as
    long as that is independent of the future given what the model knows.

    Args:
        risk: (R, E, K) cumulative incidence at each knot, given no event until s.
        knots_days: (K,) rising; they reach the last horizon.
        duration_days: (R,) to the event or to the end of follow-up.
        horizons_days: (H,).
        start_days: s.
        inverse: (R, K) what a day between two knots weighs while a row is observed, 1 / G (`mean_inverse`). Where those
            at risk leave sooner than others, the events seen must weigh 1 / G as well.

    Returns:
        (R, E, H).

    Example:
        A risk of 1 − exp(−1) in 100 days is a hazard of .01 a day. Half of it is seen by somebody who leaves on day 50.

        >>> risk = np.full((1, 1, 1), 1 - np.exp(-1))
        >>> days = np.array([100.0])
        >>> expected_events(risk, days, duration_days=np.array([50.0]), horizons_days=days).round(6).tolist()
        [[[0.5]]]
    """
    out = np.empty((*risk.shape[:2], len(horizons_days)))
    for some in row_blocks(len(risk)):
        rising = np.maximum.accumulate(risk[some], axis=2)
        hazards = hazards_through(
            rising, knots_days, start_days=start_days, least_survival=LEAST_SURVIVAL
        )
        for h, horizon in enumerate(horizons_days):
            stop = np.minimum(duration_days[some], horizon)
            days = exposure(knots_days[:-1].tolist(), np.atleast_1d(start_days), stop)
            if inverse is not None:
                days *= inverse[some]
            out[some, :, h] = np.einsum("rek,rk->re", hazards, days)
    return out


def mean_inverse(
    clock: SubjectClock, knots_days: Floats, *, duration_days: Floats, start_days: float = 0.0
) -> Floats:
    """(R, K) mean of 1 / G over the part of each interval between two knots in which a row is observed."""
    low, high = np.r_[start_days, knots_days[:-1]], knots_days
    out = np.ones((len(duration_days), len(knots_days)))
    stop = np.clip(duration_days[:, None], low, high)
    for share in (0.25, 0.75):
        middle = clock.before_own(low + share * (stop - low))
        out += 0.5 * (divide(1.0, middle, undefined=0.0) - 1.0)
    return out


# ---- given hazards ----
_ROWS_AT_ONCE = 10_000  # whose days in each bin exist at once


def exposure(
    edges_days: Sequence[float], start_days: NDArray[np.floating], stop_days: Floats
) -> Floats:
    """Days of each bin inside `[start, stop)`, `|[τ_{k−1}, τ_k) ∩ [start, stop)|`: (R,) and (R,) → (R, K)."""
    low, high = np.r_[0.0, edges_days], np.r_[edges_days, np.inf]
    span = np.minimum(stop_days[:, None], high) - np.maximum(np.asarray(start_days)[:, None], low)
    return np.asarray(np.maximum(span, 0.0), dtype=np.float64)


def event_bin(edges_days: Sequence[float], duration_days: Floats) -> Ints:
    """Bin k(duration) of each row, (R,): `τ_{k−1} < duration ≤ τ_k`.

    An event at an edge belongs to the bin that ends there. Its exposure is in that bin, and metrics count it as an
    event by that horizon.
    """
    return np.searchsorted(np.asarray(edges_days), duration_days, side="left")


def horizon_nll(
    hazards: Floats,
    edges_days: Sequence[float],
    *,
    duration_days: Floats,
    cause: NDArray[np.integer],
    entry_days: NDArray[np.floating],
) -> Floats:
    """NLL of each prediction time under cause-specific piecewise-constant hazards.

        NLL_p = Σ_e Σ_k λ_{e,k} · |[τ_{k−1}, τ_k) ∩ [entry, duration)|  −  Σ_e 1[cause = e] · log λ_{e, k(duration)}

    Args:
        hazards: (R, E, K) per day, above 0; or (E, K), the same for all rows.
        edges_days: The K − 1 inner edges.
        duration_days: (R,) days to event or censoring.
        cause: (R,) 0 = censored, else 1..E.
        entry_days: (R,) when exposure starts.

    Returns:
        (R,); NaN where a hazard is NaN.
    """
    days = exposure(edges_days, entry_days, duration_days)
    nll = days @ hazards.sum(axis=0) if hazards.ndim == 2 else np.einsum("rek,rk->r", hazards, days)
    had = np.flatnonzero(cause > 0)
    own = np.broadcast_to(hazards, (len(nll), *hazards.shape[-2:]))
    nll[had] -= np.log(
        own[had, cause[had].astype(np.int64) - 1, event_bin(edges_days, duration_days[had])]
    )
    return np.asarray(nll, dtype=np.float64)


def cumulative_incidence(
    hazards: Floats,
    edges_days: Sequence[float],
    horizons_days: Floats,
    *,
    start_days: float | Floats = 0.0,
) -> Floats:
    """Probability of each cause by each horizon, given no event until `start_days` (s).

        F_e(t | s) = Σ_k (λ_{e,k} / λ_{·,k}) · S(τ_{k−1} | s) · (1 − exp(−λ_{·,k} · |[τ_{k−1}, τ_k) ∩ [s, t)|))

    Args:
        hazards: (R, E, K) per day.
        edges_days: The K − 1 inner edges.
        horizons_days: (H,) from the prediction time, not from s; a horizon at or before s has probability 0. Or (H, R),
            for each row its own.
        start_days: s, of all rows or (R,).

    Returns:
        (R, E, H).

    >>> cumulative_incidence(np.full((1, 1, 1), 0.01), [], np.array([100.0])).round(4).tolist()  # 1 − exp(−1)
    [[[0.6321]]]
    """
    total = hazards.sum(axis=1)  # (R, K)
    share = hazards / np.where(total > 0, total, 1.0)[:, None]
    horizons = np.asarray(horizons_days, dtype=np.float64)
    out = np.empty((*hazards.shape[:2], len(horizons)))
    starts = np.atleast_1d(start_days)
    for h, stops in enumerate(horizons):
        inside = total * exposure(edges_days, starts, np.atleast_1d(stops))
        before = np.exp(-(np.cumsum(inside, axis=1) - inside))
        out[:, :, h] = np.einsum("rek,rk->re", share, before * -np.expm1(-inside))
    return out


def cohort_hazards(
    edges_days: Sequence[float],
    entry_days: NDArray[np.floating],
    duration_days: Floats,
    cause: NDArray[np.int8],
    *,
    n_causes: int,
    factors: Sequence[Floats | None] | None = None,
) -> Floats:
    """The cohort's own hazards: events over days at risk, per cause and bin.

    Half an event is spread over all bins of a cause, so that a bin without an event keeps a finite logarithm.

    Args:
        edges_days: Inner edges of the bins.
        entry_days: (R,) when exposure starts.
        duration_days: (R,) days to event or censoring.
        cause: (R,) causes, 0 = censored.
        n_causes: Number of causes.
        factors: Per cause (R,) what multiplies the hazard of each row, None = 1. The result is then the maximum
            likelihood estimate of the hazard of a row whose factor is 1: days at risk are weighted by the factor.

    Returns:
        (E, K) hazards per day.
    """
    weighted = [] if factors is None else [factor for factor in factors if factor is not None]
    exposed = exposure(edges_days, entry_days, duration_days) if weighted else None
    total: Floats = np.zeros(len(edges_days) + 1)
    if not len(edges_days):  # one column is added up pairwise
        total = np.asarray(exposure(edges_days, entry_days, duration_days).sum(axis=0))
    # some rows at a time, in the order of one sum, to the last bit
    for start in range(0, len(duration_days) if len(edges_days) else 0, _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        days_there = exposure(edges_days, entry_days[some], duration_days[some])
        total = np.concatenate([total[None], days_there]).sum(axis=0)
    bins = event_bin(edges_days, duration_days)
    out = np.empty((n_causes, len(edges_days) + 1))
    for number in range(n_causes):
        factor = None if factors is None else factors[number]
        days = total if factor is None or exposed is None else factor @ exposed
        events = np.bincount(bins[cause == number + 1], minlength=out.shape[1]).astype(np.float64)
        prior = max(events.sum(), 0.5) / max(days.sum(), 1e-9)
        out[number] = (events + 0.5 * prior * days / max(prior * days.sum(), 1e-9) + 1e-3) / (
            days + 1e-3 / prior
        )
    return out


# ---- accuracy, before any outcome is known ---------------------------------------------------------------------


def expected_accuracy(incidence: Floats, weights: Floats | None = None) -> Floats:
    """Expected C, Brier score and IPA of a cause by a horizon.

    With F_i the predicted cumulative incidence and t the horizon, a person i has the event in bin k with probability
    ΔF_i(k), and j has had none by then with 1 − F_j. So, as Wolbers' C counts pairs,

        C = Σ_ij a_ij (1[F_i(t) > F_j(t)] + ½ 1[F_i(t) = F_j(t)]) / Σ_ij a_ij,   a_ij = Σ_k ΔF_i(k) (1 − F_j(k))
        Brier = mean F(t) (1 − F(t)),   IPA = 1 − Brier / (F̄(t) (1 − F̄(t)))

    Costs O(n²): give a sample.

    Args:
        incidence: (n, K) cumulative incidence by the ends of bins, the last of which is the horizon.
        weights: (B, n) of people; default: one row of ones.

    Returns:
        (3, B); NaN where nothing can be compared.

    Example:
        >>> expected_accuracy(np.array([[0.5], [0.1]])).round(3).ravel().tolist()
        [0.864, 0.17, 0.19]
    """
    n = len(incidence)
    weight = np.ones((1, n)) if weights is None else weights
    risk, start = incidence[:, -1], np.pad(incidence, ((0, 0), (1, 0)))[:, :-1]
    pairs = (incidence - start) @ (1.0 - (incidence + start) / 2).T
    np.fill_diagonal(pairs, 0.0)
    won = np.sign(risk[:, None] - risk) / 2 + 0.5
    c = divide(
        ((weight @ (pairs * won)) * weight).sum(axis=1), ((weight @ pairs) * weight).sum(axis=1)
    )
    total = weight.sum(axis=1)
    brier, mean = divide(weight @ (risk * (1 - risk)), total), divide(weight @ risk, total)
    return np.stack([c, brier, 1.0 - divide(brier, mean * (1 - mean))])
