"""Ridge Cox regression: equal to libraries and to a twin of plain loops, and a ridge that other subjects choose."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from sksurv.linear_model import CoxPHSurvivalAnalysis

from ehrsequencing.config import TaskConfig
from ehrsequencing.metrics.censoring import aalen_johansen
from ehrsequencing.predictors import cox
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import (
    UNWATCHED_RIDGE_PER_EVENT,
    CoxFit,
    CoxHazards,
    CoxRegression,
    CoxRiskSets,
    CoxRows,
    LandmarkCox,
    choose_ridge,
    information,
    partial_log_likelihood,
)
from ehrsequencing.predictors.fit import AgeAndSex, MarginalIncidence, fit_baselines, fit_last_step
from ehrsequencing.predictors.fitting_data import LinearDesign
from ehrsequencing.predictors.history import fit_feature_spec, history_features
from ehrsequencing.predictors.predictor import Recalibrated
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from helpers.baselines import EDGES, blanked, fit, given_to, with_rows
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


# ---- landmark Cox, its design, and what blanking and drop-out do to it -----------------------------------------------


@pytest.mark.parametrize("kind", [MarginalIncidence, AgeAndSex, LandmarkCox, BoostedVisits])
def test_risks_given_survival_are_conditional_and_know_nothing_of_the_blanking(
    kind: type,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    tuning: TaskRecords,
) -> None:
    days, start = np.array([100.0, 200.0, 730.5]), 200.0
    model = fit(kind, task, prepared, train, tuning)
    plain, at_start = (model.risk(train, d) for d in (days, [start]))
    given = model.risk(train, days, start_days=start)
    expected = (plain - at_start) / (1 - at_start.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(given, np.where(days > start, expected, 0.0), atol=1e-6)

    late, judges = blanked(train, start), blanked(tuning, start)
    risk = fit(kind, task, prepared, late, judges).risk(late, days, start_days=start)
    survivors = np.flatnonzero(np.asarray(train.rows.duration_days) > start)
    duration = np.asarray(train.rows.duration_days)[survivors] - start
    observed = aalen_johansen(duration, train.rows.cause[survivors].astype(np.int64), n_causes=2).at(530.5)
    assert risk[:, 0, 2].mean() == pytest.approx(observed[0], abs=0.05)


def test_landmark_cox_learns_what_the_record_says(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    visits = train.timelines
    static = np.isin(np.arange(len(visits)), visits.static_owner[visits.static_codes == visits.static_codes[0]])

    def planted(split: TaskRecords, seed: int) -> TaskRecords:
        """Only the code of a static group matters: four times the hazard."""
        rng = np.random.default_rng(seed)
        owner = np.repeat(np.arange(len(split.timelines)), np.diff(split.timelines.static_offsets))
        has = np.isin(
            split.rows.subject, owner[np.asarray(split.timelines.static_codes) == train.timelines.static_codes[0]]
        )
        event = rng.exponential(np.where(has, 250.0, 1000.0))
        return with_rows(split, duration_days=np.minimum(event, 900.0), cause=(event < 900.0).astype(np.int8))

    assert 0 < static.sum() < len(static)
    made, judges = planted(train, 1), planted(tuning, 2)
    model = LandmarkCox(given_to(task, prepared, made, judges))
    risk = model.risk(made, [300.0])[:, 0, 0]
    has = static[made.rows.subject]
    assert risk[has].mean() == pytest.approx(1 - np.exp(-300 / 250), abs=0.08)
    assert risk[~has].mean() == pytest.approx(1 - np.exp(-300 / 1000), abs=0.08)
    assert not model.fits[1].beta.any()


def test_a_linear_design_is_finite_never_extrapolates_and_is_fitted_on_training_rows_only(
    prepared: Prepared, train: TaskRecords, tuning: TaskRecords
) -> None:
    columns = fit_feature_spec(train, prepared.vocabulary)

    def features(split: TaskRecords) -> np.ndarray:
        return history_features(split, chosen=np.arange(len(split)), columns=columns)

    known = features(train)
    design = LinearDesign.fit(known, columns, train.rows.subject, enough=5)
    x, other = design(known), design(features(tuning))
    assert np.isfinite(x).all()
    assert np.isfinite(other).all()
    assert (x.std(axis=0)[: len(design.used)] > 0).all()
    assert (other >= x.min(axis=0) - 1e-9).all()
    assert (other <= x.max(axis=0) + 1e-9).all()
    unknown = design(np.full((1, known.shape[1]), np.nan, np.float32))[0]
    np.testing.assert_allclose(unknown[: len(design.used)], design.fill)
    marks = slice(len(design.used), len(design.used) + len(design.marked))
    assert (unknown[marks] == 1).all()
    assert len(np.unique(x[:, marks], axis=1).T) == len(design.marked)  # no mark twice
    extreme = design(np.full((1, known.shape[1]), 1e9, np.float32))[0]
    np.testing.assert_allclose(extreme[: len(design.used)], design.high)


def test_a_baseline_gets_the_last_step_of_our_training(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    data = replace(given_to(task, prepared, train, tuning), recalibration=0.5)

    class TooHigh(AgeAndSex):
        def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, np.ndarray]]:
            for rows, hazards in super().hazards(records):
                yield rows, 4.0 * hazards

    raw = TooHigh(data)
    step = fit_last_step(raw.all_hazards(data.tuning), data)
    assert step is not None
    mended = raw.recalibrated(step.intercept, step.slope)
    before, after = (model.nll(tuning).mean() for model in (raw, mended))
    assert after < before - 0.1
    days = np.array([365.25])
    assert mended.risk(train, days)[:, 0].mean() < raw.risk(train, days)[:, 0].mean()
    as_they_are = fit_baselines("fast", replace(data, recalibration=0.0))
    assert not any(isinstance(one.model, Recalibrated) for one in as_they_are)
    named = {one.model.name: one.model for one in fit_baselines("fast", data)}
    assert isinstance(named["boosted visits"], Recalibrated)
    assert isinstance(named["landmark Cox"], Recalibrated)
    assert not isinstance(named["Aalen–Johansen"], Recalibrated)


def test_a_record_beyond_the_training_range_has_the_risk_of_its_end(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    """η is held within what enough training people have, on both sides, and rows inside are left alone."""
    model = fit(LandmarkCox, task, prepared, train, tuning)
    every = np.arange(len(train))
    x = model.design(history_features(train, chosen=every, columns=model.columns))
    for one, (low, high) in zip(model.fits, model.bounds, strict=True):
        score = one.log_hazard(x)
        assert score.min() <= low + 1e-5
        assert high - 1e-5 <= score.max()
        assert 0.9 < np.mean((score >= low) & (score <= high)) < 1
    wild = CoxHazards(model.design, model.mean, model.scale, model.beta * 1e3, model.base, model.bounds, EDGES)
    hazards = np.concatenate([part for _, part in wild.hazards(train)])
    ends = wild.base * np.exp(wild.bounds.T)[:, :, None]
    near = np.isclose(hazards[:, None], ends[None], rtol=1e-9).all(axis=3).any(axis=1)
    assert near.mean() > 0.95
