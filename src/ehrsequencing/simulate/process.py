r"""The simulated process: what decides when a subject visits, and when the outcome and death strike.

A *life* is a sequence of days counted from the first visit's day (day 0). Every later day brings a visit with the
subject's own chance π, drawn once from a Beta distribution and never recorded. A visit draws its contents and sets the
hazards of the days that follow, up to the next visit. With v the last visit,

    log λ_e(v)  = log baseline_e + age_e · (age_v − 60) / 10 + sex_e · male             e = outcome, death
    log λ_1(v) += Σ_c chronic_c + pair(v) + gap_effect · [gap_v < gap_days] + lab_effect · last marker value
    pair(v)     = Σ_m pair_effect · memory^m · s_m − log cosh(pair_effect · memory^m)

where s_m = ±1 says whether the m-th newest pair (m = 0, 1, …) was matched or mismatched. The signs are independent and
equally likely, and `exp(x s) / cosh(x)` has mean one: however many pairs there were, and whichever codes stood in
them, the expected hazard is the same, so that no bag of codes carries a signal.

**Nothing strikes on a day with a visit.** A visit's end is a prediction time only if the outcome does not strike later
on that day (its code would belong to the same visit). With quiet visit days, whether a prediction time exists never
depends on what comes after it, and hazards are constant over whole days.

Enrolment is a visit by appointment, on a day that depends on nothing else. Nothing is simulated to strike before it:
subjects enrol free of the outcome and alive.
The same `Process` writes the records and simulates the futures behind the truth.
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.simulate.settings import DAYS_PER_YEAR, SimulationConfig

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEVER_DAYS = 100_000  # stands for an endless gap: longer than any life, yet finite, so that arithmetic stays finite


@dataclass(frozen=True, slots=True)
class Lives:
    """The states of n lives just after a visit; the last axis of every array is the life.

    `visit_chance` is hidden from the record; all else can be read off it.
    """

    steady: Floats  # (2, n) log hazards per day that never change: baseline, sex, chronic conditions
    age_days: Floats  # (n,) age on day 0
    visit_chance: Floats  # (n,) per day
    enrolment_day: Floats  # (n,) a visit comes on this day, chance or no chance
    chance_days: Floats  # (n,) days after day 0 on which a visit could have come by chance, up to the last visit
    chance_visits: Floats  # (n,) visits on these days
    day: Floats  # (n,) of the last visit, a whole number
    gap_days: Floats  # (n,) between the last two visits; NEVER_DAYS at the first
    pair_score: Floats  # (n,) Σ_m memory^m s_m
    pairs: Ints  # (n,) pairs so far
    lab: Floats  # (n,) last marker value, in sd
    has_pair: Bools  # (n,) whether the last visit holds a pair
    matched: Bools  # (n,) and whether that pair matches
    has_lab: Bools  # (n,) whether the last visit measured the marker

    def take(self, index: Ints | Bools) -> "Lives":
        """Choose lives by number, in the order given, or by mask."""
        return Lives(**{field.name: getattr(self, field.name)[..., index] for field in fields(self)})

    @staticmethod
    def join(parts: "list[Lives]") -> "Lives":
        """Put lives one after another."""
        names = [field.name for field in fields(Lives)]
        return Lives(**{name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names})


@dataclass(frozen=True, slots=True)
class VisitDraws:
    """The standard random numbers that one visit of each of n lives needs: (n,) each."""

    gap: Floats  # standard exponential: how long until the visit
    pair: Floats  # uniform: is there a pair?
    matched: Bools  # would it match?
    measured: Floats  # uniform: is the marker measured?
    lab: Floats  # standard normal: the marker's innovation

    @classmethod
    def fresh(cls, rng: np.random.Generator, lives: int) -> "VisitDraws":
        """Draw anew."""
        pair, sign, measured = rng.random((3, lives))
        return cls(rng.standard_exponential(lives), pair, sign < 0.5, measured, rng.standard_normal(lives))

    def with_mirror(self) -> "VisitDraws":
        """Append n draws that bring the same visits with every pair and every innovation turned into its opposite.

        Each half is distributed as the other. What raises the hazard in one lowers it in the other, so their mean
        varies less than the mean of 2n independent draws (antithetic variates).
        """
        return VisitDraws(
            gap=np.tile(self.gap, 2),
            pair=np.tile(self.pair, 2),
            matched=np.append(self.matched, ~self.matched),
            measured=np.tile(self.measured, 2),
            lab=np.append(self.lab, -self.lab),
        )


class Process:
    """The mechanisms of one `SimulationConfig`."""

    def __init__(self, config: SimulationConfig) -> None:
        self.config = config
        self.mean_chance = -math.expm1(-config.visits_per_year / DAYS_PER_YEAR)
        conditions = config.chronic_conditions
        self.chronic_effects: Floats = config.chronic_effect * 2 * np.arange(1, conditions + 1) / (conditions + 1)
        # Entry n is Σ_{m<n} log cosh(effect · memory^m); no life has a visit a day for NEVER_DAYS.
        sizes = config.pair_effect * config.pair_memory ** np.arange(NEVER_DAYS, dtype=np.float64)
        self._pair_centre = np.concatenate([[0.0], np.cumsum(np.logaddexp(sizes, -sizes) - math.log(2))])

    def begin(
        self, rng: np.random.Generator, *, age_days: Floats, male: Bools, chronic: Bools, enrolment_day: Floats
    ) -> Lives:
        """Start n lives at their first visit.

        Args:
            rng: Source of the visit chances and of the first visit's contents.
            age_days: (n,) age on day 0.
            male: (n,) sex.
            chronic: (n, conditions) which conditions each has.
            enrolment_day: (n,) whole days after day 0, 0 or more.
        """
        config, n = self.config, len(age_days)
        with np.errstate(divide="ignore"):  # a rate of zero is a log hazard of −inf
            baseline = np.log(np.array([config.outcome_per_year, config.death_per_year]) / DAYS_PER_YEAR)
        steady = baseline[:, None] + np.outer([config.sex_effect, config.death_sex_effect], male)
        steady[0] += chronic @ self.chronic_effects
        zeros = np.zeros(n)
        before = Lives(
            steady=steady,
            age_days=age_days,
            visit_chance=self._draw_visit_chance(rng, visits=zeros, days=zeros),
            enrolment_day=enrolment_day,
            chance_days=zeros,
            chance_visits=zeros,
            day=zeros,
            gap_days=np.full(n, float(NEVER_DAYS)),
            pair_score=zeros,
            pairs=np.zeros(n, dtype=np.int64),
            lab=rng.standard_normal(n),
            has_pair=np.zeros(n, dtype=np.bool_),
            matched=np.zeros(n, dtype=np.bool_),
            has_lab=np.zeros(n, dtype=np.bool_),
        )
        # The first visit always measures the marker: otherwise its last value would be hidden.
        return replace(self._contents(before, VisitDraws.fresh(rng, n)), has_lab=np.ones(n, dtype=np.bool_))

    def next_visit(self, lives: Lives, draws: VisitDraws) -> Lives:
        """Move each life to its next visit: a geometric number of days on, at least one, or to its enrolment."""
        with np.errstate(divide="ignore"):  # a chance of one: a visit every day
            rate = np.maximum(-np.log1p(-lives.visit_chance), 1e-12)
        gap = np.minimum(1.0 + np.floor(draws.gap / rate), NEVER_DAYS)
        to_enrolment = lives.enrolment_day - lives.day
        enrols = (to_enrolment > 0) & (to_enrolment <= gap)
        gap = np.where(enrols, to_enrolment, gap)
        arrived = replace(
            lives,
            chance_days=lives.chance_days + gap - enrols,
            chance_visits=lives.chance_visits + ~enrols,
            day=lives.day + gap,
            gap_days=gap,
        )
        return self._contents(arrived, draws)

    def hazards_per_day(self, lives: Lives) -> Floats:
        """Hazards of the days from the last visit (not its own day) to the next: (2, n), outcome and death."""
        config = self.config
        decades = ((lives.age_days + lives.day) / DAYS_PER_YEAR - 60) / 10
        log_hazards: Floats = lives.steady + np.outer([config.age_effect, config.death_age_effect], decades)
        log_hazards[0] += config.pair_effect * lives.pair_score - self._pair_centre[lives.pairs]
        log_hazards[0] += config.gap_effect * (lives.gap_days < config.gap_days)
        log_hazards[0] += config.lab_effect * lives.lab
        return np.exp(log_hazards)

    def forget_hidden(self, lives: Lives, rng: np.random.Generator) -> Lives:
        """Draw what the record hides anew, given all that it shows: the visit chance given the visits so far.

        The record shows whether a visit came on each day, so Beta(a, b) becomes Beta(a + visits, b + days − visits).
        Being alive adds nothing: hazards depend on the chance through recorded visits only.
        """
        chance = self._draw_visit_chance(rng, visits=lives.chance_visits, days=lives.chance_days)
        return replace(lives, visit_chance=chance)

    def _contents(self, lives: Lives, draws: VisitDraws) -> Lives:
        """Draw what the visit holds of consequence: a pair or none, a marker value or none."""
        config = self.config
        has_pair = draws.pair < config.pair_visit_share
        score = config.pair_memory * lives.pair_score + np.where(draws.matched, 1.0, -1.0)
        has_lab = draws.measured < config.lab_visit_share
        lab = config.lab_memory * lives.lab + math.sqrt(1 - config.lab_memory**2) * draws.lab
        return replace(
            lives,
            pair_score=np.where(has_pair, score, lives.pair_score),
            pairs=lives.pairs + has_pair,
            lab=np.where(has_lab, lab, lives.lab),
            has_pair=has_pair,
            matched=has_pair & draws.matched,
            has_lab=has_lab,
        )

    def _draw_visit_chance(self, rng: np.random.Generator, *, visits: Floats, days: Floats) -> Floats:
        """Draw π given so many visits on so many days; with no days, from the prior."""
        mean, spread = self.mean_chance, self.config.visit_rate_spread
        if mean == 0 or spread == 0:
            return np.full(len(visits), mean)
        size = (1 - mean) / (mean * spread**2) - 1  # Beta's a + b, from its mean and standard deviation
        return rng.beta(mean * size + visits, (1 - mean) * size + days - visits)
