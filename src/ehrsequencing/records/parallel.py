"""What is done to each shard, in this process or spread over several: with the same result in the same order.

The first pass of `prepare` sees shards one by one, the second ranges of subjects, and each piece depends on nothing but
itself, so that other processes can do the work: they return plain arrays, and the first process adds them up, or
appends them to files, in order. Processes are spawned, never forked: nothing is inherited from one that runs threads.
"""

import itertools
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ehrsequencing.arrays import Ints
from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.cohort import NEVER, Cohort, CohortBuilder, CohortRows, cohort_steps
from ehrsequencing.records.data_end import DayCounts, LateRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import DAY_US, Events, opens_run
from ehrsequencing.records.fixes import FixLog
from ehrsequencing.records.meds import SPLITS, MedsReader, SplitLookup
from ehrsequencing.records.record import Record, make_record
from ehrsequencing.records.row_store import KeptRows, keep, read_kept
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.visits import Visits
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import FitPart, VocabularyFit
from ehrsequencing.storage import read_json

KEPT, CODES = ".rows", "codes.json"  # in the folder that is being made: rows between the passes, and all codes
_PIECE_ROWS = 1 << 17  # about so many rows are encoded at once: they fit the processor's cache
_ROWS_PER_PROCESS = 2_000_000  # with fewer, a process costs more than it saves
Result = TypeVar("Result")


class Tally:
    """Counts of one task, step by step, per split."""

    def __init__(self, task: TaskConfig) -> None:
        self.task = task
        self.steps = cohort_steps(task)
        shape = (len(SPLITS), len(self.steps) + 1)
        self.subjects = np.zeros(shape, dtype=np.int64)  # that got so far
        self.indexes = np.zeros(shape, dtype=np.int64)
        self.rows = np.zeros(len(SPLITS), dtype=np.int64)
        self.queries = np.zeros(len(SPLITS), dtype=np.int64)
        self.ends_record = 0  # outcomes that are their subject's last event, where that ends the follow-up
        self.notes = Counter[str]()
        self.outcomes = np.zeros((len(SPLITS), len(task.causes) + 1), dtype=np.int64)
        self.records_before = np.zeros((len(SPLITS), len(task.landmarks), 3), dtype=np.int64)

    def add_cohort(self, cohort: Cohort, split: NDArray[np.int8], visits: Visits) -> None:
        """Add a shard: its cohort, each subject's split (S,), and the visits."""
        self.ends_record += cohort.ends_record
        self.notes.update({
            "follow-up ended by a death that is no cause": cohort.ended_by_death,
            "indexes with censoring codes only before them": cohort.censoring_before,
            "indexes before birth": cohort.before_birth,
        })  # fmt: skip
        rows, row_split = cohort.rows, split[cohort.rows.subject]
        first = np.flatnonzero(opens_run(rows.subject))
        self.subjects += _crossed(split, cohort.reached, self.subjects.shape)
        self.indexes += _crossed(split[cohort.index_owner], cohort.index_reached, self.indexes.shape)
        self.rows += np.bincount(row_split, minlength=len(SPLITS))
        self.queries += np.bincount(row_split[rows.is_query], minlength=len(SPLITS))
        self.outcomes += _crossed(row_split[first], rows.cause[first], self.outcomes.shape)
        self._add_records_before(rows, split, visits)

    def _add_records_before(self, rows: CohortRows, split: NDArray[np.int8], visits: Visits) -> None:
        """Per split and landmark: subjects asked there, those without a visit before it, those with one only later."""
        start_us = np.full(len(split), NEVER)
        np.minimum.at(start_us, visits.subject, visits.start_us)
        for place, days in enumerate(self.task.landmarks):
            asked = rows.is_query & (rows.prediction_us - rows.index_us == round(days * DAY_US))
            none = asked & (start_us[rows.subject] > rows.prediction_us)
            for kind, chosen in enumerate((asked, none, none & (start_us[rows.subject] < NEVER))):
                who = np.unique(rows.subject[chosen])
                self.records_before[:, place, kind] += np.bincount(split[who], minlength=len(SPLITS))

    def merge(self, other: "Tally") -> None:
        """Add the counts of other shards."""
        self.ends_record += other.ends_record
        self.notes.update(other.notes)
        for name in ("subjects", "indexes", "rows", "queries", "outcomes", "records_before"):
            getattr(self, name).__iadd__(getattr(other, name))

    def _flow(self, subjects: Ints, indexes: Ints) -> list[dict[str, Any]]:
        """Subjects and index times left after each step, from how many got how far (steps + 1,)."""
        left, times = int(subjects.sum()), int(indexes.sum())
        flow = [{"step": "all subjects", "subjects": left, "excluded": 0, "indexes": times}]
        for step, lost, lost_times in zip(self.steps, subjects[:-1].tolist(), indexes[:-1].tolist(), strict=True):
            left, times = left - lost, times - lost_times
            flow.append({"step": step, "subjects": left, "excluded": lost, "indexes": times})
        return flow

    def _before(self, counts: Ints) -> list[dict[str, Any]]:
        """Of the subjects asked at each landmark (landmarks, 3): those without a record before it."""
        names = ("subjects", "without_record_before", "first_record_later")
        rows = [dict(zip(names, row, strict=True)) for row in counts.tolist()]
        return [{"landmark_days": days, **row} for days, row in zip(self.task.landmarks, rows, strict=True)]

    def as_json(self) -> dict[str, Any]:
        """Content of `attrition.json`."""
        outcomes = ["censored", *self.task.causes]
        return {
            "steps": self._flow(self.subjects.sum(axis=0), self.indexes.sum(axis=0)),
            "prediction_times": int(self.rows.sum()),
            "queries": int(self.queries.sum()),
            "outcomes_that_end_the_record": self.ends_record,
            "notes": {note: count for note, count in self.notes.items() if count},
            "records_before": self._before(self.records_before.sum(axis=0)),
            "events": dict(zip(outcomes, self.outcomes.sum(axis=0).tolist(), strict=True)),
            "splits": {
                name: {
                    "steps": self._flow(self.subjects[k], self.indexes[k]),
                    "prediction_times": int(self.rows[k]),
                    "queries": int(self.queries[k]),
                    "events": dict(zip(outcomes, self.outcomes[k].tolist(), strict=True)),
                    "records_before": self._before(self.records_before[k]),
                }
                for k, name in enumerate(SPLITS)
            },
        }


