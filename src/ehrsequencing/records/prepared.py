"""The prepared store: MEDS → packed arrays and labels on disk, written shard by shard, read by memory map.

    PREPARED/config.yaml  vocabulary.json  vocabulary.safetensors  manifest.json
    PREPARED/visits/SPLIT/*.npy            the fields of `Timelines`
    PREPARED/tasks/NAME/task.yaml  cohort.parquet  labels.parquet  attrition.json
    PREPARED/tasks/NAME/SPLIT/*.npy        the fields of `TaskRows`

The first pass reads the shards, fits vocabulary and scales on training subjects, and keeps the fixed rows on disk for
the second, which encodes one range of subjects after another. Memory holds one shard, whatever the number of subjects;
the kept rows take 16 bytes each until the set is complete.
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ehrsequencing import __version__
from ehrsequencing.arrays import ArrayWriter, Ints
from ehrsequencing.config import StudyConfig, TaskConfig, load_study, load_task
from ehrsequencing.errors import EhrseqError
from ehrsequencing.output_kinds import PREPARED
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.data_end import DayCounts
from ehrsequencing.records.events import DEATH, Events
from ehrsequencing.records.labels import LABELS, label_table
from ehrsequencing.records.meds import BIRTH, SPLITS, MedsReader, SplitLookup, refuse_scattered
from ehrsequencing.records.parallel import (
    CODES,
    KEPT,
    EncodedShard,
    ShardWork,
    Workers,
    count_processes,
    count_rows,
    update_fit,
)
from ehrsequencing.records.parallel import Tally as Tally
from ehrsequencing.records.row_store import KeptRows, keep, ranges
from ehrsequencing.records.splits import split_lookup, split_source
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from ehrsequencing.storage import (
    complete_folder,
    digest,
    read_json,
    read_manifest,
    refuse_overlap,
    require_facts,
    write_json,
    write_manifest,
    write_settings,
)

SECTIONS = {"data", "visits", "values", "vocabulary", "splits"}  # the settings of `prepare`
_FACTS: dict[str, type] = {"data": str, "excluded": list, "fixes": dict, "tasks": list, "vocabulary": str}
_RANGE_ROWS = 500_000  # about so many rows are read again at once
_COHORT_CHUNK = 20_000  # subjects in one row group of `cohort.parquet`
Progress = Callable[[int, int], None]
_DTYPES: dict[str, Any] = {
    "subject_id": np.int64, "birth_us": np.int64, "start_us": np.int64, "end_us": np.int64, "age_years": np.float32,
    "delta_days": np.float32, "codes": np.int32, "values": np.float32, "static_codes": np.int32,
    "prediction_us": np.int64, "index_us": np.int64, "is_query": np.bool_, "visits_before": np.int32,
    "unfinished_codes": np.int32, "duration_days": np.float64, "entry_days": np.float32, "cause": np.int8,
    "carry_codes": np.int32, "carry_values": np.float32,
}  # fmt: skip
_PARTS = {"codes": "codes", "static_codes": "codes", "values": "values"}  # of a run's identity; the rest is visits
_WORD = pa.dictionary(pa.int8(), pa.string())  # in the file a plain string: its schema is not stored as Arrow's
_COHORT = pa.schema([
    ("subject_id", pa.int64()), ("index_time", pa.timestamp("us")), ("prediction_time", pa.timestamp("us")),
    ("kind", _WORD), ("duration_days", pa.float64()), ("cause", pa.int8()), ("split", _WORD),
])  # fmt: skip
_FEW = ["index_time", "kind", "cause", "split", "boolean_value", "integer_value"]  # whose few values make a dictionary
Arrays = TypeVar("Arrays", Timelines, TaskRows)


def excluded_codes(study: StudyConfig, tasks: Sequence[TaskConfig], parents: Mapping[str, list[str]]) -> CodeMatcher:
    """Codes that make no token, no visit and no visit end (SCIENCE.md §1)."""
    censoring = [code for task in tasks for code in task.censoring.code or ()]
    matcher = CodeMatcher([BIRTH, DEATH, *censoring, *study.visits.ignore], parents=parents)
    if matcher.by_value:
        fix = "name codes: they make no token, whatever their number"
        raise EhrseqError(
            "a condition on a number is not possible in censoring.code and visits.ignore", where=matcher.by_value[0],
            fix=fix,
        )  # fmt: skip
    return matcher


def prepare(
    data: Path,
    out: Path,
    *,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
    progress: Progress | None = None,
    processes: int | None = None,
) -> None:
    """Turn a MEDS data set into packed arrays and labels.

    Args:
        data: Folder of the data set.
        out: Folder to make; an earlier prepared set there is replaced when the new one is complete.
        study: How visits are cut, values read and the vocabulary built.
        tasks: The questions.
        progress: Called with (pieces of work done, pieces to do): shards to read, then ranges of subjects to encode.
        processes: Over how many processes to spread the shards; by default all cores, and one for small data. The
            result is the same, byte for byte.

    Raises:
        EhrseqError: Data or task cannot be used; nothing is left behind.
    """
    refuse_overlap(out, data)
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise EhrseqError("two tasks have the same name", where=", ".join(names), fix="rename one")
    reader = MedsReader(
        data, study.data, encounter_column=study.visits.column if study.visits.by == "encounter" else None
    )
    parents = read_parents(data)
    excluded = excluded_codes(study, tasks, parents)
    lookup = split_lookup(data, study=study, tasks=tasks, excluded=excluded, parents=parents)
    n_ranges = 1 + count_rows(reader.shards) // _RANGE_ROWS
    steps = itertools.count(1)

    def tick() -> None:
        done, passes = next(steps), 1 if reader.late is None else 2
        if progress is not None:
            progress(done, passes * len(reader.shards) + n_ranges)

    builders = [CohortBuilder(task, parents=parents) for task in tasks]
    work = ShardWork(reader, lookup, study, builders, excluded, parents)
    with complete_folder(out, PREPARED) as folder:
        with Workers(work, count_processes(reader.shards, processes)) as workers:
            first = reader.settle(lambda: _first_pass_kept(workers, tick, folder / KEPT))
            fit, kept, subject_ids = first.fit, first.kept, first.subject_ids
            dataset_end_us = reader.end_us(first.days)
            for builder in builders:
                builder.require_known([*fit.number, *parents], suggest=[*fit.common_codes(), *parents])
            vocabulary = fit.finish()
            known = fit.known_share(vocabulary)
            fixes = Counter(reader.fixes)
            fixes["absent_split"] = lookup.absent(subject_ids)
            for builder in builders:
                builder.require_subjects(subject_ids)
            vocabulary.save(folder)
            write_json(folder / KEPT / CODES, list(fit.number))
            found = ((shards, folder, dataset_end_us) for shards in ranges(kept, n_ranges))
            done = 0
            with _Writers(folder, tasks) as writers:
                for done, pieces in enumerate(workers.in_order(ShardWork.encode, found), start=1):  # noqa: B007
                    for piece in pieces:
                        writers.add(piece, fixes)
                    tick()
            for _ in range(done, n_ranges):
                tick()
        shutil.rmtree(folder / KEPT)
        write_settings(folder / "config.yaml", study, only=SECTIONS)
        for builder, tally in zip(builders, writers.tallies, strict=True):
            task_folder = folder / "tasks" / builder.task.name
            write_settings(task_folder / "task.yaml", builder.task)
            _write_cohort(folder, builder.task.name)
            write_json(task_folder / "attrition.json", tally.as_json())
        write_manifest(folder, {
            **PREPARED.facts, "version": __version__, "data": data_name(data),
            "data_path": str(data.resolve()), "subjects": len(subject_ids),
            "dataset_end_us": dataset_end_us, "late_rows": asdict(reader.late) if reader.late else None,
            "vocabulary": vocabulary.digest, "tasks": names,
            "known_training_rows": known,
            "splits": split_source(data, study.splits),
            "config": digest(study.model_dump(mode="json", include=SECTIONS)),
            "excluded": list(excluded.patterns), "fixes": {name: count for name, count in fixes.items() if count},
        })  # fmt: skip


def data_name(data: Path) -> str:
    """What the data set calls itself, else its folder's name."""
    card = data / "metadata" / "dataset.json"
    found = read_json(card) if card.is_file() else None
    name = found.get("dataset_name") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name else data.name


