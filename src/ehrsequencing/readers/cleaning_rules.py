"""The cleaning rules: a reader's rows → MEDS rows. `import_report.RULES` says what each rule does."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.import_report import ImportReport, RowCounts, RuleCounts, among, distinct
from ehrsequencing.readers.moments import NO_TIME, OPEN, end_of_day, micros
from ehrsequencing.readers.row_order import Keys, ordered_rows
from ehrsequencing.readers.rows import Role, clean_codes, encoded
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
    given, counts = set(rows.column_names), report.counts
    code = (
        encoded(rows["code"])
        if "code" in given
        else encoded(pa.chunked_array([pa.nulls(len(rows), pa.string())]))
    )
    number = pc.fill_null(code.indices, -1).to_numpy(zero_copy_only=False)
    clean = clean_codes(code.dictionary)
    # the last is for a code of null: number -1
    fixed = np.r_[np.asarray(pc.not_equal(clean, code.dictionary)), False]
    blank = np.r_[np.asarray(pc.equal(clean, "")), True]
    counts["fixed_code"] += int(fixed[number].sum()) if fixed.any() else 0
    columns = [
        pa.DictionaryArray.from_arrays(code.indices, clean)
        if field.name == "code"
        else rows[field.name].cast(field.type, safe=False)
        if field.name in given
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    rows = pa.table(columns, names=schema.names)
    needs_code = ~role_mask(rows, Role.OBSERVED, Role.PERSON, Role.NAMED_VISIT)
    needs_time = ~role_mask(rows, Role.PERSON, Role.STATIC, Role.NAMED_VISIT)
    needs_time &= ~role_mask(rows, Role.REPORTED) | _nulls(rows["encounter_id"])
    left, source = np.ones(len(rows), dtype=bool), rows["source"].to_numpy()
    for name, bad in (
        ("no_person", _nulls(rows["subject_id"])),
        ("no_code", blank[number] & needs_code),
        ("no_time", _nulls(rows["time"]) & needs_time),
    ):
        lost = left & bad
        counts[name] += int(lost.sum())
        left &= ~bad
        if lost.any():  # a source row that made several rows is lost when all of them are
            report.row_counts.drop(name, source[lost & ~among(source, distinct(source[left]))])
    return rows, left


def _nulls(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.is_null()) if column.null_count else np.zeros(len(column), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of known persons, as plain columns."""

    table: pa.Table
    subject_ids: Ints  # (s,) sorted, by group first where there are groups
    subject: Ints  # (n,) place among `subject_ids`
    role: Ints  # (n,)
    time_us: Ints  # (n,) `NO_TIME` for null
    end_us: Ints  # (n,)
    code: Ints  # (n,) place among `codes`, -1 for null
    codes: pa.Array  # those of the rows, then of the periods' starts and ends, and of the ends of visits and stays
    period: tuple[int, int]  # places of the codes of the periods' starts and ends
    end_code: Ints  # place of a visit's code → place of its end's code
    source: Ints  # (n,)

    def of_role(self, *roles: Role) -> Bools:
        """(n,) which rows have one of these roles."""
        return _among_roles(self.role, roles)

    def column(self, name: str) -> pa.Array:
        """(n,) a column of the table."""
        return self.table[name].combine_chunks()


@dataclass(frozen=True, eq=False)
class _Made:
    """Rows of the output: which row each was made of, its time, and its code."""

    row: Ints
    time_us: Ints
    code: Ints
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
    group: Callable[[Ints], Ints] | None = None,
) -> pa.Table:
    """Turn the rows of some subjects into MEDS rows.

    Args:
        rows: All rows of these subjects, in any order, with the columns of `rows_schema`; codes may be of a dictionary.
            Rows that need a time have one, all have a subject, and all but `OBSERVED`, `PERSON` and `NAMED_VISIT`
            have a code.
        counts: Where the use of each rule is counted.
        row_counts: Where each row, by its `source`, is counted as kept or dropped.
        open_after_us: An end after this time means "not ended yet".
        group: Of subject ids the number of their group; subjects are then sorted by group first.

    Returns:
        subject_id, time, code (of a dictionary that holds the codes of these rows, sorted), numeric_value, text_value,
        encounter_id, date_only; sorted by subject, time (static rows first), code, value, text and encounter, so that
        the result does not depend on the order of the rows.
    """
    known = _without_open_ends(_plain(_known_persons(rows, counts, group)), counts, open_after_us)
    visit = _visit_of(known, counts)
    spans = visit_spans(known, visit)
    known = replace(known, time_us=known_times(known, visit, spans, counts))
    outside = rows_outside(known, visit, spans, counts)
    visit = np.where(outside, -1, visit)
    made = _joined(
        [make(known, counts) for make in (_births, _deaths, _periods)]
        + [_events(known, visit, spans, counts)]
    )
    made = _without_nobody(known, made, counts)
    encounter = known.column("encounter_id")
    encounter = pc.if_else(pa.array(visit >= 0), encounter, pa.scalar(None, encounter.type))
    names, code_rank = _used_codes(known.codes, made.code)
    value, text = known.column("numeric_value"), known.column("text_value")
    order = ordered_rows(
        Keys(
            known.subject[made.row],
            made.time_us,
            code_rank,
            value,
            text,
            encounter,
            outside,
            known.source,
            made.row,
        )
    )
    counts["duplicates"] += len(made.row) - len(order)
    row = made.row[order]
    if row_counts is not None:
        _count_rows(rows, known, row, row_counts)
    return pa.table(
        {
            "subject_id": known.subject_ids[known.subject[row]],
            "time": _timestamps(made.time_us[order]),
            "code": pa.DictionaryArray.from_arrays(
                pa.array(code_rank[order].astype(np.int32)), names
            ),
            "numeric_value": taken(value, row),
            "text_value": taken(text, row),
            "encounter_id": taken(encounter, row),
            "date_only": made.date_only[order],
        }
    )


