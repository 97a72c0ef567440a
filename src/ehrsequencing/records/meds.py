"""Read MEDS: find shards, check the schema, mend what can be mended (and count it), refuse what cannot.

A shard becomes `Events`: plain NumPy columns, one row per event, sorted by subject and time. What happens to which
kind of bad input is the table of RELIABILITY.md; every mend is counted under its name in `MENDS`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ehrsequencing.config import DataConfig, SplitsConfig
from ehrsequencing.errors import EhrseqError

BIRTH, DEATH = "MEDS_BIRTH", "MEDS_DEATH"
STATIC = np.iinfo(np.int64).min  # time_us of an event without a time
SECOND_US, DAY_US = 1_000_000, 86_400_000_000
SPLITS = ("train", "tuning", "held_out")
MENDS = {
    "time_unit": "times given as dates or in another unit than microseconds were converted",
    "unsorted": "subjects whose rows were not in time order were sorted",
    "not_contiguous": "subjects whose rows were scattered in a shard were gathered",
    "duplicates": "rows that repeat another row exactly were dropped",
    "bad_year": "rows with a year up to 1900 or from 9999 were dropped (births excepted)",
    "before_birth": "rows before birth were dropped",
    "after_death": "rows after death were dropped",
    "bad_value": "values that are NaN, infinite or beyond 1e37 were dropped, their codes kept",
    "static_only": "subjects without any timed row were dropped",
    "absent_split": "splits of subjects without data were ignored",
    "old_age": "ages over 120 years were taken as unknown",
    "after_censoring": "outcomes after the end of follow-up were ignored",
}
_MIN_US = int(datetime(1901, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US
_MAX_US = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US
_MAX_CODE_BYTES = 1_000_000


@dataclass(frozen=True)
class Events:
    """The rows of one shard, sorted by subject, then time (static rows first), then as they stood in the file.

    Attributes:
        subject_id: (n,) int64.
        time_us: (n,) int64, microseconds since 1970; `STATIC` where the event has no time.
        code: (n,) int32, position in `codes`.
        codes: The distinct codes of this shard.
        value: (n,) float32, NaN without one.
        encounter: (n,) int32, the shard's number of the encounter, -1 without one; None when not asked for.
    """

    subject_id: NDArray[np.int64]
    time_us: NDArray[np.int64]
    code: NDArray[np.int32]
    codes: tuple[str, ...]
    value: NDArray[np.float32]
    encounter: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.subject_id)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Events":
        """Keep some rows, in the order given."""
        encounter = None if self.encounter is None else self.encounter[rows]
        return Events(
            self.subject_id[rows], self.time_us[rows], self.code[rows], self.codes, self.value[rows], encounter
        )

    def is_code(self, code: str) -> NDArray[np.bool_]:
        """(n,) True where the event has exactly this code."""
        number = self.codes.index(code) if code in self.codes else -1
        return np.asarray(self.code == number)


def find_shards(data: Path) -> list[Path]:
    """The Parquet files under `DATA/data`, sorted by path."""
    if not data.is_dir():
        raise EhrseqError("is not a folder", where=str(data), mend="name the folder of a MEDS data set")
    root = data / "data"
    shards = sorted(p for p in root.rglob("*.parquet") if not p.name.startswith(".")) if root.is_dir() else []
    if not shards:
        raise EhrseqError("holds no data/**/*.parquet", where=str(data), mend="name the folder of a MEDS data set")
    for shard in shards:
        if not shard.resolve().is_relative_to(data.resolve()):
            raise EhrseqError("is a link out of the data set", where=str(shard), mend="copy the file into the folder")
    return shards


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file, with one clear error when it is damaged."""
    try:
        return pq.read_table(path, columns=columns, partitioning=None)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise EhrseqError(
            "cannot be read as Parquet", where=str(path), mend="the file is damaged: fetch it again"
        ) from error


def _damaged(path: Path) -> EhrseqError:
    return EhrseqError("cannot be read as Parquet", where=str(path), mend="the file is damaged: fetch it again")


