"""A twin of the simulation that lives every day and counts events, written from the definitions alone."""

import math
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.stats import lognorm

from ehrsequencing.simulate import SimulationConfig
from ehrsequencing.simulate.lives import Evidence, Lives
from ehrsequencing.simulate.process import Process
from ehrsequencing.simulate.records import Courses, simulate_courses
from ehrsequencing.simulate.truth import true_curves

YEAR = 365.25
EVERYTHING = SimulationConfig(
    outcome_per_year=0.15,
    death_per_year=0.1,
    visits_per_year=6,
    visit_rate_spread=0.8,
    visit_effect=0.6,
    stay_visit_share=0.2,
    stay_days=15,
    frailty_spread=1.0,
    order_effect=0.9,
    decay_effect=1.5,
    truth_futures=2048,
)
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


def count_events(
    config: SimulationConfig, history: list[Known], *, fraction: float, until: float, copies: int
) -> np.ndarray:
    """Live one subject's future day by day, many times; return when and from what each copy's follow-up ended.

    Written from the definitions alone (the docstring of `ehrsequencing.simulate.process`). Returns (2, copies): days
    since p of the first event, inf for none by `until`; and its cause, 1 or 2.
    """
    rng, start = np.random.default_rng(len(history)), int(history[-1]["day"])
    rate_weights, frailty_weights = posteriors(config, history)
    rate = rng.choice(config.visits_per_year / YEAR * classes(config.visit_rate_spread), copies, p=rate_weights)
    frailty = rng.choice(classes(config.frailty_spread), copies, p=frailty_weights)
    now: Known = {name: np.full(copies, value) for name, value in history[-1].items()}
    ended, cause = np.full(copies, np.inf), np.zeros(copies)
    for day in range(start + 1, start + math.ceil(until + fraction) + 1):
        sickness, outcome, death = daily(config, now, day)
        rates = np.stack([np.exp(outcome) * frailty, np.exp(death) * frailty**config.frailty_death_share])
        chance = 1 - np.exp(-rate * np.exp(config.visit_effect * sickness))
        visit = rng.random(copies) < np.where(now["in_stay"], 1 / config.stay_days, chance)
        wait = rng.standard_exponential(copies) / rates.sum(axis=0)
        strikes = ~visit & (wait < 1) & np.isinf(ended)
        ended[strikes] = day - start - fraction + wait[strikes]
        cause[strikes] = np.where(rng.random(copies) < rates[0] / rates.sum(axis=0), 1, 2)[strikes]
        admitted = visit & ~now["in_stay"] & (rng.random(copies) < config.stay_visit_share)
        begins, writes = visit & ~now["in_stay"], visit & ~admitted

        def put(name: str, where: np.ndarray, value: Any, now: Known = now) -> None:
            now[name] = np.where(where, value, now[name])

        put("gap_days", begins, day - now["day"])
        put("day", visit, day)
        put("in_stay", visit, admitted)
        pair = writes & (rng.random(copies) < config.pair_visit_share)
        put("pair_score", pair, config.pair_memory * now["pair_score"] + rng.choice([-1, 1], copies))
        put("pairs", pair, now["pairs"] + 1)
        ordered, code = writes & (rng.random(copies) < config.order_visit_share), rng.integers(3, size=copies)
        sign = np.array([0, 1, -1])[(code - now["order_code"]) % 3]
        put("order_sign", ordered, np.where(now["order_code"] < 0, 0, sign))
        put("order_code", ordered, code)
        put("acute_day", writes & (rng.random(copies) < config.acute_visit_share), day)
        innovation = math.sqrt(1 - config.lab_memory**2) * rng.standard_normal(copies)
        measured = writes & (rng.random(copies) < config.lab_visit_share)
        put("lab", measured, config.lab_memory * now["lab"] + innovation)
    return np.stack([ended, cause])


def histories(courses: Courses, rows: np.ndarray) -> list[list[Known]]:
    """The visits of each row's subject up to it, without what is hidden."""
    shown = [field.name for field in fields(Lives) if field.name not in {"visit_rate", "frailty", "now"}]
    first = np.searchsorted(courses.subject, courses.subject[rows])
    return [
        [{name: getattr(courses.visits, name)[k].item() for name in shown} for k in range(begin, row + 1)]
        for begin, row in zip(first, rows, strict=True)
    ]


@pytest.mark.slow
def test_truth_is_what_a_day_by_day_twin_counts() -> None:
    """Everything on, rates high, eight states: within 3 standard errors at three horizons and for both causes."""
    process, courses = everything(60, seed=0)
    at_risk = np.flatnonzero(courses.is_at_risk)
    rows = np.append(
        at_risk[np.linspace(0, len(at_risk) - 1, 6).astype(int)],
        [
            at_risk[courses.visits.in_stay[at_risk]][3],  # newly admitted
            at_risk[courses.visits.has_acute[at_risk]][3],  # newly struck by the acute event
        ],
    )
    fraction, copies = 0.6, 5000
    edges = np.array([0.0, 30.0, 200.0, 500.3])
    lives, evidence = courses.visits.take(rows), courses.evidence.take(rows)

    def incidence(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(5)
        curves = true_curves(process, lives, evidence, day_fraction=np.full(8, fraction), edges_days=edges, rng=rng)
        return curves.incidence, curves.incidence_se

    truth, truth_se = incidence(evidence)
    counted = np.empty_like(truth)
    for k, history in enumerate(histories(courses, rows)):
        ended, cause = count_events(EVERYTHING, history, fraction=fraction, until=edges[-1], copies=copies)
        counted[:, k] = [[((ended <= edge) & (cause == e)).mean() for edge in edges] for e in (1, 2)]
    se = np.hypot(truth_se, np.sqrt(truth * (1 - truth) / copies))[:, :, 1:]
    z = (counted - truth)[:, :, 1:] / se
    assert np.abs(z).max() < 3.4  # 48 comparisons
    assert abs((z**2).mean() - 1) < 0.6
    # The twin tells truths apart: what holds at the last visit, taken to hold for ever; the prior of what is hidden.
    frozen = process.hazards_per_day(lives)
    plug_in = frozen[0] / frozen.sum(axis=0) * (1 - np.exp(-frozen.sum(axis=0) * (500.3 - 0.4)))
    prior, _ = incidence(Evidence.none(8))
    for mutant in (plug_in - counted[0, :, 3], (prior - counted)[:, :, 1:]):
        assert np.abs(mutant).max() > 6 * math.sqrt(0.25 / copies)


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
