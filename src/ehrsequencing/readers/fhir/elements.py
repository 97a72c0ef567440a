"""Elements of a FHIR resource: their values, references and codes; and the resources of a bundle.

A resource is JSON as Python reads it. Whatever has not the type that FHIR demands is treated as absent.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from ehrsequencing.readers.rows import TERMS
from ehrsequencing.records.codes import PROVISIONAL

Resource = Mapping[str, Any]

# The code systems, by the last part of their URLs, whose codes say that there is none.
_ABSENT = {"data-absent-reason", "v3-nullflavor", "nullflavor", "2.16.840.1.113883.5.1008"}
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_PARTIAL_DATE = re.compile(r"(\d{4})(?:-(0[1-9]|1[0-2]))?")


def _items(value: Any) -> Sequence[Any]:
    """What a list holds; anything else is one value."""
    return value if isinstance(value, list) else (value,)


def walk(value: Any, path: str) -> Sequence[Any]:
    """Every value at a path of element names, through lists.

    >>> walk({"series": [{"modality": {"code": "CT"}}, {"modality": {"code": "MR"}}]}, "series.modality.code")
    ['CT', 'MR']
    """
    items = _items(value)
    for name in path.split("."):
        holders = [item for item in items if isinstance(item, dict) and name in item]
        items = [item for holder in holders for item in _items(holder[name])] if holders else []
    return items


def texts(value: Any, path: str) -> list[str]:
    """Every text at a path that is not blank, without outer blanks."""
    items = walk(value, path)
    return [item.strip() for item in items if isinstance(item, str) and item.strip()]


def text(value: Any, path: str) -> str | None:
    """The first text at a path."""
    if isinstance(value, dict) and "." not in path:  # in most cases, and quicker than a walk
        first = value.get(path)
        if not isinstance(first, list):
            return (first.strip() or None) if isinstance(first, str) else None
    return next(iter(texts(value, path)), None)


def kind_of(resource: Any) -> str | None:
    """The type of a resource; None for JSON that is no resource."""
    return text(resource, "resourceType") if isinstance(resource, dict) else None


def days_of(written: str | None) -> tuple[str | None, str | None]:
    """The first and the last day that a date may mean: two days only where it lacks the day.

    >>> days_of("2012-02"), days_of("2011"), days_of("2011-05-03T10:00:00Z")[1]
    (('2012-02-01', '2012-02-29'), ('2011-01-01', '2011-12-31'), '2011-05-03T10:00:00Z')
    """
    partial = _PARTIAL_DATE.fullmatch(written) if written is not None else None
    if partial is None:
        return written, written
    year, month = partial.groups()
    if month is None:
        return f"{year}-01-01", f"{year}-12-31"
    last = monthrange(int(year), int(month))[1]
    return f"{written}-01", f"{written}-{last}"


def number_of(value: Any) -> float | None:
    """A number as float, also one that was written as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    written = str(value).strip()
    return float(written) if _DECIMAL.fullmatch(written) else None


# ---- references ----------------------------------------------------------------------------------


def referred(reference: str) -> tuple[str | None, str] | None:
    """Type and id that a reference names; the type of a URN is unknown. None for what is neither.

    >>> referred("https://example.org/fhir/Patient/7/_history/2")
    ('Patient', '7')
    >>> referred("urn:uuid:4f5e"), referred("#med"), referred("Patient?identifier=s|7")
    ((None, '4f5e'), None, None)
    """
    if reference.startswith(("urn:uuid:", "urn:oid:")):
        return None, reference.split(":", 2)[2]
    base, _, name = reference.partition("/_history/")[0].rpartition("/")
    kind = base.rpartition("/")[2]
    is_one = kind and name and "?" not in reference and not reference.startswith("#")
    return (kind, name) if is_one else None


def referred_id(resource: Any, path: str, kind: str) -> str | None:
    """The id of the first reference at a path to a resource of this type."""
    for reference in texts(resource, f"{path}.reference"):
        target = referred(reference)
        if target is not None and target[0] in (None, kind):
            return target[1]
    return None


