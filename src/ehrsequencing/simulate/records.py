"""Life courses of a block of subjects, the same as MEDS rows, and their prediction times.

A block holds `BLOCK` consecutive subject ids and its own random streams, so that a subject's record depends on the seed
and the settings only: neither on how many subjects there are nor on how they fall into files.
"""

from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.simulate.codes import (
    ACUTE,
    ADMISSION,
    BIRTH,
    DEATH_CODE,
    DISCHARGE,
    EMPTY_VISIT,
    END_OF_FOLLOW_UP,
    ENROLMENT,
    FEMALE,
    MALE,
    MARKER,
    OTHER_LAB,
    OUTCOME_CODE,
    CodeTable,
)
from ehrsequencing.simulate.lives import Draws, Evidence, LastAxis, Lives
from ehrsequencing.simulate.process import DAYS_PER_YEAR, Process, SimulationConfig

# the administrative end of follow-up, at midnight, in days since 1970
STUDY_END = (date(2020, 1, 1) - date(1970, 1, 1)).days
BLOCK = 256  # subjects; another number makes another simulation
ENCOUNTER = "hadm_id"  # the extra column that names the stay a row belongs to
_COURSES_STREAM, _RECORDS_STREAM, TRUTH_STREAM = range(3)
_MOST_STAYS = 10_000  # of one subject: no life lasts 20,000 days

_SECOND_US, _MINUTE_US, DAY_US = 1_000_000, 60_000_000, 86_400_000_000
_STATIC = np.iinfo(np.int64).min  # stands for the null time of static rows, which come first


# --- Life courses ---


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
    def is_at_risk(self) -> Bools:
        """(V,) the visits from enrolment on, before anything strikes: their ends are the prediction times."""
        struck = np.minimum(self.outcome_days, self.death_days)
        enrolled = self.visits.day >= self.visits.enrolment_day
        return np.asarray(enrolled & (self.visits.day < struck[self.subject]))


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

    # Drop-out goes by the record up to enrolment, which lies before every prediction time, so that censoring is
    # independent of what happens given the record up to any of them. Were it to follow later visits too, those still
    # observed would not be like those at risk, and a model fitted to them could rightly beat the truth.
    censoring_day = enrolment_day + follow_up_days
    if config.drop_out_per_year:
        rate = config.drop_out_per_year * np.exp(config.drop_out_effect * sickness_then)
        days = np.ceil(stay_years / (rate / DAYS_PER_YEAR))
        censoring_day = enrolment_day + np.clip(days, 1, follow_up_days)
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


# --- Records ---


@dataclass(frozen=True, slots=True)
class PredictionTimes:
    """R prediction times, by subject and time: the enrolment and the end of every later visit at risk."""

    subject_id: Ints  # (R,)
    time_us: Ints  # (R,) since 1970
    lives: Lives  # (R,) states just after the visit
    evidence: Evidence  # (R,) what is known of the hidden

    def take(self, rows: Bools) -> "PredictionTimes":
        """Choose rows by mask."""
        return PredictionTimes(
            self.subject_id[rows],
            self.time_us[rows],
            self.lives.take(rows),
            self.evidence.take(rows),
        )


@dataclass(frozen=True, slots=True)
class Block:
    """The records of up to `BLOCK` subjects."""

    subject_id: Ints  # (n,)
    events: pa.Table  # MEDS rows, by subject and time
    prediction_times: PredictionTimes


