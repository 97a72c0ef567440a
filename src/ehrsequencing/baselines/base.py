"""What every baseline has in common: the data that it is fitted to, and how it answers prediction times.

Two kinds of answers: risks by some horizons, and the `horizon` likelihood by hazards that are constant in the bins of
the run's grid.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ehrsequencing.baselines.piecewise import nll_of_hazards
from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Floats, Ints, row_blocks
from ehrsequencing.core.hazards import cohort_hazards, cumulative_incidence
from ehrsequencing.metrics.censoring import conditional_risk
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
    """

    task: TaskConfig
    vocabulary: Vocabulary
    train: TaskRecords
    tuning: TaskRecords
    edges_days: tuple[float, ...]
    seed: int = 0
    enough: int = 5

    def draw(self, rows: Ints, most: int) -> Ints:
        """Some row numbers, sorted: all of them, or `most` drawn at random."""
        return np.sort(np.random.default_rng(self.seed).permutation(rows)[:most])


class Baseline(Protocol):
    """Anything that answers at prediction times."""

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


class ChunkedBaseline(ABC):
    """A baseline that computes its answers for some thousand prediction times at a time."""

    name: str

    def __init__(self, data: FittingData) -> None:
        self.n_causes, self.edges = len(data.task.causes), data.edges_days

    @abstractmethod
    def curves(self, records: TaskRecords, chosen: Ints) -> Callable[[Floats], Floats]:
        """Days (H,) → cumulative incidence (r, causes, H) of the chosen rows."""

    @abstractmethod
    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, causes, bins) hazards per day of the chosen rows, for the likelihood."""

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
        out = np.empty(len(chosen))
        for part in row_blocks(len(chosen)):
            rows = chosen[part]
            out[part] = nll_of_hazards(self.hazards(records, rows), self.edges, records.rows, rows)
        return out


class HazardModel(ChunkedBaseline):
    """Piecewise-constant hazards: those of the training cohort times a factor of the record.

        λ_e(k | x) = base_e(k) · f_e(x, k)      k a bin of the run's grid, f_e fitted by Poisson likelihood

    A bin counts with the days at risk in it, so that a partly observed bin is neither dropped nor taken as whole. A
    competing event ends the exposure of every cause.
    """

    def __init__(self, data: FittingData) -> None:
        super().__init__(data)
        rows = data.train.rows
        # (causes, bins)
        self.base = cohort_hazards(
            self.edges, rows.entry_days, rows.duration_days, rows.cause, n_causes=self.n_causes
        )

    @abstractmethod
    def factor(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins)."""

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `ChunkedBaseline`."""
        return self.base * self.factor(records, chosen)

    def curves(self, records: TaskRecords, chosen: Ints) -> Callable[[Floats], Floats]:
        """See `ChunkedBaseline`."""
        hazards = self.hazards(records, chosen)
        return lambda days: cumulative_incidence(hazards, self.edges, days)


class HazardPart(Protocol):
    """Anything that gives hazards on the run's grid, and is kept without what it was fitted to."""

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, causes, bins) hazards per day of the chosen rows."""
        ...


class KeptBaseline(ChunkedBaseline):
    """A baseline that was fitted before, by the hazards that were kept of it.

    Args:
        name: Of the baseline.
        part: Its hazards.
        edges_days: The inner edges of their bins.
        n_causes: Number of causes.
    """

    def __init__(
        self, name: str, part: HazardPart, *, edges_days: tuple[float, ...], n_causes: int
    ) -> None:
        self.name, self.part, self.edges, self.n_causes = name, part, edges_days, n_causes

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `ChunkedBaseline`."""
        return self.part.hazards(records, chosen)

    def curves(self, records: TaskRecords, chosen: Ints) -> Callable[[Floats], Floats]:
        """See `ChunkedBaseline`."""
        hazards = self.hazards(records, chosen)
        return lambda days: cumulative_incidence(hazards, self.edges, days)
