"""The three commands of a study, on two simulated hospitals."""

import json
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.evaluation.external import read_external
from ehrsequencing.run import Run
from ehrsequencing.simulate import simulate
from helpers.command_line import ehrseq, refused
from helpers.simulate import busy_world


def done(*words: object) -> str:
    result = ehrseq(*words)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def study(sim_run: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack, the results of two sites, and their merge."""
    folder = tmp_path_factory.mktemp("study")
    simulate(folder / "south", subjects=250, seed=9, config=busy_world(outcome_per_year=0.2, truth_futures=8))
    done("study", "pack", sim_run, folder / "pack")
    for name, data in {"north": sim_data, "south": folder / "south"}.items():
        site = folder / f"{name}.json"
        done("study", "run", folder / "pack", data, "--name", name, "--out", site, "--resamples", "20")
    done("study", "merge", folder / "north.json", folder / "south.json", "--out", folder / "merged")
    return folder


def test_a_study_of_two_sites_ends_in_a_page(study: Path) -> None:
    result = json.loads((study / "merged/study.json").read_text())
    shown = [row for row in result["rows"] if row["sites"] == ["north", "south"]]
    assert shown
    assert all(0 <= row["c"] <= 1 and row["n"] > 100 for row in shown)
    page = (study / "merged/study.html").read_text()
    for words in ("north", "south", "How far the sites differ", "<svg", "needs three sites"):
        assert words in page
    assert "<script" not in page


def test_a_site_writes_what_its_rows_add_up_to(study: Path, sim_data: Path) -> None:
    run = Run(study / "pack/run")
    records = read_external(run, sim_data).population.records
    at = np.flatnonzero(records.rows.at_landmark(0.0))
    risk = run.risk(records, horizons_days=np.array(run.task.horizons), start_days=run.task.blanking)[at]
    (entry,) = (x for x in json.loads((study / "north.json").read_text())["landmarks"] if x["landmark_days"] == 0)
    assert entry["cells"]
    for cell in entry["cells"]:
        e, h = cell["cause"], cell["horizon"]
        assert cell["n"] == len(at)
        assert cell["expected"] == pytest.approx(float(risk[:, e, h].astype(np.float64).sum()), abs=1e-6)
        seen = (records.rows.cause[at] == e + 1) & (records.rows.duration_days[at] <= run.task.horizons[h])
        assert cell["events"] == seen.sum()


def test_nothing_of_a_patient_is_in_pack_or_site(study: Path) -> None:
    assert not [p.name for p in (study / "pack").rglob("*") if "metrics" in p.name or "report" in p.name]
    told = json.loads((study / "north.json").read_text())
    assert set(told) == {
        "kind", "format", "site", "run", "task", "causes", "horizons_days", "risk_edges", "landmarks",
    }  # fmt: skip


def test_what_does_not_belong_together_is_refused(study: Path, sim_run: Path, tmp_path: Path) -> None:
    north = study / "north.json"
    out = ("--out", tmp_path / "merged")
    assert "two files are of the site 'north'" in refused("study", "merge", north, north, *out)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**json.loads(north.read_text()), "site": "x", "run": "another"}))
    assert "is of another pack" in refused("study", "merge", north, other, *out)
    other.write_text("{}")
    assert "is not what ehrseq study run writes" in refused("study", "merge", other, *out)
    words = ("study", "run", sim_run, tmp_path, "--name", "a", "--out", tmp_path / "a.json")
    assert "is not a study pack" in refused(*words)
    assert "did not write it" in refused("study", "run", study / "pack", tmp_path, "--name", "a", "--out", other)
