"""`ehrseq update`: a run for another hospital that every other command takes; refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.core.made_of import made_of
from ehrsequencing.prediction.run import UPDATE
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.people import PEOPLE
from ehrsequencing.records.prepared import REFERENCE
from ehrsequencing.records.survey import Part, survey
from ehrsequencing.simulate import simulate
from helpers.command_line import ehrseq, refused
from helpers.simulate import busy_world
from helpers.storage import everything

QUICK = {"bootstrap": 0, "baselines": "none", "report": False, "progress": False}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hospital of the same world, where the outcome's hazard is three times as high."""
    folder = tmp_path_factory.mktemp("other") / "meds"
    simulate(folder, subjects=450, seed=9, config=busy_world(outcome_per_year=0.45, truth_futures=4))
    return folder


@pytest.fixture(scope="module")
def updated(sim_run: Path, other: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("updated") / "run"
    done = ehrseq("update", sim_run, other, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["result"] == eh.load(out).manifest["update"]
    return out


@pytest.mark.slow
def test_the_new_run_is_one_that_every_command_takes(updated: Path, other: Path, sim_run: Path, tmp_path: Path) -> None:
    run = eh.load(updated)
    facts = run.manifest["update"]
    assert facts["of"] == eh.load(sim_run).fingerprint
    assert facts["judged"]["how"] == "held-out third"
    assert run.fingerprint != facts["of"]
    few = ("evaluation.bootstrap=0", "evaluation.baselines=none")
    assert facts["outcome"]["level"] > 0.4  # log 3 is 1.1, and the event rate saturates
    assert abs(np.log(facts["judged"]["after"]["outcome"]["oe"])) < 0.2
    assert facts["judged"]["before"]["outcome"]["oe"] > 1.4
    subject = int(eh.load(updated).predict(other, progress=False).subject_id.iloc[0])
    for words in (
        ("predict", updated, other, "--out", tmp_path / "r.csv", "--strict"),
        ("drift", updated, other),
        ("explain", updated, other, "--subject", subject),
        ("evaluate", updated, "--data", other, "--out", tmp_path / "e", *few),
        ("explore", updated, other, "--out", tmp_path / "e.html"),
        ("export", updated, "--out", tmp_path / "shared"),
    ):
        done = ehrseq(*words)
        assert done.exit_code == 0, done.output
    assert "updated for" in (tmp_path / "shared/README.md").read_text()
    ours, copy = (eh.load(folder).predict(other, progress=False) for folder in (updated, tmp_path / "shared"))
    np.testing.assert_array_equal(ours.iloc[:, 2], copy.iloc[:, 2])


def test_it_knows_for_whom_it_is(updated: Path, other: Path, sim_run: Path, tmp_path: Path) -> None:
    """What would judge it on the people of the run that it was made of is refused, and its own are named."""
    manifest, parent = eh.load(updated).manifest, eh.load(sim_run).manifest
    assert {REFERENCE, PEOPLE} <= manifest["files"].keys(), "the manifest that names the run lists them"
    assert manifest["made_of"] != parent["made_of"]
    assert manifest["made_of"]["records"] == made_of(records=survey(MedsReader(other), Part).days.content)["records"]
    before = everything(updated)
    for words in (
        ("evaluate", updated),
        ("evaluate", updated, "--splits", "2"),
        ("evaluate", updated, "--prepared", parent["prepared"]),
        ("audit", updated),
        ("compare", updated, sim_run),
    ):
        said = refused(*words)
        assert "was updated for other people" in said, words
        assert f"ehrseq evaluate {updated} --data DATA" in said, words
    assert everything(updated) == before
    found = eh.evaluate(updated, data=other, out=tmp_path / "own", **QUICK)  # type: ignore[arg-type]
    assert any("updated with these very people" in text for text in found.result["warnings"])
    assert any("updated for other people than those that baselines" in text for text in found.result["warnings"])


def test_a_second_update_starts_from_the_first(updated: Path, other: Path, tmp_path: Path) -> None:
    again = eh.update(eh.load(updated), other, out=tmp_path / "again", progress=False)
    once = eh.load(updated)
    assert again.manifest["update"]["of"] == once.fingerprint
    if all(again.manifest["update"][cause]["method"] == "none" for cause in again.task.causes):
        assert read_json(again.folder / UPDATE) == read_json(once.folder / UPDATE)


def test_too_few_events_and_another_question_are_refused(sim_run: Path, other: Path, tmp_path: Path) -> None:
    rows = eh.read_meds(other)
    few = rows[rows.subject_id.isin(rows.subject_id.unique()[:9])]
    with pytest.raises(EhrseqError, match="fewer than 11 people have"):
        eh.update(sim_run, few, out=tmp_path / "few", progress=False)
    task = tmp_path / "task.yaml"
    text = (other / "task.yaml").read_text()
    task.write_text(
        "\n".join(
            "horizons: [3d]" if line.startswith("horizons:") else line
            for line in text.splitlines()
            if not line.startswith("main:")
        )
    )
    assert "has other horizons than the run" in refused(
        "update", sim_run, other, "--task", task, "--out", tmp_path / "x"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    assert "is there already" in refused("update", sim_run, other, "--out", tmp_path / "mine")
    assert "is not a folder" in refused("update", sim_run, tmp_path / "nowhere", "--out", tmp_path / "x")
    assert not list(tmp_path.glob("few*"))
