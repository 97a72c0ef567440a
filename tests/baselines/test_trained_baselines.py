"""Our own architectures as baselines: trained once, into the run, whole or absent."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.baselines.base import Baseline
from ehrsequencing.baselines.fit import fit_baselines
from ehrsequencing.config import StudyConfig, TaskConfig, TrainingConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation import trained_baselines as trained
from ehrsequencing.evaluation.trained_baselines import (
    FLAT,
    TrainedBaseline,
    train_baseline,
)
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.inference import nll_of_rows, risk_of_rows
from helpers.baselines import given_to


def rivals(run: Path, prepared: Prepared) -> dict[str, Callable[[], Baseline]] | None:
    return trained.rivals_of(Run(run), prepared)


@pytest.mark.slow
def test_all_trains_flat_once_into_the_run(
    sim_run: Path,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    tuning: TaskRecords,
) -> None:
    common = given_to(task, prepared, train, tuning)
    with pytest.raises(EhrseqError, match="need the run's own data"):
        fit_baselines("all", common)
    made = {one.model.name: one for one in fit_baselines("all", common, more=rivals(sim_run, prepared))}
    assert set(made) == {
        "boosted visits",
        "competing-risk forest",
        FLAT,
        "landmark Cox",
        "age + sex",
        "Aalen–Johansen",
    }
    Run(sim_run)  # still a valid run
    assert sorted(p.name for p in (sim_run / "baselines").iterdir()) == ["flat-behrt"]
    days, rows = np.array([90.0, 365.25]), tuning.rows
    order = np.random.default_rng(0).permutation(len(rows))[:40]
    model = made[FLAT].model
    assert isinstance(model, TrainedBaseline)
    np.testing.assert_allclose(model.nll(tuning, order), nll_of_rows(model.run.model, tuning)[order], atol=1e-5)
    assert model.nll(tuning, order[:0]).shape == (0,)
    every = risk_of_rows(model.run.model, tuning, horizons_days=days)
    np.testing.assert_allclose(model.risk(tuning, order, days), every[order], atol=1e-6)
    given = model.risk(tuning, order, days, start_days=90.0)
    expected = (every[:, :, 1] - every[:, :, 0]) / (1 - every[:, :, 0].sum(axis=1, keepdims=True))
    np.testing.assert_allclose(given[:, :, 1], expected[order], atol=1e-5)
    assert (given[:, :, 0] == 0).all()
    assert model.risk(tuning, order[:0], days).shape == (0, 2, 2)
    manifests = {p: p.stat().st_mtime_ns for p in sim_run.glob("baselines/*/manifest.json")}
    again = {one.model.name: one for one in fit_baselines("all", common, more=rivals(sim_run, prepared))}
    assert {p: p.stat().st_mtime_ns for p in manifests} == manifests  # taken, not trained again
    both = (kept[FLAT].model.risk(tuning, order, days) for kept in (made, again))
    np.testing.assert_array_equal(*both)


def test_a_trained_baseline_is_whole_or_absent_and_follows_the_settings(
    sim_run: Path, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Run(sim_run).study

    def train(changed: StudyConfig) -> TrainedBaseline:
        return train_baseline(prepared=prepared, task_name="simulated", study=changed, run_folder=tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(trained.Trainer, "write_run", fail)
        with pytest.raises(RuntimeError):
            train(study)
    assert not list(tmp_path.rglob("*.safetensors"))
    (tmp_path / "baselines" / f".tmp-{'0' * 16}").mkdir(parents=True)  # a killed process leaves these
    (tmp_path / "baselines" / f".tmp-{'0' * 16}.lock").touch()
    first = train(study)
    assert [p.name for p in (tmp_path / "baselines").iterdir()] == ["flat-behrt"]
    assert first.run.manifest["seed"] == 0
    for changed in ({"seed": 9}, {"epochs": 1}, {"members": 2}):
        settings = TrainingConfig.model_validate(study.training.model_dump() | changed)
        again = train(study.model_copy(update={"training": settings}))
        assert again.run.study.training == settings
        assert np.isfinite(again.risk(prepared.records("simulated", "tuning"),
                                      np.arange(3), np.array([365.25]))).all()  # fmt: skip
