"""The baseline "Aalen–Johansen": the cumulative incidence of the training cohort, the same curve for everybody."""

from collections.abc import Callable

import numpy as np

from ehrsequencing.baselines.base import ChunkedBaseline, FittingData
from ehrsequencing.baselines.piecewise import days_since_index
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.hazards import cohort_hazards
from ehrsequencing.metrics.censoring import StepFunction, aalen_johansen
from ehrsequencing.records.timelines import TaskRecords


class MarginalIncidence(ChunkedBaseline):
    """Aalen–Johansen on the training queries of each landmark; a row takes the landmark nearest in time since index.

    For the likelihood, the same queries' events over days at risk in each bin of the run's grid.
    """

    name = "Aalen–Johansen"

    def __init__(self, data: FittingData) -> None:
        super().__init__(data)
        rows = data.train.rows
        self.landmarks: list[float] = []
        self.incidences: list[StepFunction] = []  # of each landmark
        self.landmark_hazards: list[Floats] = []  # (causes, bins) of each landmark
        for days in sorted({0.0, *data.task.landmarks}):
            at = rows.at_landmark(days)
            if at.any():
                duration, cause = rows.duration_days[at], rows.cause[at]
                self.landmarks.append(days)
                self.incidences.append(
                    aalen_johansen(duration, cause.astype(np.int64), n_causes=self.n_causes)
                )
                hazards = cohort_hazards(
                    self.edges, rows.entry_days[at], duration, cause, n_causes=self.n_causes
                )
                self.landmark_hazards.append(hazards)

    def _nearest(self, records: TaskRecords, chosen: Ints) -> Ints:
        """(r,) number of the landmark of each row."""
        since = days_since_index(records.rows, chosen)
        nearest: Ints = np.abs(since[:, None] - np.array(self.landmarks)).argmin(axis=1)
        return nearest

    def curves(self, records: TaskRecords, chosen: Ints) -> Callable[[Floats], Floats]:
        """See `ChunkedBaseline`."""
        nearest = self._nearest(records, chosen)
        return lambda days: np.stack([curve.at(days) for curve in self.incidences])[nearest]

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `ChunkedBaseline`."""
        return np.stack(self.landmark_hazards)[self._nearest(records, chosen)]
