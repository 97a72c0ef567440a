"""The hazard's time grid and its starting level, fitted on training rows (SCIENCE.md §3)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.records.scales import KNOTS, fit_scale

MOST_EVENTS = 1 << 17  # rows with an event that stored edges are read off


def grid_edges(
    duration_days: Floats,
    cause: NDArray[np.int8],
    *,
    horizons_days: Sequence[float],
    bins: int,
    subject: Ints | None = None,
    enough: int = 1,
) -> tuple[float, ...]:
    """Inner edges of the hazard's bins: quantiles of the event durations of all causes, and every reported horizon.

    Args:
        duration_days: (R,) training durations.
        cause: (R,) causes, 0 = censored.
        horizons_days: Horizons that must be edges.
        bins: Number of quantile bins.
        subject: (R,) whose durations they are, where edges are stored: then they are quantiles of groups of people
            (`fit_scale`), so that nobody's duration is an edge.
        enough: People of a group; where fewer have events, the horizons are the only edges.

    Returns:
        Rising edges in days; the last bin, after the last edge, is open. Quantiles closer than a tenth of a bin's
        share to a horizon give way to it.

    >>> grid_edges(np.arange(1.0, 101), np.ones(100, np.int8), horizons_days=[50.0], bins=4)
    (25.75, 50.0, 75.25)
    """
    events = np.asarray(duration_days[cause > 0], dtype=np.float64)
    at = np.linspace(0, 1, bins + 1)[1:-1]
    if subject is None:
        inner = np.quantile(events, at) if len(events) else np.zeros(0)
    else:
        some = slice(None, None, 1 + len(events) // MOST_EVENTS)  # rows stand by subject: evenly spread over all
        scale = fit_scale(events[some], subject[cause > 0][some].astype(np.uint32), enough=enough)
        inner = np.zeros(0) if scale is None else np.interp(at, np.linspace(0, 1, KNOTS), scale.knots)
    horizons = np.asarray(horizons_days, dtype=np.float64)
    distance = np.abs(inner[:, None] - horizons[None, :])
    clear = np.all(distance > 0.1 * np.maximum(horizons, 1e-9) / bins, axis=1)
    return tuple(float(edge) for edge in np.unique(np.r_[inner[clear & (inner > 0)], horizons]))


def exposure(edges_days: Sequence[float], entry_days: NDArray[np.floating], duration_days: Floats) -> Floats:
    """Days at risk in each bin, `|[τ_{k−1}, τ_k) ∩ [entry, duration)|`, (R, K)."""
    low, high = np.r_[0.0, edges_days], np.r_[edges_days, np.inf]
    span = np.minimum(duration_days[:, None], high) - np.maximum(np.asarray(entry_days)[:, None], low)
    return np.asarray(np.maximum(span, 0.0), dtype=np.float64)


def event_bin(edges_days: Sequence[float], duration_days: Floats) -> Ints:
    """Bin k(duration) of each row, (R,): `τ_{k−1} < duration ≤ τ_k`.

    An event at an edge belongs to the bin that ends there: there its exposure was, and metrics count it as an event by
    that horizon.
    """
    return np.searchsorted(np.asarray(edges_days), duration_days, side="left")


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

    Half an event is spread over all bins of a cause, so that a bin without one keeps a finite logarithm.

    Args:
        edges_days: Inner edges of the bins.
        entry_days: (R,) when exposure starts.
        duration_days: (R,) days to event or censoring.
        cause: (R,) causes, 0 = censored.
        n_causes: Number of causes.
        factors: Per cause (R,) what multiplies the hazard of a row, None = 1. Its days then count so many times, and
            what comes out is the hazard of a row whose factor is 1, of most likelihood.

    Returns:
        (E, K) hazards per day.
    """
    exposed = exposure(edges_days, entry_days, duration_days)
    bins = event_bin(edges_days, duration_days)
    out = np.empty((n_causes, len(edges_days) + 1))
    for number in range(n_causes):
        factor = None if factors is None else factors[number]
        days = exposed.sum(axis=0) if factor is None else factor @ exposed
        events = np.bincount(bins[cause == number + 1], minlength=out.shape[1]).astype(np.float64)
        prior = max(events.sum(), 0.5) / max(days.sum(), 1e-9)
        out[number] = (events + 0.5 * prior * days / max(prior * days.sum(), 1e-9) + 1e-3) / (days + 1e-3 / prior)
    return out
