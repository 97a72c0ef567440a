"""The report as a decision document: honest words, figures that give nobody away, and pages of older runs."""

import re
from typing import Any

import pytest

from ehrsequencing.core.disclosure import enough_people
from ehrsequencing.reporting import panels, tables
from ehrsequencing.reporting.pages import outcome_lines, render_outcomes
from ehrsequencing.reporting.report import ANSWER, count_texts, render
from ehrsequencing.reporting.scores import Scores, declared
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.results.redaction import redact
from ehrsequencing.results.result_types import place_of
from helpers.recorded import MODELS, YEAR, bare, recorded
from helpers.report_page import Page, svgs


def scores_with(low: float, high: float, *, c: tuple[float, ...] = (0.86, 0.84, 0.85)) -> Scores:
    """Ours and two baselines, the second of which tuning subjects find most likely, though its C may be lower."""
    models = ["ours", "first", "second"]
    place = {"landmark_days": 0.0, "cause": "death", "horizon_days": YEAR, "metric": "c", "reason": None}
    rows = [{"model": m, **place, "value": v, "low": v - 0.1, "high": v + 0.1} for m, v in zip(models, c, strict=True)]
    gaps = [{"model": m, **place, "value": (low + high) / 2, "low": low, "high": high} for m in models[1:]]
    main = {"landmark_days": 0.0, "horizon_days": YEAR}
    return Scores(
        {
            "models": models,
            "main": main,
            "causes": ["death"],
            "horizons_days": [YEAR],
            "metrics": rows,
            "differences": gaps,
            "strongest": "second",
            "oracle": None,
        }
    )


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.001, 0.03, "better"),
        (-0.03, -0.001, "WORSE"),
        (-0.019, 0.021, "not distinguishable"),
    ],
)
def test_verdict_rests_on_the_paired_difference(low: float, high: float, words: str) -> None:
    scores = scores_with(low, high)
    place = {"landmark_days": 0.0, "cause": "death", "horizon_days": YEAR}
    gaps = [{**row, "metric": "nll", "horizon_days": None} for row in scores.m["differences"]]
    for row in gaps:  # a likelihood is better where it is lower
        row.update(value=-row["value"], low=-row["high"], high=-row["low"])
    whole = {**scores.m, "differences": [*scores.m["differences"], *gaps]}
    assert declared(Scores(whole)) is None  # the task names no horizon
    named = {**place, "rival": "second", "metric": "nll"}  # by likelihood, not by its place in the list
    found = declared(Scores({**whole, "declared": named}))
    assert (found["rival"], found["word"]) == ("second", words)
    assert found["c"]["value"] == pytest.approx((low + high) / 2)


def test_strongest_baseline_is_the_one_named_everywhere_and_never_the_truth() -> None:
    for c in ((0.8, 0.9, 0.7), (0.8, 0.7, 0.9)):  # C does not choose
        scores = scores_with(0, 1, c=c)
        assert scores.strongest() == "second"
    older = Scores({**scores.m, "strongest": None})
    assert older.strongest() == "first"  # runs that did not choose: the first of the list
    truth = Scores({**scores.m, "oracle": {"name": "second"}})
    assert truth.strongest() == "first"


def test_the_page_and_the_terminal_tell_the_likelihood_of_every_model() -> None:
    metrics = recorded("wide")
    rivals, landmark = MODELS[1:], metrics["landmarks_days"][0]
    metrics["strongest"] = rivals[1]
    metrics["metrics"] = [row for row in metrics["metrics"] if row["metric"] != "nll"]
    for k, name in enumerate(MODELS):
        place = {"model": name, "landmark_days": landmark, "cause": metrics["causes"][0], "horizon_days": None}
        metrics["metrics"].append({**place, "metric": "nll", "value": 2.0 + k / 10, "low": 1.0, "high": 3.0})
        if k:
            gap = {"metric": "nll", "value": -k / 10, "low": -k / 10 - 0.05, "high": -k / 10 + 0.05}
            metrics["differences"].append({**place, **gap})
    lines = metric_lines(metrics)
    assert f"against {rivals[1]}, the strongest baseline" in "\n".join(lines)
    for k, name in enumerate(rivals, start=1):
        (line,) = (text for text in lines if text.startswith(f"  {name} "))
        assert line.endswith(f"{2 + k / 10:.4f}")
    (line,) = (text for text in lines if text.startswith("  NLL "))
    assert line.endswith("−0.2000 (−0.2500 to −0.1500)")
    place = {"landmark_days": landmark, "cause": metrics["causes"][0], "horizon_days": metrics["main"]["horizon_days"]}
    metrics["declared"] = {**place, "rival": rivals[1], "metric": "nll"}
    (line,) = (text for text in metric_lines(metrics) if text.startswith("  NLL "))
    assert "−0.2000 (−0.2500 to −0.1500) better" in line  # lower is better
    page = Page(render(metrics, ANSWER)).text
    assert f"in likelihood the model is better than {rivals[1]}" in page
    assert page.count("better than") == 1
    text = Page(render(metrics)).text
    assert "difference in NLL (left: ours is better)" in text


