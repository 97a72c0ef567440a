"""The work that `prepare` does on each shard: in this process, in several, or on a cluster.

The results are the same and come in the same order.

The first pass works on shards, the second on ranges of subjects. Each piece of work depends on nothing but itself:
other processes return plain arrays, and the first process adds them up, or appends them to files, in order.
"""

import itertools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from joblib import Parallel, delayed

from ehrsequencing.config import StudyConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.attrition import Tally
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.data_end import DayCounts, LateRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.engines import Engine
from ehrsequencing.records.fixes import FixLog
from ehrsequencing.records.meds import SPLITS, MedsReader
from ehrsequencing.records.record import Record, make_record
from ehrsequencing.records.row_store import KeptRows, keep, read_kept
from ehrsequencing.records.splits import SplitLookup
from ehrsequencing.records.survey import TrainingFit
from ehrsequencing.records.timelines import OutcomeEvents, TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import FitPart, VocabularyFit
from ehrsequencing.storage import read_json

KEPT, CODES = ".rows", "codes.json"  # in the folder that is being made: rows between the passes, and all codes
_PIECE_ROWS = 1 << 17  # about so many rows are encoded at once: they fit the processor's cache
_ROWS_PER_PROCESS = 2_000_000  # with fewer, a process costs more than it saves
_WAITING = 4  # results a process that may wait to be taken
_ON_CLUSTER = 64  # results of a cluster that may wait to be taken
_TRIES = 3
_HERE = Engine()
_IDLE = 30  # seconds after which a process without work ends
Result = TypeVar("Result")


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
    outcomes: list[list[OutcomeEvents]]  # per task; empty for one without `outcomes`


@dataclass(eq=False)
class ShardWork:
    """Everything that the work on a shard needs but the shard; it is sent to every process once."""

    reader: MedsReader
    lookup: SplitLookup
    study: StudyConfig
    builders: Sequence[CohortBuilder]
    excluded: CodeMatcher
    parents: Mapping[str, list[str]]
    folder: Path  # that is being made: it gets the vocabulary of the second pass, and all codes of the data set

    def new_fit(self) -> TrainingFit:
        """An empty fit."""
        fit = VocabularyFit(self.study.vocabulary, self.study.values, excluded=self.excluded, parents=self.parents)
        return TrainingFit(fit, self.lookup)

    def fit(self, path: Path, kept: Path, late: LateRows | None) -> FittedShard:
        """First pass: collect what the vocabulary is fitted on, and keep the fixed rows, but late ones, in a file."""
        self.reader.fixes, self.reader.late, part = FixLog(), late, self.new_fit()
        events = self.reader.read(path)
        part.add(events)
        return FittedShard(keep(events, kept), DayCounts.of(events), part.fit.part(), self.reader.fixes)

    def encode(self, shards: Sequence[KeptRows], dataset_end_us: int) -> list[EncodedShard]:
        """Second pass: encode a range of subjects, piece by piece, with the stored vocabulary."""
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
        rows, tallies, outcomes = [], [], []
        for builder in self.builders:
            cohort = builder.build(record, dataset_end_us=dataset_end_us)
            fixes["after_censoring"] += cohort.after_censoring
            tallies.append(Tally(builder.task))
            tallies[-1].add_cohort(cohort, split, record.visits)
            encoded = encode_rows(record, cohort.rows, self._vocabulary)
            rows.append([encoded.take(part) for part in parts])
            events = None if builder.outcomes is None else builder.outcomes.find(record)
            outcomes.append([] if events is None else [events.take(part) for part in parts])
        return EncodedShard([timelines.take(part) for part in parts], rows, tallies, fixes, outcomes)

    @cached_property
    def _codes(self) -> tuple[str, ...]:
        return tuple(read_json(self.folder / KEPT / CODES))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder)


