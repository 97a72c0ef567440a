"""`constraints.txt` pins what the package and its extras need."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from types import ModuleType

import pytest
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


# ---- the page of other tools has the same rows and versions ----------------------------------------------------------


@pytest.fixture
def works_with(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("works_with")


def test_page_and_command_list_the_same_rows_and_versions(works_with: ModuleType) -> None:
    page = works_with.page_rows(works_with.PAGE.read_text(encoding="utf-8"))
    assert len(page) == 20
    assert {name: cells[0] for name, cells in page.items()} == {
        name: row.versions() for name, row in works_with.ROWS.items()
    }
    assert list(page) == list(works_with.ROWS)
    assert all(len(cells) == 4 and cells[3] for cells in page.values())


def test_a_cell_that_differs_from_the_page_is_told(works_with: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(works_with.ROWS, "tool", works_with.Row(lambda _: ("every row", "9 of 10 rows"), version="1"))
    assert works_with.check("tool", ["1", "every row", "9 of 10 rows", "trap"]) == []
    assert works_with.check("tool", ["1", "every row", "every row", "trap"]) == [
        "ehrseq reads its: the page says 'every row', seen '9 of 10 rows'"
    ]


def test_a_row_that_cannot_run_is_77_with_its_reason_and_stands_by_hand(
    works_with: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand = works_with.PAGE.read_text(encoding="utf-8").partition("\n## By hand")[2]
    assert all(f"| {name} |" in by_hand for name in works_with.BY_HAND)
    monkeypatch.setattr("sys.argv", ["works_with.py", "meds-tab"])
    assert works_with.main() == 77
    assert "meds-tab: 77, by hand: it needs" in capsys.readouterr().out


# ---- the core stands alone: every room of it is imported, and a run answers, where four rooms are absent -------------


SOURCE = Path(__file__).parents[1] / "src" / "ehrsequencing"
OUTSIDE = ("explorer", "readers", "serve", "simulate")
SCRIPT = """
import importlib, importlib.util, pkgutil, sys
import ehrsequencing
assert not importlib.util.find_spec("ehrsequencing.readers"), "the whole package was found"
for found in pkgutil.walk_packages(ehrsequencing.__path__, "ehrsequencing."):
    if found.name.split(".")[1] not in ("api", "cli", "__main__"):  # the doors open all rooms
        importlib.import_module(found.name)
from pathlib import Path
from ehrsequencing.prediction.predict import Request, predict
predict(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), Request(at="last"))
"""


def test_the_core_imports_and_predicts_without_readers_server_explorer_and_simulation(
    sim_run: Path, sim_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(SOURCE, tmp_path / "ehrsequencing", ignore=shutil.ignore_patterns(*OUTSIDE, "__pycache__"))
    assert not any((tmp_path / "ehrsequencing" / room).exists() for room in OUTSIDE)
    words = [sys.executable, "-c", SCRIPT, sim_run, sim_data, tmp_path / "risks.parquet"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "risks.parquet").is_file()
