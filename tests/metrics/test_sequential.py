"""The anytime-valid alarm and expected accuracy, against slow references and what they promise."""

import math

import numpy as np
import pytest

from ehrsequencing.metrics import sequential
from ehrsequencing.metrics.hazards import expected_accuracy
from ehrsequencing.metrics.plain import brier, concordance, ipa
from ehrsequencing.metrics.sequential import evidence


def _slow(observed, expected, *, every):
    """The e-process after the last day, number by number, without logarithms."""
    days, streams = observed.shape
    starts = range(0, days, every)
    weights = [10 / ((10 + k) * (11 + k)) for k in range(len(starts))]
    values = []
    for stream in range(streams):
        for edge, thetas in ((1.1, (1.4, 1.7)), (0.9, (0.7, 0.4))):
            mean = 1 - sum(weights)  # starts that lie ahead
            for first, weight in zip(starts, weights, strict=True):
                n = sum(observed[d, stream] for d in range(first, days))
                e = sum(expected[d, stream] for d in range(first, days))
                each = [(theta / edge) ** n * math.exp(-(theta - edge) * e) for theta in thetas]
                mean += weight * sum(each) / len(each)
            values.append(mean)
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", range(3))
def test_the_process_is_that_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    observed, expected = rng.poisson(0.7, (61, 3)).astype(float), rng.gamma(2.0, 0.3, (61, 3))
    found = evidence(observed, expected, start_every=7)
    for day in (1, 6, 7, 8, 30, 61):
        slow = _slow(observed[:day], expected[:day], every=7)
        assert np.exp(found.total[day - 1]) == pytest.approx(slow, rel=1e-9)
    assert np.exp(found.parts[-1]).mean() == pytest.approx(np.exp(found.total[-1]))


@pytest.mark.parametrize("ratio", [0.9, 1.0, 1.1])
def test_its_mean_is_at_most_1_wherever_one_stops_and_above_where_the_band_is_left(ratio):
    """A rule that stops early where things look bad gains nothing: the weights of starts must not depend on time."""
    rng, stopped = np.random.default_rng(1), []
    for _ in range(2000):
        expected = np.full((84, 1), 0.25)
        found = evidence(rng.poisson(0.25 * ratio, (84, 1)), expected, start_every=4)
        total = np.exp(found.total)
        stops = np.flatnonzero(total > 1.2)
        stopped.append(total[stops[0] if len(stops) else -1])
    assert np.mean(stopped) < 1 + 3 * np.std(stopped) / np.sqrt(len(stopped))


def test_a_change_is_found_and_large_counts_do_not_overflow():
    day = np.arange(700)[:, None]
    expected = np.full((700, 1), 1.0)
    for factor in (1.5, 0.5):
        observed = np.where(day < 200, 1.0, factor)
        first = evidence(observed, expected).alarm_day()
        assert 200 < (first or 0) < 400
    assert evidence(np.full((700, 1), 1.05), expected).alarm_day() is None
    assert np.isfinite(evidence(1e5 * np.full((700, 1), 2.0), 1e5 * expected).total).all()


def test_all_weights_of_starts_add_up_to_1():
    number = np.arange(1_000_000)
    weight = sequential.START / ((sequential.START + number) * (sequential.START + number + 1))
    assert weight.sum() == pytest.approx(1.0, abs=1e-4)


def test_expected_accuracy_is_that_of_many_draws():
    rng = np.random.default_rng(0)
    hazard = rng.gamma(2.0, 0.01, 150)
    incidence = -np.expm1(-np.outer(hazard, np.linspace(0, 30, 31)[1:]))
    drawn = []
    for _ in range(300):
        time = rng.exponential(size=150) / hazard
        args = (np.minimum(time, 30.0), time <= 30.0, incidence[:, -1])
        drawn.append([one(*args, horizon=30.0) for one in (concordance, brier, ipa)])
    error = np.std(drawn, axis=0) / np.sqrt(len(drawn))
    assert (np.abs(expected_accuracy(incidence)[:, 0] - np.mean(drawn, axis=0)) < 4 * error + 5e-4).all()


def test_weights_of_people_are_people():
    incidence = np.sort(np.random.default_rng(2).random((12, 4)), axis=1)
    twice = np.r_[incidence, incidence[:3]]
    weights = np.r_[np.full(3, 2.0), np.ones(9)][None]
    by_weight = expected_accuracy(incidence, weights)[1:]
    assert by_weight == pytest.approx(expected_accuracy(twice)[1:])
    same = expected_accuracy(np.full((5, 3), 0.2) * np.arange(1, 4) / 3)
    assert same[0] == pytest.approx(0.5)  # nobody is above anybody else
