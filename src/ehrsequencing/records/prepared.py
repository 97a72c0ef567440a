"""The prepared store: MEDS → packed arrays and labels on disk, written shard by shard, read by memory map.

    PREPARED/config.yaml  vocabulary.json  vocabulary.safetensors  manifest.json
    PREPARED/visits/SPLIT/*.npy            the fields of `Timelines`
    PREPARED/tasks/NAME/task.yaml  cohort.parquet  labels.parquet  attrition.json
    PREPARED/tasks/NAME/SPLIT/*.npy        the fields of `TaskRows`

The first pass reads the shards, fits vocabulary and scales on training subjects, and keeps the fixed rows on disk, at
16 bytes a row. The second pass encodes one range of subjects after another. Memory holds one shard, whatever the number
of subjects.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ehrsequencing.config import StudyConfig, TaskConfig, load_study, load_task
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json, refuse_overlap, write_json, write_settings
from ehrsequencing.core.outputs import (
    PREPARED,
    complete_folder,
    read_manifest,
    require_facts,
    write_manifest,
)
from ehrsequencing.core.process import safe_children
from ehrsequencing.core.version import __version__
from ehrsequencing.records.attrition import Tally
from ehrsequencing.records.codes import excluded_codes, read_parents
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.data_end import DayCounts
from ehrsequencing.records.engines import PROCESSES, Engine
from ehrsequencing.records.events import Events
from ehrsequencing.records.meds import SPLITS, MedsReader
from ehrsequencing.records.outcome_files import OutcomeChoice, choose_outcomes, read_outcomes
from ehrsequencing.records.parallel import Workers, count_processes, count_rows
from ehrsequencing.records.row_store import KeptRows, keep, ranges
from ehrsequencing.records.shard_work import CODES, KEPT, EncodedShard, ShardWork
from ehrsequencing.records.splits import split_lookup, split_source
from ehrsequencing.records.store import ArrayAppender, open_arrays
from ehrsequencing.records.survey import Part, Progress, Steps, Survey, survey
from ehrsequencing.records.timelines import OutcomeEvents, TaskRecords, TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

SECTIONS = {"data", "visits", "values", "vocabulary", "splits"}  # the settings of `prepare`
_FACTS: dict[str, type] = {
    "data": str,
    "excluded": list,
    "fixes": dict,
    "tasks": list,
    "vocabulary": str,
}
OUTCOMES = "outcomes"  # beside the kept rows: events of all codes that a task's outcomes match
_RANGE_ROWS = 500_000  # about so many rows are read again at once
# of a run's identity; the rest is visits
_PARTS = {
    "codes": "codes",
    "static_codes": "codes",
    "values": "values",
}


def prepare(
    data: Path,
    out: Path,
    *,
    study: StudyConfig,
    tasks: Sequence[TaskConfig],
    overwrite: bool = False,
    progress: Progress | None = None,
    processes: int | None = None,
    engine: str = PROCESSES,
    content: str | None = None,
) -> None:
    """Turn a MEDS data set into packed arrays and labels.

    Args:
        data: Folder of the data set.
        out: Folder to make.
        study: How visits are cut, values read and the vocabulary built.
        tasks: The questions.
        overwrite: Whether an earlier prepared set there that nobody has changed is replaced.
        progress: Called with (pieces of work done, pieces to do): shards to read, then ranges of subjects to encode.
        processes: Over how many processes to spread the shards; by default all cores, and one for small data. The
            result is the same, byte for byte.
        engine: Where that work runs: `processes`, or a cluster as `dask://HOST:PORT` (`Engine.of`). Same bytes, too.
        content: Digest of everything that goes in, for the manifest (`ehrsequencing.prepare` looks for it).

    Raises:
        EhrseqError: Data or task cannot be used; nothing is left behind.
    """
    refuse_overlap(out, data)
    where = Engine.of(engine)
    if where.is_cluster:  # its machines have other working folders
        data, out = data.resolve(), out.resolve()
    job = PrepareJob(data, study, tasks, progress)
    with safe_children(), complete_folder(out, PREPARED, overwrite=overwrite) as folder:
        workers = Workers(job.work(folder), count_processes(job.reader.shards, processes), where)
        job.write(folder, workers, job.fit(folder, workers), content=content)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What the first pass found; the vocabulary is in the folder, too."""

    found: Survey["_FitAndKeep"]
    dataset_end_us: int
    vocabulary: Vocabulary
    known: float | None  # share of the training rows with a token of their own
    fixes: Counter[str]


