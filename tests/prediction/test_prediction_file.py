"""The file of `predict` holds the very risks that `evaluate` judges, for every kind of task and model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.version import __version__
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.evaluate import Evaluation
from ehrsequencing.evaluation.population import Population
from ehrsequencing.prediction.predict import Request, predict
from ehrsequencing.prediction.prediction_file import PredictionWriter, read_predictions
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.rows import risk_of_rows
from helpers.training import NetworkTrainer as Trainer

TINY = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "training.min_steps=2")
Array = npt.NDArray[Any]


def changed(task: TaskConfig, **settings: Any) -> TaskConfig:
    return TaskConfig.model_validate({**task.model_dump(exclude_none=True), "main": None, **settings})


TASKS: dict[str, Callable[[TaskConfig], TaskConfig]] = {
    "plain": lambda t: changed(t, name="plain", outcome={**t.outcome, **t.competing}, competing={}),
    "blanking": lambda t: changed(t, name="blanking", blanking="90d", horizons=["120d", "1y"]),
    "landmarks": lambda t: changed(t, name="landmarks", landmarks=["0d", "1y"], blanking="30d"),
    "recurrent": lambda t: changed(t, name="recurrent", recurrent=True, blanking="10d"),
    "visit": lambda t: changed(t, name="visit", competing={}),
}
SETTINGS = {"visit": ("model.head=visit",), "landmarks": ("training.members=2",)}


@pytest.fixture(scope="module")
def store(sim_data: Path, sim_task: TaskConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("judged") / "set"
    prepare(sim_data, out, study=load_study(None, TINY), tasks=[make(sim_task) for make in TASKS.values()])
    return out


@pytest.fixture(scope="module")
def runs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("runs") / name
            study: StudyConfig = load_study(None, [*TINY, *SETTINGS.get(name, ())])
            Trainer(Prepared(store), name, made[name], study=study).fit()
        return made[name]

    return run


def in_file(path: Path, judged: Population, task: TaskConfig, column: str = "risk") -> Array:
    """(R, causes, horizons) of a column of the file, at the prediction times that are judged."""
    table = pq.read_table(path)
    keys = zip(
        table["subject_id"].to_pylist(),
        table["prediction_time"].cast(pa.int64()).to_pylist(),
        table["cause"].to_pylist(),
        table["horizon_days"].to_pylist(),
        strict=True,
    )
    found = dict(zip(keys, table[column].to_pylist(), strict=True))
    who = judged.records.subject_id.tolist()
    places = list(zip(who, np.asarray(judged.records.rows.prediction_us).tolist(), strict=True))
    return np.array([[[found[(*p, c, h)] for h in task.horizons] for c in task.causes] for p in places])


@pytest.mark.parametrize("name", ["plain", "blanking", "landmarks", "recurrent"])
def test_the_file_holds_the_risks_that_are_judged(
    runs: Callable[[str], Path], store: Path, sim_data: Path, tmp_path: Path, name: str
) -> None:
    run = Run(runs(name))
    judged = Population.of_split(Prepared(store), run.task, "held_out")
    predict(run.folder, sim_data, tmp_path / "p.parquet")
    risk = in_file(tmp_path / "p.parquet", judged, run.task)
    assert len(risk) == len(judged.records) > 100
    # what every metric of `evaluate` is computed from
    evaluation = Evaluation(run, judged, prepared=None, settings=EvaluationConfig(baselines="none", bootstrap=0))
    column = np.searchsorted(evaluation.knots, evaluation.horizons)
    np.testing.assert_allclose(risk, evaluation.risks(evaluation.predictors)[OURS][:, :, column], atol=2e-6)
    table = pq.read_table(tmp_path / "p.parquet")
    assert set(table["start_days"].to_pylist()) == {run.task.blanking}
    assert table.schema.names[9:] == (["low", "high"] if name == "landmarks" else [])
    notes = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    made_by = {"run": name, "fingerprint": run.fingerprint, "version": __version__}
    assert {key: notes.get(f"ehrsequencing.{key}") for key in made_by} == made_by
    assert len(notes["ehrsequencing.data"]) == 16
    if name == "landmarks":
        # the band is from the least to the greatest risk of two members, and holds the risk itself
        given: dict[str, Any] = {"horizons_days": run.task.horizons, "start_days": run.task.blanking}
        of_members = np.stack([risk_of_rows(member, judged.records, **given) for member in run.model.members])
        assert len(of_members) == 2
        low, high = (in_file(tmp_path / "p.parquet", judged, run.task, name) for name in ("low", "high"))
        np.testing.assert_allclose(low, np.minimum(of_members.min(axis=0), risk), atol=2e-6)
        np.testing.assert_allclose(high, np.maximum(of_members.max(axis=0), risk), atol=2e-6)
        assert np.all((low <= risk) & (risk <= high))
        assert np.mean(high - low) > 1e-4
    if name == "blanking":  # which moves the risks: those without it are not the file's
        free = risk_of_rows(run.model, judged.records, horizons_days=run.task.horizons)
        assert np.abs(free - risk).max() > 0.01


@pytest.mark.parametrize(
    ("name", "days", "says"),
    [
        ("visit", 90.0, "has no horizons in days"),
        ("blanking", 45.0, "within the task's blanking of 90d"),
        ("blanking", 90.0, "within the task's blanking of 90d"),
    ],
)
def test_a_horizon_without_an_answer_is_refused(
    runs: Callable[[str], Path], sim_data: Path, tmp_path: Path, name: str, days: float, says: str
) -> None:
    with pytest.raises(EhrseqError, match=says):
        predict(runs(name), sim_data, tmp_path / "p.parquet", Request(horizons_days=[days, 300.0]))
    assert not (tmp_path / "p.parquet").exists()


def test_the_visit_heads_risk_has_no_days(
    runs: Callable[[str], Path], store: Path, sim_data: Path, tmp_path: Path
) -> None:
    run = Run(runs("visit"))
    predict(run.folder, sim_data, tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet")
    assert set(table["horizon_days"].to_pylist()) == {None}
    records = Prepared(store).records(run.task.name, "held_out")
    hazard = risk_of_rows(run.model, records, horizons_days=[])[:, 0, 0]
    keys = zip(table["subject_id"].to_pylist(), table["prediction_time"].cast(pa.int64()).to_pylist(), strict=True)
    found = dict(zip(keys, table["risk"].to_pylist(), strict=True))
    for r in np.flatnonzero(~np.isnan(hazard))[::5]:
        key = int(records.subject_id[r]), int(records.rows.prediction_us[r])
        assert found[key] == pytest.approx(float(hazard[r]), abs=2e-6)


def test_a_code_that_is_a_formula_is_quoted_in_csv_and_read_back(tmp_path: Path) -> None:
    names = ["=1+1", "@A", "DX//-1"]
    ones = np.zeros(3, dtype=np.int64)
    for suffix in (".csv", ".parquet"):
        file = tmp_path / f"p{suffix}"
        writer = PredictionWriter(names, [1.0], 0.0, 0)
        with writer.opened(file, {}, overwrite=False):
            writer.write_rows([ones, ones], np.arange(3), 0 * ones, ones.astype(np.float32))
        assert read_predictions(file).causes == names
    assert [line.split(",")[2] for line in (tmp_path / "p.csv").read_text().splitlines()[1:]] == [
        '"\'=1+1"',
        '"\'@A"',
        '"DX//-1"',
    ]