class MedsReader:
    """The shards of one data set, checked and mended one by one.

    Args:
        data: Folder of the data set.
        settings: What the files do not tell (date of extraction).
        encounter_column: Extra column that names the encounter, where visits are cut by it.

    Attributes:
        mends: How often each mend of `MENDS` was applied by the shards read so far.
    """

    def __init__(self, data: Path, settings: DataConfig | None = None, *, encounter_column: str | None = None) -> None:
        self.data, self.encounter_column = data, encounter_column
        self.shards = find_shards(data)
        self.mends: Counter[str] = Counter()
        extracted = settings.extracted if settings is not None else None
        self.extracted_us = parse_date_us(extracted) + DAY_US if extracted else None

    def __iter__(self) -> Iterator[Events]:
        for path in self.shards:
            yield self.read(path)

    def read(self, path: Path) -> Events:
        """Read, check and mend one shard."""
        table = self._columns(path)
        code = table["code"].combine_chunks()
        if isinstance(code, pa.ChunkedArray):
            code = (
                pa.concat_arrays(code.chunks)
                if code.num_chunks
                else pa.array([], pa.dictionary(pa.int32(), pa.string()))
            )
        codes = tuple(code.dictionary.to_pylist())
        _check_codes(codes, path)
        time = table["time"]
        events = Events(
            subject_id=table["subject_id"].to_numpy(),
            time_us=pc.fill_null(time.cast(pa.int64()), int(STATIC)).to_numpy(),
            code=code.indices.to_numpy().astype(np.int32, copy=False),
            codes=codes,
            value=table["numeric_value"].to_numpy().astype(np.float32, copy=False),
            encounter=table["encounter"].to_numpy() if self.encounter_column else None,
        )
        events = self._drop_bad_rows(events, path)
        events = self._drop_duplicates(self._sort(events))
        return self._within_lifetime(events, path)

    def _columns(self, path: Path) -> pa.Table:
        """The needed columns with their MEDS types, or an error that names the column."""
        try:
            names = pq.read_schema(path).names
        except (pa.ArrowException, OSError) as error:
            raise EhrseqError(
                "cannot be read as Parquet", where=str(path), mend="the file is damaged: fetch it again"
            ) from error
        wanted = ["subject_id", "time", "code"]
        wanted += ["numeric_value"] if "numeric_value" in names else []
        wanted += [self.encounter_column] if self.encounter_column else []
        for name in wanted:
            if names.count(name) != 1:
                what = f"has no column {name!r}" if name not in names else f"has the column {name!r} twice"
                raise EhrseqError(what, where=str(path), mend="MEDS needs subject_id, time and code, each once")
        table = read_table(path, wanted)
        out = {
            "subject_id": _subject_ids(table["subject_id"], path),
            "time": self._times(table["time"], path),
            "code": _codes(table["code"], path),
        }
        if "numeric_value" in table.column_names:
            out["numeric_value"] = self._values(table["numeric_value"], path)
        else:
            out["numeric_value"] = pa.array(np.full(len(table), np.nan, np.float32))
        if self.encounter_column:
            ids = table[self.encounter_column].combine_chunks().dictionary_encode()
            indices = ids.indices if isinstance(ids, pa.DictionaryArray) else ids.combine_chunks().indices
            out["encounter"] = pc.fill_null(indices.cast(pa.int32()), -1)
        return pa.table(out)

    def _times(self, column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.tz is None:
            if kind.unit == "us":
                return column
        elif not pa.types.is_date(kind) and not pa.types.is_null(kind):
            mend = "convert it to timestamp[us] without a time zone"
            raise EhrseqError(f"column 'time' has type {kind}", where=str(path), mend=mend)
        self.mends["time_unit"] += len(column)
        return column.cast(pa.timestamp("us"), safe=False)

    def _values(self, column: pa.ChunkedArray, path: Path) -> pa.Array:
        kind = column.type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
            raise EhrseqError(f"column 'numeric_value' has type {kind}", where=str(path), mend="convert it to float32")
        given = ~np.asarray(column.is_null())
        value = np.asarray(column.cast(pa.float64()).fill_null(np.nan), dtype=np.float64)
        bad = given & ~(np.abs(value) < 1e37)
        self.mends["bad_value"] += int(bad.sum())
        return pa.array(np.where(bad, np.nan, value).astype(np.float32))

    def _drop_bad_rows(self, events: Events, path: Path) -> Events:
        timed = events.time_us != STATIC
        if self.extracted_us is not None and bool(np.any(events.time_us[timed] >= self.extracted_us)):
            mend = "correct data.extracted or the data"
            raise EhrseqError("has rows after the date of extraction", where=str(path), mend=mend)
        birth = events.is_code(BIRTH)
        bad = timed & (((events.time_us < _MIN_US) & ~birth) | (events.time_us >= _MAX_US))
        self.mends["bad_year"] += int(bad.sum())
        return events.take(~bad) if bad.any() else events

    def _sort(self, events: Events) -> Events:
        subject, time = events.subject_id, events.time_us
        if len(events) < 2 or not np.any(
            (subject[1:] < subject[:-1]) | ((subject[1:] == subject[:-1]) & (time[1:] < time[:-1]))
        ):
            return events
        starts = np.flatnonzero(np.r_[True, subject[1:] != subject[:-1]])
        self.mends["not_contiguous"] += len(starts) - len(np.unique(subject))
        backwards = (subject[1:] == subject[:-1]) & (time[1:] < time[:-1])
        self.mends["unsorted"] += len(np.unique(subject[1:][backwards]))
        return events.take(np.lexsort((time, subject)))

    def _drop_duplicates(self, events: Events) -> Events:
        """Drop rows that equal another in subject, time, code and value (and encounter); the first one stays."""
        key = _row_hash(events)
        order = np.argsort(key, kind="stable")
        sorted_key = key[order]
        repeat = np.flatnonzero(sorted_key[1:] == sorted_key[:-1])
        if not len(repeat):
            return events
        first, second = order[repeat], order[repeat + 1]
        same = (events.subject_id[first] == events.subject_id[second]) & (
            events.time_us[first] == events.time_us[second]
        )
        same &= events.code[first] == events.code[second]
        a, b = events.value[first], events.value[second]
        same &= (a == b) | (np.isnan(a) & np.isnan(b))
        if events.encounter is not None:
            same &= events.encounter[first] == events.encounter[second]
        keep = np.ones(len(events), dtype=bool)
        keep[second[same]] = False
        self.mends["duplicates"] += int(same.sum())
        return events.take(keep)

    def _within_lifetime(self, events: Events, path: Path) -> Events:
        """Refuse two births; drop rows before birth or after death, and subjects that have only static rows."""
        subjects, row = np.unique(events.subject_id, return_inverse=True)
        birth_us = first_time(events, events.is_code(BIRTH), row, len(subjects))
        births = np.flatnonzero(events.is_code(BIRTH) & (events.time_us != STATIC))
        if np.any(events.time_us[births] != birth_us[row[births]]):
            raise EhrseqError("a subject has two births", where=str(path), mend=f"keep one {BIRTH} per subject")
        death_us = first_time(events, events.is_code(DEATH), row, len(subjects))
        timed = events.time_us != STATIC
        before = timed & (birth_us[row] != STATIC) & (events.time_us < birth_us[row])
        after = timed & (death_us[row] != STATIC) & (events.time_us > death_us[row])
        self.mends["before_birth"] += int(before.sum())
        self.mends["after_death"] += int(after.sum())
        alive = timed & ~before & ~after
        has_timed = np.zeros(len(subjects), dtype=bool)
        has_timed[row[alive]] = True
        self.mends["static_only"] += int((~has_timed).sum())
        keep = has_timed[row] & ~before & ~after
        return events if keep.all() else events.take(keep)


def first_time(events: Events, chosen: NDArray[np.bool_], row: NDArray[np.int64], n_subjects: int) -> NDArray[np.int64]:
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
    rows = np.flatnonzero(chosen & (events.time_us != STATIC))[::-1]  # sorted by time: the earliest is written last
    out[row[rows]] = events.time_us[rows]
    return out


class SplitLookup:
    """The split of every subject, from `metadata/subject_splits.parquet` or else by hashed subject id.

    Args:
        data: Folder of the data set.
        settings: `by: file` falls back to `hash` where there is no file.
    """

    def __init__(self, data: Path, settings: SplitsConfig) -> None:
        self.settings, self.path = settings, data / "metadata" / "subject_splits.parquet"
        self.from_file = settings.by == "file" and self.path.is_file()
        self._ids, self._split = self._read() if self.from_file else (np.zeros(0, np.int64), np.zeros(0, np.int8))

    def _read(self) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        table = read_table(self.path)
        if not {"subject_id", "split"} <= set(table.column_names):
            raise EhrseqError(
                "needs the columns subject_id and split", where=str(self.path), mend="see the MEDS schema"
            )
        ids = _subject_ids(table["subject_id"], self.path).to_numpy()
        names = table["split"].to_pylist()
        unknown = sorted({str(name) for name in names} - set(SPLITS))
        if unknown:
            raise EhrseqError(f"unknown split {unknown[0]!r}", where=str(self.path), mend=f"use {', '.join(SPLITS)}")
        pairs = np.unique(np.stack([ids, np.array([SPLITS.index(n) for n in names], dtype=np.int64)]), axis=1)
        if len(np.unique(pairs[0])) != pairs.shape[1]:
            raise EhrseqError("a subject is in two splits", where=str(self.path), mend="keep one row per subject")
        return pairs[0], pairs[1].astype(np.int8)

    def __call__(self, subject_ids: NDArray[np.int64]) -> NDArray[np.int8]:
        """(S,) position in `SPLITS` of each subject."""
        if not self.from_file:
            return hash_splits(subject_ids, self.settings)
        position = np.searchsorted(self._ids, subject_ids)
        found = position < len(self._ids)
        found[found] = self._ids[position[found]] == subject_ids[found]
        if not found.all():
            what = f"{int((~found).sum())} subjects of the data have no split"
            raise EhrseqError(what, where=str(self.path), mend="add them, or use splits.by=hash")
        return self._split[position]

    def absent(self, subject_ids: NDArray[np.int64]) -> int:
        """How many subjects of the split file are not among these."""
        return int(len(self._ids) - np.isin(self._ids, subject_ids).sum())


def hash_splits(subject_ids: NDArray[np.int64], settings: SplitsConfig) -> NDArray[np.int8]:
    """Split by a hash of the subject id: the same subject always lands in the same split."""
    unit = hash_u64(subject_ids.view(np.uint64) + np.uint64(settings.seed)) / 2.0**64
    return np.searchsorted([settings.train, settings.train + settings.tuning], unit, side="right").astype(np.int8)


def hash_u64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser: a fast, well-mixed hash of 64-bit integers."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _row_hash(events: Events) -> NDArray[np.uint64]:
    key = hash_u64(events.subject_id.view(np.uint64))
    for column in (events.time_us, events.code.astype(np.int64), events.value.view(np.int32).astype(np.int64)):
        key = hash_u64(key ^ column.view(np.uint64))
    return key if events.encounter is None else hash_u64(key ^ events.encounter.astype(np.int64).view(np.uint64))


def parse_date_us(text: str) -> int:
    """An ISO date as microseconds since 1970, without a time zone, as MEDS times are."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise EhrseqError("is not an ISO date", where=repr(text), mend="write it as 2015-01-31") from error
    return round(moment.replace(tzinfo=UTC).timestamp()) * SECOND_US


def _subject_ids(column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
    if not pa.types.is_integer(column.type):
        raise EhrseqError(f"column 'subject_id' has type {column.type}", where=str(path), mend="convert it to int64")
    if column.null_count:
        raise EhrseqError(f"{column.null_count} rows have no subject_id", where=str(path), mend="remove or fill them")
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise EhrseqError("a subject_id is beyond int64", where=str(path), mend="renumber the subjects") from error


def _codes(column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise EhrseqError(f"column 'code' has type {column.type}", where=str(path), mend="convert it to strings")
    if column.null_count:
        raise EhrseqError(f"{column.null_count} rows have no code", where=str(path), mend="remove or fill them")
    plain = column.cast(pa.string()) if not pa.types.is_string(column.type) else column
    return plain.combine_chunks().dictionary_encode()


def _check_codes(codes: tuple[str, ...], path: Path) -> None:
    reasons: dict[str, Callable[[str], bool]] = {
        "is empty or blank": lambda c: not c.strip(),
        "holds a line break or a NUL": lambda c: re.search(r"[\x00\n\r]", c) is not None,
        "is over 1 MB long": lambda c: len(c) >= _MAX_CODE_BYTES,
        "is a reserved token": lambda c: c == "[PAD]" or c.startswith("[UNK"),
    }
    for what, is_bad in reasons.items():
        if any(is_bad(code) for code in codes):
            raise EhrseqError(f"a code {what}", where=f"{path}, column code", mend="rename or remove that code")
