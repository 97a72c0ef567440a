"""The settings of a simulation: one knob per mechanism, and zero switches it off."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

DAYS_PER_YEAR = 365.25
# a log-hazard ratio; beyond these bounds hazards could overflow
Effect = Annotated[float, Field(ge=-5, le=5)]
DecadeEffect = Annotated[float, Field(ge=-2, le=2)]  # the same per ten years of age


class SimulationConfig(BaseModel):
    """The simulated world. Effects are log-hazard ratios; a rate is per year. All are listed in `docs/simulator.md`.

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
    outcome_per_year: float = Field(0.06, ge=0, le=10)
    death_per_year: float = Field(0.012, ge=0, le=10)

    # Frailty: a hidden multiplier of the outcome's hazard, and to the power of a share of death's
    frailty_spread: float = Field(0.0, ge=0, le=3)  # sd ÷ mean over subjects
    frailty_death_share: float = Field(0.5, ge=0, le=2)

    # Age (per ten years, as of the last visit) and sex (male)
    age_effect: DecadeEffect = 0.35
    death_age_effect: DecadeEffect = 0.6
    sex_effect: Effect = 0.2
    death_sex_effect: Effect = 0.3

    # Chronic conditions, present from the first visit or never
    chronic_conditions: int = Field(8, ge=0, le=100)
    chronic_prevalence: float = Field(0.15, ge=0, le=1)
    chronic_effect: Effect = 0.5  # mean over conditions; the c-th of K has 2c / (K + 1) times this

    # Pairs: a visit's A_k with B_k raises the hazard, A_k with another B lowers it, and neither code alone tells
    pairs: int = Field(24, ge=2, le=500)
    # visits that hold one A and one B; half of them match
    pair_visit_share: float = Field(1.0, ge=0, le=1)
    pair_effect: Effect = 2.0
    # what is left of an effect at each later pair; 0: until the next pair
    pair_memory: float = Field(0.5, ge=0, le=1)

    # Relapse: two visits close together raise the hazard until the next visit
    gap_effect: Effect = 0.8
    gap_days: float = Field(60.0, ge=0, le=10_000)

    # Order: of three codes, A then B, B then C, C then A raise the hazard until the next of them; B then A … lower it
    order_effect: Effect = 0.3
    # visits that hold one of the three, each as often as the others
    order_visit_share: float = Field(0.3, ge=0, le=1)

    # An acute event: its effect halves with every half-life since the last one, and is gone after four
    decay_effect: Effect = 1.2
    decay_half_life_days: int = Field(60, ge=1, le=3650)
    acute_visit_share: float = Field(0.12, ge=0, le=1)

    # A laboratory marker, measured at some visits; its last value counts, per sd
    lab_effect: Effect = 0.4
    lab_visit_share: float = Field(0.5, ge=0, le=1)
    lab_memory: float = Field(0.8, ge=0, le=1)  # correlation of a value with the one before

    # What means nothing: another laboratory value and background codes
    background_codes: int = Field(200, ge=0, le=100_000)
    # mean number drawn; repeats within a visit count once
    background_per_visit: float = Field(2.0, ge=0, le=200)

    # The truth's precision: simulated futures per prediction time (in mirrored pairs)
    truth_futures: int = Field(128, ge=4, le=1_000_000, multiple_of=2)

    @model_validator(mode="after")
    def _follow_up_in_order(self) -> "SimulationConfig":
        if self.follow_up_min_years > self.follow_up_max_years:
            raise ValueError("follow_up_min_years is above follow_up_max_years")
        return self
