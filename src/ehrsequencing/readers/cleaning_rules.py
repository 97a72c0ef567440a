"""The cleaning rules: a reader's rows → MEDS rows. `import_report.RULES` says what each rule does."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.arrays import Bools, Ints
from ehrsequencing.readers.import_report import ImportReport, RowCounts, RuleCounts, among, distinct
from ehrsequencing.readers.rows import Role, clean_codes
from ehrsequencing.records.events import DAY_US, SECOND_US

NO_TIME = np.iinfo(np.int64).min
PERIOD_START, PERIOD_END = "OBSERVATION_PERIOD_START", "OBSERVATION_PERIOD_END"
END_SUFFIX = "//END"  # the end of a visit or stay has the code of its start with this suffix
OPEN = np.iinfo(np.int64).max - DAY_US  # the end of a period that has not ended


def usable_rows(rows: pa.Table, schema: pa.Schema, report: ImportReport) -> pa.Table:
    """The rows that have a subject and, where their role needs them, a code and a time; the others are counted.

    Args:
        rows: Rows of a reader; an absent column of the schema is null.
        schema: `rows_schema` of the reader.
        report: Where dropped rows are counted.
    """
    given = set(rows.column_names)
    columns = [
        rows[f.name].cast(f.type, safe=False) if f.name in given else pa.nulls(len(rows), f.type) for f in schema
    ]
    rows, counts = pa.table(columns, schema=schema), report.counts
    clean = clean_codes(rows["code"])
    counts["fixed_code"] += pc.sum(pc.not_equal(clean, rows["code"])).as_py() or 0
    rows = rows.set_column(rows.schema.get_field_index("code"), "code", clean)
    needs_code = ~role_mask(rows, Role.OBSERVED, Role.PERSON)
    needs_time = ~role_mask(rows, Role.PERSON, Role.STATIC)
    bare = np.asarray(pc.fill_null(pc.equal(rows["code"], ""), True))
    left, source = np.ones(len(rows), dtype=bool), rows["source"].to_numpy()
    for name, bad in (
        ("no_person", np.asarray(rows["subject_id"].is_null())),
        ("no_code", bare & needs_code),
        ("no_time", np.asarray(rows["time"].is_null()) & needs_time),
    ):
        lost = left & bad
        counts[name] += int(lost.sum())
        left &= ~bad
        if lost.any():  # a source row that made several rows is lost when all of them are
            report.row_counts.drop(name, source[lost & ~among(source, distinct(source[left]))])
    return rows if left.all() else rows.filter(pa.array(left))


def clean_rows(
    rows: pa.Table, counts: RuleCounts, row_counts: RowCounts | None = None, *, open_after_us: int | None = None
) -> pa.Table:
    """Turn the rows of some subjects into MEDS rows.

    Args:
        rows: All rows of these subjects, in any order, with the columns of `rows_schema`. Rows that need a time have
            one, all have a subject, and all but `OBSERVED` and `PERSON` have a code.
        counts: Where the use of each rule is counted.
        row_counts: Where each row, by its `source`, is counted as kept or dropped.
        open_after_us: An end after this time means "not ended yet".

    Returns:
        subject_id, time, code, numeric_value, text_value, encounter_id; sorted by subject, time (static rows first),
        code, value, text and encounter, so that the result does not depend on the order of the rows.
    """
    known = _without_open_ends(_without_encounters(_known_persons(rows, counts)), counts, open_after_us)
    made = pa.concat_tables([make(known, counts) for make in (_births, _deaths, _periods, _events)])
    made = _without_duplicates(_without_nobody(made, counts), counts)
    if row_counts is not None:
        _count_rows(rows, known, made, row_counts)
    return _sorted(made.drop_columns("source"))


def _count_rows(given: pa.Table, known: pa.Table, made: pa.Table, row_counts: RowCounts) -> None:
    """Count which rows made a row of the output, and why the others did not."""
    kept = distinct(made["source"].to_numpy())
    lost = given["source"].to_numpy()
    row_counts.drop("unknown_person", lost[~among(lost, distinct(known["source"].to_numpy()))])
    left = known.filter(pa.array(~among(known["source"].to_numpy(), kept)))
    source = left["source"].to_numpy()
    person = role_mask(left, Role.PERSON)
    reasons = {
        "nobody": ~among(left["subject_id"].to_numpy(), distinct(made["subject_id"].to_numpy())),
        "kept": person & np.asarray(left["time"].is_null()),  # no row, but the subject is in the output
        "two_births": person,
        "two_deaths": role_mask(left, Role.DEATH),
        "overlapping_periods": role_mask(left, Role.OBSERVED),
        "duplicates": np.ones(len(left), dtype=bool),
    }
    counted = np.zeros(len(left), dtype=bool)
    for reason, mask in reasons.items():
        sources = distinct(source[mask & ~counted])
        counted |= among(source, sources)
        if reason == "kept":
            kept = np.concatenate([kept, sources])
        else:
            row_counts.drop(reason, sources)
    row_counts.keep(kept)


def _without_open_ends(rows: pa.Table, counts: RuleCounts, open_after_us: int | None) -> pa.Table:
    """Remove ends after `open_after_us`, which mean "not ended yet"."""
    end_us = micros(rows["end"])
    is_open = end_us > (OPEN if open_after_us is None else open_after_us)
    if not is_open.any():
        return rows
    counts["open_end"] += int(is_open.sum())
    no_end = np.where(role_mask(rows, Role.OBSERVED), OPEN, NO_TIME)
    ends = _timestamps(np.where(is_open, no_end, end_us))
    return rows.set_column(rows.schema.get_field_index("end"), "end", ends)


def _without_encounters(rows: pa.Table) -> pa.Table:
    """Births, deaths and observation periods belong to no encounter, so that rows which differ in it only are equal."""
    outside = pa.array(role_mask(rows, Role.PERSON, Role.DEATH, Role.OBSERVED))
    place = rows.schema.get_field_index("encounter_id")
    none = pa.scalar(None, rows.schema.field(place).type)
    return rows.set_column(place, "encounter_id", pc.if_else(outside, none, rows["encounter_id"]))


def role_mask(rows: pa.Table, *roles: Role) -> Bools:
    """(n,) which rows have one of these roles."""
    return np.isin(rows["role"].to_numpy(), [int(role) for role in roles])


def micros(column: pa.ChunkedArray) -> Ints:
    """(n,) microseconds since 1970, `NO_TIME` for null."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), NO_TIME).to_numpy(), dtype=np.int64)


