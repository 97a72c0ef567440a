"""Parse YAML and JSON strictly: duplicate keys are errors, dates and keys stay text, and size and depth are bounded."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import yaml

from ehrsequencing.core.errors import EhrseqError, quoted

LONGEST_YAML = 1_000_000  # characters: it takes ten seconds to read as many
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
# what PyYAML raises for bad tags
_INVALID = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
)


class BadText(ValueError):
    """Text that is not valid YAML or JSON; `line` counts from 1."""

    def __init__(self, what: str, line: int | None = None) -> None:
        self.what, self.line = what, line
        super().__init__(what)


def parse_yaml(text: str) -> Any:
    """Read YAML without tags that run code; `2015-01-01`, `010` and every key stay text.

    Raises:
        BadText: It is not valid, has a key twice or an alias, or is too long, too large or too deep.

    >>> parse_yaml("{from: 2015-01-01, seed: 3}")
    {'from': '2015-01-01', 'seed': 3}
    >>> parse_yaml("{010: A, 250.00: B}")
    {'010': 'A', '250.00': 'B'}
    """
    if len(text) > LONGEST_YAML:
        raise BadText(f"is longer than {LONGEST_YAML:,} characters")
    with _bad_text("YAML"):
        value = yaml.load(text, Loader=_Strict)  # noqa: S506  # a SafeLoader
        json.dumps(value, ensure_ascii=False).encode()  # refuses half a surrogate pair
        return value


def parse_json(text: str | bytes, *, distinct: bool = True) -> Any:
    """Read JSON.

    Args:
        text: The JSON; bytes are UTF-8, or UTF-16 or UTF-32.
        distinct: Whether a key that stands twice is an error; else the last one counts.

    Raises:
        BadText: It is not valid, holds half a surrogate pair, has a key twice, or is nested too deeply.

    >>> parse_json('{"seed": 3}')
    {'seed': 3}
    """
    with _bad_text("JSON"):
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text))
        value = json.loads(text, object_pairs_hook=_distinct if distinct else None)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value


class HalfSurrogate(BadText):
    """JSON or YAML that holds half a surrogate pair, which is no text: no file can hold it in UTF-8."""


@contextmanager
def _bad_text(language: str) -> Iterator[None]:
    """Turn what a parser raises into `BadText`, with the line where the parser names it."""
    try:
        yield
    except BadText:
        raise
    except UnicodeEncodeError as error:
        raise HalfSurrogate("holds half a surrogate pair, which is no text") from error
    except RecursionError as error:
        raise BadText("is nested too deeply") from error
    except _INVALID as error:
        mark = getattr(error, "problem_mark", None)  # of YAML, counted from 0
        line = getattr(error, "lineno", None) if mark is None else mark.line + 1
        raise BadText(f"is not valid {language}", line) from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadText(f"has the key{quoted(twice)} twice")
    return entries


class _Strict(yaml.SafeLoader):
    """Safe YAML with text dates, distinct keys of text and no alias. `12:30` and `010` are text, no numbers."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """One node; refused where it stands for another one."""
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise BadText("has an alias (*), which may stand for any amount; write it out", line)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping with distinct keys, as written; of two equal keys PyYAML would silently take the last."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = _AS_WRITTEN.get(key.tag, key.tag)
                if (key.tag, key.value) in seen:
                    raise BadText(f"has the key{quoted(key.value)} twice", key.start_mark.line + 1)
                seen.add((key.tag, key.value))
        return node


_AS_WRITTEN = {  # kinds of plain keys that become text: the code 250.00 is not 250.0, nor No false
    f"tag:yaml.org,2002:{kind}": "tag:yaml.org,2002:str"
    for kind in ("int", "float", "bool", "null")
}
_NUMBERS = {  # as PyYAML's own, without base 60 and 8: 12:30 and 010 are text
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0b[0-1_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
_Strict.yaml_implicit_resolvers = {
    first: [
        (tag, _NUMBERS.get(tag, pattern))
        for tag, pattern in resolvers
        if tag != "tag:yaml.org,2002:timestamp"
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


# ---- Durations as people write them, `90d` or `1y`, and as numbers of days. ----
DAYS_PER_YEAR = 365.25
# a duration beyond this is a slip, and could overflow a clock of microseconds
_LONGEST_YEARS = 10_000
UNIT_DAYS = {"s": 1 / 86_400, "min": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "y": DAYS_PER_YEAR}


def parse_days(text: object) -> float:
    """Turn a duration such as `48h`, `30d`, `2w` or `1y` into days (`1y` = 365.25 d).

    >>> parse_days("48h"), parse_days("1y")
    (2.0, 365.25)
    """
    if isinstance(text, float):  # already days: what a recorded configuration holds
        days = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(min|h|d|w|y)\s*", str(text))
        if match is None:
            raise ValueError(
                f"{text!r} is not a duration: write a number and a unit (min, h, d, w, y), as in 30d"
            )
        days = float(match[1]) * UNIT_DAYS[match[2]]
    if math.isnan(days) or days < 0:
        fix = "it must be a number that is not negative, as in 30d"
        raise ValueError(f"{text!r} is not a duration: {fix}")
    if days > _LONGEST_YEARS * DAYS_PER_YEAR:
        raise ValueError(f"{text!r} is longer than {_LONGEST_YEARS:,} years")
    return days


def format_days(days: float) -> str:
    """Write days as a person would: `1y`, `90d`, `48h`.

    >>> format_days(365.25), format_days(90.0), format_days(0.25)
    ('1y', '90d', '6h')
    """
    if days >= DAYS_PER_YEAR and (days / DAYS_PER_YEAR) % 0.5 == 0:
        return f"{days / DAYS_PER_YEAR:g}y"
    return f"{days * 24:g}h" if 0 < days < 1 else f"{days:g}d"


def days_of(
    horizons: Sequence[str | float] | str | float, *, where: str = "horizons"
) -> list[float]:
    """Horizons as days: `90d`, `1y`, or numbers of days.

    >>> days_of(["90d", "1y", 30])
    [90.0, 365.25, 30.0]

    Raises:
        EhrseqError: One is no duration.
    """
    listed = [horizons] if isinstance(horizons, str | float | Real) else list(horizons)
    try:
        return [parse_days(one if isinstance(one, str) else float(one)) for one in listed]
    except ValueError as error:
        raise EhrseqError(str(error), where=where, fix="write it as 90d or 1y") from error


def day_of(horizon: str | float, *, where: str = "horizon") -> float:
    """One horizon as days.

    Raises:
        EhrseqError: It is no duration, or there are several.
    """
    if not isinstance(horizon, str | Real):
        fix = "ask for one at a time, as in '1y' or 365.25"
        raise EhrseqError(f"expected one, got {type(horizon).__name__}", where=where, fix=fix)
    return days_of(horizon, where=where)[0]
