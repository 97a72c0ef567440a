"""A curve through risks that are known at some days only: hazards that are constant between these days."""

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.hazards import cumulative_incidence, hazards_through, horizon_nll
from ehrsequencing.records.timelines import TaskRows


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