@dataclass(frozen=True)
class FirstPass:
    """What the first pass found.

    Attributes:
        fit: The vocabulary's fit.
        subject_ids: (S,) all subjects, sorted.
        days: Rows by day.
        kept: Every shard's fixed rows, where they were kept.
    """

    fit: VocabularyFit
    subject_ids: Ints
    days: DayCounts
    kept: list[KeptRows]


def first_pass(
    reader: MedsReader,
    lookup: SplitLookup,
    fit: VocabularyFit,
    tick: Callable[[], None],
    *,
    also: Callable[[Events], KeptRows] | None = None,
) -> FirstPass:
    """Fit the vocabulary, count rows by day, and keep what `also` makes of every shard's events."""
    ids, days, kept = list[Ints](), list[DayCounts](), list[KeptRows]()
    for events in reader:
        subject_id, of_shard = update_fit(fit, events, lookup)
        ids.append(subject_id)
        days.append(of_shard)
        if also is not None:
            kept.append(also(events))
            kept[-1].number_codes(fit.numbers(events.codes))
        tick()
    return FirstPass(fit, _everyone(ids, reader), DayCounts.added(days), kept)


def _first_pass_kept(workers: Workers, tick: Callable[[], None], folder: Path) -> FirstPass:
    """The first pass, in one process or several; every shard's fixed rows are kept in `folder`."""
    reader, fit = workers.work.reader, workers.work.new_fit()
    paths = [folder / f"{number}.rows" for number in range(len(reader.shards))]
    if workers.processes == 1:
        place = iter(paths)
        return first_pass(reader, workers.work.lookup, fit, tick, also=lambda events: keep(events, next(place)))
    days, kept = list[DayCounts](), list[KeptRows]()
    found = ((shard, path, reader.late) for shard, path in zip(reader.shards, paths, strict=True))
    for shard in workers.in_order(ShardWork.fit, found):
        fit.merge(shard.part)
        reader.fixes.merge(shard.fixes)
        kept.append(shard.kept)
        kept[-1].number_codes(fit.numbers(shard.part.codes))
        days.append(shard.days)
        tick()
    ids = [shard.subject_id for shard in kept]
    refuse_scattered(ids, reader.shards)
    return FirstPass(fit, _everyone(ids, reader), DayCounts.added(days), kept)


