"""The lists in the documentation name exactly the parts and metrics that are registered."""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ehrsequencing.config.parts import KINDS, Kind
from ehrsequencing.metrics.registry import METRICS

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = Path(__file__).parents[1] / "src" / "ehrsequencing"
FILE_NAME = re.compile(r"(metadata/)?[a-z*][\w-]*\.(json|jsonl|html|parquet|safetensors|yaml|csv|npz|npy|pt2|py|md)")


def cells(page: str, first: str) -> list[str]:
    """The cells of the table row whose first cell is this one."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith(f"| `{first}` |"))
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def named(text: str) -> set[str]:
    """Everything between backticks, outside of blocks of code."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"(?s)```.*?```", "", text)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.setting)
def test_the_guide_lists_every_registered_part(kind: Kind) -> None:
    _, default, names = cells("guide.md", f"model.{kind.setting}")
    assert named(names) == set(kind.parts)
    assert named(default) <= set(kind.parts)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.setting)
def test_the_page_of_the_model_names_every_registered_part(kind: Kind) -> None:
    found = {name.rpartition("=")[2] for name in named((DOCS / "models.md").read_text(encoding="utf-8"))}
    assert set(kind.parts) <= found


def test_the_page_of_the_metrics_lists_every_metric() -> None:
    columns = {"subjects", "events", "reason"}
    assert named(cells("metrics.md", "metrics")[1]) - columns == set(METRICS)


def test_the_page_of_the_metrics_lists_what_is_compared() -> None:
    first = next(
        line
        for line in (DOCS / "metrics.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `differences` | ours minus each baseline")
    )
    listed = named(first.partition("|")[2].partition("|")[2]) - {"model"}
    assert listed == {key for key, metric in METRICS.items() if metric.compared}


def may_leave() -> list[tuple[list[str], str]]:
    """Rows of the table about what may leave the hospital: the names in its first cell, and the answer."""
    text = (DOCS / "reliability.md").read_text(encoding="utf-8")
    table = text.partition("## May it leave the hospital?")[2]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines() if line.startswith("| ")]
    return [(sorted(named(row[0])), row[1].strip()) for row in rows[1:]]


def names_in(path: Path) -> set[str]:
    """Texts of a source file that are names of files, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.value.rpartition("/")[2] for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FILE_NAME.fullmatch(node.value)
    }  # fmt: skip


def test_the_table_of_what_may_leave_names_every_file_that_the_package_knows() -> None:
    names = {name for path in SOURCE.rglob("*.py") for name in names_in(path)} - {"*.py"}
    assert {"state.json", "explorer.html", "attrition.json"} <= names
    exact = {pattern for patterns, _ in may_leave() for pattern in patterns if not pattern.startswith("*")}
    lost = {name for name in names if not any(fnmatch(name, pattern) for pattern in exact)}
    assert lost <= {"0.parquet", "risks.csv", "*.parquet"}, "the table of docs/reliability.md lacks them"


def test_every_answer_of_that_table_is_one_of_three() -> None:
    assert {re.split(r"\W", answer)[0] for _, answer in may_leave()} == {"yes", "no", "ask"}
