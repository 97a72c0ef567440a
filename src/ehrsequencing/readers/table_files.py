"""Tables of a source as blocks of their columns: CSV and Parquet files, after a look at header and content.

The lines of a CSV file show how many rows its parser lost.
"""

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ehrsequencing.core.errors import NO_HEADER, EhrseqError, looks_like_header
from ehrsequencing.records.parquet_rows import is_text

__all__ = ["open_table"]

BLOCK_BYTES = 1 << 23  # also the longest line
BLOCK_ROWS = 500_000
_MAGIC = {
    b"PAR1": "Parquet",
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"{": "JSON",
    b"[{": "JSON",
    b"<": "XML or HTML",
    b"%PDF": "PDF",
}


@dataclass
class SourceTable:
    """A table of a source.

    Attributes:
        where: Its name for messages.
        file: Its name in the report; None in a database, where rows have no order.
        names: Its columns, in lower case → as the source writes them.
        texts: Those that hold text, in lower case.
        read: Gives blocks of some columns under the names of the source; text is of the type string.
        lost_rows: How many rows the last `read` could not parse, and the line of the first; None where that cannot be.
    """

    where: str
    file: str | None
    names: dict[str, str]
    texts: frozenset[str]
    read: Callable[[list[str]], Iterator[pa.Table]]
    lost_rows: Callable[[], tuple[int, int | None]] | None = None

    def blocks(self, wanted: Iterable[str]) -> Iterator[pa.Table]:
        """Blocks of those of the columns that are there, whatever their case, under the names given.

        Raises:
            EhrseqError: The source cannot be read.
        """
        columns = {name: self.names[name.lower()] for name in wanted if self.has(name)}
        for block in self.read(list(dict.fromkeys(columns.values()))) if columns else ():
            yield pa.table({name: block[column] for name, column in columns.items()})

    def has(self, name: str) -> bool:
        """Whether there is such a column, in any case."""
        return name.lower() in self.names

    def check(self, *needed: Sequence[str]) -> None:
        """Refuse a table that lacks every column of a group.

        Raises:
            EhrseqError: With the columns that may be meant.
        """
        for group in needed:
            if not any(map(self.has, group)):
                near = get_close_matches(group[0].lower(), self.names, n=2, cutoff=0.6)
                meant = f"did you mean {' or '.join(near)}?"
                fix = meant if near else f"its columns are {', '.join(self.names)}"
                raise EhrseqError(
                    f"has no column {' or '.join(group)}",
                    where=self.where,
                    fix=fix if looks_like_header(self.names.values()) else NO_HEADER,
                )


