"""Cells of a source → times, numbers and ids. Every cell of a column that is used is read, empty, or counted as unread.

All readers of tables read their cells here, so that the same text means the same in each of them:
cells in = values + empty + unread, column by column (`import_report.Cells`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.records.events import DAY_US, SECOND_US

Order = Literal["ymd", "dmy", "mdy"]

_DAY, _MONTH, _YEAR = (
    r"(?P<d>0?[1-9]|[12]\d|3[01])",
    r"(?P<mo>0?[1-9]|1[0-2])",
    r"(?P<y>\d{4})",
)
_NUMBERS = ("y", "mo", "mo2", "d", "d2", "h", "mi", "s")
_NO_DIGITS = r"(?P<mo2>)(?P<d2>)"
_CLOCK = (
    r"(?:[T ]+(?P<h>\d{1,2}):(?P<mi>\d{2})(?::(?P<s>\d{2})(?:[.,]\d+)?)?"
    r" ?(?P<half>[AaPp][Mm])? ?(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?"
)
_DATES: dict[Order, str] = {  # the year may also be followed by two digits each
    "ymd": rf"{_YEAR}(?:[-/.]{_MONTH}[-/.]{_DAY}|(?P<mo2>\d\d)(?P<d2>\d\d))",
    "dmy": rf"{_DAY}[-/.]{_MONTH}[-/.]{_YEAR}{_NO_DIGITS}",
    "mdy": rf"{_MONTH}[-/.]{_DAY}[-/.]{_YEAR}{_NO_DIGITS}",
}
TIMES: dict[Order, str] = {order: rf"^\s*{date}{_CLOCK}\s*$" for order, date in _DATES.items()}
_ISO_LIKE = "____-__-__%"  # far cheaper than a regular expression
_ISO_LENGTHS = pa.array([10, 16, 19], pa.int32())  # a day, a minute, a second
_EXPONENT = r"([eE][+-]?\d{1,3})?$"
_NUMBER = {
    ".": r"^[+-]?(\d+\.?\d*|\.\d+)" + _EXPONENT,
    # 1.234,5 has a dot between thousands
    ",": r"^[+-]?((\d{1,3}(\.\d{3})+|\d+)(,\d*)?|,\d+)" + _EXPONENT,
}
_WHOLE = r"^[+-]?\d{1,19}(\.0*)?$"
_MOST = pa.scalar(str(np.iinfo(np.int64).max))
NO_TEXT = pa.scalar(None, pa.string())
NO_NUMBER = pa.scalar(None, pa.float64())


class Block:
    """Some rows of a table, as text or as typed columns; each column is read once, and its cells are counted.

    Args:
        rows: Columns by name. One that the source lacks is absent: it is read as null, and not counted.
        counts: The table's account.
        dates: Column of text → the order of its dates; default: they begin with the year.
        zone: Zone of the clocks of instants that are written with an offset; default: UTC.
        decimal: Decimal mark of numbers written as text.
    """

    def __init__(
        self,
        rows: pa.Table,
        counts: TableCounts,
        *,
        dates: Mapping[str, Order] | None = None,
        zone: tzinfo | None = None,
        decimal: str = ".",
    ) -> None:
        self.rows, self.counts = rows, counts
        self.source = pa.array(counts.take(len(rows)))
        self._dates, self._zone, self._decimal = dates or {}, zone, decimal
        self._done: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._values: dict[str, int] = {}  # of each column that was read

    def __len__(self) -> int:
        return len(self.rows)

    def times(self, name: str) -> pa.ChunkedArray:
        """(n,) a column as timestamp[us], to the second; a date is at midnight."""
        order = self._dates.get(name, "ymd")
        return self._column(name, "times", lambda cells: as_times(cells, order, self._zone))

    def numbers(self, name: str) -> pa.ChunkedArray:
        """(n,) a column as float64."""
        return self._column(name, "numbers", lambda cells: as_numbers(cells, self._decimal))

    def whole(self, name: str) -> pa.ChunkedArray:
        """(n,) a column of ids or counts as int64."""
        return self._column(name, "whole", as_whole)

    def text(self, name: str) -> pa.ChunkedArray:
        """(n,) a column as text without outer blanks; null where nothing is left."""
        return self._column(name, "text", as_text)

    def coded(self, name: str) -> pa.ChunkedArray:
        """(n,) as `text`, of a dictionary: quick where few texts recur."""
        return self._column(name, "coded", as_coded)

    def _column(
        self, name: str, kind: str, read: Callable[[pa.ChunkedArray], pa.ChunkedArray]
    ) -> pa.ChunkedArray:
        if name not in self.rows.column_names:
            return read(pa.chunked_array([pa.nulls(len(self), pa.string())]))
        if (name, kind) not in self._done:
            found = self._done[name, kind] = read(self.rows[name])
            self._count(name, len(found) - found.null_count)
        return self._done[name, kind]

    def _count(self, name: str, values: int) -> None:
        """Count the cells of a column once; one that is read in two ways counts where both could read it."""
        if name not in self._values:
            filled = len(self) - _empty(self.rows[name])
            self.counts.count_cells(name, len(self), filled, values)
        elif values < self._values[name]:
            self.counts.uncount_values(name, self._values[name] - values)
        self._values[name] = min(values, self._values.get(name, values))


def _empty(cells: pa.ChunkedArray) -> int:
    """How many cells are null, NaN or blank."""
    empty = cells.null_count
    if pa.types.is_floating(cells.type):
        empty += pc.sum(pc.is_nan(cells)).as_py() or 0
    elif is_text(cells.type):
        empty += pc.sum(pc.equal(pc.utf8_trim_whitespace(cells), "")).as_py() or 0
    return int(empty)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_times(
    cells: pa.ChunkedArray, order: Order = "ymd", zone: tzinfo | None = None
) -> pa.ChunkedArray:
    """Dates and times of any type as timestamp[us]; see `parse_times` for text."""
    kind = cells.type
    if is_text(kind):
        return pa.chunked_array([parse_times(cells, order, zone)])
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        name = "UTC" if zone is None else str(zone)
        cells = pc.local_timestamp(cells.cast(pa.timestamp("us", name), safe=False))
    return cells.cast(pa.timestamp("us"), safe=False)


def as_numbers(cells: pa.ChunkedArray, decimal: str = ".") -> pa.ChunkedArray:
    """Numbers of any type as float64; NaN is null."""
    if is_text(cells.type):
        return parse_numbers(cells, decimal)
    numbers = cells.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(numbers), NO_NUMBER, numbers)


def as_whole(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers of any type as int64; a text such as 12.0 is one, 12.7 is none.

    >>> as_whole(pa.chunked_array([["12", " 13.0", "1.5", "x", None]])).to_pylist()
    [12, 13, None, None, None]
    """
    if pa.types.is_integer(cells.type):
        return cells.cast(pa.int64())
    if not is_text(cells.type):
        numbers = cells.cast(pa.float64(), safe=False)
        whole = pc.and_(pc.is_finite(numbers), pc.equal(pc.floor(numbers), numbers))
        return pc.if_else(whole, numbers, NO_NUMBER).cast(pa.int64(), safe=False)
    trimmed = pc.utf8_trim_whitespace(cells)
    good = pc.match_substring_regex(trimmed, _WHOLE)
    digits = pc.replace_substring_regex(pc.if_else(good, trimmed, NO_TEXT), r"\.0*$|^\+", "")
    size = pc.replace_substring_regex(digits, "^-", "")
    fits = pc.or_(pc.less(pc.utf8_length(size), 19), pc.less_equal(size, _MOST))
    return pc.if_else(fits, digits, NO_TEXT).cast(pa.int64())


