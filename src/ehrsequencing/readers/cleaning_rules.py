"""The cleaning rules: a reader's rows → MEDS rows. `import_report.RULES` says what each rule does."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.import_report import FATES, ImportReport, RuleCounts
from ehrsequencing.readers.rows import (
    END_SUFFIX,
    PERIOD_START,
    Role,
    clean_codes,
    encoded,
    packed,
    places,
)
from ehrsequencing.records.events import DAY_US, SECOND_US

PERIOD_END = "OBSERVATION_PERIOD_END"
NO_TIME = np.iinfo(np.int64).min
OPEN = np.iinfo(np.int64).max - DAY_US  # the end of what has not ended
VISITS = (Role.VISIT, Role.NAMED_VISIT)
UNUSABLE = -1  # the role of a row that cannot be used
_UNCODED = (Role.NAMED_VISIT,)  # roles that need no code
_UNDATED = (Role.PERSON, Role.STATIC, Role.NAMED_VISIT)  # and no time
_WITHOUT_VISIT = (Role.PERSON, Role.DEATH, Role.OBSERVED)
_ENDING = (Role.VISIT, Role.SPAN, Role.OBSERVED)


def conformed(rows: pa.Table, schema: pa.Schema, report: ImportReport) -> pa.Table:
    """A reader's rows with all columns of the schema, their codes clean and of a dictionary.

    Rows without a subject or, where their role needs them, a code and a time are counted, and get the role `UNUSABLE`.
    """
    columns: dict[str, Any] = {}
    for name in schema.names:
        column = rows[name] if name in rows.column_names else pa.nulls(len(rows), pa.null())
        columns[name] = (
            column if name == "code" else column.cast(schema.field(name).type, safe=False)
        )
    code = encoded(columns["code"])
    clean = clean_codes(code.dictionary)
    fixed = pc.not_equal(clean, code.dictionary).take(code.indices)
    report.count("fixed_code", fixed)
    blank = pc.equal(clean, "").take(code.indices)
    number = pc.if_else(blank, pa.scalar(None, code.indices.type), code.indices)
    rows = pa.table({**columns, "code": pa.DictionaryArray.from_arrays(number, clean)})
    role, source = rows["role"].to_numpy(), rows["source"].to_numpy()
    may_lack_time = np.isin(role, _UNDATED)
    may_lack_time |= (role == Role.REPORTED) & np.asarray(rows["encounter_id"].is_valid())
    left, lost = np.ones(len(rows), dtype=bool), dict[str, Bools]()
    for reason, bad in {
        "no_person": np.asarray(rows["subject_id"].is_null()),
        "no_code": np.asarray(number.is_null()) & ~np.isin(role, _UNCODED),
        "no_time": np.asarray(rows["time"].is_null()) & ~may_lack_time,
    }.items():
        lost[reason] = left & bad
        left &= ~bad
    for reason, chosen in lost.items():  # a row of the source that left another row is not dropped
        report.counts[reason] += int(chosen.sum())
        gone = pa.array(source[chosen])
        made = pc.is_in(pa.array(source), value_set=gone).to_numpy(zero_copy_only=False) & left
        report.lose(reason, np.setdiff1d(source[chosen], source[made]))
    usable = np.where(left, role, UNUSABLE).astype(np.int8)
    return rows.set_column(schema.get_field_index("role"), "role", pa.array(usable))


@dataclass(eq=False)
class Rows:
    """Rows of known persons as plain columns; the rules change times and visits, and say which rows are lost."""

    table: pa.Table
    codes: pa.Array  # (c,) texts
    subject_ids: Ints  # (s,) sorted
    subject: Ints  # (n,) place among `subject_ids`
    role: Ints  # (n,) numbers of `Role`
    time_us: Ints  # (n,) `NO_TIME` for null
    end_us: Ints  # (n,) as `time_us`
    code: Ints  # (n,) place among `codes`, -1 for null
    source: Ints  # (n,)
    visit: Ints  # (n,) number of its visit; -1 without one
    date_only: Bools  # (n,) whether the source gave a date, and no time of day
    end_date_only: Bools  # (n,) the same of the end
    lost: Ints  # (n,) why a row makes none of the output, a number of `FATES`; 0 where it may make one

    def lose(self, reason: str, chosen: Ints | Bools) -> None:
        """Say why some rows make none."""
        self.lost[chosen] = FATES[reason]

    def of_role(self, *roles: Role) -> Bools:
        """(n,) which rows have one of these roles."""
        return np.isin(self.role, roles)


def cleaned(table: pa.Table, report: ImportReport, *, open_after_us: int | None = None) -> pa.Table:
    """Turn the rows of some subjects into MEDS rows.

    Args:
        table: All usable rows of these subjects, in any order, as `conformed` gives them.
        report: Where the use of each rule is counted, and what became of each row, by its `source`.
        open_after_us: An end after this time means "not ended yet".

    Returns:
        subject_id, time, code (of a dictionary that holds the codes of these rows, sorted), numeric_value, text_value,
        encounter_id, date_only; sorted by subject, time (static rows first), code, value, text and encounter, so that
        the result does not depend on the order of the rows.
    """
    rows, counts = _known_persons(table, report), report.counts
    _remove_open_ends(rows, OPEN if open_after_us is None else open_after_us, counts)
    spans = visit_spans(rows, counts)
    set_known_times(rows, spans, counts)
    outside = rows_outside(rows, spans)
    rows.visit[outside] = -1
    counts["outside_visit"] += int(outside.sum())
    _move_dates(rows, spans, counts)
    born = _keep_earliest(rows, Role.PERSON, "two_births", counts)
    counts["no_birth"] += len(rows.subject_ids) - born
    _keep_earliest(rows, Role.DEATH, "two_deaths", counts)
    _lose_late_results(rows)
    _check_ends(rows, counts)
    _join_periods(rows, counts)
    _lose_nobody(rows, counts)

    starts = np.flatnonzero(_starts(rows))
    ends = np.flatnonzero((rows.lost == 0) & rows.of_role(*_ENDING) & (rows.end_us != NO_TIME))
    row = np.r_[starts, ends]
    time_us = np.r_[rows.time_us[starts], rows.end_us[ends]]
    date_only = np.r_[rows.date_only[starts], rows.end_date_only[ends]]
    names, code = _used_codes(
        rows.codes, np.r_[rows.code[starts], rows.code[ends] + len(rows.codes)]
    )
    columns = {n: rows.table[n].combine_chunks() for n in ("numeric_value", "text_value")}
    encounter = rows.table["encounter_id"].combine_chunks()
    none = pa.scalar(None, encounter.type)
    columns["encounter_id"] = pc.if_else(pa.array(rows.visit >= 0), encounter, none)
    # of equal rows the first stays: one with its encounter, and with a clock, then the smallest source
    preferred = (rows.source[row], date_only, outside[row])
    order = ordered_rows((rows.subject[row], time_us, code), columns, row, preferred)
    counts["duplicates"] += len(row) - len(order)
    row, time_us = row[order], time_us[order]
    _count_rows(rows, row, report)
    coded = pa.DictionaryArray.from_arrays(pa.array(code[order].astype(np.int32)), names)
    return pa.table(
        {
            "subject_id": rows.subject_ids[rows.subject[row]],
            "time": pa.array(time_us, mask=time_us == NO_TIME).cast(pa.timestamp("us")),
            "code": coded,
            **{name: taken(column, row) for name, column in columns.items()},
            "date_only": date_only[order],
        }
    )


def _known_persons(table: pa.Table, report: ImportReport) -> Rows:
    """The rows of persons who have a row with that role; others are counted."""
    is_person = pa.array(table["role"].to_numpy() == Role.PERSON)
    subject_ids = np.sort(pc.unique(table["subject_id"].filter(is_person)).to_numpy())
    place = pc.index_in(table["subject_id"], pa.array(subject_ids))
    report.lose("unknown_person", table["source"].filter(place.is_null()).to_numpy())
    report.counts["unknown_person"] += place.null_count
    if place.null_count:
        table, place = table.filter(place.is_valid()), place.drop_null()
    time_us, end_us = (
        pc.fill_null(table[name].cast(pa.int64()), NO_TIME).to_numpy() for name in ("time", "end")
    )
    role, coded = table["role"].to_numpy(), encoded(table["code"])
    return Rows(
        table=table,
        codes=coded.dictionary,
        subject_ids=subject_ids,
        subject=place.to_numpy().astype(np.int64),
        role=role,
        time_us=np.where(role == Role.STATIC, NO_TIME, time_us),
        end_us=end_us.copy(),
        code=places(coded),
        source=table["source"].to_numpy(),
        visit=np.full(len(table), -1),
        date_only=np.zeros(len(table), dtype=bool),
        end_date_only=is_date(end_us),
        lost=np.zeros(len(table), dtype=np.int64),
    )


# ---- visits ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class VisitSpans:
    """When each visit began and ended; the last is for rows without a visit, and for what is not known.

    Several rows of a visit have one span, from the earliest start to the latest end.
    """

    start_us: Ints  # (v + 1,) `NO_TIME` where it is not known
    end_us: Ints  # (v + 1,) without a valid end, the end of the day on which it starts
    until_us: Ints  # (v + 1,) the end of the day after its last day; `OPEN` without a valid end, since it may go on


def visit_spans(rows: Rows, counts: RuleCounts) -> VisitSpans:
    """Number the visits of the rows, and find their spans.

    Births, deaths and observation periods belong to no visit, so that rows which differ in it only are equal. Two
    persons may use the same `encounter_id`.
    """
    name = places(encoded(rows.table["encounter_id"]))
    name[rows.of_role(*_WITHOUT_VISIT)] = -1
    key = np.where(name < 0, -1, rows.subject + name * len(rows.subject_ids))
    is_visit = rows.of_role(*VISITS) & (key >= 0)
    visits = pc.unique(pa.array(key[is_visit]))
    rows.visit = pc.fill_null(pc.index_in(pa.array(key), visits), -1).to_numpy().astype(np.int64)
    counts["dangling_encounter"] += int(((key >= 0) & (rows.visit < 0)).sum())

    start, end = np.full(len(visits) + 1, OPEN), np.full(len(visits) + 1, NO_TIME)
    chosen = np.flatnonzero(is_visit & (rows.time_us != NO_TIME))
    at, start_us = rows.visit[chosen], rows.time_us[chosen]
    end_us = end_of_day(rows.end_us[chosen])
    is_valid = end_us >= start_us
    np.minimum.at(start, at, start_us)
    np.maximum.at(end, at, np.where(is_valid, end_us, end_of_day(day_of(start_us))))
    until = np.full(len(start), OPEN)
    ended = at[is_valid]
    until[ended] = day_of(end[ended]) + 2 * DAY_US
    return VisitSpans(
        np.where(end == NO_TIME, NO_TIME, start), np.where(end == NO_TIME, OPEN, end), until
    )


def set_known_times(rows: Rows, spans: VisitSpans, counts: RuleCounts) -> None:
    """What was reported has the latest time at which it began, or its visit's end if it began before.

    A diagnosis of a visit was known by the visit's end, and not when the disease began, years before.
    """
    some = np.flatnonzero(rows.of_role(Role.REPORTED))
    first, last, at = rows.time_us[some], rows.end_us[some], rows.visit[some]
    last = np.where(last == NO_TIME, first, last)
    start, end = spans.start_us[at], spans.end_us[at]
    is_early = (end_of_day(first) < start) | ((first <= end) & (end < last))
    rows.time_us[some] = np.where(is_early, end, last)
    is_undated = first == NO_TIME
    counts["began_before"] += int((is_early & ~is_undated).sum())
    counts["undated"] += int((is_early & is_undated).sum())
    rows.lose("no_time", some[rows.time_us[some] == NO_TIME])


def rows_outside(rows: Rows, spans: VisitSpans) -> Bools:
    """(n,) which rows lie more than a day before their visit's first day or after its last; they would stretch it."""
    start, until = spans.start_us, spans.until_us[rows.visit]
    first = np.where(start == NO_TIME, NO_TIME, day_of(start) - DAY_US)[rows.visit]
    is_far = (rows.time_us < first) | (rows.time_us >= until)
    is_far |= rows.of_role(Role.SPAN) & (rows.end_us >= until)
    is_far |= rows.of_role(Role.ISSUED) & (until < OPEN) & (rows.time_us > spans.end_us[rows.visit])
    outside: Bools = is_far & (rows.time_us != NO_TIME) & (rows.visit >= 0)
    return outside


# ---- times -------------------------------------------------------------------------------------


def is_date(time_us: Ints) -> Bools:
    """(n,) whether a time is a date without a time of day."""
    return np.asarray((time_us % DAY_US == 0) & (time_us != NO_TIME))


def end_of_day(time_us: Ints) -> Ints:
    """The times, with midnight moved to the last second of the day."""
    return np.where(is_date(time_us), time_us + DAY_US - SECOND_US, time_us)


def day_of(time_us: Ints) -> Ints:
    """Midnight of the day of each time."""
    return time_us - time_us % DAY_US


def _remove_open_ends(rows: Rows, after_us: int, counts: RuleCounts) -> None:
    """Remove ends and deaths after `after_us`, which mean "not ended yet"."""
    is_open = rows.end_us > after_us
    no_death = rows.of_role(Role.DEATH) & (rows.time_us > after_us)
    counts["open_end"] += int(is_open.sum() + no_death.sum())
    rows.end_us[is_open] = np.where(rows.role[is_open] == Role.OBSERVED, OPEN, NO_TIME)
    rows.lose("open_end", no_death)


def _move_dates(rows: Rows, spans: VisitSpans, counts: RuleCounts) -> None:
    """Move dates to the end of their day, or of their visit if it ends on that day; births stay at midnight."""
    is_moved = is_date(rows.time_us) & rows.of_role(
        Role.EVENT, Role.ISSUED, Role.REPORTED, Role.DEATH
    )
    is_moved &= rows.lost == 0
    counts["date_only"] += int(is_moved.sum())
    day, at = rows.time_us[is_moved], rows.visit[is_moved]
    start, end = spans.start_us[at], spans.end_us[at]
    covers = (start < day + DAY_US) & (end >= day)
    time_us = end_of_day(day)
    rows.time_us[is_moved] = np.where(covers, np.minimum(time_us, end), time_us)
    rows.date_only = is_moved | (is_date(rows.time_us) & rows.of_role(Role.PERSON))


def _keep_earliest(rows: Rows, role: Role, reason: str, counts: RuleCounts) -> int:
    """Keep of each subject the earliest dated row of a role; count subjects with different times; how many have one."""
    dated = rows.of_role(role) & (rows.time_us != NO_TIME) & (rows.lost == 0)
    order = np.flatnonzero(dated)
    order = order[np.lexsort((rows.time_us[order], rows.subject[order]))]
    subject, time_us = rows.subject[order], rows.time_us[order]
    _, first, length = np.unique(subject, return_index=True, return_counts=True)
    counts[reason] += int((time_us[first + length - 1] != time_us[first]).sum())
    rows.lose(reason, np.delete(order, first))
    return len(first)


def _lose_late_results(rows: Rows) -> None:
    """Drop results that were issued after the death of their person."""
    died_us = np.full(len(rows.subject_ids), OPEN)
    dead = rows.of_role(Role.DEATH) & (rows.time_us != NO_TIME) & (rows.lost == 0)
    died_us[rows.subject[dead]] = rows.time_us[dead]
    is_late = rows.of_role(Role.ISSUED) & (rows.time_us > died_us[rows.subject])
    rows.lose("issued_after_death", is_late & (rows.lost == 0))


def _check_ends(rows: Rows, counts: RuleCounts) -> None:
    """Move ends on a date to the end of that day, and remove those before their start."""
    end_us = end_of_day(rows.end_us)
    is_backwards = rows.of_role(*_ENDING) & (end_us < rows.time_us) & (end_us != NO_TIME)
    counts["end_before_start"] += int(is_backwards.sum())
    rows.end_us = np.where(is_backwards, NO_TIME, end_us)


