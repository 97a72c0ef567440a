"""The three commands of a study, on two simulated hospitals."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.core.files import read_json, sha256
from ehrsequencing.core.outputs import MANIFEST, save_manifest
from ehrsequencing.evaluation.external import read_external
from ehrsequencing.prediction.run import Run
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
        "kind", "format", "site", "split", "seen_in_training", "run", "task", "causes", "horizons_days", "risk_edges",
        "landmarks",
    }  # fmt: skip


def test_what_does_not_belong_together_is_refused(study: Path, sim_run: Path, tmp_path: Path) -> None:
    north = study / "north.json"
    out = ("--out", tmp_path / "merged")
    assert "two files are of the site 'north'" in refused("study", "merge", north, north, *out)
    other = tmp_path / "other.json"
    copy = json.loads(north.read_text()) | {"site": "copy"}
    for entry in copy["landmarks"]:  # run again, with other resamples and rounding
        for cell in entry["cells"]:
            cell |= {"logit_c_se": 0.1, "log_oe_se": 0.1, "expected": cell["expected"] * (1 + 1e-9)}
    other.write_text(json.dumps(copy))
    assert "its patients would count twice" in refused("study", "merge", north, other, *out)
    assert not (tmp_path / "merged").exists()
    other.write_text(json.dumps({**json.loads(north.read_text()), "site": "x", "run": "another"}))
    assert "is of another pack" in refused("study", "merge", north, other, *out)
    other.write_text("{}")
    assert "is not what ehrseq study run writes" in refused("study", "merge", other, *out)
    words = ("study", "run", sim_run, tmp_path, "--name", "a", "--out", tmp_path / "a.json")
    assert "is not a study pack" in refused(*words)
    assert "did not write it" in refused("study", "run", study / "pack", tmp_path, "--name", "a", "--out", other)


def test_subjects_of_the_training_are_a_warning_and_can_be_left_out(
    study: Path, sim_data: Path, sim_run: Path, tmp_path: Path
) -> None:
    assert json.loads((study / "north.json").read_text())["seen_in_training"]
    merged = json.loads((study / "merged/study.json").read_text())
    assert len(merged["warnings"]) == 2, "both simulations number their subjects from 1 on"
    assert "Subjects of north may have been in the model's training" in merged["warnings"][0]
    assert "may have been in the model" in (study / "merged/study.html").read_text()
    words = ("study", "run", study / "pack", sim_data, "--name", "north", "--resamples", "20", "--out")
    again = ehrseq(*words, tmp_path / "all.json")
    assert "subject ids also occur in the model's training data" in again.stderr
    assert "--split held_out" in again.stderr
    part = ehrseq(*words, tmp_path / "part.json", "--split", "held_out")
    assert part.exit_code == 0, part.output
    assert "training" not in part.stderr
    found = json.loads((tmp_path / "part.json").read_text())
    assert (found["split"], found["seen_in_training"]) == ("held_out", False)
    held_out = Run(sim_run).prepared().records("simulated", "held_out")
    assert found["landmarks"][0]["subjects"] == f"{len(held_out.at_landmark(0.0))}"
    assert "is no choice" in refused(*words, tmp_path / "no.json", "--split", "tuning")


def test_a_pack_knows_its_own_training_records_on_another_machine(study: Path, sim_data: Path, tmp_path: Path) -> None:
    """Without the prepared set there is only the digest of all training subjects."""
    pack = Path(shutil.copytree(study / "pack", tmp_path / "pack"))
    for folder in (pack / "run", pack):
        facts = read_json(folder / MANIFEST)
        if "prepared" in facts:
            facts["prepared"] = str(tmp_path / "gone")
        if "run/manifest.json" in facts["files"]:
            facts["files"]["run/manifest.json"] = sha256(pack / "run" / MANIFEST)
        save_manifest(folder, facts)
    for name, data, warned in (("north", sim_data, True), ("south", study / "south", False)):
        words = ("study", "run", pack, data, "--name", name, "--resamples", "20", "--out", tmp_path / f"{name}.json")
        done = ehrseq(*words)
        assert done.exit_code == 0, done.output
        assert ("was trained on subjects of these very records" in done.stderr) == warned
        assert json.loads((tmp_path / f"{name}.json").read_text())["seen_in_training"] == warned
