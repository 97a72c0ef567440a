"""Metrics against the pair-by-pair twin (and its mutants), hand-counted cases and properties."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics import discrimination
from ehrsequencing.metrics.accuracy import (
    brier,
    decision_curve,
    index_of_prediction_accuracy,
    null_brier,
    observed_over_expected,
)
from ehrsequencing.metrics.censoring import (
    StepFunction,
    aalen_johansen,
    censoring_survival,
)
from ehrsequencing.metrics.discrimination import cumulative_dynamic_auc, wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows
from helpers.comparison import metric_table
from helpers.settings import examples
from reference import metrics_bruteforce as twin
from reference.metrics_bruteforce import Rules, Sample, random_sample

FAST = {"c": wolbers_c, "auc": cumulative_dynamic_auc, "brier": brier}
TWIN = {"c": twin.wolbers_c, "auc": twin.auc, "brier": twin.brier}


def scored(sample: Sample, **options: object) -> ScoredRows:
    return ScoredRows.of(sample.duration, sample.cause, sample.risk, sample.horizons, **options)  # type: ignore[arg-type]


def brute_table(name: str, sample: Sample, rules: Rules = twin.DEFAULT, g: twin.Curve | None = None) -> np.ndarray:
    """(causes, horizons) by the twin; NaN where the follow-up does not reach the horizon."""
    duration, cause = sample.duration.tolist(), sample.cause.tolist()
    curve = g or twin.censoring_curves(duration, cause, rules)
    table = np.full(sample.risk.shape[1:], np.nan)
    for e, h in np.ndindex(*table.shape):
        horizon = float(sample.horizons[h])
        if twin.reaches(duration, cause, horizon) and curve(horizon) > 0:
            score = sample.risk[:, e, h].tolist()
            table[e, h] = TWIN[name](duration, cause, score, e + 1, horizon, curve, rules)
    return table


# -- against the twin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAST)
def test_equals_the_brute_force_twin(name: str) -> None:
    n_defined, n_samples = 0, examples(400)
    for seed in range(n_samples):
        sample = random_sample(seed)
        expected = brute_table(name, sample)
        np.testing.assert_allclose(FAST[name](scored(sample)), expected, rtol=0, atol=1e-10, err_msg=f"seed {seed}")
        n_defined += int(np.isfinite(expected).sum())
    assert n_defined > 2 * n_samples


@pytest.mark.parametrize("name", FAST)
def test_equals_the_twin_with_censoring_weights_from_other_rows(name: str) -> None:
    for seed in range(examples(120)):
        sample, other = random_sample(seed), random_sample(seed + 1000)
        g = twin.censoring_curves(other.duration.tolist(), other.cause.tolist())
        fast = FAST[name](scored(sample, censoring=censoring_survival(other.duration, other.cause)))
        np.testing.assert_allclose(fast, brute_table(name, sample, g=g), rtol=0, atol=1e-10, err_msg=f"seed {seed}")


MUTANTS: dict[str, list[dict[str, object]]] = {
    "c": [
        {"tied_score": 1.0},
        {"tied_score": 0.0},
        {"censored_at_event_is_later": False},
        {"event_at_horizon_counts": False},
        {"competing_is_censoring": True},
        {"weigh_pairs_twice": False},
        {"events_leave_before_censoring": False},
        {"g_before": False},
    ],
    "auc": [
        {"tied_score": 1.0},
        {"competing_are_controls": False},
        {"events_leave_before_censoring": False},
        {"g_before": False},
        {"censored_at_horizon_is_free": False},
    ],
    "brier": [
        {"competing_is_censoring": True},
        {"events_leave_before_censoring": False},
        {"g_before": False},
        {"censored_at_horizon_is_free": False},
    ],
}


@pytest.mark.parametrize(("name", "change"), [(name, change) for name in MUTANTS for change in MUTANTS[name]])
def test_the_comparison_notices_every_broken_rule(name: str, change: dict[str, object]) -> None:
    rules = dataclasses.replace(twin.DEFAULT, **change)  # type: ignore[arg-type]

    def is_noticed(sample: Sample) -> bool:
        try:
            broken = brute_table(name, sample, rules)
        except ZeroDivisionError:  # a mutant may divide by G = 0
            return True
        return not np.allclose(FAST[name](scored(sample)), broken, rtol=0, atol=1e-6, equal_nan=True)

    assert any(is_noticed(random_sample(seed)) for seed in range(40))


def test_aalen_johansen_and_net_benefit_equal_the_twin() -> None:
    for seed in range(examples(120)):
        sample = random_sample(seed)
        duration, cause = sample.duration.tolist(), sample.cause.tolist()
        n_causes = sample.risk.shape[1]
        fast = aalen_johansen(sample.duration, sample.cause, n_causes=n_causes).at(sample.horizons)
        g = twin.censoring_curves(duration, cause)
        thresholds = [0.1, 0.2, 0.35]
        curve = decision_curve(scored(sample), thresholds)
        for e, h in np.ndindex(*fast.shape):
            horizon = float(sample.horizons[h])
            assert fast[e, h] == pytest.approx(twin.aalen_johansen(duration, cause, e + 1, horizon), abs=1e-12)
            for k, threshold in enumerate(thresholds):
                if np.isfinite(curve["net_benefit"][e, h, k]):
                    risk = sample.risk[:, e, h].tolist()
                    slow = twin.net_benefit(duration, cause, risk, e + 1, horizon, g, threshold)
                    assert curve["net_benefit"][e, h, k] == pytest.approx(slow, abs=1e-12)


# -- counted by hand ---------------------------------------------------------------------------------------------------


def cell(
    metric: Callable[[ScoredRows], np.ndarray],
    duration: list[float],
    cause: list[int],
    risk: list[float],
    horizon: float,
    n_causes: int = 1,
) -> float:
    risks = np.repeat(np.array(risk)[:, None, None], n_causes, axis=1)
    return float(metric(ScoredRows.of(duration, cause, risks, [horizon]))[0, 0])


Case = tuple[list[float], list[int], list[float], float, float]  # durations, causes, risks, horizon, and C
C_BY_HAND: dict[str, Case] = {
    # Events on days 1, 2, 3, 4. Six pairs: (1,2) lost, (1,3) won, (1,4) tied, (2,3) won, (2,4) won, (3,4) lost.
    "without censoring": ([1, 2, 3, 4], [1, 1, 1, 1], [0.5, 0.9, 0.1, 0.5], 5, 3.5 / 6),
    # Subject b has the competing event on day 1 and so never has the event: a (day 2) and c (day 3) are both compared
    # with it. Pairs: (a, b) lost, (a, c) won, (c, b) lost.
    "a competing event": ([2, 1, 3], [1, 2, 1], [0.4, 0.8, 0.2], 4, 1 / 3),
    # On day 2 one of the three at risk is censored: G(3−) = 2/3. The event of day 1 has weight 1 for its three pairs
    # (two won, one lost), the event of day 3 has weight (3/2)² for its one pair, won.
    "censoring": ([1, 2, 3, 4], [1, 0, 1, 0], [0.5, 0.7, 0.4, 0.3], 4, (2 + 9 / 4) / (3 + 9 / 4)),
    # Day 1: two events (not comparable with each other) and one censored (outlived both): (a, c) won, (b, c) lost.
    # Nobody is seen after day 1, so the horizon is day 1 itself.
    "ties in time": ([1, 1, 1], [1, 1, 0], [0.9, 0.2, 0.5], 1, 0.5),
    # A competing event at the same instant is in the event's past: comparable, and won.
    "a tie with a competing event": ([1, 1, 2], [1, 2, 2], [0.9, 0.5, 0.9], 1, 1.5 / 2),
}


@pytest.mark.parametrize("case", C_BY_HAND)
def test_c_counted_by_hand(case: str) -> None:
    duration, cause, risk, horizon, c = C_BY_HAND[case]
    assert cell(wolbers_c, duration, cause, risk, horizon, n_causes=max(cause)) == pytest.approx(c)


def test_no_comparable_pairs_is_undefined_not_a_half() -> None:
    assert math.isnan(cell(wolbers_c, [1, 2, 3], [0, 0, 0], [0.1, 0.2, 0.3], 3))
    assert math.isnan(cell(wolbers_c, [2, 2], [1, 1], [0.1, 0.2], 2))
    assert math.isnan(cell(cumulative_dynamic_auc, [1, 2, 3], [0, 0, 0], [0.1, 0.2, 0.3], 3))
    assert math.isnan(cell(cumulative_dynamic_auc, [2, 2], [1, 1], [0.1, 0.2], 2))


def test_observed_over_expected_and_ipa_counted_by_hand() -> None:
    rows = ScoredRows.of([1, 2, 9, 9], [1, 1, 0, 0], np.array([0.8, 0.6, 0.2, 0.4])[:, None, None], [5])
    assert observed_over_expected(rows)[0, 0] == pytest.approx(2 / 2)
    # hazards −log(1 − risk) / 5 a day, for 1, 2, 5 and 5 days
    hazards = -np.log1p(-rows.risk) / 5 * np.array([1, 2, 5, 5])[:, None, None]
    expected = ScoredRows.of([1, 2, 9, 9], [1, 1, 0, 0], rows.risk, [5], expected=hazards)
    assert observed_over_expected(expected)[0, 0] == pytest.approx(2 / -np.log(0.2**0.2 * 0.4**0.4 * 0.8 * 0.6))
    # the second row censored on day 3 counts for nothing, and the last two stand for it: each weighs 1.5
    censored = ScoredRows.of([1, 3, 9, 9], [1, 0, 0, 0], rows.risk, [5])
    assert observed_over_expected(censored)[0, 0] == pytest.approx(1 / (0.8 + 1.5 * (0.2 + 0.4)))
    assert index_of_prediction_accuracy(rows)[0, 0] == pytest.approx(1 - (0.04 + 0.16 + 0.04 + 0.16) / 4 / 0.25)
    assert null_brier(rows)[0, 0] == pytest.approx(0.25)
    zero = ScoredRows.of([1, 9], [1, 0], np.zeros((2, 1, 1)), [5])
    assert math.isnan(observed_over_expected(zero)[0, 0])


def test_censoring_curve_lets_events_leave_first() -> None:
    # Day 2: one event, one censored, one beyond. The event leaves first, so one of two is censored.
    curve = censoring_survival([2, 2, 3], [1, 0, 0])
    assert curve.before(2.0) == 1
    assert curve.at(2.0) == pytest.approx(1 / 2)


# -- properties --------------------------------------------------------------------------------------------------------

seeds = st.integers(0, 10**6)


@settings(max_examples=12, deadline=None)
@given(seeds, st.integers(0, 10**6))
def test_weights_are_repeated_rows_and_a_block_is_its_rows(seed: int, draw: int) -> None:
    sample = random_sample(seed)
    rng = np.random.default_rng(draw)
    weights = rng.integers(0, 4, size=(3, len(sample.cause)))
    weights[:, rng.integers(len(sample.cause))] += 1  # at least one row
    block = metric_table(sample.duration, sample.cause, sample.risk, sample.horizons, weights=weights)
    for r, weight in enumerate(weights):
        one = metric_table(sample.duration, sample.cause, sample.risk, sample.horizons, weights=weight)
        again = np.repeat(np.arange(len(weight)), weight)
        repeated = metric_table(sample.duration[again], sample.cause[again], sample.risk[again], sample.horizons)
        for name in repeated:
            np.testing.assert_allclose(one[name], repeated[name], rtol=0, atol=1e-9, err_msg=name)
            np.testing.assert_allclose(block[name][r], repeated[name], rtol=0, atol=1e-9, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_ipcw_weights_sum_to_n_and_their_mean_event_is_aalen_johansen(seed: int) -> None:
    sample = random_sample(seed)
    rows = scored(sample)
    for h in np.flatnonzero(rows.covered[0]):
        known = rows.known_weights[int(h)][0]
        assert known.sum() == pytest.approx(len(sample.cause))
        mean_event = (known * rows.has_event_by(int(h))).sum(axis=1) / len(sample.cause)
        assert mean_event == pytest.approx(rows.observed_risk[0, :, h], abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_discrimination_sees_only_ranks_and_turns_round_with_them(seed: int) -> None:
    sample = random_sample(seed)
    squared = dataclasses.replace(sample, risk=sample.risk**2)
    reversed_ = dataclasses.replace(sample, risk=1.0 - sample.risk)
    for metric in (wolbers_c, cumulative_dynamic_auc):
        value = metric(scored(sample))
        np.testing.assert_allclose(metric(scored(squared)), value, rtol=0, atol=1e-12)
        np.testing.assert_allclose(metric(scored(reversed_)), 1.0 - value, rtol=0, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_predicting_the_observed_incidence_has_no_skill_and_no_discrimination(seed: int) -> None:
    sample = random_sample(seed)
    incidence = aalen_johansen(sample.duration, sample.cause, n_causes=sample.risk.shape[1]).at(sample.horizons)
    table = metric_table(sample.duration, sample.cause, np.tile(incidence, (len(sample.cause), 1, 1)), sample.horizons)
    for name, value in {"ipa": 0.0, "c": 0.5, "auc": 0.5}.items():
        defined = table[name][np.isfinite(table[name])]
        np.testing.assert_allclose(defined, value, rtol=0, atol=1e-9, err_msg=name)


def tables_differ(first: dict[str, np.ndarray], second: dict[str, np.ndarray], name: str) -> bool:
    return not np.allclose(first[name], second[name], rtol=0, atol=1e-6, equal_nan=True)


def test_broken_mutants_of_the_properties_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = random_sample(11, n=40, n_causes=2)
    arguments = (sample.duration, sample.cause, sample.risk, sample.horizons)
    straight = metric_table(*arguments)
    # Ranks: a metric of the risk's size is no metric of its rank.
    assert tables_differ(straight, metric_table(*arguments[:2], sample.risk**2, sample.horizons), "brier")
    # Weights: forgetting them in the censoring distribution.
    weights = np.random.default_rng(0).integers(0, 3, size=len(sample.cause))
    again = np.repeat(np.arange(len(weights)), weights)
    repeated = metric_table(sample.duration[again], sample.cause[again], sample.risk[again], sample.horizons)
    unweighted_g = censoring_survival(sample.duration, sample.cause)
    for name in ("c", "auc", "brier"):
        assert tables_differ(repeated, metric_table(*arguments, weights=weights, censoring=unweighted_g), name)
    # Order of rows: ties in the score decided by position.
    order = np.random.default_rng(1).permutation(len(sample.cause))
    with monkeypatch.context() as patch:
        patch.setattr(discrimination, "dense_rank", lambda score: np.argsort(np.argsort(score, kind="stable")))
        broken = metric_table(*arguments)
        shuffled = metric_table(sample.duration[order], sample.cause[order], sample.risk[order], sample.horizons)
        assert tables_differ(broken, shuffled, "c")
        assert tables_differ(broken, shuffled, "auc")
    # Inverse probability: G(T) in place of G(T−).
    with monkeypatch.context() as patch:
        patch.setattr(StepFunction, "before", StepFunction.at)
        assert scored(sample).known_weights[1].sum() != pytest.approx(len(sample.cause))


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_horizons_beyond_follow_up_are_nan() -> None:
    duration, cause = [1.0, 2.0, 3.0], [1, 1, 0]
    risk = np.full((3, 1, 2), 0.5)
    table = metric_table(duration, cause, risk, [3.0, 3.5])
    for name in ("c", "auc", "brier", "ipa", "observed", "oe"):
        assert np.isfinite(table[name][0, 0]) or name == "auc"
        assert np.isnan(table[name][0, 1])


WRONG: dict[str, list[object]] = {
    "duration_days": [[], [1.0, np.nan, 2.0], [1.0, -1.0, 2.0]],
    "cause": [[0, 1], [0.0, 1.0, 1.0], [0, 1, 3], [0, 1, -1]],
    "risk": [
        np.full(shape, value)
        for shape, value in (((3, 2), 0.5), ((2, 2, 2), 0.5), ((3, 2, 2), np.nan), ((3, 2, 2), 1.5), ((3, 2, 2), -0.1))
    ],
    "horizons_days": [[2.0, 1.0], [-1.0, 1.0]],
}


@pytest.mark.parametrize(("where", "wrong"), [(where, wrong) for where, cases in WRONG.items() for wrong in cases])
def test_wrong_inputs_are_named(where: str, wrong: object) -> None:
    good: dict[str, Any] = {"duration_days": [1.0, 2.0, 3.0], "cause": [1, 0, 2]}
    good |= {"risk": np.full((3, 2, 2), 0.3), "horizons_days": [1.0, 2.0]}
    ScoredRows.of(**good)
    with pytest.raises(EhrseqError) as caught:
        ScoredRows.of(**(good | {where: wrong}))
    assert caught.value.where == where


def test_other_refusals() -> None:
    rows = ScoredRows.of([1.0, 2.0], [1, 0], np.full((2, 1, 1), 0.5), [1.5])
    with pytest.raises(EhrseqError, match="thresholds"):
        decision_curve(rows, [0.0])
