"""The files of a FHIR export: one resource a line, or one document, plain or gz; and the entries in each."""

import codecs
import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_unpacked
from ehrsequencing.core.text import HalfSurrogate, parse_json
from ehrsequencing.readers.fhir.elements import Entry, entries_of, kind_of

LONGEST_LINE = 1 << 28  # bytes; what is longer is several lines, none of which can be read
LOOKED_AT = 1 << 18  # bytes of a file, in search of the server that its references name
_SERVER = re.compile(
    rb'"(?:subject|patient)"\s*:\s*\{\s*"reference"\s*:\s*"(https?://[^"\s]+)/Patient/'
)
_LINES = (".ndjson", ".jsonl")
_IN_UTF8 = "correct the text, or export it again in UTF-8"
_BAD = (OSError, EOFError, zlib.error, ValueError, RecursionError)
_FIX = "name a folder of FHIR R4: bulk export as .ndjson, or bundles as .json, plain or gz"


@dataclass
class FhirFile:
    """One file of a source."""

    path: Path
    is_lines: bool  # one resource a line, else one document
    where: str  # for errors: many exports name a document after its patient, so that its name is not said
    server: str = ""  # that the references of its folder name, for one resource a line
    bad_lines: list[int] = field(default_factory=list)  # that are no JSON, or too long

    def entries(self) -> Iterator[Entry]:
        """The entries in the file's order.

        Raises:
            EhrseqError: The file cannot be read, or a document is no JSON.
        """
        self.bad_lines = []
        try:
            if self.is_lines:
                yield from self._of_lines()
            else:
                yield from entries_of(
                    parse_json(read_unpacked(self.path, where=self.where), distinct=False)
                )
        except HalfSurrogate as error:
            raise EhrseqError(error.what, where=self.where, fix=_IN_UTF8) from error
        except _BAD as error:
            kind = "one resource a line" if self.is_lines else "JSON"
            raise EhrseqError(
                "cannot be read",
                where=self.where,
                fix=f"check that the file is whole, and holds {kind} in UTF-8",
            ) from error

    def _of_lines(self) -> Iterator[Entry]:
        with _opened(self.path) as file:
            lines = iter(lambda: file.readline(LONGEST_LINE), b"")
            for number, line in enumerate(lines, start=1):
                if line.isspace():
                    continue
                try:
                    document = parse_json(line.removeprefix(codecs.BOM_UTF8), distinct=False)
                except HalfSurrogate as error:
                    raise EhrseqError(
                        error.what, where=f"{self.where}, line {number}", fix=_IN_UTF8
                    ) from error
                except ValueError:
                    self.bad_lines.append(number)
                    yield Entry(None, is_there=False)
                    continue
                if isinstance(document, dict):
                    yield from entries_of(document, self.server)
                else:
                    yield Entry(document)


def _opened(path: Path) -> Any:
    return gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb")


def fhir_files(source: Path) -> list[FhirFile]:
    """The files of a folder, also of folders in it, or a single one.

    Raises:
        EhrseqError: No file is there.
    """
    paths = sorted(source.rglob("*")) if source.is_dir() else [source]
    paths = [path for path in paths if path.is_file() and _suffix(path) in (*_LINES, ".json")]
    if not paths:
        raise EhrseqError(
            "holds no .ndjson and no .json file" if source.exists() else "does not exist",
            where=str(source),
            fix=_FIX,
        )
    files, servers = [], defaultdict[Path, set[str]](set)
    for number, path in enumerate(paths, start=1):
        is_lines = _suffix(path) in _LINES or _is_json_of_lines(path)
        unnamed = f"{source}, file {number} of {len(paths)} in order of their names"
        files.append(FhirFile(path, is_lines, str(path) if is_lines else unnamed))
        if is_lines:
            servers[path.parent] |= _servers_named(path)
    for file in files:
        if file.is_lines and len(servers[file.path.parent]) == 1:
            (file.server,) = servers[file.path.parent]
    return files


def _servers_named(path: Path) -> set[str]:
    """The servers of the patients that the beginning of a file refers to by whole URLs."""
    try:
        with _opened(path) as file:
            return {server.decode() for server in _SERVER.findall(file.read(LOOKED_AT))}
    except _BAD:
        return set()


def _suffix(path: Path) -> str:
    is_hidden = path.name.startswith(".")
    return "" if is_hidden else Path(path.name.lower().removesuffix(".gz")).suffix


def _is_json_of_lines(path: Path) -> bool:
    """Whether a `.json` file holds one resource a line, as some servers call NDJSON."""
    try:
        with _opened(path) as file:
            first, second = file.readline(LONGEST_LINE), file.readline(LONGEST_LINE)
        return bool(second.strip()) and kind_of(parse_json(first, distinct=False)) is not None
    except _BAD:
        return False
