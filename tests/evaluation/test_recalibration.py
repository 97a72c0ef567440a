"""Recalibration: a known miscalibration is found and undone, and nothing else changes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from ehrsequencing.models.hazards import horizon_nll
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.recalibration import FEWEST, Labels, fit_recalibration
from ehrsequencing.records.prepared import Prepared
from helpers.known_hazards import EDGES, Floats, world


def nll(eta: Floats, duration: Floats, cause: NDArray[np.int64], entry: Floats) -> float:
    tensors = {"duration_days": duration, "cause": cause, "entry_days": entry}
    return float(
        horizon_nll(torch.from_numpy(eta), EDGES, **{k: torch.from_numpy(v) for k, v in tensors.items()}).sum()
    )


def own_labels(duration: Floats, cause: NDArray[np.int64], entry: Floats) -> Labels:
    """Each row is of another person."""
    return Labels(duration, cause, entry, np.arange(len(cause)))


def test_a_known_miscalibration_is_undone() -> None:
    eta, duration, cause, entry = world(20_000, seed=1)
    a, b = np.array([-1.5, 0.7])[:, None], np.array([0.6, 1.4])[:, None]
    wrong = (eta - a) / b  # so that a + b · wrong is the truth
    found = fit_recalibration(wrong, EDGES, own_labels(duration, cause, entry))
    np.testing.assert_allclose(found.slope, np.repeat(b, 3, axis=1), rtol=0.06)
    fixed = found.intercept + found.slope * wrong
    assert np.abs((fixed - eta).mean(axis=(0, 2))).max() < 0.03
    assert nll(fixed, duration, cause, entry) <= nll(eta, duration, cause, entry) < nll(wrong, duration, cause, entry)
    np.testing.assert_array_equal(found.subjects, np.bincount(cause)[1:])
    right = fit_recalibration(eta, EDGES, own_labels(duration, cause, entry))
    np.testing.assert_allclose(right.slope, 1.0, atol=0.06)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_maximum_of_the_models_own_likelihood(seed: int) -> None:
    """An independent optimiser on `horizon_nll` itself, all causes at once, entries included."""
    eta, duration, cause, entry = world(150, seed=seed)
    eta = 0.5 * eta - 3.0
    found = fit_recalibration(eta, EDGES, own_labels(duration, cause, entry))

    def loss(x: Floats) -> float:
        return nll(x[:2, None] + x[2:, None] * eta, duration, cause, entry)

    own = np.r_[found.intercept[:, 0], found.slope[:, 0]]
    assert np.ptp(found.intercept, axis=1).max() == np.ptp(found.slope, axis=1).max() == 0  # alike in all bins
    assert np.abs(found.trend).max() == 0
    options = {"maxiter": 4000, "xatol": 1e-6}
    other = minimize(loss, np.array([0.0, 0.0, 1.0, 1.0]), method="Nelder-Mead", options=options)
    assert loss(own) <= other.fun + 1e-4
    for k in range(4):  # and a mutant a little beside it is worse
        for step in (-0.05, 0.05):
            assert loss(own + step * np.eye(4)[k]) > loss(own)


def test_few_events_and_equal_hazards_leave_the_slope_alone() -> None:
    eta, duration, cause, entry = world(300, seed=3)
    rare = np.where((cause == 2) & (np.cumsum(cause == 2) >= FEWEST), 0, cause)
    found = fit_recalibration(eta, EDGES, own_labels(duration, rare, entry))
    assert set(found.intercept[1]) == {0.0}
    assert set(found.slope[1]) == {1.0}
    assert found.subjects[1] == FEWEST - 1
    assert found.slope[0, 0] != 1.0
    flat = np.full_like(eta, -5.0)
    found = fit_recalibration(flat, EDGES, own_labels(duration, cause, entry))
    days = (duration - entry).sum()
    for e in range(2):
        assert set(found.slope[e]) == {1.0}
        assert np.exp(found.intercept[e, 0] - 5.0) == pytest.approx((cause == e + 1).sum() / days)


def test_a_recalibrated_predictor_is_a_predictor(sim_run: Path, sim_prepared: Path) -> None:
    run, records = Run(sim_run), Prepared(sim_prepared).records("simulated", "held_out")
    plain, a, b = run.predictor.all_hazards(records), np.array([-1.0, 2.0]), np.array([0.5, 1.5])
    changed = run.predictor.recalibrated(a, b)
    hazards = changed.all_hazards(records)
    np.testing.assert_allclose(np.log(hazards), a[:, None] + b[:, None] * np.log(plain))
    inner, last = changed.edges_days, changed.edges_days[-1] + 100.0
    spans = np.diff([0.0, *inner, last])
    survival = np.exp(-np.einsum("rek,k->r", hazards, spans))
    np.testing.assert_allclose(changed.risk(records, [last]).sum(axis=(1, 2)) + survival, 1.0, atol=1e-6)
    twice = changed.recalibrated(-a / b, 1 / b)
    np.testing.assert_allclose(twice.all_hazards(records), plain)
