"""The prepared store: MEDS → packed arrays and labels on disk, written shard by shard, read by memory map.

    PREPARED/config.yaml  vocabulary.json  vocabulary.safetensors  manifest.json
    PREPARED/visits/SPLIT/*.npy            the fields of `Timelines`
    PREPARED/tasks/NAME/task.yaml  cohort.parquet  labels.parquet  attrition.json
    PREPARED/tasks/NAME/SPLIT/*.npy        the fields of `TaskRows`

Two passes over the shards: the first fits vocabulary and scales on training subjects, the second encodes. Memory holds
one shard, whatever the number of subjects.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ehrsequencing import __version__
from ehrsequencing.config import StudyConfig, TaskConfig, load_study, load_task
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.cohort import Cohort, CohortBuilder, cohort_steps
from ehrsequencing.records.labels import LABELS, label_table
from ehrsequencing.records.meds import BIRTH, DEATH, SPLITS, STATIC, MedsReader, SplitLookup, parse_date_us
from ehrsequencing.records.splits import split_lookup
from ehrsequencing.records.timelines import (
    Record,
    TaskRows,
    Timelines,
    encode_rows,
    encode_timelines,
    make_record,
    take_rows,
    take_timelines,
)
from ehrsequencing.records.vocabulary import Vocabulary, VocabularyFit
from ehrsequencing.storage import (
    ArrayWriter,
    complete_folder,
    digest,
    read_json,
    read_manifest,
    write_json,
    write_manifest,
    write_settings,
)

WHAT = "a prepared data set"
SECTIONS = {"data", "visits", "values", "vocabulary", "splits"}  # the settings of `prepare`
_SORT_CHUNK = 20_000  # subjects in memory while sorting
Progress = Callable[[int, int], None]
_DTYPES: dict[str, Any] = {
    "subject_id": np.int64, "birth_us": np.int64, "start_us": np.int64, "end_us": np.int64, "age_years": np.float32,
    "delta_days": np.float32, "codes": np.int32, "values": np.float32, "static_codes": np.int32,
    "prediction_us": np.int64, "index_us": np.int64, "is_query": np.bool_, "visits_before": np.int32,
    "duration_days": np.float64, "entry_days": np.float32, "cause": np.int8, "carry_codes": np.int32,
    "carry_values": np.float32,
}  # fmt: skip
_COHORT = pa.schema([
    ("subject_id", pa.int64()), ("index_time", pa.timestamp("us")), ("prediction_time", pa.timestamp("us")),
    ("kind", pa.string()), ("duration_days", pa.float64()), ("cause", pa.int8()), ("split", pa.string()),
])  # fmt: skip
Arrays = TypeVar("Arrays", Timelines, TaskRows)


def excluded_codes(study: StudyConfig, tasks: Sequence[TaskConfig], parents: Mapping[str, list[str]]) -> CodeMatcher:
    """Codes that make no token, no visit and no visit end (SCIENCE.md §1)."""
    censoring = [code for task in tasks for code in task.censoring.code or ()]
    matcher = CodeMatcher([BIRTH, DEATH, *censoring, *study.visits.ignore], parents=parents)
    if matcher.by_value:
        mend = "name codes: they make no token, whatever their number"
        raise EhrseqError(
            "a condition on a number is not possible in censoring.code and visits.ignore", where=matcher.by_value[0],
            mend=mend,
        )  # fmt: skip
    return matcher


def prepare(
    data: Path, out: Path, *, study: StudyConfig, tasks: Sequence[TaskConfig], progress: Progress | None = None
) -> None:
    """Turn a MEDS data set into packed arrays and labels.

    Args:
        data: Folder of the data set.
        out: Folder to make; an earlier prepared set there is replaced when the new one is complete.
        study: How visits are cut, values read and the vocabulary built.
        tasks: The questions.
        progress: Called with (shards read, shards to read) over both passes.

    Raises:
        EhrseqError: Data or task cannot be used; nothing is left behind.
    """
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise EhrseqError("two tasks have the same name", where=", ".join(names), mend="rename one")
    reader = MedsReader(
        data, study.data, encounter_column=study.visits.column if study.visits.by == "encounter" else None
    )
    parents = read_parents(data)
    excluded = excluded_codes(study, tasks, parents)
    lookup = split_lookup(data, study=study, tasks=tasks, excluded=excluded, parents=parents)
    steps = iter(range(1, 2 * len(reader.shards) + 1))

    def tick() -> None:
        done = next(steps)
        if progress is not None:
            progress(done, 2 * len(reader.shards))

    fit = VocabularyFit(study.vocabulary, study.values, excluded=excluded, parents=parents)
    subject_ids, dataset_end_us = first_pass(reader, lookup, fit, tick)
    if study.data.extracted:
        dataset_end_us = parse_date_us(study.data.extracted)
    builders = [CohortBuilder(task, parents=parents) for task in tasks]
    for builder in builders:
        builder.require_known([*fit.number, *parents], suggest=[*fit.common_codes(), *parents])
    vocabulary = fit.finish()
    mends = Counter(reader.mends)
    mends["absent_split"] = lookup.absent(subject_ids)
    for builder in builders:
        builder.require_subjects(subject_ids)
    with complete_folder(out, what=WHAT) as folder:
        with _Writers(folder, builders, lookup) as writers:
            for events in reader:
                record = make_record(events, excluded=excluded, settings=study.visits)
                writers.add(record, vocabulary, dataset_end_us, mends)
                tick()
        _sort_by_subject(folder, names)
        vocabulary.save(folder)
        write_settings(folder / "config.yaml", study, only=SECTIONS)
        for builder, tally in zip(builders, writers.tallies, strict=True):
            task_folder = folder / "tasks" / builder.task.name
            write_settings(task_folder / "task.yaml", builder.task)
            _write_cohort(folder, builder.task.name)
            write_json(task_folder / "attrition.json", tally.as_json())
        write_manifest(folder, {
            "kind": "prepared", "version": __version__, "data": data_name(data),
            "data_path": str(data.resolve()), "subjects": len(subject_ids),
            "dataset_end_us": dataset_end_us, "vocabulary": vocabulary.digest, "tasks": names,
            "config": digest(study.model_dump(mode="json", include=SECTIONS)),
            "excluded": list(excluded.patterns), "mends": {name: count for name, count in mends.items() if count},
        })  # fmt: skip


def data_name(data: Path) -> str:
    """What the data set calls itself, else its folder's name."""
    card = data / "metadata" / "dataset.json"
    name = read_json(card).get("dataset_name") if card.is_file() else None
    return name if isinstance(name, str) and name else data.name


