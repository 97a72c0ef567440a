"""Curves with bands of our model and the strongest baseline: smooth calibration with its indices, decision curves."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.evaluation import tables
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.evaluation.estimates import Estimate, estimate, long_rows, metric_estimates
from ehrsequencing.metrics.accuracy import decision_curve
from ehrsequencing.metrics.bootstrap import calibration_null
from ehrsequencing.metrics.calibration import smooth_calibration
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.registry import taken

POINTS = 40  # of a smooth calibration curve
THRESHOLDS = 30  # of a decision curve, unless the settings name them
SIMULATIONS = 200  # of right risks, for what ICI and KS would be by chance


def smooth_rows(
    scope: Comparison, causes: Sequence[str], *, models: Sequence[str], seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Smooth calibration curves, and the long rows of the metrics that only the strongest models have (ICI, KS …).

    At landmarks, where a row is a subject, ICI and KS come with what right risks would show in as many subjects:
    `ici_null` is the 95th percentile of their ICI, `ks_p` the share of them with a KS statistic as large.

    Args:
        scope: The rows.
        causes: Names.
        models: Which models.
        seed: Of the simulations under right risks.

    Returns:
        Rows of `smooth_calibration`, and rows of `metrics`.
    """
    curves: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    for model in models:
        predicted = smooth_calibration(scope.scored(model), points=POINTS).predicted
        observed = estimate(scope, model, _observed)["observed"]
        low, high = observed.band()
        for cell in cells(scope, causes):
            e, h = cell.pop("place")
            known = np.isfinite(observed.value[e, h])
            curves.append(
                {
                    "model": model,
                    **cell,
                    "predicted": predicted[e, h][known].tolist(),
                    "observed": observed.value[e, h][known].tolist(),
                    "low": [tables.number(x) for x in low[e, h][known]],
                    "high": [tables.number(x) for x in high[e, h][known]],
                }
            )
        named = metric_estimates(scope, model, taken("strongest"))
        if (
            scope.landmark_days is not None
        ):  # elsewhere a subject has many rows; the simulation would draw each anew
            named |= _against_chance(scope, model, named["ks"], seed)
        for metric, one in named.items():
            for e, cause in enumerate(causes):
                metrics += long_rows(
                    scope, one.of_cause(e), model=model, cause=cause, metric=metric
                )
    return curves, metrics


def _observed(rows: ScoredRows) -> dict[str, Floats]:
    return {"observed": smooth_calibration(rows, points=POINTS).observed}


def _against_chance(scope: Comparison, model: str, ks: Estimate, seed: int) -> dict[str, Estimate]:
    """What ICI and KS would be if every risk were right."""
    null = calibration_null(scope.scored(model), n_simulations=SIMULATIONS, seed=seed)
    p = share_as_large(null["ks"], ks.value)
    return {"ici_null": replace(ks, value=_upper(null["ici"])), "ks_p": replace(ks, value=p)}


def _upper(samples: Floats) -> Floats:
    """95th percentile over the simulations; NaN where more than 5 % of them are undefined."""
    undefined = np.isnan(samples).mean(axis=0) > 0.05
    upper: Floats = np.nanquantile(np.where(undefined, 0.0, samples), 0.95, axis=0)
    return np.where(undefined, np.nan, upper)


def share_as_large(samples: Floats, value: Floats) -> Floats:
    """One-sided p-value by simulation, (1 + simulations as large as the value) / (1 + simulations).

    >>> share_as_large(np.array([[0.1], [0.2], [0.3]]), np.array([0.2])).tolist()
    [0.75]
    """
    defined = ~np.isnan(samples)
    count = (defined & (samples >= value)).sum(axis=0)
    p: Floats = (1.0 + count) / (1.0 + defined.sum(axis=0))
    return np.where(np.isnan(value) | ~defined.any(axis=0), np.nan, p)


def decision_rows(
    scope: Comparison, causes: Sequence[str], *, models: Sequence[str], thresholds: Sequence[float]
) -> list[dict[str, Any]]:
    """Net benefit with its band, beside acting on everyone; acting on nobody is 0.

    Args:
        scope: The rows.
        causes: Names.
        models: Which models.
        thresholds: Risks from which one would act; none: spread over each cell's predicted risks, the same for all.
    """
    ours = scope.risk[models[0]]
    shape = (*ours.shape[1:], len(thresholds) or THRESHOLDS)
    at = (
        np.broadcast_to(thresholds, shape)
        if thresholds
        else np.apply_along_axis(spread_thresholds, 0, ours)
    )
    at = at if thresholds else np.moveaxis(at, 0, -1)
    out = []
    for model in models:
        found = estimate(scope, model, lambda rows: _net_benefit(rows, at))
        low, high = found["net_benefit"].band()
        for cell in cells(scope, causes):
            place = cell.pop("place")
            defined = bool(np.isfinite(low[place]).all())
            above = [int(np.sum(ours[:, *place] >= threshold)) for threshold in at[place]]
            out.append(
                {
                    "model": model,
                    **cell,
                    "thresholds": at[place].tolist(),
                    "above": above,
                    "net_benefit": [tables.number(x) for x in found["net_benefit"].value[place]],
                    "low": low[place].tolist() if defined else None,
                    "high": high[place].tolist() if defined else None,
                    "treat_all": [tables.number(x) for x in found["treat_all"].value[place]],
                }
            )
    return out


def _net_benefit(rows: ScoredRows, thresholds: Floats) -> dict[str, Floats]:
    curve = decision_curve(rows, thresholds)
    return {"net_benefit": curve.net_benefit, "treat_all": curve.treat_all}


def spread_thresholds(risk: Floats) -> Floats:
    """Thresholds from near 0 to the 99th percentile of the predicted risk, evenly spaced and readable."""
    top = float(np.clip(np.quantile(risk, 0.99), 0.005, 0.95))
    step = top / THRESHOLDS
    return np.round(np.arange(1, THRESHOLDS + 1) * step, 6)


def cells(scope: Comparison, causes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each cause and horizon: its `place` in the arrays, its names, people, and people with the event by then."""
    events, people = scope.subjects_with_event(), scope.subjects
    for e, cause in enumerate(causes):
        for h, horizon in enumerate(scope.horizons_days):
            yield {
                "place": (e, h),
                "landmark_days": scope.landmark_days,
                "cause": cause,
                "horizon_days": float(horizon),
                "n": people,
                "events": int(events[e, h]),
            }
