"""Reads the original records behind a prepared set: refits the vocabulary, and keeps the events of sampled subjects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ehrsequencing.baselines.blend.blend import Blend, in_parts
from ehrsequencing.baselines.history import history_features
from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.events import BIRTH, DAY_US, DEATH, STATIC, Events, parse_date_us
from ehrsequencing.records.meds import DayCounts, LateRows, MedsReader, add_days, count_days
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import VocabularyFit


@dataclass(frozen=True)
class Source:
    """The MEDS records that a set was prepared from."""

    prepared: Prepared  # the set
    folder: Path  # where the records are
    parents: dict[str, list[str]]  # parents of each code
    excluded: CodeMatcher  # codes that make no token
    training_fit: Vocabulary  # the vocabulary that the training subjects of the prepared set give
    records: dict[int, Events]  # events of each sampled subject, by id
    dataset_end_us: int  # last timestamp, or the date of extraction
    codes: tuple[str, ...]  # every code of the data set, in the order of the names

    @classmethod
    def read(cls, prepared: Prepared, folder: Path, *, wanted: Ints) -> "Source":
        """One pass over the shards.

        Raises:
            EhrseqError: The records cannot be read, or are not those that were prepared.
        """
        reader, parents = _reader(prepared, folder), read_parents(folder)
        excluded = CodeMatcher(prepared.manifest["excluded"], parents=parents)
        study = prepared.study
        fit = VocabularyFit(study.vocabulary, study.values, excluded=excluded, parents=parents)
        training = prepared.timelines("train").subject_id
        records: dict[int, Events] = {}
        subjects, days = 0, list[DayCounts]()
        for events in reader:
            ids, row = np.unique(events.subject_id, return_inverse=True)
            fit.update(events, row, np.isin(ids, training)[row])
            subjects += len(ids)
            days.append(count_days(events))
            records |= _split(events.take(np.isin(events.subject_id, wanted)))
        manifest, end_us = prepared.manifest, reader.end_us(add_days(days))
        if (
            subjects != manifest["subjects"]
            or end_us != manifest["dataset_end_us"]
            or len(records) < len(wanted)
        ):
            fix = "name the records that were prepared with --data"
            raise EhrseqError(
                "these are not the records that were prepared", where=str(folder), fix=fix
            )
        return cls(
            prepared,
            folder,
            parents,
            excluded,
            fit.finish(),
            records,
            end_us,
            tuple(sorted(fit.number)),
        )

    def events(self) -> Iterator[Events]:
        """The records, shard by shard: one more pass."""
        yield from _reader(self.prepared, self.folder)


def _reader(prepared: Prepared, folder: Path) -> MedsReader:
    late, reader = (
        prepared.manifest.get("late_rows"),
        MedsReader(folder, prepared.study.data, prepared.study.visits),
    )
    reader.late = LateRows(**late) if late else None  # left out as when the set was prepared
    return reader


def _split(events: Events) -> dict[int, Events]:
    """Events sorted by subject, by the subject's id."""
    ids, first = np.unique(events.subject_id, return_index=True)
    bounds = np.r_[first, len(events)].tolist()
    return {
        int(who): events.take(np.arange(low, high))
        for who, low, high in zip(ids.tolist(), bounds, bounds[1:], strict=False)
    }


def join(parts: list[Events]) -> Events:
    """Records under new ids 0, 1, 2 … in one; they may come from shards that number their codes differently."""
    number: dict[str, int] = {}
    codes = [
        np.array(
            [number.setdefault(code, len(number)) for code in part.codes] or [0], dtype=np.int32
        )[part.code]
        for part in parts
    ]
    encounters = [part.encounter for part in parts if part.encounter is not None]
    return Events(
        subject_id=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        time_us=np.concatenate([part.time_us for part in parts]),
        code=np.concatenate(codes),
        codes=tuple(number),
        value=np.concatenate([part.value for part in parts]),
        encounter=np.concatenate(encounters) if encounters else None,
        beyond=np.flatnonzero([bool(np.isin(part.subject_id[:1], part.beyond)) for part in parts]),
    )


@dataclass(frozen=True)
class FollowUp:
    """One subject's outcome, read from the record by a simple loop."""

    # the first time of a cause that ends the record (all, or where outcomes recur, the competing ones)
    event_us: int | None
    cause: int  # its number, 0 without one
    outcomes: list[tuple[int, int]]  # (time, cause) of each outcome, in order, where outcomes recur
    marks_us: list[int]  # times of the censoring codes
    last_us: int  # the record's last event but birth
    death_us: int | None  # death, which ends every follow-up; None without one
    is_beyond: bool = False  # whether the record goes on after the data's end
    birth_us: int | None = None

    def end(
        self, index_us: int, task: TaskConfig, *, dataset_end_us: int, moment_us: int | None = None
    ) -> tuple[int, int]:
        """End of follow-up `min(T, C)` of a prediction time (default: the index), and its cause (0: censored).

        At one instant the outcome comes before censoring.
        """
        rule, marks = task.censoring, [mark for mark in self.marks_us if mark >= index_us]
        if rule.date is not None:
            censoring_us = min([parse_date_us(rule.date), *marks])
        elif rule.dataset_end:
            censoring_us = min([dataset_end_us, *marks])
        elif rule.age is not None and self.birth_us is not None:
            birthday = self.birth_us + round(rule.age * DAY_US)
            censoring_us = min([birthday, dataset_end_us, *marks])
        else:
            last_us = dataset_end_us if self.is_beyond else self.last_us
            censoring_us = min(marks, default=last_us)
        if self.death_us is not None:
            censoring_us = min(censoring_us, self.death_us)
        end = (censoring_us, 0)
        if self.event_us is not None and self.event_us <= censoring_us:
            end = (self.event_us, self.cause)
        asked_us = index_us if moment_us is None else moment_us
        following = next((event for event in self.outcomes if event[0] > asked_us), None)
        return (
            following
            if following is not None and asked_us < end[0] and following[0] <= end[0]
            else end
        )


