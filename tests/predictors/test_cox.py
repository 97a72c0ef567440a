"""Ridge Cox regression: equal to libraries and to a twin of plain loops, and a ridge that other subjects choose."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from sksurv.linear_model import CoxPHSurvivalAnalysis

from ehrsequencing.predictors import cox
from ehrsequencing.predictors.cox import (
    UNWATCHED_RIDGE_PER_EVENT,
    CoxFit,
    CoxRegression,
    CoxRiskSets,
    CoxRows,
    choose_ridge,
    information,
    partial_log_likelihood,
)
from reference import tied_oracles


def sample(seed: int, *, n: int = 60, features: int = 3, ties: bool = True, delayed: bool = True) -> CoxRows:
    """Rows with a true effect, censoring, and on demand ties and delayed entry."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)) * rng.uniform(0.5, 20, features) + rng.normal(size=features)
    beta = rng.normal(size=features) / x.std(axis=0) / 2
    event, censored = rng.exponential(np.exp(-(x - x.mean(axis=0)) @ beta)), rng.exponential(2.0, n)
    duration = np.minimum(event, censored)
    if ties:
        duration = np.ceil(duration * 6) / 6
    entry = duration * rng.random(n) * rng.integers(0, 2, n) * delayed
    if ties:
        entry = np.floor(entry * 6) / 6  # entries on event times: not yet at risk there
    return CoxRows(x, entry, duration, event <= censored)


def rows_of(x: np.ndarray, duration: np.ndarray, event: np.ndarray) -> CoxRows:
    """Rows without delayed entry."""
    return CoxRows(x, np.zeros(len(x)), duration, event)


def fit_cox(rows: CoxRows, *, ridge: float = 0.0) -> CoxFit:
    return CoxRegression(rows).fit(ridge=ridge)


def plain_log_likelihood(rows: CoxRows, beta: np.ndarray, *, rule: str = "right") -> float:
    """ℓ(β) by its definition, or with one rule broken."""
    score, total = rows.x @ beta, 0.0
    for i in np.flatnonzero(rows.event):
        at_risk = 0.0
        for j in range(len(score)):
            t, entry, end = rows.duration_days[i], rows.entry_days[j], rows.duration_days[j]
            inside = {
                "ends are gone": entry < t < end or i == j,
                "entries are here": entry <= t <= end,
                "no entry": t <= end,
                "the past": entry < t and end <= t,
            }.get(rule, entry < t <= end)
            at_risk += inside * np.exp(score[j])
        total += score[i] - np.log(at_risk)
    return total


