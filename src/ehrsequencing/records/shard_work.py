"""The work that `prepare` does on each shard, and what it finds; `parallel.py` says where it is done.

The first pass works on shards, the second on ranges of subjects. Each piece of work depends on nothing but itself.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.files import read_json
from ehrsequencing.records.attrition import Tally
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.data_end import DayCounts, LateRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.fixes import FixLog
from ehrsequencing.records.meds import SPLITS, MedsReader
from ehrsequencing.records.record import Record, make_record
from ehrsequencing.records.row_store import KeptRows, keep, read_kept
from ehrsequencing.records.splits import SplitLookup
from ehrsequencing.records.store import write_cohort
from ehrsequencing.records.survey import TrainingFit
from ehrsequencing.records.timelines import OutcomeEvents, TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import FitPart, VocabularyFit

# in the folder that is being made: rows between the passes, and all codes
KEPT, CODES = (
    ".rows",
    "codes.json",
)
_PIECE_ROWS = 1 << 17  # about so many rows are encoded at once: they fit the processor's cache


@dataclass(frozen=True)
class FittedShards:
    """What the first pass takes from some shards."""

    kept: list[KeptRows]  # per shard
    days: list[DayCounts]  # per shard
    numbers: list[Ints]  # per shard: the place of each of its codes in `part.codes`
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
        fit = VocabularyFit(
            self.study.vocabulary, self.study.values, excluded=self.excluded, parents=self.parents
        )
        return TrainingFit(fit, self.lookup)

    def fit(self, shards: Sequence[tuple[Path, Path]], late: LateRows | None) -> FittedShards:
        """First pass: collect what the vocabulary is fitted on, and keep the fixed rows, but late ones, in files.

        Args:
            shards: Each shard, and the file that its rows are kept in.
            late: Which rows are late.
        """
        # of the first process, the reader stays as it is
        reader, part = (
            copy(self.reader),
            self.new_fit(),
        )
        reader.fixes, reader.late = FixLog(), late
        kept, days, numbers = list[KeptRows](), list[DayCounts](), list[Ints]()
        for path, file in shards:
            events = reader.read(path)
            part.add(events)
            kept.append(keep(events, file))
            days.append(DayCounts.of(events))
            numbers.append(part.fit.numbers(events.codes))
        return FittedShards(kept, days, numbers, part.fit.part(), reader.fixes)

    def encode(self, shards: Sequence[KeptRows], dataset_end_us: int) -> list[EncodedShard]:
        """Second pass: encode a range of subjects, piece by piece, with the stored vocabulary."""
        return [
            self._encode(
                make_record(events, excluded=self.excluded, settings=self.study.visits),
                dataset_end_us,
            )
            for events in read_kept(shards, self._codes, group=self.lookup, rows=_PIECE_ROWS)
        ]

    def write_cohorts(self) -> None:
        """After the second pass: each task's table of prediction times."""
        for builder in self.builders:
            write_cohort(self.folder, builder.task.name)

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
        return EncodedShard(
            [timelines.take(part) for part in parts], rows, tallies, fixes, outcomes
        )

    @cached_property
    def _codes(self) -> tuple[str, ...]:
        return tuple(read_json(self.folder / KEPT / CODES))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder)