def taken(column: pa.Array, row: Ints) -> pa.Array:
    """Some rows of a column, in the order given; quick for one without any value."""
    return (
        pa.nulls(len(row), column.type)
        if column.null_count == len(column)
        else column.take(pa.array(row))
    )


def _used_codes(codes: pa.Array, number: Ints) -> tuple[pa.Array, Ints]:
    """The sorted distinct codes that are used, and (n,) the place of each row's code among them."""
    used = np.flatnonzero(np.bincount(number, minlength=len(codes)))
    texts = codes.take(pa.array(used))
    names = pc.unique(texts)
    names = names.take(pc.sort_indices(names))
    rank = np.zeros(len(codes), dtype=np.int64)
    rank[used] = pc.index_in(texts, names).to_numpy()
    return names, rank[number]


def _count_rows(given: pa.Table, known: _Rows, made: Ints, row_counts: RowCounts) -> None:
    """Count which rows made a row of the output (`made`: their places), and why the others did not."""
    used = np.zeros(len(known.source), dtype=bool)
    used[made] = True
    kept = distinct(known.source[used])
    if len(known.source) < len(given):
        lost = given["source"].to_numpy()
        row_counts.drop("unknown_person", lost[~among(lost, distinct(known.source))])
    left = np.flatnonzero(~used)
    left = left[~among(known.source[left], kept)]
    source, role = known.source[left], known.role[left]
    present = np.zeros(len(known.subject_ids), dtype=bool)
    present[known.subject[made]] = True
    person = role == Role.PERSON
    reasons = {
        "no_time": (role == Role.REPORTED) & (known.time_us[left] == NO_TIME),
        "nobody": ~present[known.subject[left]],
        "kept": person
        & (known.time_us[left] == NO_TIME),  # no row, but the subject is in the output
        "open_end": (role == Role.DEATH) & (known.time_us[left] == NO_TIME),
        "two_births": person,
        "two_deaths": role == Role.DEATH,
        "overlapping_periods": role == Role.OBSERVED,
        "duplicates": np.ones(len(left), dtype=bool),
    }
    counted = np.zeros(len(left), dtype=bool)
    for reason, mask in reasons.items():
        sources = distinct(source[mask & ~counted])
        counted |= among(source, sources)
        if reason == "kept":
            row_counts.keep(sources)
        else:
            row_counts.drop(reason, sources)
    row_counts.keep(kept)


def _known_persons(
    rows: pa.Table, counts: RuleCounts, group: Callable[[Ints], Ints] | None
) -> tuple[pa.Table, Ints, Ints]:
    """The rows of persons who have a row with that role, their sorted ids, and (n,) each row's place among these."""
    subjects = encoded(rows["subject_id"])
    ids, number = subjects.dictionary.to_numpy(), subjects.indices.to_numpy()
    is_known = np.zeros(len(ids), dtype=bool)
    is_known[number[role_mask(rows, Role.PERSON)]] = True
    counts["negative_ids"] += int((ids[is_known] < 0).sum())
    if not is_known.all():
        known = is_known[number]
        counts["unknown_person"] += int((~known).sum())
        rows, number = rows.filter(pa.array(known)), number[known]
    order = np.lexsort((ids[is_known], *([] if group is None else [group(ids[is_known])])))
    rank = np.zeros(len(ids), dtype=np.int64)
    rank[np.flatnonzero(is_known)[order]] = np.arange(len(order))
    return rows, ids[is_known][order], rank[number]


