"""Observed and predicted cumulative incidence over time, in groups of subjects of similar predicted risk.

Scored rows at one landmark go in, with risks on a grid of times. For each cause comes out, for at most four groups
of equal size by predicted risk: the mean predicted curve, the Aalen–Johansen estimate with its band, and how many
are still followed. There are fewer groups where four would hold fewer than 11 subjects with or without the event.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.metrics.censoring import RiskSets, aalen_johansen_se

MOST_GROUPS = 4


def incidence_rows(
    grid: Comparison, causes: Sequence[str], *, model: str, horizon_days: float
) -> list[dict[str, Any]]:
    """Content of `incidence`: a row for each cause, up to one horizon.

    Args:
        grid: The rows at one landmark, with risks on a grid of times.
        causes: Names.
        model: Whose risks.
        horizon_days: Where the curves end; the risk by then makes the groups.
    """
    days = grid.horizons_days[grid.horizons_days <= horizon_days]
    out = []
    for e, cause in enumerate(causes):
        risk = grid.risk[model][:, e, : len(days)]
        group = risk_groups(
            risk[:, -1], (grid.cause == e + 1) & (grid.duration_days <= horizon_days)
        )
        ticks = tick_days(horizon_days)
        found = [
            _group(grid, risk, group == g, e, days, len(causes), ticks)
            for g in range(int(group.max()) + 1)
        ]
        out.append(
            {
                "landmark_days": grid.landmark_days,
                "cause": cause,
                "horizon_days": float(horizon_days),
                "days": [0.0, *days.tolist()],
                "tick_days": ticks,
                "groups": found,
            }
        )
    return out


def risk_groups(risk: Floats, event: Any) -> Ints:
    """Number of each row's group by predicted risk, from low to high; -1 everywhere where even one group is too small.

    >>> risk_groups(np.arange(100) / 100, np.arange(100) % 2 == 0).max().item()
    3
    >>> risk_groups(np.arange(100) / 100, np.arange(100) > 75).max().item()
    0
    >>> risk_groups(np.ones(3), np.ones(3)).tolist()
    [-1, -1, -1]
    """
    event = np.asarray(event, dtype=bool)
    for count in range(MOST_GROUPS, 0, -1):
        edges = np.quantile(risk, np.arange(1, count) / count, method="inverted_cdf")
        group = np.searchsorted(edges, risk, side="left")
        with_event, size = (
            np.bincount(group[event], minlength=count),
            np.bincount(group, minlength=count),
        )
        if min(*with_event, *(size - with_event)) >= SMALLEST_COUNT:
            return group.astype(np.int64)
    return np.full(len(risk), -1, dtype=np.int64)


def tick_days(horizon_days: float) -> list[float]:
    """Round times from 0 to a horizon, at which the numbers at risk are told.

    >>> tick_days(30.0), tick_days(1826.25)
    ([0.0, 10.0, 20.0, 30.0], [0.0, 365.25, 730.5, 1095.75, 1461.0, 1826.25])
    """
    per = DAYS_PER_YEAR if horizon_days >= 2 * DAYS_PER_YEAR else 1.0
    whole = (
        parts for parts in (5, 4, 3, 6) if horizon_days / per / parts % (1 if per > 1 else 5) == 0
    )
    parts = next(whole, 4)
    return [horizon_days * k / parts for k in range(parts + 1)]


def _group(
    grid: Comparison,
    risk: Floats,
    inside: Any,
    e: int,
    days: Floats,
    causes: int,
    ticks: Sequence[float],
) -> dict[str, Any]:
    duration, cause = grid.duration_days[inside], grid.cause[inside]
    counts = RiskSets.count(duration, cause, causes, None)
    observed, reached = counts.incidence.at(days)[e], counts.reaches(days)
    spread = 1.96 * aalen_johansen_se(duration, cause, days, n_causes=causes)[e]
    known = [float(value) if ok else None for value, ok in zip(observed, reached, strict=True)]

    def limits(sign: float) -> list[float | None]:
        ends = np.clip(observed + sign * spread, 0, 1)
        return [0.0, *(float(end) if ok else None for end, ok in zip(ends, reached, strict=True))]

    return {
        "n": int(inside.sum()),
        "predicted": [0.0, *risk[inside].mean(axis=0).tolist()],
        "observed": [0.0, *known],
        "low": limits(-1.0),
        "high": limits(1.0),
        "events": [0, *(int(((cause == e + 1) & (duration <= day)).sum()) for day in days)],
        "at_risk": [int((duration >= day).sum()) for day in ticks],
    }
