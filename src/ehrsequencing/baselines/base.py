"""What every baseline has in common: the data that it is fitted to, and how it predicts.

Two kinds of answers: risks by some horizons, and the `horizon` likelihood by hazards that are constant in the bins of
the run's grid.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Floats, Ints, row_blocks
from ehrsequencing.metrics.censoring import conditional_risk
from ehrsequencing.records.hazards import cohort_hazards, cumulative_incidence, horizon_nll
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary


@dataclass(frozen=True)
class FittingData:
    """What a baseline is fitted to.

    Attributes:
        task: The question.
        vocabulary: Names of the tokens.
        train: Visits and prediction times to fit on.
        tuning: Those of other subjects, which choose settings.
        edges_days: The K − 1 inner edges of the run's grid.
        seed: Of every random draw.
        enough: Training subjects that every stored name and number must come from (`vocabulary.min_subjects`).
        recalibration: Strength of the last step, as of our own training (`training.recalibration`); 0: none.
    """

    task: TaskConfig
    vocabulary: Vocabulary
    train: TaskRecords
    tuning: TaskRecords
    edges_days: tuple[float, ...]
    seed: int = 0
    enough: int = 5
    recalibration: float = 0.0

    def draw(self, rows: Ints, most: int) -> Ints:
        """Some row numbers, sorted: all of them, or `most` drawn at random."""
        return np.sort(np.random.default_rng(self.seed).permutation(rows)[:most])

    def cohort_hazards(self) -> Floats:
        """(causes, bins) hazards per day of the training cohort."""
        rows = self.train.rows
        return cohort_hazards(
            self.edges_days,
            rows.entry_days,
            rows.duration_days,
            rows.cause,
            n_causes=len(self.task.causes),
        )


class Baseline(Protocol):
    """Anything that predicts at prediction times."""

    name: str

    def risk(
        self, records: TaskRecords, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """Cumulative incidence (r, causes, horizons) at the chosen rows, of any split.

        `start_days`: given no event for so long after the prediction time (a task's blanking).
        """
        ...

    def nll(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The model's own `horizon` likelihood (r,) of the chosen rows, by hazards constant in the bins of its grid."""
        ...


class HazardBaseline(ABC):
    """A baseline with hazards on the run's grid; it predicts for some thousand prediction times at a time."""

    name: str
    edges: tuple[float, ...]
    n_causes: int

    @abstractmethod
    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, causes, bins) hazards per day of the chosen rows."""

    def curves(self, records: TaskRecords, chosen: Ints) -> Callable[[Floats], Floats]:
        """Days (H,) → cumulative incidence (r, causes, H) of the chosen rows."""
        hazards = self.hazards(records, chosen)
        return lambda days: cumulative_incidence(hazards, self.edges, days)

    def risk(
        self, records: TaskRecords, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        out = np.empty((len(chosen), self.n_causes, len(horizons_days)))
        for part in row_blocks(len(chosen)):
            out[part] = conditional_risk(
                self.curves(records, chosen[part]), horizons_days, start_days=start_days
            )
        return out

    def nll(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `Baseline`."""
        rows, out = records.rows, np.empty(len(chosen))
        for part in row_blocks(len(chosen)):
            some = chosen[part]
            out[part] = horizon_nll(
                self.hazards(records, some),
                self.edges,
                duration_days=rows.duration_days[some],
                cause=rows.cause[some],
                entry_days=rows.entry_days[some],
            )
        return out
