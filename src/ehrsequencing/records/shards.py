"""The work on the shards of a data set, in this process or others: rows read and kept, then encoded."""

import itertools
import os
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import joblib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from joblib.externals.loky.process_executor import BrokenProcessPool

from ehrsequencing.config import StudyConfig, TaskConfig, VisitsConfig, validated
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError, install
from ehrsequencing.core.files import (
    read_json,
)
from ehrsequencing.records.attrition import Tally
from ehrsequencing.records.codes import (
    CodeMatcher,
    excluded_codes,
    read_parents,
)
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import (
    DEATH,
    DOUBTFUL_DEATH,
    ENDS,
    UNDATED_DEATH,
    KeptRows,
    keep,
    read_kept,
)
from ehrsequencing.records.follow_up import count_ends
from ehrsequencing.records.meds import (
    IMPORT_SETTINGS,
    SPLITS,
    LateRows,
    MedsReader,
    read_card,
)
from ehrsequencing.records.outcomes import find_outcomes
from ehrsequencing.records.splits import (
    SplitLookup,
    cut_by_design,
    cut_us,
    split_lookup,
)
from ehrsequencing.records.survey import (
    DayCounts,
    Part,
    count_days,
)
from ehrsequencing.records.timelines import (
    OutcomeEvents,
    TaskRows,
    Timelines,
)
from ehrsequencing.records.visits import make_record
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import VocabularyFit

# in the folder that is being made: rows between the passes, all codes, and events of all codes that a task's outcomes
# match
KEPT, CODES, OUTCOMES = ".rows", "codes.json", "outcomes"
RANGE_ROWS = 500_000  # about so many rows are read again at once
_PIECE_ROWS = 1 << 17  # about so many rows are encoded at once: they fit the processor's cache
_SHARDS_AT_ONCE = 8  # that one call of the first pass takes at most
_CALLS_PER_PROCESS = 6  # of the first pass at least, so that all processes end at about one time


@dataclass(frozen=True)
class EncodedShard:
    """What the second pass makes of some subjects."""

    visits: list[Timelines]  # by split in the order of `SPLITS`
    # per task its counts, and by split its prediction times and outcomes: of all codes, chosen at the end; none for a
    # task without `outcomes`
    tasks: list[tuple[Tally, list[TaskRows], list[OutcomeEvents]]]
    fixes: Counter[str]
    doubtful: Ints  # ids of the subjects whose death is in doubt
    undated: tuple[Ints, Ints]  # of those whose death has no date, and their last signs of life


