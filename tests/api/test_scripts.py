"""The scripts of examples/scripts run as written: an analyst's, a researcher's and a biostatistician's."""

import runpy
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ehrsequencing as eh
from ehrsequencing.config.parts import visit_encoder
from ehrsequencing.core.errors import EhrseqError
from helpers.flat_frames import flat_table
from helpers.omop import Tables, write_csv

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"


def run_script(name: str) -> dict[str, object]:
    path = SCRIPTS / f"{name}.py"
    assert 15 <= len(path.read_text(encoding="utf-8").splitlines()) <= 45
    return runpy.run_path(str(path), run_name="__main__")


def hospital() -> Tables:
    """120 persons with four visits each; whoever has condition 2 at the first of them dies within two years."""
    rng, tables = np.random.default_rng(3), {name: [] for name in ("person", "visit_occurrence", "death")}
    conditions = []
    for person in range(120):
        ill, start = person % 3 == 0, date(2010, 1, 1) + timedelta(int(rng.integers(0, 700)))
        tables["person"].append({"person_id": person, "gender_concept_id": 8532, "year_of_birth": 1950})
        for number in range(4):
            day, visit = (start + timedelta(30 * number)).isoformat(), 4 * person + number
            tables["visit_occurrence"].append({
                "visit_occurrence_id": visit, "person_id": person, "visit_concept_id": 9201,
                "visit_start_date": day, "visit_end_date": day,
            })  # fmt: skip
            conditions.append({
                "person_id": person, "condition_concept_id": 2 if ill else 1, "condition_start_date": day,
                "visit_occurrence_id": visit,
            })  # fmt: skip
        if ill:
            tables["death"].append({"person_id": person, "death_date": start + timedelta(int(rng.integers(150, 600)))})
    concepts = [
        {"concept_id": k, "concept_name": f"condition {k}", "vocabulary_id": "V", "concept_code": k} for k in (1, 2)
    ]
    return {**tables, "condition_occurrence": conditions, "concept": concepts}


def test_the_analyst_gets_a_report_a_list_and_a_picture(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ibis", reason="needs the extra omop")
    monkeypatch.chdir(tmp_path)
    write_csv(hospital(), tmp_path / "omop")
    found = run_script("analyst")
    assert "task death" in capsys.readouterr().out
    assert (tmp_path / "study" / "run" / "report.html").stat().st_size > 10_000
    listed, risk = pd.read_csv("highest.csv"), found["risk"]
    assert isinstance(risk, pd.DataFrame)
    assert listed.subject_id.tolist() == risk.nlargest(10, "death_1y").subject_id.tolist()
    assert (tmp_path / "first.png").read_bytes().startswith(b"\x89PNG")


def test_the_researcher_trains_an_encoder_in_her_own_loop(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(visit_encoder, "_classes", dict(visit_encoder._classes))
    run = run_script("researcher")["run"]
    assert run.model.config.visit_encoder == "saturated"
    told = capsys.readouterr().out
    first, last = (float(line.split()[-1]) for line in told.splitlines() if line.startswith("epoch"))
    assert last < first
    assert eh.HierarchicalBEHRTForSurvival.from_pretrained("mine").config.visit_encoder == "saturated"
    with pytest.raises(EhrseqError, match=r"code of visit_encoder=saturated may have changed since .*resume=True"):
        eh.fit("prepared", out="runs/saturated", model={"visit_encoder": "saturated"})


def test_the_biostatistician_finds_the_same_numbers(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flat_table(500).to_csv("flat.csv", index=False)
    found = run_script("biostatistician")
    metrics, table = found["ev"].metrics, pd.read_csv("outcomes.csv")
    ours = metrics.query("metric == 'c' and horizon == '300d' and landmark == '0d' and model == 'ehrsequencing'")
    assert found["c"] == pytest.approx(ours.value.iloc[0], abs=5e-4)  # three decimals may leave
    lifelines = pytest.importorskip("lifelines")
    theirs = lifelines.KaplanMeierFitter().fit(table.duration_days, table.cause > 0)
    assert found["curve"](300) == pytest.approx(1 - theirs.predict(300), abs=1e-9)
    assert (tmp_path / "calibration.svg").stat().st_size > 0
