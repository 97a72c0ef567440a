"""`prepare`: MEDS → packed arrays and labels on disk, in two passes.

The first pass reads the shards, fits vocabulary and scales on training subjects, and keeps the fixed rows on disk, at
16 bytes a row. The second pass encodes one range of subjects after another. Memory holds some shards, whatever the
number of subjects.
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json, refuse_overlap, write_json, write_settings
from ehrsequencing.core.outputs import PREPARED, complete_folder, write_manifest
from ehrsequencing.core.process import safe_children
from ehrsequencing.core.version import __version__
from ehrsequencing.records.attrition import Tally, nobody_left
from ehrsequencing.records.codes import CodeMatcher, excluded_codes, read_parents
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import Events
from ehrsequencing.records.imported import with_imported_visits
from ehrsequencing.records.labels import write_cohort
from ehrsequencing.records.meds import SPLITS, DayCounts, LateRows, MedsReader, count_days
from ehrsequencing.records.outcomes import choose_outcomes
from ehrsequencing.records.parallel import PROCESSES, call_in_order, count_rows, joblib_backend
from ehrsequencing.records.prepared import SECTIONS
from ehrsequencing.records.row_store import KeptRows, keep, ranges, read_kept
from ehrsequencing.records.splits import SplitLookup, split_lookup, split_source
from ehrsequencing.records.survey import Part, Progress, Steps, TrainingFit, survey
from ehrsequencing.records.timelines import ArrayAppender, OutcomeEvents, TaskRows, Timelines
from ehrsequencing.records.visits import make_record
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import FitPart, VocabularyFit

# in the folder that is being made: rows between the passes, all codes, and events of all codes that a task's outcomes
# match
_KEPT, _CODES, _OUTCOMES = ".rows", "codes.json", "outcomes"
_RANGE_ROWS = 500_000  # about so many rows are read again at once
_PIECE_ROWS = 1 << 17  # about so many rows are encoded at once: they fit the processor's cache
_SHARDS_AT_ONCE = 8  # that one call of the first pass takes at most
_CALLS_PER_PROCESS = (
    6  # of the first pass at least, so that all processes end at about the same time
)


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
    allow_empty: bool = False,
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
            result is the same, byte for byte. Inside `joblib.parallel_config` the default is that backend.
        engine: Where that work runs: `processes`, or a cluster as `dask://HOST:PORT`. Same bytes, too.
        allow_empty: Whether a task may keep nobody.
        content: Digest of everything that goes in, for the manifest (`ehrsequencing.prepare` looks for it).

    Raises:
        EhrseqError: Data or task cannot be used; nothing is left behind.
    """
    refuse_overlap(out, data)
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise EhrseqError("two tasks have the same name", where=", ".join(names), fix="rename one")
    if engine != PROCESSES:  # its machines have other working folders
        data, out = data.resolve(), out.resolve()
    study = with_imported_visits(study, data)
    reader, parents = MedsReader(data, study.data, study.visits), read_parents(data)
    excluded = excluded_codes(study, tasks, parents)
    lookup = split_lookup(data, study=study, tasks=tasks, excluded=excluded, parents=parents)
    builders = [CohortBuilder(task, parents=parents) for task in tasks]
    n_ranges = 1 + count_rows(reader.shards) // _RANGE_ROWS
    tick = Steps(reader, n_ranges, progress)
    with (
        safe_children(),
        complete_folder(out, PREPARED, overwrite=overwrite) as folder,
        joblib_backend(engine, processes, reader.shards) as jobs,
    ):
        work = ShardWork(reader, lookup, study, builders, excluded, parents, folder)
        found = survey(reader, lambda: _FirstPass(work, jobs), tick)
        fit, fixes, end_us = found.part.fit, Counter(reader.fixes), reader.end_us(found.days)
        for builder in builders:
            builder.require_known([*fit.number, *parents], suggest=[*fit.common_codes(), *parents])
        vocabulary = fit.finish()
        known = fit.known_share(vocabulary)
        fixes["absent_split"] = lookup.absent(found.subject_id)
        for builder in builders:
            builder.require_subjects(found.subject_id)
        vocabulary.save(folder)
        write_json(folder / _KEPT / _CODES, list(fit.number))

        items = ((shards, end_us) for shards in ranges(found.part.kept, n_ranges))
        tallies = [Tally(task) for task in tasks]
        with ExitStack() as stack:
            writer, left = ArrayAppender(stack), n_ranges
            for pieces in call_in_order(work, "encode", items, jobs=jobs):
                for piece in pieces:
                    fixes.update(piece.fixes)
                    _append(piece, folder, tallies, writer)
                tick()
                left -= 1
        for _ in range(left):  # there may be fewer ranges
            tick()

        for task, tally in zip(tasks, tallies, strict=True):
            nobody = nobody_left(task, tally.as_json())
            if nobody is not None and not allow_empty:
                raise EhrseqError(nobody[0], where=f"task {task.name}", fix=nobody[1])
        codes, choices = list(fit.number), dict[str, dict[str, Any]]()
        for task in tasks:
            if task.outcomes is not None:
                events = folder / _KEPT / _OUTCOMES / task.name
                choices[task.name] = choose_outcomes(
                    folder / "tasks" / task.name, events, task, codes, parents
                )
        shutil.rmtree(folder / _KEPT)
        write_settings(folder / "config.yaml", study, only=SECTIONS)
        for task, tally in zip(tasks, tallies, strict=True):
            write_cohort(folder, task.name)
            write_settings(folder / "tasks" / task.name / "task.yaml", task)
            attrition = tally.as_json(choices.get(task.name))
            write_json(folder / "tasks" / task.name / "attrition.json", attrition)
        facts = {
            **PREPARED.facts,
            "version": __version__,
            "data": data_name(data),
            "data_path": str(data.resolve()),
            "subjects": len(found.subject_id),
            "dataset_end_us": end_us,
            "late_rows": asdict(reader.late) if reader.late else None,
            "vocabulary": vocabulary.digest,
            "tasks": names,
            "known_training_rows": known,
            "splits": split_source(data, study.splits),
            "config": digest(study.model_dump(mode="json", include=SECTIONS)),
            "excluded": list(excluded.patterns),
            "fixes": {name: count for name, count in fixes.items() if count},
        }
        write_manifest(folder, facts if content is None else {**facts, "content": content})


