"""Cells of a source → times, numbers and ids. Every cell of a column that is used is read, empty, or counted as unread.

All readers of tables read their cells here, so that the same text means the same in each of them:
cells in = values + empty + unread, column by column (`import_report.Cells`).
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.parquet_rows import is_text

_DAY, _MONTH, _YEAR = (
    r"(?P<d>0?[1-9]|[12]\d|3[01])",
    r"(?P<mo>0?[1-9]|1[0-2])",
    r"(?P<y>\d{4})",
)
_DATES = {  # the year may also be followed by two digits each
    "ymd": rf"(?:{_YEAR}[-/.]{_MONTH}[-/.]{_DAY}|(?P<y2>\d{{4}})(?P<mo2>\d\d)(?P<d2>\d\d))",
    "dmy": rf"{_DAY}[-/.]{_MONTH}[-/.]{_YEAR}(?P<y2>)(?P<mo2>)(?P<d2>)",
    "mdy": rf"{_MONTH}[-/.]{_DAY}[-/.]{_YEAR}(?P<y2>)(?P<mo2>)(?P<d2>)",
}
_CLOCK = (
    r"(?:[T ]+(?P<h>\d{1,2}):(?P<mi>[0-5]\d)(?::(?P<s>[0-5]\d)(?:[.,]\d+)?)?"
    r" ?(?P<half>[AaPp][Mm])? ?(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?"
)
TIMES: dict[str, str] = {order: rf"^\s*{date}{_CLOCK}\s*$" for order, date in _DATES.items()}
_PARTS = ("y", "mo", "d", "y2", "mo2", "d2", "h", "mi", "s", "half", "zone")
_FORMS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %I:%M:%S%p")
_ISO_LIKE = "____-__-__%"  # far cheaper than a regular expression
_ISO_LENGTHS = pa.array([10, 16, 19], pa.int32())  # a day, a minute, a second
_EXPONENT = r"([eE][+-]?\d{1,3})?$"
_NUMBER = {
    ".": r"^[+-]?(\d+\.?\d*|\.\d+)" + _EXPONENT,
    # 1.234,5 has a dot between thousands, and 0.125 has none
    ",": r"^[+-]?(([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d*)?|,\d+)" + _EXPONENT,
}
# 2.023E+11, 2,023E+11 and 2E+11, but not 12E34, which may be an id
_SCIENTIFIC = r"^\s*[+-]?(\d+[eE][+-]\d+|\d+[.,]\d+[eE][+-]?\d+)\s*$"
FORMS_OF_IDS = {  # what ids look like that are no whole numbers; the first that any of them has counts
    "numbers in scientific notation, which lost their last digits,": _SCIENTIFIC,
    "numbers with leading zeros": r"^\s*0\d+\s*$",
    "decimal numbers": r"^\s*[+-]?\d*[.,]\d+\s*$",
    "text": "",
}
_WHOLE = r"^[+-]?\d{1,19}(\.0*)?$"
WHOLE_TEXT = r"^([+-]?\d+)(\.0*|,00?)?$"  # 1, and 1.0 as pandas writes it in a column with gaps
_WANTED = {  # by the method of `Block`
    "times": "dates or as yyyymmdd",
    "numbers": "numbers",
    "whole": "whole numbers of 64 bits",
    "text": "text",
    "name": "text",
}
_MOST = pa.scalar(str(np.iinfo(np.int64).max))
NO_TEXT = pa.scalar(None, pa.string())
NO_NUMBER = pa.scalar(None, pa.float64())


class Block:
    """Some rows of a table, as text or as typed columns; each column is read once, and its cells are counted.

    Args:
        rows: Columns by name. One that the source lacks is absent: it is read as null, and not counted.
        counts: The table's account.
        dates: Column of text → the order of its dates, or how they are written; default: they begin with the year.
        zone: Zone of the clocks of instants that are written with an offset; default: UTC.
        decimal: Decimal mark of numbers written as text.
    """

    def __init__(
        self,
        rows: pa.Table,
        counts: TableCounts,
        *,
        dates: Mapping[str, str] | None = None,
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

    def agreed(self, name: str, date: pa.ChunkedArray) -> pa.ChunkedArray:
        """(n,) a column of moments as `times`, or the date of the row without one, or if they are days apart."""
        moment = self.times(name)
        day_us = pc.floor_temporal(moment, unit="day").cast(pa.int64())
        days = pc.divide(pc.abs(pc.subtract(day_us, date.cast(pa.int64()))), DAY_US)
        is_far = pc.fill_null(pc.greater(days, 1), False)
        far = pc.sum(is_far).as_py() or 0
        self.counts.far_days[name] += far
        self.counts.rules["far_day"] += far
        self.counts.rules["near_day"] += pc.sum(pc.equal(days, 1)).as_py() or 0
        return pc.if_else(is_far, date, pc.coalesce(moment, date))

    def numbers(self, name: str) -> pa.ChunkedArray:
        """(n,) a column as float64."""
        return self._column(name, "numbers", lambda cells: as_numbers(cells, self._decimal))

    def whole(self, name: str) -> pa.ChunkedArray:
        """(n,) a column of ids or counts as int64."""
        return self._column(name, "whole", as_whole)

    def name(self, name: str) -> pa.ChunkedArray:
        """(n,) a column of ids or units as `text`; None is null, as everywhere but in codes and other texts."""
        return self._column(name, "name", as_text)

    def text(self, name: str) -> pa.ChunkedArray:
        """(n,) a column as text without outer blanks; null where nothing is left."""
        return self._column(name, "text", as_text)

    def _column(
        self, name: str, kind: str, read: Callable[[pa.ChunkedArray], pa.ChunkedArray]
    ) -> pa.ChunkedArray:
        if name not in self.rows.column_names:
            return read(pa.chunked_array([pa.nulls(len(self), pa.string())]))
        if (name, kind) not in self._done:
            cells = self.rows[name]
            if kind != "text" and is_text(cells.type):
                cells = pc.if_else(pc.equal(cells, "None"), NO_TEXT, cells)
            try:
                values = self._done[name, kind] = read(cells)
            except pa.ArrowException:  # which may hold a cell
                raise EhrseqError(
                    f"its type {self.rows[name].type} cannot be read as {_WANTED[kind]}",
                    where=f"table {self.counts.name}, column {name}",
                    fix="store it in another type, or as text",
                ) from None
            # each cell counts once; one of a column that is read in two ways where both could read it
            n = len(values) - values.null_count
            if name not in self._values:
                plain = as_text(cells) if is_text(cells.type) else cells
                empty = pc.sum(pc.is_null(plain, nan_is_null=True)).as_py() or 0
                self.counts.count_cells(name, len(self), len(self) - empty, n)
            elif n < self._values[name]:
                self.counts.count_cells(name, 0, 0, n - self._values[name])
            self._values[name] = min(n, self._values.get(name, n))
        return self._done[name, kind]


def as_times(
    cells: pa.ChunkedArray, order: str = "ymd", zone: tzinfo | None = None
) -> pa.ChunkedArray:
    """Dates, timestamps and yyyymmdd of integers as timestamp[us], to the second; see `parse_times` for text.

    Raises:
        pa.ArrowException: The column is of another type, or holds an integer that has not 8 digits.
    """
    kind = cells.type
    if pa.types.is_integer(kind):
        cells = cells.cast(pa.string())
        if pc.all(pc.match_substring_regex(cells, r"^\d{8}$")).as_py() is False:
            raise pa.ArrowInvalid("not all are yyyymmdd")
        return parse_times(cells)
    if is_text(kind):
        return parse_times(cells, order, zone)
    if pa.types.is_timestamp(kind):
        cells = pc.floor_temporal(cells, unit="second")
        if kind.tz is not None:
            there = pa.timestamp("us", str(zone or "UTC"))
            cells = pc.local_timestamp(cells.cast(there, safe=False))
    return cells.cast(pa.timestamp("us"), safe=False)


def as_numbers(cells: pa.ChunkedArray, decimal: str = ".") -> pa.ChunkedArray:
    """Numbers of any type as float64; NaN is null."""
    if is_text(cells.type):
        return parse_numbers(cells, decimal)
    numbers = cells.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(numbers), NO_NUMBER, numbers)


def as_whole(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers of any type as int64, decimals exactly; a text such as 12.0 is one, 12.7 is none.

    >>> as_whole(pa.chunked_array([["12", " 13.0", "1.5", "x", None]])).to_pylist()
    [12, 13, None, None, None]
    """
    if pa.types.is_integer(cells.type):
        return cells.cast(pa.int64())
    if pa.types.is_decimal(cells.type):
        whole = pc.if_else(pc.equal(pc.floor(cells), cells), cells, pa.scalar(None, cells.type))
        cells = whole.cast(pa.decimal256(76, 0), safe=False).cast(pa.string())
    if not is_text(cells.type):
        numbers = cells.cast(pa.float64(), safe=False)
        whole = pc.and_(pc.less(pc.abs(numbers), 2.0**63), pc.equal(pc.floor(numbers), numbers))
        return pc.if_else(whole, numbers, NO_NUMBER).cast(pa.int64(), safe=False)
    trimmed = pc.utf8_trim_whitespace(cells)
    good = pc.match_substring_regex(trimmed, _WHOLE)
    digits = pc.replace_substring_regex(pc.if_else(good, trimmed, NO_TEXT), r"\.0*$|^\+", "")
    size = pc.replace_substring_regex(digits, "^-", "")
    fits = pc.or_(pc.less(pc.utf8_length(size), 19), pc.less_equal(size, _MOST))
    return pc.if_else(fits, digits, NO_TEXT).cast(pa.int64())


