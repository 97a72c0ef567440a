"""The cleaning rules: a reader's rows → MEDS rows. `import_report.RULES` says what each rule does."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.import_report import FATES, ImportReport, RuleCounts
from ehrsequencing.readers.rows import (
    NO_TIME,
    OPEN,
    PART_SUFFIX,
    Role,
    VisitSpans,
    day_of,
    encoded,
    end_of_day,
    is_date,
    make_rows,
    ordered_rows,
    places,
    taken,
    used_codes,
)
from ehrsequencing.records.events import DAY_US, DEATH, SECOND_US, within_life

VISITS = (Role.VISIT, Role.NAMED_VISIT)
_AT_START = (Role.EVENT, Role.REPORTED, Role.BEGUN, Role.BILLED, Role.VISIT, Role.SPAN)
_WITHOUT_VISIT = (Role.PERSON, Role.DEATH, Role.OBSERVED)
_STAYS = (*VISITS, Role.SPAN)
_ENDING = (Role.VISIT, Role.SPAN, Role.OBSERVED)


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

    def is_marked(self, name: str, value: bool = True) -> Bools:
        """(n,) where a column of truth values has a value."""
        return np.array(pc.fill_null(pc.equal(self.table[name], value), False).to_numpy())


def cleaned(table: pa.Table, report: ImportReport, *, open_after_us: int | None = None) -> pa.Table:
    """Turn the rows of some subjects into MEDS rows.

    Args:
        table: All usable rows of these subjects, in any order, as `conformed` gives them.
        report: Counts each rule, and what became of each row, by its `source`.
        open_after_us: An end after this time means "not ended yet".

    Returns:
        subject_id, time, code (of a dictionary that holds the codes of these rows, sorted), numeric_value, text_value,
        encounter_id, date_only; sorted by subject, time (static rows first), code, value, text and encounter, so that
        the result does not depend on the order of the rows.
    """
    rows, counts = _known_persons(_with_stated_deaths(table), report), report.counts
    _remove_open_ends(rows, OPEN if open_after_us is None else open_after_us, counts)
    spans = visit_spans(rows, counts)
    set_known_times(rows, spans, counts)
    outside = rows_outside(rows, spans)
    rows.visit[outside] = -1
    counts["outside_visit"] += int(outside.sum())
    _name_parts(rows, counts)
    _move_dates(rows, spans, counts)
    _count_sexes(rows, report)
    born_us = _keep_earliest(rows, Role.PERSON, "two_births", counts)
    counts["no_birth"] += int((born_us == NO_TIME).sum())
    _choose_stated_deaths(rows, counts)
    died_us = _keep_earliest(rows, Role.DEATH, "two_deaths", counts)
    _check_ends(rows, counts)
    _put_deaths_at_discharge(rows, died_us, counts)
    _lose_late_results(rows, died_us)
    life = born_us[rows.subject], died_us[rows.subject]
    dated = rows.date_only | is_date(rows.time_us)
    rows.time_us = within_life(rows.time_us, dated, *life)
    rows.end_us = within_life(rows.end_us, rows.end_date_only, *life)
    _join_periods(rows, counts)
    _lose_nobody(rows, counts)

    starts = np.flatnonzero(_starts(rows))
    ends = np.flatnonzero((rows.lost == 0) & rows.of_role(*_ENDING) & (rows.end_us != NO_TIME))
    row = np.r_[starts, ends]
    time_us = np.r_[rows.time_us[starts], rows.end_us[ends]]
    date_only = np.r_[rows.date_only[starts], rows.end_date_only[ends]]
    names, code = used_codes(
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
            "date_only": date_only[order].astype(np.int8),  # not every reader of MEDS knows bool
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

    A diagnosis of a visit was known by the visit's end, and not when the disease began, years before. The bill of a
    stay of more than a day is written at its end.
    """
    some = np.flatnonzero(rows.of_role(Role.REPORTED, Role.BEGUN, Role.BILLED))
    first, last, at = rows.time_us[some], rows.end_us[some], rows.visit[some]
    last = np.where(last == NO_TIME, first, last)
    start, end = spans.start_us[at], spans.end_us[at]
    is_early = (end_of_day(first) < start) | ((first <= end) & (end < last))
    is_billed = (rows.role[some] == Role.BILLED) & (first <= end) & (end - start > DAY_US)
    counts["billed"] += int((is_billed & ~is_early).sum())
    rows.time_us[some] = np.where(is_early | is_billed, end, last)
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
    return is_far & (rows.time_us != NO_TIME) & (rows.visit >= 0)


