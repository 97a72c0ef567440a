"""Fix the rows of one shard: events as in the file in, events sorted by subject and time out.

Each step drops, renames or reorders rows. `FixLog` counts them, with the file and row of the first one, never a value.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import DialectConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.events import (
    BIRTH,
    DEATH,
    SECOND_US,
    STATIC,
    Events,
    first_time,
    hash_u64,
    may_repeat,
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


class FixLog(Counter[str]):
    """How often each fix of `FIXES` was applied.

    Attributes:
        places: Where each was applied first, as `file, row 0`; rows are counted from 0.
    """

    def __init__(
        self, counts: Mapping[str, int] | None = None, places: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(counts or {})
        self.places: dict[str, str] = dict(places or {})

    def __reduce__(self) -> tuple[type["FixLog"], tuple[dict[str, int], dict[str, str]]]:
        # a plain Counter would lose its places between processes
        return FixLog, (
            dict(self),
            self.places,
        )

    def note(self, name: str, count: int, path: Path, row: int | None = None) -> None:
        """Count a fix; `row` is the first one it touched, None for a whole file."""
        if count:
            self[name] += count
            self.places.setdefault(name, place(path, row))

    def merge(self, later: "FixLog") -> None:
        """Add what was noted elsewhere, of later files."""
        self.update(later)
        self.places = {**later.places, **self.places}


def place(path: Path, row: int | None) -> str:
    """How messages name a row of a file."""
    return str(path) if row is None else f"{path}, row {row}"


def fix(
    events: Events,
    path: Path,
    log: FixLog,
    *,
    dialect: DialectConfig,
    extracted_us: int | None,
    until_us: int | None = None,
) -> Events:
    """Fix the events of one shard.

    Args:
        events: As they stand in the file.
        path: The file, for messages.
        log: Counts what was fixed.
        dialect: Other names of birth and death.
        extracted_us: Rows from this moment on are refused; None where the date of extraction is unknown.
        until_us: Rows after this moment are dropped; None where the data has no late rows.

    Returns:
        Events sorted by subject and time.

    Raises:
        EhrseqError: Rows after the date of extraction, or a subject with two births.
    """
    shard = _Shard(events, path, log)
    shard.rename(BIRTH, dialect.birth, "birth_name")
    shard.rename(DEATH, dialect.death, "death_name")
    if extracted_us is not None:
        shard.refuse_future(extracted_us)
    shard.drop_bad_years()
    if until_us is not None:
        shard.drop_late(until_us)
    shard.sort()
    shard.drop_duplicates()
    shard.keep_lifetimes()
    return shard.events


class _Shard:
    """Events while they are fixed; `_row` is each one's row in the file, None as long as none has moved."""

    def __init__(self, events: Events, path: Path, log: FixLog) -> None:
        self.events, self.path, self.log = events, path, log
        self._row: Ints | None = None

    def _file_row(self, position: int) -> int:
        return position if self._row is None else int(self._row[position])

    def _note(self, name: str, touched: Bools | Ints, count: int | None = None) -> None:
        positions = np.flatnonzero(touched) if touched.dtype == np.bool_ else touched
        if len(positions):
            rows = positions if self._row is None else self._row[positions]
            self.log.note(
                name, len(positions) if count is None else count, self.path, int(rows.min())
            )

    def _take(self, rows: Ints | Bools) -> None:
        positions = np.arange(len(self.events))[rows]
        self._row = positions if self._row is None else self._row[positions]
        self.events = self.events.take(rows)

    def rename(self, name: str, others: Sequence[str], label: str) -> None:
        """Give codes with another name for birth or death the MEDS name, in subjects who have no row of that name."""
        events = self.events
        # one search in all codes together: it nearly always finds nothing
        text = "\n".join(["", *events.codes])
        if not any("\n" + other.removesuffix("*") in text for other in others):
            return
        is_other = np.array(
            [code != name and _is_named(code, others) for code in events.codes], dtype=bool
        )
        if not is_other.any():
            return
        chosen = is_other[events.code] & (events.time_us != STATIC)
        chosen &= ~np.isin(
            events.subject_id, events.subject_id[events.is_code(name) & (events.time_us != STATIC)]
        )
        if not chosen.any():
            return
        self._note(label, chosen)
        codes = events.codes if name in events.codes else (*events.codes, name)
        code = np.where(chosen, np.int32(codes.index(name)), events.code)
        # the other name is no code of the data any more
        used, code = np.unique(code, return_inverse=True)
        codes = tuple(codes[k] for k in used.tolist())
        self.events = Events(
            events.subject_id,
            events.time_us,
            code.astype(np.int32),
            codes,
            events.value,
            events.encounter,
        )

    def refuse_future(self, extracted_us: int) -> None:
        late = np.flatnonzero(
            (self.events.time_us != STATIC) & (self.events.time_us >= extracted_us)
        )
        # a year of 9999 means unknown: dropped below
        late = late[self.events.time_us[late] < MAX_US]
        if len(late):
            what = f"{len(late)} rows are after the date of extraction"
            where = place(self.path, self._file_row(int(late[0])))
            raise EhrseqError(what, where=where, fix="correct data.extracted or the data")

    def drop_bad_years(self) -> None:
        time = self.events.time_us
        early = np.count_nonzero(time < MIN_US)
        if early == np.count_nonzero(time == STATIC) and time.max(initial=STATIC) < MAX_US:
            return
        is_birth = self.events.is_code(BIRTH)
        ancient = is_birth & (time < _YEAR_1_US) & (time != STATIC)
        if ancient.any():  # an age over 120 in any case, but one that could overflow
            time = np.where(ancient, _YEAR_1_US, time)
            self.events = replace(self.events, time_us=time)
        bad = (time != STATIC) & (((time < MIN_US) & ~is_birth) | (time >= MAX_US))
        if bad.any():
            self._note("bad_year", bad)
            self._take(~bad)

    def drop_late(self, until_us: int) -> None:
        late = (self.events.time_us != STATIC) & (self.events.time_us > until_us)
        if late.any():
            self._note("after_end", late)
            self._take(~late)

    def sort(self) -> None:
        # of runs of a subject
        subject, time, starts = (
            self.events.subject_id,
            self.events.time_us,
            self.events.starts,
        )
        backwards = (time[1:] < time[:-1]) & ~self.events.opens[1:]
        if not backwards.any() and np.all(np.diff(subject.take(starts)) > 0):
            return
        _, first_run = np.unique(subject[starts], return_index=True)
        again = np.setdiff1d(starts, starts[first_run])  # runs of a subject that was there before
        self._note("not_contiguous", again, len(np.unique(subject[again])))
        early = np.flatnonzero(backwards) + 1
        self._note("unsorted", early, len(np.unique(subject[early])))
        self._take(np.lexsort((time, subject)))

    def drop_duplicates(self) -> None:
        """Drop rows that equal another in subject, time, code and value (and encounter); the first one stays."""
        rows = _same_code_at_once(self.events)
        if not len(rows):
            return
        events = self.events
        key = _row_hash(events.take(rows))
        order = np.argsort(key, kind="stable")
        repeat = np.flatnonzero(key[order][1:] == key[order][:-1])
        first, second = rows[order[repeat]], rows[order[repeat + 1]]
        same = events.subject_id[first] == events.subject_id[second]
        same &= events.time_us[first] == events.time_us[second]
        same &= events.code[first] == events.code[second]
        a, b = events.value[first], events.value[second]
        same &= (a == b) | (np.isnan(a) & np.isnan(b))
        if events.encounter is not None:
            same &= events.encounter[first] == events.encounter[second]
        keep = np.ones(len(events), dtype=bool)
        keep[second[same]] = False
        if not keep.all():
            self._note("duplicates", ~keep)
            self._take(keep)

    def keep_lifetimes(self) -> None:
        """Refuse two births; drop rows before birth or after death, and subjects that have only static rows."""
        events = self.events
        subjects, row = events.subjects
        birth_us = first_time(events, events.is_code(BIRTH), row, len(subjects))
        births = np.flatnonzero(events.is_code(BIRTH) & (events.time_us != STATIC))
        second = births[events.time_us[births] != birth_us[row[births]]]
        if len(second):
            where = place(self.path, self._file_row(int(second[0])))
            fix = f"keep one {BIRTH} per subject; dialect.birth lists the other names that count as births"
            raise EhrseqError("a subject has two births", where=where, fix=fix)
        death_us = first_time(events, events.is_code(DEATH), row, len(subjects))
        if _all_within(events, birth_us, death_us):
            return
        timed = events.time_us != STATIC
        before = timed & (birth_us[row] != STATIC) & (events.time_us < birth_us[row])
        after = timed & (death_us[row] != STATIC) & (events.time_us > death_us[row])
        has_timed = np.zeros(len(subjects), dtype=bool)
        has_timed[row[timed & ~before & ~after]] = True
        static_only = ~has_timed[row] & ~before & ~after
        self._note("before_birth", before)
        self._note("after_death", after)
        self._note("static_only", static_only, int((~has_timed).sum()))
        self._take(has_timed[row] & ~before & ~after)


