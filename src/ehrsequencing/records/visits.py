"""Events → visits: by calendar day, fixed window, gap, or encounter column (docs/records.md); `Record` holds both.

Only events that make a token count. A visit's `start` and `end` are its first and last such event, so that everything
in it is known at `end`, and nothing later.
"""

from dataclasses import dataclass, replace

import numpy as np

from ehrsequencing.config import VisitsConfig
from ehrsequencing.core.arrays import Bools, Ints, Ints32
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    NEVER,
    SECOND_US,
    STATIC,
    Events,
    first_time,
    number_runs,
    opens_run,
)


@dataclass(frozen=True)
class Visits:
    """Visits of a shard's subjects, in time order within a subject."""

    event: Ints  # (m,) int64, rows of the token-making timed events, ordered by visit
    visit: Ints  # (m,) int64, visit of each such event, never falling
    subject: Ints  # (N,) int64, subject row of each visit, never falling
    start_us: Ints  # (N,) int64
    end_us: Ints  # (N,) int64, never falling within a subject

    def __len__(self) -> int:
        return len(self.subject)


def group_visits(
    events: Events, subject: Ints, makes_token: Bools, *, settings: VisitsConfig
) -> Visits:
    """Group a shard's events into visits.

    Args:
        events: Sorted events.
        subject: (n,) subject row of each event.
        makes_token: (n,) True for timed events that become tokens.
        settings: The rule.

    Returns:
        The visits, ordered by subject and time.
    """
    event = np.flatnonzero(makes_token)
    owner, time = subject[event], events.time_us[event]
    if settings.by == "encounter":
        assert events.encounter is not None
        # groups with one label, ordered by subject and start; events ordered by visit, then time
        label = _encounter_labels(owner, time, events.encounter[event])
        order = np.lexsort((time, label))
        event, owner, time, label = event[order], owner[order], time[order], label[order]
        first = np.flatnonzero(opens_run(label))
        last = np.append(first[1:], len(label))[: len(first)] - 1
        by_time = np.lexsort((time[last], time[first], owner[first]))
        visit = np.argsort(by_time)[number_runs(first, len(label))]
        regroup = np.argsort(visit, kind="stable")
        first, last = first[by_time], last[by_time]
        return Visits(event[regroup], visit[regroup], owner[first], time[first], time[last])
    if settings.by == "gap":
        opens = opens_run(owner)
        opens[1:] |= np.diff(time) >= round(settings.gap * DAY_US)
    else:
        width_us = DAY_US if settings.by == "day" else round(settings.window * DAY_US)
        opens = opens_run(owner, time // width_us)
    first = np.flatnonzero(opens)  # events are sorted by subject and time, and so are such visits
    last = np.append(first[1:], len(event))[: len(first)] - 1
    return Visits(event, number_runs(first, len(event)), owner[first], time[first], time[last])


def _encounter_labels(owner: Ints, time: Ints, encounter: Ints32) -> Ints:
    """A visit label per event: merged encounters; events without one join the span that holds them, else their day."""
    label = np.full(len(owner), -1, dtype=np.int64)
    named = np.flatnonzero(encounter >= 0)
    if len(named):
        raw = _distinct(owner[named], encounter[named])
        label[named] = _merge_overlaps(owner[named], time[named], raw)
        names, subject, start, end = _spans(owner[named], time[named], label[named])
        order = np.lexsort((start, subject))
        names, subject, start, end = names[order], subject[order], start[order], end[order]
        loose = np.flatnonzero(label < 0)
        # the span that started last, and, at an instant where two touch, the one before it
        for shift in (1, 2):
            count, first = count_at_or_before(subject, start, owner[loose], time[loose])
            position = np.where(count >= shift, first + count - shift, 0)
            ok = (count >= shift) & (time[loose] <= end[position])
            label[loose[ok]] = names[position[ok]]
    loose = np.flatnonzero(label < 0)
    if len(loose):
        raw = _distinct(owner[loose], time[loose] // DAY_US)
        label[loose] = raw + label.max(initial=-1) + 1
    return _merge_overlaps(owner, time, label)


def _distinct(owner: Ints, key: Ints | Ints32) -> Ints:
    """(n,) number of each distinct pair."""
    pairs = np.stack([owner, key.astype(np.int64)])
    return np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)


def _spans(owner: Ints, time: Ints, label: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Distinct labels with their subject, start and end."""
    names, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    start, end = time[first], time[first]
    np.minimum.at(start, inverse, time)
    np.maximum.at(end, inverse, time)
    return names, owner[first], start, end


def _merge_overlaps(owner: Ints, time: Ints, label: Ints) -> Ints:
    """Give overlapping or nested spans of one subject one label.

    Spans that only touch at an instant stay apart, unless a span that is this very instant lies inside both.
    """
    names, subject, start, end = _spans(owner, time, label)
    order = np.lexsort((end, start, subject))
    merged = np.empty(len(names), dtype=np.int64)
    group, group_end, bridge, previous = -1, 0, 0, -1
    for k, low, high, who in zip(
        *(x.tolist() for x in (order, start[order], end[order], subject[order])), strict=True
    ):
        touches = low == group_end and high > low and bridge != low
        if who != previous or low > group_end or touches:
            group, group_end, previous = group + 1, high, who
            bridge = high - 1  # no instant yet at the group's end
        group_end = max(group_end, high)
        bridge = low if low == high else bridge
        merged[k] = group
    return merged[np.searchsorted(names, label)]


def count_at_or_before(key_group: Ints, key: Ints, group: Ints, query: Ints) -> tuple[Ints, Ints]:
    """How many keys of the query's own group are ≤ the query, for many queries at once.

    Args:
        key_group: (n,) group of each key, sorted; groups are small non-negative numbers.
        key: (n,) sorted within its group.
        group: (m,) group of each query.
        query: (m,) in any order.

    Returns:
        (m,) the counts, and (m,) the position of the group's first key.

    >>> import numpy as np
    >>> count_at_or_before(np.array([0, 0, 2]), np.array([5, 9, 1]), np.array([0, 1, 2, 0]), np.array([9, 9, 0, 6]))
    (array([2, 0, 0, 1]), array([0, 2, 2, 0]))
    """
    n_groups = max(key_group.max(initial=-1), group.max(initial=-1)) + 1
    bounds = np.r_[0, np.cumsum(np.bincount(key_group, minlength=n_groups))]
    first, after = bounds[group], bounds[group + 1]
    low, high = first.copy(), after  # the count ends in [low, high]: halved for all queries at once
    open_ = np.flatnonzero(low < high)
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        is_past = key[middle] <= query[open_]
        low[open_[is_past]] = middle[is_past] + 1
        high[open_[~is_past]] = middle[~is_past]
        open_ = open_[low[open_] < high[open_]]
    return low - first, first


def next_of(key_group: Ints, key: Ints, group: Ints, query: Ints) -> tuple[Ints, Ints]:
    """(m,) position and key of the group's first key at or after each query, as of `count_at_or_before`.

    n and `NEVER` where there is none.
    """
    before, first = count_at_or_before(key_group, key, group, query - 1)
    position = before + first
    is_own = np.append(key_group, -1)[position] == group
    return np.where(is_own, position, len(key)), np.where(
        is_own, np.append(key, 0)[position], NEVER
    )


@dataclass(frozen=True)
class Record:
    """A shard between reading and encoding."""

    events: Events  # the events (n,)
    subject_id: Ints  # (S,) int64
    subject: Ints  # (n,) subject row of each event
    birth_us: Ints  # (S,) int64, `STATIC` where unknown
    visits: Visits  # which events make which visits
    excluded: Bools  # (n,) events that make no token
    hidden: Bools | None = None  # (n,) events that are none to a task: see `deaths.py`


def make_record(events: Events, *, excluded: CodeMatcher, settings: VisitsConfig) -> Record:
    """Group a shard's events into visits."""
    if (
        settings.dates == "last"
    ):  # every midnight at the end of its day: nothing dated is known before
        moved: Bools = (events.time_us % DAY_US == 0) & (events.time_us != STATIC)
        moved &= ~events.is_code(BIRTH)
        time_us = events.time_us + moved * (DAY_US - SECOND_US)
        order = np.lexsort((time_us, events.subject_id))
        events = replace(events, time_us=time_us).take(order)
    subject_id, subject = events.subjects
    skip = excluded.mask(events.codes)[events.code]
    visits = group_visits(events, subject, ~skip & (events.time_us != STATIC), settings=settings)
    birth_us = first_time(events, events.is_code(BIRTH), subject, len(subject_id))
    return Record(events, subject_id, subject, birth_us, visits, skip)


# ---- rows that are dated by the day, beside an index whose hour is known ----
# A time of 00:00:00, or the last second of a day, where imports put such rows, counts as a date.
def is_dated(time_us: Ints) -> Bools:
    """(n,) whether a time is a date, as far as it can be told."""
    real = (time_us != STATIC) & (time_us != NEVER)
    return np.asarray(real & np.isin(time_us % DAY_US, (0, DAY_US - SECOND_US)))


def is_undecided(event_us: Ints, moment_us: Ints) -> Bools:
    """(n,) whether an event is dated by the day of an index with a clock."""
    same = (event_us // DAY_US == moment_us // DAY_US) & (event_us != NEVER)
    return np.asarray(same & is_dated(event_us) & ~is_dated(moment_us))