def _name_parts(rows: Rows, counts: RuleCounts) -> None:
    """Give `//PART` to what begins and ends in a visit of the same class, or in another such part of that visit."""
    n = len(rows.codes)
    key = np.where(rows.visit < 0, -1, rows.visit * n + rows.code)
    some = np.flatnonzero(rows.of_role(Role.SPAN) & (key >= 0))
    end_us = np.where(rows.end_us == NO_TIME, OPEN, rows.end_us)
    columns = np.stack([key[some], rows.time_us[some], -end_us[some]])
    spans, place = np.unique(columns, axis=1, return_inverse=True)
    group, end = (np.unique(spans[k], return_inverse=True)[1] for k in (0, 2))
    last = (group + 1) * len(end) - end  # rises with the group, then with the end
    inside = np.r_[False, last[1:] <= np.maximum.accumulate(last)[:-1]]
    inside = inside[place.reshape(-1)] | np.isin(key[some], key[rows.of_role(Role.VISIT)])
    rows.code[some[inside]] += n
    names = pc.binary_join_element_wise(rows.codes, pa.scalar(PART_SUFFIX), "")
    rows.codes = pa.concat_arrays([rows.codes, names])
    counts["part"] += int(inside.sum())


# ---- deaths ------------------------------------------------------------------------------------


def _with_stated_deaths(table: pa.Table) -> pa.Table:
    """The rows, and a death at the end of each stay that ended by one, as its source says."""
    ended = table.filter(pc.and_(table["died"], table["end"].is_valid()))
    base = {name: ended[name] for name in ("subject_id", "source", "died")}
    code = pa.array([DEATH] * len(ended), pa.string()).dictionary_encode()
    deaths = make_rows(Role.DEATH, base, code, time=ended["end"])
    return pa.concat_tables([table, deaths], promote_options="default")


def _choose_stated_deaths(rows: Rows, counts: RuleCounts) -> None:
    """Keep the last stated death of a person who has no recorded one, if no visit begins after it."""
    is_stated = rows.of_role(Role.DEATH) & rows.is_marked("died")
    last_us = np.full(len(rows.subject_ids), NO_TIME)
    chosen = is_stated | rows.of_role(Role.VISIT)
    np.maximum.at(last_us, rows.subject[chosen], rows.time_us[chosen])
    recorded = rows.of_role(Role.DEATH) & ~is_stated & (rows.lost == 0)
    last_us[rows.subject[recorded]] = OPEN
    good = is_stated & (rows.time_us == last_us[rows.subject])
    rows.lose("two_deaths", is_stated & ~good)
    counts["stated_death"] += len(np.unique(rows.subject[good]))


