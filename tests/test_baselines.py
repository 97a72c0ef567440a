"""Baselines: hazards that recover a known truth, competing causes as such, every day at risk shared out."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import TaskConfig
from ehrsequencing.evaluation import baselines
from ehrsequencing.evaluation.baselines import (
    AgeAndSex,
    BoostedVisits,
    MarginalIncidence,
    _periods,
    fit_baselines,
    incidence,
)
from ehrsequencing.evaluation.censoring import aalen_johansen
from ehrsequencing.records.grid import cohort_hazards, event_bin, exposure, grid_edges
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows, Timelines, take_rows, take_timelines

Split = tuple[Timelines, TaskRows]


@pytest.fixture(scope="module")
def prepared(sim_prepared: Path) -> Prepared:
    return Prepared(sim_prepared)


@pytest.fixture(scope="module")
def task(prepared: Prepared) -> TaskConfig:
    return prepared.task("simulated")


@pytest.fixture(scope="module")
def train(prepared: Prepared) -> Split:
    return prepared.timelines("train"), prepared.rows("simulated", "train")


@pytest.fixture(scope="module")
def tuning(prepared: Prepared) -> Split:
    return prepared.timelines("tuning"), prepared.rows("simulated", "tuning")


def test_incidence_of_constant_hazards_is_the_closed_form() -> None:
    hazards = np.array([[[0.01, 0.01, 0.01], [0.03, 0.03, 0.03]]])
    days = np.array([5.0, 20.0, 100.0])
    expected = np.stack([share * (1 - np.exp(-0.04 * days)) for share in (0.25, 0.75)])
    np.testing.assert_allclose(incidence(hazards, [10.0, 30.0], days)[0], expected, rtol=1e-12)


def test_grid_holds_every_horizon_and_hazards_are_events_over_days() -> None:
    rng = np.random.default_rng(0)
    duration = rng.exponential(50.0, 4000)
    cause = rng.integers(0, 3, 4000).astype(np.int8)
    edges = grid_edges(duration, cause, horizons_days=[10.0, 77.0], bins=8)
    assert {10.0, 77.0} <= set(edges)
    assert all(a < b for a, b in itertools.pairwise(edges))
    days = exposure(edges, np.zeros(4000), duration)
    np.testing.assert_allclose(days.sum(axis=1), duration)
    hazards = cohort_hazards(edges, np.zeros(4000), duration, cause, n_causes=2)
    bins = event_bin(edges, duration)
    for e in range(2):
        events = np.bincount(bins[cause == e + 1], minlength=len(edges) + 1)
        np.testing.assert_allclose(hazards[e], events / days.sum(axis=0), rtol=0.05)


def test_periods_share_out_every_day_and_every_event(train: Split) -> None:
    rows = train[1]
    edges = grid_edges(np.asarray(rows.duration_days), np.asarray(rows.cause), horizons_days=[90.0], bins=6)
    periods = _periods(rows, np.arange(len(rows)), edges)
    days = np.bincount(periods.row, weights=periods.days, minlength=len(rows))
    np.testing.assert_allclose(days, rows.duration_days)
    np.testing.assert_array_equal(np.bincount(periods.cause, minlength=3)[1:], np.bincount(rows.cause, minlength=3)[1:])


def test_an_event_on_an_edge_belongs_to_the_bin_before_it(train: Split) -> None:
    duration = float(train[1].duration_days[np.flatnonzero(np.asarray(train[1].cause) > 0)[0]])
    row = np.flatnonzero(np.asarray(train[1].cause) > 0)[:1]
    periods = _periods(train[1], row, [duration, 2 * duration])
    assert periods.bin.tolist() == [0]
    assert periods.cause[0] > 0


def test_aalen_johansen_is_that_of_the_training_subjects_at_the_landmark(task: TaskConfig, train: Split) -> None:
    rows, days = train[1], np.array([100.0, 500.0])
    model = MarginalIncidence(task, rows)
    at = rows.at_landmark(365.25)
    expected = aalen_johansen(rows.duration_days[at], rows.cause[at].astype(np.int64), n_causes=2).at(days)
    found = model.risk(*train, np.flatnonzero(at), days)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape))


@pytest.mark.parametrize("kind", [AgeAndSex, BoostedVisits])
def test_risks_are_probabilities_that_rise_and_are_calibrated_in_training(
    kind: type, prepared: Prepared, task: TaskConfig, train: Split, tuning: Split
) -> None:
    if kind is AgeAndSex:
        model = AgeAndSex(task, prepared.vocabulary, train)
    else:
        model = BoostedVisits(task, prepared.vocabulary, train, tuning, seed=0)
    at = np.arange(len(train[1]))  # a supermodel is calibrated over all prediction times
    days = np.array([30.0, 365.25, 730.5])
    risk = model.risk(*train, at, days)
    assert np.all(np.diff(risk, axis=2) >= 0)
    assert np.all((risk >= 0) & (risk.sum(axis=1, keepdims=True) <= 1))
    observed = aalen_johansen(train[1].duration_days[at], train[1].cause[at].astype(np.int64), n_causes=2).at(days)
    np.testing.assert_allclose(risk.mean(axis=0)[0], observed[0], atol=0.04)  # competing deaths are not censored away


def test_the_same_seed_gives_the_same_baselines_strongest_first(
    prepared: Prepared, task: TaskConfig, train: Split, tuning: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "MOST_PERIODS", 2000)
    days, chosen = np.array([365.25]), np.arange(len(tuning[1]))
    made = [
        fit_baselines("fast", task=task, vocabulary=prepared.vocabulary, train=train, tuning=tuning, seed=3)
        for _ in range(2)
    ]
    assert [b.name for b in made[0]] == ["boosted visits", "age + sex", "Aalen–Johansen"]
    for a, b in zip(*made, strict=True):
        np.testing.assert_array_equal(a.risk(*tuning, chosen, days), b.risk(*tuning, chosen, days))
    assert fit_baselines("none", task=task, vocabulary=prepared.vocabulary, train=train, tuning=tuning, seed=3) == []


def without(split: Split, cause: int) -> Split:
    """The same subjects, those with an event of the cause censored then."""
    causes = np.asarray(split[1].cause)
    return split[0], replace(split[1], cause=np.where(causes == cause, 0, causes).astype(np.int8))


@pytest.mark.parametrize("missing", ["event in tuning", "tuning subjects", "event in training"])
def test_a_rare_cause_or_no_tuning_subject_still_gives_risks(
    missing: str, prepared: Prepared, task: TaskConfig, train: Split, tuning: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "MOST_PERIODS", 2000)
    nobody = np.arange(0)
    fitted = without(train, 2) if missing == "event in training" else train
    watched = {"event in tuning": without(tuning, 2), "event in training": tuning}.get(
        missing, (take_timelines(tuning[0], nobody), take_rows(tuning[1], nobody))
    )
    days, chosen = np.array([365.25, 730.5]), np.arange(len(train[1]))
    for model in fit_baselines("fast", task=task, vocabulary=prepared.vocabulary, train=fitted, tuning=watched, seed=0):
        risk = model.risk(*train, chosen, days)
        assert ((risk >= 0) & (risk <= 1)).all()
        mean = risk.mean(axis=0)
        assert (mean[1] < 1e-3).all() if missing == "event in training" else (mean[1] > 1e-3).all()
        assert model.risk(*train, nobody, days).shape == (0, 2, 2)


@pytest.mark.parametrize("kind", [AgeAndSex, BoostedVisits])
def test_constant_competing_hazards_are_recovered_and_competing_events_are_not_censoring(
    kind: type, prepared: Prepared, task: TaskConfig, train: Split, tuning: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "MOST_PERIODS", 20_000)
    hazards, days = np.array([1 / 500, 1 / 250]), np.array([200.0, 500.0])

    def redrawn(split: Split, seed: int) -> Split:
        """Event times that depend on nothing in the record."""
        rng, n = np.random.default_rng(seed), len(split[1])
        event, censored = rng.exponential(1 / hazards.sum(), n), rng.uniform(100, 2000, n)
        cause = np.where(event < censored, 1 + (rng.random(n) > hazards[0] / hazards.sum()), 0).astype(np.int8)
        return split[0], replace(split[1], duration_days=np.minimum(event, censored), cause=cause)

    def mean_risk(made: Split, judge: Split) -> np.ndarray:
        args = (task, prepared.vocabulary, made)
        model = AgeAndSex(*args) if kind is AgeAndSex else BoostedVisits(*args, judge, seed=0)
        return model.risk(*made, np.arange(len(made[1])), days).mean(axis=0)[0]

    made, judge = redrawn(train, 1), redrawn(tuning, 2)
    truth = hazards[0] / hazards.sum() * (1 - np.exp(-hazards.sum() * days))
    np.testing.assert_allclose(mean_risk(made, judge), truth, atol=0.03)
    mutant = mean_risk(without(made, 2), without(judge, 2))  # competing events as censoring
    assert (mutant > truth + 0.06).all()
