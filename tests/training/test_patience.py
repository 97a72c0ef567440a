"""The early stop: patience counts epochs without a better tuning NLL, but not while the learning rate warms up."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import load_study
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.inference import nll_of_rows
from ehrsequencing.training.train import HazardsObjective, Trainer
from helpers.training import TINY


@pytest.mark.parametrize(("warm_epochs", "epochs"), [(0, 3), (2.5, 4)])
def test_patience_starts_when_the_warm_up_is_over(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_epochs: float, epochs: int
) -> None:
    """With a tuning NLL that only rises, epoch 1 is the best; two stale epochs, those of the warm-up aside, end it."""
    rising = itertools.count()
    monkeypatch.setattr(HazardsObjective, "tuning_nll", lambda self, model, *others: float(next(rising)))
    store = Prepared(sim_prepared)
    sample = Trainer(store, "simulated", tmp_path / "sample", study=load_study(None, list(TINY)))
    steps = len(sample.loader.shuffled(0, seed=0, visit_budget=sample.budget))
    settings = [*TINY, "training.epochs=9", "training.patience=2", f"training.warmup_steps={int(warm_epochs * steps)}"]
    Trainer(store, "simulated", tmp_path / "run", study=load_study(None, settings)).fit()
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert len(history) == epochs
    assert [row["best"] for row in history] == [True] + [False] * (epochs - 1)


@pytest.mark.parametrize(
    ("nlls", "best"),
    [((2.0, 1.5, 1.4996, 1.4992), 4), ((2.0, 1.5, 1.5, 1.6), 2)],  # of equals the earlier
)
def test_of_equal_epochs_the_earlier_is_kept(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nlls: tuple[float, ...], best: int
) -> None:
    given = iter(nlls)
    monkeypatch.setattr(HazardsObjective, "tuning_nll", lambda self, model, *others: next(given))
    settings = [*TINY, f"training.epochs={len(nlls)}", "training.recalibration=0"]
    Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=load_study(None, settings)).fit()
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert max(row["epoch"] for row in rows if row["best"]) == best


def test_the_early_stop_sees_every_prediction_time_or_landmarks_alone(sim_prepared: Path, tmp_path: Path) -> None:
    store = Prepared(sim_prepared)
    rows, found = store.rows("simulated", "tuning"), {}
    for where in ("visits", "landmarks"):
        settings = [*TINY, "training.epochs=1", f"training.early_stop={where}", "training.recalibration=0"]
        trainer = Trainer(store, "simulated", tmp_path / where, study=load_study(None, settings))
        trainer.fit()
        (row,) = (json.loads(line) for line in (tmp_path / where / "history.jsonl").read_text().splitlines())
        found[where] = row["tuning_nll"]
        nll = nll_of_rows(Run(tmp_path / where).model, store.records("simulated", "tuning"))
    landmarks = np.any([rows.at_landmark(days) for days in store.task("simulated").landmarks], axis=0)
    assert 0 < landmarks.sum() < len(rows)
    assert found == {"visits": pytest.approx(nll.mean(), 1e-5), "landmarks": pytest.approx(nll[landmarks].mean(), 1e-5)}
    assert abs(nll.mean() - nll[landmarks].mean()) > 1e-3
