"""Aalen–Johansen: the cohort's own cumulative incidence, the same curve for everybody."""

from collections.abc import Sequence

import numpy as np

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.baselines.piecewise import days_since_index, nll_of_hazards
from ehrsequencing.config import TaskConfig
from ehrsequencing.metrics.censoring import StepFunction, aalen_johansen, conditional_risk
from ehrsequencing.records.hazards import cohort_hazards
from ehrsequencing.records.timelines import TaskRows, Timelines


class MarginalIncidence:
    """Aalen–Johansen on the training queries of each landmark; a row takes the landmark nearest in time since index.

    For the likelihood, the same queries' events over days at risk in each bin of the run's grid.
    """

    name = "Aalen–Johansen"

    def __init__(self, task: TaskConfig, rows: TaskRows, *, edges_days: Sequence[float]) -> None:
        self.n_causes, self.edges = len(task.causes), tuple(edges_days)
        self.landmarks: list[float] = []
        self.curves: list[StepFunction] = []
        self.hazards: list[Floats] = []  # (causes, bins) of each landmark
        for days in sorted({0.0, *task.landmarks}):
            at = rows.at_landmark(days)
            if at.any():
                self.landmarks.append(days)
                duration, cause = rows.duration_days[at], rows.cause[at]
                self.curves.append(aalen_johansen(duration, cause.astype(np.int64), n_causes=self.n_causes))
                self.hazards.append(
                    cohort_hazards(self.edges, rows.entry_days[at], duration, cause, n_causes=self.n_causes)
                )

    def _nearest(self, rows: TaskRows, chosen: Ints) -> Ints:
        """Number of the landmark of each row."""
        since = days_since_index(rows, chosen)
        nearest: Ints = np.abs(since[:, None] - np.array(self.landmarks)).argmin(axis=1)
        return nearest

    def risk(
        self, timelines: Timelines, rows: TaskRows, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        curves = self.curves

        def cumulative(days: Floats) -> Floats:
            return np.stack([curve.at(days) for curve in curves])

        answers: Floats = conditional_risk(cumulative, horizons_days, start_days=start_days)[
            self._nearest(rows, chosen)
        ]
        return answers

    def nll(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """See `Baseline`."""
        return nll_of_hazards(np.stack(self.hazards)[self._nearest(rows, chosen)], self.edges, rows, chosen)