def _everyone(ids: list[Ints], reader: MedsReader) -> Ints:
    every = np.concatenate(ids)
    if not len(every):
        raise EhrseqError("holds no subject with a timed row", where=str(reader.data), fix="check the data set")
    return np.sort(every)


class _Writers:
    """Open files of a prepared set; shards are appended, each subject to its split."""

    def __init__(self, folder: Path, tasks: Sequence[TaskConfig]) -> None:
        self.folder, self.tallies = folder, [Tally(task) for task in tasks]
        self._stack = ExitStack()
        self._appender = _Appender(self._stack)

    def __enter__(self) -> "_Writers":
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.__exit__(*failure)

    def add(self, shard: EncodedShard, fixes: Counter[str]) -> None:
        """Append a shard."""
        fixes.update(shard.fixes)
        for split, timelines in zip(SPLITS, shard.visits, strict=True):
            self._appender.append(self.folder / "visits" / split, timelines)
        for total, tally, parts in zip(self.tallies, shard.tallies, shard.rows, strict=True):
            total.merge(tally)
            for split, rows in zip(SPLITS, parts, strict=True):
                self._appender.append(self.folder / "tasks" / total.task.name / split, rows)


class _Appender:
    """Open `.npy` files, one a field; arrays of several subjects are appended to them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._writers: dict[Path, dict[str, ArrayWriter]] = {}

    def append(self, folder: Path, arrays: Timelines | TaskRows) -> None:
        """Append every field to its file under `folder`; offsets go on where those before ended."""
        if folder not in self._writers:
            self._writers[folder] = {field.name: self._open(folder, field.name, arrays) for field in fields(arrays)}
        for name, writer in self._writers[folder].items():
            rows = getattr(arrays, name)
            if name.endswith("_offsets"):
                rows = rows[1:] + writer.last
            if len(rows):
                writer.append(rows)

    def _open(self, folder: Path, name: str, arrays: Timelines | TaskRows) -> ArrayWriter:
        is_offsets = name.endswith("_offsets")
        dtype = np.int64 if is_offsets else _DTYPES[name]
        writer = self._stack.enter_context(ArrayWriter(folder / f"{name}.npy", dtype, getattr(arrays, name).shape[1:]))
        if is_offsets:
            writer.append(np.zeros(1, np.int64))
        return writer


def _write_cohort(folder: Path, task: str) -> None:
    """Write `cohort.parquet` and `labels.parquet` from the stored arrays: by split, subject and time."""
    place = folder / "tasks" / task
    few = {"use_dictionary": _FEW, "write_statistics": False, "store_schema": False}  # three times as fast
    with (
        pq.ParquetWriter(place / "cohort.parquet", _COHORT, **few) as writer,
        pq.ParquetWriter(place / "labels.parquet", LABELS, **few) as labels,
    ):
        for split in SPLITS:
            subject_ids = np.load(folder / "visits" / split / "subject_id.npy")
            for start in range(0, len(subject_ids), _COHORT_CHUNK):
                rows = _open(TaskRows, place / split)  # mapped anew each time: pages that were read would stay
                bounds = rows.row_offsets[start : start + _COHORT_CHUNK + 1]
                subject_id = np.repeat(subject_ids[start : start + _COHORT_CHUNK], np.diff(bounds))
                part = slice(bounds[0], bounds[-1])
                prediction_us, cause = rows.prediction_us[part], rows.cause[part]
                duration_days = rows.duration_days[part]
                labels.write_table(label_table(subject_id, prediction_us, duration_days, cause))
                columns = [
                    pa.array(subject_id),
                    pa.array(rows.index_us[part]).cast(pa.timestamp("us")),
                    pa.array(prediction_us).cast(pa.timestamp("us")),
                    pa.DictionaryArray.from_arrays(rows.is_query[part].view(np.int8), ["visit", "query"]),
                    pa.array(duration_days),
                    pa.array(cause),
                    pa.DictionaryArray.from_arrays(np.zeros(len(subject_id), np.int8), [split]),
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
        self.manifest = read_manifest(folder, what=PREPARED.what, verify=verify)
        if self.manifest.get("kind") != PREPARED.name:
            raise EhrseqError(f"is not {PREPARED.what}", where=str(folder), fix="make one with ehrseq prepare")
        require_facts(folder, self.manifest, _FACTS)
        if not all(f"tasks/{name}/task.yaml" in self.manifest["files"] for name in self.manifest["tasks"]):
            raise EhrseqError("its manifest names a task that is not there", where=str(folder), fix="prepare again")

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
            raise EhrseqError(f"has no task {name!r}", where=str(self.folder), fix=f"tasks here: {known}")
        return load_task(self.folder / "tasks" / name / "task.yaml")

    def only_task(self) -> str:
        """The name of the only task."""
        if len(self.tasks) != 1:
            known = ", ".join(self.tasks) or "none: give --task to ehrseq prepare"
            raise EhrseqError("which task?", where=str(self.folder), fix=f"name one with --task; tasks here: {known}")
        return self.tasks[0]

    def attrition(self, name: str) -> dict[str, Any]:
        """Counts of a task, step by step."""
        counts: dict[str, Any] = read_json(self.folder / "tasks" / self.task(name).name / "attrition.json")
        return counts

    def identity(self, task: str) -> dict[str, str]:
        """Digests of what a run on a task learns from: its vocabulary, labels, codes, values and visits.

        They come from the hashes of the files, so that they cost nothing.
        """
        hashes: dict[str, dict[str, str]] = {"labels": {}, "codes": {}, "values": {}, "visits": {}}
        for name, file_hash in sorted(self.manifest["files"].items()):
            if name.startswith(f"tasks/{task}/"):
                hashes["labels"][name] = file_hash
            elif name.startswith("visits/"):
                hashes[_PARTS.get(Path(name).stem, "visits")][name] = file_hash
        return {"vocabulary": self.vocabulary.digest, **{part: digest(found) for part, found in hashes.items()}}

    def unlike(self, task: str, identity: Mapping[str, Any]) -> list[str]:
        """What of this set is not as in an `identity` that was noted before; what that lacks is not compared."""
        return [part for part, own in self.identity(task).items() if identity.get(part, own) != own]

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
            array: NDArray[Any] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))  # `memmap` slices slowly
        except ValueError:
            array = np.load(path, allow_pickle=False)
        except OSError as error:
            raise EhrseqError("cannot be read", where=str(path), fix="prepare again") from error
        return array

    return kind(**{field.name: load(folder / f"{field.name}.npy") for field in fields(kind)})