def as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without outer blanks; null where nothing is left."""
    if cells.null_count == len(cells) or not is_text(cells.type):
        return cells.cast(pa.string())
    trimmed = pc.utf8_trim_whitespace(cells.cast(pa.string()))
    return pc.if_else(pc.equal(trimmed, ""), NO_TEXT, trimmed)


def as_coded(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without outer blanks, of a dictionary; null where nothing is left."""
    places = cells.cast(pa.string()).combine_chunks().dictionary_encode()
    texts = as_text(pa.chunked_array([places.dictionary]))
    few = texts.combine_chunks().dictionary_encode()
    again = few.indices.take(places.indices)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(again, few.dictionary)])


# ---- dates and times written as text -----------------------------------------------------------


def count_dates(text: pa.ChunkedArray) -> Counter[str]:
    """How many cells can be read as dates in each order, and how many in any."""
    iso = pc.match_like(text, _ISO_LIKE)
    others = text.filter(pc.invert(iso))
    fits = {order: pc.match_substring_regex(others, pattern) for order, pattern in TIMES.items()}
    readable = pc.or_(pc.or_(fits["ymd"], fits["dmy"]), fits["mdy"])
    masks = [*fits.items(), ("any", readable)]
    counts = Counter({name: int(pc.sum(mask).as_py() or 0) for name, mask in masks})
    counts.update(dict.fromkeys(("ymd", "any"), int(pc.sum(iso).as_py() or 0)))
    return counts