def _plain(known: tuple[pa.Table, Ints, Ints]) -> _Rows:
    table, subject_ids, subject = known
    code, role = encoded(table["code"]), table["role"].to_numpy()
    number = pc.fill_null(code.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    n = len(code.dictionary)
    ending = np.unique(number[_among_roles(role, _SPANS)])
    ends = pc.binary_join_element_wise(
        code.dictionary.take(pa.array(ending)), pa.scalar(END_SUFFIX, pa.string()), ""
    )
    codes = pa.concat_arrays([code.dictionary, pa.array([PERIOD_START, PERIOD_END]), ends])
    end_code = np.zeros(n, dtype=np.int64)
    end_code[ending] = n + 2 + np.arange(len(ending))
    time_us, end_us, source = (
        micros(table["time"]),
        micros(table["end"]),
        table["source"].to_numpy(),
    )
    return _Rows(
        table,
        subject_ids,
        subject,
        role,
        time_us,
        end_us,
        number,
        codes,
        (n, n + 1),
        end_code,
        source,
    )


def _without_open_ends(rows: _Rows, counts: RuleCounts, open_after_us: int | None) -> _Rows:
    """Remove ends and deaths after `open_after_us`, which mean "not ended yet"."""
    after_us = OPEN if open_after_us is None else open_after_us
    is_open = rows.end_us > after_us
    no_death = rows.of_role(Role.DEATH) & (rows.time_us > after_us)
    counts["open_end"] += int(is_open.sum() + no_death.sum())
    no_end = np.where(rows.of_role(Role.OBSERVED), OPEN, NO_TIME)
    return replace(
        rows,
        time_us=np.where(no_death, NO_TIME, rows.time_us),
        end_us=np.where(is_open, no_end, rows.end_us),
    )


def role_mask(rows: pa.Table, *roles: Role) -> Bools:
    """(n,) which rows have one of these roles."""
    return _among_roles(rows["role"].to_numpy(), roles)


def _among_roles(role: Ints, roles: tuple[Role, ...]) -> Bools:
    found: Bools = role == roles[0]
    for one in roles[1:]:
        found |= role == one
    return found


def _timestamps(us: Ints) -> pa.Array:
    return pa.array(us, mask=us == NO_TIME).cast(pa.timestamp("us"))


def _joined(parts: list[_Made]) -> _Made:
    return _Made(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("row", "time_us", "code", "date_only")
        )
    )


def _earliest(subject: Ints, time_us: Ints) -> tuple[Ints, int]:
    """Of each subject the row with the earliest time, and how many subjects had several different times."""
    order = np.lexsort((time_us, subject))
    subject, time_us = subject[order], time_us[order]
    first = np.r_[True, subject[1:] != subject[:-1]] if len(subject) else np.zeros(0, bool)
    differs = ~first
    differs[1:] &= time_us[1:] != time_us[:-1]
    return order[first], len(np.unique(subject[differs]))


def _births(rows: _Rows, counts: RuleCounts) -> _Made:
    persons = rows.of_role(Role.PERSON)
    dated = np.flatnonzero(persons & (rows.time_us != NO_TIME))
    first, several = _earliest(rows.subject[dated], rows.time_us[dated])
    counts["two_births"] += several
    counts["no_birth"] += len(np.unique(rows.subject[persons])) - len(first)
    born = dated[first]
    return _Made(born, rows.time_us[born], rows.code[born], _is_date(rows.time_us[born]))


def _deaths(rows: _Rows, counts: RuleCounts) -> _Made:
    deaths = np.flatnonzero(rows.of_role(Role.DEATH) & (rows.time_us != NO_TIME))
    time_us = end_of_day(rows.time_us[deaths], counts)
    first, several = _earliest(rows.subject[deaths], time_us)
    counts["two_deaths"] += several
    died = deaths[first]
    return _Made(died, time_us[first], rows.code[died], _is_date(rows.time_us[died]))


def _periods(rows: _Rows, counts: RuleCounts) -> _Made:
    """Start and end of each observation period; periods that overlap or touch (less than a day apart) become one.

    A period that has not ended has only a start.
    """
    periods = np.flatnonzero(rows.of_role(Role.OBSERVED))
    start, end = rows.time_us[periods], rows.end_us[periods]
    backwards = (end != NO_TIME) & (end_of_day(end) < start)
    counts["end_before_start"] += int(backwards.sum())
    end = np.where(backwards | (end == NO_TIME), start, end)
    subject = rows.subject[periods]
    order = np.lexsort((end, start, subject))
    subject, start, end = subject[order], start[order], end_of_day(end)[order]
    opens = np.ones(len(start), dtype=bool)
    reach = 0
    for row in range(len(start)):  # reach: the latest end so far, which need not be the neighbour's
        if row and subject[row] == subject[row - 1]:
            opens[row] = start[row] > reach + SECOND_US
            reach = max(reach, end[row])
        else:
            reach = end[row]
        end[row] = reach
    counts["overlapping_periods"] += int((~opens).sum())
    closes = np.r_[opens[1:], True] if len(opens) else opens
    ended = end[closes] < OPEN
    code = np.repeat(rows.period, [opens.sum(), ended.sum()])
    chosen = periods[np.r_[order[opens], order[opens][ended]]]
    dated = np.r_[np.zeros(opens.sum(), bool), _is_date(rows.end_us[periods][order][closes][ended])]
    return _Made(chosen, np.r_[start[opens], end[closes][ended]], code, dated)


