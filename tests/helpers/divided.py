"""What one of two processes does in the tests of divided answers; `python -m helpers.divided RUN DATA OUT` runs it.

All of it happens in one pair of processes, since starting them takes longest. At the end process 1 kills itself.
"""

import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ehrsequencing.training.group import joined
from ehrsequencing.training.processes import Processes, Sending
from numpy.typing import NDArray

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.external import validate
from ehrsequencing.prediction import divided
from ehrsequencing.prediction.predict import Asked, predict
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training import inference as answers

BUDGET = 150  # visits in a batch, so that small data has many
QUICK = EvaluationConfig(baselines="none", bootstrap=5, explained_subjects=0, trajectories=0, subjects=60)
TRUE_PART, TRUE_ANSWER = divided.part_of, Asked.answer


def next_part(records: TaskRecords, batches: Any, parts: int, number: int) -> TaskRecords:
    """Broken: who answers is one process too far."""
    return TRUE_PART(records, batches, parts, (number + 1) % parts)


def killed(self: Asked, records: TaskRecords) -> Any:
    """Process 1 is killed where it would answer."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return TRUE_ANSWER(self, records)


def main(run: Path, data: Path, out: Path) -> None:
    torch.set_num_threads(1)
    answers.VISIT_BUDGET = BUDGET
    with joined(gpus=False) as group:
        us = group.processes
        predict(run, data, out / "all.parquet", processes=us)
        predict(run, data, out / "last.csv.gz", at="last", horizons_days=[90.0], processes=us)
        told = {"evaluated": evaluate(run, settings=QUICK, processes=us)}
        told["external"] = validate(run, data, out=out / "external", settings=QUICK, processes=us)[0]
        divided.part_of = next_part
        predict(run, data, out / "broken.parquet", processes=us)
        divided.part_of = TRUE_PART
        Asked.answer = killed  # type: ignore[method-assign]
        try:
            predict(run, data, out / "killed.parquet", processes=us)
        except EhrseqError as error:
            told["killed"] = str(error)
        (out / "told.json").write_text(json.dumps(told))


@dataclass(frozen=True)
class Queued(Processes):
    """One of several processes that all run in this one, the last first: a queue carries what they send."""

    queues: dict[int, deque[list[NDArray[Any]]]] = field(default_factory=dict)

    def send(self, arrays: Sequence[NDArray[Any]]) -> Sending:
        """See `Processes`."""
        self.queues.setdefault(self.rank, deque()).append(list(arrays))
        return Sending([])

    def receive(self, source: int) -> list[NDArray[Any]]:
        """See `Processes`."""
        return self.queues[source].popleft()


def one_after_another(count: int, work: Callable[[Processes], Any]) -> Any:
    """What process 0 of so many returns; nothing that was sent is left over."""
    queues = dict[int, deque[list[NDArray[Any]]]]()
    for rank in range(count - 1, -1, -1):
        found = work(Queued(rank, count, queues=queues))
    assert not any(queues.values())
    return found


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
