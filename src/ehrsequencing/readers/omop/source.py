"""Opens the source of OMOP tables: a folder of files through embedded DuckDB, or a live database by its URL."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.csv_files import (
    CsvFile,
    check_content,
    check_one_file_each,
    read_csv_lines,
)
from ehrsequencing.readers.omop.headers import renamed_columns
from ehrsequencing.readers.omop.tables import TABLES
from ehrsequencing.readers.omop.url import connect, looks_like_database, public_name

BATCH_ROWS = 500_000
MEMORY = "1GB"  # limit of embedded DuckDB, beyond which it uses the disk
# files of custom concepts
ALIASES = {
    "2b_concept": "concept",
    "2b_concept_relationship": "concept_relationship",
}
_KNOWN_TABLES = {*TABLES, *ALIASES}
_FIX = "check that this table is whole, in UTF-8, and has the columns and types of OMOP's CDM 5.3 or 5.4"


@dataclass(frozen=True)
class Part:
    """A table of a database, or one of a table's files."""

    table: Any  # of Ibis, with lower-case column names
    where: str  # its name for messages
    file: str | None = None  # None in a database, where rows have no order
    csv: CsvFile | None = None
    renamed: tuple[
        tuple[str, str], ...
    ] = ()  # pairs of column and the expression that the source calls it


@dataclass(frozen=True)
class Source:
    """Tables of one source under their OMOP names."""

    connection: Any  # of Ibis
    # several parts for a folder of files, or with a file of custom concepts
    tables: dict[str, list[Part]]
    public: bool  # whether `--debug` may show the engine's own error messages, which may hold a password

    def stream(self, expression: Any, part: Part) -> Iterator[pa.Table]:
        """The rows of an Ibis expression on a part, in batches; those of a file in its order.

        Raises:
            EhrseqError: The engine cannot read them. Its own message may hold patients' values and is left out.
        """
        with self._reading(part):
            for batch in self.connection.to_pyarrow_batches(expression, chunk_size=BATCH_ROWS):
                yield pa.Table.from_batches([batch])

    def one_row(self, expression: Any, part: Part) -> dict[str, Any]:
        """The only row of an aggregation; errors as of `stream`."""
        with self._reading(part):
            row: dict[str, Any] = self.connection.to_pyarrow(expression).to_pylist()[0]
            return row

    def rejected_lines(self, part: Part) -> tuple[int, int | None]:
        """How many rows of a CSV file its last scan rejected, and the line of the first."""
        if part.csv is None:
            return 0, None
        path = "'" + str(part.csv.path).replace("'", "''") + "'"  # as text of SQL
        sql = (
            "SELECT count(DISTINCT line), min(line) FROM reject_errors WHERE scan_id = "
            f"(SELECT max(scan_id) FROM reject_scans WHERE file_path = {path})"
        )
        with self._reading(part):
            count, line = self.connection.raw_sql(sql).fetchone()
        return int(count), None if line is None else int(line)

    def _reading(self, part: Part) -> AbstractContextManager[None]:
        return _engine_errors("cannot be read", where=part.where, fix=_FIX, public=self.public)


@contextmanager
def open_source(text: str) -> Iterator[Source]:
    """Open a folder or a URL: `postgres://user@host/database?schema=cdm`, `duckdb://cdm.duckdb`.

    Raises:
        EhrseqError: Ibis is not installed, the source cannot be opened, or it lacks the table person.
    """
    where = public_name(text)
    if "://" in text:
        source = _open_database(text, where)
    else:
        with _engine_errors("cannot be opened", where=where, fix="check the path", public=True):
            source = _open_folder(text)
    try:
        if "person" not in source.tables:
            fix = "name a folder or schema with OMOP tables"
            raise EhrseqError("holds no table person", where=where, fix=fix)
        yield source
    finally:
        source.connection.disconnect()


@contextmanager
def _engine_errors(what: str, *, where: str, fix: str, public: bool) -> Iterator[None]:
    """Turn errors of Ibis and its engines into ours, with their own message as the cause only if that is public."""
    expected = _expected_errors()
    try:
        yield
    except expected as error:
        raise EhrseqError(what, where=where, fix=fix) from (error if public else None)


