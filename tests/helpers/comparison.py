"""A comparison of two models on simulated competing risks."""

from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.metrics.accuracy import null_brier
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.registry import taken, values

CAUSES = ("outcome", "death")
HORIZONS = np.array([200.0, 600.0])


def world(seed: int, n: int, *, resamples: int = 0, rows_each: int = 1, horizons: np.ndarray = HORIZONS) -> Comparison:
    """Two competing exponential causes; `right` knows the hazards, `dull` knows little of them."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(n), rows_each)
    x = rng.normal(size=len(subject))
    hazard = np.stack([np.exp(0.8 * x) / 900, np.full(len(x), 1 / 2500)])
    total = hazard.sum(axis=0)
    time, which = rng.exponential(1 / total), rng.random(len(x)) < hazard[0] / total
    censored_at = rng.uniform(50, 1500, size=len(x))
    cause = np.where(time > censored_at, 0, np.where(which, 1, 2))
    risk = (hazard / total)[:, :, None] * -np.expm1(-total[:, None] * horizons)[None]
    right = np.moveaxis(risk, 0, 1)
    dull = 0.5 * right + 0.5 * right.mean(axis=0)
    duration = np.ceil(np.minimum(time, censored_at))
    risks = {"right": right, "dull": dull}
    return Comparison(0.0, subject, duration, cause, horizons, risks, draw_subjects(n, resamples, 7))


def metric_table(*outcome_and_risk: Any, **options: Any) -> dict[str, Floats]:
    """Arguments of `ScoredRows.of` → the registered metrics, and what the IPA is made of."""
    rows = ScoredRows.of(*outcome_and_risk, **options)
    parts = {"observed": rows.finish(rows.observed_risk)}
    return values(rows, taken("everywhere")) | {"null_brier": null_brier(rows)} | parts
