"""The scripts of examples/scripts run as written: an analyst's, a researcher's and a biostatistician's."""

import runpy
from pathlib import Path

import pandas as pd
import pytest

import ehrsequencing as eh
from ehrsequencing.config.parts import visit_encoder
from ehrsequencing.core.errors import EhrseqError

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"


def run_script(name: str) -> dict[str, object]:
    return runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")


def test_the_analyst_gets_a_list_and_a_picture(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_script("analyst")
    told = capsys.readouterr().out
    assert "task hf" in told
    assert "144 train" in told
    listed = pd.read_csv(here / "highest.csv")
    risk = found["risk"]
    assert isinstance(risk, pd.DataFrame)
    assert listed.subject_id.tolist() == risk.sort_values("hf_1y", ascending=False).subject_id.head(10).tolist()
    assert (here / "first.png").read_bytes().startswith(b"\x89PNG")


def test_the_researcher_trains_an_encoder(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(visit_encoder, "_classes", dict(visit_encoder._classes))
    run = run_script("researcher")["run"]
    assert run.model.config.visit_encoder == "saturated"
    assert capsys.readouterr().out.count("\n") == 2
    with pytest.raises(EhrseqError, match=r"code of visit_encoder=saturated may have changed since .*resume=True"):
        eh.fit("prepared", out="runs/saturated", model={"visit_encoder": "saturated"})


def test_the_biostatistician_finds_the_same_numbers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_script("biostatistician")
    assert found["c"] == pytest.approx(found["ours"].value.iloc[0], abs=1e-9)
    lifelines = pytest.importorskip("lifelines")
    table = pd.read_csv(here / "outcomes.csv")
    theirs = lifelines.AalenJohansenFitter(calculate_variance=False)
    theirs.fit(table.duration_days, table.cause, event_of_interest=1)
    by_1y = theirs.cumulative_density_.loc[:365.25].iloc[-1, 0]
    assert found["observed"][0] == pytest.approx(by_1y, abs=1e-9)
    assert (here / "calibration.svg").stat().st_size > 0
