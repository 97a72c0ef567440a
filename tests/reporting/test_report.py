"""The report: complete, escaped, offline, valid figures, and no count under 11 that can be worked out."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example as for_example, given, settings, strategies as st

from ehrsequencing.evaluation.context import QUESTIONS
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.reporting import figures, tables
from ehrsequencing.reporting.chart import Curve, Estimate, Figure, ticks
from ehrsequencing.reporting.patient import (
    Patient,
    lanes_of,
    moved,
    patient_figure,
    patient_of,
)
from ehrsequencing.reporting.report import ANSWER, pages, render
from helpers.recorded import MODELS, ORACLE, bare, recorded, simulation, without_first_horizon
from helpers.report_page import Page, svgs

NO_BARS: dict[str, Any] = {"edges": [0.0], "shares": []}

# ---------------------------------------------------------------------------------------------------------- the page


KINDS = {
    "narrow": recorded(),
    "wide": recorded("wide"),
    "few and undefined": without_first_horizon(recorded("wide", share=0.3)),
    "simulation": simulation(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_bare", [True, False])
def test_page_is_whole_and_asks_for_nothing(kind: str, is_bare: bool) -> None:
    drawn = pages(bare(KINDS[kind]) if is_bare else KINDS[kind])
    read = {name: Page(html) for name, html in drawn.items()}
    ids = {name: [value for _, key, value in page.attributes if key == "id"] for name, page in read.items()}
    for name, html in drawn.items():
        whole_and_alone(name, html, read[name], ids)


def whole_and_alone(file: str, html: str, page: Page, ids: dict[str, list[str]]) -> None:
    """One page: nothing but text and figures, and every link leads to a place of one of the pages (`ids`)."""
    assert len(html) < 1_200_000
    assert not {"script", "img", "iframe", "object", "embed", "base", "form", "audio", "video"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert "http:" not in value, (tag, name)
        assert "https:" not in value, (tag, name)
        assert "//" not in value, (tag, name)
        if name in {"href", "src"}:
            target, _, place = value.partition("#")
            assert value == "data:," or (target or file) in ids, value
            assert not place or place in ids[target or file], value
    assert "url(" not in html
    assert "@import" not in html
    assert ("meta", "http-equiv", "Content-Security-Policy") in page.attributes
    assert "default-src 'none'" in html
    assert len(ids[file]) == len(set(ids[file]))
    assert not re.search(r"\b(nan|inf|None|NaN)\b", page.text)


def test_every_figure_is_valid_and_described() -> None:
    drawn = [figure for figure in svgs(render(recorded("wide"))) if figure.get("class") == "fig"]
    assert len(drawn) > 15
    for figure in drawn:
        assert figure.find("title") is not None
        assert figure.findtext("title")
        assert figure.findtext("desc")
        assert figure.get("role") == "img"


@pytest.mark.parametrize("kind", ["narrow", "wide"])
def test_all_numbers_appear(kind: str) -> None:
    metrics = recorded(kind)
    metrics["data"]["simulated"] = True  # nobody to hide
    text = Page(render(metrics)).text
    for row in metrics["metrics"]:
        digits, scale = METRICS[row["metric"]].digits, METRICS[row["metric"]].scale
        for value in (row["value"], row["low"], row["high"]):
            if value is not None:
                assert f"{scale * value:z.{digits}f}".replace("-", "−") in text
    counts = [row["subjects"] for row in metrics["at_risk"]]
    counts += [n for row in metrics["at_risk"] for cause in metrics["causes"] for n in row["events"][cause]]
    assert all(f"{count:,}" in text for count in counts)
    told = [step["step"] for step in metrics["attrition"]] + [title for title, _ in QUESTIONS.values()]
    told += [row["level"] for row in tables.subgroup_rows(metrics)] + [*MODELS, metrics["question"]]
    told += ["model.dim", "64", "training.learning_rate", "0.0005", "splits.by", '"file"']
    told.append(f": {len(QUESTIONS) - 1} of {len(QUESTIONS)} to be filled in by the authors")  # trials are told
    assert [one for one in told if one not in text] == []


def test_what_is_hostile_is_shown_as_text() -> None:
    evil = "<script>alert('x')</script>\"'&\x00\x0b\ud800"
    metrics = json.loads(json.dumps(bare(recorded("wide"))).replace('"relapse"', json.dumps(evil)))
    metrics.update(title=evil, question=evil, warnings=[evil], models=[evil, *MODELS], versions={evil: evil})
    metrics["config"] = {evil: {evil: [evil]}}
    metrics["task"]["index"]["code"] = ["re:" + evil]
    metrics["attrition"][1]["step"] = evil
    metrics["trajectories"][0].update(label=evil, outcome=evil)
    metrics["metrics"].append({**metrics["metrics"][0], "metric": evil, "model": evil})
    for html in pages(metrics).values():
        assert "script" not in Page(html).tags
    page = Page(html)
    assert "<script>alert('x')</script>" in page.text
    assert len(svgs(html)) > 10
    html.encode()


def test_nobody_is_named() -> None:
    metrics = recorded("wide")
    metrics["data"]["span"] = "2031-07-05"
    metrics["checks"]["subject_ids"] = [987654321]
    metrics["subgroups"][0]["subject_id"] = metrics["decision"][0]["subject_id"] = 987654321
    metrics["external"] = {"data": "elsewhere", "subjects": 300, "subject_ids": [987654321]}
    metrics["trajectories"][0].update(subject_id=987654321, index_time="2031-07-06T08:00:00")
    html = "".join(pages(metrics).values())
    for canary in ("987654321", "2031-07", "/home/somebody"):
        assert canary not in html


def test_undefined_is_said() -> None:
    metrics = without_first_horizon(bare(recorded()))
    metrics["metrics"][0]["value"] = float("nan")
    text = Page(render(metrics)).text
    undefined = sum(row["value"] is None or row["value"] != row["value"] for row in metrics["metrics"])
    assert f"{undefined} of {len(metrics['metrics'])} metric values are undefined" in text
    assert text.count("undefined") > undefined  # once in its cell, again in the figure
    nothing = bare(recorded())
    for row in nothing["metrics"]:
        row.update(value=None, low=None, high=None)
    assert "the ranking cannot be measured" in Page(render(nothing, ANSWER)).text


def test_oracle_panel_warns_only_of_a_leak() -> None:
    fair = Page(render(simulation(beats_oracle_z=2.9))).text
    leak = Page(render(simulation(beats_oracle_z=3.1))).text
    assert "+0.0420 (standard error 0.0110)" in fair
    assert "1.0610" in fair
    assert "is leaking. It beats" not in fair
    assert "is leaking. It beats" in leak
    assert "3.1 standard errors" in leak
    assert "Against the truth" not in Page(render(recorded())).text


# --------------------------------------------------------------------------------------------------------- the figures

_NO_NUMBER = r"\b(nan|inf)\b"
risk = st.floats(0, 1, allow_subnormal=False)
some_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8).filter(
    lambda text: "\ufffe" not in text and "\uffff" not in text and not re.search(_NO_NUMBER, text)
)


def check(svg: str) -> None:
    ElementTree.fromstring(svg)
    assert not re.search(rf'"[^"]*{_NO_NUMBER}[^"]*"', svg)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_figures_are_valid_for_any_numbers(data: st.DataObject) -> None:
    estimate = st.builds(Estimate, st.integers(0, 9), some_text, st.none() | st.floats(-9, 9), risk, risk)
    groups = data.draw(st.lists(st.tuples(some_text, st.lists(estimate, max_size=3)), max_size=3))
    check(figures.forest(groups, title="t", label="C", reference=0.5, floor=0.0))
    points = data.draw(st.lists(st.tuples(risk, risk, risk, risk), min_size=1))
    check(
        figures.calibration(Curve(0, "ours", *zip(*points, strict=True)), title=data.draw(some_text), histogram=NO_BARS)
    )


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9), st.floats(1e-3, 1))
@for_example([-0.5, -0.2], 0.3)
@for_example([0.0], 0.1)
def test_net_benefit_is_drawn_for_any_numbers(gained: list[float], end: float) -> None:
    """A model that gains nothing at any threshold too: elsewhere it may well."""
    x = [end * (k + 1) / len(gained) for k in range(len(gained))]
    low, high = [v - 0.1 for v in gained], [v + 0.1 for v in gained]
    check(figures.decision([Curve(0, "ours", x, gained, low, high)], title="t"))


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_inside_and_even(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert all(low - 1e-6 * span <= t <= low + span * (1 + 1e-6) + 1e-9 for t in found)
    assert len(found) <= 7


def test_points_stand_where_the_numbers_are() -> None:
    svg = ElementTree.fromstring(
        figures.calibration(Curve(0, "ours", [0.1, 0.4], [0.2, 0.5]), title="t", histogram=NO_BARS)
    )
    line = next(line for line in svg.iter("polyline"))
    diagonal = next(line for line in svg.iter("line") if line.get("class") == "reference")
    x0, y0, x1, y1 = (float(diagonal.get(k, 0)) for k in ("x1", "y1", "x2", "y2"))
    points = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
    share = [((x - x0) / (x1 - x0), (y - y0) / (y1 - y0)) for x, y in points]
    top = 0.5 * 1.08
    assert share[0] == pytest.approx((0.1 / top, 0.2 / top), abs=1e-3)
    assert share[1] == pytest.approx((0.4 / top, 0.5 / top), abs=1e-3)


def test_the_truth_of_a_simulation_is_no_rival() -> None:
    metrics = bare(simulation())
    truth = [
        {**row, "model": "true hazards", "value": 0.99}
        for row in metrics["metrics"]
        if row["model"] == metrics["models"][0]
    ]
    seen = {
        **metrics,
        "models": [metrics["models"][0], "true hazards"],
        "oracle": {**ORACLE, "name": "true hazards"},
        "metrics": [row for row in metrics["metrics"] if row["model"] == metrics["models"][0]] + truth,
    }
    assert "difference" not in Page(render(seen, ANSWER)).text.split("Could it see")[0]
    assert "difference" in Page(render({**seen, "oracle": ORACLE}, ANSWER)).text.split("Could it see")[0]


# ---- one patient's timeline with the risk curve: what is drawn, in words, and what the result tells of a subject -----


PATIENT = Patient(
    times_days=[0.0, 100.0, 300.0],
    risk=[0.1, 0.3, 0.25],
    horizon_days=365.25,
    curve_days=[100.0, 365.25, 730.5],
    curves={"stroke": [0.1, 0.25, 0.4], "death": [0.0, 0.05, 0.1]},
    bands={"stroke": ([0.05, 0.2, 0.3], [0.2, 0.3, 0.5])},
    visits=[
        {"day": -10.0, "codes": ["DX//I10", "LAB//K"]},
        {"day": 100.0, "codes": ["DX//I10", "DX//I48", "RX//B"]},
        {"day": 300.0, "codes": ["LAB//K"]},
    ],
    event=(500.0, "stroke"),
    descriptions={"DX//I48": "Atrial fibrillation", "DX//I10": "Hypertension"},
)


def words(figure: Figure) -> str:
    root = ElementTree.fromstring(figure)
    return " ".join(node.text or "" for node in root.iter() if node.tag in ("text", "desc", "title"))


def test_a_patient_is_drawn_with_words_for_codes_the_event_and_bands() -> None:
    figure = patient_figure(PATIENT, title="Patient A")
    told = words(figure)
    assert "Atrial fibrillation" in told
    assert "Hypertension" in told
    assert "DX//I10" not in told
    assert "stroke at 1.37" in told  # in years, since the axis spans more than two
    assert figure.count('class="band') == 1
    assert ("1.37 y", "stroke", "") in figure.rows
    assert "since the index" in told
    later = patient_figure(replace(PATIENT, event=(9000.0, "stroke")), title="Patient A")
    assert "stroke later" in words(later)
    assert 'class="happened"' not in later
    assert "ended" in patient_figure(replace(PATIENT, censored=True), title="Patient A")


def test_the_first_record_of_a_code_is_marked() -> None:
    lanes = dict(lanes_of(PATIENT))
    assert [(day, new) for day, _, new in lanes["diagnoses"]] == [(-10.0, True), (100.0, True)]
    assert [(day, new) for day, _, new in lanes["laboratory"]] == [(-10.0, True), (300.0, False)]
    many = replace(PATIENT, visits=[{"day": 0.0, "codes": [f"KIND{k}//X" for k in range(9)]}])
    assert len(lanes_of(many)) == 5


def test_explained_changes_name_the_codes_that_moved_the_risk() -> None:
    parts = [
        {"code": None, "codes": 0, "change": -0.01},
        {"code": "DX//I10", "codes": 1, "change": 0.2},
        {"code": None, "codes": 4, "change": 0.04},
        {"code": "RX//B", "codes": 1, "change": -0.03},
    ]
    change = moved({"day": 100.0, "before": 0.1, "after": 0.3, "parts": parts}, PATIENT.descriptions)
    assert change["codes"] == [
        ("Hypertension", "+20.0"),
        ("4 other codes together", "+4.0"),
        ("RX//B", "\N{MINUS SIGN}3.0"),
    ]
    assert change["more"] == 1


def test_a_file_of_predictions_has_no_whole_curve() -> None:
    row = {key: value for key, value in recorded()["trajectories"][0].items() if key != "full"}
    patient = patient_of(row)
    assert patient.times_days == row["times_days"][: row["now"] + 1]
    assert patient.curve_days == row["horizons_days"]
    patient_figure(patient, title="Patient A")


def test_a_calibration_curve_stands_over_a_histogram_of_the_risks() -> None:
    curve = Curve(0, "ours", [0.1, 0.4], [0.2, 0.5])
    bars = {"edges": [0.0, 0.1, 0.2, 0.3], "shares": [0.5, None, 0.25]}  # the second is of fewer than 11 people
    drawn = ElementTree.fromstring(figures.calibration(curve, title="t", histogram=bars)).iter("rect")
    heights = [float(bar.attrib["height"]) for bar in drawn if "bar" in bar.attrib["class"]]
    assert len(heights) == 2
    assert heights[0] == pytest.approx(2 * heights[1], rel=0.01)


def test_each_row_of_the_checklist_is_true_of_the_page() -> None:
    """A section that is drawn is never called missing, and one that is not never said to be here."""
    full, reduced = recorded(), recorded()
    for key in ("decision", "subgroups", "follow_up", "smooth_calibration"):
        reduced[key] = []
    reduced |= {"warnings": [], "recalibrated_in_training": False}
    full |= {"warnings": [], "recalibrated_in_training": True}
    for metrics in (full, reduced):
        page = render(metrics)
        sections = set(re.findall(r'<section id="(\w+)"', page))
        checklist = page.partition('id="filled-c"')[2].partition("</table>")[0]
        rows = re.findall(r'<th scope="row">(.*?)</th><td class="left">(.*?)</td>', checklist)
        assert len(rows) == 13
        for name, cell in rows:
            link = re.search(r'href="#(\w+)"', cell)
            assert link is None or link[1] in sections, name
        missing = [name for name, cell in rows if "not in this evaluation" in cell]
        assert all(name.startswith(("Missing", "Clinical", "Performance", "Recali", "Censoring")) for name in missing)
        assert bool(missing) == (metrics is reduced)
