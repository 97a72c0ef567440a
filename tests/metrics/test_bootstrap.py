"""Resampling of subjects and percentile intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics import bootstrap, discrimination
from ehrsequencing.metrics.accuracy import decision_curve
from ehrsequencing.metrics.bootstrap import bootstrap_subjects, percentile_interval, scaled_interval
from ehrsequencing.metrics.outcomes import ScoredRows
from helpers.comparison import metric_table


def drawn(subject_ids: np.ndarray, n_resamples: int, seed: int) -> np.ndarray:
    return np.concatenate(list(bootstrap_subjects(subject_ids, n_resamples, seed)))


def test_rows_of_a_subject_come_together_and_subjects_add_up() -> None:
    ids = np.array([30, 10, 10, 20, 30, 30, 77])
    weights = drawn(ids, 500, 0)
    assert weights.shape == (500, 7)
    np.testing.assert_array_equal(weights[:, 1], weights[:, 2])
    np.testing.assert_array_equal(weights[:, 0], weights[:, 5])
    np.testing.assert_array_equal(weights[:, [0, 1, 3, 6]].sum(axis=1), 4)
    assert weights.mean(axis=0) == pytest.approx(1.0, abs=0.15)
    assert (weights[:, 3] != weights[:, 6]).any()


def test_seed_decides_block_size_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.arange(50) % 20
    weights = drawn(ids, 17, 3)
    monkeypatch.setattr(bootstrap, "BLOCK_ELEMENTS", 5 * 50)
    np.testing.assert_array_equal(drawn(ids, 17, 3), weights)
    assert [len(block) for block in bootstrap_subjects(ids, 17, 3)] == [5, 5, 5, 2]
    np.testing.assert_array_equal(drawn(ids, 4, 3), weights[:4])
    assert (drawn(ids, 17, 4) != weights).any()


def test_four_rows_of_a_subject_are_not_four_subjects() -> None:
    rng, subjects = np.random.default_rng(0), np.repeat(np.arange(150), 4)
    x = rng.normal(size=150)
    time, censored_at = rng.exponential(2.0 * np.exp(-x)), rng.uniform(0.5, 6.0, size=150)
    risk = (1.0 - np.exp(-0.5 * np.exp(x) * 1.5))[subjects, None, None]
    duration, cause = np.minimum(time, censored_at)[subjects], (time <= censored_at).astype(int)[subjects]
    horizons = np.array([1.5])

    def spread(ids: np.ndarray) -> float:
        blocks = bootstrap_subjects(ids, 300, 0)
        found = [metric_table(duration, cause, risk, horizons, weights=block)["brier"] for block in blocks]
        return float(np.concatenate(found).std())

    # Drawing rows (the mutant) halves the standard error.
    assert spread(subjects) / spread(np.arange(600)) == pytest.approx(2.0, rel=0.2)


def test_percentile_interval_by_hand() -> None:
    samples = np.arange(101.0)[:, None] * [1.0, 2.0]
    lower, upper = percentile_interval(samples, level=0.9)
    assert lower == pytest.approx([5.0, 10.0])
    assert upper == pytest.approx([95.0, 190.0])


def test_an_interval_of_the_lucky_resamples_is_no_interval() -> None:
    samples = np.tile(np.arange(100.0)[:, None], (1, 3))
    samples[:5, 1] = np.nan
    samples[:6, 2] = np.nan
    lower, upper = percentile_interval(samples)
    assert np.isfinite(lower[:2]).all()
    assert lower[1] == pytest.approx(np.quantile(np.arange(5.0, 100.0), 0.025))
    assert math.isnan(lower[2])
    assert math.isnan(upper[2])


# ---- the metrics on plain arrays are those of the evaluation, which other libraries check ----------------------------


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), causes=st.integers(1, 3))
def test_they_are_those_of_scored_rows(seed: int, causes: int) -> None:
    rng, n = np.random.default_rng(seed), 120
    risk = rng.uniform(0.05, 0.9, n)
    time, cause = rng.exponential(300 / (0.3 + risk)) + 1, rng.integers(0, causes + 1, n)
    risks = np.full((len(time), causes, 1), 0.01)
    risks[:, 0, 0] = risk
    rows = ScoredRows.of(time, cause, risks, [200.0])
    assert eh.metrics.concordance(time, cause, risk, horizon=200) == discrimination.wolbers_c(rows)[0, 0]
    assert eh.metrics.auc(time, cause, risk, horizon=200) == discrimination.cumulative_dynamic_auc(rows)[0, 0]
    scores = 40 * risk - 7  # only the order counts
    assert eh.metrics.concordance(time, cause, scores, horizon=200) == discrimination.wolbers_c(rows)[0, 0]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(EhrseqError, match="one risk a row"):
        eh.metrics.brier([1.0], [1], [[0.5]], horizon=2)
    with pytest.raises(EhrseqError, match=r"outside 0\.\.1"):
        eh.metrics.brier([1.0, 2.0], [1, 0], [0.5, 1.5], horizon=2)
    with pytest.raises(EhrseqError, match=r"missing or outside"):
        eh.metrics.concordance([1.0, 2.0], [1, 0], [0.5, np.nan], horizon=2)


def test_shares_and_their_limits_stay_between_zero_and_one() -> None:
    rng = np.random.default_rng(0)
    risk = np.clip(rng.beta(1, 6, 200), 0.01, 0.99)
    event, end = rng.exponential(-1 / np.log1p(-risk)), rng.exponential(0.7, 200)
    weights = np.concatenate(list(bootstrap_subjects(np.arange(200), 200, 0)))
    outcome = np.minimum(event, end), (event <= end).astype(int), risk[:, None, None], [1.0]
    curve = decision_curve(ScoredRows.of(*outcome, weights=weights), [0.1, 0.3, 0.5])
    for share in (curve["ppv"], curve["sensitivity"]):
        assert np.nanmax(share) <= 1 + 1e-12
    low, high = scaled_interval([0.97, 0.5, 1.0], np.clip(rng.normal([0.97, 0.5, 1.0], 0.05, (300, 3)), 0, 1), "logit")
    assert 0 < low[0] < 0.97 < high[0] < 1
    assert high[1] - 0.5 == pytest.approx(0.5 - low[1])
    assert np.isnan([low[2], high[2]]).all()
