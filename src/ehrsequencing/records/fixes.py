"""Fix the rows of one shard: events as in the file in, events sorted by subject and time out.

Each step drops, renames or reorders rows, and counts what it did.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ehrsequencing.config import DialectConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.events import (
    BIRTH,
    DEATH,
    SECOND_US,
    STATIC,
    Events,
    first_time,
    last_time,
    opens_run,
)

FIXES = {
    "time_unit": "times given as dates or in another unit than microseconds were converted",
    "time_zone": "times with a time zone were read as clock times of dialect.time_zone",
    "value_type": "values of another type than float32 were converted",
    "birth_name": "rows whose code has another name for birth were renamed to MEDS_BIRTH",
    "death_name": "rows whose code has another name for death were renamed to MEDS_DEATH",
    "unsorted": "subjects whose rows were not in time order were sorted",
    "not_contiguous": "subjects whose rows were scattered in a shard were gathered",
    "duplicates": "rows that repeat another row exactly were dropped",
    "bad_year": "rows with a year up to 1900 or from 9999 were dropped (births excepted)",
    "after_end": "rows after the data's end, few and far behind all others, were dropped; data.extracted sets that end",
    "late_birth": "births after all other rows of their subject were dropped",
    "early_death": "deaths before birth were dropped",
    "before_birth": "rows before birth were dropped",
    "after_death": "rows after death were dropped",
    "bad_value": "values that are NaN, infinite or beyond 1e37 were dropped, their codes kept",
    "static_only": "subjects without any timed row were dropped",
    "absent_split": "splits of subjects without data were ignored",
    "old_age": "ages over 120 years were taken as unknown",
    "after_censoring": "outcomes after the end of follow-up were ignored",
}
MIN_US = int(datetime(1901, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US
_YEAR_1_US = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US
MAX_US = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US


def fix(
    events: Events,
    path: Path,
    fixes: Counter[str],
    *,
    dialect: DialectConfig,
    extracted_us: int | None,
    until_us: int | None = None,
) -> Events:
    """Fix the events of one shard.

    Args:
        events: As they stand in the file.
        path: The file, for messages.
        fixes: How often each of `FIXES` was applied; counted on.
        dialect: Other names of birth and death.
        extracted_us: Rows from this moment on are refused; None where the date of extraction is unknown.
        until_us: Rows after this moment are dropped; None where the data has no late rows.

    Returns:
        Events sorted by subject and time.

    Raises:
        EhrseqError: Rows after the date of extraction, or a subject with two births.
    """
    events = _rename(events, BIRTH, dialect.birth, fixes, "birth_name")
    events = _rename(events, DEATH, dialect.death, fixes, "death_name")
    if extracted_us is not None:
        _refuse_future(events, path, extracted_us)
    events = _drop_bad_years(events, fixes)
    if until_us is not None:
        events = _drop_late(events, until_us, fixes)
    events = _sort(events, fixes)
    events = _drop_duplicates(events, fixes)
    return _keep_lifetimes(events, path, fixes)


def _rename(
    events: Events, name: str, others: Sequence[str], fixes: Counter[str], label: str
) -> Events:
    """Give codes with another name for birth or death the MEDS name, in subjects who have no row of that name."""
    exact = set(others) - {name}
    prefixes = tuple(other[:-1] for other in others if other.endswith("*"))
    is_other = [code in exact or code.startswith(prefixes) for code in events.codes]
    if not any(is_other):
        return events
    timed = events.time_us != STATIC
    named = events.subject_id[events.is_code(name) & timed]
    chosen = np.array(is_other)[events.code] & timed & ~np.isin(events.subject_id, named)
    if not chosen.any():
        return events
    fixes[label] += int(chosen.sum())
    codes = events.codes if name in events.codes else (*events.codes, name)
    code = np.where(chosen, codes.index(name), events.code)
    # the other name is no code of the data any more
    used, code = np.unique(code, return_inverse=True)
    codes = tuple(codes[k] for k in used.tolist())
    return replace(events, code=code.astype(np.int32), codes=codes)


def _refuse_future(events: Events, path: Path, extracted_us: int) -> None:
    # a year of 9999 means unknown, and is dropped later; static rows are early
    late = np.flatnonzero((events.time_us >= extracted_us) & (events.time_us < MAX_US))
    if len(late):
        what = f"{len(late)} rows are after the date of extraction"
        where = f"{path}, row {late[0]}"
        raise EhrseqError(what, where=where, fix="correct data.extracted or the data")


def _drop_bad_years(events: Events, fixes: Counter[str]) -> Events:
    time = events.time_us
    early = np.count_nonzero(time < MIN_US)
    if early == np.count_nonzero(time == STATIC) and time.max(initial=STATIC) < MAX_US:
        return events
    is_birth = events.is_code(BIRTH)
    # an age over 120 in any case, but one that could overflow
    ancient = is_birth & (time < _YEAR_1_US) & (time != STATIC)
    time = np.where(ancient, _YEAR_1_US, time)
    bad = (time != STATIC) & (((time < MIN_US) & ~is_birth) | (time >= MAX_US))
    fixes["bad_year"] += int(bad.sum())
    return replace(events, time_us=time).take(~bad)


def _drop_late(events: Events, until_us: int, fixes: Counter[str]) -> Events:
    """Drop rows after the data's end. Whoever had one was followed until then, unless it is an open end: a death."""
    late = (events.time_us != STATIC) & (events.time_us > until_us)
    if not late.any():
        return events
    fixes["after_end"] += int(late.sum())
    followed = late & ~events.is_code(DEATH) & ~events.is_code(BIRTH)
    return replace(events.take(~late), beyond=np.unique(events.subject_id[followed]))


