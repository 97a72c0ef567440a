"""Weights given the history put true risks right where people leave for a recorded reason, and only there.

Truth is the same estimator on the same people with drop-out switched off. Weights are uncapped.
"""

import numpy as np
import pytest

import ehrsequencing as eh
from ehrsequencing.evaluation.dropout import HistoryClock, Pieces, fit_dropout
from ehrsequencing.metrics.censoring import SubjectClock, dropout_cause
from helpers import leaving as bench

SLOW = ("at p, the healthy leave", "with a competing cause")
#: What is asked of each world, and how far the marginal weights are off at least in one of them.
ASKED = ("c", "auc", "ipa", "slope", "oe", "nb")


def gaps(name: str, *, people: int, seeds: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[bool]]:
    """Metric → (seeds,) less the truth by the history, and without; O/E less 1; and what was decided."""
    by, without, decided = {}, {}, []
    for seed in range(seeds):
        drawn = bench.People.draw(bench.WORLDS[name], people, seed)
        truth = bench.scores(drawn.scope(leaves=False)[0])
        scope, found = drawn.scope(leaves=True, by_history=True)
        decided.append(found.is_by_history)
        for into, one in ((by, scope), (without, drawn.scope(leaves=True)[0])):
            for key, value in bench.scores(one).items():
                into.setdefault(key, []).append(value - (1.0 if key == "oe" else truth[key]))
    arrays = ({key: np.array(x) for key, x in one.items()} for one in (by, without))
    return (*arrays, decided)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in bench.WORLDS
        if name not in ("unrecorded", "for no reason")
    ],
)
def test_true_risks_are_right_where_people_leave_for_a_recorded_reason(name: str) -> None:
    by, without, decided = gaps(name, people=6_000, seeds=4)
    assert all(decided)
    for key in ASKED:
        error = by[key].std(ddof=1) / 2 + {"oe": 0.01, "slope": 0.01}.get(key, 0.002)
        assert abs(by[key].mean()) < 3 * error, key
    assert abs(by["ici"].mean()) < 0.01
    assert abs(without["slope"].mean()) > 0.08  # the mutant
    if name == "after p":
        assert without["oe"].mean() < -0.03  # what is learned later moves the martingale too
    else:
        assert abs(without["oe"].mean()) < 0.04


def test_what_nobody_records_cannot_be_made_good() -> None:
    by, without, _ = gaps("unrecorded", people=6_000, seeds=3)
    for one in (by, without):
        assert one["oe"].mean() < -0.05


def test_people_who_leave_for_no_reason_are_weighted_as_by_kaplan_and_meier() -> None:
    by, without, decided = gaps("for no reason", people=3_000, seeds=6)
    assert sum(decided) <= 1
    for key in ASKED:
        assert abs(by[key] - without[key]).max() < 0.02, key


def test_without_covariates_the_chance_is_that_of_kaplan_and_meier() -> None:
    """Ties, late prediction times, and leaving by design included."""
    rng = np.random.default_rng(0)
    end, event = rng.integers(1, 30, (2, 300)).astype(float)
    potential = np.full(300, 25.0)
    duration = np.minimum(np.minimum(event, end), potential)
    cause = np.where(event <= np.minimum(end, potential), 1, 0)
    asked = [np.arange(0.0, until, 4.0) for until in duration]
    subject = np.repeat(np.arange(300), [len(one) for one in asked])
    since = np.concatenate(asked)
    rows = duration[subject] - since, cause[subject], potential[subject] - since
    dropout = dropout_cause(*rows)
    pieces = Pieces.of_rows(subject, since, rows[0], dropout)
    assert pieces.left.sum() == (dropout_cause(duration, cause, potential) == 0).sum()
    found = fit_dropout(pieces, np.zeros((len(subject), 2)), seed=0)
    assert not found.is_by_history
    known = SubjectClock.fit(since, rows[0], dropout, subject)
    clock = HistoryClock(known.dropout, known.support_days, since, found.paths, subject, least=0.0)
    for days in (0.5, 3.0, 7.0, 16.0):
        np.testing.assert_allclose(clock.before(days), known.before(days), atol=1e-9)
    np.testing.assert_allclose(clock.before_own(rows[0]), known.before_own(rows[0]), atol=1e-9)


def test_a_horizon_at_which_few_carry_the_weights_has_no_number() -> None:
    drawn = bench.People.draw(bench.World(at_p=2.0), 3_000, 0)
    scope, found = drawn.scope(leaves=True, by_history=True, least=0.05)
    assert found is not None
    clock = scope.censoring
    assert isinstance(clock, HistoryClock)
    refused = clock.refused(bench.YEARS, scope.duration_days, scope.cause)
    assert refused.refused_days == (4.0,)
    assert not refused.covers(4.0).any()
    assert clock.capped(scope.duration_days, 4.0) > 0
    assert clock.before(4.0).min() == 0.05
    calm = bench.People.draw(bench.WORLDS["for no reason"], 3_000, 0).scope(leaves=True, by_history=True, least=0.05)[0]
    assert isinstance(calm.censoring, HistoryClock)
    assert calm.censoring.refused(bench.YEARS, calm.duration_days, calm.cause).refused_days == ()


def test_true_risks_in_plain_arrays_are_weighted_by_themselves() -> None:
    """A foreign model with the true risks, as a statistical editor would try it."""
    drawn = bench.People.draw(bench.WORLDS["at p"], 8_000, 3)
    truth = bench.scores(drawn.scope(leaves=False)[0])
    scope = drawn.scope(leaves=True)[0]
    found = eh.compare_risks({"truth": drawn.risk[:, :, 0]}, scope.duration_days, scope.cause, horizon=4.0, bootstrap=0)
    own, without = (
        {row["metric"]: row["value"] for row in found.result[name] if row["model"] == "truth"}
        for name in ("metrics", "marginal")
    )
    assert found.result["dropout"]["by_history"]
    assert abs(own["slope"] - truth["slope"]) < 0.07 < 0.1 < abs(without["slope"] - truth["slope"])
    assert abs(own["oe"] - 1) < 0.06
