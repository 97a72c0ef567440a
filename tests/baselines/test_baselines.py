"""Baselines: hazards that recover a known truth, competing causes as such, every day at risk shared out."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ehrsequencing.answers import nll_of_rows, risk_of_rows
from ehrsequencing.baselines import boosted, forest, landmark_cox
from ehrsequencing.baselines.age_sex import AgeAndSex
from ehrsequencing.baselines.base import Baseline, FittingData
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.baselines.censoring_cox import HistoryCensoring
from ehrsequencing.baselines.fit import fit_baselines
from ehrsequencing.baselines.history import LinearDesign, fit_feature_spec, history_features
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.baselines.marginal import MarginalIncidence
from ehrsequencing.config import ModelConfig, StudyConfig, TaskConfig, TrainingConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.evaluation import trained_baselines as trained
from ehrsequencing.evaluation.trained_baselines import (
    FLAT,
    LSTM,
    RunToRival,
    TrainedBaseline,
    is_variant,
    train_baseline,
    variant,
)
from ehrsequencing.metrics.censoring import aalen_johansen, censoring_survival
from ehrsequencing.records import grid
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.grid import grid_edges
from ehrsequencing.records.hazards import cohort_hazards, cumulative_incidence, event_bin, exposure
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.run import Run
from reference.likelihood import horizon_term

EDGES = (30.0, 90.0, 180.0, 365.25, 547.9, 730.5, 1096.0, 1826.25)  # of a run's grid


@pytest.fixture(scope="module")
def prepared(sim_prepared: Path) -> Prepared:
    return Prepared(sim_prepared)


@pytest.fixture(scope="module")
def task(prepared: Prepared) -> TaskConfig:
    return prepared.task("simulated")


@pytest.fixture(scope="module")
def train(prepared: Prepared) -> TaskRecords:
    return prepared.records("simulated", "train")


@pytest.fixture(scope="module")
def tuning(prepared: Prepared) -> TaskRecords:
    return prepared.records("simulated", "tuning")


def fit(kind: type, task: TaskConfig, prepared: Prepared, train: TaskRecords, tuning: TaskRecords) -> Baseline:
    """Any of the fast baselines."""
    made: Baseline = kind(given_to(task, prepared, train, tuning))
    return made


@pytest.fixture(autouse=True)
def _fast_boosting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs, few trees and larger steps: what is tested here does not depend on them."""
    quick = {"learning_rate": 0.3, "max_iter": 12, "n_iter_no_change": 3}
    monkeypatch.setattr(boosted, "MOST_PAIRS", 5)
    monkeypatch.setattr(forest, "TREES", 2)
    monkeypatch.setattr(forest, "LEAVES", (60,))
    monkeypatch.setattr(boosted, "UNWATCHED_TREES", 5)
    monkeypatch.setattr(boosted, "TRIALS", tuple(trial | quick for trial in boosted.TRIALS))


def test_incidence_of_constant_hazards_is_the_closed_form() -> None:
    hazards = np.array([[[0.01, 0.01, 0.01], [0.03, 0.03, 0.03]]])
    days = np.array([5.0, 20.0, 100.0])
    expected = np.stack([share * (1 - np.exp(-0.04 * days)) for share in (0.25, 0.75)])
    np.testing.assert_allclose(cumulative_incidence(hazards, [10.0, 30.0], days)[0], expected, rtol=1e-12)


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