class PrepareJob:
    """The steps of one `prepare`: what goes in, the first pass, the second pass.

    Raises:
        EhrseqError: Data or task cannot be used.
    """

    def __init__(
        self,
        data: Path,
        study: StudyConfig,
        tasks: Sequence[TaskConfig],
        progress: Progress | None = None,
    ) -> None:
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            raise EhrseqError(
                "two tasks have the same name", where=", ".join(names), fix="rename one"
            )
        self.data, self.study, self.tasks = data, study, tasks
        self.reader, self.parents = MedsReader(data, study.data, study.visits), read_parents(data)
        self.excluded = excluded_codes(study, tasks, self.parents)
        self.lookup = split_lookup(
            data, study=study, tasks=tasks, excluded=self.excluded, parents=self.parents
        )
        self.builders = [CohortBuilder(task, parents=self.parents) for task in tasks]
        self.n_ranges = 1 + count_rows(self.reader.shards) // _RANGE_ROWS
        self.tick = Steps(self.reader, self.n_ranges, progress)

    def work(self, folder: Path) -> ShardWork:
        """The work on one shard; `folder` gets vocabulary and codes."""
        return ShardWork(
            self.reader, self.lookup, self.study, self.builders, self.excluded, self.parents, folder
        )

    def fit(self, folder: Path, workers: Workers) -> Fitted:
        """The first pass: where the data ends, and the vocabulary of the training subjects."""
        reader = self.reader
        found = survey(reader, lambda: _FitAndKeep(workers), self.tick)
        fit = found.part.fit
        for builder in self.builders:
            builder.require_known(
                [*fit.number, *self.parents], suggest=[*fit.common_codes(), *self.parents]
            )
        vocabulary = fit.finish()
        known = fit.known_share(vocabulary)
        fixes = Counter(reader.fixes)
        fixes["absent_split"] = self.lookup.absent(found.subject_id)
        for builder in self.builders:
            builder.require_subjects(found.subject_id)
        vocabulary.save(folder)
        write_json(folder / KEPT / CODES, list(fit.number))
        return Fitted(found, reader.end_us(found.days), vocabulary, known, fixes)

    def items(self, fitted: Fitted) -> Iterator[tuple[list[KeptRows], int]]:
        """The pieces of the second pass: ranges of subjects."""
        return (
            (shards, fitted.dataset_end_us)
            for shards in ranges(fitted.found.part.kept, self.n_ranges)
        )

    def write(
        self, folder: Path, workers: Workers, fitted: Fitted, *, content: str | None = None
    ) -> None:
        """The second pass, and all files."""
        fit, fixes, done = fitted.found.part.fit, fitted.fixes, 0
        with ExitStack() as stack:
            writers = _Writers(folder, self.tasks, stack)
            for pieces in workers.in_order(ShardWork.encode, self.items(fitted), mapped=True):
                done += 1
                for piece in pieces:
                    writers.add(piece, fixes)
                self.tick()
        for _ in range(done, self.n_ranges):
            self.tick()
        choices = dict[str, OutcomeChoice]()
        for task in self.tasks:
            if task.outcomes is not None:
                task_folder, events = (
                    folder / "tasks" / task.name,
                    folder / KEPT / OUTCOMES / task.name,
                )
                choices[task.name] = choose_outcomes(
                    task_folder, events, task, list(fit.number), self.parents
                )
        with workers.beside(ShardWork.write_cohorts):
            shutil.rmtree(folder / KEPT)
        write_settings(folder / "config.yaml", self.study, only=SECTIONS)
        for task, tally in zip(self.tasks, writers.tallies, strict=True):
            task_folder = folder / "tasks" / task.name
            write_settings(task_folder / "task.yaml", task)
            write_json(task_folder / "attrition.json", tally.as_json(choices.get(task.name)))
        late = self.reader.late
        write_manifest(
            folder,
            {
                **PREPARED.facts,
                "version": __version__,
                "data": data_name(self.data),
                "data_path": str(self.data.resolve()),
                "subjects": len(fitted.found.subject_id),
                "dataset_end_us": fitted.dataset_end_us,
                "late_rows": asdict(late) if late else None,
                "vocabulary": fitted.vocabulary.digest,
                "tasks": [task.name for task in self.tasks],
                "known_training_rows": fitted.known,
                "splits": split_source(self.data, self.study.splits),
                "config": digest(self.study.model_dump(mode="json", include=SECTIONS)),
                "excluded": list(self.excluded.patterns),
                "fixes": {name: count for name, count in fixes.items() if count},
                **({} if content is None else {"content": content}),
            },
        )


def data_name(data: Path) -> str:
    """What the data set calls itself, else its folder's name."""
    card = data / "metadata" / "dataset.json"
    found = read_json(card) if card.is_file() else None
    name = found.get("dataset_name") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name else data.name


class _FitAndKeep(Part):
    """First pass: fits the vocabulary, and keeps every shard's fixed rows in a file."""

    def __init__(self, workers: Workers) -> None:
        self.workers, self.work = workers, workers.work
        self.training = self.work.new_fit()
        self.fit = self.training.fit
        self.kept: list[KeptRows] = []

    def _keep(self, rows: KeptRows, numbers: Ints) -> None:
        rows.number_codes(numbers)
        self.kept.append(rows)

    def add(self, events: Events) -> None:
        """Add the next shard."""
        self.training.add(events)
        self._keep(
            keep(events, self.workers.kept_path(len(self.kept))), self.fit.numbers(events.codes)
        )

    def shards(self, reader: MedsReader) -> Iterator[tuple[Ints, DayCounts]]:
        """Read every shard, in one process or several."""
        if self.workers.are_here:
            yield from super().shards(reader)
            return
        shards = [
            (path, self.workers.kept_path(number)) for number, path in enumerate(reader.shards)
        ]
        items = ((shards[some], reader.late) for some in self.workers.calls(len(shards)))
        for found in self.workers.in_order(ShardWork.fit, items):
            self.fit.merge(found.part)
            reader.fixes.merge(found.fixes)
            codes = self.fit.numbers(found.part.codes)
            for kept, days, numbers in zip(found.kept, found.days, found.numbers, strict=True):
                self._keep(kept, codes.take(numbers))
                yield kept.subject_id, days