def _events(rows: _Rows, visit: Ints, spans: VisitSpans, counts: RuleCounts) -> _Made:
    """Events, static rows, and the starts and ends of visits and other spans."""
    every = np.flatnonzero(
        rows.of_role(Role.EVENT, Role.STATIC, *_SPANS)
        | (rows.of_role(Role.REPORTED) & (rows.time_us != NO_TIME))
    )
    role, visit = rows.role[every], visit[every]
    span = _among_roles(role, _SPANS)
    time_us = np.where(role == Role.STATIC, NO_TIME, rows.time_us[every])
    midnight = _is_date(time_us) & ~span
    loose = np.flatnonzero(midnight)
    counts["date_only"] += len(loose)
    moved = end_of_day(time_us[loose])
    inside = visit[loose] >= 0
    at, bare = visit[loose][inside], time_us[loose][inside]
    covers = (spans.start_us[at] < bare + DAY_US) & (spans.end_us[at] >= bare)
    moved[inside] = np.where(covers, np.minimum(moved[inside], spans.end_us[at]), moved[inside])
    time_us[loose] = moved
    stays = np.flatnonzero(span)
    end_us = end_of_day(rows.end_us[every[stays]])
    backwards = (end_us != NO_TIME) & (end_us < time_us[stays])
    counts["end_before_start"] += int(backwards.sum())
    ended = (end_us != NO_TIME) & ~backwards
    starts, ends = _Made(every, time_us, rows.code[every], midnight), every[stays[ended]]
    dated = _is_date(rows.end_us[ends])
    return _joined([starts, _Made(ends, end_us[ended], rows.end_code[rows.code[ends]], dated)])


def _is_date(time_us: Ints) -> Bools:
    """(n,) whether a time is a date without a time of day."""
    return np.asarray((time_us % DAY_US == 0) & (time_us != NO_TIME))


def _visit_of(rows: _Rows, counts: RuleCounts) -> Ints:
    """(n,) number of each row's visit, -1 without an `encounter_id`, or where that person has no such visit.

    Births, deaths and observation periods belong to no visit, so that rows which differ in it only are equal. Two
    persons may use the same `encounter_id`.
    """
    outside = rows.of_role(Role.PERSON, Role.DEATH, Role.OBSERVED)
    name = encoded(rows.table["encounter_id"])
    number = pc.fill_null(name.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    number[outside] = -1
    is_visit = rows.of_role(*VISITS) & (number >= 0)
    width = len(name.dictionary) + 1
    visits = np.unique(rows.subject[is_visit] + number[is_visit] * len(rows.subject_ids))
    if not len(visits):
        found = np.full(len(number), -1)
    else:
        owners = len(rows.subject_ids)
        # the visits of each name stand together
        first = np.searchsorted(visits, np.arange(width) * owners)
        at = np.minimum(first[number], len(visits) - 1)
        key = rows.subject + number * owners
        several = (np.diff(first) > 1)[number]
        if several.any():
            at[several] = np.minimum(np.searchsorted(visits, key[several]), len(visits) - 1)
        found = np.where((number >= 0) & (visits[at] == key), at, -1)
    counts["dangling_encounter"] += int(((number >= 0) & (found < 0)).sum())
    return found


def _without_nobody(rows: _Rows, made: _Made, counts: RuleCounts) -> _Made:
    """Drop subjects with nothing but a birth and static rows, as MEDS readers do."""
    subject = rows.subject[made.row]
    is_birth = np.asarray(pc.equal(rows.codes, BIRTH))
    timed, met = (np.zeros(len(rows.subject_ids), dtype=bool) for _ in range(2))
    timed[subject[(made.time_us != NO_TIME) & ~is_birth[made.code]]] = True
    met[subject] = True
    counts["nobody"] += int((met & ~timed).sum())
    if timed[met].all():
        return made
    keep = timed[subject]
    return _Made(made.row[keep], made.time_us[keep], made.code[keep], made.date_only[keep])
