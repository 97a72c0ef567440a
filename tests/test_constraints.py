"""`constraints.txt` pins what the package and its extras need."""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
_TORCH = re.compile(r"torch|nvidia-.*|triton|cuda-.*")  # what torch itself needs differs with the machine's wheel


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    found = {}
    for line in lines:
        name, equals, version = line.partition("==")
        assert equals, f"{line} is no pin"
        assert re.fullmatch(r"[0-9][0-9A-Za-z.+!]*", version), line
        found[canonicalize_name(name)] = version
    assert len(found) == len(lines), "a package is pinned twice"
    return found


def needed(requirements: Iterable[str], *, extras: frozenset[str] = frozenset()) -> set[str]:
    """Names of all packages that requirements bring along on this machine, as far as they are there."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(Requirement(text), extras) for text in requirements]
    while waiting:
        one, asked = waiting.pop()
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in (asked or {""})):
            continue
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key not in seen:
            seen.add(key)
            try:
                waiting += [(Requirement(text), key[1]) for text in requires(one.name) or ()]
            except PackageNotFoundError:
                continue
            found.add(key[0])
    return found


def closure() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    build = project["build-system"]["requires"]
    own = project["project"]
    listed = [
        *build,
        *own["dependencies"],
        *(text for extra in own["optional-dependencies"].values() for text in extra),
    ]
    return needed(text for text in listed if canonicalize_name(Requirement(text).name) != own["name"])


def test_whatever_is_installed_for_an_extra_is_pinned() -> None:
    pinned = pins()
    assert len(pinned) > 50
    free = {name for name in closure() - set(pinned) if not _TORCH.fullmatch(name)}
    assert sorted(free - {"setuptools"}) == [], "pin what the tests ran with"
