"""One shard of events, encoded: visits as token ids, and each task's prediction times with their labels.

`prepare` appends these arrays to files; `predict` makes them in memory for new records. Both get the same arrays from
the same records.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, Ints32, offsets, ragged, spans
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.text import day_of
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.events import (
    DAY_US,
    STATIC,
    Events,
    number_runs,
    opens_run,
    parse_date_us,
)
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.visits import Record, count_at_or_before
from ehrsequencing.records.vocabulary import SUMMARIES, Vocabulary

MAX_AGE_YEARS = 120.0
_US_PER_YEAR = DAYS_PER_YEAR * DAY_US


def encode_timelines(record: Record, vocabulary: Vocabulary) -> tuple[Timelines, int]:
    """Encode a shard's visits; also says at how many visits the age was over 120 and became unknown."""
    events, visits = record.events, record.visits
    n_subjects, n_visits = len(record.subject_id), len(visits)
    owner, codes, values = _visit_tokens(events, visits.event, visits.visit, vocabulary)

    static = np.flatnonzero((events.time_us == STATIC) & ~record.excluded)
    static_codes = vocabulary.ids(events.codes)[events.code[static]]
    static_codes, _ = vocabulary.encode_values(static_codes, events.value[static])
    pairs = np.unique(record.subject[static] * len(vocabulary) + static_codes)
    static_owner, static_codes = np.divmod(pairs, len(vocabulary))

    age, too_old = age_years(visits.start_us, record.birth_us[visits.subject])
    delta = np.zeros(n_visits)
    is_later = np.flatnonzero(np.diff(visits.subject) == 0) + 1
    delta[is_later] = (visits.start_us[is_later] - visits.end_us[is_later - 1]) / DAY_US
    timelines = Timelines(
        subject_id=record.subject_id,
        birth_us=record.birth_us,
        subject_offsets=offsets(visits.subject, n_subjects),
        start_us=visits.start_us,
        end_us=visits.end_us,
        age_years=age,
        delta_days=np.maximum(delta, 0).astype(np.float32),
        visit_offsets=offsets(owner, n_visits),
        codes=codes,
        values=values,
        static_codes=static_codes.astype(np.int32),
        static_offsets=offsets(static_owner, n_subjects),
    )
    return timelines, too_old


def _visit_tokens(
    events: Events, event: Ints, visit: Ints, vocabulary: Vocabulary
) -> tuple[Ints, Ints32, Floats32]:
    """Tokens of visits by visit, time, then id; in a visit, identical tokens without a value stand once, the earliest.

    So what a visit shows of itself at any moment is the first so many of its tokens.

    Args:
        events: A shard's events.
        event: (m,) rows of the visits' events, ordered by visit, then time.
        visit: (m,) visit of each.
        vocabulary: Tokens and scales.

    Returns:
        (t,) visit of each token, (t,) token ids, (t, 2) numbers.
    """
    codes = vocabulary.ids(events.codes)[events.code[event]]
    codes, values = vocabulary.encode_values(codes, events.value[event])
    opens = np.flatnonzero(opens_run(visit, events.time_us.take(event)))
    moment = number_runs(opens, len(visit))  # distinct (visit, time), in order
    # the rows are sorted runs, for which a stable sort is nearly linear
    order = np.argsort(moment * len(vocabulary) + codes, kind="stable")
    visit, codes = visit.take(order), codes.take(order)
    # tokens without a value that repeat an earlier one of their visit
    plain = np.flatnonzero(np.isnan(values[:, 0].take(order)))
    key = visit.take(plain) * len(vocabulary) + codes.take(plain)
    by_key = np.argsort(key, kind="stable")  # the earliest of equals comes first
    repeats = plain[by_key[~opens_run(key[by_key])]]
    if len(repeats):
        first = np.delete(np.arange(len(order)), repeats)
        visit, codes, order = visit.take(first), codes.take(first), order.take(first)
    return visit, codes, values.take(order, axis=0)


