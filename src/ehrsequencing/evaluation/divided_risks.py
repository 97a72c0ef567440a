"""The network's share of an evaluation, done by several processes: process 0 asks, and each answers for its subjects.

Process 0 makes the whole evaluation. The others wait until it asks for risks or likelihoods of the population, answer
for their part of the subjects in the batches of one process, and end when it has asked its last question.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats, Floats32
from ehrsequencing.evaluation.risk_source import RunRisks
from ehrsequencing.metrics.censoring import conditional_risk
from ehrsequencing.prediction.divided import part_of
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.processes import ALONE, Processes


@dataclass(frozen=True)
class DividedRisks(RunRisks):
    """A run as a source of risks, in process 0 of several: those of the population come from all of them.

    Attributes:
        processes: Who shares the work.
        population: The records that all processes have.
    """

    processes: Processes = ALONE
    population: TaskRecords | None = None

    def _answers(self, records: TaskRecords, days: Floats, *, start_days: float) -> Floats:
        if records is not self.population:
            return super()._answers(records, days, start_days=start_days)

        def cumulative(of: Floats) -> Floats:
            return self._asked([float(day) for day in of]).astype(np.float64)

        return conditional_risk(cumulative, days, start_days=start_days)

    def nll(self, records: TaskRecords) -> Floats:
        """See `RiskSource`."""
        return super().nll(records) if records is not self.population else self._asked(None)

    def _asked(self, days: list[float] | None) -> Floats:
        assert self.population is not None
        self.processes.tell([days])
        own = _answer(self.run, _own_part(self.run, self.population, self.processes), days)
        others = [self.processes.receive(rank)[0] for rank in range(1, self.processes.count)]
        return np.concatenate([own, *others])


@contextmanager
def asked_of_all(run: Run, population: TaskRecords, processes: Processes) -> Iterator[RunRisks]:
    """The run as a source of risks, in process 0; after the block the other processes end."""
    if not processes.several:
        yield RunRisks(run)
        return
    yield DividedRisks(run, processes=processes, population=population)
    processes.tell(None)


def answer_for(run: Run, population: TaskRecords, processes: Processes) -> None:
    """In another process than process 0: answer until it has asked its last question."""
    own = _own_part(run, population, processes)
    while (asked := processes.tell()) is not None:
        processes.send([_answer(run, own, asked[0])]).wait()


def _own_part(run: Run, population: TaskRecords, processes: Processes) -> TaskRecords:
    return part_of(population, run.answers.batches(population), processes.count, processes.rank)


def _answer(run: Run, records: TaskRecords, days: list[float] | None) -> Floats | Floats32:
    """Risks (r, causes, H) by some days, or with None the likelihoods (r,)."""
    return run.nll(records) if days is None else run.risk(records, horizons_days=days)
