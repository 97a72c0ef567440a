r"""The simulated process: what decides when a subject visits, and when the outcome and death strike.

A *life* is a sequence of days counted from the first visit's day (day 0). A visit draws its contents and sets the
hazards of the days that follow. With v the last visit, t a day after it, and z the hidden frailty of mean one,

    log λ_e(t)  = log baseline_e + age_e · (age_v − 60) / 10 + sex_e · male + share_e · log z      e = outcome, death
    log λ_1(t) += chronic + pair + order + gap_effect · [gap_v < gap_days] + lab_effect · last marker value + decay(t)
    pair        = Σ_m pair_effect · memory^m · s_m − log cosh(pair_effect · memory^m)
    order       = order_effect · o − [o ≠ 0] · log cosh(order_effect)
    decay(t)    = decay_effect / 2^k in the k-th half-life after the last acute event (k = 0 … 3), then 0

where s_m = ±1 says whether the m-th newest pair (m = 0, 1, …) was matched or mismatched. The signs are independent and
equally likely, and `exp(x s) / cosh(x)` has mean one: however many pairs there were, and whichever codes stood in
them, the expected hazard is the same, so that no bag of codes carries a signal.

The order codes are three because two would not do: the last of two codes would tell by itself. o = +1 where the newest
followed the one before it in the cycle A → B → C → A, −1 where it went against it, 0 where it repeats it. Codes are
drawn independently, so that given either of the two, or all that were ever written as a bag, +1 and −1 are equally
likely, and again the expected hazard is the same.

**Visits.** Every day brings one with the chance 1 − exp(−r · exp(visit_effect · sickness)), r being the subject's own,
never recorded rate and sickness = chronic + decay + lab: what is recorded and no part of a sign, for otherwise the
number of codes would tell the signs of those before. Some visits begin a stay: nothing but the admission is written,
until a discharge, which comes with a constant chance a day, holds what another visit would have held. Enrolment is a
visit (or a discharge) by appointment, on a day that depends on nothing else.

**Nothing strikes on a day with a visit.** A visit's end is a prediction time only if the outcome does not strike later
on that day (its code would belong to the same visit). With quiet visit days, whether a prediction time exists never
depends on what comes after it, and hazards are constant over whole days.

Nothing is simulated to strike before enrolment: subjects enrol free of the outcome and alive.
The same `Process` writes the records and simulates the futures behind the truth.
"""

import math
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.simulate.lives import (
    CLASSES,
    NEVER_DAYS,
    Draws,
    Evidence,
    Lives,
    class_values,
    draw_classes,
)

DAYS_PER_YEAR = 365.25
# a log-hazard ratio; beyond these bounds hazards could overflow
Effect = Annotated[float, Field(ge=-5, le=5)]
DecadeEffect = Annotated[float, Field(ge=-2, le=2)]  # the same per ten years of age


