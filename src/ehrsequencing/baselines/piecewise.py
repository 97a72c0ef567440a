"""Piecewise-constant cause-specific hazards of the baselines: on the run's own grid, with the run's own likelihood.

A baseline that is a hazard model multiplies the training cohort's hazards by a factor of the record,

    λ_e(k | x) = base_e(k) · f_e(x, k)      k a bin of the run's grid, f_e fitted by Poisson likelihood

A bin counts with the days at risk in it, so that partly observed bins are neither dropped nor taken as whole, and a
competing event ends the exposure of every cause.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.config import TaskConfig
from ehrsequencing.metrics.censoring import conditional_risk
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.grid import cohort_hazards, event_bin, exposure
from ehrsequencing.records.timelines import TaskRecords, TaskRows

_PREDICT_ROWS = 20_000


class HazardModel(ABC):
    """Cause-specific piecewise-constant hazards, `base_e(k)` times a factor that subclasses fit.

    Args:
        task: The question.
        rows: Training prediction times.
        edges_days: The K − 1 inner edges of the run's grid.
    """

    name: str

    def __init__(self, task: TaskConfig, rows: TaskRows, edges_days: Sequence[float]) -> None:
        self.edges = tuple(edges_days)
        self.base = cohort_hazards(
            self.edges, rows.entry_days, rows.duration_days, rows.cause,
            n_causes=len(task.causes),
        )  # fmt: skip

    @abstractmethod
    def factor(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins)."""

    def risk(self, records: TaskRecords, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0) -> Floats:
        """See `Baseline`."""
        out = np.empty((len(chosen), len(self.base), len(horizons_days)))
        for start in range(0, len(chosen), _PREDICT_ROWS):
            part = slice(start, start + _PREDICT_ROWS)
            hazards = self.base * self.factor(records, chosen[part])

            def cumulative(days: Floats, hazards: Floats = hazards) -> Floats:
                return incidence(hazards, self.edges, days)

            out[part] = conditional_risk(cumulative, horizons_days, start_days=start_days)
        return out

    def nll(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `Baseline`."""
        out = np.empty(len(chosen))
        for start in range(0, len(chosen), _PREDICT_ROWS):
            part = chosen[start : start + _PREDICT_ROWS]
            hazards = self.base * self.factor(records, part)
            out[start : start + len(part)] = nll_of_hazards(hazards, self.edges, records.rows, part)
        return out


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
    days = (rows.prediction_us[chosen] - rows.index_us[chosen]) / DAY_US
    return np.asarray(days, dtype=np.float64)
