"""`constraints.txt` pins what the package and its extras need, and nothing else."""

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
_TORCH = re.compile(r"torch|nvidia-.*|triton|cuda-.*")  # what torch itself needs differs with the machine's wheel

_OF_BUILD = {"trove-classifiers"}  # what hatchling needs, which is there during a build only
_BEFORE_3_12 = {"importlib-metadata", "lazy-importer", "zipp"}  # what Dask needs with Python 3.11


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
    """Names of all packages that requirements bring along on this machine; of absent ones, the name alone."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(Requirement(text), extras) for text in requirements]
    while waiting:
        one, asked = waiting.pop()
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in (asked or {""})):
            continue
        key = (canonicalize_name(one.name), frozenset(one.extras))
        found.add(key[0])
        if key not in seen:
            seen.add(key)
            try:
                waiting += [(Requirement(text), key[1]) for text in requires(one.name) or ()]
            except PackageNotFoundError:
                continue
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


def test_no_pin_is_unused() -> None:
    pinned, used = pins(), closure()
    assert len(pinned) > 50
    left_out = _OF_BUILD | (_BEFORE_3_12 if sys.version_info >= (3, 12) else set())
    assert sorted(set(pinned) - used - left_out) == []


def test_whatever_is_installed_for_an_extra_is_pinned() -> None:
    def is_installed(name: str) -> bool:
        try:
            requires(name)
        except PackageNotFoundError:
            return False
        return True

    free = {name for name in closure() - set(pins()) if is_installed(name) and not _TORCH.fullmatch(name)}
    assert sorted(free - {"setuptools"}) == [], "pin what the tests ran with"
