"""What is hidden of a simulated life is drawn from its posterior, and single codes or bags of codes tell nothing."""

import numpy as np
import pytest

from ehrsequencing.simulate.process import Process
from ehrsequencing.simulate.records import Courses
from helpers.simulate import NO_EFFECTS, courses_of


def excess(courses: Courses, which: np.ndarray) -> float:
    """(O − E) / √E of outcomes in the stretches after some at-risk visits, E from the rate over all of them."""
    at_risk, visits = courses.is_at_risk, courses.visits
    follow_up_end = np.minimum(courses.censoring_day, courses.death_days)[courses.subject]
    same = np.append(courses.subject[1:] == courses.subject[:-1], False)
    until = np.where(same, np.append(visits.day[1:], 0), follow_up_end)
    outcome = courses.outcome_days[courses.subject]
    struck = at_risk & (outcome < until)
    exposure = np.where(at_risk, np.minimum(outcome, until) - visits.day - 1, 0)
    expected = struck.sum() / exposure.sum() * exposure[which].sum()
    return float((struck[which].sum() - expected) / np.sqrt(expected))


@pytest.fixture(scope="module")
def only_signs() -> tuple[Process, Courses]:
    """Pairs and order alone: nothing else moves the outcome. It is rare, since those whom it spares are a selection."""
    rest = {name: 0.0 for name in NO_EFFECTS if name != "pair_effect"}
    return courses_of(
        20_000,
        pairs=6,
        outcome_per_year=0.02,
        order_visit_share=0.5,
        **{**rest, "order_effect": 0.8, "pair_effect": 1.0},
    )


def test_single_codes_tell_nothing_but_matching_does(only_signs: tuple[Process, Courses]) -> None:
    courses = only_signs[1]
    visits, rng = courses.visits, np.random.default_rng(0)
    a = rng.integers(6, size=len(visits.day))
    b = np.where(visits.matched, a, (a + rng.integers(1, 6, size=len(a))) % 6)
    for k in range(6):
        assert abs(excess(courses, visits.has_pair & (a == k))) < 3.5
        assert abs(excess(courses, visits.has_pair & (b == k))) < 3.5
    # The same statistic sees what there is to see.
    assert excess(courses, visits.matched) > 10
    assert excess(courses, visits.has_pair & ~visits.matched) < -10


def order_history(courses: Courses) -> tuple[np.ndarray, np.ndarray]:
    """Per visit: how often each order code was written up to it, (V, 3), and the last but one (−1: none)."""
    visits = courses.visits
    written = np.eye(3, dtype=int)[visits.order_code] * visits.has_order[:, None]
    total = np.cumsum(written, axis=0)
    first = np.searchsorted(courses.subject, courses.subject)
    before = np.concatenate([np.zeros((1, 3), dtype=int), total])[first]
    counts = total - before
    previous = np.where(counts.sum(axis=1) > 1, (visits.order_code - visits.order_sign) % 3, -1)
    return counts, previous


@pytest.mark.parametrize("mutant", [False, True])
def test_neither_of_two_ordered_codes_tells_nor_does_their_bag_but_their_order_does(
    only_signs: tuple[Process, Courses], mutant: bool
) -> None:
    """A third code makes this possible; the mutant reads of two codes only, A after anything or B after A or C."""
    courses = only_signs[1]
    visits = courses.visits
    counts, previous = order_history(courses)
    code, sign = visits.order_code, visits.order_sign
    assert set(sign[previous < 0]) == {0}
    singles = [code == k for k in range(3)] + [previous == k for k in range(3)]
    ever = [counts[:, k] > 0 for k in range(3)]
    twos = counts.sum(axis=1) == 2
    bags = [twos & (counts[:, j] == 1) & (counts[:, k] == 1) for j, k in ((0, 1), (1, 2), (0, 2))]
    blind = [*singles, *ever, *bags, counts.sum(axis=1) >= 4]
    if mutant:  # had the two codes A and B no third beside them, the last would tell
        blind = [(code == k) & (previous >= 0) & (code < 2) & (previous < 2) for k in range(2)]
    worst = max(abs(excess(courses, which)) for which in blind)
    assert (worst > 5) if mutant else (worst < 3.5)
    assert excess(courses, sign > 0) > 8
    assert excess(courses, sign < 0) < -8
    assert excess(courses, bags[0] & (sign > 0)) - excess(courses, bags[0] & (sign < 0)) > 5
