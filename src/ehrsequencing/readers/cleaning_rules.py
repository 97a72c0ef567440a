"""The cleaning rules: a reader's rows → MEDS rows. `import_report.RULES` says what each rule does."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.import_report import ImportReport, RowCounts, RuleCounts
from ehrsequencing.readers.row_order import Keys, ordered_rows
from ehrsequencing.readers.rows import (
    NO_TIME,
    OPEN,
    PlainRows,
    Role,
    among_roles,
    clean_codes,
    encoded,
    end_of_day,
    is_date,
    micros,
)
from ehrsequencing.readers.visit_spans import (
    VISITS,
    VisitSpans,
    known_times,
    rows_outside,
    visit_spans,
)
from ehrsequencing.records.events import BIRTH, DAY_US, SECOND_US

PERIOD_START, PERIOD_END = "OBSERVATION_PERIOD_START", "OBSERVATION_PERIOD_END"
END_SUFFIX = "//END"  # the end of a visit or stay has the code of its start with this suffix
_SPANS = (Role.VISIT, Role.SPAN)


def usable_rows(rows: pa.Table, schema: pa.Schema, report: ImportReport) -> tuple[pa.Table, Bools]:
    """Which rows have a subject and, where their role needs them, a code and a time; the others are counted.

    Args:
        rows: Rows of a reader; an absent column of the schema is null. Codes may be of a dictionary.
        schema: `rows_schema` of the reader.
        report: Where dropped rows are counted.

    Returns:
        All rows with all columns of the schema, their codes clean and of a dictionary, and (n,) which are usable.
    """
    n, columns = len(rows), []
    for field in schema:
        column = pa.chunked_array([pa.nulls(n, field.type)])
        if field.name in rows.column_names:
            column = rows[field.name]
        columns.append(column if field.name == "code" else column.cast(field.type, safe=False))
    rows = pa.table(columns, names=schema.names)
    code = encoded(rows["code"])
    clean = clean_codes(code.dictionary)
    number = pc.fill_null(code.indices, -1).to_numpy(zero_copy_only=False)
    # the last is for a code of null: number -1
    fixed = np.r_[np.asarray(pc.not_equal(clean, code.dictionary)), False]
    blank = np.r_[np.asarray(pc.equal(clean, "")), True]
    report.counts["fixed_code"] += int(fixed[number].sum()) if fixed.any() else 0
    coded = pa.DictionaryArray.from_arrays(code.indices, clean)
    rows = rows.set_column(schema.get_field_index("code"), "code", coded)
    role, source = rows["role"].to_numpy(), rows["source"].to_numpy()
    undated = among_roles(role, Role.PERSON, Role.STATIC, Role.NAMED_VISIT)
    undated |= (role == Role.REPORTED) & ~_nulls(rows["encounter_id"])
    uncoded = among_roles(role, Role.OBSERVED, Role.PERSON, Role.NAMED_VISIT)
    left, gone = np.ones(n, dtype=bool), dict[str, Bools]()
    for reason, bad in (
        ("no_person", _nulls(rows["subject_id"])),
        ("no_code", blank[number] & ~uncoded),
        ("no_time", _nulls(rows["time"]) & ~undated),
    ):
        gone[reason] = left & bad
        left &= ~bad
        report.counts[reason] += int(gone[reason].sum())
    for reason, lost in gone.items():  # a row of the source that left another row is not dropped
        report.row_counts.drop(reason, np.setdiff1d(source[lost], source[left]))
    return rows, left


def _nulls(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.is_null()) if column.null_count else np.zeros(len(column), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Made:
    """Rows of the output: which row each was made of, its time, and its code."""

    row: Ints
    time_us: Ints
    code: Ints  # of n codes of the table; n and n + 1 are the start and end of a period; n + 2 + c is the end of code c
    date_only: Bools  # the source gave a date, and no time of day


def clean_rows(
    rows: pa.Table,
    counts: RuleCounts,
    row_counts: RowCounts | None = None,
    *,
    open_after_us: int | None = None,
) -> pa.Table:
    """As `cleaned`, with codes as text."""
    made = cleaned(rows, counts, row_counts, open_after_us=open_after_us)
    return made.set_column(2, "code", made["code"].cast(pa.string()))


def cleaned(
    rows: pa.Table,
    counts: RuleCounts,
    row_counts: RowCounts | None = None,
    *,
    open_after_us: int | None = None,
) -> pa.Table:
    """Turn the rows of some subjects into MEDS rows.

    Args:
        rows: All rows of these subjects, in any order, with the columns of `rows_schema`; codes may be of a dictionary.
            Rows that need a time have one, all have a subject, and all but `OBSERVED`, `PERSON` and `NAMED_VISIT`
            have a code.
        counts: Where the use of each rule is counted.
        row_counts: Where each row, by its `source`, is counted as kept or dropped.
        open_after_us: An end after this time means "not ended yet".

    Returns:
        subject_id, time, code (of a dictionary that holds the codes of these rows, sorted), numeric_value, text_value,
        encounter_id, date_only; sorted by subject, time (static rows first), code, value, text and encounter, so that
        the result does not depend on the order of the rows.
    """
    known = _without_open_ends(_known_persons(rows, counts), counts, open_after_us)
    visit = _visit_of(known, counts)
    spans = visit_spans(known, visit)
    known = replace(known, time_us=known_times(known, visit, spans, counts))
    outside = rows_outside(known, visit, spans, counts)
    visit = np.where(outside, -1, visit)
    texts = encoded(known.table["code"]).dictionary
    parts = [make(known, counts, len(texts)) for make in (_births, _deaths, _periods)]
    made = _joined([*parts, _events(known, visit, spans, counts, len(texts))])
    made = _without_nobody(known, made, counts, is_birth=pc.equal(texts, BIRTH))
    names, code = _used_codes(texts, made.code)
    encounter = known.table["encounter_id"].combine_chunks()
    encounter = pc.if_else(pa.array(visit >= 0), encounter, pa.scalar(None, encounter.type))
    value, text = (known.table[name].combine_chunks() for name in ("numeric_value", "text_value"))
    order = ordered_rows(
        Keys(
            subject=known.subject[made.row],
            time_us=made.time_us,
            code=code,
            value=value,
            text=text,
            encounter=encounter,
            lost=outside,
            source=known.source,
            row=made.row,
            date_only=made.date_only,
        )
    )
    counts["duplicates"] += len(made.row) - len(order)
    row, time_us = made.row[order], made.time_us[order]
    if row_counts is not None:
        _count_rows(rows, known, row, row_counts)
    coded = pa.DictionaryArray.from_arrays(pa.array(code[order].astype(np.int32)), names)
    return pa.table(
        {
            "subject_id": known.subject_ids[known.subject[row]],
            "time": pa.array(time_us, mask=time_us == NO_TIME).cast(pa.timestamp("us")),
            "code": coded,
            "numeric_value": taken(value, row),
            "text_value": taken(text, row),
            "encounter_id": taken(encounter, row),
            "date_only": made.date_only[order],
        }
    )


def taken(column: pa.Array, row: Ints) -> pa.Array:
    """Some rows of a column, in the order given; quick for one without any value."""
    if column.null_count == len(column):
        return pa.nulls(len(row), column.type)
    return column.take(pa.array(row))


def _used_codes(texts: pa.Array, number: Ints) -> tuple[pa.Array, Ints]:
    """The sorted distinct codes that are used, and (n,) the place of each row's code among them."""
    periods = pa.array([PERIOD_START, PERIOD_END])
    ends = pc.binary_join_element_wise(texts, pa.scalar(END_SUFFIX), "")
    codes = pa.concat_arrays([texts, periods, ends])
    used = np.flatnonzero(np.bincount(number, minlength=len(codes)))
    names = pc.unique(codes.take(pa.array(used)))
    names = names.take(pc.sort_indices(names))
    rank = np.zeros(len(codes), dtype=np.int64)
    rank[used] = pc.index_in(codes.take(pa.array(used)), names).to_numpy()
    return names, rank[number]