def one_file_each(files: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Tables by name; two files of one table, such as `person.csv` and `person.csv.gz`, are refused."""
    by_table: dict[str, Path] = {}
    for table, path in files:
        if table in by_table:
            raise EhrseqError(
                f"{by_table[table].name} and {path.name} both hold the table {table}",
                where=str(path.parent),
                fix="remove or rename one of them",
            )
        by_table[table] = path
    return by_table


def open_table(
    path: Path,
    *,
    name: str | None = None,
    missing: Sequence[str] = (),
    plain_tabs: bool = False,
    encoding: str = "utf-8",
) -> SourceTable:
    """Look at a file of a table: Parquet by its ending, else CSV, plain or gz.

    Args:
        path: The file.
        name: What the report calls it; default: its name.
        missing: Texts that mean null, besides empty text.
        encoding: Of a CSV file.
        plain_tabs: Whether no field is quoted if there are tabs and no quotes in the header, as in Athena's files.

    Raises:
        EhrseqError: The file is empty, holds something else than its ending says, or cannot be read.
    """
    ending = path.suffix.lower()
    expected = {".parquet": "Parquet", ".gz": "gzip"}.get(ending, "CSV")
    with _reading(path, "check the file"), open(path, "rb") as file:
        start = file.read(4)
    actual = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "CSV")
    if actual != expected and (start or expected == "Parquet"):
        held = f"{actual}, not {expected}" if actual != "CSV" else f"no {expected}"
        fix = "give the file the ending of what it holds"
        if actual in ("JSON", "XML or HTML"):
            fix = (
                "save it as a table with a header; ehrseq import fhir reads FHIR resources in JSON"
            )
        raise EhrseqError(f"holds {held}", where=str(path), fix=fix)
    if expected == "Parquet":
        return _parquet_table(path, name or path.name, missing)
    return _csv_table(path, name or path.name, missing, plain_tabs, encoding)


def encoding_of(path: Path) -> str:
    """UTF-8, or Latin-1 for a CSV file that is none, as German Excel writes it."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    if path.suffix.lower() == ".parquet":
        return "utf-8"
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            while file.read(BLOCK_BYTES):
                pass
    except UnicodeDecodeError:
        return "cp1252"
    except (OSError, EOFError):
        pass  # whoever reads it says so
    return "utf-8"


_WHOLE = "check that the file is whole"
_AS_CSV = "write it as UTF-8 CSV with a header line"


@contextmanager
def _reading(path: Path, fix: str) -> Iterator[None]:
    """Name the file in an error of whoever reads it."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, csv.Error, EOFError) as error:
        raise EhrseqError(
            "cannot be read as CSV" if fix == _AS_CSV else "cannot be read",
            where=str(path),
            fix=fix,
        ) from error


def lower_names(columns: Sequence[str], *, where: str) -> dict[str, str]:
    """Columns in lower case and without outer blanks → as they are.

    Raises:
        EhrseqError: Two have the same name, but for the case.
    """
    names = {name.strip().strip("\ufeff").lower(): name for name in columns}
    if len(names) < len(columns):
        raise EhrseqError("two of its columns have the same name", where=where, fix="rename one")
    return names


def holds_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, in whatever form."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_text(kind) or pa.types.is_binary(kind)


def _parquet_table(path: Path, name: str, missing: Sequence[str]) -> SourceTable:
    with _reading(path, _WHOLE):
        schema = pq.read_schema(path)
    names = lower_names(schema.names, where=str(path))
    texts = frozenset(low for low, column in names.items() if holds_text(schema.field(column).type))

    def read(columns: list[str]) -> Iterator[pa.Table]:
        with _reading(path, _WHOLE):
            file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
            for batch in file.iter_batches(BLOCK_ROWS, columns=columns):
                cells = {column: _plain(batch[column], missing) for column in columns}
                yield pa.table(cells)

    return SourceTable(str(path), name, names, texts, read)


def _plain(column: pa.Array, missing: Sequence[str]) -> pa.Array:
    """A column, text as the type string, without the cells that mean null."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.cast(pa.string()) if holds_text(column.type) else column
    if not missing or pa.types.is_nested(column.type):
        return column
    is_missing = pc.is_in(column.cast(pa.string()), value_set=pa.array(missing))
    return pc.if_else(is_missing, pa.scalar(None, column.type), column)


# ---- CSV ---------------------------------------------------------------------------------------


def _scan(path: Path, delimiter: str, columns: int) -> tuple[Counter[str], dict[str, int], bool]:
    """What the lines after the header of a CSV file show.

    Returns:
        How many are filled, whole (with all delimiters and an even number of quotes), and odd (with an odd number); the
        number of the first odd line, and of the first uneven one, with too few or too many delimiters; and whether a
        field is quoted.
    """
    seen, first, is_quoted, number = Counter[str](), dict[str, int](), False, 2
    mark = "\\t" if delimiter == "\t" else f"[{delimiter}]"
    field = rf'(^|{mark})\s*"([^"]|"")*"\s*({mark}|$)'
    parse = pacsv.ParseOptions(delimiter="\x01", quote_char=False, ignore_empty_lines=False)
    convert = pacsv.ConvertOptions(column_types={"line": pa.binary()}, strings_can_be_null=False)
    for batch in _batches(path, ["line"], parse, convert):
        lines = batch["line"]
        filled = np.asarray(pc.greater(pc.binary_length(lines), 0))
        marks = np.asarray(pc.count_substring(lines, delimiter))
        quotes = np.asarray(pc.count_substring(lines, '"'))
        is_odd, is_uneven = quotes % 2 == 1, filled & (marks != columns - 1)
        seen["filled"] += int(filled.sum())
        seen["whole"] += int((filled & (marks >= columns - 1) & ~is_odd).sum())
        seen["odd"] += int(is_odd.sum())
        for kind, chosen in (("odd", is_odd), ("uneven", is_uneven)):
            if chosen.any():
                first.setdefault(kind, number + int(chosen.argmax()))
        if quotes.any() and not is_quoted:
            some = lines.filter(pa.array(quotes > 0))
            is_quoted = bool(pc.any(pc.match_substring_regex(some, field)).as_py())
        number += len(batch)
    return seen, first, is_quoted


def _csv_table(
    path: Path, name: str, missing: Sequence[str], plain_tabs: bool, encoding: str
) -> SourceTable:
    """A CSV file, whose header and lines are scanned first. The header is line 1.

    A line with all its delimiters and an even number of quotes is a row. Two lines with an odd number begin and end a
    row. If every line has all its delimiters and no field is quoted, any quote is a stray one, and the file is read
    without quoting.
    """
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    as_text = "utf-8-sig" if encoding == "utf-8" else encoding
    with _reading(path, _AS_CSV), opened(path, "rt", encoding=as_text, newline="") as file:
        line = file.readline(BLOCK_BYTES)
        if len(line) >= BLOCK_BYTES:  # the first line of a gzip file may be as long as it likes
            raise OSError
        delimiter = next((d for d in "\t;|" if d in line and d * 2 not in line), ",")
        file.seek(0)
        part = iter(lambda: file.readline(BLOCK_BYTES), "")
        header = next(csv.reader(part, delimiter=delimiter), [])
    if not header:
        raise EhrseqError(
            "is empty", where=str(path), fix="remove the file, or give it a header line"
        )
    header = [column.strip() or f"unnamed_{place}" for place, column in enumerate(header)]
    names = lower_names(header, where=str(path))
    lines, first, is_quoted = _scan(path, delimiter, len(names))
    is_plain = plain_tabs and delimiter == "\t" and '"' not in line
    has_quotes = not is_plain and (is_quoted or "uneven" in first)
    met = Counter[str]()  # rows of the last reading

    def skip(_: pacsv.InvalidRow) -> str:
        met["rejected"] += 1
        return "skip"

    def read(columns: list[str]) -> Iterator[pa.Table]:
        met.clear()
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            include_columns=columns,
            null_values=["", *missing],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        )
        parse = pacsv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if has_quotes else False,
            newlines_in_values=has_quotes,
            invalid_row_handler=skip,
        )
        for batch in _batches(path, header, parse, convert, encoding):
            met["parsed"] += len(batch)
            yield pa.Table.from_batches([batch])

    def lost_rows() -> tuple[int, int | None]:
        """A stray quote turns many lines into one field. They count as rows, since each has all its delimiters."""
        rows = lines["whole"] + (lines["odd"] + 1) // 2 if has_quotes else lines["filled"]
        rows = max(rows, met.total())
        return rows - met["parsed"], first.get("uneven" if met["rejected"] else "odd")

    return SourceTable(str(path), name, names, frozenset(names), read, lost_rows)


def _batches(
    path: Path,
    header: list[str],
    parse: pacsv.ParseOptions,
    convert: pacsv.ConvertOptions,
    encoding: str = "utf-8",
) -> Iterator[pa.RecordBatch]:
    """The blocks of a CSV file; none where it has only a header."""
    read = pacsv.ReadOptions(
        column_names=header, skip_rows=1, block_size=BLOCK_BYTES, encoding=encoding
    )
    packing = "gzip" if path.suffix.lower() == ".gz" else None  # Arrow knows it in lower case only
    with _reading(path, _AS_CSV):
        try:
            stream = pacsv.open_csv(
                pa.input_stream(path, compression=packing),
                read_options=read,
                parse_options=parse,
                convert_options=convert,
            )
        except pa.ArrowInvalid as error:
            if str(error).startswith("Empty CSV file"):
                return
            raise
        with stream:
            yield from stream
