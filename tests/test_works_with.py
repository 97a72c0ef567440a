"""The page of other tools and the command that keeps it true have the same rows and versions; nothing is installed."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


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