def _count_rows(given: pa.Table, known: PlainRows, made: Ints, row_counts: RowCounts) -> None:
    """Count which rows made a row of the output (`made`: their places), and why the others did not."""
    used = np.zeros(len(known.source), dtype=bool)
    used[made] = True
    present = np.zeros(len(known.subject_ids), dtype=bool)
    present[known.subject[made]] = True
    undated = known.time_us == NO_TIME
    # a person without a birth makes no row, but is in the output
    used |= known.of_role(Role.PERSON) & undated & present[known.subject]
    row_counts.keep(known.source[used])
    if len(known.source) < len(given):
        unknown = np.setdiff1d(given["source"].to_numpy(), known.source)
        row_counts.drop("unknown_person", unknown)
    left = np.flatnonzero(~used)
    source, role, undated = known.source[left], known.role[left], undated[left]
    untold = np.ones(len(left), dtype=bool)
    for reason, chosen in {
        "no_time": (role == Role.REPORTED) & undated,
        "nobody": ~present[known.subject[left]],
        "open_end": (role == Role.DEATH) & undated,
        "two_births": role == Role.PERSON,
        "two_deaths": role == Role.DEATH,
        "overlapping_periods": role == Role.OBSERVED,
        "duplicates": untold,
    }.items():
        row_counts.drop(reason, source[untold & chosen])
        untold = untold & ~chosen