def random_stream(seed: int, block: int, purpose: int) -> np.random.Generator:
    """One block's generator for one purpose; no two share a stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(block, purpose)))


def simulate_block(
    process: Process, codes: CodeTable, *, seed: int, block: int, subjects: int
) -> Block:
    """Simulate block number `block` and keep its first `subjects` subjects."""
    courses = simulate_courses(process, random_stream(seed, block, _COURSES_STREAM), BLOCK)
    rng = random_stream(seed, block, _RECORDS_STREAM)
    # rows of the visits' contents; two visits in five are over within the minute, the others last up to five hours
    # and end on the same day
    visit, code, value = _contents(process.config, codes, courses, rng)
    count = len(courses.subject)
    opens = rng.integers(7 * 60, 18 * 60, count)
    lasts = np.where(rng.random(count) < 0.4, 0, rng.integers(10, 300, count))
    minute = opens[visit] + np.floor(rng.random(len(visit)) * (lasts[visit] + 1)).astype(np.int64)
    day = courses.first_day[courses.subject] + courses.visits.day.astype(np.int64)
    time_us = day[visit] * DAY_US + minute * _MINUTE_US
    end_us = np.zeros(count, dtype=np.int64)  # each visit's last timestamp
    np.maximum.at(end_us, visit, time_us)
    visit_rows = _Rows(courses.subject[visit], time_us, code, value, _stays(courses)[visit])
    events = _Rows.join([visit_rows, *_single_rows(codes, courses, end_us)])
    first_id = block * BLOCK + 1
    at_risk = courses.is_at_risk & (courses.subject < subjects)
    return Block(
        subject_id=first_id + np.arange(subjects),
        events=events.to_meds(codes, first_id=first_id, subjects=subjects),
        prediction_times=PredictionTimes(
            subject_id=first_id + courses.subject[at_risk],
            time_us=end_us[at_risk],
            lives=courses.visits.take(at_risk),
            evidence=courses.evidence.take(at_risk),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Rows(LastAxis):
    """Rows to be: subject number within the block, time, code number, value (NaN: none) and stay (0: none)."""

    subject: Ints
    time_us: Ints
    code: Ints
    value: Floats
    stay: Ints

    @classmethod
    def of(
        cls, subject: Ints, time_us: Ints | int, code: Ints | int, stay: Ints | int = 0
    ) -> "_Rows":
        """Rows without values; a single time or code stands for all."""
        everyone = np.zeros(len(subject), dtype=np.int64)
        return cls(
            subject,
            everyone + time_us,
            everyone + code,
            np.full(len(subject), np.nan),
            everyone + stay,
        )

    def to_meds(self, codes: CodeTable, *, first_id: int, subjects: int) -> pa.Table:
        """Sort by subject, time and code number, and drop subjects beyond the number asked for."""
        order = np.lexsort((self.code, self.time_us, self.subject))
        rows = self.take(order[: np.searchsorted(self.subject[order], subjects)])
        subject_id = first_id + rows.subject
        is_static = rows.time_us == _STATIC
        value = rows.value.astype(np.float32)
        return pa.table(
            {
                "subject_id": subject_id,
                "time": pa.array(rows.time_us, type=pa.timestamp("us"), mask=is_static),
                "code": pa.array(codes.names).take(pa.array(rows.code)),
                "numeric_value": pa.array(value, mask=np.isnan(value)),
                ENCOUNTER: pa.array(subject_id * _MOST_STAYS + rows.stay, mask=rows.stay == 0),
            }
        )


def _single_rows(codes: CodeTable, courses: Courses, end_us: Ints) -> list[_Rows]:
    """Rows that belong to no visit's contents: birth, sex, enrolment, outcome, death and the end of follow-up."""
    subjects = np.arange(len(courses.male))

    def timed(code: str, days: Floats, where: Bools, stay: Ints | int = 0) -> _Rows:
        seconds = np.floor((courses.first_day[where] + days[where]) * 86_400).astype(np.int64)
        return _Rows.of(subjects[where], seconds * _SECOND_US, codes.single[code], stay)

    enrols, sex = (
        courses.visits.day == courses.visits.enrolment_day,
        np.where(courses.male, codes.single[MALE], codes.single[FEMALE]),
    )
    # Death or the end of follow-up ends a stay; were its admission left alone, it would tell that something followed.
    last_visit = np.searchsorted(courses.subject, subjects, side="right") - 1
    in_stay = courses.visits.in_stay[last_visit]
    stays = _stays(courses)[last_visit][in_stay]
    return [
        _Rows.of(subjects, _STATIC, sex),
        _Rows.of(subjects, courses.birth_day * DAY_US, codes.single[BIRTH]),
        _Rows.of(courses.subject[enrols], end_us[enrols], codes.single[ENROLMENT]),
        timed(OUTCOME_CODE, courses.outcome_days, np.isfinite(courses.outcome_days)),
        timed(DISCHARGE, np.minimum(courses.death_days, courses.censoring_day), in_stay, stays),
        timed(DEATH_CODE, courses.death_days, np.isfinite(courses.death_days)),
        timed(END_OF_FOLLOW_UP, courses.censoring_day, np.isinf(courses.death_days)),
    ]


