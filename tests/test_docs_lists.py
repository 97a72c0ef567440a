"""The lists in the documentation name exactly the parts and metrics that are registered."""

import re
from pathlib import Path

import pytest

from ehrsequencing.config.parts import KINDS, Kind
from ehrsequencing.metrics.registry import METRICS

DOCS = Path(__file__).parents[1] / "docs"


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
    assert named(default) < set(kind.parts)


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
