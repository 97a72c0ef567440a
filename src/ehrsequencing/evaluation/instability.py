"""How much a predicted risk depends on chance in training: its spread over the members of an ensemble."""

from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.models.ensemble import member_band
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import TaskRecords

MOST_GROUPS = 15  # of subjects of similar risk, each of at least 11


def instability(
    run: Run, records: TaskRecords, *, chosen: Ints, horizon_days: float
) -> dict[str, Any] | None:
    """Content of `instability`, or None for a single model: each member was trained with a seed of its own.

    In a blend each stands beside the same other parts. With `training.bootstrap`, each also learned from other
    subjects: the spread is then that over bootstrap samples.

    Args:
        run: The trained run.
        records: Visits and prediction times.
        chosen: (n,) the rows that are looked at.
        horizon_days: By when.
    """
    answers = run.answers
    if len(answers.members) < 2:
        return None
    risks = answers.with_members(records, horizons_days=[horizon_days])[1][:, chosen, 0, 0]
    bootstrap = run.study.training.bootstrap
    return spread(risks.astype(np.float64)) | {"horizon_days": horizon_days, "bootstrap": bootstrap}


def spread(risk: Floats) -> dict[str, Any]:
    """The mean absolute difference from the members' mean, and the members' band for subjects from low to high risk.

        mape = (1 / (M n)) Σ_m Σ_i |r_{m,i} − r̄_i|

    (Riley & Collins 2023 call it the mean absolute prediction error.)

    Args:
        risk: (members, n).
    """
    mean, (low, high) = risk.mean(axis=0), member_band(risk)
    order = np.argsort(mean, kind="stable")
    groups = np.array_split(order, max(1, min(len(order) // SMALLEST_COUNT, MOST_GROUPS)))
    return {
        "resamples": len(risk),
        "mape": float(np.abs(risk - mean).mean()),
        "groups": [
            {
                "risk": float(mean[some].mean()),
                "low": float(low[some].mean()),
                "high": float(high[some].mean()),
            }
            for some in groups
            if len(some) >= SMALLEST_COUNT
        ],
    }