def _timestamps(us: Ints) -> pa.Array:
    return pa.array(us, mask=us == NO_TIME).cast(pa.timestamp("us"))


def _made(rows: pa.Table, time_us: Ints, code: pa.ChunkedArray | pa.Array | None = None) -> pa.Table:
    """MEDS rows of a reader's rows, at other times and, if given, with other codes."""
    made = rows.select(["subject_id", "code", "numeric_value", "text_value", "encounter_id", "source"])
    made = made if code is None else made.set_column(1, "code", code)
    return made.add_column(1, "time", _timestamps(time_us))


def _known_persons(rows: pa.Table, counts: RuleCounts) -> pa.Table:
    subject = rows["subject_id"].to_numpy()
    persons = np.unique(subject[role_mask(rows, Role.PERSON)])
    known = np.isin(subject, persons)
    counts["unknown_person"] += int((~known).sum())
    counts["negative_ids"] += int((persons < 0).sum())
    return rows.filter(pa.array(known))


def _earliest(rows: pa.Table) -> tuple[pa.Table, Ints, int]:
    """Each subject's row with the earliest time, those times, and how many subjects had several different times."""
    subject, time_us = rows["subject_id"].to_numpy(), micros(rows["time"])
    order = np.lexsort((time_us, subject))
    subject, time_us = subject[order], time_us[order]
    first = np.r_[True, subject[1:] != subject[:-1]] if len(subject) else np.zeros(0, bool)
    differs = ~first
    differs[1:] &= time_us[1:] != time_us[:-1]
    return rows.take(pa.array(order[first])), time_us[first], len(np.unique(subject[differs]))


def _births(rows: pa.Table, counts: RuleCounts) -> pa.Table:
    persons = rows.filter(pa.array(role_mask(rows, Role.PERSON)))
    born, time_us, several = _earliest(persons.filter(pc.is_valid(persons["time"])))
    counts["two_births"] += several
    counts["no_birth"] += len(pc.unique(persons["subject_id"])) - len(born)
    return _made(born, time_us)


def _deaths(rows: pa.Table, counts: RuleCounts) -> pa.Table:
    deaths = rows.filter(pa.array(role_mask(rows, Role.DEATH)))
    time_us = _end_of_day(micros(deaths["time"]), counts)
    deaths, time_us, several = _earliest(deaths.set_column(2, "time", _timestamps(time_us)))
    counts["two_deaths"] += several
    return _made(deaths, time_us)


def _end_of_day(time_us: Ints, counts: RuleCounts | None = None) -> Ints:
    """The times, with midnight moved to the last second of the day; each move is counted."""
    bare = (time_us % DAY_US == 0) & (time_us != NO_TIME)
    if counts is not None:
        counts["date_only"] += int(bare.sum())
    return np.where(bare, time_us + DAY_US - SECOND_US, time_us)


def _periods(rows: pa.Table, counts: RuleCounts) -> pa.Table:
    """Start and end of each observation period; periods that overlap or touch (less than a day apart) become one.

    A period that has not ended has only a start.
    """
    periods = rows.filter(pa.array(role_mask(rows, Role.OBSERVED)))
    start, end = micros(periods["time"]), micros(periods["end"])
    backwards = (end != NO_TIME) & (_end_of_day(end) < start)
    counts["end_before_start"] += int(backwards.sum())
    end = np.where(backwards | (end == NO_TIME), start, end)
    subject = periods["subject_id"].to_numpy()
    order = np.lexsort((end, start, subject))
    subject, start, end = subject[order], start[order], _end_of_day(end)[order]
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
    code = pa.array([PERIOD_START] * int(opens.sum()) + [PERIOD_END] * int(ended.sum()), pa.string())
    chosen = periods.take(pa.array(np.r_[order[opens], order[opens][ended]]))
    return _made(chosen, np.r_[start[opens], end[closes][ended]], code)


