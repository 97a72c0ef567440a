"""Hazards through given risks, the events that they expect while a row is observed, and the accuracy they expect."""

import numpy as np

from ehrsequencing.core.arrays import Floats, row_blocks
from ehrsequencing.metrics.censoring import SubjectClock, divide

#: Survival is taken to be at least this: where risks sum to 1, hazards would be infinite.
LEAST_SURVIVAL = 1e-12


def hazards_through(
    risk: Floats, knots_days: Floats, *, start_days: float = 0.0, least_survival: float = 0.0
) -> Floats:
    """Piecewise-constant hazards with exactly the given cumulative incidences at the knots.

        λ_{e,k} = ΔF_e / Σ_e' ΔF_e' · log(S(τ_{k−1}) / S(τ_k)) / (τ_k − τ_{k−1}),     ΔF_e = F_e(τ_k) − F_e(τ_{k−1})

    with S = 1 − Σ_e F_e and τ_0 = s, where F_e = 0.

    Args:
        risk: (R, E, K) cumulative incidence at each knot; never falling.
        knots_days: (K,) rising.
        start_days: s.
        least_survival: S is taken to be at least this.

    Returns:
        (R, E, K) per day; 0 where nothing happens between two knots, infinite or NaN from where S is 0.
    """
    incidence = np.concatenate([np.zeros_like(risk[:, :, :1]), risk], axis=2)
    survival = np.maximum(1 - incidence.sum(axis=1), least_survival)
    gained = np.diff(incidence, axis=2)
    either = gained.sum(axis=1, keepdims=True)
    share = np.divide(gained, either, out=np.zeros_like(gained), where=either > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.log(survival[:, :-1] / survival[:, 1:]) / np.diff(np.r_[start_days, knots_days])
        return np.asarray(total[:, None] * share, dtype=np.float64)


def expected_events(
    risk: Floats,
    knots_days: Floats,
    *,
    duration_days: Floats,
    horizons_days: Floats,
    start_days: float = 0.0,
    inverse: Floats | None = None,
) -> Floats:
    """Events that a model expects of each row by each horizon while it is under observation.

        Λ_e(t) = ∫ₛ^min(duration, t) λ_e(u) du        λ: the hazards through the risks (`hazards_through`)

    The events seen less these are a martingale: their mean is 0 if the hazards are right, whatever ends follow-up, as
    long as that is independent of the future given what the model knows.

    Args:
        risk: (R, E, K) cumulative incidence at each knot, given no event until s.
        knots_days: (K,) rising; they reach the last horizon.
        duration_days: (R,) to the event or to the end of follow-up.
        horizons_days: (H,).
        start_days: s.
        inverse: (R, K) what a day between two knots weighs while a row is observed, 1 / G (`mean_inverse`). Where those
            at risk leave sooner than others, the events seen must weigh 1 / G as well.

    Returns:
        (R, E, H).

    Example:
        A risk of 1 − exp(−1) in 100 days is a hazard of .01 a day. Half of it is seen by somebody who leaves on day 50.

        >>> risk = np.full((1, 1, 1), 1 - np.exp(-1))
        >>> days = np.array([100.0])
        >>> expected_events(risk, days, duration_days=np.array([50.0]), horizons_days=days).round(6).tolist()
        [[[0.5]]]
    """
    low, high = np.r_[start_days, knots_days[:-1]], knots_days
    out = np.empty((*risk.shape[:2], len(horizons_days)))
    for some in row_blocks(len(risk)):
        rising = np.maximum.accumulate(risk[some], axis=2)
        hazards = hazards_through(
            rising, knots_days, start_days=start_days, least_survival=LEAST_SURVIVAL
        )
        for h, horizon in enumerate(horizons_days):
            stop = np.minimum(duration_days[some], horizon)[:, None]
            days = np.clip(stop, low, high) - low
            if inverse is not None:
                days *= inverse[some]
            out[some, :, h] = np.einsum("rek,rk->re", hazards, days)
    return out


def mean_inverse(
    clock: SubjectClock, knots_days: Floats, *, duration_days: Floats, start_days: float = 0.0
) -> Floats:
    """(R, K) mean of 1 / G over the part of each interval between two knots in which a row is observed."""
    low, high = np.r_[start_days, knots_days[:-1]], knots_days
    out = np.ones((len(duration_days), len(knots_days)))
    stop = np.clip(duration_days[:, None], low, high)
    for share in (0.25, 0.75):
        middle = clock.before_own(low + share * (stop - low))
        out += 0.5 * (divide(1.0, middle, undefined=0.0) - 1.0)
    return out


# ---- accuracy, before any outcome is known ---------------------------------------------------------------------


def expected_accuracy(incidence: Floats, weights: Floats | None = None) -> Floats:
    """Expected C, Brier score and IPA of a cause by a horizon.

    With F_i the predicted cumulative incidence and t the horizon, a person i has the event in bin k with probability
    ΔF_i(k), and j has had none by then with 1 − F_j. So, as Wolbers' C counts pairs,

        C = Σ_ij a_ij (1[F_i(t) > F_j(t)] + ½ 1[F_i(t) = F_j(t)]) / Σ_ij a_ij,   a_ij = Σ_k ΔF_i(k) (1 − F_j(k))
        Brier = mean F(t) (1 − F(t)),   IPA = 1 − Brier / (F̄(t) (1 − F̄(t)))

    Costs O(n²): give a sample.

    Args:
        incidence: (n, K) cumulative incidence by the ends of bins, the last of which is the horizon.
        weights: (B, n) of people; default: one row of ones.

    Returns:
        (3, B); NaN where nothing can be compared.

    Example:
        >>> expected_accuracy(np.array([[0.5], [0.1]])).round(3).ravel().tolist()
        [0.864, 0.17, 0.19]
    """
    n = len(incidence)
    weight = np.ones((1, n)) if weights is None else weights
    risk, start = incidence[:, -1], np.pad(incidence, ((0, 0), (1, 0)))[:, :-1]
    pairs = (incidence - start) @ (1.0 - (incidence + start) / 2).T
    np.fill_diagonal(pairs, 0.0)
    won = np.sign(risk[:, None] - risk) / 2 + 0.5
    c = divide(
        ((weight @ (pairs * won)) * weight).sum(axis=1), ((weight @ pairs) * weight).sum(axis=1)
    )
    total = weight.sum(axis=1)
    brier, mean = divide(weight @ (risk * (1 - risk)), total), divide(weight @ risk, total)
    return np.stack([c, brier, 1.0 - divide(brier, mean * (1 - mean))])
