"""Piecewise-constant cause-specific hazards of the baselines: their likelihood, and the risks that follow from them."""

from collections.abc import Sequence

import numpy as np

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.grid import event_bin, exposure
from ehrsequencing.records.timelines import TaskRows


def nll_of_hazards(hazards: Floats, edges_days: Sequence[float], rows: TaskRows, chosen: Ints) -> Floats:
    """The `horizon` likelihood of given hazards, by the same formula as the model's own.

        NLL_p = Σ_e Σ_k λ_{e,k} · |[τ_{k−1}, τ_k) ∩ [entry, duration)|  −  Σ_e 1[cause = e] · log λ_{e, k(duration)}

    Args:
        hazards: (r, E, K) per day, above 0.
        edges_days: The K − 1 inner edges.
        rows: Prediction times with labels.
        chosen: (r,) which of them.

    Returns:
        (r,).
    """
    duration, cause = rows.duration_days[chosen], rows.cause[chosen].astype(np.int64)
    span = exposure(edges_days, rows.entry_days[chosen], duration)
    nll = np.einsum("rek,rk->r", hazards, span)
    had = np.flatnonzero(cause > 0)
    nll[had] -= np.log(hazards[had, cause[had] - 1, event_bin(edges_days, duration[had])])
    return np.asarray(nll, dtype=np.float64)


def incidence(hazards: Floats, edges_days: Sequence[float], horizons_days: Floats) -> Floats:
    """Cumulative incidence of piecewise-constant cause-specific hazards.

        F_e(t) = Σ_k (λ_{e,k} / λ_{·,k}) · S(τ_{k−1}) · (1 − exp(−λ_{·,k} · |[τ_{k−1}, τ_k) ∩ [0, t)|))

    Args:
        hazards: (r, E, K) per day.
        edges_days: The K − 1 inner edges.
        horizons_days: (H,).

    Returns:
        (r, E, H).

    >>> incidence(np.full((1, 1, 1), 0.01), [], np.array([100.0])).round(4).tolist()  # 1 − exp(−1)
    [[[0.6321]]]
    """
    total = hazards.sum(axis=1)  # (r, K)
    share = hazards / np.where(total > 0, total, 1.0)[:, None]
    spans = exposure(edges_days, np.zeros(len(horizons_days)), np.asarray(horizons_days, dtype=np.float64))  # (H, K)
    out = np.empty((*hazards.shape[:2], len(horizons_days)))
    for h, span in enumerate(spans):
        inside = total * span
        before = np.exp(-(np.cumsum(inside, axis=1) - inside))
        out[:, :, h] = np.einsum("rek,rk->re", share, before * -np.expm1(-inside))
    return out


def days_since_index(rows: TaskRows, chosen: Ints) -> Floats:
    """Days (r,) from the index to each chosen prediction time."""
    return (rows.prediction_us[chosen] - rows.index_us[chosen]) / DAY_US