def follow_up(
    events: Events,
    causes: Sequence[CodeMatcher],
    censoring: CodeMatcher | None,
    *,
    recurring: int = 0,
) -> FollowUp:
    """Outcome and censoring of one subject, by a loop over its events; the first `recurring` causes end no record."""
    first: tuple[int, int] | None = None
    outcomes, marks, last_us, death_us = list[tuple[int, int]](), [], int(STATIC), None
    birth_us: int | None = None
    matched = [matcher.events(events).tolist() for matcher in causes]
    for place, (moment, number) in enumerate(
        zip(events.time_us.tolist(), events.code.tolist(), strict=True)
    ):
        code = events.codes[number]
        if moment == STATIC:
            continue
        if code != BIRTH:
            last_us = max(last_us, moment)
        elif birth_us is None:
            birth_us = moment
        if code == DEATH and death_us is None:
            death_us = moment
        for cause, matches in enumerate(matched, start=1):
            if matches[place] and cause <= recurring:
                outcomes.append((moment, cause))
            elif matches[place] and (first is None or (moment, cause) < first):
                first = (moment, cause)
        if censoring is not None and censoring(code):
            marks.append(moment)
    when, which = first if first else (None, 0)
    is_beyond = bool(np.isin(events.subject_id[:1], events.beyond))
    ends = (marks, last_us, death_us, is_beyond, birth_us)
    return FollowUp(when, which, sorted(outcomes), *ends)


# features that are above 0 where somebody has the code, by the start of their names
_NAMED = (
    "count ",
    "static ",
)


def of_few_people(blend: Blend, train: TaskRecords, needed: int) -> tuple[int, int]:
    """How many stored names and numbers are those of too few training subjects, and how many there are.

    Each of these needs enough subjects: a name of a code or a pair of codes (who have it); a number that is somebody's
    value (who share it); a bin between two cuts (whose values lie there); a mark of absence (who lack the feature).

    Args:
        blend: Of the audited run.
        train: Visits and prediction times of the training subjects.
        needed: Subjects.
    """
    boosted, design = blend.boosted, blend.cox.design
    people: dict[
        tuple[str, int], Ints
    ] = {}  # subjects behind each thing, added up over pieces of the records
    for _, part in in_parts(train):
        subject, every = part.rows.subject, np.arange(len(part))
        for kind, columns in (("boosted", boosted.columns), ("cox", design.columns)):
            history = history_features(part, boosted.vocabulary, chosen=every, columns=columns)
            for f, name in enumerate(columns.names):
                if name.startswith(_NAMED):
                    _add(people, (f"{kind} name", f), _distinct(subject, history[:, f] > 0))
            if kind == "boosted":
                for f in boosted.used.tolist():
                    cuts, known = boosted.cuts[f], ~np.isnan(history[:, f])
                    lowest = 1 if np.isneginf(cuts[0]) else 0
                    value, who = history[known, f].astype(np.float64), subject[known]
                    bins = np.searchsorted(cuts, value) - lowest
                    _add(people, ("bin", f), _in_each(bins, who, len(cuts) + 1 - lowest))
                    _add(people, ("cut", f), _holders(cuts, value, who))
                    if lowest:
                        _add(people, ("lacking", f), _distinct(subject, ~known))
                continue
            values = design.logarithms(history)
            for u, f in enumerate(design.used.tolist()):
                numbers = np.array([design.low[u], design.fill[u], design.high[u]])
                _add(people, ("range", f), _holders(numbers, values[:, f], subject))
            for f in design.marked:
                unknown = np.isnan(history[:, f])
                _add(
                    people,
                    ("mark", f),
                    np.r_[_distinct(subject, unknown), _distinct(subject, ~unknown)],
                )
    few = sum(
        int(((n < needed) & ((n > 0) | (kind not in ("cut", "range")))).sum())
        for (kind, _), n in people.items()
    )
    return few, sum(map(len, people.values()))


def _add(people: dict[tuple[str, int], Ints], key: tuple[str, int], more: Ints) -> None:
    people[key] = people[key] + more if key in people else more


def _distinct(subject: Ints, chosen: Bools) -> Ints:
    return np.array([len(np.unique(subject[chosen]))])


def _in_each(group: Ints, subject: Ints, groups: int) -> Ints:
    """(groups,) distinct subjects of the rows of each group."""
    size = int(subject.max(initial=0)) + 1
    return np.bincount(np.unique(group * size + subject) // size, minlength=groups)


def _holders(numbers: Floats, values: Floats, subject: Ints) -> Ints:
    """(n,) how many subjects have each number as a value; numbers rise."""
    at = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
    same = numbers[at] == values
    held = _in_each(at[same], subject[same], len(numbers))
    return held[np.searchsorted(numbers, numbers)]  # equal numbers have the same holders
