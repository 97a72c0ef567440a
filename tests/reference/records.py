"""Visits, cohorts and carried summaries by plain loops over raw rows: the oracle of `ehrsequencing.records`.

Written from docs/records.md and docs/tasks.md only; it shares no code with the package but the settings' classes.
Every rule is one method of `Records`, so that a test can break one rule at a time (a mutant) and see the comparison
fail. Times are µs since 1970-01-01. What the two pages leave open is settled here, in the methods' docstrings.
"""

import math
from functools import cached_property
from typing import NamedTuple

from ehrsequencing.config import HistoryCode, TaskConfig
from helpers.meds import DAY_US, HOUR_US, us
from reference.visits import Group, Token, Visit, VisitRecords, once


class CohortRow(NamedTuple):
    """One prediction time, as in `cohort.parquet`."""

    subject: int
    index_us: int
    prediction_us: int
    kind: str
    duration_days: float
    cause: int


class Summary(NamedTuple):
    """A numeric code's past at a query."""

    last: float
    first: float
    mean: float
    min: float
    max: float
    since_days: float
    number: int


class Records(VisitRecords):
    """The records of a data set with their cohorts: prediction times, labels, and what a query carries."""

    # ----------------------------------------------------------------------------------------------------- cohorts (§2)

    def indexes(self, subject: int, task: TaskConfig) -> list[int]:
        """All index times: of an event, `after` it; the end of the first visit; birth + age; a date at midnight.

        Without a birth there is no index by age, without a visit none by first visit, by date none before birth. Silent
        codes can be an index.
        """
        index = task.index
        if index.code is not None:
            found = sorted({time for time, row in self.timed(subject) if self.means(row, index.code)})
            return self.chosen([time + round(index.after * DAY_US) for time in found], index.which)
        if index.first_visit:
            return [self.first_visit_moment(visit) for visit in self.visits(subject)[:1]]
        if index.age is not None:
            birth = self.birth(subject)
            return [] if birth is None else [birth + round(index.age * DAY_US)]
        birth, moment = self.birth(subject), us(index.date or "")
        return [] if birth is not None and moment < birth else [moment]

    def chosen(self, times: list[int], which: str) -> list[int]:
        """`first` or `every`: the first is taken before any exclusion, and never replaced by the next."""
        return times[:1] if which == "first" else times

    def first_visit_moment(self, visit: Visit) -> int:
        """`{first_visit: true}` is that visit's end: its codes are known at the index."""
        return visit.end

    @once
    def causes(self, subject: int, task: TaskConfig) -> list[tuple[int, int]]:
        """(time, cause) of every outcome and competing event, in order; at one instant the earlier cause is first."""
        patterns = list(task.patterns.values())
        return sorted(
            (time, self.precedence(cause))
            for time, row in self.timed(subject)
            for cause in range(1, len(patterns) + 1)
            if self.means(row, patterns[cause - 1])
        )

    def precedence(self, cause: int) -> int:
        """Rank of a cause at one instant: outcomes, then competing, in the task's order. Its own inverse."""
        return cause

    def prevalent(self, event: int, index: int) -> bool:
        """Any cause at or before an index excludes that index."""
        return event <= index

    def censoring(self, subject: int, task: TaskConfig, index: int) -> int | None:
        """C: what the task's rule says, and death at the latest, which ends every record."""
        ends = [self.rule_end(subject, task, index), *self.deaths(subject)]
        return min((end for end in ends if end is not None), default=None)

    @once
    def deaths(self, subject: int) -> list[int]:
        """Time of death, where there is one."""
        return [time for time, row in self.timed(subject) if row.code == "MEDS_DEATH"][:1]

    def rule_end(self, subject: int, task: TaskConfig, index: int) -> int | None:
        """The first censoring event at or after the index; a date; the last timestamp of the whole data set (fixed,
        all splits); else the fallback, also where no censoring event follows: the record's last timed row, whatever its
        code but `MEDS_BIRTH`. None where there is no such row.
        """
        settings, ends = task.censoring, []
        if settings.code is not None:
            ends = [time for time in self.marks(subject, task)[0] if self.censors(time, index)]
        if settings.date is not None:
            return min([us(settings.date), self.dataset_end(subject), *ends])
        if settings.dataset_end:
            return min([self.dataset_end(subject), *ends])
        if settings.age is not None and self.birth(subject) is not None:
            birthday = self.birth(subject) + round(settings.age * DAY_US)
            return min([birthday, self.dataset_end(subject), *ends])
        if not ends and self.marks(subject, task)[1]:  # a period without an end
            return self.dataset_end(subject)
        return min(ends) if ends else self.last_event(subject)

    @once
    def marks(self, subject: int, task: TaskConfig) -> tuple[list[int], list[int]]:
        """Times of the censoring codes, and of the starts of periods; a code that is both is a start."""
        settings, rows = task.censoring, self.timed(subject)
        starts = [time for time, row in rows if settings.start and self.matches(row.code, settings.start)]
        ends = [
            time
            for time, row in rows
            if self.matches(row.code, settings.code or ()) and not self.matches(row.code, settings.start or ())
        ]
        return ends, starts

    def observed(self, subject: int, task: TaskConfig) -> list[int]:
        """Indexes at which somebody is under observation; whoever has no code of `censoring` always is."""
        return [i for i in self.indexes(subject, task) if not task.censoring.code or self.is_observed(subject, task, i)]

    def is_observed(self, subject: int, task: TaskConfig, index: int) -> bool:
        """Walk through the marks in their order. An end and a start at one moment change nothing.

        Where an index is at midnight, or a start at the last second of its day, they are dates: the day decides.
        """
        ends, starts = self.marks(subject, task)
        if not starts:
            return not ends or index <= max(ends)
        if index in starts:
            return True
        day = index // DAY_US
        for start in starts:
            is_date = index % DAY_US == 0 or start % DAY_US == DAY_US - 1_000_000
            if is_date and start >= index and start // DAY_US == day:
                return True
        changes = sorted(set(starts) ^ set(ends))
        inside = bool(changes) and changes[0] in ends  # it began before the record
        for time in changes:
            if time in starts and time <= index:
                inside = True
            if time in ends and time < index:
                inside = False
        return inside

    def censors(self, time: int, index: int) -> bool:
        """A censoring event counts from the index on; at the index it leaves nothing to predict."""
        return time >= index

    def dataset_end(self, subject: int) -> int:
        """Last timestamp of the data set, the same for all subjects."""
        return self.latest

    def last_event(self, subject: int) -> int | None:
        """Last event of the record."""
        return max((time for time, row in self.timed(subject) if row.code != "MEDS_BIRTH"), default=None)

    # ------------------------------------------------------------------------------------------------- eligibility

    def criteria(self, subject: int, task: TaskConfig, index: int) -> list[bool]:
        """Whether an index fulfils each criterion, in the order of the attrition: history, age, codes."""
        rules, out = task.eligibility, []
        if rules is None:
            return []
        if rules.history > 0:
            first = self.first_event(subject)
            out.append(first is not None and first + round(rules.history * DAY_US) <= index)
        if rules.min_age is not None or rules.max_age is not None:
            out.append(self.of_age(subject, rules.min_age, rules.max_age, index))
        out += [self.has(subject, rule, index) for rule in rules.must_have]
        return out + [not self.has(subject, rule, index) for rule in rules.must_not_have]

    def first_event(self, subject: int) -> int | None:
        """First row of a record, birth apart."""
        return min((time for time, row in self.timed(subject) if row.code != "MEDS_BIRTH"), default=None)

    def of_age(self, subject: int, low: float | None, high: float | None, index: int) -> bool:
        """At least `low`, less than `high` at the index; an unknown or impossible age (below 0, over 120) is not."""
        birth = self.birth(subject)
        if birth is None or index < birth or index - birth > 120 * 8766 * HOUR_US:
            return False
        above = low is None or index >= birth + round(low * DAY_US)
        return above and (high is None or index < birth + round(high * DAY_US))

    def has(self, subject: int, rule: HistoryCode, index: int) -> bool:
        """Have `count` such rows up to the index, itself included; without `within`, rows without a time count too."""
        rows = [row for row in self.records[subject] if self.means(row, rule.code)]
        return sum(self.in_window(row.time, rule.within, index) for row in rows) >= rule.count

    def in_window(self, time: int | None, within: float | None, index: int) -> bool:
        """Lie in `[index - within, index]`."""
        if time is None:
            return within is None
        return time <= index and (within is None or time >= index - round(within * DAY_US))

    def eligible(self, subject: int, task: TaskConfig, first: int | None = None) -> list[int]:
        """Indexes that fulfil the first so many criteria; all of them by default."""
        found = self.observed(subject, task)
        return [i for i in found if all(self.criteria(subject, task, i)[:first])]

    # ---------------------------------------------------------------------------------------------------- follow-up

    def incident(self, subject: int, task: TaskConfig) -> list[int]:
        """Eligible indexes with no cause at or before them; where outcomes recur, no competing one."""
        ends = self.final_causes(subject, task)
        return [i for i in self.eligible(subject, task) if not any(self.prevalent(event, i) for event, _ in ends)]

    def final_causes(self, subject: int, task: TaskConfig) -> list[tuple[int, int]]:
        """Causes that end a record for good."""
        causes = self.causes(subject, task)
        return [c for c in causes if self.precedence(c[1]) > len(task.outcome)] if task.recurrent else causes

    def valid_indexes(self, subject: int, task: TaskConfig) -> list[int]:
        """Indexes with no cause before them and follow-up after them."""
        ends = {index: self.censoring(subject, task, index) for index in self.incident(subject, task)}
        return [index for index, end in ends.items() if end is not None and end > index]

    def moments(self, subject: int, task: TaskConfig, valid: list[int]) -> dict[int, str]:
        """Candidate prediction times and their kind: each index and landmark (query, which wins), each visit's end."""
        moments = {self.visit_moment(v): "visit" for v in self.visits(subject) if self.visit_counts(v, min(valid))}
        for index in valid:
            for after in (0.0, *task.landmarks):
                self.add_query(moments, index + round(after * DAY_US))
        return moments

    def visit_moment(self, visit: Visit) -> int:
        """A visit is predicted from at its end."""
        return visit.end

    def visit_counts(self, visit: Visit, index: int) -> bool:
        """A visit that ends after the index counts, even if it began before."""
        return visit.end > index

    def add_query(self, moments: dict[int, str], moment: int) -> None:
        """Where a query falls on a visit's end, the query answers for both."""
        moments[moment] = "query"

    def owner(self, valid: list[int], moment: int) -> int:
        """Index that a prediction time belongs to: the latest valid one not after it. This holds for another index's
        landmark too, so that `index` may be later than the index it was counted from.
        """
        return max(index for index in valid if index <= moment)

    def end(self, subject: int, task: TaskConfig, index: int, moment: int) -> tuple[int, int]:
        """(min(T, C), cause) of a prediction time, cause 0 if censored. The next index does not cut follow-up."""
        censored = self.censoring(subject, task, index)
        assert censored is not None
        ends = [event for event in self.final_causes(subject, task) if event[0] > index]
        if task.recurrent:
            outcomes = [c for c in self.causes(subject, task) if self.precedence(c[1]) <= len(task.outcome)]
            if not ends or moment < ends[0][0]:  # else nobody is at risk any more
                ends = sorted([*ends, *(event for event in outcomes if self.is_next(event[0], moment))])
        if ends and self.event_counts(ends[0][0], censored):
            return ends[0][0], self.precedence(ends[0][1])
        return censored, 0

    def is_next(self, event: int, moment: int) -> bool:
        """Where outcomes recur, T is the first after the prediction time: an event at it is known already."""
        return event > moment

    def event_counts(self, event: int, censored: int) -> bool:
        """At one instant, an event comes before the censoring."""
        return event <= censored

    def exposed(self, moment: int, end: int, blanking: int) -> bool:
        """A row stays while p < min(T, C), and with blanking b only where min(T, C) > p + b."""
        return end > moment + blanking

    @cached_property
    def cohorts(self) -> dict[str, list[CohortRow]]:
        """The cohorts asked for so far."""
        return {}

    def cohort(self, task: TaskConfig) -> list[CohortRow]:
        """All rows of a task, by subject, then prediction time; kept, for every comparison asks for them."""
        key = task.model_dump_json()
        if key in self.cohorts:
            return self.cohorts[key]
        rows = []
        for subject in self.records:
            valid = self.valid_indexes(subject, task)
            for moment, kind in sorted(self.moments(subject, task, valid).items()) if valid else ():
                index = self.owner(valid, moment)
                end, cause = self.end(subject, task, index, moment)
                if self.exposed(moment, end, round(task.blanking * DAY_US)):
                    rows.append(CohortRow(subject, index, moment, kind, (end - moment) / DAY_US, cause))
        self.cohorts[key] = rows
        return rows

    def flow(self, task: TaskConfig) -> list[tuple[int, int]]:
        """Attrition, subjects and index times: all, and after each step until those with a prediction time."""
        rows, n_rules = self.cohort(task), len(self.criteria(next(iter(self.records)), task, 0)) if self.records else 0
        steps = [{s: self.indexes(s, task) for s in self.records}]
        steps += [{s: self.observed(s, task) for s in self.records}] if task.censoring.code else []
        steps += [{s: self.eligible(s, task, k) for s in self.records} for k in range(1, n_rules + 1)]
        steps += [{s: self.incident(s, task) for s in self.records}]
        steps += [{s: self.valid_indexes(s, task) for s in self.records}]
        flow = [(sum(map(bool, step.values())), sum(map(len, step.values()))) for step in steps]
        last = len({row.subject for row in rows}), len({(row.subject, row.index_us) for row in rows})
        return [(len(self.records), flow[0][1]), *flow, last]

    # ------------------------------------------------------------------------------------------- queries' features (§2)

    def visits_before(self, subject: int, moment: int) -> list[Visit]:
        """Visits that a query sees: those with end ≤ p."""
        return [visit for visit in self.visits(subject) if visit.end <= moment]

    def unfinished(self, subject: int, moment: int) -> list[Token]:
        """What a query sees of the visit that it lies in: that visit's codes stamped ≤ p."""
        return self.code_set([row for time, row in self.under_way(subject, moment) if self.known(time, moment)])

    def last_known(self, subject: int, moment: int) -> int | None:
        """When the newest visit that a query sees ended, or its newest code was stamped where it lies in a visit."""
        ends = [visit.end for visit in self.visits_before(subject, moment)]
        return max(
            [*ends, *(time for time, _ in self.under_way(subject, moment) if self.known(time, moment))], default=None
        )

    def under_way(self, subject: int, moment: int) -> Group:
        """Rows of the visit that a query lies in."""
        spans = [(self.span(group), group) for group in self.groups(self.tokens(subject))]
        return [pair for (start, end), group in spans if start <= moment < end for pair in group]

    def summaries(self, subject: int, moment: int) -> dict[str, Summary]:
        """Carried summaries at p, per numeric code that makes tokens, of its values stamped ≤ p (an unfinished visit's
        too). `last`: the latest time, there the later row; `first`: the earliest time, there the earlier row.
        """
        past: dict[str, list[tuple[int, float]]] = {}
        for time, row in self.tokens(subject):
            if row.value is not None and self.known(time, moment):
                past.setdefault(row.code, []).append((time, row.value))
        return {code: self.summary(values, moment) for code, values in past.items()}

    def known(self, time: int, moment: int) -> bool:
        """Known at p: everything stamped ≤ p."""
        return time <= moment

    def summary(self, past: list[tuple[int, float]], moment: int) -> Summary:
        """Sum up values in their order."""
        values = [value for _, value in past]
        return Summary(
            last=values[-1],
            first=values[0],
            mean=math.fsum(values) / len(values),
            min=min(values),
            max=max(values),
            since_days=(moment - past[-1][0]) / DAY_US,
            number=len(values),
        )