def _join_periods(rows: Rows, counts: RuleCounts) -> None:
    """Join the observation periods of a person that overlap or touch (less than a day apart).

    A period without a valid end lasts for a day; one that has not ended has only a start.
    """
    no_end = rows.of_role(Role.OBSERVED) & (rows.end_us == NO_TIME)
    rows.end_us[no_end] = end_of_day(rows.time_us[no_end])
    rows.end_date_only[no_end] = is_date(rows.time_us[no_end])
    order = np.flatnonzero(rows.of_role(Role.OBSERVED))
    order = order[np.lexsort((rows.end_us[order], rows.time_us[order], rows.subject[order]))]
    first = -1  # the row of the period that the next may touch
    for row in order.tolist():
        is_same = first >= 0 and rows.subject[first] == rows.subject[row]
        if not is_same or rows.time_us[row] > rows.end_us[first] + SECOND_US:
            first = row
            continue
        rows.lose("overlapping_periods", np.array([row]))
        counts["overlapping_periods"] += 1
        if rows.end_us[row] > rows.end_us[first]:
            rows.end_us[first] = rows.end_us[row]
            rows.end_date_only[first] = rows.end_date_only[row]
    rows.end_us[rows.end_us >= OPEN] = NO_TIME


def _starts(rows: Rows) -> Bools:
    """(n,) which rows make a row at their time."""
    has_time = (rows.time_us != NO_TIME) | rows.of_role(Role.STATIC)
    return np.asarray((rows.lost == 0) & has_time & ~rows.of_role(Role.NAMED_VISIT))


