"""`ehrseq import fhir`: every resource of a FHIR export, file by file, to the MEDS writer."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_unpacked
from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.fhir.blocks import UNTYPED, Blocks
from ehrsequencing.readers.fhir.elements import Entry, entries_of, kind_of
from ehrsequencing.readers.fhir.survey import Survey, refuse_other_release
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.subject_ids import SubjectNames

BLOCK = 500  # entries that are Python objects at once: a bill of 20 kB becomes some 100 kB
LONGEST_LINE = 1 << 28  # bytes; a longer line is counted, and not read
_FIX = "name a folder of FHIR R4: bulk export as .ndjson, or bundles as .json, plain or gz"
_BAD = (OSError, EOFError, zlib.error, ValueError, RecursionError)


@reader(
    "fhir",
    help="FHIR R4: bulk export or bundles.",
    source="Folder of .ndjson and .json files, plain or gz, or one such file",
)
def import_fhir(source: str, job: Import) -> None:
    """Read every resource whose type has a mapping, and count the others; see `Reader` and `mapping.py`.

    The files are read twice: only a first look tells which version of a resource counts, and which encounter a
    Condition belongs to.
    """
    files, path = fhir_files(Path(source)), Path(source)
    zone = ZoneInfo(job.settings.time_zone) if job.settings.time_zone is not None else None
    with job.writer(path, encounter=pa.string()) as writer:
        found, book = Survey(), CodeBook()
        for file in files:
            for entry in file.entries():
                refuse_other_release(entry.resource, where=file.where)
                found.add(entry)
        found.finish()
        writer.code_facts = lambda seen: book.facts
        blocks = Blocks(job.report, book, found, zone)
        for number in job.files(len(files)):
            file = files[number]
            blocks.begin(file.path.name if file.lines else None)
            entries = file.entries()
            while block := list(islice(entries, BLOCK)):
                writer.add(blocks.rows(block))
            if file.bad_lines:
                table = job.report.row_counts.table(UNTYPED)
                table.essential = False
                job.report.lose_lines(table, file.path.name, file.bad_lines, file.first_bad_line)
        blocks.finish()
        names = SubjectNames()
        names.add(pa.chunked_array([pa.array(sorted(blocks.patients), pa.string())]))
        names.write(writer.folder)


@dataclass
class FhirFile:
    """One file of a source."""

    path: Path
    lines: bool  # one resource a line, else one document
    where: str  # for errors: many exports name a document after its patient, so that its name is not said
    bad_lines: int = 0  # that are no JSON, or too long
    first_bad_line: int | None = None

    def entries(self) -> Iterator[Entry]:
        """The entries in the file's order.

        Raises:
            EhrseqError: The file cannot be read, or a document is no JSON.
        """
        self.bad_lines, self.first_bad_line = 0, None
        try:
            if self.lines:
                with _opened(self.path) as file:
                    yield from self._of_lines(file)
            else:
                yield from entries_of(json.loads(read_unpacked(self.path, where=self.where)))
        except _BAD as error:
            kind = "one resource a line" if self.lines else "JSON"
            fix = f"check that the file is whole, and holds {kind} in UTF-8"
            raise EhrseqError("cannot be read", where=self.where, fix=fix) from error

    def _of_lines(self, file: IO[bytes]) -> Iterator[Entry]:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            whole = line
            while not whole.endswith(b"\n") and (whole := file.readline(LONGEST_LINE)):
                line = b""  # the rest of a line that is too long
            if line and not line.strip():
                continue
            try:
                document = json.loads(line.removeprefix(codecs.BOM_UTF8))
            except (ValueError, RecursionError):
                self.bad_lines += 1
                self.first_bad_line = self.first_bad_line or number
                continue
            yield from entries_of(document) if isinstance(document, dict) else [Entry(document)]


def _opened(path: Path) -> Any:
    return gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb")


def fhir_files(source: Path) -> list[FhirFile]:
    """The files of a folder, also of folders in it, or a single one.

    Raises:
        EhrseqError: No file is there.
    """
    if not source.exists():
        raise EhrseqError("does not exist", where=str(source), fix=_FIX)
    found = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    kinds = [(path, _is_of_lines(path)) for path in found if not path.name.startswith(".")]
    if all(lines is None for _, lines in kinds):
        raise EhrseqError("holds no .ndjson and no .json file", where=str(source), fix=_FIX)
    documents = [path for path, lines in kinds if lines is False]
    return [
        FhirFile(
            path,
            lines,
            str(path)
            if lines
            else f"{source}, JSON file {documents.index(path) + 1} of {len(documents)}, in order of their names",
        )
        for path, lines in kinds
        if lines is not None
    ]


def _is_of_lines(path: Path) -> bool | None:
    """Whether a file holds one resource a line; None for a file of another kind. Some servers call NDJSON `.json`."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".ndjson", ".jsonl")):
        return True
    if not name.endswith(".json"):
        return None
    try:
        with _opened(path) as file:
            first, second = file.readline(LONGEST_LINE), file.readline(LONGEST_LINE)
        return bool(second.strip()) and kind_of(json.loads(first)) is not None
    except _BAD:
        return False
