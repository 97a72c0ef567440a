"""Cells of a source → times, numbers and ids. Every cell of a column that is used is read, empty, or counted as unread.

All readers of tables read their cells here, so that the same text means the same in each of them:
cells in = values + empty + unread, column by column (`import_report.Cells`).
"""

import gzip
from collections.abc import Callable, Mapping
from datetime import tzinfo
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.readers.date_order import ISO_COLUMN, TO_ISO, DateColumn
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.records.events import DAY_US, SECOND_US

_TIME = (
    r"^\s*(?P<y>\d{4})-(?P<mo>\d{1,2})-(?P<d>\d{1,2})"
    r"(?:[T ]+(?P<h>\d{1,2}):(?P<mi>\d{2})(?::(?P<s>\d{2})(?:[.,]\d+)?)?"
    r" ?(?P<half>[AaPp][Mm])? ?(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?\s*$"
)
_ISO_LENGTHS = pa.array([10, 16, 19], pa.int32())  # a day, a minute, a second
_EXPONENT = r"([eE][+-]?\d{1,3})?$"
_NUMBER = {
    ".": r"^[+-]?(\d+\.?\d*|\.\d+)" + _EXPONENT,
    # 1.234,5 has a dot between thousands
    ",": r"^[+-]?((\d{1,3}(\.\d{3})+|\d+)(,\d*)?|,\d+)" + _EXPONENT,
}
_WHOLE = r"^[+-]?\d{1,19}(\.0*)?$"
_MOST = pa.scalar(str(np.iinfo(np.int64).max))
_NO_TEXT = pa.scalar(None, pa.string())


class Block:
    """Some rows of a table, as text or as typed columns; each column is read once, and its cells are counted.

    Args:
        rows: Columns by name. One that the source lacks is absent or all null, and named in `absent`.
        counts: The table's account.
        dates: How each column of text is read as dates; default: as ISO dates.
        decimal: Column of numbers → its decimal mark; default: a point.
        absent: Columns that the source lacks: they are null, and not counted.
        zone: Zone of the clocks of instants that are written with an offset; default: UTC.
    """

    def __init__(
        self,
        rows: pa.Table,
        counts: TableCounts,
        *,
        dates: Mapping[str, DateColumn] | None = None,
        decimal: Mapping[str, str] | None = None,
        absent: frozenset[str] = frozenset(),
        zone: tzinfo | None = None,
    ) -> None:
        self.rows, self.counts = rows, counts
        self.source = pa.array(counts.take(len(rows)))
        self._dates, self._decimal = dates or {}, decimal or {}
        self._absent, self._zone = absent, zone
        self._done: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._values: dict[str, int] = {}  # of each column that was read

    def __len__(self) -> int:
        return len(self.rows)

    def times(self, name: str) -> pa.ChunkedArray:
        """(n,) a column as timestamp[us], to the second; a date is at midnight."""
        how = self._dates.get(name, ISO_COLUMN)
        return self._column(name, "times", lambda cells: as_times(cells, how, self._zone))

    def numbers(self, name: str) -> pa.ChunkedArray:
        """(n,) a column as float64."""
        decimal = self._decimal.get(name, ".")
        return self._column(name, "numbers", lambda cells: as_numbers(cells, decimal))

    def whole(self, name: str) -> pa.ChunkedArray:
        """(n,) a column of ids or counts as int64."""
        return self._column(name, "whole", as_whole)

    def text(self, name: str) -> pa.ChunkedArray:
        """(n,) a column as text without outer blanks; null where nothing is left."""
        return self._column(name, "text", as_text)

    def coded(self, name: str) -> pa.ChunkedArray:
        """(n,) as `text`, of a dictionary: quick where few texts recur."""
        return self._column(name, "coded", as_coded)

    def is_text(self, name: str) -> bool:
        """Whether a column is there, and written as text."""
        return name in self.rows.column_names and _is_text(self.rows[name].type)

    def _column(
        self, name: str, kind: str, read: Callable[[pa.ChunkedArray], pa.ChunkedArray]
    ) -> pa.ChunkedArray:
        if (name, kind) not in self._done:
            if name not in self.rows.column_names:
                cells = pa.chunked_array([pa.nulls(len(self.rows), pa.string())])
            else:
                cells = self.rows[name]
            found = read(cells)
            if name in self.rows.column_names and name not in self._absent:
                self._count(name, cells, len(found) - found.null_count)
            self._done[name, kind] = found
        return self._done[name, kind]

    def _count(self, name: str, cells: pa.ChunkedArray, values: int) -> None:
        """Count the cells of a column once; one that is read in two ways counts where both could read it."""
        if name not in self._values:
            self.counts.count_cells(name, len(cells), len(cells) - _empty(cells), values)
        elif values < self._values[name]:
            self.counts.uncount_values(name, self._values[name] - values)
        self._values[name] = min(values, self._values.get(name, values))