def _is_named(code: str, names: Sequence[str]) -> bool:
    """Whether a code is one of the names; a name that ends with `*` is a prefix."""
    return any(code.startswith(name[:-1]) if name.endswith("*") else code == name for name in names)


def _all_within(events: Events, birth_us: Ints, death_us: Ints) -> bool:
    """Whether every subject has timed rows, and the first and last of them lie from birth to death."""
    time_us, start = events.time_us, events.starts
    static = np.flatnonzero(time_us == STATIC)  # they come first
    first = start + np.bincount(events.subjects[1].take(static), minlength=len(start))
    last = np.append(start[1:], len(events))[: len(start)] - 1
    if np.any(first > last):
        return False
    born, died = birth_us != STATIC, death_us != STATIC
    return not (
        np.any(born & (time_us[first] < birth_us)) or np.any(died & (time_us[last] > death_us))
    )


def _same_code_at_once(events: Events) -> Ints:
    """Rows that share subject, time and code with another row; only they can be duplicates.

    Rows are sorted by subject and time, so that few have to be compared.
    """
    opens = events.opens.copy()
    opens[1:] |= events.time_us[1:] != events.time_us[:-1]
    alone = opens.copy()
    alone[:-1] &= opens[1:]
    rows = np.flatnonzero(~alone)
    key = np.cumsum(opens.take(rows)) * len(events.codes) + events.code.take(rows)
    near = may_repeat(key)
    rows, key = rows.take(near), key.take(near)
    order = np.argsort(key, kind="stable")
    same = key[order][1:] == key[order][:-1]
    found = np.zeros(len(rows), dtype=bool)
    found[order[1:][same]] = True
    found[order[:-1][same]] = True
    return rows[found]


def _row_hash(events: Events) -> NDArray[np.uint64]:
    key = hash_u64(events.subject_id.view(np.uint64))
    for column in (
        events.time_us,
        events.code.astype(np.int64),
        events.value.view(np.int32).astype(np.int64),
    ):
        key = hash_u64(key ^ column.view(np.uint64))
    return (
        key
        if events.encounter is None
        else hash_u64(key ^ events.encounter.astype(np.int64).view(np.uint64))
    )
