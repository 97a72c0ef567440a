"""A subject's own clock: the same moments have the same weights, whatever unit of time they were written in."""

import numpy as np
import pytest

from ehrsequencing.metrics.censoring import SubjectClock, moment_days

UNITS = {"minutes": 1440, "hours": 24, "thirds of a day": 3, "seconds": 86_400}


def drawn(seed: int, a_day: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Whole units of time: prediction times since the index, durations, causes and subjects, many of them tied."""
    g = np.random.default_rng(seed)
    subject = np.sort(g.integers(0, 400, 1000))
    end = g.integers(1, 30 * a_day, 400)
    since = np.minimum(g.integers(0, 20 * a_day, 1000), end[subject] - 1)
    cause = (g.random(400) < 0.5).astype(np.int64)
    return since, end[subject] - since, cause[subject], subject


@pytest.mark.parametrize("unit", UNITS)
def test_weights_are_those_of_whole_numbers(unit: str) -> None:
    a_day = UNITS[unit]
    since, duration, cause, subject = drawn(3, a_day)
    whole = SubjectClock.fit(since.astype(float), duration.astype(float), cause, subject)  # exact: a unit is a day
    clock = SubjectClock.fit(since / a_day, duration / a_day, cause, subject)
    np.testing.assert_array_equal(clock.before_own(duration / a_day), whole.before_own(duration.astype(float)))
    horizons = np.array([1, 5, 9]) * a_day
    np.testing.assert_array_equal(clock.before(horizons / a_day), whole.before(horizons.astype(float)))
    for horizon in horizons:
        np.testing.assert_array_equal(clock.covers(horizon / a_day), whole.covers(float(horizon)))
    few = np.flatnonzero(np.arange(len(since)) % 3 == 0)
    np.testing.assert_array_equal(
        clock.of_rows(since[few] / a_day).before_own(duration[few] / a_day), whole.before_own(duration)[few]
    )


def test_the_smallest_case() -> None:
    """One subject leaves at the moment of another's event: events come first, so that its weight is 1, not 1.5."""
    since, duration = np.array([0.1, 0.0, 0.0]), np.array([0.2, 0.3, 0.5])
    clock = SubjectClock.fit(since, duration, np.array([1, 0, 1]), np.arange(3))
    assert clock.before_own(duration)[0] == 1


def test_a_moment_long_after_the_index_is_exact() -> None:
    us = np.array([1, 10**6 + 1, 86_400_000_000 * 40_000 + 7], dtype=np.int64)
    days = us / 86_400e6
    for later in us:
        total = moment_days(days, later / 86_400e6)
        np.testing.assert_array_equal(total, (us + later) / 86_400e6)
