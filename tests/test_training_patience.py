"""The early stop: patience counts epochs without a better tuning NLL, but not while the learning rate warms up."""

import itertools
import json
from pathlib import Path

import pytest

from ehrsequencing.config import load_study
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.loop import Trainer
from test_training import TINY


@pytest.mark.parametrize(("warm_epochs", "epochs"), [(0, 3), (2.5, 4), (5.5, 7)])
def test_patience_starts_when_the_warm_up_is_over(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_epochs: float, epochs: int
) -> None:
    """With a tuning NLL that only rises, epoch 1 is the best; two stale epochs, those of the warm-up aside, end it."""
    rising = itertools.count()
    monkeypatch.setattr(Trainer, "tuning_nll", lambda self, model: float(next(rising)))
    store = Prepared(sim_prepared)
    sample = Trainer(store, "simulated", tmp_path / "sample", study=load_study(None, list(TINY)))
    steps = len(sample.loader.shuffled(0, seed=0, visit_budget=sample.budget))
    settings = [*TINY, "training.epochs=9", "training.patience=2", f"training.warmup_steps={int(warm_epochs * steps)}"]
    Trainer(store, "simulated", tmp_path / "run", study=load_study(None, settings)).fit()
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert len(history) == epochs
    assert [row["best"] for row in history] == [True] + [False] * (epochs - 1)


@pytest.mark.parametrize(
    ("nlls", "min_gain", "best"),
    [
        ((2.0, 1.5, 1.4996, 1.4992), 0.0, 4),
        ((2.0, 1.5, 1.4996, 1.4996), 5e-4, 2),  # a plateau: the earlier of equals
        ((2.0, 1.5, 1.4996, 1.4992), 5e-4, 4),  # small steps add up
    ],
)
def test_of_equal_epochs_the_earlier_is_kept(
    sim_prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nlls: tuple[float, ...],
    min_gain: float,
    best: int,
) -> None:
    given = iter(nlls)
    monkeypatch.setattr(Trainer, "tuning_nll", lambda self, model: next(given))
    settings = [*TINY, f"training.epochs={len(nlls)}", f"training.min_gain={min_gain}"]
    Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=load_study(None, settings)).fit()
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert max(row["epoch"] for row in rows if row["best"]) == best
