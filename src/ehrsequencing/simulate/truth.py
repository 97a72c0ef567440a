r"""The truth: what the best possible model could say at a prediction time.

At p, with the record up to p known, and e running over the causes,

    S(u) = E[exp(−Σ_e ∫_0^u λ_e)]          F_e(u) = E[∫_0^u λ_e(w) exp(−Σ_e ∫_0^w λ_e) dw]

where the expectation is over what may still be recorded (visits, their contents, the gaps) and over what never is (the
visit rate, the frailty), both given the record and survival so far. It is the mean over simulated futures of the
*exact* survival and incidence along each, not of simulated events, and futures come in mirrored pairs, so the noise is
small; its standard error is that of the pairs' means.

λ*_e(u) = E[λ_e(u) exp(−…)] / S(u) is given as a constant per bin [a, b) of a grid, chosen so that the bin's
incidences are exactly the averaged ones:

    λ*_e = log(S(a) / S(b)) / (b − a) · (F_e(b) − F_e(a)) / Σ_e (F_e(b) − F_e(a))
"""

import math
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.simulate.lives import Draws, Evidence, Lives
from ehrsequencing.simulate.process import DAYS_PER_YEAR, Process

HORIZONS_DAYS = {"90d": 90.0, "1y": DAYS_PER_YEAR, "2y": 2 * DAYS_PER_YEAR, "5y": 5 * DAYS_PER_YEAR}
_FINE_DAYS = [0.0, 7.0, 14.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0]
_LIVES_AT_ONCE = 16_384  # arrays of this length stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Curves:
    """True curves of R prediction times at the G edges of a grid, edge 0 being p itself."""

    survival: Floats  # (R, G)
    incidence: Floats  # (2, R, G)
    incidence_se: Floats  # (2, R, G)

    def hazards_per_day(self, edges_days: Floats) -> Floats:
        """Constant hazards per bin with the same incidences: (2, R, G − 1)."""
        gained = np.diff(self.incidence, axis=-1)
        # no survival of 0, of which there is no logarithm
        survival = np.maximum(self.survival, 1e-12)
        total = np.log(survival[:, :-1] / survival[:, 1:]) / np.diff(edges_days)
        either = gained.sum(axis=0)
        return total * np.divide(gained, either, out=np.zeros_like(gained), where=either > 0)


def horizons(follow_up_max_years: float, last_years: float) -> dict[str, float]:
    """Reported horizons in days by their name in the task file: those that some subject's follow-up goes beyond."""
    return {
        name: days
        for name, days in HORIZONS_DAYS.items()
        if days < follow_up_max_years * DAYS_PER_YEAR and days <= last_years * DAYS_PER_YEAR
    }


def grid_days(follow_up_max_years: float) -> Floats:
    """Edges of the bins of `truth_hazards.parquet`: horizons among them, the last at the longest possible follow-up."""
    longest = follow_up_max_years * DAYS_PER_YEAR
    half_years = np.arange(2, 2 * follow_up_max_years) * DAYS_PER_YEAR / 2
    edges = np.unique(np.concatenate([_FINE_DAYS, half_years, list(HORIZONS_DAYS.values())]))
    return np.asarray(np.append(edges[edges < longest], longest))


def true_curves(
    process: Process,
    lives: Lives,
    evidence: Evidence,
    *,
    day_fraction: Floats,
    edges_days: Floats,
    rng: np.random.Generator,
) -> Curves:
    """Average exact survival and incidence over simulated futures.

    Args:
        process: The mechanisms.
        lives: R states, each just after the visit at whose end p falls.
        evidence: What is known of the hidden, of each.
        day_fraction: (R,) time of day of p, in [0, 1).
        edges_days: (G,) times since p, rising from 0.
        rng: Source of the futures.
    """
    futures, parts = process.config.truth_futures, list[Curves]()
    rows_at_once = max(1, _LIVES_AT_ONCE // futures)
    chunks = max(1, math.ceil(len(day_fraction) / rows_at_once))
    for rows in np.array_split(np.arange(len(day_fraction)), chunks):
        # future m of row r is life m · R + r
        half = process.draw_hidden(lives.take(rows), evidence.take(rows), rng, draws=futures // 2)
        everyone = Lives.join([half, half])
        fraction = np.tile(day_fraction[rows], futures)
        # cause, half, mirrored pair, row, edge
        shape = (2, 2, futures // 2, len(rows), len(edges_days))
        followed = _follow(process, everyone, fraction, edges_days, rng).reshape(shape)
        of_pairs = followed.mean(axis=1)
        mean = of_pairs.mean(axis=1)
        se = of_pairs.std(axis=1, ddof=1) / math.sqrt(futures // 2)
        parts.append(Curves(survival=1 - mean.sum(axis=0), incidence=mean, incidence_se=se))
    return Curves(
        survival=np.concatenate([part.survival for part in parts]),
        incidence=np.concatenate([part.incidence for part in parts], axis=1),
        incidence_se=np.concatenate([part.incidence_se for part in parts], axis=1),
    )


def _follow(
    process: Process,
    lives: Lives,
    day_fraction: Floats,
    edges_days: Floats,
    rng: np.random.Generator,
) -> Floats:
    """Simulate each life's future and return its exact incidences at the edges: (2, n, G).

    A future is a row of stretches of constant hazard, from the midnight after a visit, or a step of the decay, to the
    midnight before the next visit or at the next step. The second half of the lives mirrors the first.
    """
    n = len(day_fraction)
    at_edges = np.empty((2, n, len(edges_days)))
    # Of the lives still followed: where they are written, the next edge to write, and what has accumulated.
    slot, edge = np.arange(n), np.zeros(n, dtype=np.int64)
    prediction_day = lives.day + day_fraction
    factors = process.frailty_factors(lives.frailty)
    survival, incidence = np.ones(n), np.zeros((2, n))
    while len(slot):
        hazards = process.hazards_per_day(lives) * factors
        rate = hazards.sum(axis=0)
        # the smallest divisor, for the shares of a hazard of 0
        share = hazards / np.maximum(rate, np.finfo(np.float64).tiny)
        start = lives.now + 1 - prediction_day
        lives = process.advance(lives, Draws.fresh(rng, len(slot) // 2).with_mirror())
        end = lives.now + 1 - lives.is_visit - prediction_day

        # Write the edges before this stretch's end; one on the quiet day before its start gains nothing.
        next_edge = np.searchsorted(edges_days, end)
        passed = next_edge - edge
        life = np.repeat(np.arange(len(slot)), passed)
        written = np.arange(len(life)) - np.repeat(np.cumsum(passed) - next_edge, passed)
        gone = survival[life] * -np.expm1(
            -rate[life] * np.maximum(edges_days[written] - start[life], 0)
        )
        at_edges[:, slot[life], written] = incidence[:, life] + share[:, life] * gone

        gone = survival * -np.expm1(-rate * (end - start))
        incidence = incidence + share * gone
        survival = survival - gone
        edge = next_edge
        # A mirrored pair is followed until both have passed the last edge; clearing out at every step would cost more.
        followed = np.tile((edge < len(edges_days)).reshape(2, -1).any(axis=0), 2)
        if followed.mean() < 0.8:
            lives, survival, incidence = (
                lives.take(followed),
                survival[followed],
                incidence[:, followed],
            )
            slot, edge, prediction_day = slot[followed], edge[followed], prediction_day[followed]
            factors = factors[:, followed]
    return at_edges