class SimulationConfig(BaseModel):
    """The simulated world. Effects are log-hazard ratios; a rate is per year.

    Sickness is what chronic conditions, the acute event and the marker add to the outcome's log hazard. The process is
    written out in `ehrsequencing.simulate.process`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Follow-up
    # record before enrolment: uniform on [0, this]
    history_max_years: float = Field(2.0, ge=0, le=20)
    # staggered entry: enrolment to the study's end is
    follow_up_min_years: float = Field(3.0, ge=0.5, le=40)
    follow_up_max_years: float = Field(7.0, ge=0.5, le=40)  # ... uniform between these two
    last_horizon_years: float = Field(5.0, ge=0.25, le=40)  # of the task and of the truth
    drop_out_per_year: float = Field(0.03, ge=0, le=10)  # random censoring before the study's end
    # on the log rate of drop-out, per unit of sickness at enrolment
    drop_out_effect: float = Field(0.5, ge=-3, le=3)

    # Visits: on each day with a chance of 1 − exp(−rate), a Poisson process in whole days
    visits_per_year: float = Field(1.4, ge=0, le=50)  # mean rate of the healthy
    # sd ÷ mean of the rate over subjects; hidden from the record
    visit_rate_spread: float = Field(0.4, ge=0, le=2)
    # informative visiting: on the log rate, per unit of sickness
    visit_effect: float = Field(0.3, ge=-2, le=2)

    # Stays of several days: an admission, and all that an ordinary visit would hold written at the discharge
    # visits (but the first and the enrolment) that begin a stay
    stay_visit_share: float = Field(0.05, ge=0, le=1)
    stay_days: float = Field(6.0, ge=1, le=365)  # mean; geometric

    # Baseline hazards: at age 60, female, without any of what follows
    outcome_per_year: float = Field(0.06, ge=0, le=10)  # the outcome's hazard
    death_per_year: float = Field(0.012, ge=0, le=10)  # death's hazard

    # Frailty: a hidden multiplier of the outcome's hazard, and to the power of a share of death's
    frailty_spread: float = Field(0.0, ge=0, le=3)  # sd ÷ mean over subjects
    frailty_death_share: float = Field(
        0.5, ge=0, le=2
    )  # power to which frailty multiplies death's hazard

    # Age (per ten years, as of the last visit) and sex (male)
    age_effect: DecadeEffect = 0.35  # per ten years, as of the last visit, on the outcome
    death_age_effect: DecadeEffect = 0.6  # the same on death
    sex_effect: Effect = 0.2  # male, on the outcome
    death_sex_effect: Effect = 0.3  # male, on death

    # Chronic conditions, present from the first visit or never
    chronic_conditions: int = Field(8, ge=0, le=100)  # how many there are
    chronic_prevalence: float = Field(0.15, ge=0, le=1)  # chance that a subject has each
    chronic_effect: Effect = 0.5  # mean over conditions; the c-th of K has 2c / (K + 1) times this

    # Pairs: a visit's A_k with B_k raises the hazard, A_k with another B lowers it, and neither code alone tells
    pairs: int = Field(24, ge=2, le=500)  # number of codes A, and of codes B
    # visits that hold one A and one B; half of them match
    pair_visit_share: float = Field(1.0, ge=0, le=1)
    pair_effect: Effect = 2.0  # a match raises, a mismatch lowers; 0: written without effect
    # what is left of an effect at each later pair; 0: until the next pair
    pair_memory: float = Field(0.5, ge=0, le=1)

    # Relapse: two visits close together raise the hazard until the next visit
    gap_effect: Effect = 0.8  # of two visits close together
    gap_days: float = Field(60.0, ge=0, le=10_000)  # close means a gap below this

    # Order: of three codes, A then B, B then C, C then A raise the hazard until the next of them; B then A … lower it
    order_effect: Effect = (
        0.3  # with the cycle raises, against it lowers, until the next of the three
    )
    # visits that hold one of the three, each as often as the others
    order_visit_share: float = Field(0.3, ge=0, le=1)

    # An acute event: its effect halves with every half-life since the last one, and is gone after four
    decay_effect: Effect = 1.2  # just after an acute event
    decay_half_life_days: int = Field(60, ge=1, le=3650)  # whole days
    acute_visit_share: float = Field(0.12, ge=0, le=1)  # visits that hold the acute event

    # A laboratory marker, measured at some visits; its last value counts, per sd
    lab_effect: Effect = 0.4  # per sd of the marker's last value
    lab_visit_share: float = Field(0.5, ge=0, le=1)  # visits after the first that measure it
    lab_memory: float = Field(0.8, ge=0, le=1)  # correlation of a value with the one before

    # What means nothing: another laboratory value and background codes
    background_codes: int = Field(200, ge=0, le=100_000)  # how many there are
    # mean number drawn; repeats within a visit count once
    background_per_visit: float = Field(2.0, ge=0, le=200)

    # Codes have names of diagnoses, drugs, procedures and laboratory values; records and truth stay the same
    words: bool = False

    # The truth's precision: simulated futures per prediction time (in mirrored pairs)
    truth_futures: int = Field(128, ge=4, le=1_000_000, multiple_of=2)

    @model_validator(mode="after")
    def _follow_up_in_order(self) -> "SimulationConfig":
        if self.follow_up_min_years > self.follow_up_max_years:
            raise ValueError("follow_up_min_years is above follow_up_max_years")
        return self


# the mechanisms that move the outcome's hazard
MECHANISMS = (
    "pair",
    "gap",
    "order",
    "decay",
    "chronic",
    "age",
    "sex",
    "lab",
)
_DECAY_STEPS = 4


class Process:
    """The mechanisms of one `SimulationConfig`."""

    def __init__(self, config: SimulationConfig) -> None:
        self.config = config
        conditions = config.chronic_conditions
        self.chronic_effects: Floats = (
            config.chronic_effect * 2 * np.arange(1, conditions + 1) / (conditions + 1)
        )
        # visits per day of each class of subjects
        self.visit_rates = (
            config.visits_per_year / DAYS_PER_YEAR * class_values(config.visit_rate_spread)
        )
        self.frailties = class_values(config.frailty_spread)
        with np.errstate(divide="ignore"):  # a rate of zero is a log hazard of −inf
            self._baseline = np.log(
                np.array([config.outcome_per_year, config.death_per_year]) / DAYS_PER_YEAR
            )
            # discharges per day of a stay; infinite: always on the next day
            self._discharge_rate = -np.log1p(-1 / config.stay_days)
        # Entry n is Σ_{m<n} log cosh(effect · memory^m); no life has a visit a day for NEVER_DAYS.
        sizes = config.pair_effect * config.pair_memory ** np.arange(NEVER_DAYS, dtype=np.float64)
        self._pair_centre = np.concatenate(
            [[0.0], np.cumsum(np.logaddexp(sizes, -sizes) - math.log(2))]
        )
        self._order_centre = float(
            np.logaddexp(config.order_effect, -config.order_effect)
        ) - math.log(2)
        self._decay = np.append(config.decay_effect * 0.5 ** np.arange(_DECAY_STEPS), 0.0)

    def begin(
        self,
        rng: np.random.Generator,
        *,
        age_days: Floats,
        male: Bools,
        chronic: Bools,
        enrolment_day: Floats,
    ) -> Lives:
        """Start n lives at their first visit.

        Args:
            rng: Source of what is hidden and of the first visit's contents.
            age_days: (n,) age on day 0.
            male: (n,) sex.
            chronic: (n, conditions) which conditions each has.
            enrolment_day: (n,) whole days after day 0, 0 or more.
        """
        n = len(age_days)
        zeros, none, nobody = np.zeros(n), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
        before = Lives(
            male=male,
            chronic=np.sum(chronic * self.chronic_effects, axis=1),
            age_days=age_days,
            visit_rate=self.visit_rates[rng.integers(CLASSES, size=n)],
            frailty=self.frailties[rng.integers(CLASSES, size=n)],
            enrolment_day=enrolment_day,
            now=zeros,
            day=zeros,
            gap_days=np.full(n, float(NEVER_DAYS)),
            in_stay=nobody,
            discharged=nobody,
            pair_score=zeros,
            pairs=none,
            has_pair=nobody,
            matched=nobody,
            order_code=none - 1,
            order_sign=none,
            has_order=nobody,
            acute_day=np.full(n, -float(NEVER_DAYS)),
            lab=rng.standard_normal(n),
            has_lab=nobody,
        )
        first = self._contents(before, Draws.fresh(rng, n), np.ones(n, dtype=np.bool_))
        # The first visit always measures the marker: otherwise its last value would be hidden.
        return replace(first, has_lab=np.ones(n, dtype=np.bool_))

    # --- Hazards ---

    def log_ratios(self, lives: Lives) -> Floats:
        """What each of `MECHANISMS` adds to the outcome's log hazard on the day after `now`: (8, n).

        With a knob at zero its row is zero: a row is the state's log hazard with the knob on minus that with it off.
        """
        config = self.config
        return np.stack(
            [
                config.pair_effect * lives.pair_score - self._pair_centre[lives.pairs],
                config.gap_effect * (lives.gap_days < config.gap_days),
                config.order_effect * lives.order_sign
                - self._order_centre * np.abs(lives.order_sign),
                self._decay[self._half_lives(lives)],
                lives.chronic,
                config.age_effect * self._decades(lives),
                config.sex_effect * lives.male,
                config.lab_effect * lives.lab,
            ]
        )

    def hazards_per_day(self, lives: Lives) -> Floats:
        """Hazards of the days after `now`, up to the next visit or step of the decay, at a frailty of one: (2, n)."""
        config = self.config
        outcome = self._baseline[0] + self.log_ratios(lives).sum(axis=0)
        death = (
            self._baseline[1]
            + config.death_age_effect * self._decades(lives)
            + config.death_sex_effect * lives.male
        )
        return np.asarray(np.exp(np.stack([outcome, death])))

    def frailty_factors(self, frailty: Floats) -> Floats:
        """What a frailty multiplies the hazards of outcome and death by: (n,) → (2, n)."""
        return np.stack([frailty, frailty**self.config.frailty_death_share])

    def sickness(self, lives: Lives) -> Floats:
        """(n,) what sets the visits and the drop-out: chronic conditions, the acute event and the marker."""
        return (
            lives.chronic
            + self._decay[self._half_lives(lives)]
            + self.config.lab_effect * lives.lab
        )

    def _decades(self, lives: Lives) -> Floats:
        return np.asarray(((lives.age_days + lives.day) / DAYS_PER_YEAR - 60) / 10)

    def _half_lives(self, lives: Lives) -> Ints:
        """(n,) whole half-lives between the last acute event and the day after `now`, four standing for more."""
        passed = (lives.now - lives.acute_day) / self.config.decay_half_life_days
        return np.minimum(passed, _DECAY_STEPS).astype(np.int64)

    # --- Visits ---

    def advance(self, lives: Lives, draws: Draws) -> Lives:
        """Move each life to its next visit, or to the day before which the acute effect halves, if that is earlier.

        Waiting anew from there is no other process, since chances are constant between the two (no memory).
        """
        rate = np.where(
            lives.in_stay, self._discharge_rate, lives.visit_rate * self._visit_multiplier(lives)
        )
        gap = np.minimum(1.0 + np.floor(draws.gap / np.maximum(rate, 1e-12)), NEVER_DAYS)
        to_enrolment = lives.enrolment_day - lives.now
        enrols = (to_enrolment > 0) & (to_enrolment <= gap)
        gap = np.where(enrols, to_enrolment, gap)
        # the acute effect is what it is on the first of these days
        steps = self._half_lives(lives)
        left = (steps + 1) * self.config.decay_half_life_days + lives.acute_day - lives.now
        halves = (steps < _DECAY_STEPS) & (self.config.decay_effect != 0)
        to_step = np.where(halves, left, np.inf)
        comes = gap <= to_step
        moved = replace(lives, now=lives.now + np.minimum(gap, to_step))

        discharged = comes & lives.in_stay
        admitted = comes & ~lives.in_stay & ~enrols & (draws.stay < self.config.stay_visit_share)
        arrived = replace(
            moved,
            day=np.where(comes, moved.now, lives.day),
            gap_days=np.where(comes & ~discharged, moved.now - lives.day, lives.gap_days),
            in_stay=np.where(comes, admitted, lives.in_stay),
            discharged=np.where(comes, discharged, lives.discharged),
        )
        return self._contents(arrived, draws, comes & ~admitted)

    def visit_log_likelihood(self, before: Lives, after: Lives) -> Floats:
        """Of one advance, for each visit rate: (CLASSES, n). The days of a stay and an appointment say nothing."""
        by_chance = after.is_visit & (after.day != after.enrolment_day)
        quiet_days = after.now - before.now - after.is_visit
        rate = self.visit_rates[:, None] * self._visit_multiplier(before)
        came = np.log(-np.expm1(-np.maximum(rate, 1e-12)))
        return np.where(before.in_stay, 0.0, by_chance * came - rate * quiet_days)

    def draw_hidden(
        self, lives: Lives, evidence: Evidence, rng: np.random.Generator, *, draws: int
    ) -> Lives:
        """Repeat n lives so many times, each with a visit rate and a frailty drawn from their posteriors.

        Args:
            lives: n states just after a visit, at risk.
            evidence: What is known of them.
            rng: Source of the draws.
            draws: How many; draw m of life i is life m · n + i of the answer.
        """
        survived = -np.einsum("ek,en->kn", self.frailty_factors(self.frailties), evidence.hazard)
        return replace(
            lives.take(np.tile(np.arange(len(lives.now)), draws)),
            visit_rate=self.visit_rates[draw_classes(rng, evidence.rate, draws)],
            frailty=self.frailties[draw_classes(rng, survived, draws)],
        )

    def _visit_multiplier(self, lives: Lives) -> Floats:
        return np.exp(self.config.visit_effect * self.sickness(lives))

    def _contents(self, lives: Lives, draws: Draws, writes: Bools) -> Lives:
        """Draw what is written of consequence at the visits that write: a pair, order code, acute event and marker."""
        config = self.config
        has_pair = writes & (draws.pair < config.pair_visit_share)
        score = config.pair_memory * lives.pair_score + np.where(draws.matched, 1.0, -1.0)
        has_order = writes & (draws.order < config.order_visit_share)
        first = lives.order_code < 0
        # The very first one follows none, and its step says which it is.
        order_code = np.where(
            first, draws.order_step + 1, (lives.order_code + draws.order_step) % 3
        )
        has_acute = writes & (draws.acute < config.acute_visit_share)
        has_lab = writes & (draws.measured < config.lab_visit_share)
        lab = config.lab_memory * lives.lab + math.sqrt(1 - config.lab_memory**2) * draws.lab
        return replace(
            lives,
            pair_score=np.where(has_pair, score, lives.pair_score),
            pairs=lives.pairs + has_pair,
            has_pair=has_pair,
            matched=has_pair & draws.matched,
            order_code=np.where(has_order, order_code, lives.order_code),
            order_sign=np.where(has_order, np.where(first, 0, draws.order_step), lives.order_sign),
            has_order=has_order,
            acute_day=np.where(has_acute, lives.now, lives.acute_day),
            lab=np.where(has_lab, lab, lives.lab),
            has_lab=has_lab,
        )
