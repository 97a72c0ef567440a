"""Too few subjects or events: no interval, no verdict, anywhere; and every interval holds its estimate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.evaluation.comparison import OURS, Comparison
from ehrsequencing.evaluation.curves import decision_rows, smooth_rows
from ehrsequencing.evaluation.estimates import (
    BIASED,
    difference_rows,
    metric_rows,
    nll_row,
    over_time_rows,
    scope_estimates,
)
from ehrsequencing.evaluation.population import at_risk, follow_up
from ehrsequencing.evaluation.repeated_splits import summarise
from ehrsequencing.evaluation.results import without_few
from ehrsequencing.evaluation.subgroups import subgroup_rows
from ehrsequencing.metrics.bootstrap import interval_around
from ehrsequencing.reporting.scores import Scores, cause_verdict
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.results.redaction import redact
from helpers.comparison import CAUSES, HORIZONS, world
from helpers.recorded import of_split, recorded


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
