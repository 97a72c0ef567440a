"""What is known of the hidden: the posteriors beside Bayes' rule day by day, written from the definitions alone."""

import math
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.stats import lognorm

from ehrsequencing.simulate import SimulationConfig
from ehrsequencing.simulate.lives import Lives
from ehrsequencing.simulate.process import Process
from ehrsequencing.simulate.records import Courses, simulate_courses

YEAR = 365.25
EVERYTHING = SimulationConfig(
    outcome_per_year=0.15, death_per_year=0.1, visits_per_year=6, visit_rate_spread=0.8, visit_effect=0.6,
    stay_visit_share=0.2, stay_days=15, frailty_spread=1.0, order_effect=0.9, decay_effect=1.5,
)  # fmt: skip
Known = dict[str, Any]  # one subject's state, by the names of `Lives`; floats, or one per copy


def everything(subjects: int, *, seed: int) -> tuple[Process, Courses]:
    process = Process(EVERYTHING)
    return process, simulate_courses(process, np.random.default_rng(seed), subjects)


def daily(config: SimulationConfig, known: Known, day: int) -> tuple[Any, Any, Any]:
    """Sickness, and log hazards of outcome and death at a frailty of one, on a quiet day."""
    halved = (day - 1 - known["acute_day"]) // config.decay_half_life_days
    decay = np.where(halved < 4, config.decay_effect / 2.0 ** np.minimum(halved, 4), 0)
    decades = ((known["age_days"] + known["day"]) / YEAR - 60) / 10
    centre = np.concatenate(
        [[0], np.cumsum(np.log(np.cosh(config.pair_effect * config.pair_memory ** np.arange(2000.0))))]
    )
    sickness = known["chronic"] + decay + config.lab_effect * known["lab"]
    sign = known["order_sign"]
    outcome = math.log(config.outcome_per_year / YEAR) + sickness
    outcome += config.age_effect * decades + config.sex_effect * known["male"]
    outcome += config.pair_effect * known["pair_score"] - centre[known["pairs"]]
    outcome += config.gap_effect * (known["gap_days"] < config.gap_days)
    outcome += config.order_effect * sign - np.abs(sign) * math.log(math.cosh(config.order_effect))
    death = math.log(config.death_per_year / YEAR)
    death += config.death_age_effect * decades + config.death_sex_effect * known["male"]
    return sickness, outcome, death


def classes(spread: float) -> np.ndarray:
    values = lognorm.ppf((np.arange(32) + 0.5) / 32, math.sqrt(math.log(1 + spread**2)))
    return values / values.mean()


def posteriors(config: SimulationConfig, history: list[Known]) -> tuple[np.ndarray, np.ndarray]:
    """Of the 32 visit rates and the 32 frailties, given one subject's visits up to p, by Bayes' rule day by day."""
    rates, frailties = config.visits_per_year / YEAR * classes(config.visit_rate_spread), classes(config.frailty_spread)
    rate_weights, frailty_weights = np.ones(32), np.ones(32)
    enrolment = history[0]["enrolment_day"]
    for before, after in pairwise(history):
        for day in range(int(before["day"]) + 1, int(after["day"]) + 1):
            sickness, outcome, death = daily(config, before, day)
            came = day == after["day"]
            if not before["in_stay"] and day != enrolment:
                quiet = np.exp(-rates * np.exp(config.visit_effect * sickness))
                rate_weights *= 1 - quiet if came else quiet
            if not came and day > enrolment:
                both = frailties * np.exp(outcome) + frailties**config.frailty_death_share * np.exp(death)
                frailty_weights *= np.exp(-both)
    return rate_weights / rate_weights.sum(), frailty_weights / frailty_weights.sum()


def histories(courses: Courses, rows: np.ndarray) -> list[list[Known]]:
    """The visits of each row's subject up to it, without what is hidden."""
    shown = [field.name for field in fields(Lives) if field.name not in {"visit_rate", "frailty", "now"}]
    first = np.searchsorted(courses.subject, courses.subject[rows])
    return [
        [{name: getattr(courses.visits, name)[k].item() for name in shown} for k in range(begin, row + 1)]
        for begin, row in zip(first, rows, strict=True)
    ]


@pytest.mark.parametrize(
    "mutant", ["", "visits", *(pytest.param(name, marks=pytest.mark.slow) for name in ("stays", "survival"))]
)
def test_the_posteriors_are_those_of_bayes_rule_day_by_day(mutant: str) -> None:
    process, courses = everything(30, seed=1)
    rows = np.flatnonzero(courses.is_at_risk)[::60]
    evidence = courses.evidence.take(rows)
    weights = np.exp(evidence.rate - evidence.rate.max(axis=0))
    survival = np.exp(-process.frailty_factors(process.frailties).T @ evidence.hazard)
    config = EVERYTHING.model_copy(
        update={"visits": {"visit_effect": 0.0}, "survival": {"frailty_death_share": 0.0}}.get(mutant, {})
    )
    worst = 0.0
    for k, history in enumerate(histories(courses, rows)):
        if mutant == "stays":  # taken for absences
            history = [{**known, "in_stay": False} for known in history]
        rate, frailty = posteriors(config, history)
        worst = max(worst, np.abs(weights[:, k] / weights[:, k].sum() - rate).max())
        worst = max(worst, np.abs(survival[:, k] / survival[:, k].sum() - frailty).max())
    assert (worst > 1e-3) if mutant else (worst < 1e-12)
