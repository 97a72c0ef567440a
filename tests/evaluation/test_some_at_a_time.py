"""Risks made and compared some prediction times at a time are those of all together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core import arrays
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.risk_source import RunRisks
from ehrsequencing.prediction.run import Run
from ehrsequencing.training import inference as answers


def numbers(found: Any) -> Any:
    """Every number of a result, in its place."""
    if isinstance(found, dict):
        return {name: numbers(value) for name, value in found.items()}
    if isinstance(found, list):
        return [numbers(one) for one in found]
    return pytest.approx(found, rel=1e-9, abs=1e-12, nan_ok=True) if isinstance(found, float) else found


@pytest.mark.parametrize("at_once", [3, 50])
def test_risks_of_parts_are_those_of_all_to_the_bit(
    sim_run: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(answers, "VISIT_BUDGET", 200)  # several batches
    run, days = Run(sim_run), np.array([90.0, 365.25])
    records = run.prepared().records(run.task.name, "held_out")
    whole = run.risk(records, horizons_days=days).astype(np.float64)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", at_once)
    assert len(run.answers.batches(records)[0]) > 2
    assert (RunRisks(run).risk(records, days, start_days=0.0) == whole).all()
    assert (RunRisks(run).risk(records, days) == whole).all()


@pytest.mark.slow
def test_an_evaluation_in_parts_and_files_has_the_same_numbers(sim_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EvaluationConfig(baselines="fast", bootstrap=10, explained_subjects=0)
    whole = evaluate(sim_run, settings=settings)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 40)
    monkeypatch.setattr(arrays, "LARGE_BYTES", 8)
    parts = evaluate(sim_run, settings=settings)
    assert parts.keys() == whole.keys()
    for name in (
        "metrics",
        "differences",
        "calibration",
        "decision",
        "incidence",
        "trajectories",
        "oracle",
        "subgroups",
    ):
        assert parts[name] == numbers(whole[name]), name
