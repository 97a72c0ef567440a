"""`Events`: the checked rows of one shard as plain NumPy columns, and fast arithmetic on sorted rows."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Bools, Floats32, Ints, Ints32, hash_u64, offsets, ragged
from ehrsequencing.core.errors import EhrseqError

BIRTH, DEATH = "MEDS_BIRTH", "MEDS_DEATH"
# what others call them; one that ends with * is a prefix
BIRTH_NAMES = ("MEDS_BIRTH//*", "BIRTH", "DATE_OF_BIRTH", "DOB", "SNOMED/184099003")
DEATH_NAMES = ("MEDS_DEATH//*", "DEATH", "DATE_OF_DEATH", "DOD", "SNOMED/419620001")
# what imports write where a period under observation begins and ends
PERIOD_START, PERIOD_END = "OBSERVATION_PERIOD_START", "OBSERVATION_PERIOD_END"
# codes of follow-up, under the names that imports and shared data sets use: they are no news of anybody
ENDS = ("END_OF_FOLLOWUP", PERIOD_END)
FOLLOW_UP = (*ENDS, PERIOD_START)
# What imports write beside a stay, before its code: nobody closed it; it ended with a move to another hospital, whose
# record is here or not; it goes on with a stay that was elsewhere. No token, no visit.
OPEN, MOVED, TRANSFERRED, CONTINUED = (
    f"STAY_{name}//" for name in ("OPEN", "MOVED", "TRANSFERRED", "CONTINUED")
)
STATED_DEATH = "STAY_DIED//"  # a stay that ended by a death, where the record goes on after it
STAY_MARKS = tuple(f"{mark}*" for mark in (OPEN, MOVED, TRANSFERRED, CONTINUED, STATED_DEATH))
# what reading makes of a death without a date, and of one that its person outlived
UNDATED_DEATH, DOUBTFUL_DEATH = f"{DEATH}//UNDATED", f"{DEATH}//DOUBTFUL"
STATIC = np.iinfo(np.int64).min  # time_us of an event without a time
NEVER = np.iinfo(np.int64).max
SECOND_US, DAY_US = 1_000_000, 86_400_000_000
MAX_US = (
    int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US
)  # from then on no time is real
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Events:
    """The rows of one shard, sorted by subject, then time (static rows first), then as in the file."""

    subject_id: Ints  # (n,) int64
    time_us: Ints  # (n,) int64, microseconds since 1970; `STATIC` where the event has no time
    code: Ints32  # (n,) int32, position in `codes`
    codes: tuple[str, ...]  # the distinct codes of this shard
    value: Floats32  # (n,) float32, NaN without one
    # (n,) int32, the shard's number of the encounter, -1 without one; None when not asked for
    encounter: Ints32 | None = None
    # ids of subjects whose rows after the data's end were dropped: they were followed until that end
    beyond: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.subject_id)

    def take(self, rows: Ints | Bools) -> "Events":
        """Keep some rows, in the order given."""
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return Events(
            subject_id=self.subject_id.take(rows),
            time_us=self.time_us.take(rows),
            code=self.code.take(rows),
            codes=self.codes,
            value=self.value.take(rows),
            encounter=None if self.encounter is None else self.encounter.take(rows),
            beyond=self.beyond,
        )

    @cached_property
    def starts(self) -> Ints:
        """(S,) the first row of each subject."""
        return np.flatnonzero(opens_run(self.subject_id))

    @cached_property
    def subjects(self) -> tuple[Ints, Ints]:
        """(S,) the subject ids in their order, and (n,) the subject row of each event."""
        return self.subject_id.take(self.starts), number_runs(self.starts, len(self))

    @property
    def content(self) -> int:
        """A hash of every row, subject by subject, added up modulo 2^64: no division into shards moves it."""
        first, subject = self.starts, self.subjects[1]
        names = b"".join(hashlib.sha256(code.encode()).digest()[:8] for code in self.codes)
        columns = [
            np.arange(len(self)) - first[subject],  # the place in the subject's record
            self.time_us,
            np.frombuffer(names, np.int64)[self.code],
            self.value.astype(np.float64).view(np.int64),
        ]
        if (
            self.encounter is not None
        ):  # by the first row of each, since numbers are the shard's own
            pair = np.stack([subject, self.encounter])
            _, opens, number = np.unique(pair, axis=1, return_index=True, return_inverse=True)
            columns.append(
                np.where(self.encounter < 0, -1, (opens[number.ravel()] - first[subject]))
            )
        hashes = hash_u64(self.subject_id.view(np.uint64))
        for column in columns:
            hashes = hash_u64(hashes ^ column.astype(np.int64).view(np.uint64))
        return int(hashes.sum()) + int(hash_u64(self.beyond.view(np.uint64)).sum())

    def is_code(self, code: str) -> Bools:
        """(n,) True where the event has exactly this code."""
        return np.asarray(self.code == _position(self.codes).get(code, -1))


@dataclass
class OfCodes(Generic[Answer]):
    """A function of a shard's codes that remembers its last answer.

    The same function is applied many times to the same events, and all pieces of a data set share one tuple of codes.
    """

    find: Callable[[tuple[str, ...]], Answer]
    last: tuple[tuple[str, ...], Answer] | None = None

    def __call__(self, codes: tuple[str, ...]) -> Answer:
        """The function's answer; codes are the same if they are the same tuple object."""
        if self.last is None or self.last[0] is not codes:
            self.last = codes, self.find(codes)
        return self.last[1]


