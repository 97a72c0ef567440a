"""Trees and Cox, each fitted once without every fold of subjects and once on all: what a network may learn from.

A network that learns from their mean as well as from the events finds what the two find in the numbers of a record
(distillation: Hinton, Vinyals & Dean 2015). What they say of a subject comes from fits without it, so that its own
outcome never reaches the network through them; the same out-of-fold answers give the weights of the two.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ehrsequencing.core.arrays import Floats32, Ints
from ehrsequencing.core.signals import give_back_freed_memory
from ehrsequencing.predictors.blend import STACKED, Blend
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.landmark_cox import LandmarkCox
from ehrsequencing.predictors.predictor import Predictor, hazards_of_each
from ehrsequencing.predictors.weights import BlendRows, fit_weights
from ehrsequencing.records.timelines import TaskRecords

FOLDS = 5
MOST_ROWS = 100_000  # training rows that weights are fitted to; above, those of subjects spread evenly over all


@dataclass(frozen=True)
class Stack:
    """Trees and Cox.

    Attributes:
        fitted: The two on all training subjects, with their weights.
        out_of_fold: (R, causes, bins) mean hazards per day of the two at the training rows, each row by fits without
            its subject; NaN at rows of subjects in no fold.
    """

    fitted: Blend
    out_of_fold: Floats32


def fit_stack(
    data: FittingData,
    *,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Stack:
    """Fit both, without each fold and on all.

        λ̃_e(k | x) = (λ_e(k | x; trees) + λ_e(k | x; Cox)) / 2

    Args:
        data: What to fit; its seed divides the subjects.
        progress: Called with fits done, and of how many.
    """
    train, edges = data.train, data.edges_days
    mean = np.full((len(train), len(data.task.causes), len(edges) + 1), np.nan, dtype=np.float32)
    out_of_fold: list[BlendRows] = []
    folds = folds_of(np.diff(train.rows.row_offsets), folds=FOLDS, seed=data.seed)
    *models, of_all = _fits(data, folds, progress)
    give_back_freed_memory()
    for parts, fold in zip(models, folds, strict=True):
        of_fold, rows = train.take(fold), np.flatnonzero(np.isin(train.rows.subject, fold))
        for part, hazards in hazards_of_each(parts, of_fold):
            mean[rows[part]] = np.mean(hazards, axis=0)
        some = fold[:: max(1, -(-len(train) // MOST_ROWS))]
        out_of_fold += blend_rows(
            parts, of_fold if len(some) == len(fold) else train.take(some), some
        )
    weights = fit_weights(BlendRows.joined(out_of_fold), n_causes=len(data.task.causes))
    return Stack(Blend(of_all, weights, name=STACKED), mean)


def _fits(
    data: FittingData, folds: Sequence[Ints], progress: Callable[[int, int], None]
) -> list[list[Predictor]]:
    """Trees and Cox without each fold, then of all. Cox comes first: trees need the memory of its covariates."""

    def each(data: FittingData, done: int) -> Iterator[FittingData]:
        for number in range(len(folds) + 1):
            give_back_freed_memory()  # what the fit before was made of
            progress(done + number, 2 * len(folds) + 2)
            yield data.without(folds[number]) if number < len(folds) else data

    data = replace(data, made=data.features)
    cox = list(map(LandmarkCox, each(data, 0)))  # `map` keeps no data
    data = replace(data, made=data.features.without_covariates())
    trees = map(BoostedVisits.fit, each(data, len(cox)))
    return [[*both] for both in zip(trees, cox, strict=True)]


def sampled(records: TaskRecords) -> TaskRecords:
    """The records of subjects spread evenly over all, with about `MOST_ROWS` rows; of fewer rows all."""
    step = max(1, -(-len(records) // MOST_ROWS))
    return records if step == 1 else records.take(np.arange(0, len(records.timelines), step))


def blend_rows(parts: list[Predictor], records: TaskRecords, subjects: Ints) -> list[BlendRows]:
    """What some predictors say of labelled rows, for the fit of their weights.

    Args:
        parts: The predictors.
        records: The rows.
        subjects: (S,) numbers under which their subjects are known elsewhere.
    """
    taken = []
    for some, hazards in hazards_of_each(parts, records):
        of_some = BlendRows.of(hazards, parts[0].edges_days, records.rows, some)
        taken.append(replace(of_some, subject=subjects[of_some.subject]))
    return taken


def folds_of(rows_of_subject: Ints, *, folds: int, seed: int) -> list[Ints]:
    """Subjects with prediction times, in so many folds of about equal size, at random.

    >>> [len(fold) for fold in folds_of(np.array([1, 0, 2, 1, 1, 3]), folds=2, seed=0)]
    [3, 2]
    """
    subjects = np.flatnonzero(rows_of_subject)
    order = np.random.default_rng([seed, folds, len(subjects)]).permutation(subjects)
    return [np.sort(order[number::folds]) for number in range(folds)]