class _Writers:
    """Open files of a prepared set; encoded shards are appended, each subject to its split."""

    def __init__(self, folder: Path, tasks: Sequence[TaskConfig], stack: ExitStack) -> None:
        self.folder, self.tallies = folder, [Tally(task) for task in tasks]
        self._appender = ArrayAppender(stack)

    def add(self, shard: EncodedShard, fixes: Counter[str]) -> None:
        """Append a shard."""
        fixes.update(shard.fixes)
        for split, timelines in zip(SPLITS, shard.visits, strict=True):
            self._appender.append(self.folder / "visits" / split, timelines)
        for total, tally, parts, events in zip(
            self.tallies, shard.tallies, shard.rows, shard.outcomes, strict=True
        ):
            total.merge(tally)
            for split, rows in zip(SPLITS, parts, strict=True):
                self._appender.append(self.folder / "tasks" / total.task.name / split, rows)
            for split, found in zip(
                SPLITS, events, strict=False
            ):  # of all matching codes; chosen at the end
                self._appender.append(
                    self.folder / KEPT / OUTCOMES / total.task.name / split, found
                )


class Prepared:
    """A prepared set on disk; arrays are memory-mapped."""

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder, what=PREPARED.what, verify=verify)
        if self.manifest.get("kind") != PREPARED.name:
            raise EhrseqError(
                f"is not {PREPARED.what}", where=str(folder), fix="make one with ehrseq prepare"
            )
        require_facts(folder, self.manifest, _FACTS)
        if not all(
            f"tasks/{name}/task.yaml" in self.manifest["files"] for name in self.manifest["tasks"]
        ):
            raise EhrseqError(
                "its manifest names a task that is not there",
                where=str(folder),
                fix="prepare again",
            )
        if lost := next(
            (name for name in self._arrays() if name not in self.manifest["files"]), None
        ):
            raise EhrseqError(
                f"its manifest does not list {lost}", where=str(folder), fix="prepare again"
            )

    def _arrays(self) -> Iterator[str]:
        """The files of arrays that every set has."""
        for split in SPLITS:
            yield from (f"visits/{split}/{field.name}.npy" for field in fields(Timelines))
            for task in self.manifest["tasks"]:
                yield from (f"tasks/{task}/{split}/{field.name}.npy" for field in fields(TaskRows))

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
            raise EhrseqError(
                f"has no task {name!r}", where=str(self.folder), fix=f"tasks here: {known}"
            )
        return load_task(self.folder / "tasks" / name / "task.yaml")

    def only_task(self) -> str:
        """The name of the only task."""
        if len(self.tasks) != 1:
            known = ", ".join(self.tasks) or "none: give --task to ehrseq prepare"
            raise EhrseqError(
                "which task?",
                where=str(self.folder),
                fix=f"name one with --task; tasks here: {known}",
            )
        return self.tasks[0]

    def attrition(self, name: str) -> dict[str, Any]:
        """Counts of a task, step by step."""
        counts: dict[str, Any] = read_json(
            self.folder / "tasks" / self.task(name).name / "attrition.json"
        )
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
        return {
            "vocabulary": self.vocabulary.digest,
            **{part: digest(found) for part, found in hashes.items()},
        }

    def unlike(self, task: str, identity: Mapping[str, Any]) -> list[str]:
        """What of this set is not as in an `identity` that was noted before; what that lacks is not compared."""
        return [part for part, own in self.identity(task).items() if identity.get(part, own) != own]

    def timelines(self, split: str) -> Timelines:
        """Visits of a split."""
        return open_arrays(Timelines, self.folder / "visits" / split)

    def rows(self, task: str, split: str) -> TaskRows:
        """Prediction times and labels of a task in a split."""
        self.task(task)
        return open_arrays(TaskRows, self.folder / "tasks" / task / split)

    def records(self, task: str, split: str) -> TaskRecords:
        """Visits of a split, with prediction times and labels of a task."""
        return TaskRecords(self.timelines(split), self.rows(task, split))

    def outcomes(self, task: str) -> list[str]:
        """The codes of a task's outcomes, in the order of their numbers; none where it asks about its causes only."""
        return (
            [] if self.task(task).outcomes is None else read_outcomes(self.folder / "tasks" / task)
        )

    def outcome_records(self, task: str, split: str) -> TaskRecords:
        """As `records`, to be labelled with the task's outcomes too, where it has some."""
        records, asked = self.records(task, split), self.task(task).outcomes
        if asked is None:
            return records
        events = open_arrays(OutcomeEvents, self.folder / "tasks" / task / split)
        return TaskRecords(records.timelines, records.rows, events, asked.kind == "next")