def _put_deaths_at_discharge(rows: Rows, died_us: Ints, counts: RuleCounts) -> None:
    """Move deaths known by their day to the end of a stay on that day, also in `died_us` (s,).

    The stay began earlier, is acute or ended by death, and nobody left it alive; no clock of that day is later.
    """
    deaths = np.flatnonzero(rows.of_role(Role.DEATH) & rows.date_only & (rows.lost == 0))
    day = np.full(len(died_us), OPEN)
    day[rows.subject[deaths]] = day_of(rows.time_us[deaths])
    some = np.flatnonzero(day[rows.subject] != OPEN)
    who, start_us, end_us = rows.subject[some], rows.time_us[some], rows.end_us[some]
    acute, alive = rows.is_marked("acute")[some], rows.is_marked("died", False)[some]
    left_alive = np.setdiff1d(rows.visit[some[alive]], -1)
    alive |= np.isin(rows.visit[some], left_alive)  # with its parts
    is_stay = acute | rows.is_marked("died")[some] | (day_of(start_us) < day[who])
    is_event = rows.of_role(Role.EVENT)[some]
    starts = rows.of_role(*_AT_START)[some] & ~rows.date_only[some] & ~is_date(start_us)
    ends = rows.of_role(*_STAYS)[some] & ~rows.end_date_only[some]
    leaves = np.r_[acute & is_event, is_stay] & ~np.r_[alive, alive]
    time_us, who = np.r_[start_us, end_us], np.r_[who, who]
    has_clock = np.r_[starts, ends] & (day_of(time_us) == day[who])
    last, left = (np.full(len(died_us), NO_TIME) for _ in range(2))
    for latest, chosen in ((last, has_clock), (left, has_clock & leaves)):
        np.maximum.at(latest, who[chosen], time_us[chosen])
    moved = deaths[(left == np.maximum(last, NO_TIME + 1))[rows.subject[deaths]]]
    rows.time_us[moved] = died_us[rows.subject[moved]] = left[rows.subject[moved]]
    counts["death_at_discharge"] += len(moved)


# ---- times -------------------------------------------------------------------------------------


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
        Role.EVENT, Role.ISSUED, Role.REPORTED, Role.BEGUN, Role.BILLED, Role.DEATH
    )
    is_moved &= rows.lost == 0
    counts["date_only"] += int(is_moved.sum())
    day, at = rows.time_us[is_moved], rows.visit[is_moved]
    start, end = spans.start_us[at], spans.end_us[at]
    covers = (start < day + DAY_US) & (end >= day)
    time_us = end_of_day(day)
    rows.time_us[is_moved] = np.where(covers, np.minimum(time_us, end), time_us)
    rows.date_only = is_moved | (is_date(rows.time_us) & rows.of_role(Role.PERSON))


def _keep_earliest(rows: Rows, role: Role, reason: str, counts: RuleCounts) -> Ints:
    """Keep of each subject the earliest dated row of a role; (s,) its time, `NO_TIME` without one."""
    dated = rows.of_role(role) & (rows.time_us != NO_TIME) & (rows.lost == 0)
    order = np.flatnonzero(dated)
    order = order[np.lexsort((rows.time_us[order], rows.subject[order]))]
    subject, time_us = rows.subject[order], rows.time_us[order]
    who, first, length = np.unique(subject, return_index=True, return_counts=True)
    apart_us = time_us[first + length - 1] - time_us[first]
    counts[reason] += int((apart_us > 0).sum())
    if role is Role.PERSON:
        counts["births_apart"] += int((apart_us > 366 * DAY_US).sum())
    rows.lose(reason, np.delete(order, first))
    earliest = np.full(len(rows.subject_ids), NO_TIME)
    earliest[who] = time_us[first]
    return earliest


def _count_sexes(rows: Rows, report: ImportReport) -> None:
    """Count the persons with both sexes: their id is that of two people."""
    form = rf"^(?:{'|'.join(sorted(report.sexes))})[^/]*//(?P<sex>[fmw12])"
    sex = pc.struct_field(pc.extract_regex(pc.utf8_lower(rows.codes), form), "sex")
    number = np.r_[places(sex.dictionary_encode()), -1][rows.code]
    known = rows.of_role(Role.STATIC) & (number >= 0)
    pairs = np.unique(rows.subject[known] * 5 + number[known])
    report.counts["two_sexes"] += int((np.bincount(pairs // 5) > 1).sum())


def _lose_late_results(rows: Rows, died_us: Ints) -> None:
    """Drop results that were issued after the death of their person, `died_us` (s,)."""
    died = died_us[rows.subject]
    is_late = rows.of_role(Role.ISSUED) & (died != NO_TIME) & (rows.time_us > died)
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
