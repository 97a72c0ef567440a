"""The layout of the tests: rooms mirror those of the source, and no test file serves as a library."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "ehrsequencing"
OTHER_FOLDERS = {"bench", "faults", "helpers", "reference"}


def definitions(path: Path) -> list[str]:
    """Names of all functions and classes in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


@pytest.mark.parametrize("folder", [TESTS, TESTS.parent / "bench"], ids=lambda folder: folder.name)
def test_no_test_file_is_imported(folder: Path) -> None:
    imports = re.compile(r"^\s*(from|import)\s+(test_\w+|conftest)\b", re.MULTILINE)
    own = [path for path in folder.rglob("*.py") if ".venv" not in str(path.relative_to(folder))]  # bench/peers has one
    found = {str(path) for path in own if imports.search(path.read_text(encoding="utf-8"))}
    assert found == set(), "move what is shared to tests/helpers"


def test_every_folder_of_tests_mirrors_a_room() -> None:
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.rglob("*.py") if path.parent != TESTS}
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders - rooms - OTHER_FOLDERS == set()


def test_names_of_test_files_are_unique() -> None:
    """The rooms are no packages, so that pytest knows a test file by its name alone."""
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_helpers_hold_no_tests() -> None:
    shared = [path for folder in ("helpers", "reference") for path in (TESTS / folder).rglob("*.py")]
    assert not [path for path in shared if path.name.startswith("test_")]
    assert not [(path, name) for path in shared for name in definitions(path) if name.startswith(("test_", "Test"))]
    assert not [path for path in shared if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))]