def count_rows(shards: Sequence[Path]) -> int:
    """Rows in all files together, as their footers say."""
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
    """Calls methods of `ShardWork` in other processes or on a cluster, through joblib; with one process, in this one.

    Args:
        work: Whose methods are called. Each process gets it once, when it starts.
        processes: How many; of a cluster, how many calls wait there at once for each shard that is taken.
        engine: Where they run.
    """

    def __init__(self, work: ShardWork, processes: int, engine: Engine = _HERE) -> None:
        self.work, self.processes, self.engine = work, processes, engine

    @property
    def are_here(self) -> bool:
        """Whether the calls run in this process, one after another."""
        return self.processes == 1 and not self.engine.is_cluster

    def kept_path(self, number: int) -> Path:
        """Where the first pass keeps the rows of a shard."""
        return self.work.folder / KEPT / f"{number}.rows"

    def in_order(self, method: Callable[..., Result], items: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Call a method of `ShardWork` for each item; results come in the items' order.

        Raises:
            EhrseqError: What the first failing item raises, or a process was killed.
        """
        if self.are_here:
            yield from (method(self.work, *item) for item in items)
            return
        if self.engine.is_cluster:
            yield from self._on_cluster(method.__name__, iter(items))
            return
        items, start = iter(items), {"initializer": _start, "initargs": (self.work,), "idle_worker_timeout": _IDLE}
        settings: dict[str, Any] = {"return_as": "generator", "batch_size": 1, "max_nbytes": None, **start}
        try:
            with Parallel(self.processes, "loky", **settings) as parallel:
                # joblib does not wait for whoever takes the results: one block after another keeps them few
                while block := list(itertools.islice(items, _WAITING * self.processes)):
                    yield from _taken(parallel(delayed(_call)(method.__name__, item) for item in block))
        except BrokenProcessPool as error:
            fix = "use fewer processes if memory ran out"
            raise EhrseqError("a process was killed during its work", where="prepare", fix=fix) from error

    def _on_cluster(self, method: str, items: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        with self.engine.connected():
            while block := list(itertools.islice(items, _ON_CLUSTER)):
                for result in self._block(method, block):
                    if isinstance(result, EhrseqError):
                        raise result
                    yield result

    def _block(self, method: str, block: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Some calls on the cluster, again where machines were lost in between: each writes the same files again."""
        for _ in range(_TRIES):
            try:
                return list(Parallel()(delayed(_call_on)(self.work, method, item) for item in block))
            except Exception as error:  # each package has its own for workers that die
                last = error
        fix = "look at the log of the cluster's workers; --engine processes uses this machine"
        raise EhrseqError("the cluster failed", where=f"--engine {self.engine.kind}", fix=fix) from last


def _taken(results: Generator[Any, None, None]) -> Iterator[Any]:
    """The results, up to the first error; the work on those after it is cancelled."""
    try:
        for result in results:
            if isinstance(result, EhrseqError):
                raise result
            yield result
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # joblib tells how much work it has cancelled
            results.close()


_work: ShardWork  # of a worker process


def _start(work: ShardWork) -> None:
    """Runs first in a worker."""
    global _work
    _work = work
    pa.set_cpu_count(1)  # the processes share the cores already


def _call_on(work: ShardWork, method: str, item: tuple[Any, ...]) -> Any:
    """Runs on a cluster, where a call may be repeated: it writes nothing but whole files of its own."""
    pa.set_cpu_count(1)
    if not work.folder.is_dir():
        fix = "name an --out on a file system that all machines of the cluster share"
        return EhrseqError("a machine of the cluster does not see the output folder", where="--engine", fix=fix)
    try:
        return getattr(work, method)(*item)
    except EhrseqError as error:
        return error


def _call(method: str, item: tuple[Any, ...]) -> Any:
    """Runs in a worker. An error is a result, so that the first item's is raised, not the first in time."""
    try:
        return getattr(_work, method)(*item)
    except EhrseqError as error:
        return error