def _expected_errors() -> tuple[type[Exception], ...]:
    """The errors that Ibis and its engines raise.

    Raises:
        EhrseqError: Ibis is not installed.
    """
    try:
        import duckdb
        import ibis
    except ModuleNotFoundError as error:
        message = "reading OMOP needs Ibis, which is not installed"
        raise EhrseqError(message, fix='pip install "ehrsequencing[omop]"') from error
    drivers: list[type[Exception]] = [duckdb.Error]
    with suppress(ModuleNotFoundError):  # without the driver, no error of PostgreSQL can occur
        import psycopg

        drivers.append(psycopg.Error)
    return (
        ibis.common.exceptions.IbisError,
        *drivers,
        pa.ArrowException,
        OSError,
        ValueError,
        ImportError,
    )


def _open_database(url: str, where: str) -> Source:
    """Open a database. A driver's error may quote the URL, so nothing of it is kept, not even as a cause."""
    _expected_errors()  # raises an error where Ibis is not installed
    connection, source = None, None
    try:
        connection = connect(url)
        if connection.name in ("duckdb", "postgres"):
            connection.raw_sql("SET TimeZone='UTC'")
        source = _database_tables(connection, where)
    except EhrseqError:
        raise
    except Exception:  # of any type, since the URL chooses the driver
        pass
    finally:
        if source is None and connection is not None:
            connection.disconnect()
    if source is None:
        fix = "check host, port, user, password, database and schema, and that the driver is installed"
        raise EhrseqError("cannot be opened", where=where, fix=fix)
    return source


def _database_tables(connection: Any, where: str) -> Source:
    names = [name for name in sorted(connection.list_tables()) if name.lower() in _KNOWN_TABLES]
    check_one_file_each((name.lower(), Path(where, name)) for name in names)
    parts = []
    for name in names:
        table, renamed = renamed_columns(
            connection.table(name), name.lower(), where=f"table {name.lower()}"
        )
        parts.append((name.lower(), Part(table, f"table {name.lower()}", renamed=renamed)))
    return Source(connection, _by_name(parts), public=False)


def _open_folder(text: str) -> Source:
    import ibis

    folder = Path(text)
    if not folder.is_dir():
        if looks_like_database(text):
            fix = "name a folder, or a database as postgres://USER:PASSWORD@HOST/DATABASE or duckdb://FILE"
            raise EhrseqError("SOURCE is neither a folder nor the URL of a database", fix=fix)
        raise EhrseqError(
            "is not a folder", where=text, fix="name a folder of OMOP tables, or a URL"
        )
    files = list(_files(folder))
    check_one_file_each(files)
    connection = ibis.duckdb.connect()
    connection.raw_sql(
        f"SET memory_limit='{MEMORY}'; SET preserve_insertion_order=true; SET TimeZone='UTC'"
    )
    parts = []
    for stem, path in files:
        for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
            parts.append(
                (stem, _open_file(connection, file, stem, name=file.relative_to(folder).as_posix()))
            )
    return Source(connection, _by_name(parts), public=True)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Tables, each with its file, or with its folder of Parquet files as Spark writes them."""
    for path in sorted(folder.iterdir()):
        stem, _, kind = path.name.lower().partition(".")
        held = (
            any(path.glob("*.parquet")) if path.is_dir() else kind in ("parquet", "csv", "csv.gz")
        )
        if stem in _KNOWN_TABLES and held:
            yield stem, path


def _open_file(connection: Any, path: Path, stem: str, *, name: str) -> Part:
    """One file as a table; its content must be what its name says."""
    check_content(path)
    with _engine_errors("cannot be read", where=str(path), fix=_FIX, public=True):
        if path.name.lower().endswith(".parquet"):
            table, csv = connection.read_parquet(path), None
        else:
            csv = read_csv_lines(path, delimiters=",\t;|")
            table = connection.read_csv(
                str(path),
                header=True,
                auto_detect=False,
                columns=dict.fromkeys(csv.header, "VARCHAR"),
                delim=csv.delimiter,
                quote=csv.quote,
                escape=csv.escape if csv.quote else "",
                nullstr=["", "NULL", "\\N"],
                store_rejects=True,  # rows that cannot be parsed; see `rejected_lines`
            )
        table, renamed = renamed_columns(table, ALIASES.get(stem, stem), where=str(path))
    return Part(table, str(path), name, csv, renamed)


def _by_name(found: list[tuple[str, Part]]) -> dict[str, list[Part]]:
    tables: dict[str, list[Part]] = {}
    for name, part in found:
        tables.setdefault(ALIASES.get(name, name), []).append(part)
    return tables
