"""Censoring weights of an evaluation: who drops out, and on whose clock."""

from functools import cached_property

import numpy as np

from ehrsequencing.baselines.base import FittingData
from ehrsequencing.baselines.landmark_cox import HistoryCensoring
from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.evaluation.population import Population
from ehrsequencing.metrics.censoring import (
    CensoringByRow,
    StepFunction,
    SubjectClock,
    censoring_survival,
    dropout_cause,
)
from ehrsequencing.records.cohort import potential_days
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords, TaskRows


class Weights:
    """The distribution of drop-out at each landmark, and at all prediction times together.

    Args:
        population: The subjects that are evaluated.
        task: The question.
        train: Training subjects, where the curves are to come from them.
        fitting: What a Cox regression of drop-out is fitted to; None: Kaplan–Meier.

    Attributes:
        potential: (R,) days from each evaluated prediction time until follow-up ends by design.
    """

    def __init__(
        self,
        population: Population,
        task: TaskConfig,
        *,
        train: TaskRecords | None,
        fitting: FittingData | None,
    ) -> None:
        self.records, self.train = population.records, train
        self.task, self.dataset_end_us = task, population.dataset_end_us
        self.potential = potential_days(self.records, task, self.dataset_end_us)
        self.cox = None if fitting is None else HistoryCensoring(fitting)

    def at(self, landmark_days: float | None, chosen: Ints) -> StepFunction | CensoringByRow | None:
        """G of the chosen rows: on each subject's own clock where subjects have several, else one curve for all.

        That of a landmark is fitted on the evaluated rows (None), or on the training subjects at risk there.
        """
        if self.cox is not None:
            return self.cox.of_rows(self.records, chosen, landmark_days=landmark_days)
        subject = self.records.rows.subject[chosen]
        if len(np.unique(subject)) < len(chosen):
            return self._clock.of_rows(days_since_first_index(self.records.rows)[chosen])
        if self.train is None:
            return None
        at = self.train.at_landmark(landmark_days or 0.0)
        if not len(at):
            return None
        return censoring_survival(self.train.rows.duration_days[at], self._dropout(self.train)[at])

    def _dropout(self, records: TaskRecords) -> Ints:
        """(R,) causes, 0 only where the subject dropped out."""
        ends = potential_days(records, self.task, self.dataset_end_us)
        return dropout_cause(records.rows.duration_days, records.rows.cause, ends)

    @cached_property
    def _clock(self) -> SubjectClock:
        """G₀ by time since the index, of the training subjects or of those that are evaluated."""
        records = self.records if self.train is None else self.train
        since = days_since_first_index(records.rows)
        dropout = self._dropout(records)
        return SubjectClock.fit(since, records.rows.duration_days, dropout, records.rows.subject)


def days_since_first_index(rows: TaskRows) -> Floats:
    """(R,) days from the subject's first index to each prediction time."""
    first = rows.index_us[rows.row_offsets[:-1][rows.subject]]
    return np.asarray((rows.prediction_us - first) / DAY_US, dtype=np.float64)
