"""What baselines are fitted to in tests."""

from dataclasses import replace
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords

EDGES = (30.0, 90.0, 180.0, 365.25, 547.9, 730.5, 1096.0, 1826.25)  # of a run's grid


def given_to(
    task: TaskConfig, prepared: Prepared, train: TaskRecords, tuning: TaskRecords, seed: int = 0
) -> FittingData:
    """What every baseline is fitted to."""
    return FittingData(task, prepared.vocabulary, train, tuning, EDGES, seed)


def with_rows(split: TaskRecords, **columns: Any) -> TaskRecords:
    """The same subjects, with other columns of their prediction times."""
    return replace(split, rows=replace(split.rows, **columns))


def without(split: TaskRecords, cause: int) -> TaskRecords:
    """The same subjects, those with an event of the cause censored then."""
    causes = np.asarray(split.rows.cause)
    return with_rows(split, cause=np.where(causes == cause, 0, causes).astype(np.int8))


def fit(kind: type, task: TaskConfig, prepared: Prepared, train: TaskRecords, tuning: TaskRecords) -> Predictor:
    """Any of the fast baselines."""
    made: Predictor = getattr(kind, "fit", kind)(given_to(task, prepared, train, tuning))
    return made


def blanked(split: TaskRecords, days: float) -> TaskRecords:
    """The same prediction times, exposure starting some days later; events until then drop out."""
    rows = split.rows
    kept = np.asarray(rows.duration_days) > days
    entry = np.full(len(rows), days, np.float32)
    duration = np.where(kept, rows.duration_days, days + 1e-3)
    cause = np.where(kept, rows.cause, 0).astype(np.int8)
    return with_rows(split, entry_days=entry, duration_days=duration, cause=cause)