@pytest.mark.parametrize("people", [4, 5, 9, 200])
def test_nobodys_duration_is_a_stored_edge(people: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without owners an edge may be a duration of one person; with them none is, and the grid is as good."""
    subject = np.repeat(np.arange(people), 3)
    duration = np.random.default_rng(0).uniform(1, 300, people).round()[subject] - np.tile([0, 0.25, 0.5], people)
    cause = np.ones(len(subject), np.int8)

    def edges(**more: Any) -> set[float]:
        return set(grid_edges(duration, cause, horizons_days=[1000.0], bins=8, **more)) - {1000.0}

    owned = edges(subject=subject, enough=5)
    assert not owned & set(duration.tolist())
    assert bool(owned) == (people >= 5)
    if people == 200:
        np.testing.assert_allclose(sorted(owned), sorted(edges()), atol=6)
        monkeypatch.setattr(grid, "MOST_EVENTS", 300)
        np.testing.assert_allclose(sorted(edges(subject=subject, enough=5)), sorted(owned), atol=6)


def test_periods_share_out_what_the_cohort_expects_and_every_event(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    model = BoostedVisits(given_to(task, prepared, train, tuning))
    rows = train.rows
    periods = model.periods(rows, np.arange(len(rows)))
    days = exposure(EDGES, rows.entry_days, np.asarray(rows.duration_days))
    for e, base in enumerate(model.base):
        expected = np.bincount(periods.row, weights=periods.expected[e], minlength=len(rows))
        np.testing.assert_allclose(expected, days @ base)
    np.testing.assert_array_equal(np.bincount(periods.cause, minlength=3)[1:], np.bincount(rows.cause, minlength=3)[1:])
    assert set(periods.part) == set(range(boosted.TIME_PARTS))
    # An event on an edge belongs to the bin before it.
    edge = EDGES[int(np.flatnonzero(np.diff(model.part_of))[0])]  # where the first part of time ends
    on_edge = replace(rows, duration_days=np.full(len(rows), edge), cause=np.ones(len(rows), np.int8))
    assert set(model.periods(on_edge, np.arange(3)).part) == {0}


def test_aalen_johansen_is_that_of_the_training_subjects_at_the_landmark(
    prepared: Prepared, task: TaskConfig, train: TaskRecords
) -> None:
    rows, days = train.rows, np.array([100.0, 500.0])
    model = MarginalIncidence(FittingData(task, prepared.vocabulary, train, train, EDGES))
    at = rows.at_landmark(365.25)
    expected = aalen_johansen(rows.duration_days[at], rows.cause[at].astype(np.int64), n_causes=2).at(days)
    found = model.risk(train, np.flatnonzero(at), days)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape))


@pytest.mark.parametrize("kind", [AgeAndSex, LandmarkCox, BoostedVisits])
def test_risks_are_probabilities_that_rise_and_are_calibrated_in_training(
    kind: type,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    tuning: TaskRecords,
) -> None:
    model = fit(kind, task, prepared, train, tuning)
    at = np.arange(0, len(train), 4)  # of all prediction times: there a supermodel is calibrated
    days = np.array([30.0, 365.25, 730.5])
    risk = model.risk(train, at, days)
    assert np.all(np.diff(risk, axis=2) >= 0)
    assert np.all((risk >= 0) & (risk.sum(axis=1, keepdims=True) <= 1 + 1e-12))
    observed = aalen_johansen(train.rows.duration_days[at], train.rows.cause[at].astype(np.int64), n_causes=2).at(days)
    np.testing.assert_allclose(risk.mean(axis=0)[0], observed[0], atol=0.04)  # competing deaths are not censored away


@pytest.mark.slow
def test_the_same_seed_gives_the_same_baselines_strongest_first(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    days, chosen = np.array([365.25]), np.arange(len(tuning))
    made = [fit_baselines("fast", given_to(task, prepared, train, tuning, seed=3)) for _ in range(2)]
    assert {b.model.name for b in made[0]} == {"boosted visits", "landmark Cox", "age + sex", "Aalen–Johansen"}
    said = [b.tuning_nll for b in made[0]]
    assert said == sorted(said)
    for a, b in zip(*made, strict=True):
        assert a.tuning_nll == pytest.approx(a.model.nll(tuning, chosen).mean())
        np.testing.assert_array_equal(a.model.risk(tuning, chosen, days), b.model.risk(tuning, chosen, days))
    assert fit_baselines("none", given_to(task, prepared, train, tuning, seed=3)) == []


def given_to(
    task: TaskConfig, prepared: Prepared, train: TaskRecords, tuning: TaskRecords, seed: int = 0
) -> FittingData:
    """What every baseline is fitted to."""
    return FittingData(task, prepared.vocabulary, train, tuning, EDGES, seed)


def with_rows(split: TaskRecords, **columns: Any) -> TaskRecords:
    """The same subjects, with other columns of their prediction times."""
    return replace(split, rows=replace(split.rows, **columns))


def without(split: TaskRecords, cause: int) -> TaskRecords:
    """The same subjects, those with an event of the cause censored then."""
    causes = np.asarray(split.rows.cause)
    return with_rows(split, cause=np.where(causes == cause, 0, causes).astype(np.int8))


@pytest.mark.parametrize("missing", ["event in tuning", "tuning subjects", "event in training"])
def test_a_rare_cause_or_no_tuning_subject_still_gives_risks(
    missing: str,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    tuning: TaskRecords,
) -> None:
    nobody = np.arange(0)
    fitted = without(train, 2) if missing == "event in training" else train
    watched = {"event in tuning": without(tuning, 2), "event in training": tuning}.get(missing, tuning.take(nobody))
    days, chosen = np.array([365.25, 730.5]), np.arange(len(train))
    for fitted_one in fit_baselines("fast", given_to(task, prepared, fitted, watched)):
        model = fitted_one.model
        assert np.isnan(fitted_one.tuning_nll) == (missing == "tuning subjects")
        assert np.isfinite(model.nll(train, chosen)).all()
        risk = model.risk(train, chosen, days)
        assert ((risk >= 0) & (risk <= 1)).all()
        mean = risk.mean(axis=0)
        assert (mean[1] < 1e-3).all() if missing == "event in training" else (mean[1] > 1e-3).all()
        assert model.risk(train, nobody, days).shape == (0, 2, 2)


@pytest.mark.parametrize("kind", [AgeAndSex, LandmarkCox, BoostedVisits])
def test_constant_competing_hazards_are_recovered_and_competing_events_are_not_censoring(
    kind: type,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    tuning: TaskRecords,
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
        return model.risk(made, np.arange(0, len(made), 4), days).mean(axis=0)[0]

    made, judge = redrawn(train, 1), redrawn(tuning, 2)
    truth = hazards[0] / hazards.sum() * (1 - np.exp(-hazards.sum() * days))
    np.testing.assert_allclose(mean_risk(made, judge), truth, atol=0.03)
    mutant = mean_risk(without(made, 2), without(judge, 2))  # competing events as censoring
    assert (mutant > truth + 0.06).all()


# ---- likelihood on the run's grid ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MarginalIncidence, AgeAndSex, LandmarkCox, BoostedVisits])
@pytest.mark.parametrize("blanking", [0.0, 40.0])
def test_a_baselines_likelihood_is_that_of_its_hazards_bin_by_bin(
    kind: type, blanking: float, prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    made = blanked(train, blanking) if blanking else train
    model: Any = fit(kind, task, prepared, made, tuning)
    rows, chosen = made.rows, np.arange(0, len(train), 41)
    found = model.nll(made, chosen)
    for r, nll in zip(chosen.tolist(), found.tolist(), strict=True):
        row = np.array([r])
        if isinstance(model, MarginalIncidence):
            since = (rows.prediction_us[r] - rows.index_us[r]) / DAY_US
            hazards = model.landmark_hazards[int(np.argmin([abs(since - days) for days in model.landmarks]))]
        elif isinstance(model, LandmarkCox):
            x = model.covariates(made, row)
            hazards = model.base * np.array([[math.exp(f.log_hazard(x)[0])] if f else [1.0] for f in model.fits])
        else:
            hazards = (model.base * model.factor(made, row))[0]
        label = float(rows.entry_days[r]), float(rows.duration_days[r]), int(rows.cause[r])
        assert nll == pytest.approx(float(horizon_term(torch.from_numpy(np.log(hazards)), EDGES, *label)), rel=1e-9)


@pytest.mark.parametrize("kind", [AgeAndSex, LandmarkCox, BoostedVisits])
def test_risk_and_likelihood_speak_of_the_same_hazards(
    kind: type, prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    """−log S(t) is the NLL of a row that is censored at t; Cox's risk knows no grid, so it only comes near."""
    model, chosen, days = fit(kind, task, prepared, train, tuning), np.arange(0, len(train), 3), EDGES[4]
    n = len(train)
    lost = replace(train.rows, duration_days=np.full(n, days), cause=np.zeros(n, np.int8))
    survival = np.exp(-model.nll(replace(train, rows=lost), chosen))
    risk = model.risk(train, chosen, np.array([days])).sum(axis=1)[:, 0]
    np.testing.assert_allclose(1 - risk, survival, atol=0.02 if kind is LandmarkCox else 1e-12)


def test_a_grid_finer_than_the_events_leaves_every_likelihood_finite(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    """Bins without a training event, of either cause, and events of other subjects in them."""
    edges = tuple(np.linspace(1.0, 3000.0, 400))
    n = len(tuning)
    odd = replace(tuning.rows, duration_days=np.linspace(0.5, 4000.0, n), cause=(1 + np.arange(n) % 2).astype(np.int8))
    for one in fit_baselines("fast", replace(given_to(task, prepared, train, tuning), edges_days=edges)):
        assert np.isfinite(one.model.nll(replace(tuning, rows=odd), np.arange(n))).all()


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


# ---- the boosting's share ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_boosting_sees_every_prediction_time_and_tries_as_often_as_it_is_told(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, Any], int]] = []
    fit_one = boosted.HistGradientBoostingRegressor.fit

    def spy(self: Any, x: Any, *args: Any, **held: Any) -> Any:
        seen.append((self.get_params(), len(x)))
        return fit_one(self, x, *args, **held)

    monkeypatch.setattr(boosted.HistGradientBoostingRegressor, "fit", spy)
    made = given_to(task, prepared, train, tuning)
    models = {n: BoostedVisits(made, trials=n) for n in (1, 3)}
    assert len(seen) == (1 + 3) * len(task.causes)
    every = models[1].periods(train.rows, np.arange(len(train)))
    assert {rows for _, rows in seen} == {len(every.row)}
    assert models[1].fitted.tolist() == list(range(len(train)))
    rows = np.arange(len(tuning))
    assert models[3].nll(tuning, rows).mean() <= models[1].nll(tuning, rows).mean() + 1e-9  # chosen by it
    monkeypatch.setattr(boosted, "MOST_CELLS", 40 * (len(models[1].columns) + 1))
    few = BoostedVisits(made)
    assert len(few.fitted) == 20


@pytest.mark.slow
def test_a_trial_without_code_pairs_sees_none_and_is_chosen_by_tuning_likelihood(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = given_to(task, prepared, train, tuning)
    every = boosted.TRIALS
    assert [trial["pairs"] for trial in every[:2]] == [True, False]
    widths: list[int] = []
    fit_one = boosted.HistGradientBoostingRegressor.fit

    def spy(self: Any, x: Any, *args: Any, **held: Any) -> Any:
        widths.append(x.shape[1])
        return fit_one(self, x, *args, **held)

    monkeypatch.setattr(boosted.HistGradientBoostingRegressor, "fit", spy)
    nll, rows = [], np.arange(len(tuning))
    for trials in (every[:1], every[1:2], every[:2]):
        monkeypatch.setattr(boosted, "TRIALS", trials)
        model = BoostedVisits(made, trials=2)
        nll.append(float(model.nll(tuning, rows).mean()))
    of_pairs = int(np.sum(model.kept.used >= len(model.columns) - 2 * len(model.columns.pairs)))
    assert of_pairs > 5
    causes, whole = len(task.causes), len(model.kept.used) + 1
    assert widths == [whole] * causes + [whole - of_pairs] * causes + [whole, whole - of_pairs] * causes
    assert nll[2] <= min(nll[:2]) + 1e-9
    names = [model.columns.names[column] for column in model.kept.used[model.kept.without_pairs()[:-1]]]
    assert not any(" + " in name for name in names)


def test_boosting_does_without_ages_and_without_a_second_visit(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    """Columns that nobody has: the trees' binning fails on them."""
    ageless = [
        with_rows(
            split,
            age_years=np.full(len(split), np.nan, np.float32),
            visits_before=np.minimum(split.rows.visits_before, 1),
        )
        for split in (train, tuning)
    ]
    model = BoostedVisits(given_to(task, prepared, *ageless))
    assert len(model.cuts[0]) == len(model.cuts[3]) == 0  # ages, days between visits
    assert np.isfinite(model.nll(ageless[1], np.arange(len(tuning)))).all()


# ---- landmark Cox and blanking -----------------------------------------------------------------------------------


def blanked(split: TaskRecords, days: float) -> TaskRecords:
    """The same prediction times, exposure starting some days later; events until then drop out."""
    rows = split.rows
    kept = np.asarray(rows.duration_days) > days
    entry = np.full(len(rows), days, np.float32)
    duration = np.where(kept, rows.duration_days, days + 1e-3)
    cause = np.where(kept, rows.cause, 0).astype(np.int8)
    return with_rows(split, entry_days=entry, duration_days=duration, cause=cause)


@pytest.mark.parametrize("kind", [MarginalIncidence, AgeAndSex, LandmarkCox, BoostedVisits])
def test_risks_given_survival_are_conditional_and_know_nothing_of_the_blanking(
    kind: type,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    tuning: TaskRecords,
) -> None:
    days, chosen, start = np.array([100.0, 200.0, 730.5]), np.arange(0, len(train), 7), 200.0
    model = fit(kind, task, prepared, train, tuning)
    plain, at_start = (model.risk(train, chosen, d) for d in (days, np.array([start])))
    given = model.risk(train, chosen, days, start_days=start)
    expected = (plain - at_start) / (1 - at_start.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(given, np.where(days > start, expected, 0.0), atol=1e-12)

    late, judges = blanked(train, start), blanked(tuning, start)
    risk = fit(kind, task, prepared, late, judges).risk(late, chosen, days, start_days=start)
    survivors = np.flatnonzero(np.asarray(train.rows.duration_days) > start)
    duration = np.asarray(train.rows.duration_days)[survivors] - start
    observed = aalen_johansen(duration, train.rows.cause[survivors].astype(np.int64), n_causes=2).at(530.5)
    assert risk[:, 0, 2].mean() == pytest.approx(observed[0], abs=0.05)


def test_landmark_cox_learns_what_the_record_says_and_keeps_to_its_cells(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
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
    risk = model.risk(made, np.arange(len(made)), np.array([300.0]))[:, 0, 0]
    has = static[made.rows.subject]
    assert risk[has].mean() == pytest.approx(1 - np.exp(-300 / 250), abs=0.08)
    assert risk[~has].mean() == pytest.approx(1 - np.exp(-300 / 1000), abs=0.08)
    assert model.fits[1] is None
    monkeypatch.setattr(landmark_cox, "MOST_CELLS", 50 * (len(model.columns) + 1))
    few = LandmarkCox(given_to(task, prepared, made, judges))
    assert few.fits[0] is not None
    assert len(few.fits[0].baseline.times_days) <= 50


def test_a_linear_design_is_finite_never_extrapolates_and_is_fitted_on_training_rows_only(
    prepared: Prepared, train: TaskRecords, tuning: TaskRecords
) -> None:
    columns = fit_feature_spec(train, prepared.vocabulary)

    def features(split: TaskRecords) -> np.ndarray:
        return history_features(split, prepared.vocabulary, chosen=np.arange(len(split)), columns=columns)

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


def test_censoring_by_history_follows_who_drops_out(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    def dropping(split: TaskRecords, seed: int) -> TaskRecords:
        """Those over the median age leave four times as early."""
        rng, age = np.random.default_rng(seed), np.asarray(split.rows.age_years)
        old = age > np.median(np.asarray(train.rows.age_years))
        left = rng.exponential(np.where(old, 200.0, 800.0))
        event = rng.exponential(2000.0, len(age))
        cause = np.where(event < left, 1, 0).astype(np.int8)
        return with_rows(split, duration_days=np.minimum(event, left), cause=cause)

    made, judges = dropping(train, 1), dropping(tuning, 2)
    model = HistoryCensoring(given_to(task, prepared, made, judges))
    for landmark in (0.0, None, 12345.0):  # the last: nobody is at risk there in training
        rows = judges.rows
        chosen = np.arange(len(rows)) if landmark != 0.0 else np.flatnonzero(rows.at_landmark(0.0))
        g = model.of_rows(judges, chosen, landmark_days=landmark).before(200.0)
        old = np.asarray(rows.age_years)[chosen] > np.median(np.asarray(train.rows.age_years))
        assert g[old].mean() < g[~old].mean() - 0.12  # the ridge shrinks what few subjects say
        km = censoring_survival(rows.duration_days[chosen], rows.cause[chosen]).before(200.0)
        assert g.mean() == pytest.approx(float(km), abs=0.12)


# ---- our own architectures ---------------------------------------------------------------------------------------


def test_a_variant_keeps_what_it_can_and_drops_what_it_has_not() -> None:
    odd = ModelConfig(
        dim=64, visit_encoder="transformer", visit_layers=2, visit_pool="cls", delta_bins="linear", delta_bin_days=30.0,
        code_position=True, dropout=0.3, code_types=True, n_code_types=3, frozen=("age",), wide_head=True,
    )  # fmt: skip
    flat, lstm = variant(odd, FLAT), variant(odd, LSTM)
    assert (flat.architecture, flat.dim, flat.dropout, flat.code_types, flat.frozen) == (
        "flat",
        64,
        0.3,
        True,
        ("age",),
    )
    assert (lstm.timeline, lstm.visit_layers, lstm.delta_bin_days) == ("lstm", 2, 30.0)
    assert variant(ModelConfig(architecture="flat", max_tokens=99), LSTM).timeline == "lstm"
    assert is_variant(lstm, LSTM)
    assert is_variant(flat, FLAT)
    assert not is_variant(odd, LSTM)
    for name in ModelConfig.model_fields:  # whatever else a run sets, both variants are legal
        default = ModelConfig.model_fields[name].default
        assert variant(odd, FLAT).model_dump()[name] is not None or default is None


def rivals(run: Path, prepared: Prepared) -> dict[str, Callable[[], Baseline]]:
    return trained.trained_baselines(RunToRival(run, prepared, Run(run).study), "simulated")


@pytest.mark.slow
def test_all_trains_lstm_and_flat_once_into_the_run(
    sim_run: Path,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    tuning: TaskRecords,
) -> None:
    common = given_to(task, prepared, train, tuning)
    with pytest.raises(EhrseqError, match="need the run's own data"):
        fit_baselines("all", common)
    made = {one.model.name: one for one in fit_baselines("all", common, more=rivals(sim_run, prepared))}
    assert set(made) == {
        "boosted visits",
        "competing-risk forest",
        LSTM,
        FLAT,
        "landmark Cox",
        "age + sex",
        "Aalen–Johansen",
    }
    Run(sim_run)  # still a valid run
    assert sorted(p.name for p in (sim_run / "baselines").iterdir()) == ["flat-behrt", "lstm"]
    days, rows = np.array([90.0, 365.25]), tuning.rows
    order = np.random.default_rng(0).permutation(len(rows))[:40]
    for model in (made[LSTM].model, made[FLAT].model):
        assert isinstance(model, TrainedBaseline)
        np.testing.assert_allclose(model.nll(tuning, order), nll_of_rows(model.run.model, tuning)[order], atol=1e-5)
        assert model.nll(tuning, order[:0]).shape == (0,)
        every = risk_of_rows(model.run.model, tuning, horizons_days=days)
        np.testing.assert_allclose(model.risk(tuning, order, days), every[order], atol=1e-6)
        given = model.risk(tuning, order, days, start_days=90.0)
        expected = (every[:, :, 1] - every[:, :, 0]) / (1 - every[:, :, 0].sum(axis=1, keepdims=True))
        np.testing.assert_allclose(given[:, :, 1], expected[order], atol=1e-5)
        assert (given[:, :, 0] == 0).all()
        assert model.risk(tuning, order[:0], days).shape == (0, 2, 2)
    manifests = {p: p.stat().st_mtime_ns for p in sim_run.glob("baselines/*/manifest.json")}
    again = {one.model.name: one for one in fit_baselines("all", common, more=rivals(sim_run, prepared))}
    assert {p: p.stat().st_mtime_ns for p in manifests} == manifests  # taken, not trained again
    both = (kept[LSTM].model.risk(tuning, order, days) for kept in (made, again))
    np.testing.assert_array_equal(*both)


def test_a_trained_baseline_is_whole_or_absent_and_follows_the_settings(
    sim_run: Path, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    study = Run(sim_run).study

    def train(changed: StudyConfig) -> TrainedBaseline:
        return train_baseline(LSTM, prepared=prepared, task_name="simulated", study=changed, run_folder=tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(trained.Trainer, "write_run", fail)
        with pytest.raises(RuntimeError):
            train(study)
    assert not list(tmp_path.rglob("*.safetensors"))
    (tmp_path / "baselines" / f".tmp-{dead}-new-lstm").mkdir(parents=True)  # a killed process leaves this
    first = train(study)
    assert [p.name for p in (tmp_path / "baselines").iterdir()] == ["lstm"]
    assert first.run.manifest["seed"] == 0
    for changed in ({"seed": 9}, {"epochs": 1}, {"members": 2}):
        settings = TrainingConfig.model_validate(study.training.model_dump() | changed)
        again = train(study.model_copy(update={"training": settings}))
        assert again.run.study.training == settings
        assert np.isfinite(again.risk(prepared.records("simulated", "tuning"),
                                      np.arange(3), np.array([365.25]))).all()  # fmt: skip


def test_a_run_is_not_its_own_rival(sim_run: Path, prepared: Prepared, task: TaskConfig, tmp_path: Path) -> None:
    study = Run(sim_run).study
    own = RunToRival(tmp_path, prepared, study.model_copy(update={"model": variant(study.model, LSTM)}))
    assert list(trained.trained_baselines(own, task.name)) == [FLAT]