def _known_persons(rows: pa.Table, counts: RuleCounts) -> PlainRows:
    """The rows of persons who have a row with that role."""
    role = rows["role"].to_numpy()
    ids = np.unique(rows["subject_id"].to_numpy()[role == Role.PERSON])
    place = pc.index_in(rows["subject_id"], pa.array(ids))
    counts["unknown_person"] += place.null_count
    if place.null_count:
        rows, place = rows.filter(place.is_valid()), place.drop_null()
    return PlainRows(
        table=rows,
        subject_ids=ids,
        subject=place.to_numpy().astype(np.int64),
        role=rows["role"].to_numpy(),
        time_us=micros(rows["time"]),
        end_us=micros(rows["end"]),
        code=_codes(rows),
        source=rows["source"].to_numpy(),
    )


def _codes(rows: pa.Table) -> Ints:
    number = pc.fill_null(encoded(rows["code"]).indices, -1)
    return np.asarray(number.to_numpy(zero_copy_only=False), dtype=np.int64)


def _without_open_ends(rows: PlainRows, counts: RuleCounts, open_after_us: int | None) -> PlainRows:
    """Remove ends and deaths after `open_after_us`, which mean "not ended yet"."""
    after_us = OPEN if open_after_us is None else open_after_us
    is_open = rows.end_us > after_us
    no_death = rows.of_role(Role.DEATH) & (rows.time_us > after_us)
    counts["open_end"] += int(is_open.sum() + no_death.sum())
    no_end = np.where(rows.of_role(Role.OBSERVED), OPEN, NO_TIME)
    time_us = np.where(no_death, NO_TIME, rows.time_us)
    return replace(rows, time_us=time_us, end_us=np.where(is_open, no_end, rows.end_us))


