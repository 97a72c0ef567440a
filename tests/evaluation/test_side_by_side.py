"""`compare` prints what `evaluate` prints of the same people, and the recalibration too."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.api.compare import compare
from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.external import validate
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.disclosure import as_real
from helpers.training import NetworkTrainer as Trainer

SETTINGS = EvaluationConfig(baselines="none", bootstrap=0)
KEY = ("landmark_days", "cause", "horizon_days", "metric")


def at_landmarks(rows: Any, model: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {
        tuple(row[k] for k in KEY): {k: v for k, v in row.items() if k != "model"}
        for row in rows
        if row["model"] == model and row["landmark_days"] is not None
    }


def test_compared_runs_have_the_numbers_that_evaluate_gives_of_people(
    sim_data: Path, sim_task: TaskConfig, tiny_study: StudyConfig, tmp_path: Path
) -> None:
    """Blanking, indices of their own clock, and another grid and vocabulary of the second run."""
    asked = {"index": {"code": sim_task.index.code, "which": "every"}, "blanking": 20.0, "recurrent": True}
    task = TaskConfig.model_validate(
        {**sim_task.model_dump(exclude_none=True), **asked, "horizons": ["90d", "1y"], "main": None}
    )
    for name, fewest, bins in (("one", 1, 12), ("two", 30, 7)):
        study = tiny_study.model_copy(
            update={
                "vocabulary": tiny_study.vocabulary.model_copy(update={"min_subjects": fewest}),
                "training": tiny_study.training.model_copy(update={"grid_bins": bins, "blend": False}),
            }
        )
        prepare(sim_data, tmp_path / f"{name}-set", study=study, tasks=[task])
        Trainer(Prepared(as_real(tmp_path / f"{name}-set")), task.name, tmp_path / name, study=study).fit()
    found = compare([tmp_path / "one", tmp_path / "two"], bootstrap=0, progress=False)
    hidden = 0
    for name in ("one", "two"):
        evaluate(tmp_path / name, settings=SETTINGS)
        told = read_result(tmp_path / name)
        theirs, ours = at_landmarks(told["metrics"], "ehrsequencing"), at_landmarks(found.result["metrics"], name)
        assert {key[3] for key in ours} >= {"c", "oe", "nll", "ibs"}
        for key, row in ours.items():
            assert row == pytest.approx(theirs[key], abs=1.1e-3, nan_ok=True), key
        hidden += sum(bool(row.get("hidden")) for row in ours.values())
        assert found.subjects == told["data"]["subjects"]["held_out"]
    assert hidden
    assert found.table().frame.index.tolist() == ["one", "two"]


def test_training_people_are_counted_as_people_beside_a_simulation(
    sim_run: Path, sim_data: Path, tmp_path: Path
) -> None:
    """Whose counts they are decides, not which data is evaluated."""
    run = as_real(Path(shutil.copytree(sim_run, tmp_path / "run")))
    result, folder = validate(run, sim_data, out=tmp_path / "out", settings=SETTINGS)
    assert result["data"]["simulated"] is False
    told = json.loads((folder / "metrics.json").read_text())
    exact, shown = result["events"]["train"], told["events"]["train"]
    assert shown != exact
    assert all(count == "<11" or count % 5 == 0 for count in shown.values())
    assert told["trajectories"] == []
