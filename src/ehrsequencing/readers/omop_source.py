"""Where OMOP tables come from: a folder of files through embedded DuckDB, or a live database by its URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ehrsequencing.errors import EhrseqError
from ehrsequencing.readers.files import CsvFile, check_content, check_one_file_each, read_csv_lines
from ehrsequencing.readers.omop_headers import renamed_columns
from ehrsequencing.readers.omop_tables import TABLES
from ehrsequencing.readers.omop_url import connect, looks_like_database, public_name

BATCH_ROWS = 100_000
MEMORY = "1GB"  # what embedded DuckDB may hold; beyond that it uses the disk
ALIASES = {"2b_concept": "concept", "2b_concept_relationship": "concept_relationship"}  # custom concepts' own files
_KNOWN_TABLES = {*TABLES, *ALIASES}
_MEND = "check that this table is whole, in UTF-8, and has the columns and types of OMOP's CDM 5.3 or 5.4"


@dataclass(frozen=True)
class Part:
    """A table of a database, or one of the files that hold a table.

    Attributes:
        table: Ibis table with lower-case column names.
        where: Its name for messages.
        file: Name of the file; None in a database, where rows have no order.
        csv: What the lines of a CSV file show.
        renamed: Column → the expression under which the source has it.
    """

    table: Any
    where: str
    file: str | None = None
    csv: CsvFile | None = None
    renamed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Source:
    """Tables of one source under their OMOP names.

    Attributes:
        connection: Ibis connection that runs the expressions.
        tables: OMOP name → its parts (several where custom concepts have own files, or a folder holds a table).
        public: Whether the words of the engine's errors may be kept for `--debug`; they may hold a password.
    """

    connection: Any
    tables: dict[str, list[Part]]
    public: bool

    def stream(self, expression: Any, part: Part) -> Iterator[pa.Table]:
        """The rows of an Ibis expression on a part, a batch at a time, a file's in the order of the file.

        Raises:
            EhrseqError: The engine cannot read them; its own words may hold patients' values and are left out.
        """
        with _engine_errors("cannot be read", where=part.where, fix=_MEND, public=self.public):
            for batch in self.connection.to_pyarrow_batches(expression, chunk_size=BATCH_ROWS):
                yield pa.Table.from_batches([batch])

    def one_row(self, expression: Any, part: Part) -> dict[str, Any]:
        """The only row of an aggregation.

        Raises:
            EhrseqError: As in `stream`.
        """
        with _engine_errors("cannot be read", where=part.where, fix=_MEND, public=self.public):
            row: dict[str, Any] = self.connection.to_pyarrow(expression).to_pylist()[0]
            return row

    def rejected_lines(self, part: Part) -> tuple[int, int | None]:
        """How many rows of a CSV file the last scan of it gave up, and the line of the first."""
        if part.csv is None:
            return 0, None
        sql = (
            "SELECT count(DISTINCT line), min(line) FROM reject_errors WHERE scan_id = "
            f"(SELECT max(scan_id) FROM reject_scans WHERE file_path = {_literal(part.csv.path)})"
        )
        with _engine_errors("cannot be read", where=part.where, fix=_MEND, public=self.public):
            count, line = self.connection.raw_sql(sql).fetchone()
        return int(count), None if line is None else int(line)


def _literal(path: Path) -> str:
    """A path as DuckDB's text."""
    return "'" + str(path).replace("'", "''") + "'"


