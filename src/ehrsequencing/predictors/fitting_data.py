"""What a predictor is fitted to: visits and prediction times of training and tuning subjects, and the run's grid."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Floats, Ints, offsets, row_blocks
from ehrsequencing.metrics.hazards import cohort_hazards, event_bin, exposure
from ehrsequencing.predictors.features import Features
from ehrsequencing.predictors.history import has_people
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary

PRIOR_EVENTS = 10.0  # of each bin, by which a level is drawn to 1


@dataclass(frozen=True)
class FittingData:
    """What a predictor is fitted to.

    Attributes:
        task: The question.
        vocabulary: Names of the tokens.
        train: Visits and prediction times to fit on.
        tuning: Those of other subjects, which choose settings.
        edges_days: The K − 1 inner edges of the run's grid.
        seed: Of every random draw.
        enough: Training subjects that every stored name and number must come from (`vocabulary.min_subjects`).
        trials: How many settings of the boosting are tried.
        recalibration: Strength of the last step, as of our own training (`training.recalibration`); 0: none.
        made: Features of the rows, where they are made already.
    """

    task: TaskConfig
    vocabulary: Vocabulary
    train: TaskRecords
    tuning: TaskRecords
    edges_days: tuple[float, ...]
    seed: int = 0
    enough: int = 5
    trials: int = 1
    recalibration: float = 0.0
    made: Features | None = None

    @property
    def features(self) -> Features:
        """What trees and Cox are fitted to; made anew each time, unless they are `made`."""
        return self.made or Features.fit(
            self.train, self.tuning, self.vocabulary, draw=self.draw, enough=self.enough
        )

    def without(self, subjects: Ints) -> "FittingData":
        """The same without the prediction times of some training subjects, with the features of all."""
        rows = self.train.rows
        others = np.flatnonzero(~np.isin(rows.subject, subjects))
        left = rows.select(others, offsets(rows.subject[others], len(rows.row_offsets) - 1))
        return replace(
            self,
            train=replace(self.train, rows=left),
            made=self.features.without(self.train, subjects),
        )

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

    def level(self, chosen: Ints, hazards: Callable[[slice], Floats]) -> Floats:
        """What multiplies a model's hazards at visits and at queries, so that they expect what happened there.

            level_{g,e,k} = (n + m) / (m + Σ_{rows of g} λ_e(k | x) · days at risk in k)      m = `PRIOR_EVENTS`

        n counts the events of cause e in bin k after training rows of kind g: 0 visits, 1 queries. A model that
        multiplies the cohort's own hazards by a factor that many bins share needs it, because people at high risk
        leave first (Breslow 1974). So does one that is regularised: people who come often weigh more among the visits
        than among the queries, and it learns that in part only. A bin that fewer than `enough` people of a kind reach
        keeps the level 1.

        Args:
            chosen: (r,) training rows that the model was fitted to.
            hazards: Some of them, by place → the model's hazards (·, causes, bins).

        Returns:
            (2, causes, bins).
        """
        rows, shape = self.train.rows, (2, len(self.task.causes), len(self.edges_days) + 1)
        kind, cause = kind_of(rows, chosen), rows.cause[chosen].astype(np.int64)
        last, owner = event_bin(self.edges_days, rows.duration_days[chosen]), rows.subject[chosen]
        had = cause > 0
        events, expected = np.zeros(shape), np.zeros(shape)
        np.add.at(events, (kind[had], cause[had] - 1, last[had]), 1.0)
        for part in row_blocks(len(chosen)):
            some = chosen[part]
            days = exposure(self.edges_days, rows.entry_days[some], rows.duration_days[some])
            seen = hazards(part) * days[:, None]
            for g in range(2):
                expected[g] += seen[kind[part] == g].sum(axis=0)
        level = (events + PRIOR_EVENTS) / (expected + PRIOR_EVENTS)
        for g, k in np.ndindex(2, shape[2]):
            if not has_people(owner[(kind == g) & (last >= k)], self.enough):
                level[g, :, k] = 1.0
        return level


def kind_of(rows: TaskRows, chosen: Ints) -> Ints:
    """(r,) 1 for queries (landmarks, the index, a given moment), 0 for visits."""
    return rows.is_query[chosen].astype(np.int64)
