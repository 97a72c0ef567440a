"""One patient's timeline with the risk curve: what is drawn, in words, and what the result tells of a subject."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from ehrsequencing.reporting.chart import Figure
from ehrsequencing.reporting.patient import (
    Patient,
    Seen,
    lanes_of,
    largest_changes,
    patient_figure,
    patient_of,
)
from ehrsequencing.reporting.report import standalone
from helpers.metrics_json import example

PATIENT = Patient(
    times_days=[0.0, 100.0, 300.0],
    risk=[0.1, 0.3, 0.25],
    horizon_days=365.25,
    curve_days=[100.0, 365.25, 730.5],
    curves={"stroke": [0.1, 0.25, 0.4], "death": [0.0, 0.05, 0.1]},
    bands={"stroke": ([0.05, 0.2, 0.3], [0.2, 0.3, 0.5])},
    visits=[Seen(-10.0, ["DX//I10", "LAB//K"]), Seen(100.0, ["DX//I10", "DX//I48", "RX//B"]), Seen(300.0, ["LAB//K"])],
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
    ElementTree.fromstring(standalone(figure))
    assert "xmlns" in standalone(figure)
    assert "var(--s0)" in standalone(figure)


def test_the_first_record_of_a_code_is_marked() -> None:
    lanes = dict(lanes_of(PATIENT))
    assert [(day, new) for day, _, new in lanes["diagnoses"]] == [(-10.0, True), (100.0, True)]
    assert [(day, new) for day, _, new in lanes["laboratory"]] == [(-10.0, True), (300.0, False)]
    many = replace(PATIENT, visits=[Seen(0.0, [f"KIND{k}//X" for k in range(9)])])
    assert len(lanes_of(many)) == 5


def test_explained_changes_name_the_codes_that_moved_the_risk() -> None:
    parts = [
        {"code": None, "codes": 0, "change": -0.01}, {"code": "DX//I10", "codes": 1, "change": 0.2},
        {"code": None, "codes": 4, "change": 0.04}, {"code": "RX//B", "codes": 1, "change": -0.03},
    ]  # fmt: skip
    moves = [{"day": 100.0, "before": 0.1, "after": 0.3, "parts": parts}]
    (change,) = largest_changes(replace(PATIENT, moves=moves))
    assert change["codes"] == ["Hypertension +20.0", "4 other codes together +4.0", "RX//B \N{MINUS SIGN}3.0"]
    assert change["more"] == 1


def test_a_file_of_predictions_has_no_whole_curve() -> None:
    row = {key: value for key, value in example()["trajectories"][0].items() if key != "full"}
    patient = patient_of(row)
    assert patient.times_days == row["times_days"]
    assert patient.curve_days == row["horizons_days"]
    patient_figure(patient, title="Patient A")
