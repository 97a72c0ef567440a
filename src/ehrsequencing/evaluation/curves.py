"""Curves with bands of our model and the strongest baseline, and metrics of our model in groups of subjects."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.evaluation import results
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.evaluation.estimates import Estimate, estimate, long_rows, metric_estimates
from ehrsequencing.metrics.accuracy import decision_curve
from ehrsequencing.metrics.bootstrap import calibration_null
from ehrsequencing.metrics.calibration import smooth_calibration
from ehrsequencing.metrics.censoring import RiskSets, aalen_johansen_se
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.registry import METRICS, taken
from ehrsequencing.records.timelines import TaskRecords, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

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
                    "low": [results.number(x) for x in low[e, h][known]],
                    "high": [results.number(x) for x in high[e, h][known]],
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
    undefined = np.isnan(null["ici"]).mean(axis=0) > 0.05
    upper = np.nanquantile(np.where(undefined, 0.0, null["ici"]), 0.95, axis=0)
    return {
        "ici_null": replace(ks, value=np.where(undefined, np.nan, upper)),
        "ks_p": replace(ks, value=share_as_large(null["ks"], ks.value)),
    }


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
                    "net_benefit": [results.number(x) for x in found["net_benefit"].value[place]],
                    "low": low[place].tolist() if defined else None,
                    "high": high[place].tolist() if defined else None,
                    "treat_all": [results.number(x) for x in found["treat_all"].value[place]],
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


MOST_GROUPS = 4


def incidence_rows(
    grid: Comparison, causes: Sequence[str], *, model: str, horizon_days: float
) -> list[dict[str, Any]]:
    """Content of `incidence`: a row for each cause, up to one horizon.

    Args:
        grid: The rows at one landmark, with risks on a grid of times.
        causes: Names.
        model: Whose risks.
        horizon_days: Where the curves end; the risk by then makes the groups.
    """
    days = grid.horizons_days[grid.horizons_days <= horizon_days]
    out = []
    for e, cause in enumerate(causes):
        risk = grid.risk[model][:, e, : len(days)]
        group = risk_groups(
            risk[:, -1], (grid.cause == e + 1) & (grid.duration_days <= horizon_days)
        )
        ticks = tick_days(horizon_days)
        found = [
            _group(grid, risk, group == g, e, days, len(causes), ticks)
            for g in range(int(group.max()) + 1)
        ]
        out.append(
            {
                "landmark_days": grid.landmark_days,
                "cause": cause,
                "horizon_days": float(horizon_days),
                "days": [0.0, *days.tolist()],
                "tick_days": ticks,
                "groups": found,
            }
        )
    return out


def risk_groups(risk: Floats, event: Any) -> Ints:
    """Number of each row's group by predicted risk, from low to high; -1 everywhere where even one group is too small.

    >>> risk_groups(np.arange(100) / 100, np.arange(100) % 2 == 0).max().item()
    3
    >>> risk_groups(np.arange(100) / 100, np.arange(100) > 75).max().item()
    0
    >>> risk_groups(np.ones(3), np.ones(3)).tolist()
    [-1, -1, -1]
    """
    event = np.asarray(event, dtype=bool)
    for count in range(MOST_GROUPS, 0, -1):
        edges = np.quantile(risk, np.arange(1, count) / count, method="inverted_cdf")
        group = np.searchsorted(edges, risk, side="left")
        with_event, size = (
            np.bincount(group[event], minlength=count),
            np.bincount(group, minlength=count),
        )
        if min(*with_event, *(size - with_event)) >= SMALLEST_COUNT:
            return group.astype(np.int64)
    return np.full(len(risk), -1, dtype=np.int64)


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


def _group(
    grid: Comparison,
    risk: Floats,
    inside: Any,
    e: int,
    days: Floats,
    causes: int,
    ticks: Sequence[float],
) -> dict[str, Any]:
    duration, cause = grid.duration_days[inside], grid.cause[inside]
    counts = RiskSets.count(duration, cause, causes, None)
    observed, reached = counts.incidence.at(days)[e], counts.reaches(days)
    spread = 1.96 * aalen_johansen_se(duration, cause, days, n_causes=causes)[e]
    known = [float(value) if ok else None for value, ok in zip(observed, reached, strict=True)]

    def limits(sign: float) -> list[float | None]:
        ends = np.clip(observed + sign * spread, 0, 1)
        return [0.0, *(float(end) if ok else None for end, ok in zip(ends, reached, strict=True))]

    return {
        "n": int(inside.sum()),
        "predicted": [0.0, *risk[inside].mean(axis=0).tolist()],
        "observed": [0.0, *known],
        "low": limits(-1.0),
        "high": limits(1.0),
        "events": [0, *(int(((cause == e + 1) & (duration <= day)).sum()) for day in days)],
        "at_risk": [int((duration >= day).sum()) for day in ticks],
    }


# ---- subgroups ------------------------------------------------------------------------


AGE_EDGES_YEARS = (20, 30, 40, 50, 60, 70, 80, 90)
MOST_LEVELS = 12  # of one family of codes, the most frequent ones
NOT_RECORDED = "not recorded"
SUBGROUP_METRICS = ("oe", "auc", "brier")


def subgroup_rows(
    comparison: Comparison,
    groups: dict[str, NDArray[np.str_]],
    causes: Sequence[str],
    *,
    model: str,
) -> list[dict[str, Any]]:
    """Rows of `subgroups`: size, events, O/E, AUC and Brier score of every level of every group.

    Censoring weights are fitted within the level, so that groups may be followed up for different times.

    Args:
        comparison: The rows.
        groups: Of `groups_of_rows`, for these rows.
        causes: Names.
        model: Whose risks.
    """
    out = []
    for group, level_of in groups.items():
        for level, inside in _levels(level_of):
            part = comparison.among(inside)
            found = metric_estimates(part, model, [METRICS[key] for key in SUBGROUP_METRICS])
            intervals = {name: one.interval() for name, one in found.items()}
            for cell in cells(part, causes):
                place = cell.pop("place")
                values = {
                    name: {
                        "value": results.number(one.value[place]),
                        "low": results.number(intervals[name][0][place]),
                        "high": results.number(intervals[name][1][place]),
                        "reason": one.reason(place),
                    }
                    for name, one in found.items()
                }
                out.append({**cell, "group": group, "level": level, **values})
    return out


def _levels(level_of: NDArray[np.str_]) -> Iterator[tuple[str, Bools]]:
    for level in np.unique(level_of).tolist():
        yield level, level_of == level


def groups_of_rows(
    records: TaskRecords, vocabulary: Vocabulary, *, chosen: Ints, kinds: Sequence[str]
) -> dict[str, NDArray[np.str_]]:
    """What group each row belongs to, by age at the prediction time and by each family of static codes.

    A family is what stands before the last `//` of a code: `GENDER//F` and `GENDER//M` are one. `GENDER` or `SEX` is
    called sex. A code without `//` is a family of its own, with the levels yes and no. A subject with two levels of a
    family counts in the first of them by token. Groups that have one level only are left out.

    Args:
        records: Static codes and prediction times.
        vocabulary: Names of the tokens.
        chosen: (r,) which rows.
        kinds: Of `sex`, `age`, `static`.

    Returns:
        Group → (r,) name of each row's level.
    """
    out: dict[str, NDArray[np.str_]] = {}
    rows = records.rows
    subject = rows.subject[chosen]
    if "age" in kinds:
        out["age"] = age_bands(rows.age_years[chosen])
    for family, level_of in _families(records.timelines, vocabulary):
        kind = "sex" if family.upper().startswith(("GENDER", "SEX")) else "static"
        if kind in kinds:
            out["sex" if kind == "sex" and "sex" not in out else family] = level_of[subject]
    return {group: levels for group, levels in out.items() if len(np.unique(levels)) > 1}


def age_bands(age_years: NDArray[np.floating[Any]]) -> NDArray[np.str_]:
    """Decades of age, as `60-69`; `unknown` where it is.

    >>> age_bands(np.array([19.9, 60.0, 69.99, 95.0, np.nan])).tolist()
    ['0-19', '60-69', '60-69', '90 and over', 'unknown']
    """
    names = [
        "0-19",
        *(f"{low}-{low + 9}" for low in AGE_EDGES_YEARS[:-1]),
        "90 and over",
        "unknown",
    ]
    band = np.searchsorted(AGE_EDGES_YEARS, age_years, side="right")
    return np.array(names)[np.where(np.isnan(age_years), len(names) - 1, band)]


def _families(
    timelines: Timelines, vocabulary: Vocabulary
) -> Iterator[tuple[str, NDArray[np.str_]]]:
    """Each family of static codes, in order of name, with every subject's level."""
    codes, owner = timelines.static_codes, timelines.static_owner
    tokens, counts = np.unique(codes, return_counts=True)
    members: dict[str, list[tuple[int, int]]] = {}
    for token, count in zip(tokens.tolist(), counts.tolist(), strict=True):
        name = vocabulary.tokens[token]
        if token >= vocabulary.n_unknown:  # codes that training did not know are no group
            members.setdefault(name.rpartition("//")[0] or name, []).append((count, token))
    for family in sorted(members):
        kept = sorted(token for _, token in sorted(members[family], reverse=True)[:MOST_LEVELS])
        alone = [vocabulary.tokens[token] for token in kept] == [family]
        level_of = np.full(len(timelines), "no" if alone else NOT_RECORDED, dtype=object)
        for token in reversed(kept):
            level = "yes" if alone else vocabulary.tokens[token].rpartition("//")[2]
            level_of[owner[codes == token]] = level
        yield family, level_of.astype(np.str_)
