"""The reference records of a run: kept by training, compared once wherever the run is opened for new records."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import ehrsequencing as eh
from ehrsequencing.config import TaskConfig, load_study
from ehrsequencing.core.files import read_json, sha256
from ehrsequencing.core.outputs import MANIFEST, save_manifest
from ehrsequencing.prediction import reference
from ehrsequencing.prediction.predict import Request, predict
from ehrsequencing.prediction.reference import check_reference, reference_risks
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import BIRTH
from ehrsequencing.records.people import PEOPLE
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import ARRAYS, REFERENCE
from ehrsequencing.reporting.share import share_run
from ehrsequencing.serve import app
from helpers.training import train

QUICK = {"epochs": 1, "blend": False, "distillation": 0}
SMALL = {"dim": 16, "heads": 2, "layers": 1}


@pytest.fixture
def run(sim_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of this test's own, and a cache of its own."""
    monkeypatch.setenv("EHRSEQ_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(sim_run, tmp_path / "run"))


def edit(run: Path, change: Callable[[dict[str, object]], object], *, listed: bool = False) -> None:
    """Change the kept records; with `listed` the manifest goes along, as in the run of a stranger."""
    content = json.loads((run / REFERENCE).read_text())
    change(content)
    (run / REFERENCE).write_text(json.dumps(content))
    if listed:
        manifest = read_json(run / MANIFEST)
        save_manifest(run, {**manifest, "files": manifest["files"] | {REFERENCE: sha256(run / REFERENCE)}})


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose risks were computed."""
    calls: list[Path] = []
    true_one = reference._moved

    def moved(run: Run, path: Path) -> float | None:
        calls.append(path)
        return true_one(run, path)

    monkeypatch.setattr(reference, "_moved", moved)
    return calls


def raise_risk(content: dict[str, object]) -> None:
    content["risk"][3][0][0] += 0.002  # type: ignore[index]


# ---- what training keeps ---------------------------------------------------------------------------------------------


def test_training_keeps_made_up_records_and_their_risks(sim_prepared: Path, tmp_path: Path) -> None:
    made = eh.fit(sim_prepared, out=tmp_path / "run", model=SMALL, training=QUICK, seed=0, progress=False)
    assert REFERENCE in made.manifest["files"]
    assert REFERENCE not in made.manifest["required"]
    kept = read_json(made.folder / REFERENCE)
    assert len(set(kept["subject"])) == 20
    assert kept["code"].count(BIRTH) == 20
    unknown = set(kept["code"]) - set(Run(made.folder).vocabulary.codes) - {BIRTH}
    assert len(unknown) == 1, "one code that the run does not know"
    risk = np.array(kept["risk"])
    assert risk.shape[1:] == (2, len(made.task.horizons))
    assert risk.min() > 0
    assert risk.std(axis=0).min() > 0
    assert check_reference(Run(made.folder)) == []
    before = (made.folder / REFERENCE).read_bytes()
    eh.fit(sim_prepared, out=tmp_path / "run", model=SMALL, training=QUICK, seed=0, progress=False)
    assert (made.folder / REFERENCE).read_bytes() == before


@pytest.mark.parametrize("left", [{PEOPLE}, set()])
def test_a_prepared_set_of_an_earlier_version_gives_a_run_without_them(
    sim_prepared: Path, tmp_path: Path, left: set[str]
) -> None:
    older = Path(shutil.copytree(sim_prepared, tmp_path / "set"))
    shutil.rmtree(older / ARRAYS)
    for name in {PEOPLE, REFERENCE} - left:
        (older / name).unlink()
    manifest = read_json(older / MANIFEST)
    files = {name: digest for name, digest in manifest["files"].items() if (older / name).is_file()}
    save_manifest(older, {**manifest, "files": files})
    train(older, tmp_path / "run", "training.epochs=1")
    assert {REFERENCE, PEOPLE} & read_json(tmp_path / "run" / MANIFEST)["files"].keys() == left
    (why,) = check_reference(Run(tmp_path / "run"))
    assert "reference.json is missing" in why


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("training.network=false", "training.blend=true"), ("training.members=2",)])
def test_every_kind_of_run_has_them(sim_prepared: Path, tmp_path: Path, settings: tuple[str, ...]) -> None:
    train(sim_prepared, tmp_path / "run", "training.epochs=1", *settings)
    require_kept(tmp_path / "run")


def test_the_visit_head_has_them_at_ends_of_visits(sim_data: Path, sim_task: TaskConfig, tmp_path: Path) -> None:
    alone = sim_task.model_copy(update={"competing": {}})
    prepare(sim_data, tmp_path / "set", study=load_study(None, []), tasks=[alone])
    train(tmp_path / "set", tmp_path / "run", "training.epochs=1", "model.head=visit")
    require_kept(tmp_path / "run")


def require_kept(run: Path) -> None:
    """A run keeps the records, gives their very risks again, and warns where one is another."""
    kept = read_json(run / REFERENCE)
    assert np.isfinite(np.array(kept["risk"])).all()
    assert reference_risks(Run(run), kept).round(6).tolist() == kept["risk"]
    assert check_reference(Run(run)) == []
    edit(run, raise_risk)
    assert len(check_reference(Run(run))) == 1


def test_a_shared_copy_has_them_unless_somebody_edited_them(run: Path, tmp_path: Path) -> None:
    share_run(run, tmp_path / "shared")
    assert (tmp_path / "shared" / REFERENCE).read_bytes() == (run / REFERENCE).read_bytes()
    assert REFERENCE not in read_json(tmp_path / "shared" / MANIFEST)["required"]
    assert check_reference(Run(tmp_path / "shared")) == []
    edit(tmp_path / "shared", raise_risk)
    assert len(check_reference(Run(tmp_path / "shared"))) == 1
    edit(run, raise_risk)
    share_run(run, tmp_path / "edited")
    assert not (tmp_path / "edited" / REFERENCE).exists()


# ---- where they are compared -----------------------------------------------------------------------------------------


def test_an_edited_risk_warns(run: Path, sim_data: Path, tmp_path: Path) -> None:
    """In a stranger's run, whose manifest goes along; else the file has changed, and that is said."""
    slightly = lambda content: content["risk"][3][0].__setitem__(0, content["risk"][3][0][0] + 0.0005)  # noqa: E731
    edit(run, slightly, listed=True)
    assert check_reference(Run(run)) == []
    edit(run, raise_risk)
    assert "reference.json has changed since it was written" in check_reference(Run(run))[0]
    edit(run, lambda content: None, listed=True)
    (text,) = check_reference(Run(run))
    assert "up to 0.0025" in text
    said: list[str] = []
    predict(run, sim_data, tmp_path / "risks.parquet", Request(at="last", say=said.append))
    assert said[0].startswith("warning: ")
    assert text in said[0]


def test_a_server_warns_before_it_answers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Running:
        def run(self, **_: object) -> None:
            said.append("listening")

    said: list[str] = []
    monkeypatch.setattr(app, "server", lambda *_: Running())
    app.serve(run, port=0, say=said.append)
    assert said == ["listening"]
    edit(run, raise_risk, listed=True)
    app.serve(run, port=0, say=said.append)
    assert said[1].startswith("warning: the risks of the run's made-up reference records differ")
    assert said[2:] == ["listening"]


def test_they_are_compared_once_for_each_version_and_file(
    run: Path, computed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert check_reference(Run(run)) == []
    assert len(computed) == 1
    monkeypatch.setattr(reference, "__version__", "99.0")
    check_reference(Run(run))
    monkeypatch.setattr(torch, "__version__", "99.0")
    check_reference(Run(run))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    check_reference(Run(run))
    assert len(computed) == 4
    edit(run, raise_risk, listed=True)
    for _ in range(2):
        assert len(check_reference(Run(run))) == 1, "a failure is remembered, and warns every time"
    assert len(computed) == 5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "spoilt",
    [
        {"risk": [[1]]},
        {"risk": "x"},
        {"risk": float("nan")},
        {"code": [1]},
        {"code": [["A"]] * 320},
        {"day": [1e30] * 320},
        {"day": ["x"] * 320},
        {"subject": [10**30] * 320},
        {"subject": []},
        {"value": None},
    ],
)
def test_damaged_records_of_a_stranger_warn(run: Path, spoilt: dict[str, object]) -> None:
    edit(run, lambda content: content.update(spoilt), listed=True)
    assert "reference.json is damaged" in check_reference(Run(run))[0]
    (run / REFERENCE).write_text("[")
    assert len(check_reference(Run(run))) == 1