def encode_rows(record: Record, rows: CohortRows, vocabulary: Vocabulary) -> TaskRows:
    """Encode a task's prediction times, with the carried summaries of its queries."""
    visits, n_subjects = record.visits, len(record.subject_id)
    next_visit = offsets(visits.subject, n_subjects)[rows.subject] + rows.visits_before
    known_us = rows.prediction_us.copy()
    before = rows.visits_before > 0
    known_us[before] = visits.end_us[next_visit[before] - 1]
    # How many codes of the visit that it lies in each query has seen. The next visit is another subject's where there
    # is none after the last one that had ended.
    unfinished = np.zeros(len(rows), dtype=np.int32)
    row = np.flatnonzero(rows.is_query & (next_visit < len(visits)))
    visit = next_visit[row]
    has_begun = visits.start_us[visit] <= rows.prediction_us[row]
    has_begun &= visits.subject[visit] == rows.subject[row]
    row, visit, times = row[has_begun], visit[has_begun], record.events.time_us
    items, bounds = ragged(offsets(visits.visit, len(visits)), visit)
    event, query = visits.event[items], np.repeat(np.arange(len(row)), np.diff(bounds))
    is_known = times[event] <= rows.prediction_us[row[query]]
    event, query = event[is_known], query[is_known]
    token_query, _, _ = _visit_tokens(record.events, event, query, vocabulary)
    unfinished[row] = np.bincount(token_query, minlength=len(row))
    # the last event of each query's visit so far: a visit that has begun has one
    last = np.cumsum(np.bincount(query, minlength=len(row))) - 1
    known_us[row] = times[event[last]]
    age, _ = age_years(rows.prediction_us, record.birth_us[rows.subject])
    counts, codes, values = _carry(record, rows, vocabulary)
    return TaskRows(
        row_offsets=offsets(rows.subject, n_subjects),
        prediction_us=rows.prediction_us,
        index_us=rows.index_us,
        is_query=rows.is_query,
        visits_before=rows.visits_before.astype(np.int32),
        age_years=age,
        delta_days=((rows.prediction_us - known_us) / DAY_US).astype(np.float32),
        unfinished_codes=unfinished,
        duration_days=rows.duration_days,
        entry_days=rows.entry_days,
        cause=rows.cause,
        carry_offsets=np.r_[0, np.cumsum(counts)].astype(np.int64),
        carry_codes=codes,
        carry_values=values,
    )


def _carry(
    record: Record, rows: CohortRows, vocabulary: Vocabulary
) -> tuple[Ints, Ints32, Floats32]:
    """Summary tokens per row: how many, which, and their values."""
    counts = np.zeros(len(rows), dtype=np.int64)
    queries = np.flatnonzero(rows.is_query)
    if not vocabulary.settings.carry or vocabulary.settings.mode == "none" or not len(queries):
        return counts, np.zeros(0, np.int32), np.zeros((0, 2), np.float32)
    events, event = record.events, record.visits.event
    event = event[np.flatnonzero(~np.isnan(events.value[event]))]
    # drops the numbers after their subject's last query, which are most of them
    last_us = np.full(len(record.subject_id), STATIC)
    last_us[rows.subject[queries]] = rows.prediction_us[queries]
    event = event[np.flatnonzero(events.time_us[event] <= last_us[record.subject[event]])]
    token = vocabulary.ids(events.codes)
    has_summary = vocabulary.summary_tokens[token, 0] >= 0
    event = event[np.flatnonzero(has_summary[events.code[event]])]
    query, token, numbers = summarise(
        record.subject[event],
        events.time_us[event],
        token[events.code[event]],
        events.value[event],
        query_subject=rows.subject[queries],
        query_us=rows.prediction_us[queries],
    )
    summary_tokens = vocabulary.summary_tokens.take(token, axis=0)
    codes, values = vocabulary.encode_values(summary_tokens.ravel(), numbers.ravel())
    counts[queries] = np.bincount(query, minlength=len(queries)) * len(SUMMARIES)
    return counts, codes, values


def age_years(moment_us: Ints, birth_us: Ints) -> tuple[Floats32, int]:
    """Age at each moment, NaN where birth is unknown or later, or the age is over 120; and how many were over 120."""
    lived_us = moment_us - np.where(birth_us == STATIC, 0, birth_us)
    age = np.where(birth_us == STATIC, np.nan, lived_us / _US_PER_YEAR)
    too_old = age > MAX_AGE_YEARS
    return np.where(too_old | (age < 0), np.nan, age).astype(np.float32), int(too_old.sum())


