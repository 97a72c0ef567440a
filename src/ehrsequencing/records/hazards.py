"""Piecewise-constant cause-specific hazards per day in NumPy: the formulas of `models/hazards.py`, without torch.

Bin k covers `[τ_{k−1}, τ_k)` days after the prediction time, with τ_0 = 0, the inner edges `edges_days` = τ_1 …
τ_{K−1}, and an open last bin. A test compares each function with its twin.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats, Ints

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
    total = _total_exposure(edges_days, entry_days, duration_days)
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


def _total_exposure(
    edges_days: Sequence[float], entry_days: NDArray[np.floating], duration_days: Floats
) -> Floats:
    """Sum of `exposure` over the rows, (K,); some rows at a time, in the order of one sum, to the last bit."""
    if not len(edges_days):  # one column is added up pairwise
        return np.asarray(exposure(edges_days, entry_days, duration_days).sum(axis=0))
    total: Floats = np.zeros(len(edges_days) + 1)
    for start in range(0, len(duration_days), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        days = exposure(edges_days, entry_days[some], duration_days[some])
        total = np.concatenate([total[None], days]).sum(axis=0)
    return total
