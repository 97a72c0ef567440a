"""OMOP tables of a live database through Ibis, and concepts with their codes.

Its URL may hold a password: no message repeats any part of it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError, install
from ehrsequencing.readers.cells import NO_TEXT, Block
from ehrsequencing.readers.import_report import KEPT, TableCounts
from ehrsequencing.readers.registry import Import
from ehrsequencing.readers.rows import (
    END_SUFFIX,
    PART_SUFFIX,
    TERMS,
    CodeFacts,
    clean_codes,
    joined,
)
from ehrsequencing.readers.table_files import BLOCK_ROWS, SourceTable, lower_names
from ehrsequencing.records.codes import PROVISIONAL

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


def _table(connection: Any, name: str) -> SourceTable:
    """A table of a database."""
    table, where = connection.table(name), f"table {name.lower()}"
    names = lower_names(table.columns, where=where)
    texts = frozenset(low for low, column in names.items() if table[column].type().is_string())

    def read(columns: list[str]) -> Iterator[pa.Table]:
        """The rows of a statement; the engine's own error may hold patients' values and is left out."""
        expression = table.select(**{column: _plain(table[column]) for column in columns})
        fix = "check that its columns have the types of OMOP's CDM 5.3 or 5.4"
        ask = partial(connection.to_pyarrow_batches, expression, chunk_size=BLOCK_ROWS)
        batches = iter(_silently(ask, "cannot be read", where, fix))
        read_next = partial(next, batches, None)
        while (batch := _silently(read_next, "cannot be read", where, fix)) is not None:
            yield pa.Table.from_batches([batch])

    return SourceTable(where, None, names, texts, read)


def _plain(column: Any) -> Any:
    """A column that Arrow can hold exactly: a decimal becomes its text, and PostgreSQL's NaN null."""
    return column.cast("string").nullif("NaN") if column.type().is_decimal() else column


def _silently(call: Callable[[], Any], what: str, where: str, fix: str) -> Any:
    """What a call returns; an engine's error, of any type since the URL chooses the driver, is replaced by ours."""
    try:
        return call()
    except EhrseqError:
        raise
    except Exception:
        pass
    # raised outside of the `except`, so that the engine's error is not even its context
    raise EhrseqError(what, where=where, fix=fix)


