"""Baselines: hazards that recover a known truth, competing causes as such, every day at risk shared out."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor

from ehrsequencing.config import TaskConfig
from ehrsequencing.metrics.censoring import aalen_johansen
from ehrsequencing.metrics.hazards import cohort_hazards, cumulative_incidence, event_bin, exposure
from ehrsequencing.predictors import boosted, fit as fit_module, fitting_data as base
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import LandmarkCox
from ehrsequencing.predictors.fit import BASELINES, AgeAndSex, MarginalIncidence, fit_baselines
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.predictors.recalibration import fit_hazards
from ehrsequencing.records import scales
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.scales import grid_edges
from ehrsequencing.records.timelines import TaskRecords
from helpers.baselines import EDGES, blanked, fit, given_to, with_rows, without


def test_incidence_of_constant_hazards_is_the_closed_form() -> None:
    hazards = np.array([[[0.01, 0.01, 0.01], [0.03, 0.03, 0.03]]])
    days = np.array([5.0, 20.0, 100.0])
    expected = np.stack([share * (1 - np.exp(-0.04 * days)) for share in (0.25, 0.75)])
    np.testing.assert_allclose(cumulative_incidence(hazards, [10.0, 30.0], days)[0], expected, rtol=1e-12)


def test_the_poisson_regression_is_that_of_scikit_learn() -> None:
    """Age in decades leaves the design badly scaled, and the events are few."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(2, 9, 300), rng.uniform(0, 4, 300), rng.integers(0, 2, 300)])
    exposure_days = rng.uniform(0.1, 900.0, 300)
    events = (rng.random(300) < exposure_days * np.exp(x @ [0.5, -0.2, 1.0] - 12.0)).astype(np.float64)
    assert 5 < events.sum() < 100
    model = PoissonRegressor(alpha=1e-4, solver="newton-cholesky", tol=1e-12, max_iter=500)
    model.fit(x, events / exposure_days, sample_weight=exposure_days)
    design, penalty = np.vstack([np.ones(300), x.T]), 1e-4 * exposure_days.sum() * np.array([0, 1, 1, 1])
    ours, _ = fit_hazards(design, np.log(exposure_days), design @ events, penalty=penalty)
    np.testing.assert_allclose(ours, [model.intercept_, *model.coef_], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("people", [4, 5, 9, 200])
def test_nobodys_duration_is_a_stored_edge(people: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges are quantiles of groups of people, and about those of the durations."""
    subject = np.repeat(np.arange(people), 3)
    duration = np.random.default_rng(0).uniform(1, 300, people).round()[subject] - np.tile([0, 0.25, 0.5], people)
    cause = np.ones(len(subject), np.int8)

    def edges() -> set[float]:
        found = grid_edges(duration, cause, horizons_days=[1000.0], bins=8, subject=subject, enough=5)
        return set(found) - {1000.0}

    owned = edges()
    assert not owned & set(duration.tolist())
    assert bool(owned) == (people >= 5)
    if people == 200:
        np.testing.assert_allclose(sorted(owned), np.quantile(duration, np.linspace(0, 1, 9)[1:-1]), atol=6)
        monkeypatch.setattr(scales, "MOST_EVENTS", 300)
        np.testing.assert_allclose(sorted(edges()), sorted(owned), atol=6)


@pytest.mark.parametrize(("leave", "stay_days", "is_edge"), [(95, 30, True), (9, 30, False), (95, 0.3, False)])
def test_an_early_duration_of_many_is_an_edge(leave: int, stay_days: float, is_edge: bool) -> None:
    """Of ten people or more, and in the first tenth of its bin, so that those who stay do not pay for the whole bin."""
    hour, people = 1 / 24, 900
    later = 1 / 24 + np.random.default_rng(0).uniform(0, stay_days, people)
    duration, cause = np.r_[np.full(leave, hour), later], np.ones(leave + people, np.int8)
    edges = grid_edges(duration, cause, horizons_days=[50.0], bins=8, subject=np.arange(leave + people), enough=10)
    assert (hour in edges) == is_edge


@pytest.fixture(scope="module")
def fitted(prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords) -> Callable[..., Any]:
    """A baseline of a kind, fitted once."""

    @cache
    def of(kind: type, blanking: float = 0.0) -> Predictor:
        return fit(kind, task, prepared, blanked(train, blanking) if blanking else train, tuning)

    return of


def test_periods_share_out_what_the_cohort_expects_and_every_event(
    fitted: Callable[..., Any], train: TaskRecords
) -> None:
    model = fitted(BoostedVisits)
    rows = train.rows
    cohort = cohort_hazards(EDGES, rows.entry_days, rows.duration_days, rows.cause, n_causes=2)
    row, part, of_cohort, cause = model.periods(rows, np.arange(len(rows)), cohort)
    days = exposure(EDGES, rows.entry_days, np.asarray(rows.duration_days))
    for e, hazards in enumerate(cohort):
        expected = np.bincount(row, weights=of_cohort[e], minlength=len(rows))
        np.testing.assert_allclose(expected, days @ hazards)
    np.testing.assert_array_equal(np.bincount(cause, minlength=3)[1:], np.bincount(rows.cause, minlength=3)[1:])
    assert set(part) == set(range(boosted.TIME_PARTS))
    # An event on an edge belongs to the bin before it.
    edge = EDGES[int(np.flatnonzero(np.diff(model.part_of))[0])]  # where the first part of time ends
    on_edge = replace(rows, duration_days=np.full(len(rows), edge), cause=np.ones(len(rows), np.int8))
    assert set(model.periods(on_edge, np.arange(3), cohort)[1]) == {0}


@pytest.mark.parametrize("kind", [AgeAndSex, BoostedVisits])
def test_training_rows_expect_what_happened_at_visits_and_at_queries(
    kind: type,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    tuning: TaskRecords,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = train.rows
    days = exposure(EDGES, rows.entry_days, rows.duration_days)
    last = event_bin(EDGES, rows.duration_days)

    def gaps() -> np.ndarray:
        """Observed less expected events of each kind, cause and bin, in standard errors."""
        hazards = fit(kind, task, prepared, train, tuning).all_hazards(train)
        out = np.empty((2, 2, len(EDGES) + 1))
        for g, e, k in np.ndindex(*out.shape):
            own = rows.is_query == bool(g)
            expected = (hazards[:, e, k] * days[:, k])[own].sum()
            observed = ((last == k) & (rows.cause == e + 1))[own].sum()
            out[g, e, k] = (observed - expected) / max(expected, 1) ** 0.5
        return out

    monkeypatch.setattr(base, "PRIOR_EVENTS", 1e-9)
    assert np.abs(gaps()).max() < 1e-6
    monkeypatch.setattr(base, "PRIOR_EVENTS", 1e9)  # the broken twin: the cohort's own hazards times the factor
    assert np.abs(gaps()).max() > 0.5


def test_a_level_comes_from_enough_people_of_its_kind(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    fitting = given_to(task, prepared, train, tuning)
    rows = fitting.train.rows
    every = np.arange(len(rows))
    double = 2 * fitting.cohort_hazards()
    level = fitting.level(every, lambda part: np.repeat(double[None], len(every[part]), axis=0))
    last = event_bin(EDGES, rows.duration_days)
    for g, k in np.ndindex(2, len(EDGES) + 1):
        reached = rows.subject[(rows.is_query == bool(g)) & (last >= k)]
        assert (level[g, :, k] == 1).all() == (len(set(reached.tolist())) < fitting.enough)
    strict = replace(fitting, enough=len(fitting.train.timelines) + 1)
    assert (strict.level(every, lambda part: np.repeat(double[None], len(every[part]), axis=0)) == 1).all()


def test_aalen_johansen_is_that_of_the_training_subjects_at_the_landmark(
    prepared: Prepared, task: TaskConfig, train: TaskRecords
) -> None:
    rows, days = train.rows, np.array([100.0, 500.0])
    model = MarginalIncidence(FittingData(task, prepared.vocabulary, train, train, EDGES))
    at = rows.at_landmark(365.25)
    expected = aalen_johansen(rows.duration_days[at], rows.cause[at].astype(np.int64), n_causes=2).at(days)
    found = model.risk(train, days)[at]
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape))


@pytest.mark.parametrize("kind", [AgeAndSex, LandmarkCox, BoostedVisits])
def test_risks_are_probabilities_that_rise_and_are_calibrated_in_training(
    kind: type, fitted: Callable[..., Any], train: TaskRecords
) -> None:
    model = fitted(kind)
    at = np.arange(0, len(train), 4)  # of all prediction times: there a supermodel is calibrated
    days = np.array([30.0, 365.25, 730.5])
    risk = model.risk(train, days)[at]
    assert np.all(np.diff(risk, axis=2) >= 0)
    assert np.all((risk >= 0) & (risk.sum(axis=1, keepdims=True) <= 1 + 1e-7))
    observed = aalen_johansen(train.rows.duration_days[at], train.rows.cause[at].astype(np.int64), n_causes=2).at(days)
    np.testing.assert_allclose(risk.mean(axis=0)[0], observed[0], atol=0.04)  # competing deaths are not censored away


@pytest.mark.parametrize(
    "missing",
    [
        "event in tuning",
        pytest.param("tuning subjects", marks=pytest.mark.slow),
        pytest.param("event in training", marks=pytest.mark.slow),
    ],
)
def test_a_rare_cause_or_no_tuning_subject_still_gives_risks(
    missing: str, prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    nobody = np.arange(0)
    fitted = without(train, 2) if missing == "event in training" else train
    watched = {"event in tuning": without(tuning, 2), "event in training": tuning}.get(missing, tuning.take(nobody))
    days = np.array([365.25, 730.5])
    for fitted_one in fit_baselines("fast", given_to(task, prepared, fitted, watched)):
        model = fitted_one.model
        assert np.isnan(fitted_one.tuning_nll) == (missing == "tuning subjects")
        assert np.isfinite(model.nll(train)).all()
        risk = model.risk(train, days)
        assert ((risk >= 0) & (risk <= 1)).all()
        mean = risk.mean(axis=0)
        assert (mean[1] < 1e-3).all() if missing == "event in training" else (mean[1] > 1e-3).all()
        assert model.risk(train.take(nobody), days).shape == (0, 2, 2)


@pytest.mark.parametrize("kind", [AgeAndSex, LandmarkCox, BoostedVisits])
def test_constant_competing_hazards_are_recovered_and_competing_events_are_not_censoring(
    kind: type, prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    hazards, days = np.array([1 / 500, 1 / 250]), np.array([200.0, 500.0])

    def redrawn(split: TaskRecords, seed: int) -> TaskRecords:
        """Event times that depend on nothing in the record."""
        rng, n = np.random.default_rng(seed), len(split)
        event, censored = rng.exponential(1 / hazards.sum(), n), rng.uniform(100, 2000, n)
        cause = np.where(event < censored, 1 + (rng.random(n) > hazards[0] / hazards.sum()), 0).astype(np.int8)
        return with_rows(split, duration_days=np.minimum(event, censored), cause=cause)

    def mean_risk(made: TaskRecords, judge: TaskRecords) -> np.ndarray:
        model = fit(kind, task, prepared, made, judge)
        return model.risk(made, days)[::4].mean(axis=0)[0]

    made, judge = redrawn(train, 1), redrawn(tuning, 2)
    truth = hazards[0] / hazards.sum() * (1 - np.exp(-hazards.sum() * days))
    np.testing.assert_allclose(mean_risk(made, judge), truth, atol=0.03)
    mutant = mean_risk(without(made, 2), without(judge, 2))  # competing events as censoring
    assert (mutant > truth + 0.06).all()


@pytest.mark.parametrize("kind", [AgeAndSex, LandmarkCox, BoostedVisits])
def test_risk_and_likelihood_speak_of_the_same_hazards(
    kind: type, fitted: Callable[..., Any], train: TaskRecords
) -> None:
    """−log S(t) is the NLL of a row that is censored at t."""
    model, days = fitted(kind), EDGES[4]
    n = len(train)
    lost = replace(train.rows, duration_days=np.full(n, days), cause=np.zeros(n, np.int8))
    survival = np.exp(-model.nll(replace(train, rows=lost)))
    risk = model.risk(train, [days]).sum(axis=1)[:, 0]
    np.testing.assert_allclose(1 - risk, survival, atol=1e-7)  # risks are rounded to float32


def test_the_cohorts_hazards_of_weighted_days_are_those_of_most_likelihood() -> None:
    rng = np.random.default_rng(0)
    factor = np.exp(rng.normal(size=3000))
    event, left = rng.exponential(200 / factor), rng.uniform(1, 900, 3000)
    duration, cause = np.minimum(event, left), (event < left).astype(np.int8)
    entry = np.zeros(3000)
    found = cohort_hazards(EDGES, entry, duration, cause, n_causes=1, factors=[factor])[0]
    np.testing.assert_allclose(found[:4], 1 / 200, rtol=0.15)
    crude = cohort_hazards(EDGES, entry, duration, cause, n_causes=1)[0]
    assert crude[0] > 1.3 / 200  # the broken twin: those with a high hazard leave first
    days = exposure(EDGES, entry, duration) * factor[:, None]
    events = np.bincount(event_bin(EDGES, duration)[cause == 1], minlength=len(EDGES) + 1)
    total = days.sum(axis=0)[:6]  # nobody is seen after them
    np.testing.assert_allclose(found[:6], (events[:6] + 0.5 * total / total.sum()) / total, rtol=0.02)


class Constant(Predictor):
    """The same hazards for everyone."""

    def __init__(self, name: str, rate: float) -> None:
        self.name, self.rate, self.edges_days, self.n_causes = name, rate, EDGES, 2

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, np.ndarray]]:
        yield slice(0, len(records)), np.full((len(records), 2, len(EDGES) + 1), self.rate)


def test_few_tuning_people_choose_no_baseline_and_many_choose_by_the_landmarks(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = replace(given_to(task, prepared, train, tuning), recalibration=0.0)
    known = {name: Constant(name, 10.0 ** -(2 + number)) for number, name in enumerate(BASELINES)}
    at = np.any([tuning.rows.at_landmark(days) for days in task.landmarks], axis=0)
    expected = {name: float(model.nll(tuning)[at].mean()) for name, model in known.items()}
    monkeypatch.setattr(fit_module, "EVENTS_TO_CHOOSE", 0)
    chosen = fit_baselines("fast", data, known=known)
    assert [one.model.name for one in chosen] == sorted(expected, key=expected.__getitem__)
    assert {one.model.name: one.tuning_nll for one in chosen} == pytest.approx(expected)
    worst = chosen[-1].model.name
    monkeypatch.setattr(fit_module, "STACKED", worst)
    monkeypatch.setattr(fit_module, "EVENTS_TO_CHOOSE", 10**9)
    assert fit_baselines("fast", data, known=known)[0].model.name == worst
