"""Weights of the blend: the likelihood's own optimum, its formulas, and hazards that never turn negative."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import OptimizeResult, minimize
from scipy.special import softmax

from ehrsequencing.predictors.weights import BlendRows, blended_hazards, fit_weights, points_at
from ehrsequencing.records.hazards import exposure, horizon_nll

EDGES = (10.0, 30.0, 60.0, 100.0, 200.0)


def drawn(entry: float = 0.0, n: int = 1500, seed: int = 0) -> tuple[list[np.ndarray], BlendRows]:
    """Three models of two causes, each the truth with noise of its own; durations up to after the last edge."""
    rng = np.random.default_rng(seed)
    truth = np.exp(rng.normal(-5, 0.7, (n, 2, 1)) + rng.normal(0, 0.3, (1, 2, 6)))
    parts = [truth * np.exp(rng.normal(0, sd, (n, 2, 1)) + rng.normal(0, 0.1, (1, 2, 6))) for sd in (0.5, 0.4, 0.9)]
    time, censored = rng.exponential(1 / truth[:, :, 0]), rng.uniform(20, 400, n)
    duration = np.minimum(time.min(axis=1), censored)
    cause = np.where(time.min(axis=1) < censored, time.argmin(axis=1) + 1, 0)
    keep = duration > entry
    parts, duration, cause = [part[keep] for part in parts], duration[keep], cause[keep]
    enters = np.full(len(duration), entry)
    at_duration, at_entry = points_at(parts, EDGES, duration), points_at(parts, EDGES, enters)
    subject = np.arange(len(duration)) // 2
    return parts, BlendRows(duration, enters, cause, subject, at_duration, at_entry, EDGES)


def nll(parts: list[np.ndarray], rows: BlendRows, weights: np.ndarray) -> float:
    """The mean likelihood of blended hazards, by the package's own formula."""
    labels = {"duration_days": rows.duration_days, "cause": rows.cause, "entry_days": rows.entry_days}
    return float(horizon_nll(blended_hazards(parts, weights, EDGES), EDGES, **labels).mean())


@pytest.mark.parametrize("entry", [0.0, 15.0])
def test_weights_are_those_of_an_independent_optimiser(entry: float) -> None:
    parts, rows = drawn(entry)
    found = fit_weights(rows, n_causes=2, resamples=0)
    np.testing.assert_allclose(found.value.sum(axis=1), 1.0, rtol=1e-12)
    assert (found.value >= 0).all()
    own = sum(rows.mean(e + 1, found.value[e], np.ones(len(rows)))[0] for e in range(2))
    assert own == pytest.approx(nll(parts, rows, found.value), rel=1e-10)
    theirs = minimize(
        lambda v: nll(parts, rows, softmax(v.reshape(2, 3), axis=1)), np.zeros(6), method="BFGS", jac="3-point",
        options={"gtol": 1e-8},
    )  # fmt: skip
    np.testing.assert_allclose(found.value, softmax(theirs.x.reshape(2, 3), axis=1), atol=1e-4)


def test_a_fit_that_fails_keeps_where_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> OptimizeResult:
        return OptimizeResult(x=np.full(3, np.nan), fun=np.nan, success=False)

    monkeypatch.setattr("ehrsequencing.predictors.weights.minimize", broken)
    found = fit_weights(drawn()[1], n_causes=2, resamples=0)
    np.testing.assert_array_equal(found.value, np.full((2, 3), 1 / 3))


def test_a_useless_model_gets_no_weight_and_a_cause_without_events_equal_ones() -> None:
    parts, rows = drawn()
    shuffled = parts[2][np.random.default_rng(1).permutation(len(rows))] * 30
    parts = [parts[0], parts[1], shuffled]
    rows = replace(
        rows, at_duration=points_at(parts, EDGES, rows.duration_days),
        at_entry=points_at(parts, EDGES, rows.entry_days), cause=np.where(rows.cause == 2, 0, rows.cause),
    )  # fmt: skip
    found = fit_weights(rows, n_causes=2, resamples=0)
    assert found.value[0, 2] == pytest.approx(0.0, abs=1e-9)
    assert found.value[0, 0] > 0.2
    np.testing.assert_allclose(found.value[1], 1 / 3)


def test_chance_draws_weights_towards_equal_ones_and_many_subjects_do_not() -> None:
    shares = []
    for n in (120, 1500):
        rows = drawn(n=n)[1]
        best, found = (fit_weights(rows, n_causes=1, resamples=count) for count in (0, 40))
        np.testing.assert_allclose(found.value.sum(axis=1), 1.0, rtol=1e-12)
        assert (found.low <= found.value).all()
        assert (found.value <= found.high).all()
        assert ((found.high - found.low) > 0.02).all()
        way = (found.value[0] - 1 / 3) / (best.value[0] - 1 / 3)  # the same part of the way for each weight
        np.testing.assert_allclose(way, way[0], rtol=1e-9)
        shares.append(way[0])
    assert 0.2 < shares[0] < shares[1] < 1.0
    assert shares[1] > 0.8


def test_blended_hazards_lie_between_and_are_those_of_a_single_part() -> None:
    parts, rows = drawn(n=200)
    for m in range(3):
        alone = np.tile(np.eye(3)[m], (2, 1))
        np.testing.assert_allclose(blended_hazards(parts, alone, EDGES), parts[m], rtol=1e-10)
    weights = np.array([[0.2, 0.3, 0.5], [0.0, 0.9, 0.1]])
    blended = blended_hazards(parts, weights, EDGES)
    assert (blended > 0).all()
    days = np.array([5.0, 10.0, 77.0, 200.0])
    until = exposure(EDGES, np.zeros(4), days)  # (days, bins)
    every = np.stack([np.einsum("rek,dk->red", part, until) for part in parts])
    mine = np.einsum("rek,dk->red", blended, until)
    assert (mine <= every.max(axis=0) * (1 + 1e-9)).all()
    at_edges = np.exp(np.einsum("em,mred->red", weights, np.log(every[..., [1, 3]])))
    np.testing.assert_allclose(mine[..., [1, 3]], at_edges, rtol=1e-10)
    assert len(rows)
