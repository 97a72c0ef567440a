"""A first look at all resources of a source: which versions count, and what others refer to.

Type and id name one resource (FHIR R4, 2.21): of several versions the newest counts, and none after a deletion. A
Condition may be linked to its encounter from the encounter only, and a patient's record may be replaced by another's.
"""

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.fhir.codes import Coded
from ehrsequencing.readers.fhir.elements import (
    Entry,
    Resource,
    instant_us,
    kind_of,
    qualified,
    referred,
    referred_id,
    text,
    texts,
    walk,
)
from ehrsequencing.readers.fhir.mapping import NAMED, Known, named_codes

_DIAGNOSES = ("diagnosis.condition.reference", "reasonReference.reference")
# release → type → elements that R4 has not; after a colon, the type of value that R4 has not there
_OTHER_RELEASES: dict[str, dict[str, str]] = {
    "DSTU2": {"Condition": "patient dateRecorded", "MedicationOrder": "resourceType"},
    "STU3": {
        "Condition": "verificationStatus:text clinicalStatus:text assertedDate context",
        **dict.fromkeys(
            ("Observation", "Procedure", "DiagnosticReport", "MedicationRequest"), "context"
        ),
    },
    "R5": {
        "Encounter": "actualPeriod class:concepts",
        "Procedure": "occurrenceDateTime occurrencePeriod",
        **dict.fromkeys(
            (
                "MedicationRequest",
                "MedicationStatement",
                "MedicationAdministration",
                "MedicationDispense",
            ),
            "medication",
        ),
    },
}


def refuse_other_release(resource: Any, *, where: str) -> None:
    """Refuse a resource that another release of FHIR than R4 wrote.

    Raises:
        EhrseqError: It has an element, or a type of value, that R4 has not.
    """
    kind = kind_of(resource) or ""
    for release, kinds in _OTHER_RELEASES.items():
        for element, _, type_ in (part.partition(":") for part in kinds.get(kind, "").split()):
            value = resource.get(element)
            is_met = {
                "": value is not None,
                "text": isinstance(value, str),
                "concepts": isinstance(value, list) and any(walk(value, "coding")),
            }
            if not is_met[type_]:
                continue
            what = f"holds FHIR {release}, and only R4 is read (it writes {kind}.{element} so)"
            raise EhrseqError(what, where=where, fix="export it as R4, or convert it to R4")