def _lose_nobody(rows: Rows, counts: RuleCounts) -> None:
    """Drop subjects with nothing but a birth and static rows, as MEDS readers do."""
    starts = _starts(rows)
    is_timed = starts & ~rows.of_role(Role.PERSON, Role.STATIC)
    has_events = np.zeros(len(rows.subject_ids), dtype=bool)
    has_events[rows.subject[is_timed]] = True
    counts["nobody"] += len(np.unique(rows.subject[starts & ~has_events[rows.subject]]))
    rows.lose("nobody", ~has_events[rows.subject])


# ---- order -------------------------------------------------------------------------------------


def taken(column: pa.Array, row: Ints) -> pa.Array:
    """Some rows of a column, in the order given; quick for one without any value."""
    if column.null_count == len(column):
        return pa.nulls(len(row), column.type)
    return column.take(pa.array(row))


def _used_codes(texts: pa.Array, number: Ints) -> tuple[pa.Array, Ints]:
    """The sorted distinct codes that are used, and (n,) the place of each row's code among them.

    Args:
        texts: (c,) codes.
        number: (n,) place among them; c more where the row is the end of what has that code.
    """
    ends = pc.binary_join_element_wise(texts, pa.scalar(END_SUFFIX), "")
    ends = pc.if_else(pc.equal(texts, PERIOD_START), PERIOD_END, ends)
    codes = pa.concat_arrays([texts, ends])
    used = np.flatnonzero(np.bincount(number, minlength=len(codes)))
    names = pc.unique(codes.take(pa.array(used)))
    names = names.take(pc.sort_indices(names))
    rank = np.zeros(len(codes), dtype=np.int64)
    rank[used] = pc.index_in(codes.take(pa.array(used)), names).to_numpy()
    return names, rank[number]


def ordered_rows(
    keys: tuple[Ints, Ints, Ints],
    columns: dict[str, pa.Array],
    row: Ints,
    preferred: tuple[Ints, Bools, Bools],
) -> Ints:
    """(k,) the rows in their order, each of several equal rows once: one sort of packed integers, another for ties.

    Args:
        keys: (n,) ranks of subjects, times in microseconds, ranks of codes.
        columns: (m,) value, text and encounter of the rows that these rows were made of; null comes last.
        row: (n,) which of the m rows each row was made of.
        preferred: (n,) what decides which of equal rows is kept, the lowest, the last column first. The last says whose
            encounter was removed: such a row equals any other that differs from it in the encounter only.
    """
    subject, time_us, code = keys
    is_timed = time_us != NO_TIME
    first = int(time_us[is_timed].min(initial=OPEN))
    since = np.where(is_timed, time_us - first, 0)
    unit = 1 if (since % SECOND_US).any() else SECOND_US
    number = packed([subject, np.where(is_timed, since // unit + 1, 0), code])
    order = np.argsort(number)
    same = number[order][1:] == number[order][:-1]
    tied = np.flatnonzero(np.r_[False, same] | np.r_[same, False])
    ties = order[tied]
    value, text, encounter = (ranks(column.take(row[ties])) for column in columns.values())
    content = packed([number[ties], value, text])
    source, dated, lost = (column[ties] for column in preferred)
    inner = np.lexsort((source, dated, lost, encounter, content))
    order[tied] = ties[inner]
    content, encounter, lost = content[inner], encounter[inner], lost[inner]
    repeats = content[1:] == content[:-1]
    repeats &= (encounter[1:] == encounter[:-1]) | lost[1:]
    return np.delete(order, tied[1:][repeats])


def ranks(column: pa.Array) -> Ints:
    """(n,) the place of each value among the sorted distinct ones, and null last."""
    found = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(found, dtype=np.int64)


def _count_rows(rows: Rows, made: Ints, report: ImportReport) -> None:
    """Count which rows made a row of the output (`made`), and why the others did not."""
    is_used = np.zeros(len(rows.source), dtype=bool)
    is_used[made] = True
    # a person without a birth makes no row, but is in the output
    is_used |= rows.of_role(Role.PERSON) & (rows.time_us == NO_TIME) & (rows.lost == 0)
    report.keep(rows.source[is_used])
    rows.lose("duplicates", ~is_used & (rows.lost == 0))
    for reason, number in FATES.items():
        report.lose(reason, rows.source[rows.lost == number])
