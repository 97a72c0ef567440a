"""What is hidden of a simulated life is drawn from its posterior, and single codes or bags of codes tell nothing."""

from dataclasses import replace

import numpy as np
import pytest

from ehrsequencing.simulate.courses import Courses, simulate_courses
from ehrsequencing.simulate.hidden import Evidence, class_values
from ehrsequencing.simulate.process import Process
from helpers.simulate import NO_EFFECTS, courses_of


@pytest.fixture(scope="module")
def much_hidden() -> tuple[Process, Courses]:
    knobs = {"visit_rate_spread": 0.6, "visit_effect": 0.8, "frailty_spread": 1.0, "stay_visit_share": 0.1}
    return courses_of(5000, outcome_per_year=0.08, **knobs)


@pytest.mark.parametrize("mutant", ["", "prior", "blind to sickness", "blind to survival"])
def test_the_hidden_is_drawn_from_its_posterior(much_hidden: tuple[Process, Courses], mutant: str) -> None:
    """Among lives with like records, drawn rates and frailties have the mean of the true ones; spoilt draws do not."""
    process, courses = much_hidden
    rows = np.flatnonzero(courses.is_at_risk)[::7]
    lives, evidence = courses.visits.take(rows), courses.evidence.take(rows)
    if mutant == "prior":
        evidence = Evidence.none(len(rows))
    if mutant == "blind to survival":
        evidence = replace(evidence, hazard=0 * evidence.hazard)
    if mutant == "blind to sickness":  # the visits of a year, at the healthy's rates
        first = np.searchsorted(courses.subject, courses.subject[rows])
        days, visits = lives.day, rows - first
        rate = process.visit_rates[:, None]
        evidence = replace(evidence, rate=visits * np.log(-np.expm1(-rate)) - rate * (days - visits))
    drawn = process.draw_hidden(lives, evidence, np.random.default_rng(1), draws=1)

    def worst(name: str, shown: np.ndarray) -> float:
        difference = getattr(drawn, name) - getattr(lives, name)
        groups = np.array_split(np.argsort(shown), 5)
        return max(abs(difference[g].mean() / difference[g].std() * np.sqrt(len(g))) for g in groups)

    found = max(worst("visit_rate", lives.chronic), worst("visit_rate", lives.day), worst("frailty", lives.day))
    assert (found > 10) if mutant else (found < 5)  # rows of one subject correlate


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_hidden_classes_have_mean_one_and_nearly_their_spread(spread: float) -> None:
    values = class_values(spread)
    np.testing.assert_allclose(values.mean(), 1)
    np.testing.assert_allclose(values.std(), spread, rtol=0.15)
    assert (np.diff(values) >= 0).all()


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


@pytest.mark.parametrize("mutant", [False, True])
def test_the_number_of_pairs_tells_nothing_but_would_without_its_centre(
    only_signs: tuple[Process, Courses], mutant: bool
) -> None:
    process, courses = only_signs
    if mutant:
        process = Process(process.config)
        process._pair_centre = np.zeros_like(process._pair_centre)
        courses = simulate_courses(process, np.random.default_rng(7), 20_000)
    pairs = courses.visits.pairs
    worst = max(abs(excess(courses, which)) for which in (courses.visits.has_pair, pairs <= 1, pairs >= 4, pairs >= 8))
    assert (worst > 5) if mutant else (worst < 3.5)