def _events(rows: pa.Table, counts: RuleCounts) -> pa.Table:
    """Events, static rows, and the starts and ends of visits and other spans."""
    rows = rows.filter(pa.array(role_mask(rows, Role.EVENT, Role.STATIC, Role.VISIT, Role.SPAN)))
    span = role_mask(rows, Role.VISIT, Role.SPAN)
    visit, key = _visit_of(rows, counts)
    rows = rows.set_column(rows.schema.get_field_index("encounter_id"), "encounter_id", key)
    time_us = np.where(role_mask(rows, Role.STATIC), NO_TIME, micros(rows["time"]))
    moved = _end_of_day(time_us)
    loose = (moved != time_us) & ~span
    counts["date_only"] += int(loose.sum())
    visit_start, visit_end = _visit_spans(rows, visit)
    inside = loose & (visit >= 0)
    at = visit[inside]
    covers = (visit_start[at] < time_us[inside] + DAY_US) & (visit_end[at] >= time_us[inside])
    moved[inside] = np.where(covers, np.minimum(moved[inside], visit_end[at]), moved[inside])
    time_us = np.where(loose, moved, time_us)
    end_us = np.where(span, _end_of_day(micros(rows["end"])), NO_TIME)
    backwards = (end_us != NO_TIME) & (end_us < time_us)
    counts["end_before_start"] += int(backwards.sum())
    ended = (end_us != NO_TIME) & ~backwards
    ends = rows.filter(pa.array(ended))
    end_code = pc.binary_join_element_wise(ends["code"], pa.scalar(END_SUFFIX, pa.string()), "")
    return pa.concat_tables([_made(rows, time_us), _made(ends, end_us[ended], end_code)])


def _visit_of(rows: pa.Table, counts: RuleCounts) -> tuple[Ints, pa.ChunkedArray]:
    """Number of each row's visit (-1 without one), and its `encounter_id` (null where that person has no such visit).

    Two persons may use the same `encounter_id`.
    """
    name = rows["encounter_id"].combine_chunks().dictionary_encode()
    name = name.combine_chunks() if isinstance(name, pa.ChunkedArray) else name
    number = np.asarray(pc.fill_null(name.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
    _, subject = np.unique(rows["subject_id"].to_numpy(), return_inverse=True)
    pair = np.where(number >= 0, subject * (len(name.dictionary) + 1) + number, -1)
    visits = np.unique(pair[role_mask(rows, Role.VISIT) & (pair >= 0)])
    position = np.searchsorted(visits, pair)
    position[position == len(visits)] = 0
    found = (pair >= 0) & (visits[position] == pair) if len(visits) else np.zeros(len(pair), dtype=bool)
    counts["dangling_encounter"] += int(((pair >= 0) & ~found).sum())
    kept = pc.if_else(pa.array(found), rows["encounter_id"], pa.scalar(None, rows["encounter_id"].type))
    return np.where(found, position, -1), kept


def _visit_spans(rows: pa.Table, visit: Ints) -> tuple[Ints, Ints]:
    """Start and end of each visit; without a valid end, the end of the day on which it starts."""
    n = int(visit.max(initial=-1)) + 1
    is_visit = role_mask(rows, Role.VISIT) & (visit >= 0)
    at, start_us = visit[is_visit], micros(rows["time"])[is_visit]
    end_us = _end_of_day(micros(rows["end"])[is_visit])
    end_us = np.where(end_us < start_us, _end_of_day(start_us - start_us % DAY_US), end_us)
    start, end = np.full(n, np.iinfo(np.int64).max), np.full(n, NO_TIME)
    np.minimum.at(start, at, start_us)
    np.maximum.at(end, at, end_us)
    return start, end


def _without_nobody(made: pa.Table, counts: RuleCounts) -> pa.Table:
    """Drop subjects with nothing but a birth and static rows, as MEDS readers do."""
    subject = made["subject_id"].to_numpy()
    timed = np.asarray(pc.is_valid(made["time"])) & ~np.asarray(pc.equal(made["code"], "MEDS_BIRTH"))
    keep = np.isin(subject, np.unique(subject[timed]))
    counts["nobody"] += len(np.unique(subject[~keep]))
    return made.filter(pa.array(keep))


def _sorted(made: pa.Table) -> pa.Table:
    columns = ("subject_id", "time_us", "code", "numeric_value", "text_value", "encounter_id")
    keyed = made.append_column("time_us", pa.array(micros(made["time"])))  # so that rows without a time come first
    return made.take(pc.sort_indices(keyed, sort_keys=[(name, "ascending") for name in columns]))


def _without_duplicates(made: pa.Table, counts: RuleCounts) -> pa.Table:
    keys = [name for name in made.column_names if name != "source"]
    distinct = made.group_by(keys, use_threads=False).aggregate([("source", "min")])
    counts["duplicates"] += len(made) - len(distinct)
    return distinct.rename_columns({"source_min": "source"}).select(made.column_names)
