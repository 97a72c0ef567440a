"""The first sentence about all outcomes, on the page and in the terminal."""

from typing import Any

from ehrsequencing.reporting.pages import outcome_lines, render_outcomes


def rare_outcomes() -> dict[str, Any]:
    """58 outcomes, none of which has 50 events."""
    auc, oe = {"value": 0.616, "low": 0.607, "high": 0.623}, {"value": 1.02, "low": 0.95, "high": 1.08}
    none = ("median_auc", "oe_within_10_percent", "oe_within_10_percent_if_true", "oe_intervals_that_hold_1")
    return {
        "task": "t", "split": "held_out", "outcomes": [], "fewest_events": 50, "subjects": 400, "resamples": 200,
        "pooled": {"outcomes": 58, "events": 900, "auc": auc, "oe": oe}, "horizons_days": [365.25, 730.5],
        "summary": {"outcomes": 0, **dict.fromkeys(none)}, "strata": ["sex", "age"],
    }  # fmt: skip


def test_rare_outcomes_are_answered_together() -> None:
    lines = outcome_lines(rare_outcomes())
    assert lines == [
        "no outcome has 50 events or more; of the 58 with fewer, pooled, the AUC within sex and age is 0.616 (0.607 to "
        "0.623), and observed/expected is 1.020 (0.950 to 1.080)"
    ]
    page = render_outcomes(rare_outcomes(), title="t")
    assert f"N{lines[0][1:]}." in page