def _sort(events: Events, fixes: Counter[str]) -> Events:
    subject, time, starts = events.subject_id, events.time_us, events.starts
    backwards = (time[1:] < time[:-1]) & ~events.opens[1:]
    if not backwards.any() and np.all(np.diff(subject.take(starts)) > 0):
        return events
    runs = np.unique(subject[starts], return_counts=True)[1]  # of rows, of each subject
    fixes["not_contiguous"] += int((runs > 1).sum())
    fixes["unsorted"] += len(np.unique(subject[1:][backwards]))
    return events.take(np.lexsort((time, subject)))


def _drop_duplicates(events: Events, fixes: Counter[str]) -> Events:
    """Drop rows that equal another in subject, time, code, value and encounter; the first one stays."""
    opens = events.opens.copy()
    opens[1:] |= events.time_us[1:] != events.time_us[:-1]
    moment = np.cumsum(opens) * len(events.codes) + events.code  # one number a moment and code
    order = np.argsort(moment, kind="stable")  # nearly sorted already
    twice = np.flatnonzero(~opens_run(moment.take(order)))
    rows = order[np.union1d(twice - 1, twice)]  # that share subject, time and code with another
    columns = [moment.take(rows), events.value.take(rows).view(np.int32)]
    if events.encounter is not None:
        columns.append(events.encounter.take(rows))
    order = np.lexsort(columns[::-1])  # stable: of equals, the first comes first
    same = ~opens_run(*(column[order] for column in columns))[1:]
    if not same.any():
        return events
    keep = np.ones(len(events), dtype=bool)
    keep[rows[order[1:][same]]] = False
    fixes["duplicates"] += int(same.sum())
    return events.take(keep)


def _keep_lifetimes(events: Events, path: Path, fixes: Counter[str]) -> Events:
    """Refuse two births; drop impossible births and deaths, rows outside of a life, and who has only static rows."""
    subjects, row = events.subjects
    n, time_us = len(subjects), events.time_us
    timed, is_birth, is_death = time_us != STATIC, events.is_code(BIRTH), events.is_code(DEATH)
    birth_us = first_time(events, is_birth, row, n)
    if np.any(is_birth & timed & (time_us != birth_us[row])):
        fix = f"keep one {BIRTH} per subject; dialect.birth lists the other names that count as births"
        raise EhrseqError("a subject has two births", where=str(path), fix=fix)
    # before they could drop everything else
    other_us = last_time(events, ~is_birth, row, n)
    late_birth = is_birth & ((other_us != STATIC) & (birth_us > other_us))[row]
    early_death = is_death & timed & (other_us >= birth_us)[row] & (time_us < birth_us[row])
    kept = ~late_birth & ~early_death
    birth_us = first_time(events, is_birth & kept, row, n)[row]
    death_us = first_time(events, is_death & kept, row, n)[row]
    before = kept & timed & (time_us < birth_us)
    after = kept & timed & (death_us != STATIC) & (time_us > death_us)
    kept &= ~before & ~after
    has_timed = np.bincount(row[kept & timed], minlength=n) > 0
    static_only = kept & ~has_timed[row]
    fixes["late_birth"] += int(late_birth.sum())
    fixes["early_death"] += int(early_death.sum())
    fixes["before_birth"] += int(before.sum())
    fixes["after_death"] += int(after.sum())
    fixes["static_only"] += len(np.unique(row[static_only]))
    kept &= ~static_only
    return events if kept.all() else events.take(kept)
