"""An adversary reads the page: by sums, differences and products of what is printed no hidden count comes out."""

import html
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.disclosure import small_counts
from ehrsequencing.disclosure.counts import publish
from ehrsequencing.disclosure.derived import Disclosure, disclose
from ehrsequencing.evaluation.evaluate import Evaluation, evaluate
from ehrsequencing.evaluation.population import Population
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting import report
from ehrsequencing.reporting.report import render
from ehrsequencing.reporting.wording import duration, from_landmark
from helpers.metrics_json import WIDE, complete
from helpers.report_page import only_small_ones

SMALL = range(1, 11)


def told(subjects: int, **kind: Any) -> dict[str, Any]:
    """Invented metrics whose Brier scores, IPA and O/E are those that the counts of each place give."""
    metrics = complete(subjects=subjects, **kind)
    counts = places(metrics)
    rows = {(r["model"], r["landmark_days"], r["cause"], r["horizon_days"], r["metric"]): r for r in metrics["metrics"]}
    for (model, *place, metric), row in rows.items():
        if tuple(place) in counts and metric == "brier":
            n, events = counts[tuple(place)]
            skill = rows[(model, *place, "ipa")]
            rate = events / max(n, 1)
            row["value"] = rate * (1 - rate) * (1 - (skill["value"] or 0.0))
    for row in metrics["censoring"]["smallest_g"]:
        n, gone = lost(metrics, row["landmark_days"], row["horizon_days"])
        row["g"] = 1 - gone / max(n, 1)
    return metrics


def places(metrics: dict[str, Any]) -> dict[tuple[float, str, float], tuple[int, int]]:
    """(Landmark, cause, horizon) → people at risk, and how many had the event: what the page may hide."""
    return {
        (row["landmark_days"], cause, h): (row["subjects"], row["events"][cause][k])
        for row in metrics["at_risk"]
        for cause in metrics["causes"]
        for k, h in enumerate(metrics["horizons_days"])
    }


def lost(metrics: dict[str, Any], landmark: float, horizon: float) -> tuple[int, int]:
    for row in metrics["risk_distribution"]:
        if (row["landmark_days"], row["horizon_days"]) == (landmark, horizon):
            return sum(map(sum, (row["event"], row["no_event"], row["unknown"]))), sum(row["unknown"])
    return 0, 0


# ---- what the adversary reads ----------------------------------------------------------------------------------------


class Block(NamedTuple):
    """The rows of one model table that stand under a horizon."""

    landmark: str
    cause: str
    horizon: str
    columns: list[str]
    rows: list[list[str]]


def text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def cells(row: str) -> list[str]:
    return [text(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL)]


def tables(page: str) -> list[tuple[str, list[list[str]]]]:
    """(What stands before it, its rows of cells) of every table."""
    out, before = [], 0
    for found in re.finditer(r"<table.*?</table>", page, flags=re.DOTALL):
        heads = re.findall(
            r"<(?:h3|summary)[^>]*>(.*?)</(?:h3|summary)>", page[before : found.start()], flags=re.DOTALL
        )
        out.append(
            (text(heads[-1]) if heads else "", [cells(r) for r in re.findall("<tr.*?</tr>", found[0], re.DOTALL)])
        )
        before = found.end()
    return out


def blocks(page: str) -> list[Block]:
    found = []
    for head, rows in tables(page):
        place = re.match(r"(At the index|.*? after the index)(?:: (.*?))?, n", head)
        if not place or not rows or rows[0][:1] != ["Model"]:
            continue
        horizon, inside = "", []
        for row in [*rows[1:], ["within end"]]:
            if len(row) == 1 and row[0].startswith("within "):
                if inside:
                    found.append(Block(place[1].lower(), place[2] or "", horizon, rows[0][1:], inside))
                horizon, inside = row[0].removeprefix("within "), []
            else:
                inside.append(row[1:])
    return found


def first(cell: str) -> float | None:
    number = re.match(r"-?\d+\.\d+", cell)
    return float(number[0]) if number else None


# ---- what the adversary tries ----------------------------------------------------------------------------------------


def products(metrics: dict[str, Any], page: str) -> list[str]:
    """n × rate for every rate of a place whose events, or those without, are hidden; n as the data have it."""
    out, counts = [], places(metrics)
    words = {(from_landmark(a), c, duration(h)): (a, c, h) for a, c, h in counts}
    for block in blocks(page):
        key = words.get((block.landmark, block.cause or metrics["causes"][0], block.horizon))
        if key is None:
            continue
        n, events = counts[key]
        for row in block.rows:
            values = {name: first(cell) for name, cell in zip(block.columns, row, strict=False)}
            rates = [v for v in values.values() if v is not None and 0 < v < 1]
            score, skill = values.get("Brier"), values.get("IPA")
            if score is not None and skill is not None:
                p = 0.5 - np.sqrt(max(0.25 - score / (1 - skill), 0.0))  # p (1 − p) = Brier / (1 − IPA)
                rates += [p, 1 - p]
            for hidden in (events, n - events):
                if hidden in SMALL and any(abs(n * rate - hidden) < 0.5 for rate in rates):
                    out.append(f"{key}: {hidden} of {n}")
    return out


