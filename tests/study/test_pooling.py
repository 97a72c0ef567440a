"""Sums of sites against loops over all their rows; what may leave a site; random effects against their formula."""

import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ehrsequencing.metrics.accuracy import brier, index_of_prediction_accuracy, observed_over_expected
from ehrsequencing.metrics.discrimination import cumulative_dynamic_auc
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.study import aggregates, pooling
from ehrsequencing.study.aggregates import aggregate, shown_counts
from ehrsequencing.study.pooling import heterogeneity, pooled, pooled_bins, random_effects
from reference.metrics_bruteforce import censoring_curves, known_weight, wolbers_c

HORIZONS = np.array([365.0, 1000.0])


def site(seed: int, n: int = 220, *, follow_up: float = 2500.0, shift: float = 0.0) -> ScoredRows:
    """A site whose follow-up, and whose agreement with the model, are its own."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    event = rng.exponential(1500 * np.exp(-x - shift))
    competing, censored = rng.exponential(4000, n), rng.uniform(300, follow_up, n)
    duration = np.ceil(np.minimum(np.minimum(event, competing), censored))
    cause = np.where(event <= np.minimum(competing, censored), 1, np.where(competing <= censored, 2, 0))
    first = 1 - np.exp(-HORIZONS / (1500 * np.exp(-x))[:, None])
    second = 0.2 * (1 - first)
    return ScoredRows.of(duration, cause, np.round(np.stack([first, second], axis=1), 2), HORIZONS)


SITES = [site(1), site(2, 150, follow_up=1600.0), site(3, 180, shift=0.5)]


def cells(rows: ScoredRows) -> dict[tuple[int, int], dict[str, Any]]:
    return {(c["cause"], c["horizon"]): c for c in aggregate(rows, resamples=20, seed=0)["cells"]}


@pytest.fixture(scope="module")
def published() -> list[dict[tuple[int, int], dict[str, Any]]]:
    return [cells(rows) for rows in SITES]


class Slow(NamedTuple):
    """Metrics of all rows, each weighted by the censoring of its own site."""

    oe: float
    brier: float
    ipa: float
    auc: float
    c: float


def slow(sites: list[ScoredRows], e: int, h: int) -> Slow:
    """By loops over rows and over pairs."""
    horizon, weight, y, risk, wins, pairs = HORIZONS[h], [], [], [], 0.0, 0.0
    for rows in sites:
        t, cause, score = rows.duration_days.tolist(), rows.cause.tolist(), rows.risk[:, e, h].tolist()
        g = censoring_curves(t, cause)
        weight += [known_weight(t[i], cause[i], horizon, g) for i in range(len(t))]
        y += [float(cause[i] == e + 1 and t[i] <= horizon) for i in range(len(t))]
        risk += score
        for i in range(len(t)):
            for j in range(len(t)) if cause[i] == e + 1 and t[i] <= horizon else ():
                later = t[j] > t[i] or (t[j] == t[i] and cause[j] == 0)
                competed = cause[j] not in (0, e + 1) and t[j] <= t[i]
                pair = 1 / g(t[i]) ** 2 if later else 1 / (g(t[i]) * g(t[j])) if competed else 0.0
                pairs += pair
                wins += pair * ((score[i] > score[j]) + 0.5 * (score[i] == score[j]))
    n = len(y)
    observed = sum(w * one for w, one in zip(weight, y, strict=True)) / n
    score_of = sum(w * (one - r) ** 2 for w, one, r in zip(weight, y, risk, strict=True)) / n
    null = sum(w * (one - observed) ** 2 for w, one in zip(weight, y, strict=True)) / n
    w, case, r = np.array(weight), np.array(y), np.array(risk)
    both = np.multiply.outer(w * case, w * (1 - case))
    above = (r[:, None] > r) + 0.5 * (r[:, None] == r)
    auc = float((both * above).sum() / both.sum())
    return Slow(observed / (sum(risk) / n), score_of, 1 - score_of / null, auc, wins / pairs)


@pytest.mark.parametrize(("e", "h"), [(0, 0), (0, 1), (1, 1)])
def test_pooled_sums_equal_loops_over_all_rows(e: int, h: int, published: Any) -> None:
    found, truth = pooled([one[e, h] for one in published]), slow(SITES, e, h)
    for name in ("oe", "brier", "ipa", "c"):
        assert found[name] == pytest.approx(getattr(truth, name), abs=1e-9)
    assert found["auc"] is not None
    assert found["auc_error"] is not None
    assert abs(found["auc"] - truth.auc) <= found["auc_error"] + 1e-9
    assert e == 1 or found["auc_error"] < 0.2  # few events make wide bins


def test_one_site_alone_has_its_own_metrics(published: Any) -> None:
    rows, (e, h) = SITES[0], (0, 1)
    found = pooled([published[0][e, h]])
    truth = {"oe": observed_over_expected, "brier": brier, "ipa": index_of_prediction_accuracy}
    for name, metric in truth.items():
        assert found[name] == pytest.approx(metric(rows)[e, h], abs=1e-9)
    g = censoring_curves(rows.duration_days.tolist(), rows.cause.tolist())
    score = rows.risk[:, e, h].tolist()
    c = wolbers_c(rows.duration_days.tolist(), rows.cause.tolist(), score, e + 1, HORIZONS[h], g)
    assert found["c"] == pytest.approx(c, abs=1e-9)
    assert abs(found["auc"] - cumulative_dynamic_auc(rows)[e, h]) <= found["auc_error"]


def test_a_site_cut_in_two_with_one_censoring_pools_to_the_whole_for_sums_of_risk(published: Any) -> None:
    """Expected events do not depend on the censoring; the mean over sites instead of subjects is the mutant."""
    parts = [one[0, 0] for one in published]
    whole = sum(float(rows.risk[:, 0, 0].sum()) for rows in SITES) / sum(len(rows.risk) for rows in SITES)
    assert pooled(parts)["expected"] == pytest.approx(whole, abs=1e-12)
    mutant = float(np.mean([one["expected"] / one["n"] for one in parts]))
    assert abs(mutant - whole) > 1e-6


def test_bins_of_all_sites_are_those_of_the_pooled_rows(published: Any) -> None:
    parts = [one[0, 1] for one in published]
    risk = np.concatenate([rows.risk[:, 0, 1] for rows in SITES])
    found = pooled_bins(parts)
    assert found[0]["low"] == 0.0
    assert found[-1]["high"] == 1.0
    assert sum(one["n"] for one in found) == len(risk)
    for one in found:
        inside = (risk >= one["low"]) & ((risk < one["high"]) | (one["high"] == 1.0))
        assert one["n"] == inside.sum()
        assert one["predicted"] == pytest.approx(risk[inside].mean(), abs=1e-9)


def numbers(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Every number of nested JSON with its key."""
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in numbers(item, key)]
    if isinstance(value, list):
        return [pair for item in value for pair in numbers(item, name)]
    return [(name, value)]


