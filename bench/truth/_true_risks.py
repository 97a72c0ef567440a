"""What a run has learned of a simulation: errors of its risks and hazards, and its share of each mechanism."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.evaluation.oracle import Truth, bin_hazards
from ehrsequencing.evaluation.population import Population
from ehrsequencing.metrics.bootstrap import mean_by_subject
from ehrsequencing.metrics.hazards import cohort_hazards, exposure, horizon_nll
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import TaskRows

EARLY_DAYS = (
    30.0  # mechanisms are those of the prediction time; they are sought in the risk soon after it
)


def run_errors(folder: Path) -> dict[str, Any]:
    """`true_risk_errors` and `gain_shares` of a finished run on its held-out subjects."""
    run = Run(folder)
    prepared = run.prepared()
    held_out = Population.of_split(prepared, run.task, "held_out")
    if held_out.source is None:
        raise SystemExit(f"{folder} does not know where its records are")
    truth = Truth.read(held_out.source, held_out.records, causes=run.task.causes)
    if truth is None:
        raise SystemExit(f"{held_out.source} holds no truth")
    predictor, rows = run.predictor, held_out.records.rows

    def risk(days: Floats) -> Floats:
        return predictor.risk(held_out.records, days)

    shares = gain_shares(
        truth,
        bin_hazards(risk(truth.edges_days[1:]), truth.edges_days),
        predictor.nll(held_out.records),
        train=prepared.rows(run.task.name, "train"),
        rows=rows,
        edges_days=predictor.edges_days,
    )
    return shares | true_risk_errors(truth, risk, subject=rows.subject, task=run.task)


def gain_shares(
    truth: Truth,
    hazards: Floats,
    nll: Floats,
    *,
    train: TaskRows,
    rows: TaskRows,
    edges_days: Sequence[float],
) -> dict[str, Any]:
    """The share of the gain in NLL, from the cohort's own hazards λ⁰ to the truth λ*, that a model m reaches.

    `gain_share` is by what happened, with its standard error by subject. `gain_share_expected` is by what the truth
    expects; outcomes decide only who is at risk:

        Σ ∫ Y (λ* log(m / λ⁰) − m + λ⁰)  /  Σ ∫ Y (λ* log(λ* / λ⁰) − λ* + λ⁰)

    Noise of the truth makes the first too high and the second too low.

    Args:
        truth: Of the prediction times.
        hazards: (R, E, K) the model's, per day, in the bins of the truth.
        nll: (R,) the model's.
        train: Training rows, on which λ⁰ is fitted.
        rows: The evaluated rows.
        edges_days: Grid of λ⁰ for the share by what happened.
    """
    n_causes, inner = truth.hazards.shape[1], truth.edges_days[1:-1].tolist()
    own = train.entry_days, train.duration_days, train.cause
    on_grid = cohort_hazards(edges_days, *own, n_causes=n_causes)
    nll_null = horizon_nll(
        on_grid,
        edges_days,
        duration_days=rows.duration_days,
        cause=rows.cause,
        entry_days=rows.entry_days,
    )
    nll_oracle = truth.nll(rows)
    known = ~np.isnan(nll_oracle) & ~np.isnan(nll)
    null, model, best = nll_null[known], nll[known], nll_oracle[known]
    gain = null.mean() - best.mean()
    share = (null.mean() - model.mean()) / gain
    # the delta method for a ratio of means
    _, error = mean_by_subject((null - model) - share * (null - best), rows.subject[known])
    flat = cohort_hazards(inner, *own, n_causes=n_causes)
    some, gains = truth.known, np.zeros(2)
    true, days = (
        truth.hazards[some],
        exposure(inner, rows.entry_days[some], rows.duration_days[some]),
    )
    for place, said in enumerate((hazards[some], true)):
        logs = np.log(np.maximum(said, 1e-12) / flat)
        gains[place] = np.einsum("rek,rk->", true * logs - said + flat, days)
    return {
        "nll_null": float(null.mean()),
        "gain_share": float(share),
        "gain_share_se": error / abs(gain),
        "gain_share_expected": float(gains[0] / gains[1]) if gains[1] > 0 else None,
    }


def true_risk_errors(
    truth: Truth, risk: Callable[[Floats], Floats], *, subject: Ints, task: TaskConfig
) -> dict[str, Any]:
    """Errors of risks and hazards, and shares of the mechanisms.

    Args:
        truth: Of the prediction times.
        risk: Days (H,) → the run's risks (R, causes, H).
        subject: (R,) the rows' subjects.
        task: The question.
    """
    horizons, early = np.array(task.horizons), np.array([EARLY_DAYS])
    hazards = bin_hazards(risk(truth.edges_days[1:]), truth.edges_days)
    return {
        "risks": risk_errors(
            risk(horizons),
            truth.risk(horizons),
            causes=task.causes,
            horizons_days=horizons,
            subject=subject,
        ),
        "hazard_rmse_per_year": hazard_rmse_per_year(hazards, truth, causes=task.causes),
        "mechanisms": mechanism_shares(
            risk(early)[:, 0, 0], truth.risk(early)[:, 0, 0], truth, subject
        ),
    }


def risk_errors(
    model: Floats, true: Floats, *, causes: Sequence[str], horizons_days: Floats, subject: Ints
) -> list[dict[str, Any]]:
    """How far predicted risks are from true ones, per cause and horizon.

    `slope` is that of the true risk on the predicted one: 1 where predictions are neither too extreme nor too timid,
    whatever they miss. `slope_reversed`, of the predicted on the true risk, falls with what a model has not learned.

    Args:
        model: (R, E, H) predicted cumulative incidences.
        true: (R, E, H) true ones; rows with NaN do not count.
        causes: Names.
        horizons_days: (H,).
        subject: (R,) the rows' subjects, for the standard error.

    Returns:
        One mapping per cause and horizon: `rmse`, `slope`, `slope_se` (by subject), `slope_reversed`, `correlation`;
        None where undefined.
    """
    out = []
    for e, cause in enumerate(causes):
        for h, horizon in enumerate(horizons_days.tolist()):
            known = ~np.isnan(true[:, e, h])
            x, y = model[known, e, h], true[known, e, h]
            covariance = np.cov(x, y) if len(x) > 1 else np.zeros((2, 2))
            between, defined = (
                covariance[0, 1],
                len(x) > 1 and bool(np.ptp(x) > 0 and np.ptp(y) > 0),
            )
            slope = float(between / covariance[0, 0]) if defined else None
            out.append(
                {
                    "cause": cause,
                    "horizon_days": horizon,
                    "rmse": float(np.sqrt(np.mean((x - y) ** 2))),
                    "slope": slope,
                    "slope_se": None if slope is None else slope_error(x, y, slope, subject[known]),
                    "slope_reversed": float(between / covariance[1, 1]) if defined else None,
                    "correlation": float(between / np.sqrt(covariance[0, 0] * covariance[1, 1]))
                    if defined
                    else None,
                }
            )
    return out


def slope_error(x: Floats, y: Floats, slope: float, subject: Ints) -> float:
    """Standard error of a least-squares slope of y on x whose rows belong together by subject (sandwich)."""
    x = x - x.mean()
    by_subject = np.bincount(subject, weights=x * (y - y.mean() - slope * x))
    return float(np.sqrt((by_subject**2).sum()) / (x @ x))


def hazard_rmse_per_year(model: Floats, truth: Truth, *, causes: Sequence[str]) -> dict[str, float]:
    """Root mean square error of each cause's hazard, per year, over the bins of the truth.

    Bins count by their length and by the chance to live to see them.

    Args:
        model: (R, E, K) the model's hazards per day in the bins of the truth, as of `bin_hazards`.
        truth: The truth.
        causes: Names.
    """
    width, true = np.diff(truth.edges_days), truth.hazards[truth.known]
    alive = np.exp(-np.cumsum(true.sum(axis=1) * width, axis=1)) * width
    squared = np.einsum("rek,rk->e", ((model[truth.known] - true) * 365.25) ** 2, alive)
    return dict(zip(causes, np.sqrt(squared / alive.sum()).tolist(), strict=True))


def mechanism_shares(
    model_early: Floats, true_early: Floats, truth: Truth, subject: Ints
) -> list[dict[str, Any]]:
    """How much of each mechanism a model has learned: 1 all of it, 0 nothing.

    Least squares of the log cumulative hazard soon after the prediction time on every mechanism's log hazard ratio
    (knob on minus knob off) at it, for the model and for the truth; the share is the quotient of the two slopes. It
    says what the model does with the mechanism, whatever else it does.

    Args:
        model_early: (R,) the model's risk of the outcome within `EARLY_DAYS`.
        true_early: (R,) the true one.
        truth: With the mechanisms.
        subject: (R,) the rows' subjects, for the standard error.

    Returns:
        One mapping a mechanism that varies: `mechanism`, `share`, `share_se` (by subject), `sd` of its ratio's log.
    """
    known = truth.known & (true_early > 0) & (model_early > 0)
    names = [name for name, ratio in truth.mechanisms.items() if np.std(ratio[known]) > 1e-6]
    if not names or known.sum() <= len(names) + 1:
        return []
    ratios = np.stack([truth.mechanisms[name][known] for name in names], axis=1)
    design = np.column_stack([np.ones(len(ratios)), ratios])
    answers = np.log(
        -np.log1p(-np.minimum(np.stack([model_early, true_early], axis=1)[known], 1 - 1e-9))
    )
    inverse = np.linalg.inv(design.T @ design)
    slopes = inverse @ (design.T @ answers)
    share = slopes[:, 0] / slopes[:, 1]
    residual = answers - design @ slopes  # the delta method: both slopes come from the same rows
    influence = (residual[:, :1] - residual[:, 1:] * share) / slopes[:, 1] * (design @ inverse)
    by_subject = np.stack(
        [np.bincount(subject[known], weights=column) for column in influence.T], axis=1
    )
    se = np.sqrt((by_subject**2).sum(axis=0))
    return [
        {
            "mechanism": name,
            "share": float(share[k]),
            "share_se": float(se[k]),
            "sd": float(ratios[:, k - 1].std()),
        }
        for k, name in enumerate(names, start=1)
    ]