def _empty(cells: pa.ChunkedArray) -> int:
    """How many cells are null, NaN or blank."""
    if pa.types.is_floating(cells.type):
        return int(cells.null_count + (pc.sum(pc.is_nan(cells)).as_py() or 0))
    if not _is_text(cells.type):
        return int(cells.null_count)
    blank = pc.sum(pc.equal(pc.utf8_trim_whitespace(cells), "")).as_py() or 0
    return int(cells.null_count + blank)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_times(
    cells: pa.ChunkedArray, how: DateColumn = ISO_COLUMN, zone: tzinfo | None = None
) -> pa.ChunkedArray:
    """Dates and times of any type as timestamp[us]; see `parse_times` for text."""
    kind = cells.type
    if _is_text(kind):
        return pa.chunked_array([parse_times(cells, how, zone)])
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        name = "UTC" if zone is None else str(zone)
        cells = pc.local_timestamp(cells.cast(pa.timestamp("us", name), safe=False))
    return cells.cast(pa.timestamp("us"), safe=False)


def as_numbers(cells: pa.ChunkedArray, decimal: str = ".") -> pa.ChunkedArray:
    """Numbers of any type as float64; NaN is null."""
    if _is_text(cells.type):
        return parse_numbers(cells, decimal)
    numbers = cells.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


