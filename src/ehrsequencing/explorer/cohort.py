"""The cohort without individuals: histograms, calibration groups and quartiles of curves, small counts hidden."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, enough_people, shareable_count
from ehrsequencing.explorer.patients import NOT_KNOWN, landmark_rows
from ehrsequencing.metrics.censoring import RiskSets

if TYPE_CHECKING:
    from ehrsequencing.explorer.collect import Explorer

BINS, GROUPS = 48, 5


def aggregates(explorer: "Explorer", landmarks: list[float]) -> list[dict[str, Any]]:
    """For each cause, horizon and moment: histogram, calibration and curves that tell nothing of fewer than 11 people.

    Args:
        explorer: What is shown.
        landmarks: Moments at which predictions are compared with what happened, in days after the index.
    """
    patients, found = explorer.gathered.patients, list[dict[str, Any]]()
    by_moment = [patients.latest, *(landmark_rows(patients, days) for days in landmarks)]
    days = np.asarray(explorer.run.task.horizons, dtype=np.float64)
    points = np.searchsorted(explorer.curve_days, days)
    for moment, rows in enumerate(by_moment):
        rows, fair = rows[rows >= 0], by_moment[max(moment, 1)]
        for cause in range(patients.risk.shape[1]):
            for horizon, point in enumerate(points.tolist()):
                found.append(
                    {
                        "moment": moment,
                        "cause": cause,
                        "horizon": horizon,
                        "histogram": _histogram(
                            patients.risk[rows, cause, point].astype(np.float64)
                        ),
                        "calibration": _calibration(
                            explorer, fair[fair >= 0], cause, point, float(days[horizon])
                        ),
                        "curve": [],
                    }
                )
    return found


def _histogram(risk: Floats) -> list[tuple[float, float, int | str | None]]:
    """Bars [low, high, people] over the square root of risk; those of 1 to 10 people are left out."""
    if len(risk) < SMALLEST_COUNT:
        return []
    # rounded: no bar ends at one person's risk
    top = max(0.05, float(np.ceil(100 * np.sqrt(risk.max())) / 100))
    counts, edges = np.histogram(np.sqrt(risk), bins=BINS, range=(0.0, top))
    bars = zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    return [
        (low**2, high**2, shareable_count(people))
        for low, high, people in bars
        if people >= SMALLEST_COUNT
    ]


def _calibration(
    explorer: "Explorer", rows: Ints, cause: int, point: int, horizon: float
) -> list[tuple[float, float, int | str | None]]:
    """Groups (predicted, observed, people) by risk, of those with 11 people who had the event and 11 who had not."""
    patients, start = explorer.gathered.patients, explorer.run.task.blanking
    duration = patients.end_day[rows] - patients.row_day[rows]
    rows = rows[(patients.cause[rows] != NOT_KNOWN) & (duration > start)]
    if len(rows) < SMALLEST_COUNT:
        return []
    risk = patients.risk[rows, cause, point].astype(np.float64)
    groups: list[tuple[float, float, int | str | None]] = []
    for own in np.array_split(np.argsort(risk, kind="stable"), GROUPS):
        if not len(own):
            continue
        duration = patients.end_day[rows[own]] - patients.row_day[rows[own]]
        sets = RiskSets.count(
            duration, patients.cause[rows[own]].astype(np.int64), patients.risk.shape[1], None
        )
        if not sets.reaches([horizon])[0]:
            continue
        observed = float(sets.incidence.at([horizon])[cause, 0])
        if enough_people(round(observed * len(own)), len(own)):
            mean = float(risk[own].mean())
            groups.append((round(mean, 3), round(observed, 3), shareable_count(len(own))))
    return groups
