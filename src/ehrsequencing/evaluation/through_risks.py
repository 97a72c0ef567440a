"""A curve through risks that are known at some days only: hazards that are constant between these days."""

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.records.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.records.timelines import TaskRows


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


def nll_through(
    risk: Floats, knots_days: Floats, rows: TaskRows, *, start_days: float = 0.0
) -> Floats:
    """Likelihood of the curve through the risks, with the follow-up cut at the last knot τ_K.

        NLL_p = Σ_e Σ_k λ_{e,k} · |[τ_{k−1}, τ_k) ∩ [s, min(T, τ_K))|  −  Σ_e 1[cause = e, T ≤ τ_K] · log λ_{e, k(T)}

    with the hazards of `hazards_through`. Between two knots it knows no more than that the hazard is constant: what a
    model says within them is neither rewarded nor punished beyond that, so that it must be the same for all models that
    are compared.

    Args:
        risk: (R, E, K) cumulative incidence at each knot, given no event until s.
        knots_days: (K,) rising.
        rows: The prediction times with their labels.
        start_days: s, the task's blanking.

    Returns:
        (R,); infinite where an event falls between two knots at which its risk is the same, or nobody should be left.
    """
    hazards = hazards_through(risk, knots_days, start_days=start_days)
    hazards = np.where(np.isfinite(hazards), hazards, np.inf)
    last = knots_days[-1]
    duration, cause = (
        np.minimum(rows.duration_days, last),
        np.where(rows.duration_days <= last, rows.cause, 0),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        nll = horizon_nll(
            hazards,
            knots_days[:-1].tolist(),
            duration_days=duration,
            cause=cause,
            entry_days=rows.entry_days,
        )
    return np.where(np.isnan(nll), np.inf, nll)


def risk_through(
    risk: Floats, knots_days: Floats, days: Floats, *, start_days: float = 0.0
) -> Floats:
    """Cumulative incidence (R, E, D) at other days, none after the last knot, of the curve through the risks.

    From where the risks sum to 1, hazards would be infinite: 1e-12 of the subjects is taken to be left there.
    """
    hazards = hazards_through(risk, knots_days, start_days=start_days, least_survival=1e-12)
    return cumulative_incidence(hazards, knots_days[:-1].tolist(), days, start_days=start_days)