@contextmanager
def database_tables(url: str, names: set[str]) -> Iterator[Sequence[tuple[str, SourceTable]]]:
    """The tables of a database that have one of these names: `duckdb://FILE` or `postgres://…`.

    Raises:
        EhrseqError: Ibis or a driver is not installed, or the database cannot be opened.
    """
    where = public_name(url)
    connection = _silently(
        partial(connect, url),
        "cannot be opened",
        where,
        _FIX if local_path(url) is None else "check that you may read the file",
    )

    def find() -> list[tuple[str, SourceTable]]:
        connection.raw_sql("SET TimeZone='UTC'")
        return [
            (name.lower(), _table(connection, name))
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
        EhrseqError: The text is not such a URL, a DuckDB file is missing or cannot be opened, or Ibis or PostgreSQL's
            driver is not installed.
    """
    try:
        import ibis
    except ImportError as error:
        what, fix = "reading a database needs Ibis", install("omop")
        raise EhrseqError(f"{what}, which is not installed", fix=fix) from error
    if url.lower().startswith(_DUCKDB):
        path = local_path(url)
        if path is None or not path.is_file():  # DuckDB would make an empty database
            raise EhrseqError(
                "the file does not exist",
                where="the DuckDB database",
                fix="name it as duckdb://FILE",
            )
        with path.open("rb") as file:
            header = file.read(12)
        if header[8:] != b"DUCK":  # DuckDB would fetch an extension to open one of SQLite
            raise EhrseqError(
                f"is {'a SQLite' if header.startswith(b'SQLite') else 'no DuckDB'} file",
                where="the DuckDB database",
                fix="name a DuckDB file, or a folder with the tables as CSV or Parquet files",
            )
        return _silently(
            partial(ibis.duckdb.connect, path, read_only=True),
            f"cannot be opened by DuckDB {version('duckdb')}",
            "the DuckDB database",
            "close it where it is open; if another version wrote it, run duckdb FILE \"EXPORT DATABASE 'FOLDER' "
            '(FORMAT parquet)" with that version, then ehrseq import omop FOLDER',
        )
    parts = _POSTGRES.fullmatch(url)
    if parts is None:
        raise EhrseqError("is not a URL that is read", where="the database", fix=_HOW)
    try:
        import psycopg  # noqa: F401  # Ibis would import it, too, but its error does not name our extra
    except ImportError as error:
        raise EhrseqError(
            "reading PostgreSQL needs its driver, which is not installed",
            where="the database",
            fix=install("postgres"),
        ) from error
    given: dict[str, Any] = {
        name: unquote(text) for name, text in parts.groupdict().items() if text
    }
    query = parse_qsl(given.pop("query", ""))
    if "address" in given:
        given["host"] = given.pop("address")
    if "port" in given:
        given["port"] = int(given["port"])
    return ibis.postgres.connect(**given, **dict(query))


# ---- concepts and their codes ----------------------------------------------------------------------------------------


VOCABULARY_TABLES = ("concept", "concept_ancestor", "concept_relationship")
_COLUMNS: dict[str, list[str]] = TERMS["omop"]["columns"]
# concepts that OMOP databases use even without a row in their table concept: code and description
KNOWN = {int(number): fact for number, fact in TERMS["omop"]["concepts"].items()}


class Concepts:
    """Names every concept id: `VOCABULARY//CODE`, or `OMOP//id` where the table concept lacks it.

    Holds ids and codes of the whole table (some 300 MB for all of Athena). Descriptions and parents are read at the
    end, only for the concepts that were used.
    """

    def __init__(self, tables: Mapping[str, Sequence[SourceTable]], job: Import) -> None:
        self._tables, self._job = tables, job
        ids, codes = [np.zeros(0, np.int64)], [pa.array([], pa.string())]
        for block in self._blocks("concept"):
            number = block.whole("concept_id")
            code = joined(block.text("vocabulary_id"), block.text("concept_code"))
            good = pc.and_(number.is_valid(), code.is_valid())
            ids.append(number.filter(good).to_numpy())
            codes.extend(clean_codes(code.filter(good)).chunks)
        ids.append(np.array(sorted(KNOWN), np.int64))  # last, so that the table's own rows win
        codes.append(pa.array([KNOWN[i][0] for i in sorted(KNOWN)], pa.string()))
        every, first = np.unique(np.concatenate(ids), return_index=True)
        self._ids: Ints = every
        self._codes = pa.concat_arrays(codes).take(pa.array(first))
        self._used = np.zeros(0, dtype=np.int64)
        self._bases: dict[str, str] = {}  # a code with a unit, a value or an end → the code without

    def _blocks(self, name: str) -> Iterator[Block]:
        """The rows of a table of the vocabulary, all of which count as kept."""
        if name in self._tables:
            counts = self._job.report.table(name)
            self._job.survey(self._tables[name], counts, ())
            for block in self._job.blocks(self._tables[name], counts, _COLUMNS[name], {}):
                self._job.report.mark(KEPT, block.source.to_numpy())
                yield block

    @property
    def unnamed(self) -> int:
        """How many concepts were used that the table lacks."""
        return int((~np.isin(self._used, self._ids)).sum())

    def codes(self, concept_id: pa.ChunkedArray, *, family: str = "OMOP") -> pa.ChunkedArray:
        """(n,) codes of (n,) concept ids without nulls; `FAMILY//id` for an id that the table lacks."""
        ids, inverse = np.unique(concept_id.to_numpy(), return_inverse=True)
        self._used = np.union1d(self._used, ids[ids != 0])
        return pa.chunked_array([self._names(ids, family).take(pa.array(inverse))])

    def _names(self, ids: Ints, family: str = "OMOP") -> pa.Array:
        own = pa.array([f"{family}//{i}" for i in ids.tolist()], pa.string())
        return pc.coalesce(self._codes.take(pc.index_in(pa.array(ids), pa.array(self._ids))), own)

    def short_codes(self, concept_id: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """(n,) codes without their vocabulary (null for an id of null or 0), and (n,) whether the table has the id."""
        ids = pc.fill_null(concept_id, 0)
        short = pc.replace_substring_regex(self._names(ids.to_numpy()), r"^.*?//", "")
        short = pc.if_else(pc.equal(ids, 0), NO_TEXT, short)
        return short, pc.is_in(ids, value_set=pa.array(self._ids))

    def derived(self, code: pa.ChunkedArray, suffix: pa.ChunkedArray) -> pa.ChunkedArray:
        """CODE//SUFFIX where there is a suffix, else CODE; the longer code gets CODE as its parent."""
        longer = clean_codes(joined(code, suffix))
        made = longer.is_valid()
        pairs = zip(longer.filter(made).to_pylist(), code.filter(made).to_pylist(), strict=True)
        self._bases.update(pairs)
        return pc.coalesce(longer, code)

    def with_end(self, code: pa.ChunkedArray) -> None:
        """Make each code the parent of the code of its visit's end; and the same of its parts."""
        for base in pc.unique(code).to_pylist():
            part = f"{base}{PART_SUFFIX}"
            self._bases |= {f"{base}{END_SUFFIX}": base, part: base, f"{part}{END_SUFFIX}": part}

    def facts(self, seen: set[str]) -> dict[str, CodeFacts]:
        """Descriptions and parents of the codes that were named, and of all their ancestors."""
        # children and parents: by concept_ancestor, else by 'Is a'; and from source to standard concepts
        kinds = ["Maps to"] if "concept_ancestor" in self._tables else ["Is a", "Maps to"]
        parts = [pa.schema({"child": pa.int64(), "parent": pa.int64()}).empty_table()]
        for block in self._blocks("concept_ancestor"):
            child = block.whole("descendant_concept_id")
            edges = pa.table({"child": child, "parent": block.whole("ancestor_concept_id")})
            parts.append(edges.filter(pc.equal(block.whole("min_levels_of_separation"), 1)))
        for block in self._blocks("concept_relationship"):
            child = block.whole("concept_id_1")
            edges = pa.table({"child": child, "parent": block.whole("concept_id_2")})
            of_kind = pc.is_in(block.text("relationship_id"), value_set=pa.array(kinds))
            parts.append(edges.filter(pc.and_(of_kind, pc.is_null(block.text("invalid_reason")))))
        edges, parents = pa.concat_tables(parts).drop_null(), defaultdict[int, set[int]](set)
        met = wanted = self._used
        while len(wanted):  # the used concepts, then their ancestors
            chosen = edges.filter(pc.is_in(edges["child"], value_set=pa.array(wanted)))
            for edge in chosen.to_pylist():
                parents[edge["child"]].add(edge["parent"])
            wanted = np.setdiff1d(chosen["parent"].to_numpy(), met)
            met = np.union1d(met, wanted)
        code_of = dict(zip(met.tolist(), self._names(met).to_pylist(), strict=True))
        described = {number: description for number, (_, description) in KNOWN.items()}
        for table in self._tables.get("concept", []):
            for rows in table.blocks(["concept_id", "concept_name"]):
                block = Block(rows, TableCounts("concept", 0))
                wanted = pc.is_in(block.whole("concept_id"), value_set=pa.array(met))
                named = pc.and_(wanted, pc.is_valid(block.text("concept_name")))
                numbers, names = block.whole("concept_id"), block.text("concept_name")
                pairs = (column.filter(named).to_pylist() for column in (numbers, names))
                described.update(zip(*pairs, strict=True))
        facts: dict[str, CodeFacts] = {}
        nothing = CodeFacts()
        for number, code in code_of.items():
            before = facts.get(code, nothing)
            above = {code_of[up] for up in parents.get(number, ())} - {code}
            ups = tuple(sorted(above.union(before.parents)))
            facts[code] = CodeFacts(before.description or described.get(number), ups)
        for code in sorted(seen & self._bases.keys()):
            base = self._bases[code]
            # a part of a stay is not below the stay's concept, nor what may be below what is
            ups = () if code.endswith((PART_SUFFIX, PROVISIONAL)) else (base,)
            facts[code] = CodeFacts(facts.get(base, nothing).description, ups)
        return facts