def first_pass(
    reader: MedsReader, lookup: SplitLookup, fit: VocabularyFit, tick: Callable[[], None]
) -> tuple[NDArray[np.int64], int]:
    """Fit the vocabulary; all subject ids and the last timestamp of the data set."""
    ids: list[NDArray[np.int64]] = []
    end_us = int(STATIC)
    for events in reader:
        subject_id, subject = np.unique(events.subject_id, return_inverse=True)
        fit.update(events, subject, (lookup(subject_id) == 0)[subject])
        ids.append(subject_id)
        end_us = max(end_us, int(events.time_us.max(initial=STATIC)))
        tick()
    every = np.concatenate(ids)
    if not len(every):
        raise EhrseqError("holds no subject with a timed row", where=str(reader.data), mend="check the data set")
    distinct = np.unique(every)
    if len(distinct) < len(every):
        where = str(reader.data / "data")
        raise EhrseqError("a subject is in two shards", where=where, mend="keep each subject's rows in one file")
    return distinct, end_us


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

    def add_cohort(self, cohort: Cohort, split: NDArray[np.int8]) -> None:
        """Add a shard: its cohort and each subject's split (S,)."""
        self.ends_record += cohort.ends_record
        self.notes.update({
            "follow-up ended by a death that is no cause": cohort.ended_by_death,
            "indexes with censoring codes only before them": cohort.censoring_before,
            "indexes before birth": cohort.before_birth,
        })  # fmt: skip
        n_steps = self.subjects.shape[1]
        for k in range(len(SPLITS)):
            rows = cohort.rows.take(split[cohort.rows.subject] == k)
            self.subjects[k] += np.bincount(cohort.reached[split == k], minlength=n_steps)
            self.indexes[k] += np.bincount(cohort.index_reached[split[cohort.index_owner] == k], minlength=n_steps)
            self.rows[k] += len(rows)
            self.queries[k] += int(rows.is_query.sum())
            _, first = np.unique(rows.subject, return_index=True)
            self.outcomes[k] += np.bincount(rows.cause[first], minlength=self.outcomes.shape[1])

    def _flow(self, subjects: NDArray[np.int64], indexes: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Subjects and index times left after each step, from how many got how far (steps + 1,)."""
        left, times = int(subjects.sum()), int(indexes.sum())
        flow = [{"step": "all subjects", "subjects": left, "excluded": 0, "indexes": times}]
        for step, lost, lost_times in zip(self.steps, subjects[:-1].tolist(), indexes[:-1].tolist(), strict=True):
            left, times = left - lost, times - lost_times
            flow.append({"step": step, "subjects": left, "excluded": lost, "indexes": times})
        return flow

    def as_json(self) -> dict[str, Any]:
        """Content of `attrition.json`."""
        outcomes = ["censored", *self.task.causes]
        return {
            "steps": self._flow(self.subjects.sum(axis=0), self.indexes.sum(axis=0)),
            "prediction_times": int(self.rows.sum()),
            "queries": int(self.queries.sum()),
            "outcomes_that_end_the_record": self.ends_record,
            "notes": {note: count for note, count in self.notes.items() if count},
            "events": dict(zip(outcomes, self.outcomes.sum(axis=0).tolist(), strict=True)),
            "splits": {
                name: {
                    "steps": self._flow(self.subjects[k], self.indexes[k]),
                    "prediction_times": int(self.rows[k]),
                    "queries": int(self.queries[k]),
                    "events": dict(zip(outcomes, self.outcomes[k].tolist(), strict=True)),
                }
                for k, name in enumerate(SPLITS)
            },
        }


class _Writers:
    """Open files of a prepared set; shards are appended, each subject to its split."""

    def __init__(self, folder: Path, builders: Sequence[CohortBuilder], lookup: SplitLookup) -> None:
        self.folder, self.builders, self.lookup = folder, builders, lookup
        self.tallies = [Tally(builder.task) for builder in builders]
        self._stack = ExitStack()
        self._appender = _Appender(self._stack)

    def __enter__(self) -> "_Writers":
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.__exit__(*failure)

    def add(self, record: Record, vocabulary: Vocabulary, dataset_end_us: int, mends: Counter[str]) -> None:
        """Encode a shard and append it."""
        timelines, too_old = encode_timelines(record, vocabulary)
        mends["old_age"] += too_old
        split = self.lookup(record.subject_id)
        chosen = [np.flatnonzero(split == k) for k in range(len(SPLITS))]
        for k, subjects in enumerate(chosen):
            self._appender.append(self.folder / "visits" / SPLITS[k], take_timelines(timelines, subjects))
        for number, builder in enumerate(self.builders):
            cohort = builder.build(
                record.events, record.subject, record.visits, birth_us=record.birth_us, dataset_end_us=dataset_end_us
            )
            mends["after_censoring"] += cohort.after_censoring
            self.tallies[number].add_cohort(cohort, split)
            rows = cohort.rows
            encoded = encode_rows(record, rows, vocabulary)
            for k, subjects in enumerate(chosen):
                self._appender.append(
                    self.folder / "tasks" / builder.task.name / SPLITS[k], take_rows(encoded, subjects)
                )


class _Appender:
    """Open `.npy` files, one a field; arrays of several subjects are appended to them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._arrays: dict[Path, ArrayWriter] = {}

    def append(self, folder: Path, arrays: Timelines | TaskRows) -> None:
        """Append every field to its file under `folder`; offsets go on where those before ended."""
        for field in fields(arrays):
            path, rows = folder / f"{field.name}.npy", getattr(arrays, field.name)
            is_offsets = field.name.endswith("_offsets")
            if path not in self._arrays:
                dtype = np.int64 if is_offsets else _DTYPES[field.name]
                self._arrays[path] = self._stack.enter_context(ArrayWriter(path, dtype, rows.shape[1:]))
                if is_offsets:
                    self._arrays[path].append(np.zeros(1, np.int64))
            writer = self._arrays[path]
            writer.append(rows[1:] + writer.last if is_offsets else rows)


def _sort_by_subject(folder: Path, tasks: Sequence[str]) -> None:
    """Bring each split into the order of subject ids, so that the store does not depend on how shards were cut."""
    for split in SPLITS:
        timelines = _open(Timelines, folder / "visits" / split)
        order = np.argsort(timelines.subject_id, kind="stable")
        if np.array_equal(order, np.arange(len(order))):
            continue
        for name in ("visits", *(f"tasks/{task}" for task in tasks)):
            place, sorted_place = folder / name / split, folder / name / f".tmp-{split}"
            with ExitStack() as stack:
                appender = _Appender(stack)
                for start in range(0, len(order), _SORT_CHUNK):
                    part = order[start : start + _SORT_CHUNK]
                    if name == "visits":
                        appender.append(sorted_place, take_timelines(timelines, part))
                    else:
                        appender.append(sorted_place, take_rows(_open(TaskRows, place), part))
            shutil.rmtree(place)
            sorted_place.rename(place)


def _write_cohort(folder: Path, task: str) -> None:
    """Write `cohort.parquet` and `labels.parquet` from the stored arrays: by split, subject and time."""
    place = folder / "tasks" / task
    with (
        pq.ParquetWriter(place / "cohort.parquet", _COHORT) as writer,
        pq.ParquetWriter(place / "labels.parquet", LABELS) as labels,
    ):
        for split in SPLITS:
            timelines = _open(Timelines, folder / "visits" / split)
            rows = _open(TaskRows, folder / "tasks" / task / split)
            for start in range(0, len(timelines), _SORT_CHUNK):
                subjects = np.arange(start, min(start + _SORT_CHUNK, len(timelines)))
                part = take_rows(rows, subjects)
                subject_id = np.asarray(timelines.subject_id)[subjects][part.subject]
                labels.write_table(label_table(subject_id, part.prediction_us, part.duration_days, part.cause))
                columns = [
                    pa.array(subject_id),
                    pa.array(part.index_us).cast(pa.timestamp("us")),
                    pa.array(part.prediction_us).cast(pa.timestamp("us")),
                    pa.array(["visit", "query"]).take(pa.array(part.is_query.astype(np.int8))),
                    pa.array(part.duration_days),
                    pa.array(part.cause),
                    pa.array([split] * len(part), pa.string()),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=_COHORT))