def _stays(courses: Courses) -> Ints:
    """(V,) which of its subject's stays a visit begins or ends, from 1; 0 for any other."""
    admissions = np.cumsum(courses.visits.in_stay)
    before = np.append(0, admissions)[np.searchsorted(courses.subject, courses.subject)]
    belongs = courses.visits.in_stay | courses.visits.discharged
    return np.where(belongs, admissions - before, 0)


def _contents(
    config: SimulationConfig, codes: CodeTable, courses: Courses, rng: np.random.Generator
) -> tuple[Ints, Ints, Floats]:
    """What each visit holds, every code at most once: visit number, code number, value (NaN: none)."""
    visits, everything = courses.visits, np.arange(len(courses.subject))
    writes = ~visits.in_stay  # an admission leaves the writing to its discharge

    paired = everything[visits.has_pair]
    a = rng.integers(config.pairs, size=len(paired))
    other_b = (a + rng.integers(1, config.pairs, size=len(paired))) % config.pairs
    b = np.where(visits.matched[paired], a, other_b)

    # A condition is written at the first visit, and at some of the later ones.
    again = rng.random((len(everything), config.chronic_conditions)) < 0.4
    written = (visits.day[:, None] == 0) | again
    chronic_visit, condition = np.nonzero(
        written & courses.chronic[courses.subject] & writes[:, None]
    )

    background_visit, background = _background(config, writes, rng)
    order, acute = everything[visits.has_order], everything[visits.has_acute]
    marker = everything[visits.has_lab]
    other_lab = everything[rng.random(len(everything)) < 0.4]
    parts: list[tuple[Ints, Ints | int, Floats | float]] = [
        (paired, codes.pair_a + a, np.nan),
        (paired, codes.pair_b + b, np.nan),
        (order, codes.order + visits.order_code[order], np.nan),
        (acute, codes.single[ACUTE], np.nan),
        (everything[visits.in_stay], codes.single[ADMISSION], np.nan),
        (everything[visits.discharged], codes.single[DISCHARGE], np.nan),
        (chronic_visit, codes.chronic + condition, np.nan),
        (background_visit, codes.background + background, np.nan),
        (marker, codes.single[MARKER], 100 + 15 * visits.lab[marker]),
        (other_lab, codes.single[OTHER_LAB], rng.lognormal(1.0, 0.5, len(other_lab))),
    ]
    if EMPTY_VISIT in codes.single:
        # Without a row the record would not show a visit that the hazards depend on.
        empty = np.setdiff1d(everything, np.concatenate([visit for visit, _, _ in parts]))
        parts.append((empty, codes.single[EMPTY_VISIT], np.nan))
    return (
        np.concatenate([visit for visit, _, _ in parts]),
        np.concatenate([np.broadcast_to(code, len(visit)) for visit, code, _ in parts]),
        np.concatenate([np.broadcast_to(value, len(visit)) for visit, _, value in parts]).astype(
            np.float64
        ),
    )


def _background(
    config: SimulationConfig, writes: Bools, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Background codes without repeats within a visit: visit number, number of the code.

    Frequencies are those of Zipf. A visit draws one and a Poisson number more. Where the mean is below one it draws
    one with that chance, else none.
    """
    if config.background_codes == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    mean, visits = config.background_per_visit, np.arange(len(writes))
    count = 1 + rng.poisson(mean - 1, len(writes)) if mean >= 1 else rng.random(len(writes)) < mean
    weights = np.arange(1, config.background_codes + 1, dtype=np.float64) ** -1.0
    times = writes * count
    drawn = rng.choice(config.background_codes, size=times.sum(), p=weights / weights.sum())
    visit, code = np.divmod(
        np.unique(np.repeat(visits, times) * config.background_codes + drawn), len(weights)
    )
    return visit, code