def followed(metrics: dict[str, Any], page: str) -> list[str]:
    """n × (1 − share followed) is how many were lost by then."""
    out = []
    for _, rows in tables(page):
        if not rows or not any(cell.startswith("followed ") for cell in rows[0]):
            continue
        for row in rows[1:]:
            for head, cell in zip(rows[0], row, strict=True):
                for landmark, horizon in {(a, h) for a, _, h in places(metrics)}:
                    n, gone = lost(metrics, landmark, horizon)
                    here = row[0] == from_landmark(landmark) and head == f"followed {duration(horizon)}"
                    share = re.fullmatch(r"(\d?\.\d+|\d+(?:\.\d+)?%)", cell)
                    if here and share and gone in SMALL:
                        rate = float(cell.rstrip("%")) / (100 if "%" in cell else 1)
                        if abs(n * (1 - rate) - gone) < 0.5:
                            out.append(f"{landmark}, {horizon}: {gone} of {n} lost")
    return out


def subtractions(metrics: dict[str, Any], page: str) -> list[str]:
    """Totals less their parts and horizons less the one before, over the cells of each row of counts."""
    out = []
    whole = re.compile(r"[\d,]+")
    for _, rows in tables(page):
        if not rows:
            continue
        if rows[0][:2] == ["Split", "Subjects"]:
            for row in rows[1:]:
                parts = [row[1], *row[-len(metrics["causes"]) - 1 :]]
                numbers = [int(cell.replace(",", "")) for cell in parts if whole.fullmatch(cell)]
                if whole.fullmatch(row[1]):
                    total = numbers[0]
                    gaps = [total - sum(numbers[1:]), *(total - part for part in numbers[1:])]
                    out += [f"{row[0]}: {gap}" for gap in gaps if gap in SMALL]
        if rows[0][:2] == ["Landmark", "At risk"] and "Event" in rows[0]:
            width, at_risk = len(metrics["horizons_days"]), ""
            for row in rows[1:]:
                at_risk = row[1] if len(row) == len(rows[0]) else at_risk
                line = [at_risk, *row[-width:]]
                known = [int(cell.replace(",", "")) if whole.fullmatch(cell) else None for cell in line]
                for a, b in itertools.pairwise(known[1:]):
                    if a is not None and b is not None and b - a in SMALL:
                        out.append(f"{row[0]}: {b} - {a}")
                out += [f"{row[0]}: {known[0]} - {b}" for b in known[1:] if known[0] and b and known[0] - b in SMALL]
    sizes = dict.fromkeys(re.findall(r"\bn\s=\s([\d,]+)", page))
    out += [f"n = {size}" for size in sizes if int(size.replace(",", "") or 0) in SMALL]
    return out


def adversary(metrics: dict[str, Any], page: str) -> list[str]:
    return [*products(metrics, page), *followed(metrics, page), *subtractions(metrics, page)]


KINDS = [(312, WIDE), pytest.param(1500, WIDE, marks=pytest.mark.slow), (700, {"causes": ("death", "transplant")})]


@pytest.mark.parametrize(("subjects", "kind"), KINDS)
def test_no_hidden_count_can_be_worked_out_of_the_page(subjects: int, kind: dict[str, Any]) -> None:
    metrics = told(subjects, **kind)
    assert any(min(events, n - events) in SMALL for n, events in places(metrics).values())
    page = render(metrics)
    read = {(block.landmark, block.cause or "death", block.horizon) for block in blocks(page)}
    assert read >= {(from_landmark(a), cause, duration(h)) for a, cause, h in places(metrics)}
    assert adversary(metrics, page) == []


