"""Training on cut records: the same as on whole ones, and resumable to the same bytes."""

from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.batches.reach import Reach
from helpers.long_records import history, train, weights


@pytest.mark.slow
def test_a_run_with_cut_records_goes_on_to_the_same_bytes(sim_prepared: Path, cut_run: Path, tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        train(sim_prepared, tmp_path / "run", "training.checkpoint_steps=45", stop_at=70)
    train(sim_prepared, tmp_path / "run", "training.checkpoint_steps=45", resume=True)
    assert weights(tmp_path / "run") == weights(cut_run)
    assert history(tmp_path / "run") == history(cut_run)


@pytest.mark.slow
def test_training_on_parts_is_training_on_the_whole(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("model.dropout=0.0", "model.history_dropout=0.0", "training.learning_rate=1e-4")
    assert max(train(sim_prepared, tmp_path / "parts", *settings)) > 2
    monkeypatch.setattr(Reach, "of", lambda config: None)
    assert max(train(sim_prepared, tmp_path / "whole", *settings)) == 1
    np.testing.assert_allclose(history(tmp_path / "parts"), history(tmp_path / "whole"), rtol=1e-4)