@dataclass(eq=False)
class ShardWork:
    """The work on shards, and all that it needs but the shards; a process gets it with each call."""

    reader: MedsReader
    lookup: SplitLookup
    study: StudyConfig
    tasks: Sequence[TaskConfig]  # the questions
    builders: Sequence[CohortBuilder]
    excluded: CodeMatcher
    parents: Mapping[str, list[str]]
    folder: Path = Path()  # that is being made: it gets the vocabulary, and all codes of the data
    key: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def of_study(cls, data: Path, study: StudyConfig, tasks: Sequence[TaskConfig]) -> "ShardWork":
        """The work of a study on a data set; where it does not say how visits are cut, as the data's import noted."""
        noted = read_card(data).get(IMPORT_SETTINGS, {}).get("visits", {})
        if noted and not {"by", "column"} & study.visits.model_fields_set:
            values = study.visits.model_dump() | dict(noted)
            visits = validated(VisitsConfig, values, where=f"{data}/metadata/dataset.json")
            study = study.model_copy(update={"visits": visits})
        if len({task.same_day == "after" for task in tasks}) > 1:
            raise EhrseqError(
                "same_day: after of one task moves the dates of all records to the end of their day",
                where=", ".join(task.name for task in tasks),
                fix="prepare tasks with and without it apart",
            )
        if any(task.same_day == "after" for task in tasks):
            visits = study.visits.model_copy(update={"dates": "last"})
            study = study.model_copy(update={"visits": visits})
        reader, parents = MedsReader(data, study.data, study), read_parents(data)
        ends = [code for task in tasks for code in task.censoring.code or ()]
        reader.ends = CodeMatcher([*ENDS, *ends], parents=parents)
        # codes that say more: those of an index, a start or a cause of any task
        others = (
            codes
            for task in tasks
            for codes in (task.index.code, task.censoring.start, *task.patterns.values())
        )
        reader.no_ends = CodeMatcher([c for codes in others for c in codes or ()], parents=parents)
        excluded = excluded_codes(study, tasks, parents)
        lookup = split_lookup(data, study=study, tasks=tasks, excluded=excluded, parents=parents)
        builders = [CohortBuilder(task, parents=parents) for task in tasks]
        # deaths are counted by rules of their own
        reader.causes = {
            f"{one.task.name} {name}": matcher
            for one in builders
            for name, matcher in zip(one.task.causes, one.cause_codes, strict=True)
            if not matcher(DEATH)
        }
        return cls(reader, lookup, study, tasks, builders, excluded, parents)

    def new_fit(self) -> VocabularyFit:
        """An empty fit."""
        settings, values = self.study.vocabulary, self.study.values
        return VocabularyFit(settings, values, excluded=self.excluded)

    def fit(
        self, shards: range, late: LateRows | None
    ) -> tuple[list[KeptRows], list[DayCounts], VocabularyFit, list[Counter[str]]]:
        """First pass: collect what the vocabulary is fitted on, and keep the fixed rows, but late ones, in files.

        Returns:
            Per shard its kept rows and its rows by day; the fit of all; and what the reader counted.
        """
        reader, fit = copy(self.reader), self.new_fit()
        reader.fixes, reader.people, reader.late = Counter(), Counter(), late
        rows, days = list[KeptRows](), list[DayCounts]()
        for number in shards:
            events = reader.read(reader.shards[number])
            subject_id, subject = events.subjects
            is_train = (self.lookup(subject_id) == 0)[subject]
            fit.update(
                events, subject, is_train & (events.time_us < cut_us(self.study.splits, "train"))
            )
            days.append(count_days(events, late))
            path = self.folder / KEPT / f"{number}.rows"
            rows.append(keep(events, path, fit.numbers(events.codes)))
        return rows, days, fit, [reader.fixes, reader.people]

    def encode(self, shards: Sequence[KeptRows], dataset_end_us: int) -> list[EncodedShard]:
        """Second pass: encode visits and each task's prediction times of a range of subjects, piece by piece.

        Subjects come split by split, and where the splits are by date, cut at it.
        """
        pieces = read_kept(shards, self._codes, group=self.lookup, rows=_PIECE_ROWS)
        marks = [one.censoring_codes for one in self.builders if one.censoring_codes is not None]
        out = list[EncodedShard]()
        parts_ = (cut_by_design(piece, self.lookup, marks, dataset_end_us) for piece in pieces)
        for events, end_us in itertools.chain.from_iterable(parts_):
            record = make_record(events, excluded=self.excluded, settings=self.study.visits)
            timelines, too_old = encode_timelines(record, self._vocabulary)
            fixes = Counter({"old_age": too_old})
            split = self.lookup(record.subject_id)
            bounds = np.searchsorted(split, np.arange(len(SPLITS) + 1))
            parts = [slice(*bound) for bound in itertools.pairwise(bounds.tolist())]
            tasks = []
            for builder in self.builders:
                cohort = builder.build(record, dataset_end_us=end_us)
                fixes["after_censoring"] += cohort.after_censoring
                tally = Tally(builder.task)
                tally.add_cohort(cohort, split, record)
                tally.follow_up.update(count_ends(builder, record, cohort.rows, end_us))
                rows = encode_rows(record, cohort.rows, self._vocabulary)
                found = find_outcomes(record, builder.outcomes) if builder.outcomes else None
                outcomes = [found.take(part) for part in parts] if found else []
                tasks.append((tally, [rows.take(part) for part in parts], outcomes))
            doubtful = np.unique(events.subject_id[events.is_code(DOUBTFUL_DEATH)])
            is_undated = events.is_code(UNDATED_DEATH)
            undated = events.subject_id[is_undated], events.time_us[is_undated]
            visits = [timelines.take(part) for part in parts]
            out.append(EncodedShard(visits, tasks, fixes, doubtful, undated))
        return out

    @cached_property
    def _codes(self) -> tuple[str, ...]:
        return tuple(read_json(self.folder / KEPT / CODES))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder)


