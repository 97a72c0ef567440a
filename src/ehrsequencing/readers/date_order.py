"""The order of day, month and year in dates written as text, decided for a whole column and never row by row.

Counts of the cells that each order can read go in; the order comes out, or an error where it is ambiguous.
"""

from dataclasses import dataclass, fields
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.errors import EhrseqError

Order = Literal["ymd", "dmy", "mdy"]

_DAY, _MONTH, _YEAR = r"(0?[1-9]|[12]\d|3[01])", r"(0?[1-9]|1[0-2])", r"(\d{4})"
_CLOCK = (
    r"([T ]+\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?"
    r" ?([AaPp][Mm])? ?(Z|UTC|GMT|[+-]\d{2}(:?\d{2})?)?)?"
)
# Patterns of a date, each with the replacement that makes it an ISO date.
_FORMATS: dict[Order, tuple[tuple[str, str], ...]] = {
    "ymd": (
        (rf"{_YEAR}[-/.]{_MONTH}[-/.]{_DAY}", r"\1-\2-\3"),
        (r"(\d{4})(\d{2})(\d{2})", r"\1-\2-\3"),
    ),
    "dmy": ((rf"{_DAY}[-/.]{_MONTH}[-/.]{_YEAR}", r"\3-\2-\1"),),
    "mdy": ((rf"{_MONTH}[-/.]{_DAY}[-/.]{_YEAR}", r"\3-\1-\2"),),
}
PATTERNS: dict[Order, str] = {
    order: rf"^\s*({'|'.join(pattern for pattern, _ in formats)}){_CLOCK}\s*$"
    for order, formats in _FORMATS.items()
}
# (pattern, replacement) to apply one after another to turn a date of this order into an ISO date.
TO_ISO: dict[Order, tuple[tuple[str, str], ...]] = {
    order: tuple((rf"^\s*{pattern}", iso) for pattern, iso in formats)
    for order, formats in _FORMATS.items()
}
_ISO_LIKE = "____-__-__%"  # far cheaper than a regular expression


@dataclass(frozen=True)
class DateCounts:
    """How many of a column's cells can be read in each order."""

    filled: int = 0  # not empty
    iso: int = 0  # look like yyyy-mm-dd; these do not count in `ymd`
    ymd: int = 0
    dmy: int = 0
    mdy: int = 0
    either: int = 0  # can be read both as dmy and as mdy

    def __add__(self, other: "DateCounts") -> "DateCounts":
        return DateCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def readable(self) -> int:
        """Cells that can be read in some order."""
        return self.iso + self.ymd + self.dmy + self.mdy - self.either

    def fitting(self, order: Order) -> int:
        """Cells that can be read in this order."""
        return self.iso + self.ymd if order == "ymd" else int(getattr(self, order))


@dataclass(frozen=True)
class DateColumn:
    """How a column of text is read as dates."""

    order: Order | None = "ymd"  # None if no cell is a date
    plain: bool = True  # every date is already written as yyyy-mm-dd


ISO_COLUMN = DateColumn()


def date_column(counts: DateCounts, setting: Order | None, *, where: str) -> DateColumn:
    """Decide the order of one column.

    If every readable cell begins with the year, the order is ymd, whatever the setting. Cells that no order can read
    are ignored.

    Raises:
        EhrseqError: Without a setting, no order or more than one reads every readable cell.
    """
    if not counts.readable:
        return DateColumn(order=None) if counts.filled else DateColumn()
    fits = [order for order in PATTERNS if counts.fitting(order) == counts.readable]
    if fits[:1] == ["ymd"] or setting is None:
        if len(fits) != 1:
            what = (
                "can be read as day/month and as month/day"
                if fits
                else "are written in several ways"
            )
            fix = "name the order: import.dates=dmy, import.dates=mdy or import.dates=ymd"
            raise EhrseqError(f"its dates {what}", where=where, fix=fix)
        order = fits[0]
    else:
        order = setting
    return DateColumn(order, plain=order == "ymd" and not counts.ymd)


def count_dates(text: pa.ChunkedArray) -> DateCounts:
    """Count the cells of a block by the orders in which they can be read."""
    text = pc.drop_null(text)
    text = text.filter(pc.not_equal(pc.utf8_trim_whitespace(text), ""))
    iso = pc.match_like(text, _ISO_LIKE)
    others = text.filter(pc.invert(iso))
    found = {
        order: pc.match_substring_regex(others, pattern) for order, pattern in PATTERNS.items()
    }
    either = pc.and_(found["dmy"], found["mdy"])
    ymd, dmy, mdy = (_true(found[order]) for order in ("ymd", "dmy", "mdy"))
    return DateCounts(len(text), _true(iso), ymd, dmy, mdy, _true(either))


def _true(mask: pa.ChunkedArray) -> int:
    return pc.sum(mask).as_py() or 0
