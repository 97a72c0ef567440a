"""Builds the `oracle` part of `metrics.json`: a run against the truth of a simulation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Floats
from ehrsequencing.evaluation.comparison import ORACLE, Comparison
from ehrsequencing.evaluation.estimates import Estimate, long_rows
from ehrsequencing.evaluation.oracle import (
    EARLY_DAYS,
    LEAK_Z,
    Truth,
    bin_hazards,
    expected_gain_share,
    foresight,
    hazard_rmse_per_year,
    mechanism_shares,
    oracle_gap,
    risk_errors,
)
from ehrsequencing.metrics.censoring import conditional_risk
from ehrsequencing.metrics.registry import in_columns, taken
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
    subject, hazards = rows.subject, bin_hazards(risk(truth.edges_days[1:]), truth.edges_days)
    gap = oracle_gap(
        nll,
        truth.nll(rows),
        foresight=foresight(hazards, truth, rows),
        train=train,
        rows=rows,
        edges_days=edges_days,
        n_causes=len(causes),
    )
    return gap | {
        "name": ORACLE,
        "gain_share_expected": expected_gain_share(hazards, truth, train=train, rows=rows),
        "risks": risk_errors(
            risk(horizons),
            truth.risk(horizons),
            causes=causes,
            horizons_days=horizons,
            subject=subject,
        ),
        "hazard_rmse_per_year": hazard_rmse_per_year(hazards, truth, causes=causes),
        "mechanisms": mechanism_shares(
            risk(early)[:, 0, 0], truth.risk(early)[:, 0, 0], truth, subject
        ),
    }


def risk_table(truth: Truth, risk: Floats, rows: TaskRows, *, task: TaskConfig) -> dict[str, Any]:
    """Content of `oracle` for a source whose hazards are not known: only the errors of its risks.

    Args:
        truth: Of the prediction times.
        risk: (R, causes, H) the source's risks by the task's horizons, given no event in the blanking.
        rows: The prediction times.
        task: The question.
    """
    horizons = np.array(task.horizons)
    true = conditional_risk(truth.risk, horizons, start_days=task.blanking)
    errors = risk_errors(
        risk, true, causes=task.causes, horizons_days=horizons, subject=rows.subject
    )
    nothing = dict.fromkeys(
        ("nll_null", "nll_model", "nll_oracle", "gain_share", "gain_share_expected")
    )
    return {"name": ORACLE, "risks": errors, "mechanisms": [], **nothing}


def oracle_differences(
    comparison: Comparison,
    estimates: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
    *,
    ours: str,
) -> list[dict[str, Any]]:
    """Long rows of `oracle.differences`: our model minus the truth, on the same resamples of subjects.

    Args:
        comparison: The rows, with the truth among the models.
        estimates: Of `scope_estimates`.
        ours: Name of our model.
    """
    if ORACLE not in comparison.risk:
        return []
    return [
        row
        for cause, found in estimates.items()
        for name in (metric.key for metric in in_columns(taken("everywhere")))
        for row in long_rows(
            comparison,
            found[ours][name].minus(found[ORACLE][name]),
            model=ORACLE,
            cause=cause,
            metric=name,
        )
    ]


def oracle_warnings(found: Mapping[str, Any]) -> list[str]:
    """What a reader of `oracle` must be warned of."""
    if found["beats_oracle_z"] > LEAK_Z:
        return [
            "The model beats the true hazards by more than three standard errors: it is leaking."
        ]
    if found["nll_z"] > LEAK_Z:
        return [
            "The model's NLL beats that of the true hazards by more than three standard errors, but it foresees no "
            "event that they do not expect: they are means over too few simulated futures. Raise truth_futures."
        ]
    return []
