"""Risks of a file and of a run: hazards, risks and likelihoods between its horizons, some times at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.core import arrays
from ehrsequencing.metrics.hazards import cumulative_incidence, hazards_through, horizon_nll
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.from_file import nll_through, risk_through
from ehrsequencing.predictors.predictor import in_parts
from helpers.rows import risk_of_rows


def test_the_curve_through_risks_of_constant_hazards_is_theirs() -> None:
    """An oracle: risks of known piecewise-constant hazards at their own edges give the hazards back."""
    rng = np.random.default_rng(3)
    knots, hazards = np.array([10.0, 30.0, 80.0, 100.0]), rng.uniform(1e-4, 1e-2, (50, 2, 4))
    risk = cumulative_incidence(hazards, knots[:-1].tolist(), knots)
    np.testing.assert_allclose(hazards_through(risk, knots), hazards, rtol=1e-8)
    days = np.array([3.0, 10.0, 55.0, 99.0])
    between = cumulative_incidence(hazards, knots[:-1].tolist(), days)
    np.testing.assert_allclose(risk_through(risk, knots, days), between, rtol=1e-8)
    given = cumulative_incidence(hazards, knots[:-1].tolist(), knots, start_days=5.0)
    np.testing.assert_allclose(hazards_through(given, knots, start_days=5.0), hazards, rtol=1e-8)
    later = cumulative_incidence(hazards, knots[:-1].tolist(), days, start_days=5.0)
    np.testing.assert_allclose(risk_through(given, knots, days, start_days=5.0), later, rtol=1e-8)
    assert not later[:, :, 0].any()


class Labels:
    def __init__(self, duration_days: list[float], cause: list[int]) -> None:
        self.duration_days, self.cause = np.array(duration_days), np.array(cause, dtype=np.int8)
        self.entry_days = np.zeros(len(cause), dtype=np.float32)


def test_a_curve_through_certain_events_stays_defined() -> None:
    """Risks that sum to 1 from a knot on: the curve ends there, and is no NaN on the days after it."""
    risk, knots = np.array([[[0.5, 0.75, 0.75], [0.25, 0.25, 0.25]]]), np.array([10.0, 20.0, 30.0])
    found = risk_through(risk, knots, np.array([10.0, 15.0, 20.0, 25.0, 30.0]))
    np.testing.assert_allclose(found[0, :, [0, 2, 3, 4]].T, risk[0][:, [0, 1, 1, 2]], atol=1e-9)
    assert (np.diff(found, axis=2) >= 0).all()


def test_the_likelihood_by_hand_ends_at_the_last_knot() -> None:
    """One cause, F(10) = 0.2 and F(20) = 0.5: hazards −log(0.8)/10 and −log(0.5/0.8)/10."""
    risk, knots = np.tile([0.2, 0.5], (4, 1, 1)), np.array([10.0, 20.0])
    rows: Any = Labels([5.0, 15.0, 99.0, 99.0], [1, 1, 0, 1])
    first, second = -np.log(0.8) / 10, -np.log(0.5 / 0.8) / 10
    event = [5 * first - np.log(first), 10 * first + 5 * second - np.log(second)]
    np.testing.assert_allclose(nll_through(risk, knots, rows), [*event, -np.log(0.5), -np.log(0.5)])
    labels = {name: getattr(rows, name) for name in ("duration_days", "cause", "entry_days")}
    uncut = horizon_nll(hazards_through(risk, knots), [10.0], **labels)
    assert uncut[3] != pytest.approx(-np.log(0.5))  # a mutant: a curve that goes on beyond what is known
    flat: Any = Labels([15.0], [1])
    assert nll_through(np.array([[[0.2, 0.2]]]), knots, flat) == np.inf
    assert nll_through(np.array([[[0.2, 1.0]]]), knots, Labels([25.0], [0])) == np.inf  # type: ignore[arg-type]


# ---- risks made and compared some prediction times at a time are those of all together -------------------------------


PARTS = (
    "metrics",
    "differences",
    "smooth_calibration",
    "decision",
    "incidence",
    "trajectories",
    "oracle",
    "subgroups",
)


@pytest.mark.parametrize("at_once", [3, 50])
def test_risks_of_parts_are_those_of_all(sim_run: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    run, days = Run(sim_run), np.array([90.0, 365.25])
    records = run.prepared().records(run.task.name, "held_out")
    whole = run.predictor.risk(records, days)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", at_once)
    assert len(list(in_parts(records))) > 2
    np.testing.assert_allclose(run.predictor.risk(records, days), whole, atol=2e-6)  # float32 in other batches
    np.testing.assert_allclose(whole, risk_of_rows(run.model, records, horizons_days=days), atol=2e-6)