def data_name(data: Path) -> str:
    """What the data set calls itself, else its folder's name."""
    card = data / "metadata" / "dataset.json"
    found = read_json(card) if card.is_file() else None
    name = found.get("dataset_name") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name else data.name


@dataclass(frozen=True)
class FittedShards:
    """What the first pass takes from some shards."""

    kept: list[KeptRows]  # per shard
    days: list[DayCounts]  # per shard
    numbers: list[Ints]  # per shard: the place of each of its codes in `part.codes`
    part: FitPart
    fixes: Counter[str]


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
    """The work on shards, and everything that it needs but the shards; processes and clusters get it with each call."""

    reader: MedsReader
    lookup: SplitLookup
    study: StudyConfig
    builders: Sequence[CohortBuilder]
    excluded: CodeMatcher
    parents: Mapping[str, list[str]]
    folder: Path  # that is being made: it gets the vocabulary of the second pass, and all codes of the data set
    key: str = field(default_factory=lambda: uuid4().hex)

    def new_fit(self) -> TrainingFit:
        """An empty fit."""
        fit = VocabularyFit(
            self.study.vocabulary, self.study.values, excluded=self.excluded, parents=self.parents
        )
        return TrainingFit(fit, self.lookup)

    def fit(self, shards: range, late: LateRows | None) -> FittedShards:
        """First pass: collect what the vocabulary is fitted on, and keep the fixed rows, but late ones, in files."""
        reader, part = copy(self.reader), self.new_fit()
        reader.fixes, reader.late = Counter(), late
        kept, days, numbers = list[KeptRows](), list[DayCounts](), list[Ints]()
        for number in shards:
            events = reader.read(reader.shards[number])
            part.add(events)
            kept.append(keep(events, self.folder / _KEPT / f"{number}.rows"))
            days.append(count_days(events))
            numbers.append(part.fit.numbers(events.codes))
        return FittedShards(kept, days, numbers, part.fit.part(), reader.fixes)

    def encode(self, shards: Sequence[KeptRows], dataset_end_us: int) -> list[EncodedShard]:
        """Second pass: encode a range of subjects, piece by piece, with the stored vocabulary."""
        return [
            self._encode(events, dataset_end_us)
            for events in read_kept(shards, self._codes, group=self.lookup, rows=_PIECE_ROWS)
        ]

    def _encode(self, events: Events, dataset_end_us: int) -> EncodedShard:
        """Encode visits and each task's prediction times; subjects come split by split."""
        record = make_record(events, excluded=self.excluded, settings=self.study.visits)
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
            found = None if builder.outcomes is None else builder.outcomes.find(record)
            outcomes.append([] if found is None else [found.take(part) for part in parts])
        visits = [timelines.take(part) for part in parts]
        return EncodedShard(visits, rows, tallies, fixes, outcomes)

    @cached_property
    def _codes(self) -> tuple[str, ...]:
        return tuple(read_json(self.folder / _KEPT / _CODES))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder)


