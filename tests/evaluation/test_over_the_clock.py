"""Calibration by landmark and number of visits: the groups of the rows, and the figure of the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.evaluation.subgroups import VISITS, groups_of_rows
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting import panels, tables
from ehrsequencing.reporting.report import DETAILS, pages
from ehrsequencing.results.redaction import redact
from helpers.metrics_json import WIDE, complete


def test_rows_are_grouped_by_the_visits_before_them(sim_prepared: Path) -> None:
    store = Prepared(sim_prepared)
    records = store.records("simulated", "train")
    chosen = np.arange(len(records))
    level = groups_of_rows(records, store.vocabulary, chosen=chosen)[VISITS]
    visits = records.rows.visits_before
    for name, low, high in (("1", 1, 2), ("2-4", 2, 5), ("5-9", 5, 10), ("10-19", 10, 20)):
        np.testing.assert_array_equal(level == name, (low <= visits) & (visits < high))


def by_visits(**changes: Any) -> dict[str, Any]:
    """Content of `metrics.json` in which the sexes are groups of visits."""
    metrics = complete(**WIDE)
    names = dict(
        zip(sorted({r["level"] for r in metrics["subgroups"] if r["group"] == "sex"}), ("1", "2-4"), strict=True)
    )
    metrics["subgroups"] = [
        {**row, "group": VISITS, "level": names[row["level"]], **changes}
        for row in metrics["subgroups"]
        if row["group"] == "sex"
    ]
    return metrics


def test_one_figure_shows_every_landmark_and_number_of_visits() -> None:
    metrics = by_visits()
    drawn = panels.clock(tables.subgroups(metrics, {}))
    assert drawn is not None
    assert len(drawn.rows) == 2 * len(metrics["landmarks_days"])
    assert "2-4 visits" in drawn
    assert "Over the clock" in pages(metrics)[DETAILS]


@pytest.mark.parametrize("changes", [{"events": 4}, {"n": 9, "events": 2}])
def test_groups_of_few_people_are_not_drawn(changes: dict[str, Any]) -> None:
    metrics = by_visits(**changes)
    assert panels.clock(tables.subgroups(redact(metrics), {})) is None
    assert "Over the clock" not in pages(metrics)[DETAILS]
