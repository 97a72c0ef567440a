"""Worlds in which people leave for a reason: by what is known at p, by what is known later, by what nobody records."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.dropout import Dropout, HistoryClock, Pieces, fit_dropout
from ehrsequencing.evaluation.estimates import estimate, metric_estimates
from ehrsequencing.metrics.accuracy import decision_curve
from ehrsequencing.metrics.censoring import StepFunction
from ehrsequencing.metrics.hazards import expected_events, mean_inverse
from ehrsequencing.metrics.registry import METRICS

YEARS = np.array([4.0])
KNOTS = np.linspace(0.25, 4.0, 16)
VISIT = 1.0  # years after the index, when severity is seen
KEYS = ("c", "auc", "ipa", "slope", "oe", "ici")
THRESHOLD = 0.3


@dataclass(frozen=True)
class World:
    """How people leave: rates × exp of the severity at p, of the one seen at the visit, of something unrecorded."""

    at_p: float = 0.0
    later: float = 0.0
    unrecorded: float = 0.0
    competing: float = 0.0  # log rate of the competing cause per sd of severity


WORLDS = {
    "at p": World(at_p=1.0),
    "at p, the healthy leave": World(at_p=-1.0),
    "after p": World(later=1.0),
    "with a competing cause": World(at_p=1.0, competing=1.0),
    "unrecorded": World(unrecorded=1.0),
    "for no reason": World(),
}


@dataclass(frozen=True)
class People:
    """Severity z seen at the visit, and z at p where the world says so; the first event, and when they leave."""

    known: np.ndarray  # (n,) what is known of z at p
    seen: np.ndarray  # (n,) z, known from the visit on
    hazards: np.ndarray  # (n, 2, knots) of the causes, given what is known at p and no event yet
    risk: np.ndarray  # (n, 2, 1) by the horizon
    event: np.ndarray
    cause: np.ndarray
    leaving: np.ndarray

    @classmethod
    def draw(cls, world: World, n: int, seed: int) -> "People":
        rng = np.random.default_rng(seed)
        z, hidden = rng.normal(size=(2, n))
        # at p a part of z is known: all of it, unless the world reveals it later
        share = 0.6 if world.later else 1.0
        known = share * z + np.sqrt(1 - share**2) * rng.normal(size=n)
        frail = 0.9 * z + 0.9 * hidden * bool(world.unrecorded)
        rates = np.stack([0.06 * np.exp(frail), 0.04 * np.exp(world.competing * z)], axis=1)
        times = rng.exponential(1 / rates)
        event, cause = times.min(axis=1), 1 + times.argmin(axis=1)
        first = rng.exponential(1 / (0.08 * np.exp(world.at_p * known + world.unrecorded * hidden)))
        after = VISIT + rng.exponential(1 / (0.12 * np.exp(world.at_p * known + world.later * z)))
        leaving = np.where(first < VISIT, first, after) if world.later else first
        hazards, risk = truth(known, share, world)
        return cls(known, z, hazards, risk, event, cause, leaving)

    def scope(self, *, leaves: bool, by_history: bool = False, least: float = 0.0) -> tuple[Comparison, Dropout | None]:
        """Rows at p with true risks, and the model of leaving where it is asked for."""
        n, end = len(self.event), np.minimum(self.leaving, 6.0) if leaves else np.full(len(self.event), 1e9)
        duration, cause = np.minimum(self.event, end), np.where(self.event <= end, self.cause, 0)
        clock, found, inverse = None, None, None
        if by_history:
            dropout = np.where((cause == 0) & (duration >= 6.0), 1, cause)
            found = fit_dropout(*self.pieces(duration, dropout), seed=0)
            # the curve over all has no part where each row has its own
            whole = StepFunction(np.zeros(0), np.ones(1))
            clock = HistoryClock(whole, 1e9, np.zeros(n), found.paths, np.arange(n), least)
            inverse = mean_inverse(clock, KNOTS, duration_days=duration)
        gained = np.diff(self.hazards, axis=2, prepend=0)
        expected = expected_events(
            np.cumsum(gained, axis=2), KNOTS, duration_days=duration, horizons_days=YEARS, inverse=inverse
        )
        scope = Comparison(
            0.0,
            np.arange(n),
            duration,
            cause,
            YEARS,
            {"truth": self.risk},
            draw_subjects(n, 0, 0),
            clock,
            None,
            {"truth": expected},
        )
        return scope, found

    def pieces(self, duration: np.ndarray, dropout: np.ndarray) -> tuple[Pieces, np.ndarray]:
        """The index, and the visit of those who reach it; severity known at each, among noise."""
        reached = duration > VISIT
        subject = np.repeat(np.arange(len(duration)), 1 + reached)
        second = np.r_[False, subject[1:] == subject[:-1]]
        since = np.where(second, VISIT, 0.0)
        pieces = Pieces.of_rows(subject, since, duration[subject] - since, dropout[subject])
        noise = np.random.default_rng(1).normal(size=(len(subject), 5))
        value = np.where(second, self.seen[subject], self.known[subject])
        x = np.column_stack([value, value * second, second, self.known[subject], noise])
        return pieces, x


def truth(known: np.ndarray, share: float, world: World) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative incidence (n, 2, knots) and (n, 2, 1) given what is known at p, over all else that is not."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(21)
    weights = weights / weights.sum()
    incidence = np.zeros((len(known), 2, len(KNOTS)))
    for a, wa in zip(nodes, weights, strict=True):
        z = share * known + np.sqrt(1 - share**2) * a
        for b, wb in zip(nodes, weights, strict=True) if world.unrecorded else [(0.0, 1.0)]:
            rates = np.stack([0.06 * np.exp(0.9 * z + 0.9 * b), 0.04 * np.exp(world.competing * z)], axis=1)
            total = rates.sum(axis=1, keepdims=True)
            part = (rates / total)[:, :, None] * -np.expm1(-total[:, :, None] * KNOTS)
            incidence += wa * wb * part
    return incidence, incidence[:, :, -1:]


def scores(scope: Comparison) -> dict[str, float]:
    """Every metric of the first cause by the horizon."""
    found = metric_estimates(scope, "truth", [METRICS[key] for key in KEYS])
    curve = estimate(scope, "truth", partial(decision_curve, thresholds=[THRESHOLD]))
    out = {key: float(one.value[0, 0]) for key, one in found.items()}
    return out | {"nb": float(curve["net_benefit"].value[0, 0, 0])}
