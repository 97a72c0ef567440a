"""OMOP tables of a live database through Ibis. Its URL may hold a password: no message repeats any part of it."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import pyarrow as pa

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.table_files import BLOCK_ROWS, SourceTable, lower_names

# A password may hold any character: it ends at the last @ that a valid host, database and query can follow.
_POSTGRES = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^:@/?#]*)(?::(?P<password>.*))?@)?"
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<host>[^@:/?#\[\]]*))(?::(?P<port>\d+))?"
    r"(?:/(?P<database>[^/?#]*)(?:/(?P<schema>[^?#]*))?)?(?:\?(?P<query>[^#]*))?",
    re.DOTALL | re.IGNORECASE,
)
_DUCKDB = "duckdb://"
_KINDS = {"postgres": "PostgreSQL", "postgresql": "PostgreSQL", "duckdb": "DuckDB"}
_FIX = "check host, port, user, password, database and schema, and that the driver is installed"
_HOW = "write it as postgres://USER:PASSWORD@HOST/DATABASE?schema=SCHEMA or duckdb://FILE"


def _table(connection: Any, name: str, shown: list[str] | None) -> SourceTable:
    """A table of a database, all of whose statements are noted in `shown` instead of being sent, if it is a list."""
    table, where = connection.table(name), f"table {name.lower()}"
    names = lower_names(table.columns, where=where)
    texts = frozenset(low for low, column in names.items() if table[column].type().is_string())

    def read(columns: list[str]) -> Iterator[pa.Table]:
        """The rows of a statement; the engine's own error may hold patients' values and is left out."""
        expression = table.select(**{column: _plain(table[column]) for column in columns})
        if shown is not None:
            sql = connection.compile(expression, pretty=True).strip()
            shown.append(f"-- {where}\n{sql};")
            return
        fix = "check that its columns have the types of OMOP's CDM 5.3 or 5.4"
        ask = partial(connection.to_pyarrow_batches, expression, chunk_size=BLOCK_ROWS)
        batches = iter(_silently(ask, "cannot be read", where, fix))
        read_next = partial(next, batches, None)
        while (batch := _silently(read_next, "cannot be read", where, fix)) is not None:
            yield pa.Table.from_batches([batch])

    return SourceTable(where, None, names, texts, read)


def _plain(column: Any) -> Any:
    """A column that Arrow can hold: an exact decimal becomes a float."""
    return column.cast("float64") if column.type().is_decimal() else column


def _silently(call: Callable[[], Any], what: str, where: str, fix: str) -> Any:
    """What a call returns; an engine's error, of any type since the URL chooses the driver, is replaced by ours."""
    try:
        return call()
    except EhrseqError:
        raise
    except Exception:
        pass
    # outside, so that the engine's error is not even a context
    raise EhrseqError(what, where=where, fix=fix)


@contextmanager
def database_tables(
    url: str, names: set[str], shown: list[str] | None
) -> Iterator[Sequence[tuple[str, SourceTable]]]:
    """The tables of a database that have one of these names: `duckdb://FILE` or `postgres://…`.

    Raises:
        EhrseqError: Ibis or a driver is not installed, or the database cannot be opened.
    """
    where = public_name(url)
    connection = _silently(partial(connect, url), "cannot be opened", where, _FIX)

    def find() -> list[tuple[str, SourceTable]]:
        connection.raw_sql("SET TimeZone='UTC'")
        return [
            (name.lower(), _table(connection, name, shown))
            for name in sorted(connection.list_tables())
            if name.lower() in names
        ]

    try:
        yield _silently(find, "cannot be opened", where, _FIX)
    finally:
        connection.disconnect()


def looks_like_database(text: str) -> bool:
    """Whether a text may be the URL of a database, and so may hold a password."""
    marks = any(mark in text for mark in ("://", ":/", "=", "@"))
    return marks or text.lower().startswith(("postgres", "mysql"))


def public_name(text: str) -> str:
    """The name of a source for messages: a path as it is, a database only by its kind."""
    if "://" not in text and (Path(text).exists() or not looks_like_database(text)):
        return text
    kind = _KINDS.get(text.partition("://")[0].lower(), "")
    return f"the {kind} database" if kind else "the database"


def local_path(text: str) -> Path | None:
    """The folder or DuckDB file of a source; None for a server."""
    if text.lower().startswith(_DUCKDB):
        return Path(text[len(_DUCKDB) :])
    return None if "://" in text or not Path(text).exists() else Path(text)


def connect(url: str) -> Any:
    """Open a database through Ibis.

    Raises:
        EhrseqError: The text is not such a URL, a DuckDB file is missing, or Ibis or PostgreSQL's driver is not
            installed.
    """
    try:
        import ibis
    except ImportError as error:
        what, fix = "reading a database needs Ibis", 'pip install "ehrsequencing[omop]"'
        raise EhrseqError(f"{what}, which is not installed", fix=fix) from error
    if url.lower().startswith(_DUCKDB):
        path = local_path(url)
        if path is None or not path.is_file():  # DuckDB would make an empty database
            where, fix = "the DuckDB database", "name it as duckdb://FILE"
            raise EhrseqError("the file does not exist", where=where, fix=fix)
        return ibis.duckdb.connect(path, read_only=True)
    parts = _POSTGRES.fullmatch(url)
    if parts is None:
        raise EhrseqError("is not a URL that is read", where="the database", fix=_HOW)
    try:
        import psycopg  # noqa: F401  # Ibis would import it, too, but its error does not name our extra
    except ImportError as error:
        what = "reading PostgreSQL needs its driver, which is not installed"
        fix = 'pip install "ehrsequencing[postgres]"'
        raise EhrseqError(what, where="the database", fix=fix) from error
    given: dict[str, Any] = {
        name: unquote(text) for name, text in parts.groupdict().items() if text
    }
    query = parse_qsl(given.pop("query", ""))
    if "address" in given:
        given["host"] = given.pop("address")
    if "port" in given:
        given["port"] = int(given["port"])
    return ibis.postgres.connect(**given, **dict(query))
