"""What the tests of this folder share: a prepared set, and a file of a run's risks to score."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig
from ehrsequencing.evaluation.score import score
from ehrsequencing.prediction.predict import predict
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.score import KEY, Score
from helpers.training import NetworkTrainer as Trainer


@pytest.fixture(scope="session")
def sim_prepared(
    sim_data: Path, sim_task: TaskConfig, tiny_study: StudyConfig, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The set of the root's conftest with two horizons, so that an evaluation is made in half the time."""
    out = tmp_path_factory.mktemp("evaluated") / "set"
    asked = sim_task.model_copy(update={"landmarks": (0.0, 365.25), "horizons": (90.0, 365.25), "main": None})
    prepare(sim_data, out, study=tiny_study, tasks=[asked])
    return out


@pytest.fixture(scope="session")
def sim_run(sim_prepared: Path, tiny_study: StudyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "run"
    Trainer(Prepared(sim_prepared), "simulated", out, study=tiny_study).fit()
    return out


@pytest.fixture(scope="session")
def task(sim_prepared: Path) -> TaskConfig:
    return Prepared(sim_prepared).task("simulated")


@pytest.fixture(scope="session")
def small_task(task: TaskConfig) -> TaskConfig:
    """One landmark and horizon, so that a page is drawn fast."""
    return task.model_copy(update={"landmarks": (0.0,), "horizons": task.horizons[1:2], "main": None})


@pytest.fixture(scope="session")
def task_file(small_task: TaskConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "task.yaml"
    path.write_text(yaml.safe_dump(small_task.model_dump(mode="json", exclude_none=True)))
    return path


@pytest.fixture(scope="session")
def predicted(sim_run: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("predicted") / "ours.parquet"
    predict(sim_run, sim_data, out)
    return out


@pytest.fixture(scope="session")
def frame(predicted: Path, sim_prepared: Path) -> pd.DataFrame:
    """The predictions for the held-out cohort, as a table to change."""
    cohort = pd.read_parquet(sim_prepared / "tasks" / "simulated" / "cohort.parquet")
    held_out = cohort[cohort["split"] == "held_out"][KEY[:2]]
    return pd.read_parquet(predicted).merge(held_out, on=KEY[:2])


@pytest.fixture
def scored(sim_data: Path, sim_prepared: Path, task: TaskConfig, tmp_path: Path) -> Score:
    """Score a table, without baselines and resamples."""

    def run(table: pd.DataFrame, **options: Any) -> dict[str, Any]:
        path = tmp_path / "p.parquet"
        table.to_parquet(path)
        quick = StudyConfig(evaluation=EvaluationConfig(baselines="none", bootstrap=0))
        given = {"study": quick, "prepared": sim_prepared, "overwrite": True, **options}
        return score(path, sim_data, given.pop("task", task), **given)[0]

    return run