def as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without outer blanks; null where nothing is left. A whole number has no decimals and no exponent."""
    if pa.types.is_floating(cells.type):
        return pc.coalesce(as_whole(cells).cast(pa.string()), cells.cast(pa.string()))
    if cells.null_count == len(cells) or not is_text(cells.type):
        return cells.cast(pa.string())
    trimmed = pc.utf8_trim_whitespace(cells.cast(pa.string()))
    return pc.if_else(pc.equal(trimmed, ""), NO_TEXT, trimmed)


def whole_text(text: Any) -> Any:
    """Texts with the decimals of whole numbers left out; others stay as they are.

    >>> whole_text(pa.array(["1.0", "1", "-2,00", "1.5", "01.0", "7.000", "5.397605346934028e-79"])).to_pylist()
    ['1', '1', '-2', '1.5', '01', '7', '0']
    """
    # pandas reads the 0 of a SAS transport file as 5.4e-79
    text = pc.replace_substring_regex(text, r"^5\.397605346934\d*[eE]-79$", "0")
    return pc.replace_substring_regex(text, WHOLE_TEXT, r"\1")


def key_places(text: pa.ChunkedArray, keys: Sequence[str]) -> pa.ChunkedArray:
    """(n,) the place of each text among the keys of a map, null for none; 1.0 and 1 are the same key.

    >>> key_places(pa.chunked_array([["1.0", "x", "2", "250.0", None]]), ["1", "2.0", "250", "250.0"]).to_pylist()
    [0, None, 1, 3, None]
    """
    exact = pc.index_in(text, value_set=pa.array(keys))
    return pc.coalesce(exact, pc.index_in(whole_text(text), value_set=whole_text(pa.array(keys))))


def refuse_scientific(block: Block, name: str) -> None:
    """Refuse ids that a spreadsheet has shortened: those of several people are equal.

    Raises:
        EhrseqError: A cell of the column is a number in scientific notation.
    """
    lost = pc.sum(pc.match_substring_regex(block.name(name), _SCIENTIFIC)).as_py()
    if lost:
        raise EhrseqError(
            f"{lost:,} ids are in scientific notation, as 2.023E+11: they have lost their last digits",
            where=f"table {block.counts.name}, column {name}",
            fix="export the table again, with the ids as text, and open it in no spreadsheet",
        )


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


def date_order(counts: Counter[str], setting: str | None, *, where: str) -> str:
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
        raise EhrseqError(
            f"its dates {both if fits else 'are written in several ways'}",
            where=where,
            fix="name the order by one more argument: import.dates=dmy, import.dates=mdy or import.dates=ymd",
        )
    return fits[0]


def parse_times(
    text: pa.ChunkedArray,
    order: str = "ymd",
    zone: tzinfo | None = None,
    *,
    as_written: bool = False,
) -> pa.ChunkedArray:
    """Dates and times as timestamp[us], to the second. A date becomes midnight.

    A time with an offset, or with Z, UTC or GMT, becomes the clock of `zone`, of UTC without one. With `as_written` it
    keeps the clock that it shows, unless that is the clock of UTC. A 12-hour clock needs AM or PM. What is no such
    time, or no day of the calendar, is null.

    >>> parse_times(pa.chunked_array([["2015-02-28T10:11:12Z", "2016-02-29", "2015-02-30", None]])).to_pylist()
    [datetime.datetime(2015, 2, 28, 10, 11, 12), datetime.datetime(2016, 2, 29, 0, 0), None, None]
    >>> parse_times(pa.chunked_array([["2015-02-28T10:11:12.5+02:00", "2015-02-28 01:02 PM"]])).to_pylist()
    [datetime.datetime(2015, 2, 28, 8, 11, 12), datetime.datetime(2015, 2, 28, 13, 2)]
    """
    if "%" in order:
        iso = parse_times(text, "ymd", zone, as_written=as_written)
        times = _strptime(pc.utf8_trim_whitespace(text), order)
        us = np.asarray(pc.fill_null(times.cast(pa.int64()), 0)).astype("datetime64[us]")
        month = us.astype("datetime64[M]")
        earlier = (month - 1200).astype("datetime64[us]") + (us - month)
        late = ("%y" in order) & (us > np.datetime64("now"))  # two digits are no year to come
        us = np.where(late, earlier, us)
        missing = np.asarray(times.is_null())
        return pc.coalesce(iso, pa.chunked_array([pa.array(us, pa.timestamp("us"), mask=missing)]))
    lengths = pc.utf8_length(text.drop_null())
    if order == "ymd" and pc.all(pc.is_in(lengths, _ISO_LENGTHS)).as_py():
        try:  # days, minutes or seconds: far cheaper
            return text.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            pass
    groups = pc.extract_regex(text, pattern=TIMES[order])
    part = {name: pc.struct_field(groups, name) for name in _PARTS}
    clock = [pc.replace_substring_regex(part[name], "^$", "00") for name in ("h", "mi", "s")]
    day = _text(part["d"], part["d2"])
    date = _text(part["y"], part["y2"], "-", part["mo"], part["mo2"], "-", day)
    written = _text(date, " ", clock[0], ":", clock[1], ":", clock[2], part["half"])
    local = pc.coalesce(*(_strptime(written, form) for form in _FORMS))
    is_day = pc.equal(pc.day(local), day.cast(pa.int64()))  # and not the 30th of February
    is_day = pc.and_(is_day, pc.greater(pc.year(local), 0))
    local = pc.if_else(is_day, local, pa.scalar(None, local.type))
    offset = pc.replace_substring_regex(part["zone"], "^(UTC|GMT|)$", "Z")
    offset = pc.replace_substring_regex(offset, r"^(...)$", r"\1:00")
    west = _strptime(_text("1970-01-01", offset), "%Y-%m-%d%z").cast(pa.int64())
    has_offset = pc.not_equal(part["zone"], "")
    if as_written:
        has_offset = pc.and_(has_offset, pc.equal(west, 0))
    utc = pc.add(local.cast(pa.int64()), west).cast(pa.timestamp("us", "UTC"))
    there = pc.local_timestamp(utc.cast(pa.timestamp("us", str(zone or "UTC"))))
    return pc.if_else(has_offset, there, local)


def _text(*parts: Any) -> Any:
    """Texts one after another; null where one is null."""
    return pc.binary_join_element_wise(*parts, "")


def _strptime(text: Any, form: str) -> Any:
    return pc.strptime(text, format=form, unit="us", error_is_null=True)


def shapes(cells: pa.ChunkedArray, values: pa.ChunkedArray) -> list[str]:
    """The forms of two cells that were not read: 9 for a digit, A and a for letters.

    >>> shapes(pa.chunked_array([["03-Feb-15", "2015-01-01"]]), pa.chunked_array([[None, 1]]))
    ['99-Aaa-99']
    """
    unread = pc.unique(cells.filter(pc.and_(cells.is_valid(), values.is_null()))).to_pylist()
    forms = [re.sub("[^\\W\\d_]", _letter, re.sub(r"\d", "9", str(cell)[:20])) for cell in unread]
    return list(dict.fromkeys(forms))[:2]


def _letter(match: re.Match[str]) -> str:
    return "A" if match[0].isupper() else "a"


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