def test_the_adversary_finds_what_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule for derived numbers, and without that for sums, the same reader finds small counts."""
    metrics = told(1500, **WIDE)
    with monkeypatch.context() as open_:
        open_.setattr(report, "disclose", lambda m, shown: m)
        assert products(metrics, render(metrics))
    with monkeypatch.context() as open_:
        open_.setattr("ehrsequencing.reporting.tables.rough_rate", lambda rate, n: f"{rate:.2f}")
        few = told(400, **WIDE)
        assert followed(few, render(few))
    with monkeypatch.context() as open_:
        open_.setattr("ehrsequencing.disclosure.counts.hide_small", lambda c, i, k: only_small_ones(c))
        assert subtractions(metrics, render(metrics))


def test_a_real_evaluation_gives_no_count_away(sim_run: Path) -> None:
    metrics = evaluate(
        sim_run, settings=EvaluationConfig(explained_subjects=0, baselines="none", bootstrap=10, subgroups=("sex",))
    )
    page = render(metrics)
    assert adversary(metrics, page) == []
    assert "too few events" in page
    assert len(metrics["trajectories"]) == 4
    reasons = {row["reason"] for row in metrics["metrics"] if row["low"] is None}
    assert reasons >= {"too few events"}
    assert {row["reason"] for row in metrics["metrics"] if row["low"] is not None} == {None}


# ---- the rule --------------------------------------------------------------------------------------------------------


def level(events: tuple[int, int], shown: dict[Any, str], cause: str = "a", landmark: float | None = 0.0) -> str:
    metrics = {
        "causes": ["a", "b"], "horizons_days": [365.0], "metrics": [], "split": "held_out", "events": {},
        "at_risk": [{"landmark_days": 0.0, "subjects": 200, "events": {"a": [events[0]], "b": [events[1]]}}],
    }  # fmt: skip
    told = {("at_risk", 0.0): "200", ("by", 0.0, "a", 365.0): str(events[0]), ("by", 0.0, "b", 365.0): str(events[1])}
    return Disclosure.of(metrics, told | shown).level(landmark, cause, 365.0)


def test_levels_by_hand() -> None:
    rough = {("by", 0.0, "a", 365.0): "≥11"}
    assert level((50, 60), {}) == "all"
    assert level((50, 60), rough) == "shape"
    assert level((10, 60), {}) == "nothing"
    assert level((0, 60), {}) == "nothing"
    assert level((195, 0), {}) == "nothing"  # five without the event
    assert level((50, 60), {("at_risk", 0.0): "≥100"}) == "shape"
    assert level((50, 60), {}, "any cause") == "all"
    assert level((50, 60), rough, "any cause") == "shape"
    assert level((50, 3), {}, "any cause") == "shape"  # any cause less the first is the three
    assert level((50, 3), {}) == "all"


def test_numbers_that_tell_a_count_go_and_the_others_stay() -> None:
    metrics = told(1500, **WIDE)
    shown = publish(metrics)
    found, rule = disclose(metrics, shown), Disclosure.of(metrics, shown)
    levels = set()
    for before, row in zip(metrics["metrics"], found["metrics"], strict=True):
        here = rule.level(row["landmark_days"], row["cause"], row["horizon_days"])
        levels.add(here)
        gone = here == "nothing" or (here == "shape" and row["metric"] in ("brier", "ipa", "oe", "intercept"))
        assert bool(row.get("hidden")) == gone
        assert row["value"] == (None if gone else before["value"])
    assert levels == {"all", "shape", "nothing"}
    json.dumps(found)


def test_differences_of_nested_counts_are_hidden_without_being_named() -> None:
    """82 with the event at any time and 77 by five years: five people, though nobody says `implied`."""
    any_time = small_counts.Count(82, frozenset("ab"), 2)
    counts = {"any time": any_time, "by five years": small_counts.Count(77, frozenset("a"), 3)}
    assert small_counts.hide_small(counts) == {"any time": "≥11", "by five years": "77"}


# ---- single people ---------------------------------------------------------------------------------------------------


def test_single_people_are_drawn_by_default_for_simulations_only(sim_run: Path, tmp_path: Path) -> None:
    run = Run(sim_run)
    store = Prepared(Path(run.manifest["prepared"]))
    simulated = Population.of_split(store, run.task, "held_out")
    for source, asked, count in (
        (simulated.source, None, 4), (simulated.source, 0, 0), (None, None, 0), (tmp_path, None, 0), (tmp_path, 2, 2)
    ):  # fmt: skip
        settings = EvaluationConfig(explained_subjects=0, baselines="none", trajectories=asked)
        evaluation = Evaluation(run, replace(simulated, source=source), prepared=store, settings=settings)
        assert evaluation.wanted_trajectories() == count
        assert evaluation.context.frame()["data"]["simulated"] == (source == simulated.source)


def test_curves_of_single_people_come_with_a_warning_unless_they_are_simulated() -> None:
    metrics = complete()
    assert "curves of single persons, shown because" in render(metrics)
    metrics["data"]["simulated"] = True
    assert "curves of single persons" not in render(metrics)
    assert "No curves of single persons" in render({**metrics, "trajectories": []})
