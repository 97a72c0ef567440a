"""What no metric may depend on (unit of time, order of rows, origin of a covariate), and sums of Brier scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.metrics import accuracy, plain
from ehrsequencing.metrics.accuracy import observed_over_expected
from ehrsequencing.metrics.calibration import fit_logistic, spline_design, spline_knots
from ehrsequencing.metrics.censoring import SubjectClock, aalen_johansen
from ehrsequencing.metrics.hazards import expected_events, hazards_through
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.registry import METRICS, values
from ehrsequencing.predictors.cox import CoxRegression, CoxRows
from helpers.settings import examples
from reference.metrics_bruteforce import Sample, random_sample

#: A day in hours, minutes, weeks, months and years.
UNITS = {"hours": 24.0, "minutes": 1440.0, "weeks": 1 / 7, "months": 1 / 30.4375, "years": 1 / 365.25}
SLOW = [pytest.param(unit, marks=pytest.mark.slow) for unit in ("hours", "weeks", "months")]
SEEDS = st.integers(0, 10_000)
some = settings(max_examples=examples(25), deadline=None)


def rising(seed: int) -> Sample:
    """Tied data with one to three causes, and risks that rise over the horizons and sum to less than 1."""
    sample = random_sample(seed, n=40)
    return replace(sample, risk=np.sort(sample.risk, axis=2) * 0.9)


def metrics_of(sample: Sample, **more: object) -> dict[str, np.ndarray]:
    """Every metric that is made of scored rows."""
    rows = ScoredRows.of(sample.duration, sample.cause, sample.risk, sample.horizons, **more)  # type: ignore[arg-type]
    return values(rows, METRICS.values())


def same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        np.testing.assert_allclose(theirs[key], value, rtol=1e-6, atol=1e-7, err_msg=key)


@pytest.mark.parametrize("unit", ["minutes", "years", *SLOW])
@given(seed=SEEDS)
@some
def test_metrics_do_not_depend_on_the_unit_of_time(unit: str, seed: int) -> None:
    sample, a_day = rising(seed), UNITS[unit]
    there = replace(sample, duration=sample.duration * a_day, horizons=sample.horizons * a_day)
    same(metrics_of(sample), metrics_of(there))


@pytest.mark.parametrize("unit", ["minutes", SLOW[0]])
@given(seed=SEEDS)
@some
def test_weights_of_a_subject_s_clock_do_not_depend_on_the_unit(unit: str, seed: int) -> None:
    """Rows of several prediction times a subject: whole units since the index, written in days or in the unit."""
    a_day, sample, rng = UNITS[unit], rising(seed), np.random.default_rng(seed)
    since = rng.integers(0, 40, len(sample.cause)) / a_day
    durations = np.maximum(np.round(sample.duration * 8), 1) / a_day
    subject = np.arange(len(since)) // 2
    found = []
    for factor in (1.0, a_day):
        clock = SubjectClock.fit(since * factor, durations * factor, sample.cause, subject)
        there = replace(sample, duration=durations * factor, horizons=np.array([4, 9, 16]) / a_day * factor)
        found.append(metrics_of(there, censoring=clock))
    same(*found)


@given(seed=SEEDS)
@some
def test_metrics_do_not_depend_on_the_order_of_rows(seed: int) -> None:
    sample = rising(seed)
    order = np.random.default_rng(seed).permutation(len(sample.cause))
    there = replace(sample, duration=sample.duration[order], cause=sample.cause[order], risk=sample.risk[order])
    same(metrics_of(sample), metrics_of(there))


@given(seed=SEEDS)
@some
def test_metrics_of_a_cause_do_not_depend_on_the_numbers_of_causes(seed: int) -> None:
    sample = rising(seed)
    n_causes = sample.risk.shape[1]
    order = np.random.default_rng(seed).permutation(n_causes)
    number = np.r_[0, np.argsort(order) + 1]
    there = metrics_of(replace(sample, cause=number[sample.cause], risk=sample.risk[:, order]))
    same({key: value[order] for key, value in metrics_of(sample).items()}, there)


# -- Brier -------------------------------------------------------------------------------------------------------------


def covered_briers(sample: Sample, risk: float, **more: object) -> np.ndarray:
    """(causes, horizons) or (resamples, causes, horizons) Brier scores of one risk for everybody and each cause."""
    everybody = np.full((len(sample.cause), max(int(sample.cause.max()), 1), len(sample.horizons)), risk)
    rows = ScoredRows.of(sample.duration, sample.cause, everybody, sample.horizons, **more)  # type: ignore[arg-type]
    return accuracy.brier(rows)


@pytest.mark.parametrize("n_causes", [1, 2, 3])
@given(seed=SEEDS)
@some
def test_brier_of_0_is_the_incidence_and_with_brier_of_1_it_is_1(n_causes: int, seed: int) -> None:
    sample = random_sample(seed, n_causes=n_causes)
    zero, one = covered_briers(sample, 0.0), covered_briers(sample, 1.0)
    known = np.isfinite(zero)
    incidence = aalen_johansen(sample.duration, sample.cause, n_causes=len(zero)).at(sample.horizons)
    np.testing.assert_allclose(zero[known], incidence[known], rtol=0, atol=1e-12)
    np.testing.assert_allclose((zero + one)[known], 1.0, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(known, np.isfinite(one))
    for h in np.flatnonzero(known.all(axis=0)):
        for risk, there in ((0.0, zero), (1.0, one)):
            score = plain.brier(
                sample.duration, sample.cause, np.full(len(sample.cause), risk), horizon=sample.horizons[h]
            )
            assert score == pytest.approx(there[0, h], abs=1e-12)


def test_brier_s_identities_notice_competing_events_that_count_as_censored() -> None:
    """The fault that most libraries have."""
    worst = 0.0
    for seed in range(20):
        sample = random_sample(seed, n_causes=2)
        wrong = replace(sample, cause=np.where(sample.cause == 2, 0, sample.cause))
        zero = covered_briers(wrong, 0.0)[0]
        incidence = aalen_johansen(sample.duration, sample.cause, n_causes=2).at(sample.horizons)[0]
        worst = max(worst, np.nanmax(np.abs(zero - incidence), initial=0.0, where=np.isfinite(zero)))
    assert worst > 0.05


# -- hazards, O/E and covariates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@given(seed=SEEDS)
@some
def test_hazards_are_per_unit_and_expected_events_are_not(unit: str, seed: int) -> None:
    sample, a_day = rising(seed), UNITS[unit]
    hazards = hazards_through(sample.risk, sample.horizons)
    np.testing.assert_allclose(hazards_through(sample.risk, sample.horizons * a_day) * a_day, hazards, rtol=1e-9)
    here, there = (
        expected_events(
            sample.risk,
            sample.horizons * factor,
            duration_days=sample.duration * factor,
            horizons_days=sample.horizons * factor,
        )
        for factor in (1.0, a_day)
    )
    np.testing.assert_allclose(there, here, rtol=1e-9)
    turned = expected_events(
        sample.risk[::-1], sample.horizons, duration_days=sample.duration[::-1], horizons_days=sample.horizons
    )
    np.testing.assert_allclose(turned[::-1], here, rtol=1e-12)


@pytest.mark.parametrize("origin", [-40.0, 1950.0, 1e6])
@given(seed=SEEDS)
@some
def test_fits_do_not_depend_on_the_origin_of_a_covariate(origin: float, seed: int) -> None:
    """A year of birth instead of an age: the same risks, in Cox regression, recalibration and splines."""
    rng = np.random.default_rng(seed)
    x, entry = rng.normal(size=(60, 2)), np.zeros(60)
    duration, event = rng.integers(1, 20, 60) / 4.0, rng.random(60) < 0.6
    here, there = (CoxRegression(CoxRows(x + move, entry, duration, event)).fit(ridge=1.0) for move in (0.0, origin))
    np.testing.assert_allclose(there.log_hazard(x + origin), here.log_hazard(x), rtol=0, atol=1e-6)
    design, weights = np.column_stack([np.ones(60), x]), np.ones((1, 60))
    moved = design + np.array([0.0, 1.0, 1.0]) * np.clip(origin, -100, 100)
    outcome = event.astype(float)
    fitted = [some_design @ fit_logistic(some_design, outcome, weights)[0] for some_design in (design, moved)]
    np.testing.assert_allclose(fitted[1], fitted[0], rtol=0, atol=1e-5)
    knots = spline_knots(x[:, 0])
    basis = [spline_design(x[:, 0] + move, knots + move) for move in (0.0, origin)]
    np.testing.assert_allclose(basis[1], basis[0], rtol=0, atol=1e-6)


# ---- o/E of true risks is 1, however the hazard runs within the horizons and however many people leave before them ---


YEARS = np.array([1.0, 3.0, 5.0])
SHAPES = (0.35, 0.6, 2.0, 3.0)


def world(
    shape: float, leaving: float, horizons: np.ndarray, *, n: int = 30_000
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Durations, causes and true risks; a share of the people leaves before the last horizon."""
    rng = np.random.default_rng([int(100 * shape), int(100 * leaving)])
    rate = 0.3 * np.exp(0.8 * rng.normal(size=n)) / 5.0**shape
    event = rng.exponential(1 / rate) ** (1 / shape)
    end = rng.exponential(-5.0 / np.log1p(-leaving), n)
    risk = -np.expm1(-rate[:, None] * horizons**shape)[:, None]
    return np.minimum(event, end), (event <= end).astype(np.int64), risk


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("leaving", [0.5, 0.7])
@pytest.mark.parametrize("horizons", [YEARS[-1:], YEARS], ids=["one horizon", "three horizons"])
def test_true_risks_have_a_ratio_of_one(shape: float, leaving: float, horizons: np.ndarray) -> None:
    duration, cause, risk = world(shape, leaving, horizons)
    ratio = observed_over_expected(ScoredRows.of(duration, cause, risk, horizons))[0]
    assert abs(ratio[-1] - 1) < 0.03
    events = ((cause == 1)[:, None] & (duration[:, None] <= horizons)).sum(axis=0)
    assert (np.abs(ratio - 1) < 4 / np.sqrt(events)).all()  # few are early where hazards rise


def test_one_hazard_through_one_horizon_blames_them() -> None:
    """The mutant: what the number was until version 3."""
    worst = []
    for shape in SHAPES:
        duration, cause, risk = world(shape, 0.7, YEARS[-1:])
        through = expected_events(risk, YEARS[-1:], duration_days=duration, horizons_days=YEARS[-1:])
        rows = ScoredRows.of(duration, cause, risk, YEARS[-1:], expected=through)
        worst.append(observed_over_expected(rows)[0, 0])
    assert worst[0] > 1.2 > 0.9 > worst[2] > worst[3]
