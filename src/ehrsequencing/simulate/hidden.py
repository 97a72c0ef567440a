"""What the record hides of a subject, the visit rate and the frailty, and what it tells about them nevertheless.

Each is one of `CLASSES` equally likely values, so that its posterior is exact whatever the likelihood. Given the
record and that nothing has struck, the two are independent: visits depend on the rate and what is recorded, being alive
on the frailty and what is recorded.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Ints

CLASSES = 32


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the records of n lives, and their being at risk still, say about what is hidden."""

    rate: Floats  # (CLASSES, n) log likelihood of the visits so far, for each visit rate
    hazard: Floats  # (2, n) cumulative hazards of outcome and death since enrolment, at a frailty of one

    @classmethod
    def none(cls, lives: int) -> "Evidence":
        """Nothing known."""
        return cls(np.zeros((CLASSES, lives)), np.zeros((2, lives)))

    def take(self, index: Ints | Bools) -> "Evidence":
        """Choose lives by number, in the order given, or by mask."""
        return Evidence(self.rate[:, index], self.hazard[:, index])

    @staticmethod
    def join(parts: "list[Evidence]") -> "Evidence":
        """Put lives one after another."""
        return Evidence(
            *(
                np.concatenate([getattr(part, name) for part in parts], axis=1)
                for name in ("rate", "hazard")
            )
        )


def class_values(spread: float) -> Floats:
    """(CLASSES,) values of mean one: the middles of equally likely slices of a log-normal with sd ÷ mean `spread`."""
    normal, sigma = NormalDist(), math.sqrt(math.log1p(spread**2))
    values = np.exp([sigma * normal.inv_cdf((k + 0.5) / CLASSES) for k in range(CLASSES)])
    mean_one: Floats = values / values.mean()
    return mean_one


def draw_classes(rng: np.random.Generator, log_likelihood: Floats, draws: int) -> Ints:
    """Draw from the posteriors of n lives: (CLASSES, n) → (draws · n,) class numbers, draw m of life i at m · n + i."""
    weights = np.exp(log_likelihood - log_likelihood.max(axis=0))
    below = np.cumsum(weights, axis=0)
    chosen = rng.random((draws, weights.shape[1])) * below[-1]
    number = np.zeros(chosen.shape, dtype=np.int64)
    for up_to in below[:-1]:
        number += chosen >= up_to
    return number.ravel()
