"""What training tells a progress bar."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float  # mean training NLL of the epoch so far
    tuning_nll: float | None  # of the last epoch that has ended
    subjects_per_second: float
    member: int = 1
    members: int = 1
    ended: bool = False  # the epoch has ended, and the tuning NLL is its own
    best: bool = False  # it is the best epoch so far


def of_epoch(row: dict[str, Any], epochs: int) -> Progress:
    """The progress at the end of an epoch, from its row of the history."""
    return Progress(
        row["epoch"],
        epochs,
        row["steps"],
        row["steps"],
        row["train_nll"],
        row["tuning_nll"],
        row["subjects_per_second"],
        ended=True,
        best=row["best"],
    )
