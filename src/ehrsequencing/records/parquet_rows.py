"""Read Parquet files of any writer of MEDS: a file in, events in the file's order out.

MEDS 0.3 and 0.4 differ in string types. Other tools write dates or nanoseconds, dictionaries, double-precision values,
or index columns. Whatever needs no guessing is converted and counted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ehrsequencing.core.arrays import Bools, Floats32, Ints, Ints32
from ehrsequencing.core.errors import NO_HEADER, EhrseqError, looks_like_header
from ehrsequencing.records.events import (
    BIRTH,
    BIRTH_NAMES,
    DAY_US,
    MAX_US,
    SECOND_US,
    STATIC,
    Events,
)

MAX_CODE_BYTES = 1_000_000
MAX_VALUE = 1e37
_TICK_US = {"s": 1_000_000, "ms": 1_000, "us": 1, "date32[day]": DAY_US, "date64[ms]": 1_000}
DATE_ONLY = "date_only"  # the column that says which times are dates without a time of day
_NEEDED = ("subject_id", "time", "code")
_LIKELY = {"subject_id": "patient", "time": "time", "code": "code"}
_DAMAGED = (pa.ArrowException, OSError, ValueError)


def damaged(path: Path, error: Exception | None = None) -> EhrseqError:
    """The error of a file that does not decode, or that the system does not let us read."""
    if isinstance(error, OSError) and error.errno is not None:
        return EhrseqError(
            "cannot be read", where=str(path), fix=error.strerror or "check the disk"
        )
    return EhrseqError(
        "cannot be read as Parquet", where=str(path), fix="the file is damaged: fetch it again"
    )


def read_table(
    path: Path, columns: list[str] | None = None, *, encoded: Sequence[str] = ()
) -> pa.Table:
    """Read a Parquet file, or some columns of it, with one clear error when it is damaged.

    A file that is read whole is validated completely; `read_events` checks every distinct code itself.

    Args:
        path: The file.
        columns: Which columns; all of them by default.
        encoded: Columns of text that come as dictionaries, without making a string of every row.
    """
    try:
        with pq.ParquetFile(
            path,
            page_checksum_verification=True,
            read_dictionary=list(encoded),
            pre_buffer=False,  # a copy of the whole file first would help a remote one only
        ) as file:
            table = file.read(columns)
        if columns is None:
            table.validate(full=True)
            table.schema.names  # noqa: B018 (decodes them)
    except (KeyError, *_DAMAGED) as error:
        if encoded:  # nested columns, and pages with delta encoding, do not come as dictionaries
            return read_table(path, columns)
        raise damaged(path, error) from error
    return table


ROWS_OF_BATCH = 1 << 17


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of a Parquet file in batches, each validated, with one clear error as above."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            for batch in file.iter_batches(ROWS_OF_BATCH, columns=list(columns)):
                batch.validate(full=True)
                yield batch
    except _DAMAGED as error:
        raise damaged(path, error) from error


def check_schemas(shards: Sequence[Path]) -> None:
    """Refuse shards whose needed columns have different types; string kinds and integer widths may differ."""
    seen: dict[str, tuple[str, Path]] = {}
    for path in shards:
        try:
            footer = pq.read_metadata(path)
            schema = footer.schema.to_arrow_schema()
            types = dict(zip(schema.names, schema.types, strict=True)) if footer.num_rows else {}
        except _DAMAGED as error:
            raise damaged(path, error) from error
        for name in (*_NEEDED, "numeric_value"):
            if name in types and not pa.types.is_null(types[name]):
                plain = types[name]
                plain = plain.value_type if pa.types.is_dictionary(plain) else plain
                kind = "integer" if pa.types.is_integer(plain) else str(plain)
                kind = "string" if is_text(plain) else kind
                known, first = seen.setdefault(name, (kind, path))
                if kind != known:
                    raise EhrseqError(
                        f"column {name!r} is {kind} here and {known} in {first}",
                        where=str(path),
                        fix="write all shards with the same types",
                    )


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is a string of any kind (not a dictionary of them)."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def read_events(
    path: Path,
    log: Counter[str],
    *,
    time_zone: str | None = None,
    encounter_column: str | None = None,
    is_import: bool = False,
) -> Events:
    """Read the needed columns of one shard; of an import of ours also which times are dates.

    Returns:
        Events in the order of the file, without values that are no finite numbers.

    Raises:
        EhrseqError: The file is damaged, a column is missing or has a type that MEDS does not know, a row has no
            subject or code, or a code cannot be a token.
    """
    names = columns_of(path)
    for name in _NEEDED:
        if name not in names:
            raise _missing(name, names, path)
    if encounter_column is not None and encounter_column not in names:
        raise EhrseqError(
            f"has no column {encounter_column!r}",
            where=str(path),
            fix="set visits.column, or cut visits another way (visits.by=day)",
        )
    optional = ("numeric_value", encounter_column, DATE_ONLY if is_import else None)
    wanted = dict.fromkeys([*_NEEDED, *(name for name in optional if name in names)])
    table = read_table(path, list(wanted), encoded=["code"])
    return events_of_table(table, path, log, time_zone=time_zone, encounter_column=encounter_column)


def events_of_table(
    table: pa.Table,
    path: Path,
    log: Counter[str],
    *,
    time_zone: str | None = None,
    encounter_column: str | None = None,
) -> Events:
    """The events of rows that are in memory; `path` names them in messages. See `read_events`."""
    if not len(table):  # an empty shard may have untyped columns
        none, small = np.zeros(0, np.int64), np.zeros(0, np.int32)
        encounter = None if encounter_column is None else small
        return Events(none, none, small, (), np.zeros(0, np.float32), encounter)
    names = table.column_names
    subject_id = subject_ids(table["subject_id"], path)
    code, codes = _codes(table["code"], path)
    value = np.full(len(table), np.nan, dtype=np.float32)
    if "numeric_value" in names:
        value = _values(table["numeric_value"], path, log)
    time_us = _times(table["time"], path, log, time_zone)
    if DATE_ONLY in names:
        # at the end of their day, births apart; what an import has put at the end of its day, or of a visit, stays
        column, is_birth = table[DATE_ONLY], are_named(codes, (BIRTH, *BIRTH_NAMES))[code]
        if not pa.types.is_int8(column.type):
            raise EhrseqError(
                f"column {DATE_ONLY!r} has type {column.type}",
                where=str(path),
                fix="convert it to int8, or rename it",
            )
        dated = np.asarray(pc.fill_null(column.cast(pa.bool_()), False)) & (time_us % DAY_US == 0)
        dated &= (time_us != STATIC) & ~is_birth
        time_us = np.where(dated, time_us + DAY_US - SECOND_US, time_us)
    encounter = None
    if encounter_column is not None:
        encounter = _encounters(table[encounter_column], encounter_column, path)
    return Events(subject_id.to_numpy(), time_us, code, codes, value, encounter)


def are_named(codes: Sequence[str], names: Sequence[str]) -> Bools:
    """(C,) which codes are among the names; one that ends with * is a prefix."""
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return np.array([code in names or code.startswith(prefixes) for code in codes], dtype=bool)


def columns_of(path: Path) -> list[str]:
    """Names of a shard's columns.

    Raises:
        EhrseqError: The file is damaged, or two columns have one name.
    """
    try:
        names: list[str] = pq.read_schema(path).names
    except _DAMAGED as error:
        raise damaged(path, error) from error
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EhrseqError(
            f"has the column {twice!r} twice" if looks_like_header(names) else "has a column twice",
            where=str(path),
            fix="keep one of them" if looks_like_header(names) else NO_HEADER,
        )
    return names


def read_subjects(path: Path) -> Ints:
    """(n,) the subject of each row of one shard.

    Raises:
        EhrseqError: The file is damaged, it has no column of subjects, or a row's is no whole number.
    """
    names = columns_of(path)
    if "subject_id" not in names:
        raise _missing("subject_id", names, path)
    column = read_table(path, ["subject_id"])["subject_id"]
    if not len(column):  # an empty shard may have untyped columns
        return np.zeros(0, np.int64)
    return np.asarray(subject_ids(column, path).to_numpy(), dtype=np.int64)


def _missing(name: str, names: Sequence[str], path: Path) -> EhrseqError:
    likely = [other for other in names if _LIKELY[name] in other.lower()]
    likely = likely if looks_like_header(names) else []
    return EhrseqError(
        f"has no column {name!r}",
        where=str(path),
        fix=f"MEDS needs subject_id, time and code: rename {likely[0] if likely else 'the column'}",
    )


def subject_ids(column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
    """Subject ids as int64.

    Raises:
        EhrseqError: Another type than an integer, a missing id, or one beyond int64.
    """
    if not pa.types.is_integer(column.type):
        raise EhrseqError(
            f"column 'subject_id' has type {column.type}",
            where=str(path),
            fix="convert it to int64",
        )
    if column.null_count:
        raise EhrseqError(
            f"{column.null_count} rows have no subject_id",
            where=f"{path}, row {np.argmax(column.is_null().to_numpy())}",
            fix="remove or fill them",
        )
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise EhrseqError(
            "a subject_id is beyond int64", where=str(path), fix="renumber the subjects"
        ) from error


def _times(column: pa.ChunkedArray, path: Path, log: Counter[str], time_zone: str | None) -> Ints:
    """(n,) int64 microseconds since 1970 on the local clock; `STATIC` where the time is missing."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), STATIC, dtype=np.int64)
    is_stamp = pa.types.is_timestamp(kind)
    if not (is_stamp or pa.types.is_date(kind)):
        raise EhrseqError(
            f"column 'time' has type {kind}",
            where=str(path),
            fix="convert it to timestamp[us] without a time zone",
        )
    zone = kind.tz if is_stamp else None
    if zone is not None and time_zone is None:
        raise EhrseqError(
            f"column 'time' has a time zone ({kind})",
            where=str(path),
            fix="name the zone of the hospital's clock, as in data.time_zone=Europe/Berlin",
        )
    whole = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
    whole = whole.cast(pa.int64())
    unit = kind.unit if is_stamp else str(kind)
    if is_stamp and unit == "us" and zone is None:
        return np.asarray(pc.fill_null(whole, int(STATIC)).to_numpy(), dtype=np.int64)
    ticks = np.asarray(pc.fill_null(whole, 0).to_numpy(), dtype=np.int64)
    if unit == "ns":
        time = ticks // 1_000
    else:  # beyond the limit a product could overflow; there a year is wrong in any case
        limit = MAX_US // _TICK_US[unit] + 1
        time = np.clip(ticks, -limit, limit) * _TICK_US[unit]
    given = len(column) - column.null_count
    if zone is not None:
        # what the hospital's clocks showed; instants outside of 1800 to 9999 are left as they are
        known = np.flatnonzero((time > -170 * 366 * DAY_US) & (time < MAX_US - DAY_US))
        try:
            clock = pc.local_timestamp(pa.array(time[known]).cast(pa.timestamp("us", time_zone)))
        except pa.ArrowInvalid as error:
            raise EhrseqError(
                f"the time zone {time_zone} is not known to this machine",
                where=str(path),
                fix="install the system's time zone data (tzdata)",
            ) from error
        time = time.copy()
        time[known] = clock.cast(pa.int64()).to_numpy()
        log["time_zone"] += given
    if unit != "us":
        log["time_unit"] += given
    return np.where(column.is_null().to_numpy(), STATIC, time)


