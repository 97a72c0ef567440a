"""The scripts of examples/scripts run as written: an analyst's, a researcher's, a biostatistician's, a paper's."""

import ast
import json
import os
import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ehrsequencing as eh
from ehrsequencing.api.compare import RunComparison
from ehrsequencing.config.base import visit_encoder
from ehrsequencing.core.errors import EhrseqError
from helpers.flat_frames import flat_table
from helpers.omop import hospital, write_csv
from reference.r_oracles import risk_rows

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"


def run_script(name: str) -> dict[str, object]:
    path = SCRIPTS / f"{name}.py"
    assert 10 <= len(path.read_text(encoding="utf-8").splitlines()) <= 45
    return runpy.run_path(str(path), run_name="__main__")


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_researcher_trains_a_loss_of_her_own(here: Path) -> None:
    found = run_script("own_loss")
    comparison = found["comparison"]
    assert isinstance(comparison, RunComparison)
    assert comparison.by_settings["c", "count"].tolist() == [2, 2, 1]
    assert "with the loss ranked" in Path("runs/ranked-0/report.html").read_text(encoding="utf-8")
    assert found["vectors"].shape == (400, 16)


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


def test_any_models_are_compared_on_plain_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = risk_rows().rename(columns={"time": "days", "a": "cox", "b": "boosted"})
    rows.to_csv("risks.csv", index=False)
    found = run_script("compare_risks")["found"]
    auc = found.metrics.query("metric == 'auc'").value
    assert found.differences.query("metric == 'auc'").value.iloc[0] == pytest.approx(auc.iloc[0] - auc.iloc[1])
    told = capsys.readouterr().out
    assert "\\begin{tabular}" in told
    assert "threshold" in told
    assert (tmp_path / "decision.svg").stat().st_size > 0


@pytest.mark.slow
def test_a_paper_gets_its_tables_and_figures(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (real_data / "pbc2_meds").is_dir():
        pytest.skip("needs pbc2_meds in ../shared/data")
    monkeypatch.chdir(tmp_path)
    Path("meds").symlink_to(real_data / "pbc2_meds")
    for name in ("tasks/pbc2.yaml", "tripod.yaml"):
        text = (SCRIPTS.parent / name).read_text(encoding="utf-8")
        Path(Path(name).name.replace("pbc2", "task")).write_text(
            text.replace("ethics:", "ethics: committee 7"), encoding="utf-8"
        )
    found = run_script("paper")
    assert {path.suffix for path in Path("paper").iterdir()} == {".csv", ".pdf", ".tex"}
    ratios = found["ratios"]
    assert isinstance(ratios, pd.DataFrame)
    assert ratios.hazard_ratio["log LAB//serBilir"] == pytest.approx(4.33, abs=0.01)  # as R's survival has it
    assert "committee 7" in Path("study/run/report.html").read_text(encoding="utf-8")
    assert "D-penicil" in Path("study/run/walk/site/pooled.html").read_text(encoding="utf-8")


# ---- the notebooks of examples/: they run from the first cell to the last; outputs are kept where data is needed -----


EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["kernelspec"]["name"]) == (4, "python3")
    return list(book["cells"])


def needs(path: Path) -> str | None:
    """The data set that a notebook needs, which is not in the repository."""
    found: str | None = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("needs")
    return found


def test_there_are_seven_and_the_page_lists_them() -> None:
    page = (EXAMPLES.parent / "docs" / "python.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 7
    assert all(path.name in page for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_only_where_data_is_needed(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        ast.parse("".join(cell["source"]))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert bool(outputs) == (needs(path) is not None)
    assert "error" not in {output["output_type"] for output in outputs}
    assert not [
        name for output in outputs for name in output.get("data", {}) if "subject_id" in str(output["data"][name])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(os.environ.get("EHRSEQ_DATA", EXAMPLES.parents[1] / "shared" / "data"))
    if (name := needs(path)) is not None and not (data / name).is_dir():
        pytest.skip(f"needs the third-party data at {data / name}")
    monkeypatch.setenv("EHRSEQ_DATA", str(data))
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for key, value in {"SUBJECTS": "300", "EPOCHS": "2", "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(key, value)
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    kinds = {kind for output in shown for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds
