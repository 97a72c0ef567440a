"""Ridge Cox regression: equal to libraries and to a twin of plain loops, and a Cox model of censoring."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter
from sksurv.linear_model import CoxPHSurvivalAnalysis

from ehrsequencing.baselines import cox
from ehrsequencing.baselines.cox import (
    UNWATCHED_RIDGE_PER_EVENT,
    CoxFit,
    CoxRegression,
    CoxRiskSets,
    CoxRows,
    choose_ridge,
    cox_incidence,
    partial_log_likelihood,
)
from ehrsequencing.baselines.landmark_cox import censoring_rows, fit_censoring_cox
from ehrsequencing.metrics.censoring import RowCensoring, StepFunction, censoring_survival
from ehrsequencing.metrics.discrimination import wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows
from helpers.metric_table import metric_table


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


def cumulative_hazard(fit: CoxFit, x: np.ndarray, days: np.ndarray) -> np.ndarray:
    return np.multiply.outer(np.exp(fit.log_hazard(x)), fit.baseline.at(days))


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
    return partial_log_likelihood(rows.x[sets.row], beta, sets)


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
    _, gradient, information = ours(rows, beta)
    for f, step in enumerate(np.eye(3) * 1e-5):
        up, down = ours(rows, beta + step), ours(rows, beta - step)
        assert gradient[f] == pytest.approx((up[0] - down[0]) / 2e-5, rel=1e-6, abs=1e-5)
        np.testing.assert_allclose(information[f], -(up[1] - down[1]) / 2e-5, rtol=1e-6, atol=1e-5)


def test_scikit_survival_finds_the_same_coefficients_and_hazards() -> None:
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
        hazard = theirs.cum_baseline_hazard_
        np.testing.assert_allclose(fit.baseline.at(hazard.x), hazard.y, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_lifelines_finds_the_same_coefficients_with_delayed_entry() -> None:
    """Without ties, which lifelines takes by Efron's rule; its baseline hazard ignores entries, ours does not."""
    for seed in range(100):
        delayed = seed % 2 == 0
        rows = sample(seed, ties=False, delayed=delayed, n=100)
        columns = {"T": rows.duration_days, "E": rows.event, "entry": rows.entry_days}
        frame = pd.DataFrame(columns | {f"x{f}": rows.x[:, f] for f in range(3)})
        fitter = CoxPHFitter()
        fitter.fit(frame, "T", "E", entry_col="entry", fit_options={"precision": 1e-12})
        fit = fit_cox(rows)
        np.testing.assert_allclose(fit.beta / fit.scale, fitter.params_.to_numpy(), rtol=1e-6, atol=1e-6)
        if delayed:
            continue
        times = fitter.baseline_cumulative_hazard_.index.to_numpy()
        theirs = fitter.predict_cumulative_hazard(frame.iloc[:4], times=times).to_numpy().T
        np.testing.assert_allclose(cumulative_hazard(fit, rows.x[:4], times), theirs, rtol=1e-5, atol=1e-8)


@given(seed=st.integers(0, 10_000), ridge=st.sampled_from([0.3, 10.0]))
@settings(max_examples=25, deadline=None)
def test_expected_events_are_those_observed(seed: int, ridge: float) -> None:
    rows = sample(seed)
    if not rows.event.any():
        return
    fit = fit_cox(rows, ridge=ridge)
    hazard = fit.baseline.at(rows.duration_days) - fit.baseline.at(rows.entry_days)
    expected = np.exp(fit.log_hazard(rows.x)) @ hazard
    assert expected == pytest.approx((rows.event & (rows.entry_days < rows.duration_days)).sum(), rel=1e-8)


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

    signal, noise = choose_ridge(*halves(1.0)), choose_ridge(*halves(0.0))
    assert signal.ridge < 0.1 * noise.ridge
    assert np.abs(noise.beta).max() < 0.05
    assert np.abs(signal.beta[0]) > 0.7
    train, tuning = halves(1.0)
    nobody = CoxRows(tuning.x, tuning.entry_days, tuning.duration_days, np.zeros(200, bool))
    assert choose_ridge(train, nobody).ridge == pytest.approx(UNWATCHED_RIDGE_PER_EVENT * train.event.sum())
    again = fit_cox(train, ridge=signal.ridge)  # a warm start ends where a cold one does
    np.testing.assert_allclose(again.beta, signal.beta, atol=1e-8)


def two_causes(seed: int) -> tuple[list[CoxFit], np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = sample(seed, n=80)
    cause = rows.event * rng.integers(1, 3, 80)
    return [
        fit_cox(CoxRows(rows.x, rows.entry_days, rows.duration_days, cause == e), ridge=2.0) for e in (1, 2)
    ], rows.x[:10]


@pytest.mark.parametrize("seed", range(5))
def test_incidence_is_that_of_plain_loops_and_sums_to_one(seed: int) -> None:
    fits, x = two_causes(seed)
    times = np.unique(np.concatenate([fit.baseline.times_days for fit in fits]))
    days = np.r_[times[3], times[3] - 1e-9, 0.0, times[-1] + 5, times[6]]
    found = cox_incidence(fits, x, days)
    for row in range(len(x)):
        factors = [float(np.exp(fit.log_hazard(x[row : row + 1]))[0]) for fit in fits]
        for h, day in enumerate(days):
            survival, incidence = 1.0, np.zeros(2)
            for t in times[times <= day]:
                jumps = np.array([
                    factor * (fit.baseline.at(t) - fit.baseline.before(t))
                    for fit, factor in zip(fits, factors, strict=True)
                ])  # fmt: skip
                incidence += survival * jumps / jumps.sum() * -np.expm1(-jumps.sum())
                survival *= np.exp(-jumps.sum())
            np.testing.assert_allclose(found[row, :, h], incidence, atol=1e-12)
    hazard = sum(cumulative_hazard(fit, x, days) for fit in fits)
    np.testing.assert_allclose(found.sum(axis=1), -np.expm1(-hazard), atol=1e-12)  # S + Σ F = 1
    assert (found[:, :, 0].sum(axis=1) > found[:, :, 1].sum(axis=1)).all()  # an event at the horizon is one by it
    assert (found[:, :, 2] == 0).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cox, "_MOST_TIMES", 5)
        coarse = cox_incidence(fits, x, days)
    np.testing.assert_allclose(coarse.sum(axis=1), found.sum(axis=1), atol=1e-12)
    np.testing.assert_allclose(coarse, found, atol=0.05)
    with_none = cox_incidence([CoxFit.without_events(3), fits[1]], x, days)
    np.testing.assert_allclose(with_none[:, 1], -np.expm1(-cumulative_hazard(fits[1], x, days)), atol=1e-12)
    assert (with_none[:, 0] == 0).all()


# ---- censoring ---------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), last_is_censored=st.booleans())
@settings(max_examples=50, deadline=None)
def test_without_covariates_censoring_is_kaplan_meier_exactly(seed: int, last_is_censored: bool) -> None:
    rng = np.random.default_rng(seed)
    duration, cause = rng.integers(1, 8, 40).astype(float), rng.integers(0, 3, 40)
    duration[:8], cause[:8] = 9.0, 0 if last_is_censored else 1  # the end of a study takes many at once
    model = fit_censoring_cox(censoring_rows(np.zeros((40, 1)), duration, cause))
    expected = censoring_survival(duration, cause)
    days = np.arange(0.0, 11.0, 0.5)
    row = model.of_rows(np.zeros((40, 1)))
    np.testing.assert_allclose(row.before(days), np.tile(expected.before(days), (40, 1)), atol=1e-10)
    np.testing.assert_allclose(row.before_own(duration), expected.before(duration), atol=1e-10)


def test_jumps_solve_the_equation_of_kalbfleisch_and_prentice() -> None:
    rng = np.random.default_rng(1)
    x, duration = rng.normal(size=(60, 2)), rng.integers(1, 9, 60).astype(float)
    cause = rng.integers(0, 2, 60)
    rows = censoring_rows(x, duration, cause)
    model = fit_censoring_cox(rows)
    theta = np.exp(model.fit.log_hazard(x))
    for t in range(1, 8):
        jump = model.cumulative_hazard.at(t) - model.cumulative_hazard.before(t)
        leavers = theta[(duration == t) & (cause == 0)]
        at_risk = theta[(duration > t) | ((duration == t) & (cause == 0))].sum()  # events of the instant are gone
        assert (leavers / -np.expm1(-jump * leavers)).sum() == pytest.approx(at_risk, rel=1e-9)


def dependent_censoring(seed: int, n: int) -> tuple[np.ndarray, ...]:
    """The sick drop out early: true time and cause, observed time and cause, covariates, somewhat wrong risks."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    hazard = np.stack([0.12 * np.exp(0.9 * x[:, 0]), 0.10 * np.exp(0.5 * x[:, 1])], axis=1)
    total = hazard.sum(axis=1)
    time = rng.exponential(1.0 / total)
    cause = np.where(rng.random(n) < hazard[:, 0] / total, 1, 2)
    censored = rng.exponential(1.0 / (0.15 * np.exp(0.7 * x[:, 0])))
    risk = 0.8 * hazard / total[:, None] * -np.expm1(-total * 3.0)[:, None] * np.exp(0.3 * rng.normal(size=(n, 1)))
    return time, cause, np.minimum(time, censored), np.where(time <= censored, cause, 0), x, np.minimum(risk, 0.49)


def standardised_bias(n_cohorts: int, n: int) -> dict[tuple[str, str], float]:
    """Mean of censored − uncensored over its standard error, per censoring model and metric; cause 1 by 3."""
    differences: dict[tuple[str, str], list[float]] = {}
    for seed in range(n_cohorts):
        time, true_cause, duration, cause, x, risk = dependent_censoring(seed, n)
        truth = metric_table(time, true_cause, risk[:, :, None], [3.0])
        rows = censoring_rows(x, duration, cause, until_days=3.0)
        models = {"kaplan-meier": None, "cox": fit_censoring_cox(rows, ridge_per_event=0.001).of_rows(x)}
        for model, censoring in models.items():
            found = metric_table(duration, cause, risk[:, :, None], [3.0], censoring=censoring)
            for name in ("c", "auc", "brier", "observed"):
                differences.setdefault((model, name), []).append(float((found[name] - truth[name])[0, 0]))
    return {key: float(np.mean(d) / (np.std(d, ddof=1) / np.sqrt(len(d)))) for key, d in differences.items()}


@pytest.mark.parametrize(
    ("n_cohorts", "n"), [(60, 400), pytest.param(400, 1000, marks=pytest.mark.slow)], ids=["fast", "thorough"]
)
def test_dependent_censoring_biases_kaplan_meier_weights_and_not_those_of_cox(n_cohorts: int, n: int) -> None:
    bias = standardised_bias(n_cohorts, n)
    assert {name: z for (model, name), z in bias.items() if model == "cox" and abs(z) > 2} == {}
    assert abs(bias["kaplan-meier", "brier"]) > 5
    assert abs(bias["kaplan-meier", "observed"]) > 5


def test_few_censored_subjects_do_not_decide_huge_weights() -> None:
    def cohort(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        return rng.standard_t(3, size=(200, 60)), rng.uniform(1, 100, 200), (np.arange(200) >= 12).astype(int)

    train = cohort(0)
    rows = censoring_rows(*train)
    model = fit_censoring_cox(rows, tuning=rows)  # as its own judges they would ask for the weakest ridge
    judged = cohort(1)
    outcome = {"duration_days": judged[1], "cause": judged[2]}
    smallest = [
        fitted.of_rows(judged[0]).smallest([90.0], **outcome)[0]
        for fitted in (model, fit_censoring_cox(rows, ridge_per_event=0.1))
    ]
    km = censoring_survival(train[1], train[2]).before(90.0)
    assert smallest[0] > km - 0.3
    assert smallest[1] < km - 0.5  # without the limit


def test_a_chance_of_being_followed_that_underflows_weighs_nothing_and_divides_nothing() -> None:
    rng = np.random.default_rng(4)
    n = 40
    duration, cause = rng.uniform(1, 9, n), rng.integers(0, 3, n)
    risk, factor = rng.uniform(size=(n, 2, 1)), np.ones(n)
    gone, calm = np.array([0.0, 0.1, 720.0]), np.array([0.0, 0.1, 0.2])  # exp(−720) is a number, 1 over it is none
    found = {}
    for name, hazard in (("calm", calm), ("gone", gone)):
        censoring = RowCensoring(StepFunction(np.array([3.0, 6.0]), hazard), factor)
        for horizon in (5.0, 8.0):
            rows = ScoredRows.of(duration, cause, risk, [horizon], censoring=censoring)
            with np.errstate(over="raise", invalid="raise"):
                found[name, horizon] = wolbers_c(rows)
    # Until day 6 the two distributions are the same; after it nobody is left to stand for those who were censored.
    assert np.isfinite(found["calm", 5.0]).all()
    assert np.array_equal(found["gone", 5.0], found["calm", 5.0])
    assert np.isfinite(found["calm", 8.0]).all()
    assert np.isnan(found["gone", 8.0]).all()
