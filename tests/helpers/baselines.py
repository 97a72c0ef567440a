"""x"""

from ehrsequencing.baselines.base import FittingData
from ehrsequencing.config import TaskConfig
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords

EDGES = (30.0, 90.0, 180.0, 365.25, 547.9, 730.5, 1096.0, 1826.25)  # of a run's grid


def given_to(
    task: TaskConfig, prepared: Prepared, train: TaskRecords, tuning: TaskRecords, seed: int = 0
) -> FittingData:
    """What every baseline is fitted to."""
    return FittingData(task, prepared.vocabulary, train, tuning, EDGES, seed)