def _crossed(row: NDArray[np.int8], column: NDArray[np.int8], shape: tuple[int, ...]) -> Ints:
    """How often each pair of small numbers occurs."""
    counts = np.bincount(row * np.int64(shape[1]) + column, minlength=shape[0] * shape[1])
    return counts.reshape(shape)


@dataclass(frozen=True)
class FittedShard:
    """What the first pass takes from one shard."""

    kept: KeptRows
    days: DayCounts
    part: FitPart
    fixes: FixLog


@dataclass(frozen=True)
class EncodedShard:
    """What the second pass makes of some subjects, by split in the order of `SPLITS`."""

    visits: list[Timelines]
    rows: list[list[TaskRows]]  # per task
    tallies: list[Tally]
    fixes: Counter[str]


@dataclass
class ShardWork:
    """Everything that the work on a shard needs but the shard; it is sent to every process once."""

    reader: MedsReader
    lookup: SplitLookup
    study: StudyConfig
    builders: Sequence[CohortBuilder]
    excluded: Callable[[str], bool]
    parents: Mapping[str, list[str]]
    folder: Path | None = None  # where the vocabulary of the second pass stands, and all codes of the data set

    def new_fit(self) -> VocabularyFit:
        """A fit that has seen nothing."""
        return VocabularyFit(self.study.vocabulary, self.study.values, excluded=self.excluded, parents=self.parents)

    def fit(self, path: Path, kept: Path, late: LateRows | None) -> FittedShard:
        """First pass: what the vocabulary is fitted on; the fixed rows, but the late ones, are kept."""
        self.reader.fixes, self.reader.late, fit = FixLog(), late, self.new_fit()
        events = self.reader.read(path)
        _, days = update_fit(fit, events, self.lookup)
        return FittedShard(keep(events, kept), days, fit.part(), self.reader.fixes)

    def encode(self, shards: Sequence[KeptRows], folder: Path, dataset_end_us: int) -> list[EncodedShard]:
        """Second pass, on a range of subjects, piece by piece, with the vocabulary that stands in `folder`."""
        self.folder = folder
        return [
            self._encode(make_record(events, excluded=self.excluded, settings=self.study.visits), dataset_end_us)
            for events in read_kept(shards, self._codes, group=self.lookup, rows=_PIECE_ROWS)
        ]

    def _encode(self, record: Record, dataset_end_us: int) -> EncodedShard:
        """Encode visits and each task's prediction times; subjects come split by split."""
        timelines, too_old = encode_timelines(record, self._vocabulary)
        fixes = Counter({"old_age": too_old})
        split = self.lookup(record.subject_id)
        bounds = np.searchsorted(split, np.arange(len(SPLITS) + 1))
        parts = [slice(*bound) for bound in itertools.pairwise(bounds.tolist())]
        rows, tallies = [], []
        for builder in self.builders:
            cohort = builder.build(
                record.events, record.subject, record.visits, birth_us=record.birth_us, dataset_end_us=dataset_end_us
            )
            fixes["after_censoring"] += cohort.after_censoring
            tallies.append(Tally(builder.task))
            tallies[-1].add_cohort(cohort, split, record.visits)
            encoded = encode_rows(record, cohort.rows, self._vocabulary)
            rows.append([encoded.take(part) for part in parts])
        return EncodedShard([timelines.take(part) for part in parts], rows, tallies, fixes)

    @cached_property
    def _codes(self) -> tuple[str, ...]:
        assert self.folder is not None
        return tuple(read_json(self.folder / KEPT / CODES))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        assert self.folder is not None
        return Vocabulary.load(self.folder)


