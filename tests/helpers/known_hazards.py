"""Durations and causes drawn from known piecewise-constant hazards."""

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.predictors import network
from ehrsequencing.records.timelines import TaskRecords

EDGES = (100.0, 400.0)
Floats = NDArray[np.float64]


def world(n: int, *, seed: int) -> tuple[Floats, Floats, NDArray[np.int64], Floats]:
    """True log-hazards (n, 2, 3) of two causes, and durations, causes and entries drawn from them."""
    rng = np.random.default_rng(seed)
    eta = np.log([2e-3, 1e-3])[None, :, None] + rng.normal(0, 0.8, (n, 2, 1)) + rng.normal(0, 0.3, (n, 2, 3))
    total, entry = np.exp(eta).sum(1), rng.choice([0.0, 30.0], n)
    left, now, duration = rng.exponential(size=n), entry.copy(), np.full(n, np.inf)
    for k, stop in enumerate((*EDGES, np.inf)):  # spend the unit exponential bin by bin
        days = np.where(np.isfinite(stop - now), np.maximum(stop - now, 0), np.inf)
        ends = np.isinf(duration) & (left < total[:, k] * days)
        duration[ends] = now[ends] + left[ends] / total[ends, k]
        left, now = left - total[:, k] * np.minimum(days, 1e12), np.maximum(now, stop)
    censoring = entry + rng.uniform(50, 1500, n)
    bins = np.searchsorted(EDGES, duration, side="right")
    share = np.exp(eta[np.arange(n), 0, bins]) / total[np.arange(n), bins]
    cause = np.where(duration > censoring, 0, np.where(rng.random(n) < share, 1, 2))
    return eta, np.minimum(duration, censoring), cause, entry


def log_hazards(model: SurvivalModel, records: TaskRecords, *, code_types: NDArray[np.int64] | None = None) -> Floats:
    """(R, causes, bins) at every prediction time, in the order of the rows."""
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    row, eta = network.log_hazards(model, loader, visit_budget=2048)
    out = np.empty((len(records), *eta.shape[1:]))
    out[row] = eta
    return out
