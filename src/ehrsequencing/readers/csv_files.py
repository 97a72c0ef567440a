"""Checks of source files before they are read: one file per table, the right content, and the lines of a CSV file.

The count of lines shows later how many rows a parser lost.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import open_text

BLOCK_BYTES = 1 << 23  # also the longest line
_MAGIC = {
    b"PAR1": "Parquet",
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"%PDF": "PDF",
}


def check_one_file_each(found: Iterable[tuple[str, Path]]) -> None:
    """Refuse pairs of table and file in which a table has two files, such as `person.csv` and `person.csv.gz`."""
    seen: dict[str, Path] = {}
    for table, path in found:
        if table in seen:
            what = f"{seen[table].name} and {path.name} both hold the table {table}"
            raise EhrseqError(what, where=str(path.parent), fix="remove or rename one of them")
        seen[table] = path


def check_content(path: Path) -> None:
    """Refuse a file that cannot be read, is empty, or whose first bytes contradict its name."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise EhrseqError(
            "cannot be read", where=str(path), fix=error.strerror or "check the file"
        ) from error
    name = path.name.lower()
    expected = "Parquet" if name.endswith(".parquet") else "gzip" if name.endswith(".gz") else "CSV"
    actual = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "CSV")
    if not start and expected != "Parquet":
        raise EhrseqError(
            "is empty", where=str(path), fix="remove the file, or give it a header line"
        )
    if actual != expected:
        held = f"{actual}, not {expected}" if actual != "CSV" else f"no {expected}"
        raise EhrseqError(
            f"holds {held}", where=str(path), fix="give the file the ending of what it holds"
        )


@dataclass(frozen=True)
class CsvFile:
    """What the lines of a CSV file show. The header is line 1.

    A line with all its delimiters and an even number of quotes is a row. Two lines with an odd number begin and end a
    row.
    """

    path: Path
    header: tuple[str, ...]  # names in lower case and without outer blanks
    delimiter: str
    quote: str  # empty where no field of the file is quoted
    escape: str  # the character before a quote inside a quoted field
    lines: int  # lines after the header that are not blank
    whole_rows: int  # rows by the count of quotes
    odd_line: int | None  # the first line with an odd number of quotes
    uneven_line: int | None  # the first line with too few or too many delimiters

    def rows_in(self, parsed: int, rejected: int) -> int:
        """How many rows the file holds, given how many the parser read and how many it rejected.

        A stray quote turns many lines into one field. They count as rows, since each has all its delimiters.
        """
        return max(self.whole_rows if self.quote else self.lines, parsed + rejected)


def read_csv_lines(path: Path, *, delimiters: str = ",") -> CsvFile:
    """Scan the header and the lines of a CSV file.

    If every line has all its delimiters and no field is quoted, any quote is a stray one, and the file is read
    without quoting.

    Raises:
        EhrseqError: The file is empty, holds something else, or cannot be read as text.
    """
    check_content(path)
    try:
        with open_text(path) as file:
            # the first line of a gzip file may be as long as it likes
            line = file.readline(BLOCK_BYTES)
            if len(line) >= BLOCK_BYTES:
                raise unreadable_csv(path)
            delimiter = next(
                (d for d in delimiters[1:] if d in line and d * 2 not in line), delimiters[0]
            )
            file.seek(0)
            names = next(
                csv.reader(iter(lambda: file.readline(BLOCK_BYTES), ""), delimiter=delimiter), []
            )
        header = _header(names, path)
        scan = _Scan(delimiter, len(header))
        for number, block in _line_blocks(path):
            scan.add(number, block)
    except (pa.ArrowException, OSError, UnicodeError, csv.Error, EOFError) as error:
        raise unreadable_csv(path) from error
    # Athena's files with tabs do not quote
    needed = delimiter != "\t" and (scan.quoted or scan.uneven is not None)
    escape = "\\" if scan.backslashed and not scan.doubled else '"'
    quotes = scan.unescaped if escape == "\\" else scan.every
    quote = '"' if needed else ""
    return CsvFile(
        path,
        header,
        delimiter,
        quote,
        escape,
        scan.lines,
        quotes.rows,
        quotes.first_odd,
        scan.uneven,
    )


def read_blocks(
    file: CsvFile,
    wanted: Sequence[str],
    rejected: Counter[str] | None = None,
    *,
    missing: Sequence[str] = ("",),
) -> Iterator[pa.Table]:
    """Blocks of some columns as text, under the names given; case does not matter. Absent columns are null.

    Args:
        file: What `read_csv_lines` found.
        wanted: Names of columns.
        rejected: Where rows that cannot be parsed are counted.
        missing: Texts that mean null.

    Raises:
        EhrseqError: The file cannot be read.
    """

    def skip(_: pacsv.InvalidRow) -> str:
        if rejected is not None:
            rejected["rows"] += 1
        return "skip"

    present = [name.lower() for name in wanted if name.lower() in file.header]
    nulls = {
        "null_values": list(missing),
        "strings_can_be_null": True,
        "quoted_strings_can_be_null": True,
    }
    types = dict.fromkeys(present, pa.string())
    convert = pacsv.ConvertOptions(column_types=types, include_columns=present, **nulls)
    escapes = file.escape == "\\"
    parse = pacsv.ParseOptions(
        delimiter=file.delimiter,
        quote_char=file.quote or False,
        double_quote=not escapes,
        escape_char="\\" if escapes else False,
        newlines_in_values=bool(file.quote),
        invalid_row_handler=skip,
    )
    read = pacsv.ReadOptions(column_names=list(file.header), skip_rows=1, block_size=BLOCK_BYTES)
    try:
        with pacsv.open_csv(
            file.path, read_options=read, parse_options=parse, convert_options=convert
        ) as stream:
            for batch in stream:
                columns = {name: batch[name.lower()] for name in wanted if name.lower() in present}
                absent = {
                    name: pa.nulls(len(batch), pa.string())
                    for name in wanted
                    if name not in columns
                }
                yield pa.table(columns | absent)
    except (pa.ArrowException, OSError) as error:
        if str(error).startswith("Empty CSV file"):  # only a header
            return
        raise unreadable_csv(file.path) from error