def small_counts(rows: ScoredRows) -> list[int]:
    """Counts from 1 to 10 in what a site publishes, and those that follow from its bins."""
    told = aggregate(rows, resamples=10, seed=0)
    counts = [value for name, value in numbers(told["cells"]) if name in ("n", "events")]
    risk = rows.risk
    for cell in told["cells"]:
        seen = rows.has_event_by(cell["horizon"])[cell["cause"]]
        assert sum(one["n"] for one in cell["bins"]) == cell["n"]
        for one in cell["bins"]:
            r = risk[:, cell["cause"], cell["horizon"]]
            inside = (r >= one["low"]) & ((r < one["high"]) | (one["high"] == 1.0))
            counts += [int(seen[inside].sum()), int((~seen[inside]).sum())]
    return [count for count in counts if 1 <= count <= 10]


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(15, 120))
def test_no_count_of_one_to_ten_people_leaves_a_site(seed: int, n: int) -> None:
    assert small_counts(site(seed, n)) == []


def test_small_counts_leave_a_site_whose_threshold_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above."""
    monkeypatch.setattr(aggregates, "SMALLEST_COUNT", 1)
    assert any(small_counts(site(seed, 60)) for seed in range(3))


def test_events_between_two_horizons_are_not_told_by_subtraction() -> None:
    subjects, shown = shown_counts(200, np.array([[20, 25]]))  # 5 events between the two horizons
    assert not shown.all()
    assert shown_counts(200, np.array([[20, 60]]))[1].all()
    assert not shown_counts(200, np.array([[5, 60]]))[1][0, 0]
    assert not shown_counts(30, np.array([[15, 25]]))[1][0, 1]  # five are left without the event
    assert subjects in ("200", "≥100")


def test_random_effects_by_the_formula_and_at_its_limits() -> None:
    y, se = [0.1, 0.3, 0.9, -0.2], [0.1, 0.2, 0.15, 0.3]
    w = [1 / s**2 for s in se]
    fixed = sum(a * b for a, b in zip(w, y, strict=True)) / sum(w)
    q = sum(a * (b - fixed) ** 2 for a, b in zip(w, y, strict=True))
    tau2 = (q - 3) / (sum(w) - sum(a * a for a in w) / sum(w))
    again = [1 / (s**2 + tau2) for s in se]
    mean = sum(a * b for a, b in zip(again, y, strict=True)) / sum(again)
    found = random_effects(y, se)
    assert found["mean"] == pytest.approx(mean)
    assert found["tau"] == pytest.approx(math.sqrt(tau2))
    assert found["i2"] == pytest.approx((q - 3) / q)
    assert found["low"] == pytest.approx(mean - 1.959964 * sum(again) ** -0.5, abs=1e-5)
    assert found["next_low"] == pytest.approx(mean - 4.302653 * math.sqrt(tau2 + 1 / sum(again)), abs=1e-5)
    equal = random_effects([0.5, 0.5], [0.1, 0.2])
    assert (equal["tau"], equal["i2"], equal["next_low"]) == (0.0, 0.0, None)
    assert equal["mean"] == pytest.approx(0.5)


def test_intervals_of_the_mean_cover_it_as_often_as_they_say() -> None:
    """Of 400 studies of twelve sites, the interval holds the true mean in about 95 %."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        error = rng.uniform(0.05, 0.3, 12)
        found = random_effects((0.7 + rng.normal(0, 0.2, 12) + rng.normal(0, error)).tolist(), error.tolist())
        held += found["low"] <= 0.7 <= found["high"]  # type: ignore[operator]
    assert 0.90 <= held / 400 <= 0.98


def test_a_site_that_disagrees_raises_the_heterogeneity(published: Any) -> None:
    alike = [published[0][0, 0], {**published[0][0, 0]}]
    other = {**published[0][0, 0], "observed": 3 * published[0][0, 0]["observed"]}
    same, different = (heterogeneity(pair, metric="oe") for pair in (alike, [alike[0], other]))
    assert same["i2"] == 0 < 0.5 < different["i2"]
    alone = heterogeneity(alike[:1], metric="oe")
    assert alone["mean"] is None
    assert alone["sites"][0]["low"] < alone["sites"][0]["value"] < alone["sites"][0]["high"]
    assert json.dumps(pooling.pooled(alike), allow_nan=False)