def _values(column: pa.ChunkedArray, path: Path, log: Counter[str]) -> Floats32:
    """(n,) float32, NaN where there is no number; numbers that are none (NaN, ±inf, beyond 1e37) are counted."""
    kind = column.type
    known = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    if not (known or pa.types.is_null(kind)):
        raise EhrseqError(
            f"column 'numeric_value' has type {kind}", where=str(path), fix="convert it to float32"
        )
    given = len(column) - column.null_count
    if not pa.types.is_float32(kind):
        log["value_type"] += given
        column = column.cast(pa.float64(), safe=False)
    value = np.asarray(column.to_numpy())  # NaN where there is none
    is_number = np.abs(value) < value.dtype.type(MAX_VALUE)
    bad = given - int(np.count_nonzero(is_number))
    if bad:
        log["bad_value"] += bad
        value = np.where(is_number, value, np.nan)
    return value.astype(np.float32, copy=False)


def _codes(column: pa.ChunkedArray, path: Path) -> tuple[Ints32, tuple[str, ...]]:
    """(n,) position of each row's code among the distinct codes, and these."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not is_text(kind):
        raise EhrseqError(
            f"column 'code' has type {kind}", where=str(path), fix="convert it to strings"
        )
    if column.null_count:
        raise EhrseqError(
            f"{column.null_count} rows have no code",
            where=f"{path}, row {np.argmax(column.is_null().to_numpy())}",
            fix="remove or fill them",
        )
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.large_string()).dictionary_encode()
    encoded = column.unify_dictionaries()
    code = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]).astype(
        np.int32, copy=False
    )
    names = encoded.chunk(0).dictionary
    if code.max() >= len(names):
        raise damaged(path)
    try:
        codes = tuple(names.to_pylist())
    except UnicodeDecodeError as error:
        raise EhrseqError(
            "a code is not UTF-8",
            where=f"{path}, column code",
            fix="write the file again with UTF-8 strings",
        ) from error
    # drops entries of the dictionary that no row has
    is_used = np.bincount(code, minlength=len(codes)) > 0
    if not is_used.all():
        code = (np.cumsum(is_used) - 1).astype(np.int32)[code]
        codes = tuple(codes[number] for number in np.flatnonzero(is_used).tolist())
    together = "".join(codes)  # nearly always plain, so that one look at all codes is enough
    is_plain = together.isascii() and together.isprintable() and all(map(str.strip, codes))
    if is_plain and max(map(len, codes)) < MAX_CODE_BYTES:
        return code, codes
    reasons: dict[str, Callable[[str], bool]] = {
        "is empty or blank": lambda c: not c.strip(),
        "holds a line break or a NUL": lambda c: re.search(r"[\x00\n\r]", c) is not None,
        "is over 1 MB long": lambda c: len(c.encode()) >= MAX_CODE_BYTES,
    }
    for what, is_bad in reasons.items():
        bad = [number for number, name in enumerate(codes) if is_bad(name)]
        if bad:
            raise EhrseqError(
                f"a code {what}",
                where=f"{path}, row {np.argmax(np.isin(code, bad))}, column code",
                fix="rename or remove that code",
            )
    return code, codes


def _encounters(column: pa.ChunkedArray, name: str, path: Path) -> Ints32:
    """(n,) number of each row's encounter within the shard, -1 without one: null, blank or no number."""
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    kind, types = plain.type, pa.types
    if types.is_null(kind):
        return np.full(len(column), -1, dtype=np.int32)
    if not (is_text(kind) or types.is_integer(kind) or types.is_floating(kind)):
        raise EhrseqError(
            f"column {name!r} has type {kind}",
            where=str(path),
            fix="encounter ids are text or integers",
        )
    if not types.is_integer(kind):
        is_none = (
            pc.equal(pc.utf8_trim_whitespace(plain), "") if is_text(kind) else pc.is_nan(plain)
        )
        plain = pc.if_else(is_none, pa.scalar(None, kind), plain)
    numbers = plain.dictionary_encode().combine_chunks().indices.cast(pa.int32())
    return np.asarray(pc.fill_null(numbers, -1).to_numpy(), dtype=np.int32)
