"""The state of a life, all that its future depends on, the random numbers that move it on, and what is hidden of it.

Visit rate and frailty are hidden from the record. Each is one of `CLASSES` equally likely values, so that its posterior
is exact whatever the likelihood. Given the record and that nothing has struck, the two are independent: visits depend
on the rate and what is recorded, being alive on the frailty and what is recorded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Self

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Ints

NEVER_DAYS = 100_000  # stands for an endless gap: longer than any life, yet finite, so that arithmetic stays finite


class LastAxis:
    """Arrays whose last axis is the life: they are chosen and joined along it."""

    __slots__ = ()

    def take(self, index: Ints | Bools) -> Self:
        """Choose lives by number, in the order given, or by mask."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return type(self)(**{name: values[..., index] for name, values in columns.items()})

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Put lives one after another."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        return cls(**{name: np.concatenate(some, axis=-1) for name, some in columns.items()})


@dataclass(frozen=True, slots=True)
class Lives(LastAxis):
    """The states of n lives at the midnight after day `now`; the last axis of every array is the life.

    `visit_rate` and `frailty` are hidden from the record; all else can be read off it.
    """

    male: Bools  # (n,)
    chronic: Floats  # (n,) Σ effects of the conditions, on the log hazard of the outcome
    age_days: Floats  # (n,) on day 0
    visit_rate: Floats  # (n,) per day, of a life without sickness
    frailty: Floats  # (n,) multiplier of the outcome's hazard
    enrolment_day: Floats  # (n,) a visit comes on this day, chance or no chance
    now: Floats  # (n,) the last day that is over, a whole number
    day: Floats  # (n,) of the last visit; today's where it is `now`
    gap_days: Floats  # (n,) between the last two visits, a stay being one; NEVER_DAYS at the first
    in_stay: Bools  # (n,) admitted and not yet discharged
    discharged: Bools  # (n,) whether the last visit ended a stay
    pair_score: Floats  # (n,) Σ_m memory^m s_m
    pairs: Ints  # (n,) pairs so far
    has_pair: Bools  # (n,) whether the last visit holds a pair
    matched: Bools  # (n,) and whether that pair matches
    order_code: Ints  # (n,) the last order code, 0, 1 or 2; −1 before any
    order_sign: Ints  # (n,) +1 where it followed the one before it in the cycle 0 → 1 → 2 → 0, −1 against it, else 0
    has_order: Bools  # (n,) whether the last visit holds an order code
    acute_day: Floats  # (n,) of the last acute event; −NEVER_DAYS before any
    lab: Floats  # (n,) last marker value, in sd
    has_lab: Bools  # (n,) whether the last visit measured the marker

    @property
    def is_visit(self) -> Bools:
        """(n,) whether `now` is the day of a visit."""
        return np.equal(self.now, self.day)

    @property
    def has_acute(self) -> Bools:
        """(n,) whether the last visit holds the acute event."""
        return np.equal(self.acute_day, self.day)


@dataclass(frozen=True, slots=True)
class Draws(LastAxis):
    """The standard random numbers with which n lives move on to their next visit: (n,) each."""

    gap: Floats  # standard exponential: how long until the visit
    stay: Floats  # uniform: does it begin a stay?
    pair: Floats  # uniform: is there a pair?
    matched: Bools  # would it match?
    order: Floats  # uniform: is there an order code?
    order_step: Ints  # −1, 0 or 1: where it would stand in the cycle, from the one before
    acute: Floats  # uniform: is there an acute event?
    measured: Floats  # uniform: is the marker measured?
    lab: Floats  # standard normal: the marker's innovation

    @classmethod
    def fresh(cls, rng: np.random.Generator, lives: int) -> "Draws":
        """Draw anew."""
        stay, pair, sign, order, step, acute, measured = rng.random((7, lives))
        return cls(
            gap=rng.standard_exponential(lives),
            stay=stay,
            pair=pair,
            matched=sign < 0.5,
            order=order,
            order_step=np.floor(3 * step).astype(np.int64) - 1,
            acute=acute,
            measured=measured,
            lab=rng.standard_normal(lives),
        )

    def with_mirror(self) -> "Draws":
        """Append n draws in which every pair, order and innovation is turned into its opposite.

        Each half is distributed as the other. What raises the hazard in one lowers it in the other, so their mean
        varies less than the mean of 2n independent draws (antithetic variates).
        """
        opposite = replace(self, matched=~self.matched, order_step=-self.order_step, lab=-self.lab)
        return Draws.join([self, opposite])


CLASSES = 32


@dataclass(frozen=True, slots=True)
class Evidence(LastAxis):
    """What the records of n lives, and their being at risk still, say about what is hidden."""

    rate: Floats  # (CLASSES, n) log likelihood of the visits so far, for each visit rate
    hazard: Floats  # (2, n) cumulative hazards of outcome and death since enrolment, at a frailty of one

    @classmethod
    def none(cls, lives: int) -> "Evidence":
        """Nothing known."""
        return cls(np.zeros((CLASSES, lives)), np.zeros((2, lives)))


def class_values(spread: float) -> Floats:
    """(CLASSES,) values of mean one: the middles of equally likely slices of a log-normal with sd ÷ mean `spread`."""
    normal, sigma = NormalDist(), math.sqrt(math.log1p(spread**2))
    values = np.exp([sigma * normal.inv_cdf((k + 0.5) / CLASSES) for k in range(CLASSES)])
    return np.asarray(values / values.mean())


def draw_classes(rng: np.random.Generator, log_likelihood: Floats, draws: int) -> Ints:
    """Draw from the posteriors of n lives: (CLASSES, n) → (draws · n,) class numbers, draw m of life i at m · n + i."""
    weights = np.exp(log_likelihood - log_likelihood.max(axis=0))
    below = np.cumsum(weights, axis=0)
    chosen = rng.random((draws, weights.shape[1])) * below[-1]
    number = np.zeros(chosen.shape, dtype=np.int64)
    for up_to in below[:-1]:
        number += chosen >= up_to
    return number.ravel()
