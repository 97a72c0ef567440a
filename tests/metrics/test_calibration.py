"""Calibration: counted by hand, against the twin, against known miscalibration, and the null of the indices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, logit

from ehrsequencing.metrics import calibration
from ehrsequencing.metrics.bootstrap import calibration_null
from ehrsequencing.metrics.calibration import (
    aalen_johansen_error,
    calibration_intercept_slope,
    distance_indices,
    fit_logistic,
    fit_resamples,
    ks_calibration,
    smooth_calibration,
)
from ehrsequencing.metrics.discrimination import cumulative_dynamic_auc, wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows
from helpers.settings import examples
from reference import metrics_bruteforce as twin
from reference.metrics_bruteforce import random_sample

HORIZONS = np.array([1.0, 3.0])


def cohort(seed: int, n: int, *, shift: float = 0.0, stretch: float = 1.0, tick: float = 0.0) -> ScoredRows:
    """Two causes, censoring; the logit of the true risk, stretched and shifted, is what is predicted.

    With a `tick` everything is seen only at its multiples, so that events and censorings share instants.
    """
    rng = np.random.default_rng(seed)
    hazard = np.array([0.12, 0.16]) * np.exp(rng.normal(size=(n, 2)) * [0.9, 0.6])
    total = hazard.sum(axis=1)
    time = rng.exponential(1.0 / total)
    cause = np.where(rng.random(n) < hazard[:, 0] / total, 1, 2)
    censored_at = np.minimum(rng.exponential(6.0, size=n), rng.uniform(2.0, 8.0, size=n))
    if tick:
        time, censored_at = np.ceil(time / tick) * tick, np.ceil(censored_at / tick) * tick
    truth = (hazard / total[:, None])[:, :, None] * (1.0 - np.exp(-total[:, None, None] * HORIZONS))
    predicted = expit(shift + stretch * logit(truth))
    return ScoredRows.of(np.minimum(time, censored_at), np.where(time <= censored_at, cause, 0), predicted, HORIZONS)


def two_levels() -> ScoredRows:
    """Risk 0.2 for four rows, one of which has the event; risk 0.6 for four rows, three of which have it."""
    risk = np.repeat([0.2, 0.6], 4)[:, None, None]
    return ScoredRows.of([1, 9, 9, 9, 1, 1, 1, 9], [1, 0, 0, 0, 1, 1, 1, 0], risk, [5])


# -- counted by hand ---------------------------------------------------------------------------------------------------


def test_slope_and_intercept_of_two_levels() -> None:
    intercept, slope = calibration_intercept_slope(two_levels())
    assert slope[0, 0] == pytest.approx((logit(0.75) - logit(0.25)) / (logit(0.6) - logit(0.2)), abs=1e-9)
    assert np.sum(expit(intercept[0, 0] + logit(np.repeat([0.2, 0.6], 4)))) == pytest.approx(4.0, abs=1e-9)


def test_smooth_curve_of_two_levels_is_their_observed_risk() -> None:
    smooth = smooth_calibration(two_levels(), points=2)
    assert smooth["predicted"][0, 0] == pytest.approx([0.2, 0.6], abs=1e-9)
    assert smooth["observed"][0, 0] == pytest.approx([0.25, 0.75], abs=1e-9)
    assert smooth["ici"][0, 0] == pytest.approx((0.05 + 0.15) / 2, abs=1e-9)
    assert smooth["e50"][0, 0] == pytest.approx(0.05, abs=1e-9)
    assert smooth["e90"][0, 0] == pytest.approx(0.15, abs=1e-9)


def test_one_risk_for_everyone_has_an_ici_but_no_slope() -> None:
    rows = ScoredRows.of([1, 9, 9, 9], [1, 0, 0, 0], np.full((4, 1, 1), 0.4), [5])
    assert smooth_calibration(rows)["ici"][0, 0] == pytest.approx(0.15, abs=1e-9)
    intercept, slope = calibration_intercept_slope(rows)
    assert intercept[0, 0] == pytest.approx(logit(0.25) - logit(0.4), abs=1e-9)
    assert math.isnan(slope[0, 0])


@pytest.mark.parametrize(
    ("cause", "reason"), [([0, 0, 0, 0], "no event"), ([1, 1, 1, 1], "only events"), ([0, 0, 1, 1], "separated")]
)
def test_without_a_maximum_the_slope_is_undefined(cause: list[int], reason: str) -> None:
    duration = np.where(np.array(cause) == 1, 1, 9)
    rows = ScoredRows.of(duration, cause, np.array([0.1, 0.2, 0.7, 0.8])[:, None, None], [5])
    assert math.isnan(calibration_intercept_slope(rows)[1][0, 0]), reason
    assert math.isnan(smooth_calibration(rows)["ici"][0, 0]), reason


def test_ks_of_two_levels() -> None:
    # Up to 0.2: 1 event, 0.8 expected; in all: 4 events, 3.2 expected.
    assert ks_calibration(two_levels())[0, 0] == pytest.approx(0.8 / 8)


# -- twin, quantiles, weights ------------------------------------------------------------------------------------------


def test_ks_equals_the_twin() -> None:
    n_defined = 0
    for seed in range(examples(400)):
        sample = random_sample(seed)
        fast = ks_calibration(ScoredRows.of(sample.duration, sample.cause, sample.risk, sample.horizons))
        duration, cause = sample.duration.tolist(), sample.cause.tolist()
        g = twin.censoring_curves(duration, cause)
        for e, h in np.argwhere(np.isfinite(fast)):
            slow = twin.ks_calibration(duration, cause, sample.risk[:, e, h].tolist(), e + 1, sample.horizons[h], g)
            assert fast[e, h] == pytest.approx(slow, abs=1e-10)
            n_defined += 1
    assert n_defined > 2 * examples(400)


def test_indices_are_inverted_quantiles() -> None:
    rng = np.random.default_rng(0)
    distance, weights = rng.random((20, 37)), rng.integers(0, 4, size=(20, 37)).astype(float)
    for row, weight, (mean, e50, e90) in zip(distance, weights, distance_indices(distance, weights).T, strict=True):
        repeated = np.repeat(row, weight.astype(int))
        assert mean == pytest.approx(repeated.mean())
        quantiles = np.quantile(repeated, [0.5, 0.9], method="inverted_cdf")
        assert [e50, e90] == quantiles.tolist()


def test_resamples_without_a_maximum_are_undefined_and_the_others_are_fitted() -> None:
    rng = np.random.default_rng(5)
    outcome = np.repeat([0.0, 1.0], [27, 3])
    x = np.concatenate([rng.normal(-3, 1, 27), [-2.0, -1.5, -1.0]])
    x[1] = x[27]
    weights = rng.multinomial(30, np.full(30, 1 / 30), size=400).astype(float)
    weights[:4] = 0.0
    weights[0, [0, 29]] = weights[1, 27:] = weights[2, [4, 5]] = 1.0  # separated; events alone; none
    with_slope = np.column_stack([np.ones(30), x])
    fit = fit_logistic(with_slope, outcome, weights.mean(axis=0)[None])[0]
    weights[3, [1, 27]] = expit([-fit @ with_slope[1], fit @ with_slope[1]])  # one risk for all: no slope
    for design, offset in ((np.ones((30, 1)), x), (with_slope, 0.0)):
        reference = fit_logistic(design, outcome, weights, offset=offset)
        own = fit_resamples(design, outcome, weights, offset=offset)
        np.testing.assert_array_equal(np.isnan(own), np.isnan(reference))
        assert 10 < np.isnan(own[:, 0]).sum() < 300
        np.testing.assert_allclose(own, reference, atol=5e-4)


def test_places_of_too_few_people_are_left_out_and_the_others_stay_what_they_are() -> None:
    rows = cohort(4, 150)
    weights = np.random.default_rng(0).integers(0, 3, size=(4, 150))
    given = (rows.duration_days, rows.cause, rows.risk, HORIZONS)
    few = np.zeros(rows.risk.shape[1:], dtype=bool)
    few[0, 1] = True
    whole, part = (ScoredRows.of(*given, weights=weights, too_few=one) for one in (None, few))
    for metric in (wolbers_c, cumulative_dynamic_auc, lambda one: calibration_intercept_slope(one)[1]):
        reference, found = metric(whole), metric(part)
        assert np.isfinite(reference[:, few]).any()
        assert np.isnan(found[:, few]).all()
        np.testing.assert_array_equal(found[:, ~few], reference[:, ~few])
    np.testing.assert_array_equal(smooth_calibration(part)["ici"][:, ~few], smooth_calibration(whole)["ici"][:, ~few])


def test_weights_are_repeated_rows() -> None:
    rows = cohort(4, 150)
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 3, size=(2, 150))
    block = ScoredRows.of(rows.duration_days, rows.cause, rows.risk, HORIZONS, weights=weights)
    slope, ks = calibration_intercept_slope(block), ks_calibration(block)
    smooth = smooth_calibration(block)
    for r, weight in enumerate(weights):
        again = np.repeat(np.arange(150), weight)
        repeated = ScoredRows.of(rows.duration_days[again], rows.cause[again], rows.risk[again], HORIZONS)
        np.testing.assert_allclose([part[r] for part in slope], calibration_intercept_slope(repeated), atol=2e-5)
        np.testing.assert_allclose(ks[r], ks_calibration(repeated), atol=1e-12)
        # The curve's knots stay those of all rows, so it is compared with the same rows weighted alone.
        alone = ScoredRows.of(rows.duration_days, rows.cause, rows.risk, HORIZONS, weights=weight)
        np.testing.assert_allclose(smooth["ici"][r], smooth_calibration(alone)["ici"], atol=1e-5)
        np.testing.assert_allclose(smooth["observed"][r], smooth_calibration(alone)["observed"], atol=1e-5)
    # Mutant: the weights of the other resample.
    assert not np.allclose(slope[1][0], slope[1][1], atol=1e-3)


def test_logistic_fit_survives_hard_starts() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=3000) * 4.0 - 9.0  # rare events: a plain Newton step from 0 overshoots
    outcome = (rng.random(3000) < expit(x)).astype(float)
    design = np.column_stack([np.ones_like(x), x])
    beta = fit_logistic(design, outcome, np.ones((1, 3000)))[0]
    gradient = design.T @ (outcome - expit(design @ beta))
    assert np.abs(gradient).max() < 1e-6
    # Risks a hundred thousand times too small: the first step is 10⁵ too long and has to be halved.
    rows = ScoredRows.of([1, 1, 1] + [9] * 7, [1, 1, 1] + [0] * 7, np.full((10, 1, 1), 1e-5), [5])
    assert calibration_intercept_slope(rows)[0][0, 0] == pytest.approx(logit(0.3) - logit(1e-5))


# -- known miscalibration ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "stretch"), [(0.0, 1.0), (0.6, 1.0), (0.0, 1.6), (-0.3, 0.7)])
def test_slope_and_curve_find_the_miscalibration(shift: float, stretch: float) -> None:
    rows = cohort(0, 20_000, shift=shift, stretch=stretch)
    _, slope = calibration_intercept_slope(rows)
    np.testing.assert_allclose(slope, 1.0 / stretch, atol=0.08)
    smooth = smooth_calibration(rows)
    truth = expit((logit(smooth["predicted"]) - shift) / stretch)
    assert np.abs(smooth["observed"] - truth).max() < 0.04
    true_ici = np.abs(expit((logit(rows.risk) - shift) / stretch) - rows.risk).mean(axis=0)
    np.testing.assert_allclose(smooth["ici"], true_ici, atol=0.012)


# -- the null ----------------------------------------------------------------------------------------------------------


def null_ranks(n_cohorts: int, n: int, *, stretch: float = 1.0, tick: float = 0.0) -> dict[str, np.ndarray]:
    """(n_cohorts, causes, horizons) share of the null at or above the observed index."""
    ranks: dict[str, list[np.ndarray]] = {"ici": [], "e50": [], "e90": [], "ks": []}
    for seed in range(n_cohorts):
        rows = cohort(seed, n, stretch=stretch, tick=tick)
        null, smooth = calibration_null(rows, n_simulations=60, seed=seed), smooth_calibration(rows)
        observed = {"ici": smooth["ici"], "e50": smooth["e50"], "e90": smooth["e90"], "ks": ks_calibration(rows)}
        for name, values in observed.items():
            ranks[name].append((null[name] >= values).mean(axis=0))
    return {name: np.array(values) for name, values in ranks.items()}


@pytest.mark.parametrize("tick", [0.0, 1.0], ids=["continuous", "tied"])
@pytest.mark.parametrize(
    ("n_cohorts", "n"), [(30, 250), pytest.param(300, 400, marks=pytest.mark.slow)], ids=["fast", "thorough"]
)
def test_the_null_is_what_right_risks_show(n_cohorts: int, n: int, tick: float) -> None:
    for name, ranks in null_ranks(n_cohorts, n, tick=tick).items():
        standard_error = math.sqrt(1 / 12 / n_cohorts)
        assert np.abs(ranks.mean(axis=0) - 0.5).max() < 3 * standard_error, name


def test_wrong_risks_lie_outside_the_null() -> None:
    ranks = null_ranks(6, 500, stretch=1.8)
    assert np.median(ranks["ici"]) < 0.02
    assert np.median(ranks["ks"]) < 0.05


def test_null_is_undefined_beyond_follow_up() -> None:
    rows = ScoredRows.of([1.0, 2.0, 2.5, 2.5], [1, 0, 1, 0], np.full((4, 1, 2), 0.4), [2.0, 4.0])
    null = calibration_null(rows, n_simulations=5)
    assert np.isnan(null["ks"][:, :, 1]).all()
    assert np.isfinite(null["ks"][:, :, 0]).all()


# ---- the Aalen–Johansen error ----------------------------------------------------------------------------------------


def events_and_curves(n: int, days: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Durations and causes of n rows, and risks (n, 2, days) that bend: they rise with the square root of time."""
    rng = np.random.default_rng(3)
    duration, cause = np.round(rng.exponential(300.0, n), 1) + 1.0, rng.integers(0, 3, n)
    risk = rng.uniform(0.1, 0.4, (n, 2, 1)) * np.sqrt(days / days[-1])
    return duration, cause, risk


