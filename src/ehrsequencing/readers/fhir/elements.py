"""Elements of a FHIR resource, its references, and the resources of a bundle.

A resource is JSON as Python reads it. Whatever has not the type that FHIR demands is treated as absent.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

Resource = Mapping[str, Any]

_URN = ("urn:uuid:", "urn:oid:")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


class Entry(NamedTuple):
    """A resource as it stands in a source; or, without a resource, a note that one was deleted."""

    resource: Any  # JSON; None for a deletion, and for a line that is no JSON
    server: str = ""  # the base of its full URL, as in https://example.org/fhir
    version: tuple[int, int] = (
        -1,
        -1,
    )  # when it was last updated, in µs since 1970, and its number
    deleted: str | None = None  # the reference of what was deleted


def entries_of(document: Any, server: str = "") -> Iterator[Entry]:
    """The resources of a JSON document: a resource, a list of them, or a bundle, also of bundles.

    A resource of a bundle without an id has that of its `fullUrl`. A reference to a `fullUrl` is replaced by the
    type and id of the resource there, since the two ids may differ. A history names its newest version first; here
    it comes last.
    """
    if isinstance(document, list):
        for item in document:
            yield from entries_of(item, server)
    elif kind_of(document) != "Bundle":
        yield Entry(document, server, _version(document, {}))
    else:
        entries = [entry for entry in walk(document, "entry") if isinstance(entry, dict)]
        given = [_with_id(entry) for entry in entries]
        renamed = dict(filter(None, map(_renamed, entries, given)))
        pairs = list(zip(entries, given, strict=True))
        for entry, resource in reversed(pairs) if text(document, "type") == "history" else pairs:
            if text(entry, "request.method") == "DELETE":
                name = text(entry, "request.url")
                yield Entry(None, server, _version(document, entry), name or "")
            elif resource:
                base = _server(text(entry, "fullUrl")) or server
                resolved = _resolved(resource, renamed) if renamed else resource
                for found in entries_of(resolved, base):
                    yield found._replace(version=max(found.version, _version({}, entry)))


def instant_us(written: str | None) -> int | None:
    """A FHIR instant as µs since 1970; None for what is none.

    >>> instant_us("1970-01-01T01:00:01+01:00"), instant_us("2015-02"), instant_us(None)
    (1000000, None, None)
    """
    try:
        moment = datetime.fromisoformat(written or "")
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _version(resource: Any, entry: Resource) -> tuple[int, int]:
    """What tells versions of a resource apart; the higher is the newer."""
    updated = instant_us(text(resource, "meta.lastUpdated") or text(entry, "response.lastModified"))
    number = text(resource, "meta.versionId") or (text(entry, "response.etag") or "").strip('W/"')
    is_whole = number.isascii() and number.isdigit() and len(number) < 19
    return -1 if updated is None else updated, int(number) if is_whole else -1


def _server(url: str | None) -> str:
    """The base of the full URL of a resource on a server; empty for a URN."""
    if url is None or not url.startswith(("http://", "https://")):
        return ""
    parts = url.partition("/_history/")[0].rsplit("/", 2)
    return parts[0] if len(parts) == 3 else ""


def at_server(resource: Any, server: str) -> Any:
    """A resource whose own id and references name the server too, for sources of several servers."""
    if not isinstance(resource, dict):
        return resource
    own = text(resource, "id")
    named = {} if own is None else {"id": qualified(server, own)}
    return {**_at_server(resource, server), **named}


def _at_server(value: Any, server: str) -> Any:
    if isinstance(value, list):
        return [_at_server(item, server) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, item in value.items():
        found = referred(item) if name == "reference" and isinstance(item, str) else None
        if found is None or found[0] is None:
            made[name] = _at_server(item, server)
        else:
            made[name] = f"{found[0]}/{qualified(_server(item) or server, found[1])}"
    return made


def qualified(server: str, name: str) -> str:
    """An id that names its server too."""
    return f"{quote(server, safe='')}~{name}" if server else name


def _with_id(entry: Resource) -> Any:
    resource, url = entry.get("resource"), text(entry, "fullUrl")
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