def summarise(
    subject: Ints,
    time_us: Ints,
    token: Ints32,
    value: Floats32,
    *,
    query_subject: Ints,
    query_us: Ints,
) -> tuple[Ints, Ints32, Floats]:
    """Summarise, for each query, every numeric code that its subject has up to then (time ≤ p).

    Args:
        subject: (n,) subject row of each number, sorted.
        time_us: (n,) its time, sorted within a subject.
        token: (n,) its code's token id.
        value: (n,) the number.
        query_subject: (q,) subject row of each query, sorted.
        query_us: (q,) its moment.

    Returns:
        One row per query and numeric code seen by then, ordered by query, then code: (m,) position of the query, (m,)
        token id of the code, and (m, 7) raw numbers in the order of `SUMMARIES`, SINCE in days. At equal times the
        later row of the record is the last one.
    """
    # a stable sort by subject and token, in which times stay in order
    order = np.argsort(subject * (int(token.max(initial=0)) + 1) + token, kind="stable")
    subject, time_us, token = subject[order], time_us[order], token[order]
    number = value[order].astype(np.float64)
    start = np.flatnonzero(opens_run(subject, token))  # each (subject, code) is one group
    group_of = number_runs(start, len(order))
    low = np.searchsorted(subject[start], query_subject, side="left")
    high = np.searchsorted(subject[start], query_subject, side="right")
    query, (group, _) = np.repeat(np.arange(len(query_us)), high - low), spans(low, high - low)
    count, _ = count_at_or_before(group_of, time_us, group, query_us[query])
    query, group, count = query[count > 0], group[count > 0], count[count > 0]
    if not len(query):
        return query, token[:0], np.zeros((0, len(SUMMARIES)))
    first, last = start[group], start[group] + count - 1
    bounds = np.stack([first, last + 1], axis=1).ravel()
    padded = np.r_[number, 0.0]  # `reduceat` needs every bound inside the array
    numbers = {
        "LAST": number[last],
        "FIRST": number[first],
        "MEAN": np.add.reduceat(padded, bounds)[::2] / count,
        "MIN": np.minimum.reduceat(padded, bounds)[::2],
        "MAX": np.maximum.reduceat(padded, bounds)[::2],
        "SINCE": (query_us[query] - time_us[last]) / DAY_US,
        "COUNT": count.astype(np.float64),
    }
    return query, token[start[group]], np.stack([numbers[name] for name in SUMMARIES], axis=1)


# ---- Which prediction times are asked about. ----
_NAMED = ("all", "last", "index", "every-index")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
KINDS = ("index", "landmark", "visit", "date")  # what a prediction time is


@dataclass
class Moment:
    """Which prediction times to use.

    Every one (`all`), each subject's newest (`last`), at each subject's newest index (`index`) or at each of them
    (`every-index`), or a date. `since` keeps the people whose index lies no longer before that date, or before the
    data's end, as in 14d, or at this date or later. `as_of_us` is the date, at midnight unless it has a time of day.

    Raises:
        EhrseqError: It is none of these.
    """

    at: str = "all"
    since: str | None = None
    as_of_us: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.at not in _NAMED:
            if not _DATE.match(self.at):
                raise EhrseqError(
                    f"{self.at!r} is not a date",
                    where="--at",
                    fix=f"use {', '.join(_NAMED)} or a date: 2026-03-01",
                )
            self.as_of_us = parse_date_us(self.at)
        self.since_us(0)  # a wrong one is refused before anything is read

    def since_us(self, end_us: int) -> int:
        """The earliest index of the people who are asked about; `end_us` is the data's end."""
        if self.since is None or _DATE.match(self.since):
            return STATIC if self.since is None else parse_date_us(self.since)
        now_us = end_us if self.as_of_us is None else self.as_of_us
        return now_us - round(day_of(self.since, where="--since") * DAY_US)

    def chosen(self, rows: CohortRows | TaskRows, end_us: int = 0) -> Bools:
        """(R,) which rows are asked about."""
        is_chosen = np.ones(len(rows), dtype=bool)
        if self.at in ("index", "every-index"):
            is_chosen = rows.prediction_us == rows.index_us
        if self.at in ("last", "index"):
            places = np.flatnonzero(is_chosen)
            is_newest = opens_run(rows.subject[places][::-1])[::-1]
            is_chosen = np.zeros(len(rows), dtype=bool)
            is_chosen[places[is_newest]] = True
        return np.asarray(is_chosen & (rows.index_us >= self.since_us(end_us)))

    def kind(self, rows: TaskRows) -> Ints:
        """(R,) number of each row's kind among `KINDS`."""
        if self.as_of_us is not None:
            return np.full(len(rows), KINDS.index("date"))
        is_index = rows.prediction_us == rows.index_us
        return np.where(is_index, KINDS.index("index"), np.where(rows.is_query, 1, 2))