_position = OfCodes(lambda codes: {code: position for position, code in enumerate(codes)})


def number_runs(first: Ints, n: int) -> Ints:
    """(n,) number of the run that each row is in, from the runs' first rows: faster than a running sum.

    >>> import numpy as np
    >>> number_runs(np.array([0, 2]), 5).tolist()
    [0, 0, 1, 1, 1]
    """
    return np.repeat(np.arange(len(first)), np.diff(first, append=n))


def opens_run(*keys: NDArray[np.generic]) -> Bools:
    """(n,) True at each row that differs from the one before it in any key; the first row does.

    >>> import numpy as np
    >>> opens_run(np.array([1, 1, 1, 2]), np.array([5, 5, 6, 6])).tolist()
    [True, False, True, True]
    """
    out = np.ones(len(keys[0]), dtype=bool)
    out[1:] = keys[0][1:] != keys[0][:-1]
    for key in keys[1:]:
        out[1:] |= key[1:] != key[:-1]
    return out


def group_order(group: NDArray[np.integer], n_groups: int) -> Ints:
    """Stable order (n,) of rows by small non-negative numbers.

    NumPy sorts 16-bit integers by radix, ten times as fast as longer ones, so larger numbers are sorted by their two
    halves.

    >>> import numpy as np
    >>> group_order(np.array([2, 0, 2, 1]), 3).tolist()
    [1, 3, 0, 2]
    """
    order = np.argsort(group.astype(np.uint16), kind="stable")  # the cast drops the upper half
    if n_groups > 1 << 16:
        order = order[np.argsort((group >> 16)[order].astype(np.uint16), kind="stable")]
    return order


def first_time(events: Events, chosen: Bools, row: Ints, n_subjects: int) -> Ints:
    """Earliest time of the chosen timed events per subject; `STATIC` where there is none.

    Args:
        events: Sorted events.
        chosen: (n,) which events count.
        row: (n,) subject row of each event.
        n_subjects: Number of subject rows S.

    Returns:
        (S,) int64 microseconds.
    """
    out = np.full(n_subjects, STATIC, dtype=np.int64)
    rows = np.flatnonzero(chosen)
    # written from the last row to the first, so that the earliest stays
    rows = rows[events.time_us[rows] != STATIC][::-1]
    out[row[rows]] = events.time_us[rows]
    return out


def last_time(events: Events, chosen: Bools, row: Ints, n_subjects: int) -> Ints:
    """Latest time of the chosen timed events per subject, `STATIC` where there is none; as `first_time`."""
    out = np.full(n_subjects, STATIC, dtype=np.int64)
    if len(events):
        start = events.starts
        out[row[start]] = np.maximum.reduceat(np.where(chosen, events.time_us, STATIC), start)
    return out


