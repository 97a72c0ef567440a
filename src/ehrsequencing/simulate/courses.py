"""Life courses: who the subjects of a block are, when they visit, and when something strikes."""

from dataclasses import dataclass
from datetime import date

import numpy as np

from ehrsequencing.simulate.process import Bools, Floats, Ints, Lives, Process, VisitDraws
from ehrsequencing.simulate.settings import DAYS_PER_YEAR

STUDY_END = (date(2020, 1, 1) - date(1970, 1, 1)).days  # administrative censoring, at midnight; in days since 1970


@dataclass(frozen=True, slots=True)
class Courses:
    """The life courses of n subjects and their V visits; days are counted from each one's first visit's day.

    Visits end with follow-up or death; those after the outcome are here, since records go on after it.
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

    @property
    def is_enrolment(self) -> Bools:
        """(V,) the visits at which subjects enrol."""
        return np.equal(self.visits.day, self.visits.enrolment_day)

    @property
    def is_at_risk(self) -> Bools:
        """(V,) the visits from enrolment on, before anything strikes: their ends are the prediction times."""
        struck = np.minimum(self.outcome_days, self.death_days)
        at_risk: Bools = (self.visits.day >= self.visits.enrolment_day) & (self.visits.day < struck[self.subject])
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
    if config.drop_out_per_year > 0:
        drop_out_days = np.ceil(stay_years / config.drop_out_per_year * DAYS_PER_YEAR)
        observed_days = np.clip(drop_out_days, 1, follow_up_days)
    else:
        observed_days = follow_up_days
    censoring_day = enrolment_day + observed_days

    lives = process.begin(rng, age_days=age_days, male=male, chronic=chronic, enrolment_day=enrolment_day)
    strikes_at = rng.standard_exponential((2, subjects))  # the cumulative hazards at which outcome and death strike
    cumulative, struck_days = np.zeros((2, subjects)), np.full((2, subjects), np.inf)
    states = []
    while True:
        states.append(lives)
        hazards = process.hazards_per_day(lives) * (lives.day >= enrolment_day)
        start = lives.day + 1
        lives = process.next_visit(lives, VisitDraws.fresh(rng, subjects))
        reached = cumulative + hazards * (lives.day - start)
        strikes = (cumulative <= strikes_at) & (strikes_at < reached)
        np.copyto(struck_days, start + (strikes_at - cumulative) / np.where(strikes, hazards, 1), where=strikes)
        cumulative = reached
        if np.all(lives.day >= censoring_day):
            break

    outcome_days, death_days = np.where(struck_days < censoring_day, struck_days, np.inf)
    day = np.stack([state.day for state in states])
    recorded = (day < censoring_day) & (day < death_days)
    subject, nth = np.nonzero(recorded.T)
    first_day = (STUDY_END - enrolment_day - follow_up_days).astype(np.int64)
    return Courses(
        male=male,
        chronic=chronic,
        first_day=first_day,
        birth_day=first_day - age_days.astype(np.int64),
        censoring_day=censoring_day,
        outcome_days=np.where(outcome_days < death_days, outcome_days, np.inf),
        death_days=death_days,
        subject=subject,
        visits=Lives.join(states).take(nth * subjects + subject),
    )
