"""Piecewise-constant cause-specific hazards of the baselines: on the run's own grid, with the run's own likelihood.

A baseline that is a hazard model multiplies the training cohort's hazards by a factor of the record,

    λ_e(k | x) = base_e(k) · f_e(x, k)      k a bin of the run's grid, f_e fitted by Poisson likelihood

A bin counts with the days at risk in it, so that partly observed bins are neither dropped nor taken as whole, and a
competing event ends the exposure of every cause.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.config import TaskConfig
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.hazards import cohort_hazards, cumulative_incidence, horizon_nll
from ehrsequencing.records.timelines import TaskRows, Timelines

_PREDICT_ROWS = 20_000


class HazardModel(ABC):
    """Cause-specific piecewise-constant hazards, `base_e(k)` times a factor that subclasses fit.

    Args:
        task: The question.
        rows: Training prediction times.
        edges_days: The K − 1 inner edges of the run's grid.
    """

    name: str

    def __init__(self, task: TaskConfig, rows: TaskRows, edges_days: Sequence[float]) -> None:
        self.edges = tuple(edges_days)
        self.base = cohort_hazards(
            self.edges, rows.entry_days, rows.duration_days, rows.cause,
            n_causes=len(task.causes),
        )  # fmt: skip

    @abstractmethod
    def factor(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins)."""

    def risk(
        self, timelines: Timelines, rows: TaskRows, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        out = np.empty((len(chosen), len(self.base), len(horizons_days)))
        for start in range(0, len(chosen), _PREDICT_ROWS):
            part = slice(start, start + _PREDICT_ROWS)
            hazards = self.base * self.factor(timelines, rows, chosen[part])
            out[part] = cumulative_incidence(hazards, self.edges, horizons_days, start_days=start_days)
        return out

    def nll(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """See `Baseline`."""
        out = np.empty(len(chosen))
        for start in range(0, len(chosen), _PREDICT_ROWS):
            part = chosen[start : start + _PREDICT_ROWS]
            hazards = self.base * self.factor(timelines, rows, part)
            out[start : start + len(part)] = nll_of_hazards(hazards, self.edges, rows, part)
        return out


def nll_of_hazards(hazards: Floats, edges_days: Sequence[float], rows: TaskRows, chosen: Ints) -> Floats:
    """NLL (r,) of hazards (r, E, K) at chosen prediction times, by the formula of the model (`horizon_nll`)."""
    return horizon_nll(
        hazards,
        edges_days,
        duration_days=rows.duration_days[chosen],
        cause=rows.cause[chosen],
        entry_days=rows.entry_days[chosen],
    )


def days_since_index(rows: TaskRows, chosen: Ints) -> Floats:
    """Days (r,) from the index to each chosen prediction time."""
    days = (rows.prediction_us[chosen] - rows.index_us[chosen]) / DAY_US
    return np.asarray(days, dtype=np.float64)
