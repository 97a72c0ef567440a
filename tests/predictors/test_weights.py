"""Weights of the blend: the likelihood's own optimum, its formulas, and hazards that never turn negative."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from ehrsequencing.metrics.hazards import exposure, horizon_nll
from ehrsequencing.predictors.blend import BlendWeights, blended_hazards, fit_weights
from ehrsequencing.predictors.recalibration import Labels

EDGES = (10.0, 30.0, 60.0, 100.0, 200.0)


def drawn(entry: float = 0.0, n: int = 1500, seed: int = 0) -> tuple[list[np.ndarray], Labels]:
    """Three models of two causes, each the truth with noise of its own; durations up to after the last edge."""
    rng = np.random.default_rng(seed)
    truth = np.exp(rng.normal(-5, 0.7, (n, 2, 1)) + rng.normal(0, 0.3, (1, 2, 6)))
    parts = [truth * np.exp(rng.normal(0, sd, (n, 2, 1)) + rng.normal(0, 0.1, (1, 2, 6))) for sd in (0.5, 0.4, 0.9)]
    time, censored = rng.exponential(1 / truth[:, :, 0]), rng.uniform(20, 400, n)
    duration = np.minimum(time.min(axis=1), censored)
    cause = np.where(time.min(axis=1) < censored, time.argmin(axis=1) + 1, 0)
    keep = duration > entry
    parts, duration, cause = [part[keep] for part in parts], duration[keep], cause[keep]
    return parts, Labels(duration, cause, np.full(len(duration), entry), np.arange(len(duration)) // 2)


def nll(parts: list[np.ndarray], rows: Labels, weights: np.ndarray) -> float:
    """The mean likelihood of blended hazards, by the package's own formula."""
    labels = {"duration_days": rows.duration_days, "cause": rows.cause, "entry_days": rows.entry_days}
    return float(horizon_nll(blended_hazards(parts, weights, EDGES), EDGES, **labels).mean())


@pytest.mark.parametrize("entry", [0.0, 15.0])
def test_weights_are_those_of_an_independent_optimiser(entry: float) -> None:
    parts, rows = drawn(entry)
    parts = parts[:2]
    found = fit_weights(parts, EDGES, rows, prior_sd=1e9)
    np.testing.assert_allclose(found.value.sum(axis=1), 1.0, rtol=1e-12)

    def loss(first: np.ndarray) -> float:
        return nll(parts, rows, np.stack([first, 1 - first], axis=1))

    theirs = minimize(loss, np.full(2, 0.5), method="L-BFGS-B", bounds=[(0, 1)] * 2, options={"ftol": 1e-15})
    np.testing.assert_allclose(found.value[:, 0], theirs.x, atol=1e-3)
    assert loss(found.value[:, 0]) <= theirs.fun + 1e-9


def test_the_interval_is_that_of_resampled_people() -> None:
    parts, rows = drawn(n=1500)
    parts = parts[:2]
    found, rng = fit_weights(parts, EDGES, rows, prior_sd=1e9), np.random.default_rng(0)
    people = [np.flatnonzero(rows.subject == who) for who in np.unique(rows.subject)]
    again = []
    for _ in range(60):
        some = np.concatenate([people[k] for k in rng.integers(0, len(people), len(people))])
        drawn_parts = [part[some] for part in parts]
        again.append(fit_weights(drawn_parts, EDGES, rows.take(some), prior_sd=1e9).value[:, 0])
    reach = (found.high - found.low)[:, 0] / (2 * 1.96)
    inside = (found.low[:, 0] > 0) & (found.high[:, 0] < 1)
    assert inside.any()
    np.testing.assert_allclose(np.std(again, axis=0)[inside], reach[inside], rtol=0.35)


def test_a_useless_model_gets_no_weight_and_a_cause_without_events_equal_ones() -> None:
    parts, rows = drawn()
    shuffled = parts[1][np.random.default_rng(1).permutation(len(rows.cause))] * 30
    rows = replace(rows, cause=np.where(rows.cause == 2, 0, rows.cause))
    found = fit_weights([parts[0], shuffled], EDGES, rows)
    assert found.value[0, 1] < 0.1
    np.testing.assert_allclose(found.value[1], 1 / 2)
    alike = fit_weights([parts[0], parts[0]], EDGES, rows)  # nothing tells one from the other
    np.testing.assert_allclose(alike.value, 1 / 2)


def test_chance_draws_weights_towards_one_half_and_many_subjects_do_not() -> None:
    shares = []
    for n in (120, 1500):
        parts, rows = drawn(n=n)
        best, found = (fit_weights(parts[:2], EDGES, rows, prior_sd=sd) for sd in (1e9, 0.2))
        assert (found.low <= found.value).all()
        assert (found.value <= found.high).all()
        shares.append((found.value[0, 0] - 0.5) / (best.value[0, 0] - 0.5))
    assert 0.0 < shares[0] < shares[1] < 1.0
    assert shares[1] > 0.5


def test_weights_of_three_are_those_of_one_and_of_two_that_share_the_rest() -> None:
    parts, _ = drawn(n=200)
    first, rest = (BlendWeights(*[np.array([[w, 1 - w]] * 2)] * 3) for w in (0.3, 0.6))
    stacked = blended_hazards(parts[1:], rest.value, EDGES)
    in_two = blended_hazards([parts[0], stacked], first.value, EDGES)
    np.testing.assert_allclose(blended_hazards(parts, first.before(rest).value, EDGES), in_two, rtol=1e-9)


def test_blended_hazards_lie_between_and_are_those_of_a_single_part() -> None:
    parts, _ = drawn(n=200)
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
