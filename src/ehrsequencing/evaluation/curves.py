"""Curves with bands of our model and the strongest baseline: calibration, decisions, incidence by risk group."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import enough_people
from ehrsequencing.evaluation import results
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.evaluation.estimates import estimate, long_rows, metric_estimates
from ehrsequencing.metrics.accuracy import decision_curve
from ehrsequencing.metrics.bootstrap import calibration_null
from ehrsequencing.metrics.calibration import quantile_groups, smooth_calibration
from ehrsequencing.metrics.censoring import RiskSets, SubjectClock, divide
from ehrsequencing.metrics.hazards import event_bin, expected_events
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.registry import taken
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.results.result_types import MetricRow, PlaceRow

BARS = 10  # of a histogram of predicted risks
POINTS = 40  # of a smooth calibration curve
THRESHOLDS = 30  # of a decision curve, unless the settings name them
OPERATING = (
    "flagged",
    "sensitivity",
    "ppv",
)  # what a decision row tells of each threshold, with limits
OPERATING_COLUMNS = [f"{name}{end}" for name in OPERATING for end in ("", "_low", "_high")]
SIMULATIONS = 200  # of right risks, for what ICI and KS would be by chance


def smooth_rows(
    scope: Comparison, causes: Sequence[str], *, models: Sequence[str], seed: int
) -> tuple[list[PlaceRow], list[MetricRow[int]]]:
    """Smooth calibration curves, and the long rows of the metrics that only the strongest models have (ICI, KS …).

    Where each subject has one row, ICI and KS come with what right risks would show in as many subjects:
    `ici_null` is the 95th percentile of their ICI, `ks_p` the share of them with a KS statistic as large.

    Args:
        scope: The rows, each of which could be followed until every horizon.
        causes: Names.
        models: Which models.
        seed: Of the simulations under right risks.

    Returns:
        Rows of `smooth_calibration`, and rows of `metrics`.
    """
    curves: list[PlaceRow] = []
    metrics: list[MetricRow[int]] = []
    for model in models:
        predicted = smooth_calibration(scope.scored(model), points=POINTS)["predicted"]
        observed = estimate(
            scope,
            model,
            lambda rows: {"observed": smooth_calibration(rows, points=POINTS)["observed"]},
        )["observed"]
        low, high = observed.band()
        for (e, h), cell in cells(scope, causes):
            known = np.isfinite(observed.value[e, h])
            # bins of one width; the outer ones have the outer percents, too
            risk = scope.risk[model][:, e, h]
            low_risk, high_risk = np.quantile(risk, [0.01, 0.99])
            edges = np.linspace(low_risk, high_risk, BARS + 1)
            counts = np.histogram(np.clip(risk, edges[0], edges[-1]), edges)[0]
            shares = (counts / len(risk)).tolist()
            histogram = {"edges": edges.tolist(), "shares": shares, "n": counts.tolist()}
            curves.append(
                {
                    "model": model,
                    **cell,
                    "predicted": predicted[e, h][known].tolist(),
                    "observed": observed.value[e, h][known].tolist(),
                    "histogram": histogram,
                    "low": [results.number(x) for x in low[e, h][known]],
                    "high": [results.number(x) for x in high[e, h][known]],
                }
            )
        named = metric_estimates(scope, model, taken("strongest"))
        by_history = isinstance(scope.censoring, SubjectClock) and scope.censoring.is_by_history
        # the simulation draws each row anew, and lets nobody leave for a reason
        if scope.subjects == len(scope) and not by_history:
            # what ICI and KS would be if every risk were right
            rows, ks = scope.scored(model, too_few=scope.too_few()), named["ks"]
            null = calibration_null(rows, n_simulations=SIMULATIONS, seed=seed)
            undefined = np.isnan(null["ici"]).mean(axis=0) > 0.05
            upper = np.nanquantile(np.where(undefined, 0.0, null["ici"]), 0.95, axis=0)
            named["ici_null"] = replace(ks, value=np.where(undefined, np.nan, upper))
            # one-sided: (1 + simulations as large as the value) / (1 + simulations)
            defined = ~np.isnan(null["ks"])
            count = (defined & (null["ks"] >= ks.value)).sum(axis=0)
            p = (1.0 + count) / (1.0 + defined.sum(axis=0))
            is_known = ~np.isnan(ks.value) & defined.any(axis=0)
            named["ks_p"] = replace(ks, value=np.where(is_known, p, np.nan))
        for metric, one in named.items():
            for e, cause in enumerate(causes):
                metrics += long_rows(
                    scope, one.of_cause(e), model=model, cause=cause, metric=metric
                )
    return curves, metrics


def decision_rows(
    scope: Comparison, causes: Sequence[str], *, models: Sequence[str], thresholds: Sequence[float]
) -> list[PlaceRow]:
    """Net benefit with its band, beside acting on everyone; acting on nobody is 0.

    Args:
        scope: The rows.
        causes: Names.
        models: Which models.
        thresholds: Risks from which one would act; none: spread over each cell's predicted risks, the same for all.
    """
    ours = scope.risk[models[0]]
    at: Floats = np.broadcast_to(thresholds, (*ours.shape[1:], len(thresholds)))
    if not thresholds:  # from near 0 to the 99th percentile of the predicted risk, and readable
        top = np.clip(np.quantile(ours, 0.99, axis=0), 0.005, 0.95).astype(np.float64)
        at = np.round(np.arange(1, THRESHOLDS + 1) * (top / THRESHOLDS)[..., None], 6)
    out: list[PlaceRow] = []
    for model in models:
        estimates = estimate(scope, model, partial(decision_curve, thresholds=at))
        low, high = estimates["net_benefit"].band()
        # the share above by its logit, the others by percentiles (docs/metrics.md)
        share_above = replace(estimates["flagged"], on="logit")
        shares = [share_above, *(estimates[name] for name in OPERATING[1:])]
        # where no resample differs (all of few people had the event) there is no interval, and no certainty
        ends = [np.where(np.ptp(one.interval, axis=0) > 0, one.interval, np.nan) for one in shares]
        limits = [part for one, end in zip(shares, ends, strict=True) for part in (one.value, *end)]
        for place, cell in cells(scope, causes):
            defined = bool(np.isfinite(low[place]).all())
            risk, (e, h) = scope.risk[model][:, *place], place
            had = (scope.cause == e + 1) & (scope.duration_days <= scope.horizons_days[h])
            flagged = [risk >= threshold for threshold in at[place]]
            row: PlaceRow = {
                "model": model,
                **cell,
                "thresholds": at[place].tolist(),
                "above": [people(scope.subject, some) for some in flagged],
                "events_above": [people(scope.subject, some & had) for some in flagged],
                "net_benefit": [results.number(x) for x in estimates["net_benefit"].value[place]],
                "low": low[place].tolist() if defined else None,
                "high": high[place].tolist() if defined else None,
                "treat_all": [results.number(x) for x in estimates["treat_all"].value[place]],
            }
            operating = {
                name: [*map(results.number, part[place])]
                for name, part in zip(OPERATING_COLUMNS, limits, strict=True)
            }
            out.append({**row, **operating})
    return out


def ratio_rows(
    risk: Floats, knots_days: Floats, rows: TaskRows, *, ends_days: Floats, start_days: float
) -> list[dict[str, Any]]:
    """Content of `ratios`: events of the first cause over those that the hazards expect, by time and by tenth of risk.

    Expected are they under observation (`expected_events`), so that each cell is near 1 if the hazards are right;
    a cell has 11 people with the event and 11 without it.

    Args:
        risk: (R, E, K) cumulative incidence by each knot.
        knots_days: (K,).
        rows: The prediction times.
        ends_days: (T,) where each part of the future ends; the last end is the last knot.
        start_days: End of the blanking period.
    """
    by_end = expected_events(
        risk,
        knots_days,
        duration_days=rows.duration_days,
        horizons_days=ends_days,
        start_days=start_days,
    )
    expected = np.diff(by_end[:, 0], prepend=0.0)
    part, tenth = (
        event_bin(ends_days.tolist(), rows.duration_days),
        quantile_groups(risk[:, 0, -1], 10),
    )
    begins_days = np.r_[start_days, ends_days[:-1]]
    out: list[dict[str, Any]] = []
    for t, number in itertools.product(range(len(ends_days)), np.unique(tenth).tolist()):
        inside = tenth == number
        had = inside & (rows.cause == 1) & (part == t)
        n = people(rows.subject, inside & (rows.duration_days > begins_days[t]))
        events = people(rows.subject, had)
        ratio = results.number(divide(had.sum(), expected[inside, t].sum()))
        out.append(
            {
                "from_days": float(begins_days[t]),
                "until_days": float(ends_days[t]),
                "tenth": number + 1.0,  # no integer, which would be a count
                "n": n,
                "events": events,
                "oe": ratio if enough_people(events, n) else None,
            }
        )
    return out


def cells(scope: Comparison, causes: Sequence[str]) -> Iterator[tuple[tuple[int, int], PlaceRow]]:
    """Each cause and horizon with enough people: its place in the arrays, names, people, and those with the event."""
    events, subjects, few = scope.subjects_with_event(), scope.subjects, scope.too_few()
    for e, cause in enumerate(causes):
        for h, horizon in enumerate(scope.horizons_days):
            if few[e, h]:
                continue
            yield (
                (e, h),
                {
                    "landmark_days": scope.landmark_days,
                    "cause": cause,
                    "horizon_days": float(horizon),
                    "n": subjects,
                    "events": int(events[e, h]),
                },
            )


MOST_GROUPS = 4


def incidence_rows(
    grid: Comparison, causes: Sequence[str], *, model: str, horizon_days: float
) -> list[PlaceRow]:
    """Content of `incidence`: a row for each cause, up to one horizon.

    Args:
        grid: The rows at one landmark, with risks on a grid of times.
        causes: Names.
        model: Whose risks.
        horizon_days: Where the curves end; the risk by then makes the groups of those who could be followed so long.
    """
    part = grid.among(grid.followed(horizon_days)).until(horizon_days)
    ticks = tick_days(horizon_days)
    out: list[PlaceRow] = []
    for e, cause in enumerate(causes):
        event = (part.cause == e + 1) & (part.duration_days <= horizon_days)
        group = risk_groups(part.risk[model][:, e, -1], event, part.subject)
        groups = [
            _group(part.among(group == g), model, e, ticks)
            for g in range(int(group.max(initial=-1)) + 1)
        ]
        out.append(
            {
                "landmark_days": part.landmark_days,
                "cause": cause,
                "horizon_days": float(horizon_days),
                "days": [0.0, *part.horizons_days.tolist()],
                "tick_days": ticks,
                "groups": groups,
            }
        )
    return out


def risk_groups(risk: Floats, event: Bools, subject: Ints) -> Ints:
    """Number of each row's group by predicted risk, from low to high; -1 everywhere where even one group is too small.

    A group has 11 people with the event and 11 without it. Where groups of one size would have fewer, they have the
    same number of events instead.

    >>> risk_groups(np.arange(100) / 100, np.arange(100) % 2 == 0, np.arange(100)).max().item()
    3
    >>> risk_groups(np.arange(100) / 100, np.arange(100) > 75, np.arange(100)).max().item()
    0
    >>> risk_groups(np.arange(100) / 100, np.arange(100) % 2 == 0, np.arange(100) // 10).max().item()
    -1
    """
    for count in range(MOST_GROUPS, 0, -1):
        for of in (risk, risk[event] if event.any() else risk):
            edges = np.quantile(of, np.arange(1, count) / count, method="inverted_cdf")
            group = np.searchsorted(edges, risk, side="left").astype(np.int64)
            enough = [
                enough_people(people(subject, (group == g) & event), people(subject, group == g))
                for g in range(count)
            ]
            if all(enough):
                return group
    return np.full(len(risk), -1, dtype=np.int64)


def people(subject: Ints, inside: Bools) -> int:
    """How many people some rows are of."""
    return len(np.unique(subject[inside]))


def tick_days(horizon_days: float) -> list[float]:
    """Round times from 0 to a horizon, at which the numbers at risk are told.

    >>> tick_days(30.0), tick_days(1826.25)
    ([0.0, 10.0, 20.0, 30.0], [0.0, 365.25, 730.5, 1095.75, 1461.0, 1826.25])
    """
    per = DAYS_PER_YEAR if horizon_days >= 2 * DAYS_PER_YEAR else 1.0
    whole = (
        parts for parts in (5, 4, 3, 6) if horizon_days / per / parts % (1 if per > 1 else 5) == 0
    )
    parts = next(whole, 4)
    return [horizon_days * k / parts for k in range(parts + 1)]


def _group(part: Comparison, model: str, e: int, ticks: Sequence[float]) -> dict[str, Any]:
    """A risk group or everyone: mean predicted and observed incidence, its band over people, who is left."""
    days = part.horizons_days
    observed = estimate(part, model, partial(_incidence, e=e), hides_few=False)["observed"]
    low, high = observed.band()
    counts = RiskSets.count(part.duration_days, part.cause, part.risk[model].shape[1], None)
    reached = counts.reaches(days)

    def shown(values: Floats) -> list[float | None]:
        pairs = zip(values, reached, strict=True)
        return [0.0, *(results.number(value) if ok else None for value, ok in pairs)]

    had = part.cause == e + 1
    return {
        "n": part.subjects,
        "predicted": [0.0, *part.risk[model][:, e].mean(axis=0).tolist()],
        "observed": shown(observed.value[0]),
        "low": shown(low[0]),
        "high": shown(high[0]),
        "events": [
            0,
            *(people(part.subject, had & (part.duration_days <= day)) for day in days),
        ],
        "at_risk": [people(part.subject, part.duration_days >= day) for day in ticks],
    }


def _incidence(rows: ScoredRows, *, e: int) -> dict[str, Floats]:
    incidence = np.atleast_3d(rows.counts.incidence.at(rows.horizons_days))[:, e : e + 1]
    return {"observed": rows.finish(incidence)}
