"""The files of a FHIR export, and a first look at all its resources: which versions count, and what they say of others.

Type and id name one resource (FHIR R4, 2.21): of several versions the newest counts, and none after a deletion. A
Condition may be linked to its encounter from the encounter only, and a patient's record may be replaced by another's.
"""

import codecs
import gzip
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_unpacked
from ehrsequencing.core.text import HalfSurrogate, parse_json
from ehrsequencing.readers.fhir.elements import (
    Entry,
    Resource,
    codings,
    entries_of,
    kind_of,
    referred,
    referred_id,
    server_of,
    text,
    texts,
    walk,
)
from ehrsequencing.readers.fhir.known import (
    Known,
    bill_of,
    join_records,
    linked_records,
    record_of,
    replaced_bills,
)
from ehrsequencing.readers.fhir.mapping import BILLS, READ, class_of
from ehrsequencing.readers.rows import TERMS

LOST = ("", "older_version", "withdrawn", "subsetted")  # keys of `import_report.REASONS`
_SEXES = {"male", "female"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# type → element → the release that writes it, and as which type of JSON; R4 has it not, or another type there
OTHER_RELEASES: dict[str, dict[str, tuple[str, type]]] = {
    "Condition": {
        "patient": ("DSTU2", dict),
        "dateRecorded": ("DSTU2", str),
        "verificationStatus": ("STU3", str),
        "clinicalStatus": ("STU3", str),
        "assertedDate": ("STU3", str),
        "context": ("STU3", dict),
    },
    "MedicationOrder": {"resourceType": ("DSTU2", str)},
    "Observation": {"context": ("STU3", dict)},
    "DiagnosticReport": {"context": ("STU3", dict)},
    "Procedure": {
        "context": ("STU3", dict),
        "occurrenceDateTime": ("R5", str),
        "occurrencePeriod": ("R5", dict),
    },
    "Encounter": {"actualPeriod": ("R5", dict), "class.coding.code": ("R5", str)},
    "MedicationRequest": {"context": ("STU3", dict), "medication": ("R5", dict)},
    "MedicationStatement": {"medication": ("R5", dict)},
    "MedicationAdministration": {"medication": ("R5", dict)},
    "MedicationDispense": {"medication": ("R5", dict)},
}


def survey(
    files: Iterable[tuple[str, Iterable[Entry]]],
    *,
    known: Literal["latest", "earliest"] = "latest",
    confirmed: bool = False,
) -> Known:
    """What a first look at all entries of a source shows, in its order.

    Args:
        files: What to call each file in an error, and its entries.
        known: As `import.known`.
        confirmed: Whether diagnoses that are not confirmed count as the others.

    Raises:
        EhrseqError: Two people have the same id, or an id is named at two servers.
    """
    # of each entry with a type and an id: hash of both, update, version, place, state: 0 deleted, 1 subsetted
    seen = array("q")
    # what resources say of others: order, table, name and value of `_links`, with the place of who says so
    said: list[tuple[int, str, Any, Any, int]] = []
    people = dict[str, tuple[str | None, str | None, str]]()  # birth, sex and file
    servers = dict[int, str]()  # hash of type and id → the server that is named with them
    place, has_types = -1, False
    entries = ((where, entry) for where, inside in files for entry in inside)
    for place, (where, entry) in enumerate(entries):
        resource, kind, own = entry.resource, kind_of(entry.resource), text(entry.resource, "id")
        has_types = has_types or kind is not None
        for name, server in _named_servers(entry, kind, own):
            if servers.setdefault(hash(name), server) != server:
                raise EhrseqError(
                    "one id is that of resources at two servers",
                    where=where,
                    fix="import the files of each server by themselves",
                )
        if kind == "Person" and entry.is_there:
            said += [(0, "pairs", pair, None, place) for pair in linked_records(resource, kind, "")]
        if kind not in READ or own is None:
            continue
        name, is_part = f"{kind}/{own}", "SUBSETTED" in texts(resource, "meta.tag.code")
        state = 2 - is_part if entry.is_there else 0
        seen.extend((hash(name), *_version(entry), place, state))
        if not entry.is_there:
            continue
        if kind == "Patient":
            record = record_of(resource)
            birth, sex, first = people.setdefault(own, (*record[:2], where))
            if record.birth and birth not in (None, record.birth) and {sex, record.sex} == _SEXES:
                raise EhrseqError(
                    "one Patient id has two births and two sexes: these are two people",
                    where=" and ".join(dict.fromkeys((first, where))),
                    fix="import the files of each hospital by themselves, or make the ids differ",
                )
        said += [(*link, place) for link in _links(resource, kind, own)]
    if place >= 0 and not has_types:
        raise EhrseqError(
            "no FHIR resource is there: nothing has a resourceType",
            where=where,
            fix="name FHIR files; of openEHR save the answer to an AQL query as CSV, and see ehrseq import csv --draft",
        )
    lost, newer_parts = _lost(np.frombuffer(seen, np.int64).reshape(-1, 5), place + 1)
    tables = defaultdict[str, dict[Any, Any]](dict)
    for _, table, name, value, at in sorted(said, key=lambda one: one[0]):
        if not lost[at]:
            tables[table].setdefault(name, value)  # of several stays the one that ends first
    merged, superseded, counts = join_records(tables["records"], tables["pairs"])
    return Known(
        earliest=known == "earliest",
        confirmed=confirmed,
        replaced=replaced_bills(tables["bills"]),
        superseded=superseded,
        merged=merged,
        **{name: tables[name] for name in ("codes", "stays", "wholes", "classes")},
        lost=lost,
        newer_parts=newer_parts,
        counts=counts,
    )


def _named_servers(entry: Entry, kind: str | None, own: str | None) -> Iterator[tuple[str, str]]:
    """Types and ids that an entry names with a server: its own, and the patient whom it refers to by a whole URL."""
    if entry.server and kind in READ and own is not None:
        yield f"{kind}/{own}", entry.server
    for path in ("subject", "patient") if isinstance(entry.resource, dict) else ():
        reference = text(entry.resource.get(path), "reference") or ""
        other, name = referred(reference) or (None, "")
        if other == "Patient" and (server := server_of(reference)):
            yield f"Patient/{name}", server


def _lost(seen: Ints, n: int) -> tuple[NDArray[np.int8], int]:
    """(n,) why entries do not count, 0 where they do; and how many subsetted copies are newer than the whole one."""
    is_part = seen[:, 4] == 1
    order = np.lexsort((seen[:, 3], seen[:, 2], seen[:, 1], ~is_part, seen[:, 0]))
    keys, updated, number, place, state = seen[order].T
    is_part = is_part[order]
    is_newest = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
    newest = np.flatnonzero(is_newest)[np.cumsum(is_newest) - is_newest]
    is_beside = is_part & ~is_part[newest]  # a whole one is there
    is_newer = (updated > updated[newest]) | (
        (updated == updated[newest]) & (number > number[newest])
    )
    lost = np.zeros(n, dtype=np.int8)
    lost[place[~is_newest]] = LOST.index("older_version")
    lost[place[is_beside]] = LOST.index("subsetted")
    lost[place[state[newest] == 0]] = LOST.index("withdrawn")
    return lost, len(np.unique(newest[is_beside & is_newer & (state[newest] > 0)]))


def _version(entry: Entry) -> tuple[int, int]:
    """What tells versions of a resource apart: when it was updated, and its number. The higher is the newer."""
    meta, note = next(iter(walk(entry.resource, "meta")), None), entry.note
    updated = text(meta, "lastUpdated") or text(note, "response.lastModified")
    number = text(meta, "versionId") or (text(note, "response.etag") or "").strip('W/"')
    is_whole = number.isascii() and number.isdigit() and len(number) < 19
    return _instant_us(updated), int(number) if is_whole else -1


def _instant_us(written: str | None) -> int:
    """A FHIR instant as µs since 1970; -1 for what is none.

    >>> _instant_us("1970-01-01T01:00:01+01:00"), _instant_us("2015-02"), _instant_us(None)
    (1000000, -1, -1)
    """
    try:
        moment = datetime.fromisoformat(written or "")
    except ValueError:
        return -1
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _links(resource: Resource, kind: str, own: str) -> Iterator[tuple[int, str, Any, Any]]:
    """What a resource says of others: order (the lowest counts), table of `survey`, name there, and value."""
    if kind == "Medication":
        codes = codings(resource.get("code"))
        yield 0, "codes", own, codes or codings(walk(resource, "ingredient.itemCodeableConcept"))
    elif kind in BILLS:
        yield 0, "bills", f"{kind}/{own}", bill_of(resource)
    elif kind == "Patient":
        yield 0, "records", own, record_of(resource)
        for pair in linked_records(resource, kind, own):
            yield 0, "pairs", pair, None
    elif kind == "Encounter":
        if text(resource, "status") not in TERMS["fhir"]["did_not_happen"]["status"]:
            yield 0, "classes", own, (class_of(resource),)
        whole = referred_id(resource, "partOf", "Encounter")
        if whole is not None:
            yield 0, "wholes", own, whole
        end = _instant_us(text(resource, "period.end") or text(resource, "period.start"))
        for path in ("diagnosis.condition.reference", "reasonReference.reference"):
            for reference in texts(resource, path):
                other, name = referred(reference) or ("", "")
                if name:
                    yield end, "stays", f"{other or 'Condition'}/{name}", own


# ---- the files of an export: one resource a line, or one document, plain or gz; and the entries in each ----
LONGEST_LINE = 1 << 28  # bytes; what is longer is several lines, none of which can be read
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
    bad_lines: list[int] = field(default_factory=list)  # that are no JSON, or too long

    def entries(self) -> Iterator[Entry]:
        """The entries in the file's order.

        Raises:
            EhrseqError: The file cannot be read, or a document is no JSON.
        """
        self.bad_lines, where = [], self.where
        try:
            if not self.is_lines:
                whole = parse_json(read_unpacked(self.path, where=where), distinct=False)
                yield from entries_of(whole)
                return
            with _opened(self.path) as file:
                lines = iter(lambda: file.readline(LONGEST_LINE), b"")
                for number, line in enumerate(lines, start=1):
                    if line.isspace():
                        continue
                    where = f"{self.where}, line {number}"
                    try:
                        document = parse_json(line.removeprefix(codecs.BOM_UTF8), distinct=False)
                    except HalfSurrogate:
                        raise
                    except ValueError:
                        self.bad_lines.append(number)
                        yield Entry(None, is_there=False)
                        continue
                    if isinstance(document, dict):
                        yield from entries_of(document)
                    else:
                        yield Entry(document)
        except HalfSurrogate as error:
            raise EhrseqError(error.what, where=where, fix=_IN_UTF8) from error
        except _BAD as error:
            kind = "one resource a line" if self.is_lines else "JSON"
            raise EhrseqError(
                "cannot be read",
                where=self.where,
                fix=f"check that the file is whole, and holds {kind} in UTF-8",
            ) from error


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
    files = []
    for number, path in enumerate(paths, start=1):
        is_lines = _suffix(path) in _LINES
        if not is_lines:  # some servers call NDJSON `.json`
            try:
                with _opened(path) as file:
                    first, second = file.readline(LONGEST_LINE), file.readline(LONGEST_LINE)
                if second.strip():
                    is_lines = kind_of(parse_json(first, distinct=False)) is not None
            except _BAD:
                pass
        unnamed = f"{source}, file {number} of {len(paths)} in order of their names"
        files.append(FhirFile(path, is_lines, str(path) if is_lines else unnamed))
    return files


def _suffix(path: Path) -> str:
    is_hidden = path.name.startswith(".")
    return "" if is_hidden else Path(path.name.lower().removesuffix(".gz")).suffix
