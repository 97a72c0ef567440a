"""Pages of an earlier evaluation never stand beside the numbers of a new one, whatever happens in between."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation import results
from ehrsequencing.prediction.run import Run, add_to_run
from helpers.storage import everything

QUICK: dict[str, Any] = {"bootstrap": 0, "baselines": "none", "progress": False}

OTHER = QUICK | {"bootstrap": 4}


@pytest.fixture(scope="module")
def evaluated(sim_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a report, and pages of outcomes whose content is not what is tested."""
    run = Path(shutil.copytree(sim_run, tmp_path_factory.mktemp("evaluated") / "run"))
    eh.evaluate(run, **QUICK)
    for name in ("outcome-metrics.json", "outcomes.html"):
        add_to_run(run, name, lambda path: path.write_text("old") and None)
    assert all((run / name).is_file() for name in results.DRAWN)
    return run


@pytest.fixture
def run(evaluated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(evaluated, tmp_path / "run"))


def pages_of(run: Path) -> list[str]:
    return [name for name in results.DRAWN if (run / name).exists()]


def test_a_stop_while_numbers_are_written_leaves_no_old_report(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(results, "write_shareable", stop)
        with pytest.raises(KeyboardInterrupt):
            eh.evaluate(run, **OTHER)
    assert pages_of(run) == []
    eh.evaluate(run, **OTHER)  # what the stop has left is still ours
    assert pages_of(run) == ["report.html", "report-details.html"]
    assert not Run(run).altered


def test_a_page_that_somebody_changed_is_neither_removed_nor_replaced(run: Path) -> None:
    for name in ("report.html", "outcomes.html"):
        own = (run / name).read_text()
        (run / name).write_text("mine")
        with pytest.raises(EhrseqError, match="has changed since it was written"):
            eh.evaluate(run, report=False, **OTHER)
        assert (run / name).read_text() == "mine"
        assert json.loads((run / "metrics.json").read_text())["split"] == "held_out"
        (run / name).write_text(own)


def test_another_split_has_a_place_of_its_own(run: Path, tmp_path: Path) -> None:
    answers = tmp_path / "tripod.yaml"
    answers.write_text("protocol: the trial's registry\n")
    eh.evaluate(run, **QUICK, tripod=str(answers))
    before = everything(run)
    tuning = eh.evaluate(run, split="tuning", **QUICK)
    place = run / "evaluations" / "tuning"
    assert tuning.folder == place
    assert json.loads((place / "metrics.json").read_text())["split"] == "tuning"
    assert (place / "report.html").is_file()
    after = everything(run)
    changed = {name for name in before if after[name] != before[name] and not name.startswith("evaluations/tuning")}
    assert changed == {"manifest.json"}
    held_out = eh.load(run).evaluation
    assert held_out.result["split"] == "held_out"
    again = eh.evaluate(run, **QUICK)
    assert again.result["tripod"] == {"protocol": "the trial's registry"}, "what people answered stays"
    assert not Run(run).altered


def test_until_the_held_out_are_evaluated_the_newest_other_split_is_shown(sim_run: Path, tmp_path: Path) -> None:
    without = shutil.ignore_patterns("metrics*.json", "report*.html", "evaluations")  # of tests before
    run = Path(shutil.copytree(sim_run, tmp_path / "run", ignore=without))
    kept = {}
    for split in ("train", "tuning", "held_out"):
        eh.evaluate(run, split=split, report=False, **QUICK)
        shown = eh.load(run).evaluation
        assert shown.result["split"] == split
        file = run / "evaluations" / split / "metrics.json"
        kept |= {file: file.read_bytes()} if split != "held_out" else {}
        if split == "tuning":  # as 2.0 left it
            file.unlink()
    assert {file: file.read_bytes() for file in kept} == kept
    (run / "metrics.json").write_text("edited")
    eh.evaluate(run, split="tuning", report=False, **QUICK)
    assert (run / "metrics.json").read_text() == "edited"
