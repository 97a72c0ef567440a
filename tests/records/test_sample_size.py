"""How many events a study needs: against published numbers, and against simulated studies of that size."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

from ehrsequencing.records.check import _population, needed_events


def test_observed_over_expected_needs_what_riley_says() -> None:
    # Riley et al. (2021), criterion 1: n = (1 − φ) / (φ SE²), SE = 0.2 / 1.96
    for incidence in (0.018, 0.2, 0.5):
        assert needed_events(incidence)["O/E ± 0.2"] == np.ceil((1 - incidence) * (1.96 / 0.2) ** 2)


def population(incidence: float, c: float) -> tuple[float, float]:
    """Mean and sd of a normal linear predictor with this incidence and C, pair by pair."""
    normal = norm.ppf((np.arange(400) + 0.5) / 400)

    def mean_of(sd: float) -> float:
        return float(brentq(lambda m: expit(m + sd * normal).mean() - incidence, -60, 60))

    def c_of(sd: float) -> float:
        risk = expit(mean_of(sd) + sd * normal)
        pairs = risk[:, None] * (1 - risk)
        wins = (risk[:, None] > risk) + 0.5 * (risk[:, None] == risk)
        return float((pairs * wins).sum() / pairs.sum())

    sd = float(brentq(lambda sd: c_of(sd) - c, 0.01, 20))
    return mean_of(sd), sd


def test_the_population_has_the_stated_c() -> None:
    for incidence, c in ((0.02, 0.9), (0.2, 0.75), (0.5, 0.95)):
        mean, spread = population(incidence, c)
        lp = mean + spread * np.random.default_rng(0).normal(size=400_000)
        event = np.random.default_rng(1).random(len(lp)) < expit(lp)
        rank = np.argsort(np.argsort(lp)) + 1.0
        auc = (rank[event].sum() - event.sum() * (event.sum() + 1) / 2) / (event.sum() * (~event).sum())
        assert auc == pytest.approx(c, abs=0.005)
        ours = _population(incidence, c)
        assert (ours.mean(), ours.std()) == pytest.approx((mean, spread), rel=0.02, abs=0.02)
        assert spread != pytest.approx(np.sqrt(2) * norm.ppf(c), rel=0.02)  # the sd that two normal groups would have


def test_more_discrimination_needs_fewer_people_to_train() -> None:
    # Riley et al. (2020): n = p / ((S − 1) ln(1 − R² / S)); with R² = 0.288 and 24 parameters 623 people
    assert np.ceil(24 / ((0.9 - 1) * np.log(1 - 0.288 / 0.9))) == 623
    parameters = [needed_events(0.174, c)["ten parameters"] for c in (0.65, 0.75, 0.85, 0.95)]
    assert parameters == sorted(parameters, reverse=True)