def date_order(counts: Counter[str], setting: Order | None, *, where: str) -> Order:
    """Decide the order of day, month and year for a whole column, and never row by row.

    If every readable cell begins with the year, the order is ymd, whatever the setting. Cells that no order can read
    are ignored.

    Raises:
        EhrseqError: Without a setting, no order or more than one reads every readable cell.
    """
    fits = [order for order in TIMES if counts[order] == counts["any"]]
    if "ymd" in fits:
        return "ymd"
    if setting is not None:
        return setting
    if len(fits) != 1:
        both = "can be read as day/month and as month/day"
        what = f"its dates {both if fits else 'are written in several ways'}"
        fix = "name the order: import.dates=dmy, import.dates=mdy or import.dates=ymd"
        raise EhrseqError(what, where=where, fix=fix)
    return fits[0]


def parse_times(
    text: pa.ChunkedArray,
    order: Order = "ymd",
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
    if order == "ymd":
        plain = _iso_times(text)
        if plain is not None:
            return plain
    parts = pc.extract_regex(text, pattern=TIMES[order])
    parts = parts.combine_chunks() if isinstance(parts, pa.ChunkedArray) else parts
    number = {name: _number(pc.struct_field(parts, name)) for name in _NUMBERS}
    hour, good = _of_24_hours(number["h"], pc.struct_field(parts, "half"))
    dates = dates_us(number["y"], number["mo"] + number["mo2"], number["d"] + number["d2"])
    good &= np.asarray(parts.is_valid()) & np.asarray(dates.is_valid())
    good &= (number["mi"] < 60) & (number["s"] < 60)
    midnight = np.asarray(pc.fill_null(dates.cast(pa.int64()), 0))
    us = midnight + ((hour * 60 + number["mi"]) * 60 + number["s"]) * SECOND_US
    offset = pc.fill_null(pc.struct_field(parts, "zone"), "")
    zoned, east = np.asarray(pc.not_equal(offset, "")), _offset_us(offset)
    if as_written:
        zoned &= east == 0
    utc = pa.array(np.where(zoned, us - east, us), mask=~good).cast(pa.timestamp("us"))
    if zone is None or not zoned.any():
        return utc
    there = utc.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", str(zone)))
    return pc.if_else(pa.array(zoned), pc.local_timestamp(there), utc)


def _iso_times(text: pa.ChunkedArray) -> pa.Array | None:
    """Times where every cell is an ISO day, minute or second without an offset; else None."""
    filled = text.drop_null()
    if not pc.all(pc.is_in(pc.utf8_length(filled), _ISO_LENGTHS)).as_py():
        return None
    try:
        return text.cast(pa.timestamp("us")).combine_chunks()
    except pa.ArrowInvalid:
        return None


def _of_24_hours(hour: Ints, half: pa.Array) -> tuple[Ints, Any]:
    """The hours of a 24-hour clock, and which of them exist."""
    half = pc.utf8_lower(pc.fill_null(half, ""))
    is_half = np.asarray(pc.not_equal(half, ""))
    afternoon = np.asarray(pc.equal(half, "pm"))
    of_day = np.where(is_half, hour % 12 + 12 * afternoon, hour)
    return of_day, np.where(is_half, (hour >= 1) & (hour <= 12), hour < 24)


def _offset_us(offset: pa.Array) -> Ints:
    """Offsets from UTC in microseconds: +02:00, +0200 and +02 are two hours; Z, UTC and GMT are none."""
    digits = pc.replace_substring_regex(offset, "[A-Z:]", "")
    hours, minutes = (_number(pc.utf8_slice_codeunits(digits, at, at + 2)) for at in (1, 3))
    sign = np.where(np.asarray(pc.starts_with(digits, "-")), -1, 1)
    return np.asarray(sign * (hours * 60 + minutes) * 60 * SECOND_US, dtype=np.int64)


def dates_us(year: Ints, month: Ints, day: Ints) -> pa.Array:
    """Midnights as timestamp[us]; null for a day that does not exist or a year outside 1 to 9999.

    >>> dates_us(np.array([2016, 2015]), np.array([2, 2]), np.array([29, 29])).to_pylist()
    [datetime.datetime(2016, 2, 29, 0, 0), None]
    """
    months = (np.clip(year, 1, 9999) - 1970) * 12 + np.clip(month, 1, 12) - 1
    first, after = ((months + i).astype("datetime64[M]").astype("datetime64[D]") for i in (0, 1))
    length = (after - first).astype(np.int64)
    good = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12)
    good &= (day >= 1) & (day <= length)
    us = (first.astype(np.int64) + day - 1) * DAY_US
    return pa.array(us, mask=~good).cast(pa.timestamp("us"))


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
    return pc.if_else(good, trimmed, NO_TEXT).cast(pa.float64())