def within_life(time_us: Ints, dated: Bools, birth_us: Ints, death_us: Ints) -> Ints:
    """(n,) times, with dates on the day of a birth or death moved into life; clocks stay as they are.

    Args:
        time_us: (n,) a date without a clock at the start or the end of its day.
        dated: (n,) which times are dates.
        birth_us: (n,) of each row's subject; `STATIC` where it is not known.
        death_us: (n,) the same.

    >>> hour = DAY_US // 24
    >>> within_life(np.array([0, 2, 24]) * hour, np.array([True, False, True]), 8 * hour, 24 * hour) // hour
    array([ 8,  2, 24])
    """
    day = time_us // DAY_US
    is_last, is_first = (day == death_us // DAY_US), (day == birth_us // DAY_US)
    time_us = np.where(dated & is_last, np.minimum(time_us, death_us), time_us)
    return np.where(dated & is_first, np.maximum(time_us, birth_us), time_us)


def pieces(starts: Ints, n: int, rows: int) -> list[slice]:
    """Cut `n` rows into pieces of about `rows` rows that hold whole owners, whose first rows are `starts`.

    >>> import numpy as np
    >>> pieces(np.array([0, 2, 3, 9]), 10, 4)
    [slice(0, 9, None), slice(9, 10, None)]
    """
    cuts = starts[opens_run(starts // rows)].tolist()
    return [slice(start, stop) for start, stop in itertools.pairwise([*cuts, n])]


def parse_date_us(text: str) -> int:
    """An ISO date as microseconds since 1970, without a time zone, as MEDS times are."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise EhrseqError(
            "is not an ISO date", where=repr(text), fix="write it as 2015-01-31"
        ) from error
    return round(moment.replace(tzinfo=UTC).timestamp()) * SECOND_US


# ---- a store of rows on disk -----------------------------------------------------------------------------------------


_ROW = [("time_us", np.int64), ("code", np.int32), ("value", np.float32)]
_ENCOUNTER = ("encounter", np.int32)


@dataclass(frozen=True)
class KeptRows:
    """The rows of one shard, or of a range of its subjects."""

    path: Path
    dtype: np.dtype[np.void]  # of a row
    subject_id: Ints  # (S,) int64, sorted
    offsets: Ints  # (S+1,) int64; subject s owns rows `[offsets[s], offsets[s+1])` of the file
    beyond: Ints  # as in `Events`
    numbers: Ints  # (C,) the number that each of the shard's codes has in the data set


def keep(events: Events, path: Path, numbers: Ints) -> KeptRows:
    """Write the fixed rows of a shard to a file; `numbers` (C,) are those of its codes."""
    path.parent.mkdir(exist_ok=True)
    dtype = np.dtype(_ROW if events.encounter is None else [*_ROW, _ENCOUNTER])
    rows = np.empty(len(events), dtype)
    for name in dtype.names or ():
        rows[name] = getattr(events, name)
    rows.tofile(path)
    subject_id, subject = events.subjects
    bounds = offsets(subject, len(subject_id))
    return KeptRows(path, dtype, subject_id, bounds, events.beyond, numbers)


def read_kept(
    shards: Sequence[KeptRows],
    codes: tuple[str, ...],
    *,
    group: Callable[[Ints], NDArray[np.int8]],
    rows: int,
) -> Iterator[Events]:
    """The rows of some subjects, from all shards that hold any, in pieces of whole subjects.

    Args:
        shards: As `ranges` gives them, none of them empty.
        codes: All codes of the data set.
        group: The group of each subject id (S,). Subjects come group by group, in each by their ids.
        rows: About so many rows make a piece, few enough for the processor's cache.

    Yields:
        Rows by subject and time.
    """
    parts = []
    for shard in shards:
        first, stop = int(shard.offsets[0]), int(shard.offsets[-1])
        start = first * shard.dtype.itemsize
        part = np.fromfile(shard.path, shard.dtype, count=stop - first, offset=start)
        part["code"] = shard.numbers[part["code"]]  # those of the data set
        parts.append(part)
    stored = np.concatenate(parts)
    subject_id = np.concatenate([shard.subject_id for shard in shards])
    counts = np.concatenate([np.diff(shard.offsets) for shard in shards])
    beyond = np.concatenate([shard.beyond for shard in shards])
    bounds = np.r_[0, np.cumsum(counts)]
    order = np.lexsort((subject_id, group(subject_id)))
    first_row = np.cumsum(counts[order]) - counts[order]
    for piece in pieces(first_row, len(stored), rows):
        first, stop = np.searchsorted(first_row, [piece.start, piece.stop])
        chosen = order[first:stop]
        own = stored.take(ragged(bounds, chosen)[0])
        columns = {name: np.ascontiguousarray(own[name]) for name in own.dtype.names or ()}
        who = np.repeat(subject_id[chosen], counts[chosen])
        yield Events(subject_id=who, codes=codes, beyond=beyond, **columns)


def ranges(shards: Sequence[KeptRows], parts: int) -> Iterator[list[KeptRows]]:
    """Cut all subjects, in the order of their ids, into at most so many ranges with about as many rows each.

    Ranges are made one at a time, since all of them together would be as many objects as ranges times shards.
    """
    ids = np.concatenate([shard.subject_id for shard in shards])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    rows = np.cumsum(np.concatenate([np.diff(shard.offsets) for shard in shards])[order])
    stops = np.searchsorted(rows, np.linspace(0, rows[-1], parts + 1)[1:])
    stops = np.unique(np.append(stops, len(ids) - 1))
    for before, last in pairwise([-1, *stops.tolist()]):
        inside = list[KeptRows]()
        for shard in shards:
            start = np.searchsorted(shard.subject_id, ids[before + 1])
            stop = np.searchsorted(shard.subject_id, ids[last], side="right")
            own = replace(
                shard,
                subject_id=shard.subject_id[start:stop],
                offsets=shard.offsets[start : stop + 1],
            )
            inside += [own] if stop > start else []
        yield inside
