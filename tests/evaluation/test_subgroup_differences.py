"""Groups of people are compared with the largest one, on the same resamples, unless few people would be told."""

import numpy as np
import pytest

from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.subgroups import subgroup_rows
from ehrsequencing.results.redaction import redact_rows
from reference.r_oracles import risk_rows


def rows_of(sizes: dict[str, int]) -> list[dict]:
    """Rows of `subgroups` of the people of `risk_rows` in groups of these sizes, one after another."""
    people = risk_rows()
    scope = Comparison(
        0.0,
        np.arange(500),
        people.time.to_numpy(),
        people.cause.to_numpy(),
        np.array([365.0]),
        {"ours": np.stack([people.a, (1 - people.a) * 0.2], axis=1)[:, :, None]},
        draw_subjects(500, 100, 0),
    )
    levels = np.repeat(list(sizes), list(sizes.values()))
    return subgroup_rows(scope, {"group": levels}, ["event", "other"], model="ours")


def test_a_difference_is_paired_and_to_the_largest_group() -> None:
    large, small = (row for row in rows_of({"small": 180, "large": 320}) if row["cause"] == "event")
    assert large["level"] == "large"
    assert "auc_difference" not in large
    for name in ("oe", "auc", "brier"):
        gap = small[f"{name}_difference"]
        assert gap["value"] == pytest.approx(small[name]["value"] - large[name]["value"])
        assert gap["low"] < gap["value"] < gap["high"]
    widths = [(row["auc"]["high"] - row["auc"]["low"]) ** 2 for row in (small, large)]
    gap = small["auc_difference"]
    assert (gap["high"] - gap["low"]) ** 2 == pytest.approx(sum(widths), rel=0.6)


def test_no_difference_tells_the_metric_of_few_people() -> None:
    rows = rows_of({"large": 480, "few": 20})
    few = next(row for row in rows if row["level"] == "few" and row["cause"] == "event")
    assert few["auc_difference"]["value"] is None
    told = redact_rows({"rows": rows}, is_simulated=False)["rows"]
    hidden = [row for row in told if row.get("hidden")]
    assert hidden
    assert all(row["auc_difference"] is None for row in hidden if "auc_difference" in row)