@pytest.mark.parametrize("weighted", [False, True])
def test_the_aalen_johansen_error_is_the_exact_integral(weighted: bool) -> None:
    """Of the predicted incidence, linear between its days, and the observed one, which jumps."""
    days = np.array([30.0, 45.0, 90.0, 365.0])
    duration, cause, risk = events_and_curves(80, days)
    weights = np.random.default_rng(0).integers(0, 3, (4, 80)) if weighted else None
    rows = ScoredRows.of(duration, cause, risk, days, weights=weights)
    middle = (np.arange(400_000) + 0.5) / 400_000 * days[-1]
    mean = rows.finish((rows.weights @ risk.reshape(80, -1) / rows.total_weight[:, None]).reshape(-1, 2, 4))
    curves = np.concatenate([np.zeros((*mean.shape[:-1], 1)), mean], axis=-1)
    predicted = np.apply_along_axis(lambda one: np.interp(middle, np.r_[0.0, days], one), -1, curves)
    observed = rows.finish(rows.counts.incidence.at(middle))
    exact = np.abs(predicted - observed).mean(axis=-1)
    np.testing.assert_allclose(aalen_johansen_error(rows), exact, rtol=1e-4)


def test_two_days_of_risks_are_not_enough_for_a_trapezoid_of_the_gap() -> None:
    """The observed incidence is followed at each jump, also where risks are known at the horizon alone."""
    duration, cause, _ = events_and_curves(400, np.array([30.0]))
    seen = ScoredRows.of(duration, cause, np.zeros((400, 2, 1)), [300.0]).observed_risk[0, :, 0]
    rows = ScoredRows.of(duration, cause, np.broadcast_to(seen[:, None], (400, 2, 1)), [300.0])
    assert (
        aalen_johansen_error(rows) > 0.005
    ).all()  # the straight line is not the curve, though both end at one point


def test_many_jumps_are_followed_closely_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    days = np.array([100.0, 400.0])
    rows = ScoredRows.of(*events_and_curves(3000, days), days)
    some = aalen_johansen_error(rows)
    monkeypatch.setattr(calibration, "MOST_JUMPS", 10**6)
    np.testing.assert_allclose(some, aalen_johansen_error(rows), rtol=0.01)
