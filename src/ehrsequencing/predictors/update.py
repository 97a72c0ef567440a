"""Update a predictor for other people: nothing, the level, or level and slope.

    log λ'_{e,k} = log λ_{e,k} + ℓ_e + β_e · (log λ_{e,k} − m_e)

How much is fitted says a closed test (Vergouwe et al., Statistics in Medicine 2017): the largest update that the events
allow is tested by likelihood ratios against no update and the level, in this order; the first not rejected is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.metrics.hazards import event_bin, exposure
from ehrsequencing.predictors.recalibration import fit_hazards, inverse, scores_of_subjects

METHODS = ("none", "level", "level and slope")
FEWEST_EVENTS = (0, SMALLEST_COUNT, 50)  # people with the event that each method needs
ALPHA = 0.05


@dataclass(frozen=True)
class Labels:
    """What happened after R prediction times; see `fit_recalibration`."""

    duration_days: Floats
    cause: NDArray[np.integer]
    entry_days: NDArray[np.floating]
    subject: Ints

    def take(self, rows: NDArray[np.generic]) -> "Labels":
        """Some of them."""
        return Labels(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def people(self, cause: int) -> int:
        """How many people have a cause, counted from 0."""
        return len(np.unique(self.subject[self.cause == cause + 1]))


@dataclass(frozen=True)
class CauseUpdate:
    """What was chosen for one cause.

    Attributes:
        method: Of `METHODS`, the one that was chosen.
        largest: The one that it was tested against, the largest that the events allow.
        p: Of each smaller method, the p-value of its test.
        shrinkage: By which the estimates were multiplied: 1 − df / LR of the chosen method against none.
        centre: m.
        level: ℓ.
        stretch: β.
    """

    method: str
    largest: str
    p: dict[str, float]
    shrinkage: float
    centre: float = 0.0
    level: float = 0.0
    stretch: float = 0.0

    @property
    def intercept(self) -> float:
        """A in log λ' = a + b · log λ."""
        return self.level - self.stretch * self.centre

    @property
    def slope(self) -> float:
        """B."""
        return 1.0 + self.stretch

    def applied(self, eta: Floats) -> Floats:
        """(R, K) log-hazards of this cause, updated."""
        return self.intercept + self.slope * eta


def largest_allowed(people: int) -> int:
    """Place in `METHODS` of the largest update that so many people with the event allow."""
    return sum(people >= fewest for fewest in FEWEST_EVENTS) - 1


def fit_update(
    eta: Floats,
    edges_days: Sequence[float],
    labels: Labels,
    *,
    cause: int,
    largest: int,
) -> CauseUpdate:
    """Choose and fit the update of one cause.

    Several prediction times of a person share their future, so that likelihood ratios are divided by the mean of
    the generalised eigenvalues of the two covariances, that of independent rows and the sandwich by person (Rotnitzky &
    Jewell 1990); with one row a person the divisor is near 1.

    Args:
        eta: (R, K) log-hazards per day of the cause.
        edges_days: The K − 1 inner edges.
        labels: Of the R rows.
        cause: Which one, from 0.
        largest: As of `largest_allowed`.
    """
    days = exposure(edges_days, labels.entry_days, labels.duration_days)
    events = np.flatnonzero(labels.cause == cause + 1)
    if not largest or not len(events):
        return CauseUpdate(METHODS[0], METHODS[0], {}, 1.0)
    at = event_bin(edges_days, labels.duration_days)[events]
    owner: Ints = np.unique(labels.subject, return_inverse=True)[1]
    centre = float(eta[events, at].mean())
    row, column = np.nonzero(days)
    x = eta - centre
    features = np.vstack([np.ones(len(row)), x[row, column]])
    own = np.vstack([np.ones(len(events)), x[events, at]])
    offset = np.log(days[row, column]) + eta[row, column]

    def fit(size: int) -> tuple[Floats, float, Floats, Floats]:
        """θ of the first features, its log-likelihood, the inverse Hessian, and the sandwich."""
        some, total = features[:size], own[:size].sum(axis=1)
        theta, hessian = fit_hazards(some, offset, total) if size else (np.zeros(0), np.eye(0))
        expected = np.exp(offset + theta @ some)
        score = scores_of_subjects(some * expected, row, own[:size], events, owner)
        bread = inverse(hessian)
        return theta, float(theta @ total - expected.sum()), bread, bread @ score @ score.T @ bread

    fits = [fit(size) for size in range(largest + 1)]

    def ratio(small: int, large: int) -> float:
        """The likelihood ratio of two methods, as if rows were independent."""
        new = slice(small, large)
        bread, sandwich = (one[new, new] for one in fits[large][2:])
        spread = np.trace(inverse(bread) @ sandwich) / (large - small)
        return float(max(2 * (fits[large][1] - fits[small][1]), 0.0) / max(spread, 1e-9))

    def p_value(small: int, large: int) -> float:
        return float(chdtrc(large - small, ratio(small, large)))

    p = {METHODS[small]: p_value(small, largest) for small in range(largest)}
    chosen = next((place for place in range(largest) if p[METHODS[place]] >= ALPHA), largest)
    if not chosen:
        return CauseUpdate(METHODS[0], METHODS[largest], p, 1.0)
    shrinkage = max(0.0, 1 - chosen / max(ratio(0, chosen), 1e-9))
    level, stretch = [*(shrinkage * fits[chosen][0]), 0.0][:2]
    return CauseUpdate(
        METHODS[chosen],
        METHODS[largest],
        p,
        shrinkage,
        centre=centre,
        level=float(level),
        stretch=float(stretch),
    )
