"""The work on the shards of a data set, in this process or others: rows read and kept, then encoded."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from uuid import uuid4

import numpy as np

from ehrsequencing.config import StudyConfig, TaskConfig, VisitsConfig, validated
from ehrsequencing.core.arrays import Ints
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
    DOUBTFUL_DEATH,
    ENDS,
    Events,
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
from ehrsequencing.records.parallel import call_in_order
from ehrsequencing.records.same_day import study_of_days
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


@dataclass(eq=False)
class ShardWork:
    """The work on shards, and all that it needs but the shards; a process gets it with each call."""

    reader: MedsReader
    lookup: SplitLookup
    study: StudyConfig
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
        study = study_of_days(study, tasks)
        reader, parents = MedsReader(data, study.data, study), read_parents(data)
        ends = [code for task in tasks for code in task.censoring.code or ()]
        reader.ends = CodeMatcher([*ENDS, *ends], parents=parents)
        reader.no_ends = CodeMatcher(_other_roles(tasks), parents=parents)
        excluded = excluded_codes(study, tasks, parents)
        lookup = split_lookup(data, study=study, tasks=tasks, excluded=excluded, parents=parents)
        builders = [CohortBuilder(task, parents=parents) for task in tasks]
        return cls(reader, lookup, study, builders, excluded, parents)

    @property
    def tasks(self) -> list[TaskConfig]:
        """The questions."""
        return [builder.task for builder in self.builders]

    def new_fit(self) -> VocabularyFit:
        """An empty fit."""
        settings, values = self.study.vocabulary, self.study.values
        return VocabularyFit(settings, values, excluded=self.excluded, parents=self.parents)

    def fit(
        self, shards: range, late: LateRows | None
    ) -> tuple[list[KeptRows], list[DayCounts], VocabularyFit, Counter[str]]:
        """First pass: collect what the vocabulary is fitted on, and keep the fixed rows, but late ones, in files.

        Returns:
            Per shard its kept rows and its rows by day; the fit of all; and how often each fix was applied.
        """
        reader, fit = copy(self.reader), self.new_fit()
        reader.fixes, reader.late = Counter(), late
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
        return rows, days, fit, reader.fixes

    def encode(self, shards: Sequence[KeptRows], dataset_end_us: int) -> list[EncodedShard]:
        """Second pass: encode a range of subjects, piece by piece, with the stored vocabulary."""
        pieces = read_kept(shards, self._codes, group=self.lookup, rows=_PIECE_ROWS)
        marks = [one.censoring_codes for one in self.builders if one.censoring_codes is not None]
        parts = (
            part
            for events in pieces
            for part in cut_by_design(events, self.lookup, marks, dataset_end_us)
        )
        return [self._encode(*part) for part in parts]

    def _encode(self, events: Events, dataset_end_us: int) -> EncodedShard:
        """Encode visits and each task's prediction times; subjects come split by split."""
        record = make_record(events, excluded=self.excluded, settings=self.study.visits)
        timelines, too_old = encode_timelines(record, self._vocabulary)
        fixes = Counter({"old_age": too_old})
        split = self.lookup(record.subject_id)
        bounds = np.searchsorted(split, np.arange(len(SPLITS) + 1))
        parts = [slice(*bound) for bound in itertools.pairwise(bounds.tolist())]
        tasks = []
        for builder in self.builders:
            cohort = builder.build(record, dataset_end_us=dataset_end_us)
            fixes["after_censoring"] += cohort.after_censoring
            tally = Tally(builder.task)
            tally.add_cohort(cohort, split, record)
            tally.follow_up.update(count_ends(builder, record, cohort.rows, dataset_end_us))
            rows = encode_rows(record, cohort.rows, self._vocabulary)
            events_ = builder.outcomes.find(record) if builder.outcomes else None
            outcomes = [events_.take(part) for part in parts] if events_ else []
            tasks.append((tally, [rows.take(part) for part in parts], outcomes))
        doubtful = np.unique(events.subject_id[events.is_code(DOUBTFUL_DEATH)])
        return EncodedShard([timelines.take(part) for part in parts], tasks, fixes, doubtful)

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
        for parts, counts, fit, fixes in call_in_order(self.work, "fit", items, jobs=self.jobs):
            self.fit.merge(fit)
            reader.fixes.update(fixes)
            codes = self.fit.numbers(tuple(fit.number))  # theirs → ours
            for part, days in zip(parts, counts, strict=True):
                self.kept.append(replace(part, numbers=codes.take(part.numbers)))
                yield part.subject_id, days


def _other_roles(tasks: Sequence[TaskConfig]) -> list[str]:
    """Codes that say more than that a follow-up ends: those of an index, a start or a cause of any task."""
    out = list[str]()
    for task in tasks:
        out += [*(task.index.code or ()), *(task.censoring.start or ())]
        out += [code for codes in task.patterns.values() for code in codes]
    return out