def test_parts_may_be_empty_and_undefined() -> None:
    metrics = recorded("wide")
    for row in metrics["smooth_calibration"]:
        row.update(low=[None] * len(row["low"]), high=[None] * len(row["high"]))
    for row in metrics["decision"]:
        row.update(low=None, high=None, net_benefit=[None] * len(row["thresholds"]))
    for row in metrics["subgroups"]:
        row.update(oe={"value": None, "low": None, "high": None, "reason": None}, auc=None)
    for row in metrics["differences"]:
        row.update(value=None, low=None, high=None)
    metrics["checks"].update(parameters=None, seeds=None, members=None)
    metrics["follow_up"][0].update(median_days=None, low=None, high=None)
    Page(render(metrics))
    for name in ("differences", "smooth_calibration", "decision", "subgroups", "follow_up"):
        metrics[name] = []
    metrics["inputs"] = {"by_split": {}}
    metrics["repeated_splits"].update(rows=[], differences=[])
    Page(render(metrics))


def test_metrics_of_small_subgroups_are_not_shown() -> None:
    metrics = recorded("wide")
    rows = tables.subgroup_rows(metrics)
    enough = {(r["landmark_days"], r["group"], r["level"]): enough_people(r["events"], r["n"]) for r in rows}
    assert set(enough.values()) == {True, False}
    redacted = redact(metrics)
    places = tables.subgroups(redacted, count_texts(redacted))
    for landmark, place in zip(dict.fromkeys(r["landmark_days"] for r in rows), places, strict=True):
        for group, levels in place["families"].items():
            for level in levels:
                assert (level["auc"].value is not None) <= enough[landmark, group, level["name"]]


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_decision_curves_stop_before_few_are_left(share: float) -> None:
    metrics = recorded(share=share)
    exact_rows = {(row["model"], place_of(row)): row for row in metrics["decision"]}
    redacted = redact(metrics)["decision"]
    assert redacted
    for row in redacted:
        exact = exact_rows[row["model"], place_of(row)]
        curve = panels._net_benefit(row, 0)
        assert len(curve.x) > 2
        counts = list(zip(exact["above"], exact["events_above"], strict=True))
        few = [above < 11 or 0 < had < 11 for above, had in counts]
        assert few == [value is None for value in row["net_benefit"]] == [value is None for value in row["treat_all"]]


def test_every_section_and_curve_says_how_many() -> None:
    html = render(recorded("wide"))
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, flags=re.DOTALL)
    place = [caption for caption in captions if "the index, by" in caption]
    assert len(place) > 20
    assert all("n\u00a0" in caption for caption in place)
    for svg in svgs(html):
        if (svg.findtext("title") or "").startswith("Difference in"):
            assert "n\u00a0" in (svg.findtext("desc") or "")


def test_terminal_is_short_and_names_the_difference() -> None:
    metrics = recorded("wide")
    lines = metric_lines(metrics)
    start = f"against {MODELS[1]}, the strongest baseline; no verdict"
    (at,) = (k for k, line in enumerate(lines) if line.startswith(start))
    assert re.match(r"  C +.0\.\d{3} \(.0\.\d{3} to .0\.\d{3}\), 116 with the event$", lines[at + 2])
    assert not [line for line in lines if line.startswith("death within")]
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 100
    assert not [line for line in metric_lines(bare(recorded("wide"))) if "against" in line]


def rare_outcomes() -> dict[str, Any]:
    """58 outcomes, none of which has 50 events."""
    auc, oe = {"value": 0.616, "low": 0.607, "high": 0.623}, {"value": 1.02, "low": 0.95, "high": 1.08}
    none = ("median_auc", "oe_within_10_percent", "oe_within_10_percent_if_true", "oe_intervals_that_hold_1")
    return {
        "task": "t",
        "split": "held_out",
        "outcomes": [],
        "fewest_events": 50,
        "subjects": 400,
        "resamples": 200,
        "pooled": {"outcomes": 58, "events": 900, "auc": auc, "oe": oe},
        "horizons_days": [365.25, 730.5],
        "summary": {"outcomes": 0, **dict.fromkeys(none)},
        "strata": ["sex", "age"],
    }


def test_rare_outcomes_are_answered_together() -> None:
    lines = outcome_lines(rare_outcomes())
    (line,) = lines
    assert all(number in line for number in ("50 events", "58", "0.616 (0.607 to 0.623)", "1.02 (0.95 to 1.08)"))
    page = render_outcomes(rare_outcomes(), title="t")
    assert f"N{lines[0][1:]}." in page


def test_ratios_by_time_and_risk_are_shown_where_they_may_be_told() -> None:
    """Of real people between two limits, of a simulation as they are; tenths and tables without any are left out."""
    parts = [(0.0, 30.0), (30.0, 365.25)]
    counts = {1: (3, 0), 2: (53, 9), 10: (60, 150)}
    rows = [
        {"from_days": begin, "until_days": end, "tenth": tenth, "n": 900, "events": had[place]}
        | {"oe": 0.5 if had[place] > 10 else None}
        for place, (begin, end) in enumerate(parts)
        for tenth, had in counts.items()
    ]
    found = tables.ratios(redact({**recorded(), "ratios": rows}))
    assert found == {
        "columns": ["0 days to 30 days", "30 days to 1 year"],
        "rows": [(2, ["0.50 to 0.54", "–"]), (10, ["0.48 to 0.52", "0.49 to 0.51"])],
    }
    simulated = {**recorded(), "data": {"simulated": True}, "ratios": rows}
    assert tables.ratios(redact(simulated))["rows"] == [(2, ["0.50", "–"]), (10, ["0.50", "0.50"])]
    assert tables.ratios(redact({**recorded(), "ratios": rows[:1]})) is None
    assert tables.ratios(redact(recorded())) is None
