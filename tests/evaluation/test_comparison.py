"""Estimates, differences and curves of one scope: twins by repeated rows, hand counts, and what must be undefined."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ehrsequencing.evaluation import estimates as estimates_module
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.estimates import difference_rows, metric_estimates, nll_row, scope_estimates
from ehrsequencing.evaluation.population import follow_up, smallest_g
from ehrsequencing.metrics.accuracy import brier
from ehrsequencing.metrics.bootstrap import percentile_interval
from ehrsequencing.metrics.censoring import SubjectClock, median_follow_up_days
from ehrsequencing.metrics.discrimination import wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.registry import taken
from helpers.comparison import CAUSES, HORIZONS, world
from helpers.metric_table import metric_table


def repeated(scope: Comparison, draw: np.ndarray) -> Comparison:
    """The rows of one resample, each as often as its subject was drawn, as plain rows."""
    place = np.repeat(np.arange(len(scope)), draw[scope.subject])
    part = {name: values[place] for name, values in scope.risk.items()}
    return Comparison(
        scope.landmark_days,
        scope.subject[place],
        scope.duration_days[place],
        scope.cause[place],
        scope.horizons_days,
        part,
        draw_subjects(1, 0, 0),
    )


def close(metric: str) -> float:
    """How near two fits of a resample are: a logistic recalibration ends with a step below .001."""
    return 1e-5 if metric in ("intercept", "slope") else 1e-8


# ---- estimates and differences --------------------------------------------------------------------------------------


def test_every_estimate_of_a_resample_is_that_of_its_rows_repeated() -> None:
    scope = world(0, 130, resamples=4, rows_each=2)
    assert not scope.too_few().any()
    found = metric_estimates(scope, "right", taken("everywhere", "causes"))
    for r, draw in enumerate(scope.draws):
        plain = metric_estimates(repeated(scope, draw), "right", taken("everywhere", "causes"))
        for name, one in found.items():
            np.testing.assert_allclose(one.samples[r], plain[name].value, atol=close(name), err_msg=name)


def test_differences_are_paired() -> None:
    scope = world(1, 150, resamples=60)
    estimates = scope_estimates(scope, CAUSES)
    rows = difference_rows(scope, estimates, ours="right", rivals=["dull"])
    compared = {metric.key for metric in taken("everywhere") if metric.compared}
    assert compared >= {"c", "auc", "ipa", "brier"}
    assert {(row["cause"], row["metric"]) for row in rows} == set(itertools.product(CAUSES, compared))
    whole = {
        model: metric_table(scope.duration_days, scope.cause, risk, HORIZONS) for model, risk in scope.risk.items()
    }
    samples = []
    for draw in scope.draws:
        part = repeated(scope, draw)
        a, b = (metric_table(part.duration_days, part.cause, part.risk[m], HORIZONS) for m in ("right", "dull"))
        samples.append(a["brier"] - b["brier"])
    low, high = percentile_interval(np.array(samples))
    for h, horizon in enumerate(HORIZONS):
        (row,) = [
            r for r in rows if (r["cause"], r["metric"], r["horizon_days"]) == ("outcome", "brier", float(horizon))
        ]
        assert row["model"] == "dull"
        assert row["value"] == pytest.approx(whole["right"]["brier"][0, h] - whole["dull"]["brier"][0, h])
        assert row["low"] == pytest.approx(low[0, h])
        assert row["high"] == pytest.approx(high[0, h])
        # The mutant that draws other subjects for the rival has a far wider interval.
        a, b = estimates["outcome"]["right"]["brier"], estimates["outcome"]["dull"]["brier"]
        apart = a.minus(replace(b, samples=np.roll(b.samples, 1, axis=0))).interval
        assert apart[1][0, h] - apart[0][0, h] > 2 * (row["high"] - row["low"])


@pytest.mark.parametrize(
    "limits", [{"WORK_ELEMENTS": 0, "FEWEST_TOGETHER": 4}, {"MOST_ELEMENTS": 3 * 130}], ids=["cache", "memory"]
)
def test_large_blocks_of_resamples_are_cut_and_joined(limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    scope = world(7, 130, resamples=11)
    whole = metric_estimates(scope, "right", taken("everywhere", "causes"))
    for name, value in limits.items():
        monkeypatch.setattr(estimates_module, name, value)

    cut = metric_estimates(scope, "right", taken("everywhere", "causes"))
    for name, one in whole.items():
        np.testing.assert_allclose(one.samples, cut[name].samples, rtol=0, atol=close(name), err_msg=name)


def test_nll_interval_by_repeated_rows() -> None:
    scope = world(6, 50, resamples=60, rows_each=2)
    nll = np.random.default_rng(0).normal(size=len(scope))
    nll[3] = np.nan
    row = nll_row(scope, nll, model="right", cause="outcome")
    samples = [np.nanmean(np.repeat(nll, draw[scope.subject])) for draw in scope.draws]
    assert row["value"] == pytest.approx(np.nanmean(nll))
    assert (row["low"], row["high"]) == pytest.approx(percentile_interval(np.array(samples)))


# ---- curves ---------------------------------------------------------------------------------------------------------


# ---- censoring ------------------------------------------------------------------------------------------------------


def test_smallest_g_by_hand() -> None:
    """Twenty rows, one censored every ten days, the last followed on: G(t−) = (20 − k) / 20."""
    duration, cause = np.arange(10.0, 210.0, 10.0), np.zeros(20, int)
    scope = Comparison(
        None,
        np.arange(20),
        duration,
        cause,
        np.array([50.0, 195.0]),
        {"m": np.full((20, 1, 2), 0.1)},
        draw_subjects(20, 0, 0),
    )
    found = smallest_g([scope])
    assert [row["g"] for row in found] == pytest.approx([16 / 20, 1 / 20])
    assert [row["thin"] for row in found] == [False, True]


def test_follow_up_by_repeated_rows() -> None:
    scope = world(11, 100, resamples=100)
    found = follow_up(scope)
    parts = [repeated(scope, draw) for draw in scope.draws]
    samples = [float(median_follow_up_days(part.duration_days, part.cause)) for part in parts]
    assert found["median_days"] == float(median_follow_up_days(scope.duration_days, scope.cause))
    assert (found["low"], found["high"]) == pytest.approx(percentile_interval(np.array(samples)))


@pytest.mark.parametrize("seed", range(3))
def test_one_g_for_each_row_against_plain_loops(seed: int) -> None:
    scope = world(seed, 40)
    # every row p days after its index, so that each has its own G
    since = np.random.default_rng(len(scope)).uniform(0, scope.duration_days.max() / 2, size=len(scope))
    each = SubjectClock.fit(since, scope.duration_days, scope.cause, np.arange(len(scope)))
    rows = ScoredRows.of(scope.duration_days, scope.cause, scope.risk["dull"], HORIZONS, censoring=each)
    score, concordance = brier(rows), wolbers_c(rows)
    duration, cause, risk = scope.duration_days, scope.cause, scope.risk["dull"]

    def g(j: int, t: float) -> float:
        since = each.since_days[j]
        return float(each.dropout.before(since + t) / each.dropout.at(since))

    for e, h in np.ndindex(2, 2):
        t, total, wins, pairs = HORIZONS[h], 0.0, 0.0, 0.0
        for i in range(40):
            if cause[i] > 0 and duration[i] <= t:
                total += ((cause[i] == e + 1) - risk[i, e, h]) ** 2 / g(i, duration[i])
            elif duration[i] >= t:
                total += risk[i, e, h] ** 2 / g(i, t)
            if cause[i] != e + 1 or duration[i] > t:
                continue
            for j in range(40):
                later = duration[j] > duration[i] or (duration[j] == duration[i] and cause[j] == 0)
                beaten = cause[j] > 0 and cause[j] != e + 1 and duration[j] <= duration[i]
                known = duration[j] >= t or cause[j] > 0  # at the horizon
                if not (known and (later or beaten)):
                    continue
                weight = 1 / g(i, duration[i]) / g(j, min(t, duration[j]))
                pairs += weight
                wins += weight * ((risk[i, e, h] > risk[j, e, h]) + 0.5 * (risk[i, e, h] == risk[j, e, h]))
        assert score[e, h] == pytest.approx(total / 40)
        assert concordance[e, h] == pytest.approx(wins / pairs)
        # The mutant that weighs everybody alike is seen.
        assert brier(scope.scored("dull"))[e, h] != pytest.approx(total / 40, rel=1e-6)