def _joined(parts: list[_Made]) -> _Made:
    names = ("row", "time_us", "code", "date_only")
    return _Made(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _earliest(subject: Ints, time_us: Ints) -> tuple[Ints, int]:
    """Of each subject the row with the earliest time, and how many subjects had several different times."""
    order = np.lexsort((time_us, subject))
    subject, time_us = subject[order], time_us[order]
    _, first, rows = np.unique(subject, return_index=True, return_counts=True)
    latest = time_us[first + rows - 1] if len(first) else time_us
    return order[first], int((latest != time_us[first]).sum())


def _births(rows: PlainRows, counts: RuleCounts, n_codes: int) -> _Made:
    dated = np.flatnonzero(rows.of_role(Role.PERSON) & (rows.time_us != NO_TIME))
    first, several = _earliest(rows.subject[dated], rows.time_us[dated])
    counts["two_births"] += several
    counts["no_birth"] += len(rows.subject_ids) - len(first)
    born = dated[first]
    return _Made(born, rows.time_us[born], rows.code[born], is_date(rows.time_us[born]))


def _deaths(rows: PlainRows, counts: RuleCounts, n_codes: int) -> _Made:
    deaths = np.flatnonzero(rows.of_role(Role.DEATH) & (rows.time_us != NO_TIME))
    time_us, dated = end_of_day(rows.time_us[deaths]), is_date(rows.time_us[deaths])
    first, several = _earliest(rows.subject[deaths], time_us)
    counts["two_deaths"] += several
    counts["date_only"] += int(dated.sum())
    return _Made(deaths[first], time_us[first], rows.code[deaths[first]], dated[first])


def _periods(rows: PlainRows, counts: RuleCounts, n_codes: int) -> _Made:
    """Start and end of each observation period; periods that overlap or touch (less than a day apart) become one.

    A period that has not ended has only a start.
    """
    periods = np.flatnonzero(rows.of_role(Role.OBSERVED))
    start, end = rows.time_us[periods], rows.end_us[periods]
    backwards = (end != NO_TIME) & (end_of_day(end) < start)
    counts["end_before_start"] += int(backwards.sum())
    end = np.where(backwards | (end == NO_TIME), start, end)
    order = np.lexsort((end, start, rows.subject[periods]))
    periods, start, end = periods[order], start[order], end_of_day(end)[order]
    subject, opens, reach = rows.subject[periods], np.ones(len(order), dtype=bool), 0
    for row in range(len(order)):  # reach: the latest end so far, which need not be the neighbour's
        if row and subject[row] == subject[row - 1]:
            opens[row] = start[row] > reach + SECOND_US
            reach = max(reach, end[row])
        else:
            reach = end[row]
        end[row] = reach
    counts["overlapping_periods"] += int((~opens).sum())
    first, last = np.flatnonzero(opens), np.flatnonzero(np.roll(opens, -1))
    ended = end[last] < OPEN
    last = last[ended]
    made = periods[np.r_[first, first[ended]]]
    code = np.repeat([n_codes, n_codes + 1], [len(first), len(last)])
    dated = np.r_[np.zeros(len(first), bool), is_date(rows.end_us[periods[last]])]
    return _Made(made, np.r_[start[first], end[last]], code, dated)


def _events(
    rows: PlainRows, visit: Ints, spans: VisitSpans, counts: RuleCounts, n_codes: int
) -> _Made:
    """Events, static rows, and the starts and ends of visits and other spans."""
    is_known = rows.of_role(Role.REPORTED) & (rows.time_us != NO_TIME)
    every = np.flatnonzero(rows.of_role(Role.EVENT, Role.STATIC, *_SPANS) | is_known)
    role, visit = rows.role[every], visit[every]
    span = among_roles(role, *_SPANS)
    time_us = np.where(role == Role.STATIC, NO_TIME, rows.time_us[every])
    dated = is_date(time_us) & ~span
    counts["date_only"] += int(dated.sum())
    loose = np.flatnonzero(dated & (visit >= 0))
    at, bare = visit[loose], time_us[loose]
    time_us[dated] = end_of_day(time_us[dated])
    covers = (spans.start_us[at] < bare + DAY_US) & (spans.end_us[at] >= bare)
    inside = loose[covers]
    time_us[inside] = np.minimum(time_us[inside], spans.end_us[at[covers]])
    stays = np.flatnonzero(span)
    end_us = end_of_day(rows.end_us[every[stays]])
    backwards = (end_us != NO_TIME) & (end_us < time_us[stays])
    counts["end_before_start"] += int(backwards.sum())
    ended = (end_us != NO_TIME) & ~backwards
    ends = every[stays[ended]]
    end_code = n_codes + 2 + rows.code[ends]
    stopped = _Made(ends, end_us[ended], end_code, is_date(rows.end_us[ends]))
    return _joined([_Made(every, time_us, rows.code[every], dated), stopped])


def _visit_of(rows: PlainRows, counts: RuleCounts) -> Ints:
    """(n,) number of each row's visit, -1 without an `encounter_id`, or where that person has no such visit.

    Births, deaths and observation periods belong to no visit, so that rows which differ in it only are equal. Two
    persons may use the same `encounter_id`.
    """
    name = pc.fill_null(encoded(rows.table["encounter_id"]).indices, -1)
    number = name.to_numpy(zero_copy_only=False).astype(np.int64)
    number[rows.of_role(Role.PERSON, Role.DEATH, Role.OBSERVED)] = -1
    key = np.where(number < 0, -1, rows.subject + number * len(rows.subject_ids))
    visits = np.unique(key[rows.of_role(*VISITS) & (number >= 0)])
    found = pc.fill_null(pc.index_in(pa.array(key), pa.array(visits)), -1).to_numpy()
    counts["dangling_encounter"] += int(((number >= 0) & (found < 0)).sum())
    return np.asarray(found, dtype=np.int64)


def _without_nobody(
    rows: PlainRows, made: _Made, counts: RuleCounts, *, is_birth: pa.Array
) -> _Made:
    """Drop subjects with nothing but a birth and static rows, as MEDS readers do."""
    births = np.flatnonzero(np.asarray(is_birth))
    subject = rows.subject[made.row]
    timed, met = (np.zeros(len(rows.subject_ids), dtype=bool) for _ in range(2))
    timed[subject[(made.time_us != NO_TIME) & ~np.isin(made.code, births)]] = True
    met[subject] = True
    counts["nobody"] += int((met & ~timed).sum())
    keep = np.flatnonzero(timed[subject])
    return _Made(made.row[keep], made.time_us[keep], made.code[keep], made.date_only[keep])
