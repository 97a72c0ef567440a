"""A run beside the truth of a simulation, in one mapping: likelihood, risks, hazards, mechanisms."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.evaluation.censoring import Floats
from ehrsequencing.evaluation.oracle import (
    EARLY_DAYS,
    Truth,
    hazard_rmse_per_year,
    mechanism_shares,
    oracle_gap,
    risk_errors,
)
from ehrsequencing.evaluation.scope import ORACLE
from ehrsequencing.records.timelines import TaskRows


def oracle_table(
    truth: Truth,
    risk: Callable[[Floats], Floats],
    nll: Floats,
    rows: TaskRows,
    *,
    train: TaskRows,
    edges_days: Sequence[float],
    task: TaskConfig,
) -> dict[str, Any]:
    """Content of `oracle`.

    Args:
        truth: Of the prediction times.
        risk: Days (H,) → the run's risks (R, causes, H).
        nll: (R,) the run's NLL.
        rows: The prediction times.
        train: Training prediction times, on which the hazards of no knowledge are fitted.
        edges_days: Their grid.
        task: The question.
    """
    causes, horizons, early = task.causes, np.array(task.horizons), np.array([EARLY_DAYS])
    subject = np.asarray(rows.subject)
    gap = oracle_gap(nll, truth.nll(rows), train=train, rows=rows, edges_days=edges_days, n_causes=len(causes))
    return gap | {
        "name": ORACLE,
        "risks": risk_errors(
            risk(horizons), truth.risk(horizons), causes=causes, horizons_days=horizons, subject=subject
        ),
        "hazard_rmse_per_year": hazard_rmse_per_year(risk(truth.edges_days[1:]), truth, causes=causes),
        "mechanisms": mechanism_shares(risk(early)[:, 0, 0], truth.risk(early)[:, 0, 0], truth, subject),
    }
