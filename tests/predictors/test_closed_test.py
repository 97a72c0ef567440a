"""Updates for another hospital, on arrays: known shifts are found, and where there is none nothing is changed."""

import numpy as np
import pytest

from ehrsequencing.core.arrays import Floats
from ehrsequencing.predictors.recalibration import (
    ALPHA,
    FEWEST_EVENTS,
    METHODS,
    CauseUpdate,
    Labels,
    fit_update,
    largest_allowed,
)

EDGES = (50.0, 150.0, 400.0)
SLOW = pytest.mark.slow


def hospital(
    seed: int,
    people: int = 800,
    *,
    level: float = 0.0,
    slope: float = 1.0,
    rows: int = 1,
) -> tuple[Floats, Labels]:
    """Predicted log-hazards, and what happens under the true ones; a person's rows share the event."""
    rng = np.random.default_rng(seed)
    score = rng.normal(0, 0.7, (people, 1))
    eta = -7.2 + score + np.array([0.2, 0.0, -0.1, 0.1])
    truth = level + slope * (eta + 7.0) - 7.0
    days, rate = np.diff([0.0, *EDGES, 3000.0]), np.exp(truth)
    spent, until = rng.exponential(1, people), np.cumsum(rate * days, axis=1)
    bin_ = (spent[:, None] > until).sum(axis=1)
    inside = np.minimum(bin_, 3)
    before = np.c_[np.zeros(people), until][np.arange(people), inside]
    start = np.r_[0.0, EDGES][inside]
    event = np.where(bin_ < 4, start + (spent - before) / rate[np.arange(people), inside], np.inf)
    end = rng.uniform(100, 900, people)
    labels = Labels(
        np.repeat(np.minimum(event, end), rows),
        np.repeat((event <= end).astype(np.int8), rows),
        np.zeros(people * rows),
        np.repeat(np.arange(people), rows),
    )
    return np.repeat(eta, rows, axis=0), labels


def updated(seed: int, *, largest: int = 2, **world: float) -> CauseUpdate:
    eta, labels = hospital(seed, **world)  # type: ignore[arg-type]
    return fit_update(eta, EDGES, labels, cause=0, largest=largest)


@pytest.mark.parametrize(("largest", "rows"), [(1, 1), pytest.param(2, 1, marks=SLOW), (2, 4)])
def test_where_nothing_is_shifted_nothing_is_changed_at_the_nominal_rate(largest: int, rows: int) -> None:
    draws = 300
    changed = sum(updated(seed, largest=largest, people=400, rows=rows).method != "none" for seed in range(draws))
    spread = (ALPHA * (1 - ALPHA) * draws) ** 0.5
    assert abs(changed - ALPHA * draws) < 3 * spread


def test_a_known_level_is_found_and_no_more_is_taken() -> None:
    draws = 200
    found = [updated(seed, level=0.6) for seed in range(draws)]
    more, spread = sum(one.method != "level" for one in found), (ALPHA * (1 - ALPHA) * draws) ** 0.5
    assert abs(more - ALPHA * draws) < 3 * spread
    assert {one.slope for one in found if one.method == "level"} == {1.0}
    assert np.mean([one.level for one in found]) == pytest.approx(0.6, abs=0.05)
    eta = hospital(0, level=0.6)[0]
    one = next(one for one in found if one.method == "level")
    assert one.applied(eta) == pytest.approx(eta + one.level)


def test_a_known_slope_is_found() -> None:
    found = [updated(seed, level=-0.3, slope=0.5, people=1500) for seed in range(20)]
    assert {one.method for one in found} == {"level and slope"}
    assert np.mean([one.slope for one in found]) == pytest.approx(0.5, abs=0.05)
    predicted = [one.intercept + one.slope * -7.0 for one in found]
    assert np.mean(predicted) == pytest.approx(-7.3, abs=0.06)


def test_estimates_are_shrunk_most_where_the_evidence_is_weak() -> None:
    weak, strong = (
        [one.shrinkage for seed in range(30) if (one := updated(seed, level=level)).method != "none"]
        for level in (0.25, 0.9)
    )
    assert all(0.5 < one < 1 for one in weak)
    assert np.mean(weak) < np.mean(strong) < 1


def test_the_events_decide_what_may_be_fitted() -> None:
    for place, fewest in enumerate(FEWEST_EVENTS[1:], start=1):
        assert largest_allowed(fewest - 1) == place - 1
        assert METHODS[largest_allowed(fewest)] == METHODS[place]
    assert METHODS[largest_allowed(10_000)] == "level and slope"


def test_hazards_that_are_the_same_for_everybody_have_no_slope() -> None:
    eta, labels = hospital(0, level=0.8)
    flat = np.full_like(eta, -7.0)
    one = fit_update(flat, EDGES, labels, cause=0, largest=2)
    assert one.method == "level"
    no_event = Labels(labels.duration_days, 0 * labels.cause, labels.entry_days, labels.subject)
    assert fit_update(eta, EDGES, no_event, cause=0, largest=2).method == "none"
