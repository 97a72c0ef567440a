"""Estimates, differences and curves of one scope: twins by repeated rows, hand counts, and what must be undefined."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.evaluation import estimates as estimates_module
from ehrsequencing.evaluation.comparison import OURS, Comparison, draw_subjects
from ehrsequencing.evaluation.curves import decision_rows, smooth_rows
from ehrsequencing.evaluation.estimates import (
    BIASED,
    difference_rows,
    metric_estimates,
    metric_rows,
    nll_row,
    over_time_rows,
    scope_estimates,
)
from ehrsequencing.evaluation.population import at_risk, follow_up, smallest_g
from ehrsequencing.evaluation.repeated_splits import summarise
from ehrsequencing.evaluation.results import without_few
from ehrsequencing.evaluation.subgroups import subgroup_rows
from ehrsequencing.metrics.accuracy import brier
from ehrsequencing.metrics.bootstrap import interval_around, percentile_interval
from ehrsequencing.metrics.censoring import SubjectClock, median_follow_up_days
from ehrsequencing.metrics.discrimination import wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.registry import taken
from ehrsequencing.reporting.scores import Scores, cause_verdict
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.results.redaction import redact
from helpers.comparison import CAUSES, HORIZONS, metric_table, world
from helpers.recorded import of_split, recorded


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


# ---- too few subjects or events: no interval, no verdict, anywhere; and every interval holds its estimate ------------


def judged(seed: int, n: int, *, resamples: int = 12, rows_each: int = 1) -> Comparison:
    """Ours knows the risks, the rival little of them, the third gives everybody the same."""
    scope = world(seed, n, resamples=resamples, rows_each=rows_each)
    right, dull = scope.risk["right"], scope.risk["dull"]
    same = np.broadcast_to(right.mean(axis=0), right.shape).copy()
    landmark = None if rows_each > 1 else 0.0
    return replace(scope, landmark_days=landmark, risk={OURS: right, "rival": dull, "same for all": same})


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(1, 130), st.sampled_from([1, 3]))
@example(3, 1, 1)
@example(0, 49, 1)
@example(1, 120, 1)
def test_intervals_hold_their_estimates_and_want_enough_events(seed: int, n: int, rows_each: int) -> None:
    scope = judged(seed, n, rows_each=rows_each)
    estimates, nll = scope_estimates(scope, CAUSES), np.random.default_rng(0).exponential(size=len(scope))
    rows = [
        *metric_rows(scope, estimates),
        *over_time_rows(scope, CAUSES, HORIZONS, fine=scope),
        *difference_rows(scope, estimates, ours=OURS, rivals=["rival", "same for all"]),
        *smooth_rows(scope, CAUSES, models=[OURS, "same for all"], seed=0)[1],
        nll_row(scope, nll, model=OURS, cause=CAUSES[0]),
    ]
    for row in rows:
        where = row["model"], row["cause"], row["horizon_days"], row["metric"]
        if row["low"] is not None:
            assert row["low"] <= row["value"] <= row["high"], where
            assert row["reason"] is None
        if row["metric"] != "nll":
            wanted = [1 + CAUSES.index(row["cause"])] if row["cause"] in CAUSES else [1, 2]
            had = np.isin(scope.cause, wanted) & (scope.duration_days <= (row["horizon_days"] or HORIZONS[-1]))
            assert row["events"] == len(set(scope.subject[had])), where
        assert row["subjects"] == n
        few = n < 50 or row["events"] < 11
        assert (row["reason"] == TOO_FEW) == few, where
        if few:
            assert row["low"] is row["high"] is None, where
    for before, row in zip(rows, without_few(rows), strict=True):
        hidden = before["reason"] == TOO_FEW and row["metric"] != "nll"
        assert row["value"] == (None if hidden else before["value"])
    if n > 100:
        assert any(row["low"] is not None for row in rows)


def test_curves_subgroups_and_follow_up_hold_their_estimates_too() -> None:
    scope = judged(2, 150, resamples=20)
    drawn = smooth_rows(scope, CAUSES, models=[OURS], seed=0)[0]
    drawn += decision_rows(scope, CAUSES, models=[OURS], thresholds=[0.1, 0.2])
    banded = 0
    for row in drawn:
        values = row.get("observed") or row.get("net_benefit")
        for low, value, high in zip(row["low"] or [], values, row["high"] or [], strict=False):
            if low is not None:
                assert row["events"] >= 11
                assert low <= value <= high
                banded += 1
    assert banded
    level = np.where(np.arange(150) < 40, "few", "many")
    for row in subgroup_rows(scope, {"kind": level}, CAUSES, model=OURS):
        for name in ("oe", "auc", "brier"):
            found = row[name]
            few = row["level"] == "few" or row["events"] < 11
            assert (found["reason"] == TOO_FEW) == few
            assert found["value"] is found["low"] is None if few else found["low"] <= found["value"] <= found["high"]
    median = follow_up(scope)
    assert median["low"] <= median["median_days"] <= median["high"]
    alone = follow_up(judged(2, 49))
    assert (alone["low"], alone["reason"]) == (None, TOO_FEW)


def test_an_estimate_outside_of_its_resamples_has_no_interval() -> None:
    samples = np.linspace(1.0, 2.0, 101)
    low, high = interval_around([0.5, 1.5, 1.025 - 1e-12], np.stack([samples] * 3, axis=1))
    assert np.isnan([low[0], high[0]]).all()
    assert low[1] == pytest.approx(1.025)
    assert low[2] == 1.025 - 1e-12  # sums in another order are no bias
    scope = judged(1, 120, resamples=60)
    one = replace(scope_estimates(scope, CAUSES)["outcome"][OURS]["brier"], on=None)
    moved = replace(one, value=one.value - 1.0)
    assert one.reason((0, 1)) is None
    assert moved.reason((0, 1)) == BIASED


@pytest.mark.parametrize("n", [1, 4, 49])
def test_nobody_is_better_by_a_handful(n: int) -> None:
    """Ours puts the only pair right, the rival puts it wrong: C 1.000 (1.000 to 1.000) against 0, once "better"."""
    scope = judged(0, n, resamples=50)
    scope = replace(scope, duration_days=np.arange(1.0, n + 1), cause=np.arange(n) % 2)
    risk = np.linspace(0.9, 0.1, n)[:, None, None] * np.full((1, 2, 2), 0.5)
    scope = replace(scope, risk={OURS: risk, "rival": risk[::-1].copy()})
    estimates = scope_estimates(scope, CAUSES)
    metrics: Any = {  # as much of `metrics.json` as words and terminal need
        "models": list(scope.risk),
        "causes": list(CAUSES),
        "horizons_days": HORIZONS.tolist(),
        "main": {"landmark_days": 0.0, "horizon_days": float(HORIZONS[-1])},
        "metrics": [*metric_rows(scope, estimates), nll_row(scope, np.ones(len(scope)), model=OURS, cause="outcome")],
        "differences": difference_rows(scope, estimates, ours=OURS, rivals=list(scope.risk)[1:]),
        "at_risk": [at_risk(scope, CAUSES)],
        "oracle": None,
        "strongest": None,
    }
    scores, lines = Scores(metrics), metric_lines(metrics)
    text = "\n".join(lines)
    assert "better" not in text
    assert "WORSE" not in text
    assert "1.000" not in text
    assert TOO_FEW in text
    assert "nothing is compared" in text
    case = cause_verdict(scores, "outcome", {})
    assert case["rank"] == "too few"
    assert all(row["low"] is None and row["reason"] == TOO_FEW for row in metrics["differences"])


@pytest.mark.parametrize(("events", "subjects", "few"), [(1, 40, True), (8, 40, False), (8, 3, True)])
def test_random_splits_that_judge_too_few_compare_nothing(events: int, subjects: int, few: bool) -> None:
    """Ten splits of a fifth judge .89 of the cohort, which has five times the events and subjects of one of them."""
    places = [(model, 0.0, "d", 365.0, "c") for model in (OURS, "Cox")]
    splits = [
        of_split(seed, dict(zip(places, [0.9, 0.7 - 0.001 * seed], strict=True)), 160, 40, (events, subjects))
        for seed in range(10)
    ]
    found = summarise(splits)
    for row in [*found["rows"], *found["differences"]]:
        assert (row["reason"] == TOO_FEW) == few
        assert (row["low"] is None) == few
        assert row["mean"] is not None


@pytest.mark.parametrize(("events", "shown"), [(5, True), (1, False)])
def test_a_mean_over_splits_is_shown_by_the_people_of_all_splits(events: int, shown: bool) -> None:
    """25 fifths of a cohort hold out all of it: five times one split's people, however few that split has."""
    metrics = recorded()
    main = metrics["main"]
    place = (OURS, main["landmark_days"], metrics["causes"][0], main["horizon_days"], "c")
    metrics["repeated_splits"] = summarise([of_split(k, {place: 0.8}, 240, 60, (events, 60)) for k in range(25)])
    (row,) = metrics["repeated_splits"]["rows"]
    assert (row["events"], row["subjects"]) == (int(events * 5 * (1 - 0.8**25)), 298)
    for one in metrics["at_risk"]:  # three people of the run's own split had it
        one["events"] = {cause: [3 for _ in counts] for cause, counts in one["events"].items()}
    (row,) = redact(metrics)["repeated_splits"]["rows"]
    assert (row["mean"] == 0.8) == shown
    assert (row["reason"] == TOO_FEW) != shown