def as_whole(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers of any type as int64; a text such as 12.0 is one, 12.7 is none.

    >>> as_whole(pa.chunked_array([["12", " 13.0", "1.5", "x", None]])).to_pylist()
    [12, 13, None, None, None]
    """
    if not _is_text(cells.type):
        if pa.types.is_integer(cells.type):
            return cells.cast(pa.int64())
        numbers = cells.cast(pa.float64(), safe=False)
        whole = pc.and_(pc.is_finite(numbers), pc.equal(pc.floor(numbers), numbers))
        kept = pc.if_else(whole, numbers, pa.scalar(None, pa.float64()))
        return kept.cast(pa.int64(), safe=False)
    trimmed = pc.utf8_trim_whitespace(cells)
    good = pc.match_substring_regex(trimmed, _WHOLE)
    digits = pc.replace_substring_regex(pc.if_else(good, trimmed, _NO_TEXT), r"\.0*$|^\+", "")
    size = pc.replace_substring_regex(digits, "^-", "")
    fits = pc.or_(pc.less(pc.utf8_length(size), 19), pc.less_equal(size, _MOST))
    return pc.if_else(fits, digits, _NO_TEXT).cast(pa.int64())


def as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without outer blanks; null where nothing is left."""
    if cells.null_count == len(cells):
        return cells.cast(pa.string())
    if not _is_text(cells.type):
        return cells.cast(pa.string())
    trimmed = pc.utf8_trim_whitespace(cells.cast(pa.string()))
    return pc.if_else(pc.equal(trimmed, ""), _NO_TEXT, trimmed)


def as_coded(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without outer blanks, of a dictionary; null where nothing is left."""
    if not pa.types.is_dictionary(cells.type):
        cells = cells.cast(pa.string()).dictionary_encode()
    places = cells.unify_dictionaries().combine_chunks()
    texts = as_text(pa.chunked_array([places.dictionary]))
    few = texts.combine_chunks().dictionary_encode()
    again = few.indices.take(places.indices)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(again, few.dictionary)])


def open_text(path: Path) -> TextIO:
    """Open a UTF-8 text file, plain or gz."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def parse_times(
    text: pa.ChunkedArray,
    column: DateColumn = ISO_COLUMN,
    zone: tzinfo | None = None,
    *,
    as_written: bool = False,
) -> pa.Array:
    """Dates and times as timestamp[us], to the second. A date becomes midnight.

    A time with an offset, or with Z, UTC or GMT, becomes the clock of `zone`, of UTC without one. With `as_written` it
    keeps the clock that it shows, unless that is the clock of UTC. A 12-hour clock needs AM or PM. What is no such
    time, or no day of the calendar, is null.

    >>> parse_times(pa.chunked_array([["2015-02-28T10:11:12Z", "2016-02-29", "2015-02-30", None]])).to_pylist()
    [datetime.datetime(2015, 2, 28, 10, 11, 12), datetime.datetime(2016, 2, 29, 0, 0), None, None]
    >>> parse_times(pa.chunked_array([["2015-02-28T10:11:12.5+02:00", "2015-02-28 01:02 PM"]])).to_pylist()
    [datetime.datetime(2015, 2, 28, 8, 11, 12), datetime.datetime(2015, 2, 28, 13, 2)]
    """
    if column.plain:
        plain = _iso_times(text)
        if plain is not None:
            return plain
    elif column.order is not None:
        for pattern, iso in TO_ISO[column.order]:
            text = pc.replace_substring_regex(text, pattern, iso)
    parts = pc.extract_regex(text, pattern=_TIME)
    parts = parts.combine_chunks() if isinstance(parts, pa.ChunkedArray) else parts
    year, month, day, hour, minute, second = (_number(pc.struct_field(parts, i)) for i in range(6))
    hour, good = _of_24_hours(hour, pc.struct_field(parts, 6))
    dates = dates_us(year, month, day)
    good &= np.asarray(parts.is_valid()) & np.asarray(dates.is_valid())
    good &= (minute < 60) & (second < 60)
    midnight = np.asarray(pc.fill_null(dates.cast(pa.int64()), 0))
    us = midnight + ((hour * 60 + minute) * 60 + second) * SECOND_US
    offset = pc.fill_null(pc.struct_field(parts, 7), "")
    if as_written:
        offset = pc.if_else(pc.equal(pa.array(_offset_us(offset)), 0), offset, "")
    return _in_zone(us, ~good, offset, zone)


def _iso_times(text: pa.ChunkedArray) -> pa.Array | None:
    """Times where every cell is an ISO day, minute or second without an offset; else None."""
    filled = text.drop_null()
    if not pc.all(pc.is_in(pc.utf8_length(filled), _ISO_LENGTHS)).as_py():
        return None
    try:
        times = text.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None
    return times.combine_chunks()


def _of_24_hours(hour: Ints, half: pa.Array) -> tuple[Ints, Any]:
    """The hours of a 24-hour clock, and which of them exist."""
    half = pc.utf8_lower(pc.fill_null(half, ""))
    is_half = np.asarray(pc.not_equal(half, ""))
    if not is_half.any():
        return hour, hour < 24
    afternoon = np.asarray(pc.equal(half, "pm"))
    of_day = np.where(is_half, hour % 12 + 12 * afternoon, hour)
    return of_day, np.where(is_half, (hour >= 1) & (hour <= 12), hour < 24)


def _in_zone(us: Ints, bad: Any, written: pa.Array, zone: tzinfo | None) -> pa.Array:
    """Clocks as timestamps; those with an offset as clocks of the zone."""
    zoned = np.asarray(pc.not_equal(written, ""))
    if not zoned.any():
        return pa.array(us, mask=bad).cast(pa.timestamp("us"))
    utc = pa.array(us - _offset_us(written), mask=bad).cast(pa.timestamp("us"))
    if zone is None:
        return utc
    there = utc.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", str(zone)))
    return pc.if_else(pa.array(zoned), pc.local_timestamp(there), utc)


def _offset_us(offset: pa.Array) -> Ints:
    """Offsets from UTC in microseconds: +02:00, +0200 and +02 are two hours; Z, UTC and GMT are none."""
    digits = pc.replace_substring_regex(pc.fill_null(offset, ""), "[A-Z]+", "")
    hours, minutes = (_number(pc.utf8_slice_codeunits(digits, *at)) for at in ((1, 3), (-2, None)))
    minutes = np.where(np.asarray(pc.greater(pc.utf8_length(digits), 3)), minutes, 0)
    sign = np.where(np.asarray(pc.starts_with(digits, "-")), -1, 1)
    return np.asarray(sign * (hours * 60 + minutes) * 60 * SECOND_US, dtype=np.int64)


def dates_us(year: Ints, month: Ints, day: Ints) -> pa.Array:
    """Midnights as timestamp[us]; null for a day that does not exist or a year outside 1 to 9999.

    >>> dates_us(np.array([2016, 2015]), np.array([2, 2]), np.array([29, 29])).to_pylist()
    [datetime.datetime(2016, 2, 29, 0, 0), None]
    """
    months = (np.clip(year, 1, 9999) - 1970) * 12 + np.clip(month, 1, 12) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - first
    good = (
        (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= length)
    )
    return pa.array((first + day - 1) * DAY_US, mask=~good).cast(pa.timestamp("us"))


def _number(digits: pa.Array) -> Ints:
    """Digits as integers; null and empty text are 0."""
    filled = pc.if_else(pc.equal(pc.fill_null(digits, ""), ""), "0", digits)
    return np.asarray(filled.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)


def parse_numbers(text: pa.ChunkedArray, decimal: str = ".") -> pa.ChunkedArray:
    """Decimal numbers as float64; everything else is null.

    >>> parse_numbers(pa.chunked_array([["7.5", "-1e3", "< 5", "", None]])).to_pylist()
    [7.5, -1000.0, None, None, None]
    >>> parse_numbers(pa.chunked_array([["7,5", "1.234,5", "7.5"]]), decimal=",").to_pylist()
    [7.5, 1234.5, None]
    """
    trimmed = pc.utf8_trim_whitespace(text)
    good = pc.fill_null(pc.match_substring_regex(trimmed, _NUMBER[decimal]), False)
    if decimal == ",":
        trimmed = pc.replace_substring(pc.replace_substring(trimmed, ".", ""), ",", ".")
    return pc.if_else(good, trimmed, _NO_TEXT).cast(pa.float64())
