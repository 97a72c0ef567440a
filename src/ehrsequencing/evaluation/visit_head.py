"""What can be said of a model with the `visit` head: it has no calendar, only its likelihood and its mean hazard."""

from typing import Any

import numpy as np

from ehrsequencing.evaluation import tables
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.inference import nll_of_rows, risk_of_rows

VISIT_HEAD_WARNING = (
    "The visit head gives the risk of the event before the next visit. It has no calendar, so that metrics at "
    "horizons do not apply; use head=horizon for them."
)
_EMPTY = (
    *(
        "differences",
        "at_risk",
        "calibration",
        "smooth_calibration",
        "decision",
        "subgroups",
        "risk_distribution",
    ),
    *("trajectories", "incidence"),
)


def visit_head_rows(run: Run, records: TaskRecords) -> dict[str, Any]:
    """Mean negative log-likelihood, and events per expected event before the next visit.

    Args:
        run: A run with the visit head.
        records: The population's visits and prediction times.
    """
    rows, cause = records.rows, records.rows.cause.astype(np.int64)
    nll = nll_of_rows(run.model, records, code_types=run.code_types)
    hazard = risk_of_rows(run.model, records, horizons_days=[], code_types=run.code_types)[:, 0, 0]
    answered = ~np.isnan(hazard)
    last = np.r_[np.diff(rows.subject) != 0, True] & (cause == 1)
    values = {
        "nll": float(np.nanmean(nll)),
        "oe": float(last[answered].sum() / hazard[answered].sum()),
    }
    subjects, events = len(np.unique(rows.subject)), int(last.sum())
    metrics = [
        tables.metric_row(
            OURS, None, name, value, cause=run.task.causes[0], subjects=subjects, events=events
        )
        for name, value in values.items()
    ]
    nobody: dict[str, Any] = {
        "models": [OURS],
        "strongest": None,
        "baselines": [],
        "metrics": metrics,
        "codes": None,
    }
    return {**{name: [] for name in _EMPTY}, **nobody}