class Survey:
    """Takes every entry of a source in its order, and then tells what of them counts.

    Attributes:
        known: What the mapping looks up, after `finish`.
        several: Whether resources of more than one server are there, so that ids must name the server.
        entries: How many entries were seen.
    """

    def __init__(self) -> None:
        self.known, self.several, self.entries = Known(), False, 0
        self._servers: dict[str, int] = {"": 0}
        # of each entry with a type and an id
        self._keys, self._places, self._updated = array("q"), array("q"), array("q")
        self._numbers, self._server_of, self._deletes = array("q"), array("q"), array("b")
        # what counted entries say, each with the entry's place and server
        self._codes: list[tuple[int, str, str, tuple[Coded, ...]]] = []
        self._stays: list[tuple[int, str, int, str, str]] = []
        self._merges: list[tuple[int, str, str, str]] = []
        self._older, self._withdrawn = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, entry: Entry) -> None:
        """Look at the next entry."""
        place, self.entries = self.entries, self.entries + 1
        resource = entry.resource
        if entry.deleted is not None:
            found = referred(entry.deleted)
            name = None if found is None or found[0] is None else f"{found[0]}/{found[1]}"
        else:
            own = text(resource, "id") if isinstance(resource, dict) else None
            name = None if own is None else f"{kind_of(resource)}/{own}"
        server = self._servers.setdefault(entry.server, len(self._servers))
        if name is None:
            return
        self._keys.append(hash(name))
        self._places.append(place)
        self._updated.append(entry.version[0])
        self._numbers.append(entry.version[1])
        self._server_of.append(server)
        self._deletes.append(entry.deleted is not None)
        if entry.deleted is None:
            self._look(resource, name, place, entry.server)

    def _look(self, resource: Resource, name: str, place: int, server: str) -> None:
        """Note what other resources may refer to."""
        kind, _, own = name.partition("/")
        if kind in NAMED:
            codes = named_codes(resource)
            if codes:
                self._codes.append((place, server, name, codes))
        elif kind == "Encounter":
            end = instant_us(text(resource, "period.end") or text(resource, "period.start"))
            for path in _DIAGNOSES:
                for reference in texts(resource, path):
                    found = referred(reference)
                    if found is not None:
                        linked = f"{found[0] or 'Condition'}/{found[1]}"
                        self._stays.append((place, server, end or 0, linked, own))
        elif kind == "Patient":
            for link in walk(resource, "link"):
                other = referred_id(link, "other", "Patient")
                if other is not None and text(link, "type") == "replaced-by":
                    self._merges.append((place, server, own, other))
                elif other is not None and text(link, "type") == "replaces":
                    self._merges.append((place, server, other, own))

    def finish(self) -> None:
        """Decide which version of each resource counts, and gather what those say."""
        self.several = len(self._servers.keys() - {""}) > 1
        self._choose_versions()
        lost = {*self._older.tolist(), *self._withdrawn.tolist()}
        once: dict[tuple[Coded, ...], tuple[Coded, ...]] = {}
        codes = {
            self._named(server, name): once.setdefault(codes, codes)
            for place, server, name, codes in self._codes
            if place not in lost
        }
        stays: dict[str, str] = {}
        for place, server, _, name, stay in sorted(self._stays, key=lambda link: link[2]):
            if place not in lost:  # the stay that ends first
                stays.setdefault(self._named(server, name), self._named(server, stay))
        merges = {
            self._named(server, old): self._named(server, new)
            for place, server, old, new in self._merges
            if place not in lost
        }
        self.known = Known(codes, stays, _ends(merges))

    def _choose_versions(self) -> None:
        """Find out which entries have a newer version, and which were deleted."""
        keys, place = np.array(self._keys, np.int64), np.array(self._places, np.int64)
        server = np.array(self._server_of, np.int64) if self.several else np.zeros_like(keys)
        numbers, updated = np.array(self._numbers), np.array(self._updated)
        order = np.lexsort((place, numbers, updated, server, keys))
        keys, server, place = keys[order], server[order], place[order]
        is_newest = np.ones(len(keys), dtype=bool)
        is_newest[:-1] = (keys[1:] != keys[:-1]) | (server[1:] != server[:-1])
        deletes = np.array(self._deletes, bool)[order]
        resource = np.cumsum(is_newest) - is_newest
        is_gone = deletes[is_newest][resource]
        self._older = np.sort(place[~is_newest & ~is_gone & ~deletes])
        self._withdrawn = np.sort(place[is_gone & ~deletes])

    def _named(self, server: str, name: str) -> str:
        """A name or an id as it stands in the resources that are read."""
        kind, slash, own = name.rpartition("/")
        return f"{kind}{slash}{qualified(server, own)}" if self.several else name

    def lost(self, first: int, n: int) -> tuple[Bools, Bools]:
        """Of n entries from a place on: which have a newer version, and which were deleted."""
        return _within(self._older, first, n), _within(self._withdrawn, first, n)


def _within(places: Ints, first: int, n: int) -> Bools:
    found = np.zeros(n, dtype=bool)
    low, high = np.searchsorted(places, [first, first + n])
    found[places[low:high] - first] = True
    return found


def _ends(merged: Mapping[str, str]) -> dict[str, str]:
    """Old ids → the id at the end of their chain; a circle is left as it is.

    >>> _ends({"a": "b", "b": "c", "x": "y", "y": "x"})
    {'a': 'c', 'b': 'c'}
    """
    found = {}
    for old in merged:
        met, new = {old}, merged[old]
        while new in merged and new not in met:
            met.add(new)
            new = merged[new]
        if new not in met:
            found[old] = new
    return found


def survey(entries: Iterable[Entry]) -> Survey:
    """A finished survey of some entries."""
    made = Survey()
    for entry in entries:
        made.add(entry)
    made.finish()
    return made
