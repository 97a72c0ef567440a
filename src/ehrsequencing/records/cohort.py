"""A task → index times, prediction times, outcomes, censoring and attrition (docs/tasks.md).

Everything is decided per subject from its own timed rows. With T the first outcome or competing event, C the end of
follow-up and p a prediction time, a row exists exactly where `index ≤ p < min(T, C)`, so that nothing of the outcome's
own visit, and nothing after the follow-up, can reach a prediction.

Where outcomes recur (`recurrent: true`) T is the first outcome after p, and only competing events end a record: a row
exists where `index ≤ p < min(first competing event, C)`, and an earlier outcome excludes nobody.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.deaths import deaths_of, find_episodes
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    DEATH,
    DOUBTFUL_DEATH,
    FOLLOW_UP,
    NEVER,
    PERIOD_END,
    PERIOD_START,
    STATIC,
    STAY_MARKS,
    UNDATED_DEATH,
    first_time,
    last_time,
    opens_run,
    parse_date_us,
)
from ehrsequencing.records.labels import (
    Eligibility,
    IndexTimes,
    are_observed,
    designed_end,
    read_index_times,
)
from ehrsequencing.records.visits import (
    Record,
    Visits,
    count_at_or_before,
    is_dated,
    is_undecided,
    next_of,
)

# how follow-up ends: by an event, a death that is no cause, a code of `censoring`, the data's end, or as is said of all
ENDINGS = ("event", "death", "code", "data_end", "other")


@dataclass(frozen=True)
class CohortRows:
    """Prediction times of a shard's subjects, ordered by subject and time."""

    subject: Ints  # (R,) int64 subject row
    prediction_us: Ints  # (R,) int64
    index_us: Ints  # (R,) int64, the latest valid index at or before
    is_query: Bools  # (R,) bool; False where the prediction time is the end of a visit
    visits_before: Ints  # (R,) int64, the subject's visits with `end ≤ p`, its own included
    duration_days: Floats  # (R,) float64 `min(T, C) − p`; NaN without labels
    cause: NDArray[np.int8]  # (R,) int8, 0 censored, k for the task's k-th cause
    entry_days: Floats  # (R,) float64, when exposure starts after p

    def __len__(self) -> int:
        return len(self.subject)

    def take(self, rows: Ints | Bools) -> "CohortRows":
        """Keep some rows."""
        return CohortRows(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class Cohort:
    """What a task makes of a shard."""

    rows: CohortRows  # the prediction times
    # (S,) int8, how many of `cohort_steps` each subject passed; all of them = included
    reached: NDArray[np.int8]
    index_owner: Ints  # (I,) int64, subject row of each index that was considered
    index_reached: NDArray[np.int8]  # (I,) int8, how many steps each of them passed
    after_censoring: int  # indexes whose outcome lies after their censoring; it is ignored
    ends_record: int  # subjects whose outcome lies after their last other event, where that event ends the follow-up
    # (I,) whether an index has a cause dated by its day, and whether it counts as history
    undecided: tuple[Bools, Bools]
    index_us: Ints  # (I,) int64, the indexes
    index_ending: Ints  # (I,) what ends their follow-up without an event, a position in `ENDINGS`
    is_mark: Bools  # (n,) events that end or begin a time under observation
    has_outcome: Bools  # (S,) who has a code of the outcome, whenever it is


# events of interest, sorted by subject and time: subjects, times, causes
_Marks = tuple[Ints, Ints, NDArray[np.int8]]


@dataclass(frozen=True)
class _Indexes:
    """Valid indexes by subject and time, each with the end of its follow-up; outcomes that recur do not end it."""

    subject: Ints
    time_us: Ints
    end_us: Ints
    cause: NDArray[np.int8]
    recurring: _Marks | None = None


class CohortBuilder:
    """Applies one task to shards of events.

    Args:
        task: The question.
        parents: Parents of each code, for `under:` patterns.
    """

    def __init__(self, task: TaskConfig, *, parents: Mapping[str, list[str]] | None = None) -> None:
        matcher = partial(CodeMatcher, parents=parents, confirmed=True)
        index, ends = task.index, task.censoring.code
        self.task, self.parents = task, parents
        self.index_codes = matcher(index.code) if index.code else None
        self.cause_codes = [matcher(patterns) for patterns in task.patterns.values()]
        self.censoring_codes = matcher(ends) if ends else None
        is_period = self.censoring_codes is not None and self.censoring_codes(PERIOD_END)
        starts = task.censoring.start or ((PERIOD_START,) if is_period else None)
        self.start_codes = matcher(starts) if starts else None
        quiet = (
            BIRTH,
            UNDATED_DEATH,
            DOUBTFUL_DEATH,
            *FOLLOW_UP,
            *STAY_MARKS,
            *(ends or ()),
        )
        self.marks = CodeMatcher(quiet, parents=parents)  # rows in which nothing happens
        self.eligibility: Eligibility | None = None
        if task.eligibility is not None:
            self.eligibility = Eligibility(task.eligibility, parents=parents)
        self.outcomes: CodeMatcher | None = None
        if task.outcomes is not None:
            self.outcomes = matcher(task.outcomes.codes)
            self.outcomes.refuse_conditions(f"task {task.name}, outcomes.codes")
        self.index_times: IndexTimes | None = None
        if index.file is not None:
            self.index_times = read_index_times(Path(index.file))

    def require_known(
        self, known: Collection[str], subject_ids: Ints, *, suggest: Collection[str]
    ) -> None:
        """Refuse a task whose codes match nothing, naming codes that come close, or whose index file knows nobody."""
        named = [("index.code", self.index_codes), ("censoring.code", self.censoring_codes)]
        named.append(("outcomes.codes", self.outcomes))
        wanted = [] if self.eligibility is None else self.eligibility.must_have
        named += [("eligibility.must_have", codes) for _, codes in wanted]
        if self.task.censoring.start is not None:
            named.append(("censoring.start", self.start_codes))
        sections = ["outcome"] * len(self.task.outcome) + ["competing"] * len(self.task.competing)
        names = map(".".join, zip(sections, self.task.causes, strict=True))
        named += zip(names, self.cause_codes, strict=True)
        for name, codes in named:
            if codes is not None:
                codes.require(known, suggest=suggest, where=f"task {self.task.name}, {name}")
        if self.index_times is None:
            return
        own = np.unique(self.index_times.subject_id)
        if not np.isin(own, subject_ids).any():
            raise EhrseqError(
                f"none of its {len(own)} subjects is in the data",
                where=str(self.task.index.file),
                fix="use the subject ids of the data set",
            )

    def build(
        self,
        record: Record,
        *,
        dataset_end_us: int,
        labelled: bool = True,
        as_of_us: int | None = None,
    ) -> Cohort:
        """Apply the task to one shard: prediction times and counts.

        Args:
            record: The shard.
            dataset_end_us: Last timestamp of the data set.
            labelled: False for prediction in use, which knows no censoring.
            as_of_us: Ask only at this moment (needs `labelled=False`).
        """
        record, undated_us = deaths_of(record, self.task)
        events, birth_us = record.events, record.birth_us
        episodes = find_episodes(record, self.cause_codes)
        if episodes is not None and self.task.episodes:
            record = replace(record, hidden=episodes.hidden)
        owner, moment = self._candidates(record)
        event_us, event_cause, has_outcome = self._first_cause(record)
        death_us = first_time(events, events.is_code(DEATH), record.subject, len(birth_us))
        # nobody is followed or predicted after death
        censor_us = np.where(death_us == STATIC, NEVER, death_us)[owner]
        marks = self._marks(record)
        is_observed, ending = np.ones(len(owner), dtype=bool), np.zeros(len(owner), dtype=np.int64)
        if labelled:
            ends = self._censoring(record, marks, owner, moment, dataset_end_us)
            ending = np.where(censor_us <= ends[0], ENDINGS.index("death"), ends[1])
            censor_us = np.minimum(censor_us, ends[0])
            is_observed = are_observed(record, *marks, owner, moment)
            if episodes is not None:
                until_us = episodes.until(record, owner, moment)
                ending = np.where(until_us < censor_us, ENDINGS.index("other"), ending)
                censor_us = np.minimum(censor_us, until_us)
        if undated_us is not None:
            ending = np.where(undated_us[owner] < censor_us, ENDINGS.index("other"), ending)
            censor_us = np.minimum(censor_us, undated_us[owner])
        t, cause = event_us[owner], event_cause[owner]
        n_rules, passed = 0, np.zeros(len(owner), dtype=np.int64)
        if self.eligibility is not None:
            n_rules, passed = self.eligibility.passed(record, owner, moment)
        if self.censoring_codes is not None:
            n_rules, passed = n_rules + 1, np.where(is_observed, passed + 1, 0)
        begins = t  # from when on it is history
        if self.task.same_day == "before":
            begins = np.where(is_dated(t), t // DAY_US * DAY_US, t)
        reached = n_rules + np.where(moment >= begins, 1, np.where(moment >= censor_us, 2, 4))
        reached = np.where(passed < n_rules, 1 + passed, reached).astype(np.int8)
        valid = reached == n_rules + 4
        indexes = _Indexes(
            owner[valid],
            moment[valid],
            np.minimum(t, censor_us)[valid],
            np.where(t <= censor_us, cause, 0)[valid].astype(np.int8),
            self._outcomes(record) if self.task.recurrent else None,
        )
        rows = self._prediction_times(
            indexes, record.visits, dataset_end_us, labelled=labelled, as_of_us=as_of_us
        )
        # in use: the latest index before some prediction time
        keys, own = (rows.subject, rows.index_us), (indexes.subject, indexes.time_us)
        until, _ = count_at_or_before(*keys, *own)
        before, _ = count_at_or_before(*keys, indexes.subject, indexes.time_us - 1)
        reached[valid] = np.where(until > before, n_rules + 4, n_rules + 3)
        status = np.zeros(len(birth_us), dtype=np.int8)
        np.maximum.at(status, owner, reached)
        return Cohort(
            rows=rows,
            reached=status,
            index_owner=owner,
            index_reached=reached,
            after_censoring=int(np.sum(valid & (t != NEVER) & (t > censor_us))),
            ends_record=self._ends_record(record, rows, t_us=event_us) if labelled else 0,
            undecided=(is_undecided(t, moment), moment >= begins),
            index_us=moment,
            index_ending=ending,
            is_mark=np.logical_or(*marks),
            has_outcome=has_outcome,
        )

    def _ends_record(self, record: Record, rows: CohortRows, *, t_us: Ints) -> int:
        """Where the last event ends the follow-up: subjects with an outcome after everything else they have."""
        events = record.events
        if not self.task.censoring.is_last_event:
            return 0
        is_cause = np.zeros(len(events), dtype=bool)
        for matcher in self.cause_codes:
            is_cause |= matcher.events(events)
        last_other = last_time(
            events, ~is_cause & ~self.marks.events(events), record.subject, len(t_us)
        )
        with_event = np.unique(rows.subject[rows.cause > 0])
        if self.task.recurrent:
            t_us = last_time(events, is_cause, record.subject, len(t_us))
        return int(np.sum(t_us[with_event] > last_other[with_event]))

    def _candidates(self, record: Record) -> tuple[Ints, Ints]:
        """Index candidates (subject row, time), sorted and distinct, and none before birth."""
        index, birth_us, visits = self.task.index, record.birth_us, record.visits
        if index.first_visit:
            owner, first = np.unique(visits.subject, return_index=True)
            moment = visits.end_us[first]
        elif index.age is not None:
            owner = np.flatnonzero(birth_us != STATIC)
            moment = birth_us[owner] + round(index.age * DAY_US)
        elif index.date is not None:
            owner = np.arange(len(birth_us))
            moment = np.full(len(birth_us), parse_date_us(index.date))
        elif self.index_times is not None:
            owner, moment = self.index_times.of(record.subject_id)
        else:
            assert self.index_codes is not None
            is_code = _matches(record, self.index_codes)
            rows = np.flatnonzero(is_code & (record.events.time_us != STATIC))
            times = np.stack([record.subject[rows], record.events.time_us[rows]])
            owner, moment = np.unique(times, axis=1)
        if index.which == "first":
            owner, first = np.unique(owner, return_index=True)
            moment = moment[first]
        moment = moment + round(index.after * DAY_US)
        if self.task.same_day == "exclude":  # nobody's first day counts
            moment = moment // DAY_US * DAY_US + DAY_US - 1
        born = moment >= birth_us[owner]  # `STATIC`, where it is unknown, is before all
        return owner[born], moment[born]

    def _first_cause(self, record: Record) -> tuple[Ints, NDArray[np.int8], Bools]:
        """The first cause that ends a record, and which: at one instant the task's order decides.

        Where outcomes recur these are the competing events only. Also says who has a code of the outcome, ever.
        """
        n_subjects, n_outcomes = len(record.subject_id), len(self.task.outcome)
        event_us, cause = np.full(n_subjects, NEVER), np.zeros(n_subjects, dtype=np.int8)
        has_outcome = np.zeros(n_subjects, dtype=bool)
        for number, codes in enumerate(self.cause_codes, start=1):
            chosen = _matches(record, codes)
            if number <= n_outcomes:
                has_outcome[record.subject[chosen]] = True
            if number > n_outcomes or not self.task.recurrent:
                first = first_time(record.events, chosen, record.subject, n_subjects)
                earlier = (first != STATIC) & (first < event_us)
                event_us[earlier], cause[earlier] = first[earlier], number
        return event_us, cause, has_outcome

    def _outcomes(self, record: Record) -> _Marks:
        """Every instant of an outcome, with the first cause of the task's order at it."""
        subject, time_us = record.subject, record.events.time_us
        cause = np.zeros(len(record.events), dtype=np.int8)
        for number in range(len(self.task.outcome), 0, -1):
            cause[_matches(record, self.cause_codes[number - 1]) & (time_us != STATIC)] = number
        rows = np.flatnonzero(cause)
        rows = rows[np.lexsort((cause[rows], time_us[rows], subject[rows]))]
        rows = rows[opens_run(subject[rows], time_us[rows])]
        return subject[rows], time_us[rows], cause[rows]

    def _marks(self, record: Record) -> tuple[Bools, Bools]:
        """(n,) the timed rows that end, and those that begin, a time under observation."""
        is_timed, none = record.events.time_us != STATIC, np.zeros(len(record.events), dtype=bool)
        ends, begins = (
            none if codes is None else codes.events(record.events) & is_timed
            for codes in (self.censoring_codes, self.start_codes)
        )
        return ends & ~begins, begins

    def _censoring(
        self,
        record: Record,
        marks: tuple[Bools, Bools],
        owner: Ints,
        moment: Ints,
        dataset_end_us: int,
    ) -> tuple[Ints, Ints]:
        """C of each index candidate, death aside, and what it is (in `ENDINGS`)."""
        (ends, begins), events, subject = marks, record.events, record.subject
        designed = designed_end(self.task.censoring, record.birth_us, dataset_end_us)
        last = last_time(events, ~events.is_code(BIRTH), subject, len(record.subject_id))
        last[np.isin(record.subject_id, events.beyond)] = dataset_end_us
        last[subject[begins]] = dataset_end_us  # a period without an end goes on
        mark_us = next_of(subject[ends], events.time_us[ends], owner, moment)[1]
        end_us = np.where(designed == NEVER, last, designed)[owner]
        end_us = np.where(mark_us == NEVER, end_us, np.minimum(mark_us, designed[owner]))
        return end_us, np.select([mark_us == end_us, end_us >= dataset_end_us], [2, 3], default=4)

    def _prediction_times(
        self,
        indexes: _Indexes,
        visits: Visits,
        dataset_end_us: int,
        *,
        labelled: bool,
        as_of_us: int | None,
    ) -> CohortRows:
        """Queries at indexes and landmarks, and the ends of visits, while p < min(T, C)."""
        if as_of_us is not None:
            owner = np.unique(indexes.subject)
            moment, is_query = np.full(len(owner), as_of_us), np.ones(len(owner), dtype=bool)
            visits_before, _ = count_at_or_before(visits.subject, visits.end_us, owner, moment)
            rows = np.arange(len(owner))
        else:
            offsets = np.array(
                [0, *(round(days * DAY_US) for days in self.task.landmarks)], dtype=np.int64
            )
            query_us = (indexes.time_us[:, None] + offsets).ravel()
            asker = np.repeat(indexes.subject, len(offsets))
            if not labelled:  # it is not known yet who is at risk at a landmark in the future
                past = (query_us <= dataset_end_us) | np.tile(offsets == 0, len(indexes.time_us))
                query_us, asker = query_us[past], asker[past]
            order = np.lexsort((query_us, asker))
            asker, query_us = asker[order], query_us[order]
            before, first = count_at_or_before(visits.subject, visits.end_us, asker, query_us - 1)
            # visits are in order: each query is inserted between them, first at its instant
            at = before + first
            owner, moment = (
                np.insert(visits.subject, at, asker),
                np.insert(visits.end_us, at, query_us),
            )
            is_query = np.insert(np.zeros(len(visits), dtype=bool), at, True)
            # the first entry of each distinct moment; all visits of that moment are before it
            rows = np.flatnonzero(opens_run(owner, moment))
            visits_before = np.cumsum(~is_query)[np.append(rows[1:], len(owner))[: len(rows)] - 1]
            first_visit = np.r_[
                0, np.cumsum(np.bincount(visits.subject, minlength=owner.max(initial=-1) + 1))
            ]
            visits_before -= first_visit.take(owner.take(rows))
        owner, moment, is_query = owner.take(rows), moment.take(rows), is_query.take(rows)
        count, first = count_at_or_before(indexes.subject, indexes.time_us, owner, moment)
        keep = np.flatnonzero(count > 0)
        owner, moment, index = owner.take(keep), moment.take(keep), (first + count - 1).take(keep)
        end, cause = indexes.end_us.take(index), indexes.cause.take(index)
        at_risk = moment < end
        if indexes.recurring is not None:
            subject, time_us, of_mark = indexes.recurring
            position, next_us = next_of(subject, time_us, owner, moment + 1)
            next_cause = np.append(of_mark, 0)[position]
            cause = np.where(next_us <= end, next_cause, cause)
            end = np.minimum(next_us, end)
        if labelled:
            at_risk &= moment < end - round(self.task.blanking * DAY_US)
        left = np.flatnonzero(at_risk)
        owner, moment, index = owner.take(left), moment.take(left), index.take(left)
        end, cause, keep = end.take(left), cause.take(left), keep.take(left)
        return CohortRows(
            subject=owner,
            prediction_us=moment,
            index_us=indexes.time_us.take(index),
            is_query=is_query.take(keep),
            visits_before=visits_before.take(keep),
            duration_days=(end - moment) / DAY_US if labelled else np.full(len(owner), np.nan),
            cause=cause if labelled else np.zeros(len(owner), dtype=np.int8),
            entry_days=np.full(len(owner), self.task.blanking),
        )


def _matches(record: Record, matcher: CodeMatcher) -> Bools:
    """(n,) which rows match, those inside an episode of care apart."""
    chosen = matcher.events(record.events)
    return chosen if record.hidden is None else chosen & ~record.hidden
