"""The long table of metrics with its intervals, and the paired differences between models."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ehrsequencing.evaluation import tables
from ehrsequencing.evaluation.bootstrap import percentile_interval
from ehrsequencing.evaluation.calibration import calibration_intercept_slope
from ehrsequencing.evaluation.censoring import Floats, divide
from ehrsequencing.evaluation.metrics import integrated_brier, table_of_rows
from ehrsequencing.evaluation.scope import Scope
from ehrsequencing.evaluation.scored import ScoredRows

ANY_CAUSE = "any cause"
SHORT = {"wolbers_c": "c", "auc": "auc", "brier": "brier", "ipa": "ipa", "observed_over_expected": "oe"}
COMPARED = ("c", "auc", "ipa", "brier")  # of the differences
WORK_ELEMENTS = 2**18  # resamples × rows of one work array: what fits the cache
FEWEST_TOGETHER = 16  # resamples that share one sorting, however many rows there are


@dataclass(frozen=True)
class Estimate:
    """One metric of one model, per cause and horizon.

    Attributes:
        value: (causes, horizons).
        samples: (resamples, causes, horizons), with no resamples where there are no intervals.
    """

    value: Floats
    samples: Floats

    def interval(self) -> tuple[Floats, Floats]:
        """Lower and upper limit (95 %), NaN where undefined."""
        if not len(self.samples):
            undefined = np.full_like(self.value, np.nan)
            return undefined, undefined
        return percentile_interval(self.samples)

    def minus(self, other: "Estimate") -> "Estimate":
        """The difference; each resample holds the same subjects for both."""
        return Estimate(self.value - other.value, self.samples - other.samples)


Metrics = Callable[[ScoredRows], dict[str, Floats]]


def estimate(scope: Scope, model: str, metrics: Metrics) -> dict[str, Estimate]:
    """Metrics of one model as they are and in every resample, by the same code.

    Without an event there is no interval: all resamples would agree on nothing.

    Args:
        scope: The rows.
        model: Whose risks.
        metrics: Scored rows → name → (..., causes, horizons).
    """
    point = metrics(scope.scored(model))
    found = [metrics(scope.scored(model, weights=weights)) for weights in _work_blocks(scope)]
    none = {name: np.zeros((0, *value.shape)) for name, value in point.items()}
    samples = {name: np.concatenate([none[name], *(block[name] for block in found)]) for name in point}
    empty = scope.events() == 0
    for values in samples.values():
        if values.shape[1:3] == empty.shape:
            values[:, empty] = np.nan
    return {name: Estimate(value, samples[name]) for name, value in point.items()}


def _work_blocks(scope: Scope) -> Iterator[Any]:
    step = max(FEWEST_TOGETHER, WORK_ELEMENTS // max(len(scope), 1))
    for block in scope.blocks():
        for start in range(0, len(block), step):
            yield block[start : start + step]


def main_metrics(rows: ScoredRows) -> dict[str, Floats]:
    """C, AUC, Brier, IPA and O/E under their short names."""
    table = table_of_rows(rows)
    return {short: table[name] for name, short in SHORT.items()}


def cause_metrics(rows: ScoredRows) -> dict[str, Floats]:
    """The main metrics, and calibration intercept and slope."""
    intercept, slope = calibration_intercept_slope(rows)
    return main_metrics(rows) | {"intercept": intercept, "slope": slope}


def scope_estimates(scope: Scope, causes: Sequence[str]) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Every model's metrics per cause, and of all causes as one where there are several.

    Returns:
        Cause name (`ANY_CAUSE` the last) → model → metric → estimate, (1, horizons) each.
    """
    out: dict[str, dict[str, dict[str, Estimate]]] = {name: {} for name in causes}
    for model in scope.risk:
        for name, found in estimate(scope, model, cause_metrics).items():
            for e, cause in enumerate(causes):
                own = Estimate(found.value[e : e + 1], found.samples[:, e : e + 1])
                out[cause].setdefault(model, {})[name] = own
    if len(causes) > 1:
        together = scope.all_cause()
        out[ANY_CAUSE] = {model: estimate(together, model, main_metrics) for model in scope.risk}
    return out


def metric_rows(scope: Scope, estimates: dict[str, dict[str, dict[str, Estimate]]]) -> list[dict[str, Any]]:
    """Long rows of `metrics`: model by model."""
    models = list(next(iter(estimates.values())))
    return [
        row
        for model in models
        for cause, found in estimates.items()
        for name, one in found[model].items()
        for row in long_rows(scope, one, model=model, cause=cause, metric=name)
    ]


def difference_rows(
    scope: Scope, estimates: dict[str, dict[str, dict[str, Estimate]]], *, ours: str, rivals: Iterable[str]
) -> list[dict[str, Any]]:
    """Long rows of `differences`: our model minus each rival, on the same resamples of subjects.

    Args:
        scope: The rows.
        estimates: Of `scope_estimates`.
        ours: Name of our model.
        rivals: Names of the baselines.
    """
    return [
        row
        for rival in rivals
        for cause, found in estimates.items()
        for name in COMPARED
        for row in long_rows(scope, found[ours][name].minus(found[rival][name]), model=rival, cause=cause, metric=name)
    ]


def long_rows(scope: Scope, one: Estimate, *, model: str, cause: str, metric: str) -> list[dict[str, Any]]:
    """One estimate (1, horizons) as long rows."""
    low, high = one.interval()
    return [
        tables.metric_row(
            model, scope.landmark_days, metric, one.value[0, h], cause=cause, horizon_days=horizon, low=low[0, h],
            high=high[0, h],
        )
        for h, horizon in enumerate(scope.horizons_days)
    ]  # fmt: skip


def integrated_brier_rows(grid: Scope, causes: Sequence[str]) -> list[dict[str, Any]]:
    """Integrated Brier score of every model, with an interval at landmarks.

    Args:
        grid: The scope with risks on a time grid, not at the horizons.
        causes: Names.
    """
    if grid.landmark_days is None:  # a grid of times at all prediction times: too much for what it says
        grid = grid.without_resamples()
    out = []
    for model in grid.risk:
        found = estimate(grid, model, lambda rows: {"ibs": integrated_brier(rows)})["ibs"]
        low, high = found.interval()
        out += [
            tables.metric_row(
                model, grid.landmark_days, "ibs", found.value[e], cause=cause, low=low[e], high=high[e]
            )
            for e, cause in enumerate(causes)
        ]  # fmt: skip
    return out


def nll_row(scope: Scope, nll: Floats, *, model: str, cause: str) -> dict[str, Any]:
    """The mean negative log-likelihood of the rows that have one, with its interval; or that of a paired difference.

    Args:
        scope: The rows.
        nll: (n,), NaN where a row has none; or ours minus a rival's, row by row.
        model: Whose.
        cause: Under whose name it stands; it speaks of all causes.
    """
    known = ~np.isnan(nll)
    part = scope.among(known)
    samples = [divide(weights @ nll[known], weights.sum(axis=1)) for weights in part.blocks()]
    low, high = percentile_interval(np.concatenate(samples)) if samples else (np.nan, np.nan)
    return tables.metric_row(
        model, scope.landmark_days, "nll", nll[known].mean() if known.any() else np.nan, cause=cause, low=low, high=high
    )
