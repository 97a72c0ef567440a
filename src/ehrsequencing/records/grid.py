"""The time grid of the hazards, fitted on training rows (SCIENCE.md §3)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.records.scales import KNOTS, fit_scale

MOST_EVENTS = 1 << 17  # rows with an event from which stored edges are computed


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
        subject: (R,) whose durations they are. Needed where edges are stored: they are then quantiles of groups of
            people (`fit_scale`), so that no edge is one person's duration.
        enough: People in a group. Where fewer have events, the horizons are the only edges.

    Returns:
        Rising edges in days; the last bin, after the last edge, is open. A quantile closer to a horizon than a tenth of
        the horizon / `bins` is dropped.

    >>> grid_edges(np.arange(1.0, 101), np.ones(100, np.int8), horizons_days=[50.0], bins=4)
    (25.75, 50.0, 75.25)
    """
    events = np.asarray(duration_days[cause > 0], dtype=np.float64)
    at = np.linspace(0, 1, bins + 1)[1:-1]
    if subject is None:
        inner = np.quantile(events, at) if len(events) else np.zeros(0)
    else:
        # rows are sorted by subject, so this spreads over all
        some = slice(None, None, 1 + len(events) // MOST_EVENTS)
        scale = fit_scale(events[some], subject[cause > 0][some].astype(np.uint32), enough=enough)
        inner = (
            np.zeros(0) if scale is None else np.interp(at, np.linspace(0, 1, KNOTS), scale.knots)
        )
    horizons = np.asarray(horizons_days, dtype=np.float64)
    distance = np.abs(inner[:, None] - horizons[None, :])
    clear = np.all(distance > 0.1 * np.maximum(horizons, 1e-9) / bins, axis=1)
    return tuple(float(edge) for edge in np.unique(np.r_[inner[clear & (inner > 0)], horizons]))
