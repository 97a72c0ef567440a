"""Whom a network may learn from beside the events themselves: trees and Cox, each row's fitted without its subject."""

import numpy as np

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.landmark_cox import LandmarkCox
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords

FOLDS = 5


def folds_of(rows_of_subject: Ints, *, folds: int, seed: int) -> list[Ints]:
    """Subjects with prediction times, in so many folds of about equal size, at random.

    >>> [len(fold) for fold in folds_of(np.array([1, 0, 2, 1, 1, 3]), folds=2, seed=0)]
    [3, 2]
    """
    subjects = np.flatnonzero(rows_of_subject)
    order = np.random.default_rng([seed, folds, len(subjects)]).permutation(subjects)
    return [np.sort(order[number::folds]) for number in range(folds)]


class OutOfFoldTeacher:
    """Mean hazards of boosted visits and landmark Cox, out of fold: each is fitted five times, for the fifth left out.

        λ̃_e(k | x) = (λ_e(k | x; trees) + λ_e(k | x; Cox)) / 2

    A network that learns from them as well as from the events learns what the two find in the numbers of a record
    (distillation: Hinton, Vinyals & Dean 2015), and its own subject's outcome never reaches it through them. The trees'
    features and their cuts are those of the first fit: no outcome has a part in them.

    Args:
        prepared: The data.
        task_name: Which of its tasks.
        study: Settings; the seed of the training and of the evaluation.

    Raises:
        EhrseqError: The head is `visit`, or the task has outcomes.
    """

    def __init__(self, prepared: Prepared, task_name: str, study: StudyConfig) -> None:
        self.prepared, self.task, self.study = prepared, prepared.task(task_name), study
        fix = "leave out training.distillation"
        if study.model.head == "visit":
            what = "the visit head has no hazards per day that could learn from another model"
            raise EhrseqError(what, where="training.distillation", fix=fix)
        if self.task.outcomes is not None:
            what = "trees and Cox are fitted to the task's causes only"
            raise EhrseqError(what, where=f"task {task_name}, outcomes", fix=fix)
        self._last: tuple[Ints, Floats32] | None = None  # for the next member of an ensemble

    def __call__(self, train: TaskRecords, edges_days: tuple[float, ...]) -> Floats32:
        """See `Teacher`."""
        ids = np.asarray(train.timelines.subject_id)
        if self._last is not None and np.array_equal(self._last[0], ids):
            return self._last[1]
        shape = len(train), len(self.task.causes), len(edges_days) + 1
        hazards = np.full(shape, np.nan, dtype=np.float32)
        tuning = self.prepared.records(self.task.name, "tuning")
        counts = np.diff(train.rows.row_offsets)
        trees: BoostedVisits | None = None
        for fold in folds_of(counts, folds=FOLDS, seed=self.study.training.seed):
            others = np.setdiff1d(np.arange(len(train.timelines)), fold)
            data = FittingData(
                self.task,
                self.prepared.vocabulary,
                train.take(others),
                tuning,
                edges_days,
                self.study.evaluation.seed,
                enough=self.prepared.study.vocabulary.min_subjects,
            )
            part = train.take(fold)
            rows = np.flatnonzero(np.isin(train.rows.subject, fold))
            trees = BoostedVisits.fit(data, like=trees)
            models = (trees, LandmarkCox(data))
            hazards[rows] = np.mean([model.all_hazards(part) for model in models], axis=0)
        self._last = ids, hazards
        return hazards


def teacher_of(prepared: Prepared, task_name: str, study: StudyConfig) -> OutOfFoldTeacher | None:
    """The teacher that `training.distillation` asks for; None where it asks for none."""
    if study.training.distillation == 0:
        return None
    return OutOfFoldTeacher(prepared, task_name, study)