class FirstPass(Part):
    """Fits the vocabulary, and keeps every shard's fixed rows in a file."""

    def __init__(self, work: ShardWork, jobs: int) -> None:
        self.work, self.jobs, self.fit = work, jobs, work.new_fit()
        self.kept: list[KeptRows] = []

    def shards(self, reader: MedsReader) -> Iterator[tuple[Ints, DayCounts]]:
        """Read every shard, in one process or several."""
        # several shards a call: a sample is bounded, and that of several is hardly larger than that of one
        n = len(reader.shards)
        step = max(1, min(_SHARDS_AT_ONCE, n // (_CALLS_PER_PROCESS * self.jobs)))
        items = ((range(k, min(k + step, n)), reader.late) for k in range(0, n, step))
        for parts, counts, fit, (fixes, people) in call_in_order(
            self.work, "fit", items, jobs=self.jobs
        ):
            self.fit.merge(fit)
            reader.fixes.update(fixes)
            reader.people.update(people)
            codes = self.fit.numbers(tuple(fit.number))  # theirs → ours
            for part, days in zip(parts, counts, strict=True):
                self.kept.append(replace(part, numbers=codes.take(part.numbers)))
                yield part.subject_id, days


# ---- where the work is done: in this process, in several, or on a Dask cluster; joblib spreads it ----
# Results come in the order of their items, so any number of processes makes the same bytes.
PROCESSES = "processes"
_ROWS_PER_PROCESS = 10_000_000  # with fewer, a process costs more than it saves (docs/scale.md)
_CALLS_AT_ONCE = 16  # per process: their results may wait in memory together
_WAIT_SECONDS = 20  # for the scheduler of a cluster to answer


def count_rows(shards: Sequence[Path]) -> int:
    """Rows in all files together, as their footers say."""
    return sum(pq.read_metadata(path).num_rows for path in shards)


@contextmanager
def joblib_backend(engine: str, processes: int | None, shards: Sequence[Path]) -> Iterator[int]:
    """Choose the backend of joblib; yields how many calls may run at once, 1: all in this process.

    Args:
        engine: `processes`, or `dask://HOST:PORT`.
        processes: How many; None lets a backend that the caller chose (`joblib.parallel_config`)
            decide, else the rows.
        shards: The files to spread.

    Raises:
        EhrseqError: There is no such engine, its package is not installed, or no cluster answers.
    """
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # a process imports nothing of this folder
    if engine != PROCESSES:
        with _dask_client(engine) as client, joblib.parallel_config("dask", client=client):
            yield max(2, joblib.effective_n_jobs(-1))  # one core of a cluster is not this process
    elif processes is None and joblib.effective_n_jobs(None) > 1:
        yield joblib.effective_n_jobs(None)
    else:
        wanted = processes or min(joblib.cpu_count(), 1 + count_rows(shards) // _ROWS_PER_PROCESS)
        count = min(wanted, len(shards))
        ending: dict[str, Any] = {"initializer": _end_with, "initargs": (os.getpid(),)}
        with joblib.parallel_config("loky", n_jobs=count, inner_max_num_threads=1, **ending):
            yield count


def _dask_client(engine: str) -> Any:
    if (match := re.fullmatch(r"dask://(\S+)", engine)) is None:
        raise EhrseqError(
            f"{engine!r} is no engine", where="--engine", fix="use processes or dask://HOST:PORT"
        )
    try:
        from distributed import Client
    except ImportError as error:
        raise EhrseqError(
            "needs distributed", where="--engine dask", fix=install("dask")
        ) from error
    connect: Callable[..., Any] = Client
    try:
        return connect(f"tcp://{match[1]}", timeout=_WAIT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise EhrseqError(
            "no scheduler answers",
            where=f"--engine {engine}",
            fix="check the address, and that the scheduler runs the same package versions",
        ) from error


def call_in_order(
    work: Any, method: str, items: Iterable[tuple[Any, ...]], *, jobs: int
) -> Iterator[Any]:
    """Call a method of `work` for each item; results come in the items' order.

    Args:
        work: Has a `key`, since a process keeps the last work, and the `folder` of the results.
        method: Its name.
        items: The arguments of each call.
        jobs: How many calls may run at once; 1: in this process.

    Raises:
        EhrseqError: What a call raises, or a process was killed.
    """
    if jobs == 1:
        yield from (getattr(work, method)(*item) for item in items)
        return
    remaining = iter(items)
    try:
        while block := list(itertools.islice(remaining, _CALLS_AT_ONCE * jobs)):
            calls = (joblib.delayed(_call)(work, method, item) for item in block)
            results = joblib.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(calls)
            try:
                for result in results:
                    if isinstance(result, EhrseqError):
                        raise result
                    yield result
            finally:
                with warnings.catch_warnings():  # joblib tells of calls that it cancels
                    warnings.simplefilter("ignore", UserWarning)
                    results.close()
    except BrokenProcessPool as error:
        raise EhrseqError(
            "a process was killed during its work",
            where="prepare",
            fix="if memory ran out, use fewer cores (taskset -c 0 ehrseq prepare …): each has a process",
        ) from error


_last: Any = None  # of a worker process: what it has read and looked up stays


def _call(work: Any, method: str, item: tuple[Any, ...]) -> Any:
    """Runs in a worker. An error is returned: raised, the first in time would end the work, not the first in order."""
    global _last
    pa.set_cpu_count(1)  # the processes share the cores already
    if _last is None or _last.key != work.key:
        _last = work
    if not work.folder.is_dir():
        raise EhrseqError(
            "a machine of the cluster does not see the output folder",
            where="--engine",
            fix="name an --out on a file system that all machines of the cluster share",
        )
    try:
        return getattr(_last, method)(*item)
    except EhrseqError as error:
        return error


def _end_with(parent: int) -> None:
    """Make a worker end when its parent has: a command that was killed leaves no process with patients in memory."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
