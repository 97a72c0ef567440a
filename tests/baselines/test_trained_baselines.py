"""Our own architectures as baselines: trained once, into the run, whole or absent."""

from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import StudyConfig, TrainingConfig
from ehrsequencing.evaluation import trained_baselines as trained
from ehrsequencing.evaluation.trained_baselines import (
    TrainedBaseline,
    train_baseline,
)
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared


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
    train(study)
    assert [p.name for p in (tmp_path / "baselines").iterdir()] == ["flat-behrt"]
    assert Run(tmp_path / "baselines" / "flat-behrt").manifest["seed"] == 0
    for changed in ({"seed": 9}, {"epochs": 1, "members": 2}):
        settings = TrainingConfig.model_validate(study.training.model_dump() | changed)
        again = train(study.model_copy(update={"training": settings}))
        assert Run(tmp_path / "baselines" / "flat-behrt").study.training == settings
        assert np.isfinite(again.risk(prepared.records("simulated", "tuning"),
                                      np.arange(3), np.array([365.25]))).all()  # fmt: skip