def _with_references(value: Any, change: Callable[[str], str]) -> Any:
    """JSON whose references are changed."""
    if isinstance(value, list):
        return [_with_references(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: change(item)
        if name == "reference" and isinstance(item, str)
        else _with_references(item, change)
        for name, item in value.items()
    }


def server_of(url: str) -> str:
    """The base of the full URL of a resource on a server; empty for a URN and a relative reference."""
    parts = url.partition("/_history/")[0].rsplit("/", 2)
    is_url = url.startswith(("http://", "https://")) and len(parts) == 3
    return parts[0] if is_url else ""


# ---- codes ---------------------------------------------------------------------------------------


class Coded(NamedTuple):
    """A code and what it means."""

    code: str
    description: str | None = None


def provisional(coded: Coded) -> Coded:
    """The code of a diagnosis that is not confirmed."""
    if coded.code.endswith(PROVISIONAL):
        return coded
    meaning = coded.description and f"{coded.description} (not confirmed)"
    return Coded(f"{coded.code}{PROVISIONAL}", meaning)


Find = Callable[[str], tuple[Coded, ...]]  # a reference to a Medication → its codes


@lru_cache(maxsize=1024)
def vocabulary(system: str | None) -> tuple[str, bool]:
    """The name of a code system, that of OMOP or else the last part of its URL; and whether it is OMOP's.

    It is empty for null flavours and reasons of absence: their codes say that there is no code.

    >>> vocabulary("http://loinc.org"), vocabulary("http://hospital.example/CodeSystem/labs"), vocabulary(None)
    (('LOINC', True), ('labs', False), ('FHIR', False))
    """
    if system is None:
        return "FHIR", False
    url = system.rstrip("/")
    known = TERMS["fhir"]["systems"].get(url.lower())
    last = url.rpartition("/")[2].removeprefix("urn:oid:").removeprefix("urn:")
    return known or ("" if last.lower() in _ABSENT else last), known is not None


def codings(concept: Any) -> tuple[Coded, ...]:
    """The codes of a CodeableConcept or a Coding: those of known vocabularies, else all, each once.

    Local codings beside a standard one say the same in other words, and would only double the row.
    """
    known: dict[str, Coded] = {}
    other: dict[str, Coded] = {}
    for coding in [*walk(concept, "coding"), concept]:
        code = text(coding, "code")
        if code is None:
            continue
        name, is_known = vocabulary(text(coding, "system"))
        if not name:
            continue
        meaning = text(coding, "display") or text(concept, "text")
        coded = Coded(f"{name}//{code}", meaning)
        (known if is_known else other).setdefault(coded.code, coded)
    return tuple((known or other).values())


def is_absent(concept: Any) -> bool:
    """Whether a concept has codes, and all of them say that there is none."""
    return bool(texts(concept, "coding.code") or text(concept, "code")) and not codings(concept)


def extensions(value: Any, path: str, ending: str) -> list[Any]:
    """The extensions at a path whose URL ends so."""
    return [one for one in walk(value, path) if (text(one, "url") or "").endswith(ending)]


def certainty_of(concept: Any) -> str:
    """How certain a diagnosis is, as its status says, or the extension of ICD-10-GM: provisional, absent or empty."""
    said = texts(concept, "verificationStatus.coding.code")
    said += texts(concept, "verificationStatus.text")
    for path in ("coding.extension", "extension", "code.coding.extension", "code.extension"):
        found = extensions(concept, path, "icd-10-gm-diagnosesicherheit")
        said += texts(found, "valueCoding.code") if found else ()
    codes = {code.lower() for code in said}
    kinds: dict[str, list[str]] = TERMS["fhir"]["certainty"]
    return next((kind for kind in ("absent", "provisional") if codes & set(kinds[kind])), "")


def coded_as(concepts: Iterable[Any], find: Find, *, uncoded: str) -> list[Coded]:
    """The codes of all concepts, each once; a concept may also be a reference.

    A concept with a text and no coding becomes `uncoded`: the text may hold anything, also a name. So does one whose
    codes say that there is none. A diagnosis that was ruled out has no code.
    """
    by_code: dict[str, Coded] = {}
    for concept in concepts:
        if not isinstance(concept, dict):
            continue
        certainty = certainty_of(concept) if "coding" in concept else ""
        if certainty == "absent":
            continue
        reference = text(concept, "reference")
        codes = codings(concept) if reference is None else find(reference)
        if not codes and (text(concept, "text") or text(concept, "display") or is_absent(concept)):
            codes = (Coded(uncoded),)
        for coded in codes:
            made = provisional(coded) if certainty else coded
            by_code.setdefault(made.code, made)
    return list(by_code.values())


# ---- bundles -------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A resource as it stands in a source."""

    resource: Any  # JSON; of what was deleted type and id; None for a line that is no JSON
    server: str = ""  # the base of its full URL, as in https://example.org/fhir
    note: Resource | None = None  # the bundle's entry that holds it
    is_there: bool = True  # False for a deletion, and for a line that is no JSON


def entries_of(
    document: Any,
    server: str = "",
    note: Resource | None = None,
    *,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Entry]:
    """The resources of a JSON document: a resource, a list of them, or a bundle, also of bundles.

    A resource of a bundle without an id has that of its `fullUrl`. A reference to a `fullUrl` is replaced by the
    type and id of the resource there, since the two ids may differ. A history names its newest version first; here
    it comes last. A deletion elsewhere has the time of its bundle, and without one it is newer than any version.

    Args:
        document: The document.
        server: That of the document.
        note: The entry of a bundle that holds the document.
        renamed: Reference → type and id, of the bundles around the document.
    """
    if isinstance(document, list):
        for item in document:
            yield from entries_of(item, server, note, renamed=renamed)
        return
    if kind_of(document) != "Bundle":
        get = renamed.get
        resource = _with_references(document, lambda x: get(x, x)) if renamed else document
        yield Entry(resource, server, note)
        return
    entries = [entry for entry in walk(document, "entry") if isinstance(entry, dict)]
    if text(document, "type") == "history":
        entries.reverse()
    given, renamed = [], dict(renamed)
    for entry in entries:
        resource, url = entry.get("resource"), text(entry, "fullUrl")
        there = referred(url) if url is not None else None
        if isinstance(resource, dict) and there is not None and not text(resource, "id"):
            resource = {**resource, "id": there[1]}
        given.append(resource)
        kind, name = kind_of(resource), text(resource, "id")
        if url and kind and name and there not in ((None, name), (kind, name)):
            renamed[url] = f"{kind}/{name}"
    for entry, resource in zip(entries, given, strict=True):
        base = server_of(text(entry, "fullUrl") or "") or server
        if text(entry, "request.method") == "DELETE":
            url = text(entry, "request.url") or ""
            kind, name = referred(url) or (None, None)
            if text(document, "type") != "history":
                updated = text(document, "meta.lastUpdated") or "9999-12-31"
                entry = {"response": {"lastModified": updated}, **entry}
            # one that names no single resource is counted as a resource without a type
            deleted = {"resourceType": kind, "id": name}
            yield Entry(deleted, server_of(url) or server, entry, is_there=kind is None)
        elif resource:
            yield from entries_of(resource, base, entry, renamed=renamed)
