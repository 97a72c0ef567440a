"""The files of a FHIR export: NDJSON in blocks of lines through DuckDB; a bundle as one JSON document."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_unpacked
from ehrsequencing.readers.fhir.elements import kind_of, resources_of
from ehrsequencing.readers.fhir.mapping import NAMED, READ

BLOCK = 5_000  # resources
PARSED = 500  # lines that are Python objects at once: a bill of 20 kB becomes some 100 kB
PARSED_BYTES = 1 << 22  # and characters of theirs; one line alone may have more
MEMORY = "1GB"  # limit of embedded DuckDB
LONGEST_LINE = 1 << 26
_LINES = (".ndjson", ".jsonl")
_FIX = "name a folder of FHIR R4: bulk export as .ndjson, or bundles as .json, plain or gz"


@dataclass(frozen=True)
class FhirFile:
    """One file of a source."""

    path: Path
    lines: bool  # one resource a line, else one document

    @property
    def public_name(self) -> str | None:
        """The name for reports; None for a document, which many exports name after its patient."""
        return self.path.name if self.lines else None


@dataclass(frozen=True)
class Line:
    """A resource that was not read into memory: its type, or None for a line that is no JSON."""

    kind: str | None


class FhirSource:
    """The files of a folder, or a single file."""

    def __init__(self, connection: Any, where: str, files: list[FhirFile]) -> None:
        self._connection, self.where, self.files = connection, where, files

    def blocks(self, file: FhirFile, kinds: tuple[str, ...] = READ) -> Iterator[list[Any]]:
        """The resources of a file in its order; those of other types than `kinds` only as `Line`.

        Raises:
            EhrseqError: The file cannot be read, or a document is no JSON.
        """
        if file.lines:
            yield from self._line_blocks(file, (*kinds, "Bundle"))
            return
        resources = list(resources_of(self._document(file)))
        yield [
            r if kind_of(r) in kinds or kind_of(r) is None else Line(kind_of(r)) for r in resources
        ]

    def named_blocks(self, file: FhirFile) -> Iterator[list[Any]]:
        """The Medications and Devices of a file; everything else as `Line`."""
        if file.lines or any(f'"{kind}"'.encode() in self._bytes(file) for kind in NAMED):
            yield from self.blocks(file, NAMED)

    def _line_blocks(self, file: FhirFile, kinds: tuple[str, ...]) -> Iterator[list[Any]]:
        import duckdb

        wanted = ", ".join(f"'{kind}'" for kind in kinds)
        sql = f"""
            SELECT kind, CASE WHEN kind IS NULL OR kind IN ({wanted}) THEN json END AS json FROM (
                SELECT json, json ->> '$.resourceType' AS kind FROM (
                    SELECT CASE WHEN json_valid(line) THEN line END AS json FROM lines))
        """
        try:
            for lines in _blocks_of_lines(file.path):
                self._connection.register("lines", pa.table({"line": pa.array(lines, pa.string())}))
                kind, text = (
                    column.to_pylist()
                    for column in self._connection.execute(sql).fetch_arrow_table().columns
                )
                yield [item for pair in zip(kind, text, strict=True) for item in _parsed(*pair)]
        except (duckdb.Error, OSError, EOFError, zlib.error) as error:
            fix = "check that the file is whole, and holds one resource a line in UTF-8"
            raise EhrseqError("cannot be read", where=str(file.path), fix=fix) from error

    def _bytes(self, file: FhirFile) -> bytes:
        documents = [other for other in self.files if not other.lines]
        where = "" if file.lines else f"{self.where}, {_unnamed(file, documents)}"
        return read_unpacked(file.path, where=where)

    def _document(self, file: FhirFile) -> Any:
        try:
            return json.loads(self._bytes(file))
        except (ValueError, RecursionError) as error:
            raise self._bad(file) from error

    def _bad(self, file: FhirFile) -> EhrseqError:
        """The error about a document; it does not repeat the name, which may be the patient's."""
        what = (
            f"{_unnamed(file, [other for other in self.files if not other.lines])}, cannot be read"
        )
        return EhrseqError(what, where=self.where, fix="check that the file is whole JSON in UTF-8")


def _blocks_of_lines(path: Path) -> Iterator[list[str | None]]:
    """The lines of a file that are not blank, some at a time; None for one that is not UTF-8.

    DuckDB's own reader of lines holds 2,048 of them, however long they are.

    Raises:
        OSError: The file cannot be read, or a line is longer than `LONGEST_LINE`.
    """
    lines, size = list[str | None](), 0
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        line = file.readline(LONGEST_LINE + 1).removeprefix(codecs.BOM_UTF8)
        while line:
            if len(line) > LONGEST_LINE:
                raise OSError("a line is too long")
            if lines and (len(lines) == PARSED or size + len(line) > PARSED_BYTES):
                yield lines
                lines, size = [], 0
            if line.strip():
                lines.append(_text(line))
                size += len(line)
            line = file.readline(LONGEST_LINE + 1)
    if lines:
        yield lines


def _text(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _parsed(kind: str | None, line: str | None) -> list[Any]:
    """The resources of a line."""
    if line is None:
        return [Line(kind)]
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return [Line(None)]
    return list(resources_of(document)) if isinstance(document, dict) else [document]


@contextmanager
def open_fhir(text: str) -> Iterator[FhirSource]:
    """Open a folder, also with folders in it, or one file.

    Raises:
        EhrseqError: DuckDB is not installed, or no file is there.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        message = "reading FHIR needs DuckDB, which is not installed"
        raise EhrseqError(message, fix='pip install "ehrsequencing[fhir]"') from error
    path = Path(text)
    if not path.exists():
        raise EhrseqError("does not exist", where=text, fix=_FIX)
    found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    files = [file for p in found if not p.name.startswith(".") and (file := _file(p)) is not None]
    if not files:
        raise EhrseqError("holds no .ndjson and no .json file", where=text, fix=_FIX)
    connection = duckdb.connect()
    try:
        connection.execute(
            f"SET memory_limit='{MEMORY}'; SET threads=1; SET preserve_insertion_order=true"
        )
        yield FhirSource(connection, text, files)
    finally:
        connection.close()


def _unnamed(file: FhirFile, documents: list[FhirFile]) -> str:
    """Which document it is, without its name."""
    return f"JSON file {documents.index(file) + 1} of {len(documents)}, in order of their names"


def _file(path: Path) -> FhirFile | None:
    """The file and how it is read; None for a file of another kind. Some servers call NDJSON `.json`."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(_LINES):
        return FhirFile(path, lines=True)
    return FhirFile(path, lines=_first_line_is_whole(path)) if name.endswith(".json") else None


def _first_line_is_whole(path: Path) -> bool:
    """Whether the first line is a resource and another line follows."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as file:
            first, second = file.readline(LONGEST_LINE), file.readline(LONGEST_LINE)
        return bool(second.strip()) and kind_of(json.loads(first)) is not None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return False
