"""A task → index times, prediction times, outcomes, censoring and attrition (SCIENCE.md §2).

Everything is decided per subject from its own timed rows. With T the first outcome or competing event, C the end of
follow-up and p a prediction time, a row exists exactly where `index ≤ p < min(T, C)`, so that nothing of the outcome's
own visit, and nothing after the follow-up, can reach a prediction.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import TaskConfig
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.meds import BIRTH, DAY_US, STATIC, Events, first_time, parse_date_us
from ehrsequencing.records.visits import Visits, count_at_or_before

NEVER = np.iinfo(np.int64).max
STEPS = (  # what a subject must have to get past each step, in order
    "with an index",
    "without an outcome or competing event at or before the index",
    "followed up after the index",
    "with a prediction time outside the blanking period",
)


@dataclass(frozen=True)
class CohortRows:
    """Prediction times of a shard's subjects, ordered by subject and time.

    Attributes:
        subject: (R,) int64 subject row.
        prediction_us: (R,) int64.
        index_us: (R,) int64, the latest valid index at or before.
        is_query: (R,) bool; False where the prediction time is the end of a visit.
        visits_before: (R,) int64, the subject's visits with `end ≤ p`, its own included.
        duration_days: (R,) float64 `min(T, C) − p`; NaN without labels.
        cause: (R,) int8, 0 censored, k for the task's k-th cause.
        entry_days: (R,) float64, when exposure starts after p.
    """

    subject: NDArray[np.int64]
    prediction_us: NDArray[np.int64]
    index_us: NDArray[np.int64]
    is_query: NDArray[np.bool_]
    visits_before: NDArray[np.int64]
    duration_days: NDArray[np.float64]
    cause: NDArray[np.int8]
    entry_days: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.subject)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "CohortRows":
        """Keep some rows."""
        return CohortRows(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class Cohort:
    """What a task makes of a shard.

    Attributes:
        rows: The prediction times.
        reached: (S,) int8, how many of `STEPS` each subject passed; all of them = included.
        after_censoring: Indexes whose outcome lies after their censoring; it is ignored.
        ends_record: Subjects whose outcome lies after their last other event, where that event ends the follow-up.
    """

    rows: CohortRows
    reached: NDArray[np.int8]
    after_censoring: int
    ends_record: int


@dataclass(frozen=True)
class _Indexes:
    """Valid indexes: sorted by subject and time, each with the end of its follow-up."""

    subject: NDArray[np.int64]
    time_us: NDArray[np.int64]
    end_us: NDArray[np.int64]
    cause: NDArray[np.int8]


class CohortBuilder:
    """Applies one task to shards of events.

    Args:
        task: The question.
        parents: Parents of each code, for `under:` patterns.
    """

    def __init__(self, task: TaskConfig, *, parents: Mapping[str, list[str]] | None = None) -> None:
        self.task = task
        self.index_codes = CodeMatcher(task.index.code, parents=parents) if task.index.code else None
        self.cause_codes = [CodeMatcher(patterns, parents=parents) for patterns in task.patterns.values()]
        self.censoring_codes = CodeMatcher(task.censoring.code, parents=parents) if task.censoring.code else None

    def require_known(self, known: Collection[str], *, suggest: Collection[str]) -> None:
        """Refuse a task whose codes match nothing, and name codes that come close."""
        named = [("index.code", self.index_codes), ("censoring.code", self.censoring_codes)]
        sections = ["outcome"] * len(self.task.outcome) + ["competing"] * len(self.task.competing)
        named += [(f"{s}.{c}", m) for s, c, m in zip(sections, self.task.causes, self.cause_codes, strict=True)]
        for name, matcher in named:
            if matcher is not None:
                matcher.require(known, suggest=suggest, where=f"task {self.task.name}, {name}")

    def build(
        self,
        events: Events,
        subject: NDArray[np.int64],
        visits: Visits,
        *,
        birth_us: NDArray[np.int64],
        dataset_end_us: int,
        labelled: bool = True,
        as_of_us: int | None = None,
    ) -> Cohort:
        """Apply the task to one shard.

        Args:
            events: The shard's events.
            subject: (n,) subject row of each event.
            visits: The shard's visits.
            birth_us: (S,) int64, `STATIC` where unknown.
            dataset_end_us: Last timestamp of the data set.
            labelled: False for prediction in use, which knows no censoring.
            as_of_us: Ask only at this moment (needs `labelled=False`).

        Returns:
            Prediction times and counts.
        """
        timed = events.time_us != STATIC
        owner, moment = self._candidates(events, subject, timed, visits, birth_us)
        event_us, event_cause = self._first_cause(events, subject, timed, len(birth_us))
        censor_us = np.full(len(owner), NEVER)
        if labelled:
            censor_us = self._censoring(events, subject, timed, owner, moment, dataset_end_us, len(birth_us))
        t, cause = event_us[owner], event_cause[owner]
        reached = np.where(moment >= t, 1, np.where(moment >= censor_us, 2, 4)).astype(np.int8)
        status = np.zeros(len(birth_us), dtype=np.int8)
        np.maximum.at(status, owner, reached)
        valid = reached == 4
        late = int(np.sum(valid & (t != NEVER) & (t > censor_us)))
        indexes = _Indexes(
            owner[valid],
            moment[valid],
            np.minimum(t, censor_us)[valid],
            np.where(t <= censor_us, cause, 0)[valid].astype(np.int8),
        )
        rows = self._prediction_times(indexes, visits, dataset_end_us, labelled=labelled, as_of_us=as_of_us)
        has_rows = np.zeros(len(birth_us), dtype=bool)
        has_rows[rows.subject] = True
        status[(status == 4) & ~has_rows] = 3
        ends = self._ends_record(events, subject, timed, rows, t_us=event_us) if labelled else 0
        return Cohort(rows, status, late, ends)

    def _ends_record(
        self,
        events: Events,
        subject: NDArray[np.int64],
        timed: NDArray[np.bool_],
        rows: CohortRows,
        *,
        t_us: NDArray[np.int64],
    ) -> int:
        """Where the last event ends the follow-up: subjects with an outcome after everything else they have."""
        rule = self.task.censoring
        if rule.code is not None or rule.date is not None or rule.dataset_end:
            return 0
        other = timed & ~events.is_code(BIRTH)
        for matcher in self.cause_codes:
            other &= ~matcher.mask(events.codes)[events.code]
        last_other = np.full(len(t_us), STATIC)
        chosen = np.flatnonzero(other)
        last_other[subject[chosen]] = events.time_us[chosen]
        with_event = np.unique(rows.subject[rows.cause > 0])
        return int(np.sum(t_us[with_event] > last_other[with_event]))

    def _candidates(
        self,
        events: Events,
        subject: NDArray[np.int64],
        timed: NDArray[np.bool_],
        visits: Visits,
        birth_us: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Index candidates (subject row, time), sorted and distinct."""
        index, everyone = self.task.index, np.arange(len(birth_us))
        if self.index_codes is not None:
            chosen = timed & self.index_codes.mask(events.codes)[events.code]
            if index.which == "first":
                first = first_time(events, chosen, subject, len(birth_us))
                owner = everyone[first != STATIC]
                return owner, first[owner] + round(index.after * DAY_US)
            pairs = np.unique(np.stack([subject[chosen], events.time_us[chosen]]), axis=1)
            return pairs[0], pairs[1] + round(index.after * DAY_US)
        if index.first_visit:
            owner, first_visit = np.unique(visits.subject, return_index=True)
            return owner, visits.end_us[first_visit]
        if index.age is not None:
            owner = everyone[birth_us != STATIC]
            return owner, birth_us[owner] + round(index.age * DAY_US)
        return everyone, np.full(len(everyone), parse_date_us(index.date or ""))

    def _first_cause(
        self, events: Events, subject: NDArray[np.int64], timed: NDArray[np.bool_], n_subjects: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """T and its cause per subject: the first of all causes; at one instant the task's order decides."""
        event_us, cause = np.full(n_subjects, NEVER), np.zeros(n_subjects, dtype=np.int8)
        for number, matcher in enumerate(self.cause_codes, start=1):
            first = first_time(events, timed & matcher.mask(events.codes)[events.code], subject, n_subjects)
            earlier = (first != STATIC) & (first < event_us)
            event_us[earlier], cause[earlier] = first[earlier], number
        return event_us, cause

    def _censoring(
        self,
        events: Events,
        subject: NDArray[np.int64],
        timed: NDArray[np.bool_],
        owner: NDArray[np.int64],
        moment: NDArray[np.int64],
        dataset_end_us: int,
        n_subjects: int,
    ) -> NDArray[np.int64]:
        """C of each index candidate."""
        rule = self.task.censoring
        if rule.date is not None:
            return np.full(len(owner), parse_date_us(rule.date))
        if rule.dataset_end:
            return np.full(len(owner), dataset_end_us)
        last = np.full(n_subjects, STATIC)
        rows = np.flatnonzero(timed & ~events.is_code(BIRTH))
        last[subject[rows]] = events.time_us[rows]  # sorted by time: the latest is written last
        censor_us = last[owner]
        if self.censoring_codes is not None:
            marks = np.flatnonzero(timed & self.censoring_codes.mask(events.codes)[events.code])
            mark_owner, mark_us = subject[marks], events.time_us[marks]
            before, first = count_at_or_before(mark_owner, mark_us, owner, moment - 1)
            position = first + before
            found = position < len(marks)
            found[found] = mark_owner[position[found]] == owner[found]
            censor_us[found] = mark_us[position[found]]
        return censor_us

    def _prediction_times(
        self, indexes: _Indexes, visits: Visits, dataset_end_us: int, *, labelled: bool, as_of_us: int | None
    ) -> CohortRows:
        """Queries at indexes and landmarks, and the ends of visits, while p < min(T, C)."""
        if as_of_us is not None:
            owner = np.unique(indexes.subject)
            moment, is_query = np.full(len(owner), as_of_us), np.ones(len(owner), dtype=bool)
        else:
            offsets = np.array([0, *(round(days * DAY_US) for days in self.task.landmarks)], dtype=np.int64)
            asked = (indexes.time_us[:, None] + offsets).ravel()
            asker = np.repeat(indexes.subject, len(offsets))
            if not labelled:  # nobody knows yet who is at risk at a landmark in the future
                past = (asked <= dataset_end_us) | np.tile(offsets == 0, len(indexes.time_us))
                asked, asker = asked[past], asker[past]
            owner, moment = np.r_[asker, visits.subject], np.r_[asked, visits.end_us]
            is_query = np.r_[np.ones(len(asked), dtype=bool), np.zeros(len(visits), dtype=bool)]
        order = np.lexsort((~is_query, moment, owner))
        owner, moment, is_query = owner[order], moment[order], is_query[order]
        distinct = np.r_[True, (owner[1:] != owner[:-1]) | (moment[1:] != moment[:-1])][: len(owner)]
        count, first = count_at_or_before(indexes.subject, indexes.time_us, owner, moment)
        index = np.clip(first + count - 1, 0, max(len(indexes.subject) - 1, 0))
        keep = distinct & (count > 0)
        blanking_us = round(self.task.blanking * DAY_US)
        if len(indexes.subject):
            keep &= moment < indexes.end_us[index] - (blanking_us if labelled else 0)
        owner, moment, is_query, index = owner[keep], moment[keep], is_query[keep], index[keep]
        visits_before, _ = count_at_or_before(visits.subject, visits.end_us, owner, moment)
        end, cause = indexes.end_us[index], indexes.cause[index]
        return CohortRows(
            subject=owner,
            prediction_us=moment,
            index_us=indexes.time_us[index],
            is_query=is_query,
            visits_before=visits_before,
            duration_days=(end - moment) / DAY_US if labelled else np.full(len(owner), np.nan),
            cause=cause if labelled else np.zeros(len(owner), dtype=np.int8),
            entry_days=np.full(len(owner), self.task.blanking),
        )