@contextmanager
def open_source(text: str) -> Iterator[Source]:
    """Open a folder or a URL such as `postgres://user@host/database?schema=cdm` or `duckdb://cdm.duckdb`.

    Raises:
        EhrseqError: Ibis is not installed, or the source cannot be opened or lacks the table person.
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
    """Turn errors of Ibis and of its engines into ours; with what they say as the cause only where that is public."""
    expected = _expected_errors()
    try:
        yield
    except expected as error:
        raise EhrseqError(what, where=where, fix=fix) from (error if public else None)


def _expected_errors() -> tuple[type[Exception], ...]:
    """What Ibis and its engines raise.

    Raises:
        EhrseqError: Ibis is not installed.
    """
    try:
        import duckdb
        import ibis
    except ModuleNotFoundError as error:
        message = "reading OMOP needs Ibis, which is not installed"
        raise EhrseqError(message, fix='pip install "ehrsequencing[omop]"') from error
    drivers: tuple[type[Exception], ...] = (duckdb.Error,)
    try:
        import psycopg

        drivers = (*drivers, psycopg.Error)
    except ModuleNotFoundError:
        pass  # then no PostgreSQL error can occur
    return (ibis.common.exceptions.IbisError, *drivers, pa.ArrowException, OSError, ValueError, ImportError)


def _open_database(url: str, where: str) -> Source:
    """Open a database. An error that a driver raises may quote the URL: nothing of it goes on, not even as a cause."""
    _expected_errors()  # says so where Ibis is not installed
    connection, source = None, None
    try:
        connection = connect(url)
        if connection.name in ("duckdb", "postgres"):
            connection.raw_sql("SET TimeZone='UTC'")
        source = _database_tables(connection, where)
    except EhrseqError:
        raise
    except Exception:  # of any kind: the URL chooses the driver
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
        table, renamed = renamed_columns(connection.table(name), name.lower(), where=f"table {name.lower()}")
        parts.append((name.lower(), Part(table, f"table {name.lower()}", renamed=renamed)))
    return Source(connection, _by_name(parts), public=False)


def _open_folder(text: str) -> Source:
    import ibis

    folder = Path(text)
    if not folder.is_dir():
        if looks_like_database(text):
            fix = "name a folder, or a database as postgres://USER:PASSWORD@HOST/DATABASE or duckdb://FILE"
            raise EhrseqError("SOURCE is neither a folder nor the URL of a database", fix=fix)
        raise EhrseqError("is not a folder", where=text, fix="name a folder of OMOP tables, or a URL")
    files = list(_files(folder))
    check_one_file_each(files)
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"SET memory_limit='{MEMORY}'; SET preserve_insertion_order=true; SET TimeZone='UTC'")
    parts = []
    for stem, path in files:
        for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
            parts.append((stem, _open_file(connection, file, stem, name=file.relative_to(folder).as_posix())))
    return Source(connection, _by_name(parts), public=True)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Tables and the files, or folders of Parquet files as Spark writes them, that hold them."""
    for path in sorted(folder.iterdir()):
        stem, _, kind = path.name.lower().partition(".")
        held = any(path.glob("*.parquet")) if path.is_dir() else kind in ("parquet", "csv", "csv.gz")
        if stem in _KNOWN_TABLES and held:
            yield stem, path


def _open_file(connection: Any, path: Path, stem: str, *, name: str) -> Part:
    """One file as a table.

    Raises:
        EhrseqError: It holds something else than its name says, or cannot be read.
    """
    check_content(path)
    with _engine_errors("cannot be read", where=str(path), fix=_MEND, public=True):
        if path.name.lower().endswith(".parquet"):
            table, csv = connection.read_parquet(path), None
        else:
            csv = read_csv_lines(path, delimiters=",\t;|")
            table = _read_csv(connection, csv)
        table, renamed = renamed_columns(table, ALIASES.get(stem, stem), where=str(path))
    return Part(table, str(path), name, csv, renamed)


def _read_csv(connection: Any, file: CsvFile) -> Any:
    """A CSV file as text columns; what cannot be parsed is set aside."""
    return connection.read_csv(
        str(file.path), header=True, auto_detect=False, columns=dict.fromkeys(file.header, "VARCHAR"),
        delim=file.delimiter, quote=file.quote, escape=file.escape if file.quote else "",
        nullstr=["", "NULL", "\\N"], store_rejects=True,
    )  # fmt: skip


def _by_name(found: list[tuple[str, Part]]) -> dict[str, list[Part]]:
    tables: dict[str, list[Part]] = {}
    for name, part in found:
        tables.setdefault(ALIASES.get(name, name), []).append(part)
    return tables
