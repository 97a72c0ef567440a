"""Whether a value has the keys and the kinds of values that a TypedDict declares, at each level."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict


def faults(value: Any, kind: Any, *, count: Any = int, where: str = "result") -> Iterator[str]:
    """What differs, as in `result.metrics[3].low: is no float`.

    Args:
        value: Content of a file.
        kind: A TypedDict, or the type of a part of one.
        count: What a count of people is.
        where: The place in words.
    """
    kind = count if isinstance(kind, TypeVar) else kind
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (UnionType, Union):
        of_each = [list(faults(value, one, count=count, where=where)) for one in inner]
        yield from min(of_each, key=len)
    elif is_typeddict(origin):
        keys = set(value) if isinstance(value, dict) else set()
        needed, known = origin.__required_keys__, origin.__optional_keys__
        yield from (f"{where}: lacks {key}" for key in needed - keys)
        yield from (f"{where}: has {key}" for key in keys - needed - known)
        for key, type_ in get_type_hints(origin).items():
            if key in keys:
                yield from faults(value[key], type_, count=count, where=f"{where}.{key}")
    elif origin in (list, dict) and isinstance(value, origin):
        for place, one in enumerate(value) if origin is list else value.items():
            yield from faults(one, inner[-1], count=count, where=f"{where}[{place}]")
    elif kind is not Any and not _is(value, origin):
        yield f"{where}: is a {type(value).__name__}, no {origin.__name__}"


def _is(value: Any, kind: type) -> bool:
    """As mypy has it: an int is a float; but no truth is a number."""
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
