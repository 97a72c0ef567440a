"""A first look at all resources of a source: which versions count, and what others refer to.

Type and id name one resource (FHIR R4, 2.21): of several versions the newest counts, and none after a deletion. A
Condition may be linked to its encounter from the encounter only, and a patient's record may be replaced by another's.
"""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.fhir.elements import (
    Coded,
    Entry,
    Resource,
    kind_of,
    named_codes,
    qualified,
    referred,
    referred_id,
    text,
    texts,
    walk,
)
from ehrsequencing.readers.fhir.mapping import NAMED, READ, Known

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# JSON without braces and escapes; its parts never overlap, so that a search takes linear time
_FLAT = rb'(?:[^{}"]++|"[^"\\]*+")*+'
_HEAD = re.compile(
    rb'\s*\{\s*"resourceType"\s*:\s*"(\w+)"\s*,\s*"id"\s*:\s*"[^"\\]+"'
    rb'(?:\s*,\s*"meta"\s*:\s*\{' + _FLAT + rb"(?:\{" + _FLAT + rb"\}" + _FLAT + rb")*+\})?"
)
_NO_HEAD = ("Patient", "Encounter", *NAMED, "Bundle")  # of which the first look needs more
# type → element → the release that writes it, and as which type of JSON; R4 has it not, or another type there
_OTHER_RELEASES: dict[str, dict[str, tuple[str, type]]] = {
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


def refuse_other_release(resource: Any, *, where: str) -> None:
    """Refuse a resource that another release of FHIR than R4 wrote.

    Raises:
        EhrseqError: It has an element, or a type of value, that R4 has not.
    """
    kind = kind_of(resource) or ""
    for path, (release, type_) in _OTHER_RELEASES.get(kind, {}).items():
        if any(isinstance(value, type_) for value in walk(resource, path)):
            element = path.partition(".")[0]
            what = f"holds FHIR {release}, and only R4 is read (it writes {kind}.{element} so)"
            raise EhrseqError(what, where=where, fix="export it as R4, or convert it to R4")


def head(line: bytes) -> Any:
    """Type, id and version of the resource of a line, where a look at its begin shows them; else None.

    None too where the first look needs more of the resource. This is much quicker than to read the line as JSON.
    """
    found = _HEAD.match(line)
    if found is None or not line[-4:].rstrip().endswith(b"}"):
        return None
    kind = found[1].decode()
    has_more = line.find(b'"meta"', found.end()) >= 0
    if kind in _NO_HEAD or (kind in READ and has_more):
        return None
    return json.loads(found[0] + b"}")


class Survey:
    """What counts of all entries of a source, which come in its order.

    Attributes:
        known: What the mapping looks up.
        several: Whether resources of more than one server are there, so that ids must name the server.
        older: (entries,) of which a newer version is there.
        withdrawn: (entries,) which were deleted.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._servers: dict[str, int] = {"": 0}
        # of each entry with a type and an id: hash of both, server, update, version, place, is it a deletion
        self._seen = array("q")
        self._conditions = array("q")  # hash of the id, and place
        # what entries say of others: order, place, server, table of `Known`, name, value
        self._links: list[tuple[int, int, str, str, str, Any]] = []
        self._once: dict[tuple[Coded, ...], tuple[Coded, ...]] = {}
        n = 0
        for entry in entries:
            self._add(n, entry)
            n += 1
        self.several = len(self._servers.keys() - {""}) > 1
        self.older, self.withdrawn = self._versions(n)
        self.known = self._gathered()
        del self._seen, self._conditions, self._links, self._once

    def _add(self, place: int, entry: Entry) -> None:
        server = self._servers.setdefault(entry.server, len(self._servers))
        kind, own = _identity(entry)
        if kind not in READ or own is None:
            return
        deletes = entry.deleted is not None
        key = hash(f"{kind}/{own}")
        self._seen.extend((key, server, *_version(entry), place, deletes))
        if deletes:
            return
        if kind == "Condition":
            self._conditions.extend((hash(own), place))
        for order, table, name, value in _links(entry.resource, kind, own):
            kept = self._once.setdefault(value, value) if table == "codes" else value
            self._links.append((order, place, entry.server, table, name, kept))

    def _gathered(self) -> Known:
        """What those entries say that count."""
        is_lost = self.older | self.withdrawn
        tables: dict[str, dict[str, Any]] = {"codes": {}, "stays": {}, "merged": {}}
        for _, place, server, table, name, value in sorted(self._links, key=lambda link: link[0]):
            if not is_lost[place]:  # of several encounters the one that ends first
                value = value if table == "codes" else self._named(server, value)
                tables[table].setdefault(self._named(server, name), value)
        conditions, places = np.array(self._conditions, np.int64).reshape(-1, 2).T
        here = np.unique(conditions[~is_lost[places]])
        return Known(tables["codes"], tables["stays"], _ends(tables["merged"]), here)

    def _versions(self, n: int) -> tuple[Bools, Bools]:
        """Of n entries: which have a newer version, and which were deleted."""
        seen = np.frombuffer(self._seen, np.int64).reshape(-1, 6)
        keys, server, updated, number, place, _ = seen.T
        server = server * self.several
        order = np.lexsort((place, number, updated, server, keys))
        keys, server, place, deletes = keys[order], server[order], place[order], seen[order, 5]
        is_newest = np.ones(len(keys), dtype=bool)
        is_newest[:-1] = (keys[1:] != keys[:-1]) | (server[1:] != server[:-1])
        is_gone = deletes[is_newest][np.cumsum(is_newest) - is_newest] == 1
        older, withdrawn = np.zeros((2, n), dtype=bool)
        older[place[~is_newest & ~is_gone]] = True
        withdrawn[place[is_gone]] = True
        return older, withdrawn

    def _named(self, server: str, name: str) -> str:
        """A name or an id as it stands in the resources that are read."""
        kind, slash, own = name.rpartition("/")
        return f"{kind}{slash}{qualified(server, own)}" if self.several else name


def _identity(entry: Entry) -> tuple[str | None, str | None]:
    """Type and id of what an entry holds or deletes."""
    if entry.deleted is not None:
        return referred(entry.deleted) or (None, None)
    resource = entry.resource if isinstance(entry.resource, dict) else {}
    return kind_of(resource), text(resource, "id")


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


def _links(resource: Resource, kind: str, own: str) -> Iterator[tuple[int, str, str, Any]]:
    """What a resource says of others: order, table of `Known`, the other's name there, value."""
    if kind in NAMED:
        yield 0, "codes", f"{kind}/{own}", named_codes(resource)
    elif kind == "Encounter":
        end = _instant_us(text(resource, "period.end") or text(resource, "period.start"))
        for path in ("diagnosis.condition.reference", "reasonReference.reference"):
            for reference in texts(resource, path):
                other, name = referred(reference) or ("", "")
                if name:
                    yield end, "stays", f"{other or 'Condition'}/{name}", own
    elif kind == "Patient":
        for link in walk(resource, "link"):
            found, type_ = referred_id(link, "other", "Patient"), text(link, "type")
            if found is not None and type_ == "replaced-by":
                yield 0, "merged", own, found
            elif found is not None and type_ == "replaces":
                yield 0, "merged", found, own


def _ends(merged: Mapping[str, str]) -> dict[str, str]:
    """Old ids → the id at the end of their chain; a circle is left as it is.

    >>> _ends({"a": "b", "b": "c", "x": "y", "y": "x"})
    {'a': 'c', 'b': 'c'}
    """
    found = {}
    for old, new in merged.items():
        met = {old}
        while new in merged and new not in met:
            met.add(new)
            new = merged[new]
        if new not in met:
            found[old] = new
    return found