def update_fit(fit: VocabularyFit, events: Events, lookup: SplitLookup) -> tuple[Ints, DayCounts]:
    """Add a shard to a fit; its distinct subject ids and its rows by day."""
    subject_id, subject = events.subjects
    fit.update(events, subject, (lookup(subject_id) == 0)[subject])
    return subject_id, DayCounts.of(events)


# ---- processes -------------------------------------------------------------------------------------------------------


def count_rows(shards: Sequence[Path]) -> int:
    """Rows in all files together, as they say themselves."""
    return sum(pq.read_metadata(path).num_rows for path in shards)


def count_processes(shards: Sequence[Path], processes: int | None) -> int:
    """How many processes to use: as many as asked for, or all cores where there is enough for each to do."""
    if processes is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        processes = min(cores, 1 + count_rows(shards) // _ROWS_PER_PROCESS)
    elif processes < 1:
        raise EhrseqError("at least one process is needed", where=f"processes={processes}", fix="leave it out")
    return min(processes, len(shards))


class Workers:
    """Does work on shards in other processes; with one process, in this one.

    Args:
        work: What the methods belong to; sent to every process.
        processes: How many.
    """

    def __init__(self, work: ShardWork, processes: int) -> None:
        self.work, self.processes = work, processes
        self._pool: ProcessPoolExecutor | None = None
        if processes > 1:
            self._pool = ProcessPoolExecutor(
                processes, multiprocessing.get_context("spawn"), initializer=_start, initargs=(work,)
            )

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def in_order(self, method: Callable[..., Result], items: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Call a method of `ShardWork` for each item; results come in the items' order.

        Only a few results wait at any time, so that memory does not grow with the number of items.

        Raises:
            EhrseqError: What the first failing item raises, or a process has ended.
        """
        if self._pool is None:
            yield from (method(self.work, *item) for item in items)
            return
        waiting: deque[Future[Any]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(_run, method.__name__, item))
                if len(waiting) > self.processes + 1:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        except BrokenProcessPool as error:
            fix = "use fewer processes if memory ran out; a script that prepares needs if __name__ == '__main__':"
            raise EhrseqError("a process has ended before its work", where="prepare", fix=fix) from error


_work: ShardWork | None = None  # of this process, where it is a worker


def _start(work: ShardWork) -> None:
    global _work
    _work = work
    pa.set_cpu_count(1)  # the processes share the cores already


def _run(method: str, item: tuple[Any, ...]) -> Any:
    """Runs in a worker; a user's error goes back as its parts, since it has keyword arguments."""
    try:
        return getattr(_work, method)(*item)
    except EhrseqError as error:
        return _Refused(error.what, error.where, error.fix)


@dataclass(frozen=True)
class _Refused:
    what: str
    where: str
    fix: str


def _result(future: Future[Any]) -> Any:
    found = future.result()
    if isinstance(found, _Refused):
        raise EhrseqError(found.what, where=found.where, fix=found.fix)
    return found
