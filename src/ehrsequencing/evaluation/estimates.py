"""Metrics with bootstrap intervals and paired differences: rows of a `Comparison` in, long rows of the result out."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.evaluation import results
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.metrics.bootstrap import interval_around, percentile_interval, scaled_interval
from ehrsequencing.metrics.calibration import gap_days, incidence_gap, mean_distance
from ehrsequencing.metrics.censoring import divide
from ehrsequencing.metrics.outcomes import Metric, ScoredRows
from ehrsequencing.metrics.registry import METRICS, in_columns, taken, values
from ehrsequencing.records.attrition import too_few
from ehrsequencing.results.result_types import MetricRow

BIASED = "biased under resampling"  # why a row has no interval
WORK_ELEMENTS = 2**18  # resamples × rows of one work array: what fits the cache
# resamples that share one sorting, unless their rows would fill the memory
FEWEST_TOGETHER = 16
MOST_ELEMENTS = 2**21  # resamples × rows of one work array at most; some fifteen exist at once


@dataclass(frozen=True)
class Estimate:
    """One metric of one model, per cause and horizon."""

    value: Floats  # (causes, horizons)
    samples: Floats  # (resamples, causes, horizons), with no resamples where there are no intervals
    events: Ints  # (causes, horizons) subjects with the event
    subjects: Ints  # (horizons,) subjects evaluated; with too few of them or of events the samples are NaN
    on: str | None = None  # the scale of its interval (`scaled_interval`); None: percentiles

    @cached_property
    def interval(self) -> tuple[Floats, Floats]:
        """Lower and upper limit (95 %) with the value between them, NaN where undefined."""
        if self.on:
            return scaled_interval(self.value, self.samples, self.on)
        return interval_around(self.value, self.samples)

    def band(self) -> tuple[Floats, Floats]:
        """The interval of every point of a curve, widened to the curve where it does not hold it."""
        if not len(self.samples):
            return self.interval
        low, high = percentile_interval(self.samples)
        return np.minimum(low, self.value), np.maximum(high, self.value)

    def of_cause(self, e: int) -> "Estimate":
        """Cause number e alone, (1, horizons)."""
        cause = slice(e, e + 1)
        return replace(
            self, value=self.value[cause], samples=self.samples[:, cause], events=self.events[cause]
        )

    def reason(self, place: tuple[int, int]) -> str | None:
        """Why one value has no interval; None where it has one, or could have none (no resamples, undefined)."""
        if too_few(self.events[place], self.subjects[place[-1]]):
            return TOO_FEW
        if not len(self.samples) or self.on or not np.isnan(self.interval[0][place]):
            return None
        # where resamples give limits, but limits that do not hold the value
        low, _ = percentile_interval(self.samples[:, place[0], place[1]])
        return BIASED if np.isfinite(low) and np.isfinite(self.value[place]) else None

    def minus(self, other: "Estimate") -> "Estimate":
        """The difference; each resample holds the same subjects for both."""
        value, samples = self.value - other.value, self.samples - other.samples
        return replace(self, value=value, samples=samples, on=None)


Estimates = dict[str, dict[str, dict[str, Estimate]]]  # cause → model → metric


def estimate(
    scope: Comparison,
    model: str,
    metrics: Callable[[ScoredRows], dict[str, Floats]],
    *,
    hides_few: bool = True,
) -> dict[str, Estimate]:
    """Values of one model as they are and in every resample, by the same code.

    With too few subjects or events there is no interval (`Comparison.too_few`).

    Args:
        scope: The rows.
        model: Whose risks.
        metrics: Scored rows → name → (..., causes, horizons, ...).
        hides_few: Whether there is no interval where there are too few people.
    """
    point = metrics(scope.scored(model))
    events = scope.subjects_with_event()
    subjects = np.full(len(scope.horizons_days), scope.subjects)
    few = too_few(events, subjects) & hides_few
    samples = {
        name: np.full((len(scope.draws), *value.shape), np.nan) for name, value in point.items()
    }
    done, rows = 0, max(len(scope), 1)
    step = max(1, min(max(FEWEST_TOGETHER, WORK_ELEMENTS // rows), MOST_ELEMENTS // rows))
    for block in () if few.all() else scope.blocks():
        for start in range(0, len(block), step):
            weights = block[start : start + step]
            found = metrics(scope.scored(model, weights=weights, too_few=few))
            for name, values_there in found.items():
                samples[name][done : done + len(weights)] = values_there
            done += len(weights)
    for name, value in point.items() if hides_few else ():  # a mean over time goes by the last day
        samples[name][:, few[:, -value.shape[1] :]] = np.nan
    return {name: Estimate(value, samples[name], events, subjects) for name, value in point.items()}


def metric_estimates(
    scope: Comparison, model: str, metrics: Sequence[Metric]
) -> dict[str, Estimate]:
    """Metrics of one model by their key, each of the rows that it is about (`Comparison.parts`, or every row).

    Those that have no interval are not resampled.
    """
    estimates, scope = dict[str, Estimate](), scope.alone(model)
    by_hazards = scope.by_hazards and model in scope.expected
    for interval, of_every_row in itertools.product((True, False), repeat=2):
        some = [
            metric
            for metric in metrics
            if (metric.interval, metric.of_every_row and by_hazards) == (interval, of_every_row)
        ]
        if some:
            rows = scope if interval else scope.without_resamples()
            parts = [rows] if of_every_row else rows.parts()
            of_parts = [_estimates(part, model, some) for part in parts]
            for metric in some:
                own = [one[metric.key] for one in of_parts]
                # horizons of some rows after those of others
                columns = {
                    name: np.concatenate([getattr(one, name) for one in own], axis=-1)
                    for name in ("value", "samples", "events", "subjects")
                }
                estimates[metric.key] = Estimate(**columns, on=metric.on)
    return {metric.key: estimates[metric.key] for metric in metrics}


def _estimates(part: Comparison, model: str, metrics: Sequence[Metric]) -> dict[str, Estimate]:
    """Metrics of rows that count at every horizon; undefined where nobody is left."""
    if len(part):
        return estimate(part, model, partial(values, metrics=metrics))
    shape = part.risk[model].shape[1:]
    nothing = Estimate(
        np.full(shape, np.nan),
        np.full((len(part.draws), *shape), np.nan),
        np.zeros(shape, dtype=np.int64),
        np.zeros(shape[1], dtype=np.int64),
    )
    return {metric.key: nothing for metric in metrics}


def scope_estimates(
    scope: Comparison, causes: Sequence[str], *, progress: Callable[[str], None] = lambda _: None
) -> Estimates:
    """Every model's metrics per cause: cause name → model → metric → estimate, (1, horizons) each.

    Args:
        scope: The rows.
        causes: Names.
        progress: Called with a line before each model's metrics.
    """
    out: Estimates = {name: {} for name in causes}
    for place, model in enumerate(scope.risk, start=1):
        progress(f"intervals {scope.where}, model {place} of {len(scope.risk)}")
        for name, of_causes in metric_estimates(
            scope, model, taken("everywhere", "causes")
        ).items():
            for e, cause in enumerate(causes):
                out[cause].setdefault(model, {})[name] = of_causes.of_cause(e)
    return out


def metric_rows(scope: Comparison, estimates: Estimates) -> list[MetricRow[int]]:
    """Long rows of `metrics`: model by model."""
    models = list(next(iter(estimates.values())))
    return [
        row
        for model in models
        for cause, of_cause in estimates.items()
        for name, one in of_cause[model].items()
        for row in long_rows(scope, one, model=model, cause=cause, metric=name)
    ]


def hazards_rows(scope: Comparison, causes: Sequence[str]) -> list[MetricRow[int]]:
    """O/E by hazards of the models that have them, where other models of the table have none and it stands apart."""
    rows: list[MetricRow[int]] = []
    if scope.by_hazards:
        return rows
    own = replace(scope, by_hazards=True)
    for model in scope.expected:
        ratio = metric_estimates(own, model, [METRICS["oe"]])["oe"]
        for e, cause in enumerate(causes):
            one = ratio.of_cause(e)
            rows += long_rows(own, one, model=model, cause=cause, metric="oe_hazards")
    return rows


def difference_rows(
    scope: Comparison,
    estimates: Estimates,
    *,
    ours: str,
    rivals: Iterable[str],
) -> list[MetricRow[int]]:
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
        for cause, of_cause in estimates.items()
        for name in (metric.key for metric in in_columns(taken("everywhere")) if metric.compared)
        for row in long_rows(
            scope,
            of_cause[ours][name].minus(of_cause[rival][name]),
            model=rival,
            cause=cause,
            metric=name,
        )
    ]


def long_rows(
    scope: Comparison, one: Estimate, *, model: str, cause: str, metric: str
) -> list[MetricRow[int]]:
    """One estimate (1, horizons) as long rows."""
    low, high = one.interval
    return [
        results.metric_row(
            model,
            scope.landmark_days,
            metric,
            one.value[0, h],
            cause=cause,
            horizon_days=horizon,
            low=low[0, h],
            high=high[0, h],
            subjects=one.subjects[h],
            events=one.events[0, h],
            reason=one.reason((0, h)),
        )
        for h, horizon in enumerate(scope.horizons_days)
    ]


def over_time_rows(
    grid: Comparison, causes: Sequence[str], horizons_days: Floats, *, fine: Comparison
) -> list[MetricRow[int]]:
    """Metrics over time up to each horizon: integrated Brier score of every model, AJ error of the strongest.

    Only landmarks have intervals.

    The AJ error comes with what right risks would show, `aj_null`: the 95th percentile of the error of the resampled
    gaps about the gap itself.

    Args:
        grid: The scope with risks on a time grid that has every horizon.
        causes: Names.
        horizons_days: Where each average over time ends.
        fine: The same rows with the risks of ours and of the strongest baseline on every day on which they are known.
    """
    if grid.landmark_days is None:  # too much for what it says
        grid, fine = grid.without_resamples(), fine.without_resamples()
    out: list[MetricRow[int]] = []
    plain = [metric for metric in taken("over time") if metric.interval]

    def integrals(rows: ScoredRows) -> dict[str, Floats]:
        return {key: value[..., None] for key, value in values(rows, plain).items()}

    def gaps(rows: ScoredRows) -> dict[str, Floats]:
        return {"gap": incidence_gap(rows)}

    for horizon in horizons_days:
        inside = grid.followed(horizon)
        for model in grid.risk if inside.any() else ():
            part = grid.alone(model).until(horizon).among(inside)
            # an integral needs two times
            whole = estimate(part, model, integrals) if len(part.horizons_days) > 1 else {}
            estimates = {
                key: replace(one, events=one.events[:, -1:], subjects=one.subjects[-1:])
                for key, one in whole.items()
            }
            if model in fine.risk:
                on_knots = fine.alone(model).until(horizon).among(inside)
                gap = estimate(on_knots, model, gaps, hides_few=False)["gap"]
                days, events = gap_days(on_knots.scored(model)), gap.events[:, -1:]
                error = mean_distance(gap.value, days)[:, None]
                nothing = np.zeros((0, *error.shape))
                own = Estimate(error, nothing, events, gap.subjects[-1:])
                estimates["aj"] = own
                if len(gap.samples):  # what it would be by chance
                    apart = mean_distance(gap.samples - gap.value, days)
                    undefined = np.isnan(apart).mean(axis=0) > 0.05
                    chance = np.nanquantile(np.where(undefined, 0.0, apart), 0.95, axis=0)
                    chance = np.where(undefined, np.nan, chance)
                    estimates["aj_null"] = replace(own, value=chance[:, None])
            at_end = replace(part, horizons_days=part.horizons_days[-1:])
            for name, one in estimates.items():
                for e, cause in enumerate(causes):
                    out += long_rows(at_end, one.of_cause(e), model=model, cause=cause, metric=name)
    return out


def nll_row(scope: Comparison, nll: Floats, *, model: str, cause: str) -> MetricRow[int]:
    """The mean negative log-likelihood of the rows that have one, with its interval; or that of a paired difference.

    Args:
        scope: The rows.
        nll: (n,), NaN where a row has none; or ours minus a baseline's, row by row.
        model: Whose.
        cause: The cause in the row; the likelihood is that of all causes.
    """
    known = ~np.isnan(nll)
    part, value = scope.among(known), nll[known].mean() if known.any() else np.nan
    events = len(np.unique(part.subject[part.cause > 0]))
    samples = [divide(weights @ nll[known], weights.sum(axis=1)) for weights in part.blocks()]
    low, high = interval_around(value, np.concatenate(samples) if samples else ())
    return results.metric_row(
        model,
        scope.landmark_days,
        "nll",
        value,
        cause=cause,
        low=low,
        high=high,
        subjects=part.subjects,
        events=events,
    )
