"""When visits began and ended, which rows belong to them, and when that became known which was reported in them."""

from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.import_report import RuleCounts
from ehrsequencing.readers.rows import NO_TIME, OPEN, PlainRows, Role, day_of, end_of_day
from ehrsequencing.records.events import DAY_US

VISITS = (Role.VISIT, Role.NAMED_VISIT)
_NEVER = NO_TIME + 2 * DAY_US  # the start of a visit whose time is not known


@dataclass(frozen=True, eq=False)
class VisitSpans:
    """When each visit began and ended, and which rows may belong to it: those of `from_us` ≤ time < `until_us`."""

    start_us: Ints  # (v,) `_NEVER` where it is not known
    end_us: Ints  # (v,) without a valid end, the end of the day on which it starts
    from_us: Ints  # (v,) the start of the day before its first day
    until_us: Ints  # (v,) the end of the day after its last day; `OPEN` without a valid end, since it may go on


def visit_spans(rows: PlainRows, visit: Ints) -> VisitSpans:
    """The spans of all visits; several rows of a visit have one span, from the earliest start to the latest end."""
    n = int(visit.max(initial=-1)) + 1
    start, end, ended = np.full(n, OPEN), np.full(n, NO_TIME), np.zeros(n, dtype=bool)
    chosen = np.flatnonzero(rows.of_role(*VISITS) & (visit >= 0) & (rows.time_us != NO_TIME))
    at, start_us = visit[chosen], rows.time_us[chosen]
    end_us = end_of_day(rows.end_us[chosen])
    valid = end_us >= start_us
    np.minimum.at(start, at, start_us)
    np.maximum.at(end, at, np.where(valid, end_us, end_of_day(day_of(start_us))))
    ended[at[valid]] = True
    start[end == NO_TIME] = _NEVER
    end[end == NO_TIME] = OPEN
    until = np.where(ended, day_of(np.where(ended, end, 0)) + 2 * DAY_US, OPEN)
    return VisitSpans(start, end, day_of(start) - DAY_US, until)


def known_times(rows: PlainRows, visit: Ints, spans: VisitSpans, counts: RuleCounts) -> Ints:
    """(n,) the times; what was reported has the latest time at which it began, or its visit's end if it began before.

    A diagnosis of a visit was known by the visit's end, and not when the disease began, years before.
    """
    some = np.flatnonzero(rows.of_role(Role.REPORTED))
    if not len(some):
        return rows.time_us
    first, at = rows.time_us[some], visit[some]
    last = np.where(rows.end_us[some] == NO_TIME, first, rows.end_us[some])
    undated, early = first == NO_TIME, at >= 0
    at, first_us, last_us = at[early], first[early], last[early]
    start, end = spans.start_us[at], spans.end_us[at]
    before = (end_of_day(first_us) < start) | ((first_us <= end) & (end < last_us))
    early[early] = before & ((first_us != NO_TIME) | (start != _NEVER))
    counts["began_before"] += int((early & ~undated).sum())
    counts["undated"] += int((early & undated).sum())
    time_us = rows.time_us.copy()
    time_us[some] = last
    time_us[some[early]] = spans.end_us[visit[some[early]]]
    return time_us


def rows_outside(rows: PlainRows, visit: Ints, spans: VisitSpans, counts: RuleCounts) -> Bools:
    """(n,) which rows lie more than a day before their visit's first day or after its last; they would stretch it."""
    some = np.flatnonzero((visit >= 0) & (rows.time_us != NO_TIME))
    at, time_us = visit[some], rows.time_us[some]
    late = (rows.role[some] == Role.SPAN) & (rows.end_us[some] >= spans.until_us[at])
    far = (time_us < spans.from_us[at]) | (time_us >= spans.until_us[at]) | late
    outside = np.zeros(len(visit), dtype=bool)
    outside[some[far]] = True
    counts["outside_visit"] += int(far.sum())
    return outside