class Prepared:
    """A prepared set on disk; arrays are memory-mapped.

    Args:
        folder: What `prepare` made.
        verify: Whether to check every file's hash.
    """

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder, what=WHAT, verify=verify)
        if self.manifest.get("kind") != "prepared":
            raise EhrseqError(f"is not {WHAT}", where=str(folder), mend="make one with ehrseq prepare")

    @cached_property
    def study(self) -> StudyConfig:
        """Settings that made this set."""
        return load_study(self.folder / "config.yaml")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Tokens and scales."""
        return Vocabulary.load(self.folder)

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(self.manifest["tasks"])

    def task(self, name: str) -> TaskConfig:
        """A task by its name."""
        if name not in self.tasks:
            known = ", ".join(self.tasks) or "none: give --task to ehrseq prepare"
            raise EhrseqError(f"has no task {name!r}", where=str(self.folder), mend=f"tasks here: {known}")
        return load_task(self.folder / "tasks" / name / "task.yaml")

    def only_task(self) -> str:
        """The name of the only task."""
        if len(self.tasks) != 1:
            known = ", ".join(self.tasks) or "none: give --task to ehrseq prepare"
            raise EhrseqError("which task?", where=str(self.folder), mend=f"name one with --task; tasks here: {known}")
        return self.tasks[0]

    def attrition(self, name: str) -> dict[str, Any]:
        """Counts of a task, step by step."""
        counts: dict[str, Any] = read_json(self.folder / "tasks" / self.task(name).name / "attrition.json")
        return counts

    def timelines(self, split: str) -> Timelines:
        """Visits of a split."""
        return _open(Timelines, self.folder / "visits" / split)

    def rows(self, task: str, split: str) -> TaskRows:
        """Prediction times and labels of a task in a split."""
        self.task(task)
        return _open(TaskRows, self.folder / "tasks" / task / split)


def _open(kind: type[Arrays], folder: Path) -> Arrays:
    """Memory-map every field of an array class; empty files cannot be mapped and are loaded."""

    def load(path: Path) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            array = np.load(path, allow_pickle=False)
        except OSError as error:
            raise EhrseqError("cannot be read", where=str(path), mend="prepare again") from error
        return array

    return kind(**{field.name: load(folder / f"{field.name}.npy") for field in fields(kind)})