class _FirstPass(Part):
    """Fits the vocabulary, and keeps every shard's fixed rows in a file."""

    def __init__(self, work: ShardWork, jobs: int) -> None:
        self.work, self.jobs, self.training = work, jobs, work.new_fit()
        self.fit = self.training.fit
        self.kept: list[KeptRows] = []

    def add(self, events: Events) -> None:
        """Add the next shard, in this process."""
        self.training.add(events)
        kept = keep(events, self.work.folder / _KEPT / f"{len(self.kept)}.rows")
        kept.number_codes(self.fit.numbers(events.codes))
        self.kept.append(kept)

    def shards(self, reader: MedsReader) -> Iterator[tuple[Ints, DayCounts]]:
        """Read every shard, in one process or several."""
        if self.jobs == 1:
            yield from super().shards(reader)
            return
        # samples are bounded, so that of several shards is hardly larger than that of one: fewer calls return less
        n = len(reader.shards)
        step = max(1, min(_SHARDS_AT_ONCE, n // (_CALLS_PER_PROCESS * self.jobs)))
        items = ((range(k, min(k + step, n)), reader.late) for k in range(0, n, step))
        for found in call_in_order(self.work, "fit", items, jobs=self.jobs):
            self.fit.merge(found.part)
            reader.fixes.update(found.fixes)
            codes = self.fit.numbers(found.part.codes)
            for kept, days, numbers in zip(found.kept, found.days, found.numbers, strict=True):
                kept.number_codes(codes.take(numbers))
                self.kept.append(kept)
                yield kept.subject_id, days


def _append(
    shard: EncodedShard, folder: Path, tallies: Sequence[Tally], writer: ArrayAppender
) -> None:
    for split, timelines in zip(SPLITS, shard.visits, strict=True):
        writer.append(folder / "visits" / split, timelines)
    parts = zip(tallies, shard.tallies, shard.rows, shard.outcomes, strict=True)
    for total, tally, rows, events in parts:
        total.merge(tally)
        name = total.task.name
        for split, own in zip(SPLITS, rows, strict=True):
            writer.append(folder / "tasks" / name / split, own)
        for split, found in zip(SPLITS, events, strict=False):  # of all codes; chosen at the end
            writer.append(folder / _KEPT / _OUTCOMES / name / split, found)
