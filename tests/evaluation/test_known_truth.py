"""True risks score what uncensored truth says: follow-up that ends at an age, late prediction times, every index."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.estimates import metric_estimates
from ehrsequencing.metrics.censoring import SubjectClock, dropout_cause
from ehrsequencing.metrics.hazards import expected_events
from ehrsequencing.metrics.registry import METRICS

YEARS = np.array([1.0, 3.0, 5.0])
KNOTS = np.linspace(0.25, 5.0, 20)
KEYS = ("oe", "c", "auc", "ipa", "slope")


@dataclass(frozen=True)
class People:
    """Rows of simulated people, with the hazard rate · shape · u^(shape − 1) u years after the index."""

    subject: np.ndarray
    since: np.ndarray  # (n,) years from the index to the prediction time
    rate: np.ndarray  # (n,)
    shape: float
    event: np.ndarray  # (n,) years from the prediction time to the event
    end: np.ndarray  # (n,) to the end of follow-up
    potential: np.ndarray  # (n,) to its end by design

    def risk(self, days: np.ndarray) -> np.ndarray:
        """(n, 1, days) the truth, given no event until the prediction time."""
        until = (self.since[:, None] + days) ** self.shape - (self.since**self.shape)[:, None]
        return -np.expm1(-self.rate[:, None] * until)[:, None]

    def scope(self, *, censored: bool, clock: bool, names_its_end: bool = True) -> Comparison:
        """The rows with true risks; weights by one curve over rows, or on the subject's clock."""
        end = self.end if censored else np.full(len(self.event), np.inf)
        potential = self.potential if censored and names_its_end else np.full(len(end), np.inf)
        duration = np.minimum(self.event, end)
        cause = (self.event <= end).astype(np.int64)
        risk, days = self.risk(YEARS), {"duration_days": duration, "horizons_days": YEARS}
        weights = None
        if clock:
            dropout = dropout_cause(duration, cause, potential)
            weights = SubjectClock.fit(self.since, duration, dropout, self.subject)
        return Comparison(
            None if clock else 0.0,
            self.subject,
            duration,
            cause,
            YEARS,
            {"truth": risk},
            draw_subjects(int(self.subject.max()) + 1, 0, 0),
            weights,
            potential,
            {"truth": expected_events(self.risk(KNOTS), KNOTS, **days)},
        )


def fixed_age(seed: int, n: int) -> People:
    """One row each; hazards rise with age, and follow-up ends at 80."""
    rng = np.random.default_rng(seed)
    age, x = rng.uniform(60, 80, n), rng.normal(size=n)
    rate = 0.08 * np.exp(0.09 * (age - 70) + 0.7 * x)
    event, potential = rng.exponential(1 / rate), 80 - age
    end = np.minimum(potential, rng.exponential(15.0, n))
    return People(np.arange(n), np.zeros(n), rate, 1.0, event, end, potential)


def late_times(seed: int, n: int, *, shape: float, indexes: bool = False) -> People:
    """Prediction times every year while followed; with `indexes` a few of them, as a task with every index has."""
    rng = np.random.default_rng(seed)
    rate = (0.02 if shape > 1 else 0.15) * np.exp(0.8 * rng.normal(size=n))
    event, end = (rng.exponential(1 / rate)) ** (1 / shape), rng.uniform(0.3, 9.0, n)
    last = np.minimum(event, end)
    asked = [np.arange(0.0, until, 1.0) for until in np.minimum(last, 8.0)]
    if indexes:
        asked = [p[np.r_[True, rng.random(len(p) - 1) < 0.5]] for p in asked]
    owner = np.repeat(np.arange(n), [len(p) for p in asked])
    since = np.concatenate(asked)
    return People(
        owner, since, rate[owner], shape, event[owner] - since, end[owner] - since, np.full(len(since), np.inf)
    )


def scores(scope: Comparison) -> dict[str, np.ndarray]:
    found = metric_estimates(scope, "truth", [METRICS[key] for key in KEYS])
    return {key: one.value[0] for key, one in found.items()}


def whole(people: People, scope: Comparison) -> Iterator[dict[str, np.ndarray]]:
    """The same people without censoring, for each horizon those who are evaluated there."""
    everybody = people.scope(censored=False, clock=False)
    for horizon in YEARS:
        yield scores(everybody.among(scope.followed(horizon)))


WORLDS = {  # how it is made, and whether weights run on the subject's clock
    "fixed age": (fixed_age, False),
    "rising hazards": (partial(late_times, shape=2.0), True),
    "falling hazards": (partial(late_times, shape=0.6), True),
    "every index": (partial(late_times, shape=2.0, indexes=True), True),
}


def gaps(name: str, *, people: int, seeds: int) -> dict[str, np.ndarray]:
    """Metric → (horizons,) censored less uncensored, mean over seeds; O/E less 1."""
    make, clock = WORLDS[name]
    found: dict[str, list[np.ndarray]] = {key: [] for key in KEYS}
    for seed in range(seeds):
        made = make(seed, people)
        scope = made.scope(censored=True, clock=clock)
        seen, truth = scores(scope), list(whole(made, scope))
        for key in KEYS:
            right = np.ones(len(YEARS)) if key == "oe" else np.array([one[key][h] for h, one in enumerate(truth)])
            found[key].append(seen[key] - right)
    return {key: np.mean(values, axis=0) for key, values in found.items()}


# ---- the tests ------------------------------------------------------------------------------------------------------

SLOW = ("falling hazards", "every index")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in WORLDS]
)
def test_true_risks_score_what_uncensored_truth_says(name: str) -> None:
    found = gaps(name, people=12_000 if name == "fixed age" else 4_000, seeds=4)
    worst = {key: float(np.abs(values).max()) for key, values in found.items()}
    assert worst["oe"] < 0.03, found
    assert worst["ipa"] < 0.01, found
    assert max(worst["c"], worst["auc"]) < 0.01, found
    assert worst["slope"] < 0.05, found


def test_an_age_that_the_task_does_not_name_biases_all_but_observed_over_expected() -> None:
    """The mutant: those who could not be followed keep their events and lose all their non-events."""
    people = fixed_age(0, 15_000)
    scope = people.scope(censored=True, clock=False, names_its_end=False)
    seen, truth = scores(scope), list(whole(people, scope))
    assert abs(seen["oe"][2] - 1) < 0.03
    assert abs(seen["auc"][2] - truth[2]["auc"][2]) > 0.01
    assert abs(seen["ipa"][2] - truth[2]["ipa"][2]) > 0.02


def test_one_kaplan_meier_over_rows_of_many_prediction_times_is_wrong() -> None:
    """The mutant: with true risks and rising hazards it finds another IPA."""
    people = late_times(0, 6_000, shape=2.0)
    scope = people.scope(censored=True, clock=True)
    seen, truth = scores(scope), list(whole(people, scope))
    mutant = scores(replace(scope, censoring=None))
    assert abs(seen["ipa"][2] - truth[2]["ipa"][2]) < 0.02
    assert abs(mutant["ipa"][2] - truth[2]["ipa"][2]) > 0.02
