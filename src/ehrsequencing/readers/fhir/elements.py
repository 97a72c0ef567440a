"""Elements of a FHIR resource, its references, and the resources of a bundle.

A resource is JSON as Python reads it. Whatever has not the type that FHIR demands is treated as absent.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Resource = Mapping[str, Any]

_URN = ("urn:uuid:", "urn:oid:")


def walk(value: Any, path: str) -> Iterator[Any]:
    """Every value at a path of element names, through lists.

    >>> list(walk({"series": [{"modality": {"code": "CT"}}, {"modality": {"code": "MR"}}]}, "series.modality.code"))
    ['CT', 'MR']
    """
    if isinstance(value, list):
        for item in value:
            yield from walk(item, path)
    elif not path:
        yield value
    elif isinstance(value, dict):
        name, _, rest = path.partition(".")
        if name in value:
            found = value[name]
            if rest or isinstance(found, list):
                yield from walk(found, rest)
            else:  # most elements
                yield found


def texts(value: Any, path: str) -> Iterator[str]:
    """Every text at a path that is not blank, without outer blanks."""
    for found in walk(value, path):
        if isinstance(found, str) and found.strip():
            yield found.strip()


def text(value: Any, path: str) -> str | None:
    """The first text at a path."""
    if isinstance(value, dict) and "." not in path:  # as `walk` would find it, without a generator
        found = value.get(path)
        if not isinstance(found, list):
            return (found.strip() or None) if isinstance(found, str) else None
    return next(texts(value, path), None)


def kind_of(resource: Any) -> str | None:
    """The type of a resource; None for JSON that is no resource."""
    return text(resource, "resourceType") if isinstance(resource, dict) else None


def referred(reference: str) -> tuple[str | None, str] | None:
    """Type and id that a reference names; the type of a URN is unknown. None for what is neither.

    >>> referred("https://example.org/fhir/Patient/7/_history/2")
    ('Patient', '7')
    >>> referred("urn:uuid:4f5e"), referred("#med"), referred("Patient?identifier=s|7")
    ((None, '4f5e'), None, None)
    """
    for prefix in _URN:
        if reference.startswith(prefix):
            return None, reference.removeprefix(prefix)
    parts = reference.partition("/_history/")[0].split("/")
    if (
        len(parts) < 2
        or not parts[-1]
        or not parts[-2]
        or "?" in reference
        or reference.startswith("#")
    ):
        return None
    return parts[-2], parts[-1]


def referred_id(resource: Any, path: str, kind: str) -> str | None:
    """The id of the first reference at a path to a resource of this type."""
    for reference in texts(resource, f"{path}.reference"):
        found = referred(reference)
        if found is not None and found[0] in (None, kind):
            return found[1]
    return None


def resources_of(document: Any) -> Iterator[Any]:
    """The resources of a JSON document: a resource, a list of them, or a bundle, also of bundles.

    A resource of a bundle without an id has that of its `fullUrl`. A reference to a `fullUrl` is replaced by the
    type and id of the resource there, since the two ids may differ.
    """
    if isinstance(document, list):
        for item in document:
            yield from resources_of(item)
    elif kind_of(document) == "Bundle":
        entries = [
            entry
            for entry in walk(document, "entry")
            if isinstance(entry, dict) and entry.get("resource")
        ]
        given = [_with_id(entry) for entry in entries]
        renamed = dict(filter(None, map(_renamed, entries, given)))
        for resource in given:
            yield from resources_of(_resolved(resource, renamed) if renamed else resource)
    else:
        yield document


def _with_id(entry: Resource) -> Any:
    resource, url = entry["resource"], text(entry, "fullUrl")
    if not isinstance(resource, dict) or text(resource, "id") or url is None:
        return resource
    found = referred(url)
    return resource if found is None else {**resource, "id": found[1]}


def _renamed(entry: Resource, resource: Any) -> tuple[str, str] | None:
    """A `fullUrl` and the reference that replaces it; None where the `fullUrl` names type and id already."""
    url, kind, name = text(entry, "fullUrl"), kind_of(resource), text(resource, "id")
    if url is None or kind is None or name is None:
        return None
    found = referred(url)
    return (
        None
        if found is not None and found[1] == name and found[0] in (None, kind)
        else (url, f"{kind}/{name}")
    )


def _resolved(value: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_resolved(item, renamed) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: renamed.get(item, item)
        if name == "reference" and isinstance(item, str)
        else _resolved(item, renamed)
        for name, item in value.items()
    }
