"""Weights given the history put true risks right where people leave for a recorded reason, and only there.

Truth is the same estimator on the same people with drop-out switched off. Weights are uncapped.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

import ehrsequencing as eh
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.dropout import Dropout, HistoryClock, Pieces, fit_dropout
from ehrsequencing.evaluation.estimates import estimate, metric_estimates
from ehrsequencing.metrics.accuracy import decision_curve
from ehrsequencing.metrics.censoring import StepFunction, SubjectClock, dropout_cause
from ehrsequencing.metrics.hazards import expected_events, mean_inverse
from ehrsequencing.metrics.registry import METRICS

YEARS = np.array([4.0])
KNOTS = np.linspace(0.25, 4.0, 16)
VISIT = 1.0  # years after the index, when severity is seen
KEYS = ("c", "auc", "ipa", "slope", "oe", "ici")
THRESHOLD = 0.3


@dataclass(frozen=True)
class World:
    """How people leave: rates × exp of the severity at p, of the one seen at the visit, of something unrecorded."""

    at_p: float = 0.0
    later: float = 0.0
    unrecorded: float = 0.0
    competing: float = 0.0  # log rate of the competing cause per sd of severity


WORLDS = {
    "at p": World(at_p=1.0),
    "at p, the healthy leave": World(at_p=-1.0),
    "after p": World(later=1.0),
    "with a competing cause": World(at_p=1.0, competing=1.0),
    "unrecorded": World(unrecorded=1.0),
    "for no reason": World(),
}


@dataclass(frozen=True)
class People:
    """Severity z seen at the visit, and z at p where the world says so; the first event, and when they leave."""

    known: np.ndarray  # (n,) what is known of z at p
    seen: np.ndarray  # (n,) z, known from the visit on
    hazards: np.ndarray  # (n, 2, knots) of the causes, given what is known at p and no event yet
    risk: np.ndarray  # (n, 2, 1) by the horizon
    event: np.ndarray
    cause: np.ndarray
    leaving: np.ndarray

    @classmethod
    def draw(cls, world: World, n: int, seed: int) -> "People":
        rng = np.random.default_rng(seed)
        z, hidden = rng.normal(size=(2, n))
        # at p a part of z is known: all of it, unless the world reveals it later
        share = 0.6 if world.later else 1.0
        known = share * z + np.sqrt(1 - share**2) * rng.normal(size=n)
        frail = 0.9 * z + 0.9 * hidden * bool(world.unrecorded)
        rates = np.stack([0.06 * np.exp(frail), 0.04 * np.exp(world.competing * z)], axis=1)
        times = rng.exponential(1 / rates)
        event, cause = times.min(axis=1), 1 + times.argmin(axis=1)
        first = rng.exponential(1 / (0.08 * np.exp(world.at_p * known + world.unrecorded * hidden)))
        after = VISIT + rng.exponential(1 / (0.12 * np.exp(world.at_p * known + world.later * z)))
        leaving = np.where(first < VISIT, first, after) if world.later else first
        hazards, risk = truth(known, share, world)
        return cls(known, z, hazards, risk, event, cause, leaving)

    def scope(self, *, leaves: bool, by_history: bool = False, least: float = 0.0) -> tuple[Comparison, Dropout | None]:
        """Rows at p with true risks, and the model of leaving where it is asked for."""
        n, end = len(self.event), np.minimum(self.leaving, 6.0) if leaves else np.full(len(self.event), 1e9)
        duration, cause = np.minimum(self.event, end), np.where(self.event <= end, self.cause, 0)
        clock, found, inverse = None, None, None
        if by_history:
            dropout = np.where((cause == 0) & (duration >= 6.0), 1, cause)
            found = fit_dropout(*self.pieces(duration, dropout), seed=0)
            # the curve over all has no part where each row has its own
            whole = StepFunction(np.zeros(0), np.ones(1))
            clock = HistoryClock(whole, 1e9, np.zeros(n), found.paths, np.arange(n), least)
            inverse = mean_inverse(clock, KNOTS, duration_days=duration)
        gained = np.diff(self.hazards, axis=2, prepend=0)
        expected = expected_events(
            np.cumsum(gained, axis=2), KNOTS, duration_days=duration, horizons_days=YEARS, inverse=inverse
        )
        scope = Comparison(
            0.0,
            np.arange(n),
            duration,
            cause,
            YEARS,
            {"truth": self.risk},
            draw_subjects(n, 0, 0),
            clock,
            None,
            {"truth": expected},
        )
        return scope, found

    def pieces(self, duration: np.ndarray, dropout: np.ndarray) -> tuple[Pieces, np.ndarray]:
        """The index, and the visit of those who reach it; severity known at each, among noise."""
        reached = duration > VISIT
        subject = np.repeat(np.arange(len(duration)), 1 + reached)
        second = np.r_[False, subject[1:] == subject[:-1]]
        since = np.where(second, VISIT, 0.0)
        pieces = Pieces.of_rows(subject, since, duration[subject] - since, dropout[subject])
        noise = np.random.default_rng(1).normal(size=(len(subject), 5))
        value = np.where(second, self.seen[subject], self.known[subject])
        x = np.column_stack([value, value * second, second, self.known[subject], noise])
        return pieces, x


def truth(known: np.ndarray, share: float, world: World) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative incidence (n, 2, knots) and (n, 2, 1) given what is known at p, over all else that is not."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(21)
    weights = weights / weights.sum()
    incidence = np.zeros((len(known), 2, len(KNOTS)))
    for a, wa in zip(nodes, weights, strict=True):
        z = share * known + np.sqrt(1 - share**2) * a
        for b, wb in zip(nodes, weights, strict=True) if world.unrecorded else [(0.0, 1.0)]:
            rates = np.stack([0.06 * np.exp(0.9 * z + 0.9 * b), 0.04 * np.exp(world.competing * z)], axis=1)
            total = rates.sum(axis=1, keepdims=True)
            part = (rates / total)[:, :, None] * -np.expm1(-total[:, :, None] * KNOTS)
            incidence += wa * wb * part
    return incidence, incidence[:, :, -1:]


def scores(scope: Comparison) -> dict[str, float]:
    """Every metric of the first cause by the horizon."""
    found = metric_estimates(scope, "truth", [METRICS[key] for key in KEYS])
    curve = estimate(scope, "truth", partial(decision_curve, thresholds=[THRESHOLD]))
    out = {key: float(one.value[0, 0]) for key, one in found.items()}
    return out | {"nb": float(curve["net_benefit"].value[0, 0, 0])}


# ---- the tests ------------------------------------------------------------------------------------------------------

SLOW = ("at p, the healthy leave", "with a competing cause")
#: What is asked of each world, and how far the marginal weights are off at least in one of them.
ASKED = ("c", "auc", "ipa", "slope", "oe", "nb")


def gaps(name: str, *, people: int, seeds: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[bool]]:
    """Metric → (seeds,) less the truth by the history, and without; O/E less 1; and what was decided."""
    by, without, decided = {}, {}, []
    for seed in range(seeds):
        drawn = People.draw(WORLDS[name], people, seed)
        truth = scores(drawn.scope(leaves=False)[0])
        scope, found = drawn.scope(leaves=True, by_history=True)
        decided.append(found.is_by_history)
        for into, one in ((by, scope), (without, drawn.scope(leaves=True)[0])):
            for key, value in scores(one).items():
                into.setdefault(key, []).append(value - (1.0 if key == "oe" else truth[key]))
    arrays = ({key: np.array(x) for key, x in one.items()} for one in (by, without))
    return (*arrays, decided)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in WORLDS
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
    drawn = People.draw(World(at_p=2.0), 3_000, 0)
    scope, found = drawn.scope(leaves=True, by_history=True, least=0.05)
    assert found is not None
    clock = scope.censoring
    assert isinstance(clock, HistoryClock)
    refused = clock.refused(YEARS, scope.duration_days, scope.cause)
    assert refused.refused_days == (4.0,)
    assert not refused.covers(4.0).any()
    assert clock.capped(scope.duration_days, 4.0) > 0
    assert clock.before(4.0).min() == 0.05
    calm = People.draw(WORLDS["for no reason"], 3_000, 0).scope(leaves=True, by_history=True, least=0.05)[0]
    assert isinstance(calm.censoring, HistoryClock)
    assert calm.censoring.refused(YEARS, calm.duration_days, calm.cause).refused_days == ()


def test_true_risks_in_plain_arrays_are_weighted_by_themselves() -> None:
    """A foreign model with the true risks, as a statistical editor would try it."""
    drawn = People.draw(WORLDS["at p"], 8_000, 3)
    truth = scores(drawn.scope(leaves=False)[0])
    scope = drawn.scope(leaves=True)[0]
    found = eh.compare_risks({"truth": drawn.risk[:, :, 0]}, scope.duration_days, scope.cause, horizon=4.0, bootstrap=0)
    own, without = (
        {row["metric"]: row["value"] for row in found.result[name] if row["model"] == "truth"}
        for name in ("metrics", "marginal")
    )
    assert found.result["dropout"]["by_history"]
    assert abs(own["slope"] - truth["slope"]) < 0.07 < 0.1 < abs(without["slope"] - truth["slope"])
    assert abs(own["oe"] - 1) < 0.06
