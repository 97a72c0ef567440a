"""Text of source files → times and numbers; text that cannot be read becomes null."""

import gzip
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.readers.date_order import ISO_COLUMN, TO_ISO, DateColumn

_TIME = (
    r"^\s*(?P<y>\d{4})-(?P<mo>\d{1,2})-(?P<d>\d{1,2})"
    r"(?:[T ]+(?P<h>\d{1,2}):(?P<mi>\d{2})(?::(?P<s>\d{2}))?[^ +-]*(?: ?(?P<off>[+-]\d{2}(?::?\d{2})?))?)?\s*$"
)
_EXPONENT = r"([eE][+-]?\d{1,3})?$"
_NUMBER = {
    ".": r"^[+-]?(\d+\.?\d*|\.\d+)" + _EXPONENT,
    ",": r"^[+-]?((\d{1,3}(\.\d{3})+|\d+)(,\d*)?|,\d+)"
    + _EXPONENT,  # 1.234,5 has a dot between thousands
}


def open_text(path: Path) -> TextIO:
    """Open a UTF-8 text file, plain or gz."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def parse_times(text: pa.ChunkedArray, column: DateColumn = ISO_COLUMN) -> pa.Array:
    """Dates and times as timestamp[us], to the second. A date becomes midnight; a time with an offset becomes UTC.

    >>> parse_times(pa.chunked_array([["2015-02-28T10:11:12Z", "2016-02-29", "2015-02-30", None]])).to_pylist()
    [datetime.datetime(2015, 2, 28, 10, 11, 12), datetime.datetime(2016, 2, 29, 0, 0), None, None]
    >>> parse_times(pa.chunked_array([["2015-02-28T10:11:12.5+02:00"]])).to_pylist()
    [datetime.datetime(2015, 2, 28, 8, 11, 12)]
    """
    for pattern, iso in () if column.plain or column.order is None else TO_ISO[column.order]:
        text = pc.replace_substring_regex(text, pattern, iso)
    parts = pc.extract_regex(text, pattern=_TIME)
    parts = parts.combine_chunks() if isinstance(parts, pa.ChunkedArray) else parts
    year, month, day, hour, minute, second = (_number(pc.struct_field(parts, i)) for i in range(6))
    dates = dates_us(year, month, day)
    good = np.asarray(parts.is_valid()) & np.asarray(dates.is_valid())
    good &= (hour < 24) & (minute < 60) & (second < 60)
    us = (
        np.asarray(pc.fill_null(dates.cast(pa.int64()), 0))
        + ((hour * 60 + minute) * 60 + second) * 1_000_000
    )
    return pa.array(us - _offset_us(pc.struct_field(parts, 6)), mask=~good).cast(pa.timestamp("us"))


def _offset_us(offset: pa.Array) -> Ints:
    """Offsets from UTC in microseconds: +02:00, +0200 and +02 are two hours."""
    if not pc.any(pc.greater(pc.utf8_length(pc.fill_null(offset, "")), 0)).as_py():
        return np.zeros(len(offset), dtype=np.int64)
    hours, minutes = (_number(pc.utf8_slice_codeunits(offset, *at)) for at in ((1, 3), (-2, None)))
    minutes = np.where(
        np.asarray(pc.fill_null(pc.greater(pc.utf8_length(offset), 3), False)), minutes, 0
    )
    sign = np.where(np.asarray(pc.fill_null(pc.starts_with(offset, "-"), False)), -1, 1)
    return np.asarray(sign * (hours * 60 + minutes) * 60_000_000, dtype=np.int64)


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
    return pa.array((first + day - 1) * 86_400_000_000, mask=~good).cast(pa.timestamp("us"))


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
    return pc.if_else(good, trimmed, pa.scalar(None, pa.string())).cast(pa.float64())
