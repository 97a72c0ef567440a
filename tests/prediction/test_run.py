"""What may happen to a finished run's files: the model must be whole, everything else may be edited or deleted."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.core.outputs import MANIFEST, save_manifest
from ehrsequencing.prediction.run import Run, add_to_run, saved_audit
from helpers.command_line import ehrseq

OTHERS = ("metrics.json", "report.html", "audit.json", "history.jsonl")


@pytest.fixture
def run(sim_run: Path, tmp_path: Path) -> Path:
    """A run with every file that commands add; the content of some is not what is tested."""
    run = Path(shutil.copytree(sim_run, tmp_path / "run"))
    add_to_run(run, "audit.json", lambda path: write_json(path, {"fingerprint": Run(run).fingerprint, "checks": []}))
    add_to_run(run, "metrics.json", lambda path: write_json(path, {}))
    add_to_run(run, "report.html", lambda path: path.write_text("page") and None)
    return run


def delete(path: Path) -> None:
    path.unlink()


def predict(run: Path, data: Path, *arguments: object) -> Result:
    return ehrseq("predict", run, data, "--at", "last", "--out", run.parent / "p.parquet", *arguments)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (delete, "is missing"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "has changed since it was written"),
    ],
)
def test_a_run_predicts_without_what_prediction_does_not_need(
    run: Path, sim_data: Path, change: object, what: str
) -> None:
    for name in OTHERS:
        change(run / name)  # type: ignore[operator]
    assert Run(run).altered == dict.fromkeys(sorted(OTHERS), what)
    assert saved_audit(run) is None  # an edited audit is none
    done = predict(run, sim_data)
    assert done.exit_code == 0, done.output
    (note,) = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert all(f"{name} {what}" in note for name in OTHERS)


@pytest.mark.slow
def test_a_run_is_judged_and_audited_without_them(run: Path) -> None:
    for name in OTHERS:
        delete(run / name)
    done = ehrseq("audit", run, "--subjects", 5)
    assert done.exit_code in (0, 1), done.output
    assert not (run / "report.html").exists()
    done = ehrseq("evaluate", run, "--baselines", "none", "evaluation.bootstrap=0")
    assert done.exit_code == 0, done.output
    assert json.loads((run / "metrics.json").read_text())["history"] == []
    assert list(Run(run).altered) == ["history.jsonl"]  # the others were written again


def test_a_report_that_somebody_edited_is_not_drawn_again_by_the_audit(run: Path) -> None:
    (run / "report.html").write_text("my own page")
    done = ehrseq("audit", run, "--subjects", 5)
    assert done.exit_code in (0, 1), done.output
    assert (run / "report.html").read_text() == "my own page"
    assert "report.html has changed since it was written" in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"excluded": 3}, "entry 'excluded' is missing"),
        ({"prepared": None}, "entry 'prepared' is missing"),
        ({"kind": "prepared"}, "is not a run"),
    ],
)
def test_a_hostile_manifest_of_a_run_is_refused(run: Path, change: dict[str, object], says: str) -> None:
    save_manifest(run, read_json(run / MANIFEST) | change)
    with pytest.raises(EhrseqError, match=says):
        Run(run)


def test_a_hostile_manifest_of_a_prepared_set_is_refused(sim_prepared: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sim_prepared, tmp_path / "set"))
    good = read_json(folder / MANIFEST)
    for change in ({"tasks": ["../../other"]}, {"tasks": 3}, {"fixes": []}):
        save_manifest(folder, good | change)
        done = ehrseq("train", folder, "--out", tmp_path / "run")
        assert done.exit_code == 2, done.output
        assert str(folder) in done.stderr