def unreadable_csv(path: Path) -> EhrseqError:
    """The error about a file that is not text with a header and rows."""
    return EhrseqError(
        "cannot be read as CSV", where=str(path), fix="write it as UTF-8 CSV with a header line"
    )


def _header(names: list[str], path: Path) -> tuple[str, ...]:
    """Names in lower case; an expression with commas, as in date(x,'unixepoch'), is one name."""
    joined: list[str] = []
    for name in names:
        if joined and joined[-1].count("(") > joined[-1].count(")"):
            joined[-1] += f",{name}"
        else:
            joined.append(name)
    header = tuple(
        name.strip().strip("\ufeff").lower() or f"unnamed_{i}" for i, name in enumerate(joined)
    )
    if not header:
        raise EhrseqError(
            "is empty", where=str(path), fix="remove the file, or give it a header line"
        )
    for i, name in enumerate(header):
        if name in header[:i]:
            what = f"columns {header.index(name) + 1} and {i + 1} have the same name"
            raise EhrseqError(what, where=str(path), fix="rename or remove one of them")
    return header


@dataclass
class _Quotes:
    """Counts of lines with an even and with an odd number of quotes."""

    even: int = 0
    odd: int = 0
    first_odd: int | None = None

    @property
    def rows(self) -> int:
        return self.even + (self.odd + 1) // 2

    def add(self, is_odd: Bools, is_full: Bools, first: int) -> None:
        self.even += int((is_full & ~is_odd).sum())
        self.odd += int(is_odd.sum())
        self.first_odd = self.first_odd or _first(is_odd, first)


class _Scan:
    """Counts lines, block by block; see `CsvFile`."""

    def __init__(self, delimiter: str, columns: int) -> None:
        self.delimiter, self.columns = delimiter, columns
        self.lines = 0
        self.uneven: int | None = None
        # all quotes, and those without a backslash before them
        self.every, self.unescaped = (
            _Quotes(),
            _Quotes(),
        )
        self.quoted = self.backslashed = self.doubled = False
        mark = "\\t" if delimiter == "\t" else f"[{delimiter}]"
        self._field = rf'(^|{mark})\s*"([^"]|""|\\")*"\s*({mark}|$)'

    def add(self, first: int, block: pa.ChunkedArray) -> None:
        there = np.asarray(pc.greater(pc.binary_length(block), 0))
        found = np.asarray(pc.count_substring(block, self.delimiter))
        self.lines += int(there.sum())
        full = there & (found >= self.columns - 1)
        self.uneven = self.uneven or _first(there & (found != self.columns - 1), first)
        marks = np.asarray(pc.count_substring(block, '"'))
        escaped = np.asarray(pc.count_substring(block, '\\"')) if marks.any() else marks
        self.every.add(marks % 2 == 1, full, first)
        self.unescaped.add((marks - escaped) % 2 == 1, full, first)
        if not marks.any():
            return
        some = block.filter(pa.array(marks > 0))
        self.quoted = self.quoted or _any(pc.match_substring_regex(some, self._field))
        self.backslashed = self.backslashed or _any(pc.match_substring(some, '\\"'))
        self.doubled = self.doubled or _any(pc.match_substring_regex(some, '[^,;|]""'))


def _first(mask: Bools, start: int) -> int | None:
    return start + int(mask.argmax()) if mask.any() else None


def _any(mask: pa.ChunkedArray) -> bool:
    return bool(pc.any(mask).as_py())


def _line_blocks(path: Path) -> Iterable[tuple[int, pa.ChunkedArray]]:
    """Blocks of lines as bytes, without the header, each with the number of its first line."""
    number = 2
    read = pacsv.ReadOptions(column_names=["line"], skip_rows=1, block_size=BLOCK_BYTES)
    parse = pacsv.ParseOptions(delimiter="\x01", quote_char=False, ignore_empty_lines=False)
    convert = pacsv.ConvertOptions(column_types={"line": pa.binary()}, strings_can_be_null=False)
    try:
        with pacsv.open_csv(
            path, read_options=read, parse_options=parse, convert_options=convert
        ) as stream:
            for batch in stream:
                yield number, pa.chunked_array([batch["line"]])
                number += len(batch)
    except pa.ArrowInvalid as error:
        if not str(error).startswith("Empty CSV file"):
            raise  # else the file has only a header
