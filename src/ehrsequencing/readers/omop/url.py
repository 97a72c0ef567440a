"""Opens a database by its URL, which never appears in a message, not even in part: it may hold a password."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from ehrsequencing.core.errors import EhrseqError

_URL = re.compile(
    # A password may hold any character: it ends at the last @ that a valid host, database and query can follow.
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+]*)://(?:(?P<user>[^:@/?#]*)(?::(?P<password>.*))?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^@:/?#\[\]]*)(?::(?P<port>\d+))?(?:/(?P<path>[^?#]*))?(?:\?(?P<query>[^#]*))?",
    re.DOTALL,
)
_HOW = "write it as postgres://USER:PASSWORD@HOST/DATABASE?schema=SCHEMA or duckdb://FILE"


def looks_like_database(text: str) -> bool:
    """Whether a text may be the URL of a database, and so may hold a password."""
    return any(mark in text for mark in ("://", ":/", "=", "@")) or text.lower().startswith(
        ("postgres", "mysql")
    )


def public_name(text: str) -> str:
    """The name of a source for messages: a path as it is, a database only by its kind."""
    if "://" not in text and (Path(text).exists() or not looks_like_database(text)):
        return text
    scheme = text.partition("://")[0].lower()
    known = {
        "postgres": "PostgreSQL",
        "postgresql": "PostgreSQL",
        "duckdb": "DuckDB",
    }
    return f"the {known[scheme]} database" if "://" in text and scheme in known else "the database"


def local_path(text: str) -> Path | None:
    """The folder or DuckDB file of a source; None for a server."""
    if text.lower().startswith("duckdb://"):
        return Path(text[len("duckdb://") :])
    return None if "://" in text or not Path(text).exists() else Path(text)


def connect(url: str) -> Any:
    """Open a database through Ibis.

    Raises:
        EhrseqError: The text is not a URL, a DuckDB file is missing, or PostgreSQL's driver is
            not installed.
    """
    import ibis

    if url.lower().startswith("duckdb://"):
        path = local_path(url)
        if path is None or not path.is_file():  # DuckDB would make an empty database
            raise EhrseqError(
                "the file does not exist",
                where="the DuckDB database",
                fix="name it as duckdb://FILE",
            )
        return ibis.duckdb.connect(path, read_only=True)
    parts = _URL.fullmatch(url)
    if parts is None:
        raise EhrseqError("is not a URL", where="the database", fix=_HOW)
    if parts["scheme"].lower() not in ("postgres", "postgresql"):
        return ibis.connect(_quoted(parts))
    try:
        import psycopg  # noqa: F401  # Ibis would import it, too, but its error does not name our extra
    except ImportError as error:
        what = "reading PostgreSQL needs its driver, which is not installed"
        raise EhrseqError(
            what, where="the database", fix='pip install "ehrsequencing[postgres]"'
        ) from error
    database, _, schema = (parts["path"] or "").partition("/")
    named = {key: parts[key] for key in ("user", "password", "port")}
    named |= {"host": (parts["host"] or "").strip("[]"), "database": database, "schema": schema}
    given: dict[str, Any] = {key: unquote(value) for key, value in named.items() if value}
    given |= dict(parse_qsl(parts["query"] or ""))
    return ibis.postgres.connect(
        **(given | ({"port": int(given["port"])} if "port" in given else {}))
    )


def _quoted(parts: re.Match[str]) -> str:
    """The URL with user and password quoted, so that every parser finds the same host."""
    login = parts.group("user", "password")
    user, password = (None if text is None else quote(unquote(text), safe="") for text in login)
    prefix = "" if user is None else f"{user}@" if password is None else f"{user}:{password}@"
    port = f":{parts['port']}" if parts["port"] else ""
    path = f"/{parts['path']}" if parts["path"] is not None else ""
    query = f"?{parts['query']}" if parts["query"] else ""
    return f"{parts['scheme']}://{prefix}{parts['host']}{port}{path}{query}"
