"""The cleaning rules: a reader's rows → MEDS rows. `import_report.RULES` says what each rule does."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.import_report import DEAD, EVERYBODY, FATES, KEPT, ImportReport
from ehrsequencing.readers.rows import (
    NO_TIME,
    UNENDED,
    Left,
    Role,
    encoded,
    end_of_day,
    is_date,
    make_rows,
    ordered_rows,
    places,
    taken,
    used_codes,
)
from ehrsequencing.readers.stays import (
    Rows,
    choose_deaths,
    mark_stays,
    name_parts,
    place_deaths,
    set_known_times,
    visit_spans,
)
from ehrsequencing.records.codes import PROVISIONAL
from ehrsequencing.records.events import (
    DAY_US,
    DEATH,
    SECOND_US,
    within_life,
)

_ENDING = (Role.VISIT, Role.SPAN, Role.OBSERVED)
_MOVED = (Role.EVENT, Role.ISSUED, Role.REPORTED, Role.BEGUN, Role.BILLED, Role.DEATH)


def cleaned(
    table: pa.Table,
    report: ImportReport,
    *,
    open_after_us: int | None = None,
    drawn_us: int | None = None,
) -> pa.Table:
    """Turn the rows of some subjects into MEDS rows.

    Args:
        table: All usable rows of these subjects, in any order, as `conformed` gives them.
        report: Counts each rule, and what became of each row, by its `source`.
        open_after_us: An end after this time means "not ended yet".
        drawn_us: When the source was drawn: no death is later that is known by its year or month only.

    Returns:
        subject_id, time, code (of a dictionary that holds the codes of these rows, sorted), numeric_value, text_value,
        encounter_id, date_only; sorted by subject, time (static rows first), code, value, text and encounter, so that
        the result does not depend on the order of the rows.
    """
    rows = _known_persons(table, report)
    timed = (rows.time_us != NO_TIME) & ~rows.of_role(Role.PERSON, Role.DEATH, Role.OBSERVED)
    report.count_clocks(rows.source[timed], is_date(rows.time_us[timed]))
    # ends and deaths in the far future mean "not ended yet"
    after_us = UNENDED if open_after_us is None else open_after_us
    is_open, is_death = rows.end_us > after_us, rows.of_role(Role.DEATH)
    no_death = is_death & (rows.time_us > after_us)
    rows.count("open_end", np.r_[np.flatnonzero(is_open), np.flatnonzero(no_death)])
    rows.end_us[is_open] = np.where(rows.role[is_open] == Role.OBSERVED, UNENDED, NO_TIME)
    rows.lose("open_end", no_death)
    report.note(EVERYBODY, rows.subject_ids)
    report.note(DEAD, rows.subject_ids[rows.subject[is_death & (rows.lost == 0)]])

    spans = visit_spans(rows)
    outside = set_known_times(rows, spans)
    choose_deaths(rows, UNENDED if drawn_us is None else drawn_us)
    name_parts(rows)
    # dates move to the end of their day, or of their visit if it ends on that day; births stay at midnight
    is_moved = is_date(rows.time_us) & rows.of_role(*_MOVED) & (rows.lost == 0)
    rows.count("date_only", is_moved)
    day, at = rows.time_us[is_moved], rows.visit[is_moved]
    start, end = spans.start_us[at], spans.end_us[at]
    covers = (start < day + DAY_US) & (end >= day)
    rows.time_us[is_moved] = np.where(covers, np.minimum(end_of_day(day), end), end_of_day(day))
    rows.date_only = is_moved | (is_date(rows.time_us) & rows.of_role(Role.PERSON))
    # an id with both sexes is that of two people
    form = rf"^(?:{'|'.join(sorted(report.sexes))})[^/]*//(?P<sex>[fmw12])"
    sex = pc.struct_field(pc.extract_regex(pc.utf8_lower(rows.codes), form), "sex")
    number = np.r_[places(sex.dictionary_encode()), -1][rows.code]
    known = rows.of_role(Role.STATIC) & (number >= 0)
    pairs = np.unique(rows.subject[known] * 5 + number[known])
    report.apply("two_sexes", rows.subject_ids[np.flatnonzero(np.bincount(pairs // 5) > 1)])
    born_us = _keep_earliest(rows, Role.PERSON, "two_births")
    report.apply("no_birth", rows.subject_ids[born_us == NO_TIME])
    died_us = _keep_earliest(rows, Role.DEATH, "two_deaths")
    # ends on a date are at the end of that day; those before their start are none
    end_us = end_of_day(rows.end_us)
    is_backwards = rows.of_role(*_ENDING) & (end_us < rows.time_us) & (end_us != NO_TIME)
    rows.count("end_before_start", is_backwards)
    rows.end_us = np.where(is_backwards, NO_TIME, end_us)
    mark_stays(rows, drawn_us)
    place_deaths(rows, died_us)
    died = died_us[rows.subject]
    is_late = rows.of_role(Role.ISSUED) & (died != NO_TIME) & (rows.time_us > died)
    rows.lose("issued_after_death", is_late & (rows.lost == 0))
    life = born_us[rows.subject], died_us[rows.subject]
    dated = rows.date_only | is_date(rows.time_us)
    rows.time_us = within_life(rows.time_us, dated, *life)
    rows.end_us = within_life(rows.end_us, rows.end_date_only, *life)
    _join_periods(rows)
    return _meds_rows(rows, outside)


def _known_persons(table: pa.Table, report: ImportReport) -> Rows:
    """The rows of persons who have a row with that role, and the deaths that stays end by; others are counted."""
    ended = table.filter(pc.and_(pc.equal(table["left"], Left.DIED), table["end"].is_valid()))
    base = {name: ended[name] for name in ("subject_id", "source", "left")}
    death = pa.array([DEATH] * len(ended), pa.string()).dictionary_encode()
    stated = make_rows(Role.DEATH, base, death, time=ended["end"])
    table = pa.concat_tables([table, stated], promote_options="default")
    is_person = pa.array(table["role"].to_numpy() == Role.PERSON)
    subject_ids = np.sort(pc.unique(table["subject_id"].filter(is_person)).to_numpy())
    place = pc.index_in(table["subject_id"], pa.array(subject_ids))
    report.mark("unknown_person", table["source"].filter(place.is_null()).to_numpy())
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
        report=report,
    )


def _meds_rows(rows: Rows, outside: Bools) -> pa.Table:
    """The rows that are left as MEDS rows, each of several equal ones once; counts what became of every row."""
    report, is_person = rows.report, rows.of_role(Role.PERSON)
    is_static = rows.of_role(Role.STATIC)
    has_start = (rows.time_us != NO_TIME) | is_static
    has_start &= (rows.lost == 0) & ~rows.of_role(Role.NAMED_VISIT)
    # without subjects that have nothing but a birth and static rows, as MEDS readers do
    has_events = np.isin(rows.subject, rows.subject[has_start & ~is_person & ~is_static])
    nobody = np.unique(rows.subject[has_start & ~has_events])
    report.apply("nobody", rows.subject_ids[nobody])
    rows.lose("nobody", ~has_events)

    starts = np.flatnonzero(has_start & has_events)
    ends = np.flatnonzero((rows.lost == 0) & rows.of_role(*_ENDING) & (rows.end_us != NO_TIME))
    none = np.zeros(0, np.int64)
    marked, marked_us, mark = (
        np.concatenate([none, *(one[part] for one in rows.marks)]) for part in range(3)
    )
    row = np.r_[starts, ends, marked]
    time_us = np.r_[rows.time_us[starts], rows.end_us[ends], marked_us]
    date_only = np.r_[rows.date_only[starts], rows.end_date_only[ends], rows.date_only[marked]]
    names, code = used_codes(
        rows.codes, np.r_[rows.code[starts], rows.code[ends] + len(rows.codes), mark]
    )
    columns = {n: rows.table[n].combine_chunks() for n in ("numeric_value", "text_value")}
    encounter = rows.table["encounter_id"].combine_chunks()
    none = pa.scalar(None, encounter.type)
    columns["encounter_id"] = pc.if_else(pa.array(rows.visit >= 0), encounter, none)
    # of equal rows the first stays: one with its encounter, and with a clock, then the smallest source
    preferred = (rows.source[row], date_only, outside[row])
    order = ordered_rows((rows.subject[row], time_us, code), columns, row, preferred)
    report.counts["duplicates"] += len(row) - len(order)
    row, time_us = row[order], time_us[order]
    is_used = np.zeros(len(rows.source), dtype=bool)
    is_used[row] = True
    # a person without a birth makes no row, but is in the output
    is_used |= is_person & (rows.time_us == NO_TIME) & (rows.lost == 0)
    rows.lost[~is_used & (rows.lost == 0)] = FATES["duplicates"]
    rows.lost[is_used] = FATES[KEPT]
    for fate, number in FATES.items():
        report.mark(fate, rows.source[rows.lost == number])
    is_death = np.r_[np.asarray(pc.equal(rows.codes, DEATH)), False][rows.code]
    report.deaths += len(np.unique(rows.subject[row[is_death[row]]]))
    is_unsure = np.r_[np.asarray(pc.ends_with(rows.codes, PROVISIONAL)), False][rows.code]
    report.note("provisional", rows.subject_ids[rows.subject[is_unsure]])
    coded = pa.DictionaryArray.from_arrays(pa.array(code[order].astype(np.int32)), names)
    return pa.table(
        {
            "subject_id": rows.subject_ids[rows.subject[row]],
            "time": pa.array(time_us, mask=time_us == NO_TIME).cast(pa.timestamp("us")),
            "code": coded,
            **{name: taken(column, row) for name, column in columns.items()},
            "date_only": date_only[order].astype(np.int8),  # not every reader of MEDS knows bool
        }
    )


# ---- times -------------------------------------------------------------------------------------


def _keep_earliest(rows: Rows, role: Role, reason: str) -> Ints:
    """Keep of each subject the earliest dated row of a role; (s,) its time, `NO_TIME` without one."""
    dated = np.flatnonzero(rows.of_role(role) & (rows.time_us != NO_TIME) & (rows.lost == 0))
    subject, time_us = rows.subject[dated], rows.time_us[dated]
    earliest = np.full(len(rows.subject_ids), UNENDED)
    np.minimum.at(earliest, subject, time_us)
    apart_us = time_us - earliest[subject]
    rows.lose(reason, dated[apart_us > 0])
    least = {reason: 0, "births_apart": 366 * DAY_US} if role is Role.PERSON else {reason: 0}
    for rule, apart in least.items():
        rows.report.apply(rule, rows.subject_ids[np.unique(subject[apart_us > apart])])
    return np.where(earliest == UNENDED, NO_TIME, earliest)


def _join_periods(rows: Rows) -> None:
    """Join the observation periods of a person that overlap or touch (less than a day apart).

    A period without a valid end lasts for a day; one that has not ended has only a start.
    """
    no_end = rows.of_role(Role.OBSERVED) & (rows.end_us == NO_TIME)
    rows.end_us[no_end] = end_of_day(rows.time_us[no_end])
    rows.end_date_only[no_end] = is_date(rows.time_us[no_end])
    order = np.flatnonzero(rows.of_role(Role.OBSERVED))
    order = order[np.lexsort((rows.end_us[order], rows.time_us[order], rows.subject[order]))]
    joined = list[int]()
    first = -1  # the row of the period that the next may touch
    for row in order.tolist():
        is_same = first >= 0 and rows.subject[first] == rows.subject[row]
        if not is_same or rows.time_us[row] > rows.end_us[first] + SECOND_US:
            first = row
            continue
        joined.append(row)
        if rows.end_us[row] > rows.end_us[first]:
            rows.end_us[first] = rows.end_us[row]
            rows.end_date_only[first] = rows.end_date_only[row]
    rows.lose("overlapping_periods", np.array(joined, np.int64))
    rows.count("overlapping_periods", np.array(joined, np.int64))
    rows.end_us[rows.end_us >= UNENDED] = NO_TIME