def ours(rows: CoxRows, beta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    sets = CoxRiskSets(rows)
    z = rows.x[sets.row]
    return *partial_log_likelihood(z, beta, sets), information(z, beta, sets)


RULES = ("ends are gone", "entries are here", "no entry", "the past")


@pytest.mark.parametrize("seed", range(12))
def test_likelihood_is_that_of_plain_loops(seed: int) -> None:
    rows = sample(seed, n=40)
    beta = np.random.default_rng(seed).normal(size=3) / rows.x.std(axis=0) / 2
    value = ours(rows, beta)[0]
    assert value == pytest.approx(plain_log_likelihood(rows, beta), rel=1e-11)
    for rule in RULES:
        assert abs(value - plain_log_likelihood(rows, beta, rule=rule)) > 1e-6, rule


@pytest.mark.parametrize("seed", range(6))
def test_gradient_and_information_are_finite_differences(seed: int) -> None:
    rows = sample(seed)
    rows = CoxRows(rows.x / rows.x.std(axis=0), rows.entry_days, rows.duration_days, rows.event)
    beta = np.random.default_rng(seed).normal(size=3) / 2
    _, gradient, curvature = ours(rows, beta)
    for f, step in enumerate(np.eye(3) * 1e-5):
        up, down = ours(rows, beta + step), ours(rows, beta - step)
        assert gradient[f] == pytest.approx((up[0] - down[0]) / 2e-5, rel=1e-6, abs=1e-5)
        np.testing.assert_allclose(curvature[f], -(up[1] - down[1]) / 2e-5, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_that_share_a_mean_make_no_curvature_too_small(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every step leads up, and the maximum stays where it was."""
    rows = sample(seed, n=600, ties=False)
    rows = CoxRows(rows.x / rows.x.std(axis=0), rows.entry_days, rows.duration_days, rows.event)
    beta = np.random.default_rng(seed).normal(size=3) / 2
    nearly = ours(rows, beta)[2]
    fit = CoxRegression(rows).fit(ridge=2.0)
    monkeypatch.setattr(cox, "_MOST_TIMES", 10**6)
    exact = ours(rows, beta)[2]
    assert len(CoxRiskSets(rows).times_days) > 100
    assert not np.array_equal(nearly, exact)
    assert np.linalg.eigvalsh(nearly - exact).min() > -1e-4 * np.trace(exact)
    np.testing.assert_allclose(nearly, exact, atol=0.05 * np.trace(exact))
    np.testing.assert_allclose(fit.beta, CoxRegression(rows).fit(ridge=2.0).beta, rtol=0, atol=1e-7)


def test_scikit_survival_finds_the_same_coefficients() -> None:
    """Ties by Breslow, with and without a ridge; 60 data sets."""
    for seed in range(60):
        rows = sample(seed, n=80, features=2, delayed=False)
        z = (rows.x - rows.x.mean(axis=0)) / rows.x.std(axis=0)
        outcome = np.array(list(zip(rows.event, rows.duration_days, strict=True)), dtype=[("e", bool), ("t", float)])
        ridge = (0.0, 0.5, 20.0)[seed % 3]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = CoxPHSurvivalAnalysis(alpha=ridge, ties="breslow", tol=1e-13, n_iter=200).fit(z, outcome)
        fit = fit_cox(rows_of(z, rows.duration_days, rows.event), ridge=ridge)
        np.testing.assert_allclose(fit.beta, theirs.coef_, atol=1e-6)


@pytest.mark.slow
def test_r_s_coxph_finds_the_same_coefficients_with_ties_and_delayed_entry() -> None:
    """Kept numbers; entries, events and censorings share instants."""
    kept = json.loads(tied_oracles.FILE.read_text(encoding="utf-8"))["cox"]
    for seed, coefficients in kept.items():
        rows = CoxRows(*tied_oracles.cox_rows(int(seed)))
        fit = fit_cox(rows)
        np.testing.assert_allclose(fit.beta / fit.scale, coefficients, rtol=0, atol=2e-7)  # where steps stop
        fit = CoxRegression(rows).fit(ridge=0.0, start=fit.beta)  # one with the information of the maximum itself
        np.testing.assert_allclose(fit.beta / fit.scale, coefficients, rtol=0, atol=1e-9)
    assert len(kept) == 10


def test_the_ridge_is_weak_for_signal_and_strong_for_noise() -> None:
    def halves(strength: float) -> tuple[CoxRows, CoxRows]:
        rng = np.random.default_rng(3)
        x = rng.normal(size=(400, 20))
        event, censored = rng.exponential(np.exp(-strength * x[:, 0])), rng.exponential(2.0, 400)
        parts = [
            rows_of(x[h], np.minimum(event, censored)[h], (event <= censored)[h])
            for h in (slice(0, 200), slice(200, None))
        ]
        return parts[0], parts[1]

    def chosen(train: CoxRows, tuning: CoxRows) -> CoxFit:
        sets = CoxRiskSets(tuning)

        def score(fit: CoxFit) -> float:
            z = (tuning.x[sets.row] - fit.mean) / fit.scale
            return float(partial_log_likelihood(z, fit.beta, sets)[0])

        return choose_ridge(train, tuning, score=score)

    signal, noise = chosen(*halves(1.0)), chosen(*halves(0.0))
    assert signal.ridge < 0.1 * noise.ridge
    assert np.abs(noise.beta).max() < 0.05
    assert np.abs(signal.beta[0]) > 0.7
    train, tuning = halves(1.0)
    nobody = CoxRows(tuning.x, tuning.entry_days, tuning.duration_days, np.zeros(200, bool))
    assert chosen(train, nobody).ridge == pytest.approx(UNWATCHED_RIDGE_PER_EVENT * train.event.sum())
    again = fit_cox(train, ridge=signal.ridge)  # a warm start ends where a cold one does
    np.testing.assert_allclose(again.beta, signal.beta, atol=1e-8)
