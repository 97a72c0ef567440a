"""Life courses: who the subjects of a block are, when they visit, and when something strikes."""

from dataclasses import dataclass
from datetime import date

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.simulate.lives import Draws, Evidence, Lives
from ehrsequencing.simulate.process import Process
from ehrsequencing.simulate.settings import DAYS_PER_YEAR

STUDY_END = (
    date(2020, 1, 1) - date(1970, 1, 1)
).days  # administrative censoring, at midnight; in days since 1970


@dataclass(frozen=True, slots=True)
class Courses:
    """The life courses of n subjects and their V visits; days are counted from each one's first visit's day.

    Visits end with follow-up or death; those after the outcome are here, since records go on after it. A stay is two
    visits, the day of admission and that of discharge.
    """

    male: Bools  # (n,)
    chronic: Bools  # (n, conditions)
    first_day: Ints  # (n,) day 0 in days since 1970
    birth_day: Ints  # (n,) in days since 1970
    censoring_day: Floats  # (n,) at midnight: the study's end or drop-out
    outcome_days: Floats  # (n,) inf where it does not strike in follow-up and life
    death_days: Floats  # (n,) inf where it does not strike in follow-up
    subject: Ints  # (V,) whose visit, in order
    visits: Lives  # (V,) states just after each visit
    evidence: Evidence  # (V,) and what is known then of the hidden

    @property
    def is_enrolment(self) -> Bools:
        """(V,) the visits at which subjects enrol."""
        return np.equal(self.visits.day, self.visits.enrolment_day)

    @property
    def is_at_risk(self) -> Bools:
        """(V,) the visits from enrolment on, before anything strikes: their ends are the prediction times."""
        struck = np.minimum(self.outcome_days, self.death_days)
        at_risk: Bools = (self.visits.day >= self.visits.enrolment_day) & (
            self.visits.day < struck[self.subject]
        )
        return at_risk


def simulate_courses(process: Process, rng: np.random.Generator, subjects: int) -> Courses:
    """Simulate the life courses of so many subjects."""
    config = process.config
    age_days = np.round(np.clip(rng.normal(60, 12, subjects), 20, 95) * DAYS_PER_YEAR)
    male = rng.random(subjects) < 0.5
    chronic = rng.random((subjects, config.chronic_conditions)) < config.chronic_prevalence
    enrolment_day = np.floor(rng.random(subjects) * config.history_max_years * DAYS_PER_YEAR)
    follow_up_years = rng.uniform(config.follow_up_min_years, config.follow_up_max_years, subjects)
    follow_up_days = np.floor(follow_up_years * DAYS_PER_YEAR)
    stay_years = rng.standard_exponential(subjects)

    lives = process.begin(
        rng, age_days=age_days, male=male, chronic=chronic, enrolment_day=enrolment_day
    )
    evidence = Evidence.none(subjects)
    # the cumulative hazards at which outcome and death strike
    strikes_at = rng.standard_exponential((2, subjects))
    cumulative, struck_days = np.zeros((2, subjects)), np.full((2, subjects), np.inf)
    sickness_then = np.zeros(subjects)
    whose, states, known = [], [], []
    while True:
        visiting = np.flatnonzero(lives.is_visit & (lives.now < enrolment_day + follow_up_days))
        whose.append(visiting)
        states.append(lives.take(visiting))
        known.append(evidence.take(visiting))
        np.copyto(sickness_then, process.sickness(lives), where=lives.day == enrolment_day)
        recorded_hazards = process.hazards_per_day(lives) * (lives.now >= enrolment_day)
        hazards = recorded_hazards * process.frailty_factors(lives.frailty)
        before, start = lives, lives.now + 1
        lives = process.advance(before, Draws.fresh(rng, subjects))
        days = lives.now + 1 - lives.is_visit - start  # a visit's own day is quiet
        reached = cumulative + hazards * days
        strikes = (cumulative <= strikes_at) & (strikes_at < reached)
        np.copyto(
            struck_days,
            start + (strikes_at - cumulative) / np.where(strikes, hazards, 1),
            where=strikes,
        )
        cumulative = reached
        evidence = Evidence(
            evidence.rate + process.visit_log_likelihood(before, lives),
            evidence.hazard + recorded_hazards * days,
        )
        if np.all(lives.now >= enrolment_day + follow_up_days):
            break

    censoring_day = enrolment_day + _observed_days(
        process, stay_years, follow_up_days, sickness_then
    )
    outcome_days, death_days = np.where(struck_days < censoring_day, struck_days, np.inf)
    subject, visits = np.concatenate(whose), Lives.join(states)
    order = np.lexsort((visits.day, subject))
    order = order[visits.day[order] < np.minimum(censoring_day, death_days)[subject[order]]]
    first_day = (STUDY_END - enrolment_day - follow_up_days).astype(np.int64)
    return Courses(
        male=male,
        chronic=chronic,
        first_day=first_day,
        birth_day=first_day - age_days.astype(np.int64),
        censoring_day=censoring_day,
        outcome_days=np.where(outcome_days < death_days, outcome_days, np.inf),
        death_days=death_days,
        subject=subject[order],
        visits=visits.take(order),
        evidence=Evidence.join(known).take(order),
    )


def _observed_days(
    process: Process, stay_years: Floats, follow_up_days: Floats, sickness_then: Floats
) -> Floats:
    """(n,) days from enrolment to the study's end or drop-out, whose rate is set by the record up to enrolment.

    Up to enrolment, and not up to each visit: enrolment lies before every prediction time, so that censoring is
    independent of what happens given the record up to any of them. Were it to follow later visits too, those still
    observed would not be like those at risk, and a model fitted to them could rightly beat the truth.
    """
    config = process.config
    if config.drop_out_per_year == 0:
        return follow_up_days
    rate = config.drop_out_per_year * np.exp(config.drop_out_effect * sickness_then) / DAYS_PER_YEAR
    return np.asarray(np.clip(np.ceil(stay_years / rate), 1, follow_up_days))
