"""Landmark Cox, its design, and what blanking and drop-out do to it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ehrsequencing.config import TaskConfig
from ehrsequencing.metrics.censoring import aalen_johansen
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import CoxHazards, LandmarkCox
from ehrsequencing.predictors.fit import AgeAndSex, MarginalIncidence, fit_baselines, fit_last_step
from ehrsequencing.predictors.fitting_data import LinearDesign
from ehrsequencing.predictors.history import fit_feature_spec, history_features
from ehrsequencing.predictors.predictor import Recalibrated
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from helpers.baselines import EDGES, blanked, fit, given_to, with_rows


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
