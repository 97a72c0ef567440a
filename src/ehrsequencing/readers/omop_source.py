"""Where OMOP tables come from: a folder of files through embedded DuckDB, or a live database by its URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from ehrsequencing.errors import EhrseqError
from ehrsequencing.readers.omop_tables import TABLES
from ehrsequencing.readers.text import open_text

BATCH_ROWS = 100_000
MEMORY = "1GB"  # what embedded DuckDB may hold; beyond that it uses the disk
ALIASES = {"2b_concept": "concept", "2b_concept_relationship": "concept_relationship"}  # custom concepts' own files
_KNOWN_TABLES = {*TABLES, *ALIASES}


@dataclass(frozen=True)
class Source:
    """Tables of one source under their OMOP names.

    Attributes:
        connection: Ibis connection that runs the expressions.
        tables: OMOP name → Ibis tables with lower-case column names (several where custom concepts have own files).
    """

    connection: Any
    tables: dict[str, list[Any]]

    def stream(self, expression: Any, *, where: str) -> Iterator[pa.Table]:
        """The rows of an Ibis expression, a batch at a time.

        Raises:
            EhrseqError: The engine cannot read them; its own words may hold patients' values and are left out.
        """
        mend = "check that this table is whole, in UTF-8, and has the columns and types of OMOP's CDM 5.3 or 5.4"
        with _engine_errors("cannot be read", where=f"table {where}", mend=mend):
            for batch in self.connection.to_pyarrow_batches(expression, chunk_size=BATCH_ROWS):
                yield pa.Table.from_batches([batch])


@contextmanager
def open_source(text: str) -> Iterator[Source]:
    """Open a folder or a URL such as `postgres://user@host/database?schema=cdm` or `duckdb://cdm.duckdb`.

    Raises:
        EhrseqError: Ibis is not installed, or the source cannot be opened or lacks the table person.
    """
    with _engine_errors("cannot be opened", where=_public(text), mend="check the path, or the URL and its driver"):
        source = _open_url(text) if "://" in text else _open_folder(Path(text))
    try:
        if "person" not in source.tables:
            mend = "name a folder or schema with OMOP tables"
            raise EhrseqError("holds no table person", where=_public(text), mend=mend)
        yield source
    finally:
        source.connection.disconnect()


def _public(text: str) -> str:
    """A source's name without user and password."""
    if "://" not in text:
        return text
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextmanager
def _engine_errors(what: str, *, where: str, mend: str) -> Iterator[None]:
    """Turn errors of Ibis and of its engines into ours."""
    try:
        import duckdb
        import ibis
    except ModuleNotFoundError as error:
        message = "reading OMOP needs Ibis, which is not installed"
        raise EhrseqError(message, mend='pip install "ehrsequencing[omop]"') from error
    drivers: tuple[type[Exception], ...] = (duckdb.Error,)
    try:
        import psycopg

        drivers = (*drivers, psycopg.Error)
    except ModuleNotFoundError:
        pass  # then no PostgreSQL error can occur
    try:
        yield
    except (ibis.common.exceptions.IbisError, *drivers, pa.ArrowException, OSError, ValueError, ImportError) as error:
        raise EhrseqError(what, where=where, mend=mend) from error


def _open_url(url: str) -> Source:
    import ibis

    if url.startswith("duckdb://"):
        path = Path(url.removeprefix("duckdb://"))
        if not path.is_file():  # DuckDB would make an empty database
            raise EhrseqError("is not there", where=str(path), mend="name a DuckDB file as duckdb://FILE")
        connection = ibis.duckdb.connect(path, read_only=True)
    else:
        connection = ibis.connect(url)
    names = sorted(connection.list_tables())
    return Source(connection, _by_name([(name.lower(), connection.table(name)) for name in names]))


def _open_folder(folder: Path) -> Source:
    import ibis

    if not folder.is_dir():
        raise EhrseqError("is not a folder", where=str(folder), mend="name a folder of OMOP tables, or a URL")
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"SET memory_limit='{MEMORY}'; SET preserve_insertion_order=false; SET TimeZone='UTC'")
    found = []
    for path in sorted(folder.iterdir()):
        stem, _, kind = path.name.lower().partition(".")
        if stem not in _KNOWN_TABLES:
            continue
        if path.is_dir() and any(path.glob("*.parquet")):  # as Spark writes a table
            found.append((stem, connection.read_parquet(f"{path}/*.parquet")))
        elif kind == "parquet":
            found.append((stem, connection.read_parquet(path)))
        elif kind in ("csv", "csv.gz"):
            found.append((stem, _read_csv(connection, path)))
    return Source(connection, _by_name(found))


def _by_name(found: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    tables: dict[str, list[Any]] = {}
    for name, table in found:
        if name in _KNOWN_TABLES:
            lower = table.rename({column.lower(): column for column in table.columns})
            tables.setdefault(ALIASES.get(name, name), []).append(lower)
    return tables


def _read_csv(connection: Any, path: Path) -> Any:
    """A CSV file as text columns. Athena's vocabulary files are separated by tabs and do not quote."""
    with open_text(path) as file:
        header = file.readline()
    if not header.strip():
        raise EhrseqError("is empty", where=str(path), mend="remove the file, or give it a header line")
    delimiter = next((d for d in ("\t", ";", "|") if d in header and d * 2 not in header), ",")
    quote = {"quote": ""} if delimiter == "\t" else {}
    return connection.read_csv(
        str(path), header=True, all_varchar=True, delim=delimiter, nullstr=["", "NULL", "\\N"], **quote
    )
