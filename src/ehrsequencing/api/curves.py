"""Curves of an evaluation, ready to draw. Of real people nothing is given that would show fewer than 11 of them.

The exact result and the outcomes of the population go in. Of a simulation, everything comes out as it is. Of real
people the rules are those of the report: groups are joined until each has 11 subjects with the event and 11 without, a
curve has a point only where another 11 had the event, and numbers at risk are rounded to tens. Where the report hides a
count, risks are rounded to a 25th of their range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.minimum_counts import SMALLEST_COUNT
from ehrsequencing.disclosure.small_counts import pool_groups
from ehrsequencing.metrics.censoring import RiskSets, aalen_johansen_se

_FINE, _COARSE = 200, 24  # points of a curve: of a simulation, and of real people
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class CalibrationCurve:
    """Observed against predicted risk of one model."""

    model: str
    predicted: Floats  # (points,)
    observed: Floats  # (points,) smoothed
    low: Floats | None
    high: Floats | None
    # predicted, observed, low, high of groups of subjects
    groups: list[tuple[float, float, float, float]]


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit of one model over the risk from which one acts."""

    model: str
    threshold: Floats
    net_benefit: Floats
    low: Floats | None
    high: Floats | None
    treat_all: Floats


@dataclass(frozen=True)
class Group:
    """One risk group: its curves, and how many are at risk at each tick."""

    name: str
    days: Floats  # of the observed curve
    observed: Floats
    low: Floats | None
    high: Floats | None
    predicted: Floats
    at_risk: list[str]


@dataclass(frozen=True)
class Incidence:
    """Observed and predicted cumulative incidence by group of predicted risk, lowest first."""

    days: Floats  # of the predicted curves
    stepwise: bool  # whether the observed curves jump; else they go straight from point to point
    groups: list[Group]
    at_risk_days: list[float]
    title_at_risk: str


def at_place(
    rows: Sequence[Row], *, landmark: float | None, cause: str, horizon: float
) -> list[Row]:
    """The rows of one landmark, cause and horizon."""
    place = (landmark, cause, horizon)
    return [
        row for row in rows if (row["landmark_days"], row["cause"], row["horizon_days"]) == place
    ]


def calibration_curves(
    groups: Sequence[Row], smooth: Sequence[Row], *, simulated: bool, rough: bool = False
) -> list[CalibrationCurve]:
    """Calibration at one place, ours first; of real people models with fewer than 11 events or non-events are left out.

    Args:
        groups: Rows of `calibration`.
        smooth: Rows of `smooth_calibration`.
        simulated: Whether nobody has to be protected.
        rough: Whether a count is hidden, so that risks are rounded.
    """
    curves = []
    by_model = {row["model"]: row for row in smooth}
    for row in groups:
        near: Any = np.asarray
        if simulated:
            points = [*zip(row["predicted"], row["observed"], row["low"], row["high"], strict=True)]
        else:
            pooled = pool_groups(row)
            if not pooled:
                continue
            if rough:
                near = rounder(max(p.observed if p.high is None else p.high for p in pooled))
            limits = [
                (p.observed if p.low is None else p.low, p.observed if p.high is None else p.high)
                for p in pooled
            ]
            points = [
                (
                    float(near(p.predicted)),
                    float(near(p.observed)),
                    float(near(low)),
                    float(near(high)),
                )
                for p, (low, high) in zip(pooled, limits, strict=True)
            ]
        own = by_model.get(row["model"], {"predicted": [], "observed": [], "low": [], "high": []})
        low, high = (near(_numbers(own[name])) for name in ("low", "high"))
        banded = len(low) == len(own["predicted"]) and bool(
            np.isfinite(low).all() and np.isfinite(high).all()
        )
        curves.append(
            CalibrationCurve(
                row["model"],
                _numbers(own["predicted"]),
                near(_numbers(own["observed"])),
                low if banded else None,
                high if banded else None,
                points,
            )
        )
    return curves


def decision_curves(
    rows: Sequence[Row], risks: Sequence[Row], *, simulated: bool
) -> list[DecisionCurve]:
    """Decision curves at one place, ours first.

    Of real people, net benefit is rounded to five people, the curve ends where fewer than 11 people have a higher risk,
    and there is none with fewer than 11 events or non-events.
    """
    curves = []
    for row in rows:
        at, columns = _numbers(row["thresholds"]), {}
        for name in ("net_benefit", "low", "high", "treat_all"):
            columns[name] = None if row.get(name) is None else _numbers(row[name])
        if not simulated:
            if min(row["events"], row["n"] - row["events"]) < SMALLEST_COUNT:
                continue
            step, kept = 5.0 / row["n"], at <= _highest(risks)
            columns = {
                name: None if c is None else np.round(c[kept] / step) * step
                for name, c in columns.items()
            }
            at = at[kept]
        if len(at) > 1:
            net, everyone = columns["net_benefit"], columns["treat_all"]
            assert net is not None
            assert everyone is not None
            curves.append(
                DecisionCurve(row["model"], at, net, columns["low"], columns["high"], everyone)
            )
    return curves


def _highest(risks: Sequence[Row]) -> float:
    """The highest risk that at least 11 people exceed, by the histogram of the same place."""
    highest = 0.0
    for shape in risks[:1]:
        people = np.sum([shape[name] for name in ("event", "no_event", "unknown")], axis=0)
        above = np.flatnonzero(np.cumsum(people[::-1])[::-1] >= SMALLEST_COUNT)
        highest = float(shape["edges"][above[-1]]) if len(above) else 0.0
    return highest


def grid(horizon_days: float, *, simulated: bool, start_days: float = 0.0) -> Floats:
    """Days at which a curve up to a horizon is drawn, 0 first."""
    points = np.linspace(start_days, horizon_days, (_FINE if simulated else _COARSE) + 1)
    return np.concatenate([[0.0], points[1:]])


def incidence(
    duration_days: Floats,
    cause: Ints,
    risk: Floats,
    days: Floats,
    *,
    of: int,
    groups: int,
    horizon_days: float,
    simulated: bool,
    rough: bool = False,
) -> Incidence:
    """Observed and predicted incidence by groups of equal size of the risk by the horizon.

    Args:
        duration_days: (n,) days to event or censoring.
        cause: (n,) 0 = censored.
        risk: (n, causes, D) predicted cumulative incidence by `days`.
        days: (D,) the grid, 0 first; its last is the horizon.
        of: The cause of interest, from 1.
        groups: How many groups are wanted.
        horizon_days: The horizon.
        simulated: Whether nobody has to be protected.
        rough: Whether a count is hidden, so that observed risks are rounded.
    """
    own = risk[:, of - 1, :]
    event = (cause == of) & (duration_days <= horizon_days)
    chosen = _groups(own[:, -1], event, groups, smallest=1 if simulated else SMALLEST_COUNT)
    ticks = np.linspace(0.0, horizon_days, 5)
    found = []
    for number, inside in enumerate(chosen, start=1):
        sets = RiskSets.count(duration_days[inside], cause[inside], risk.shape[1], None)
        observed = sets.incidence.at(days)[of - 1]
        error = (
            1.96
            * aalen_johansen_se(duration_days[inside], cause[inside], days, n_causes=risk.shape[1])[
                of - 1
            ]
        )
        kept = np.flatnonzero(sets.reaches(days))
        if not simulated:
            had = duration_days[inside][cause[inside] == of]
            kept = _kept(kept, np.array([(had <= day).sum() for day in days]))
        near: Any = (
            rounder(float((observed + error)[kept].max(initial=0.0))) if rough else np.asarray
        )
        at_risk = [int((duration_days[inside] >= tick).sum()) for tick in ticks]
        found.append(
            Group(
                _name(number, len(chosen)),
                days[kept],
                near(observed[kept]),
                near(np.clip(observed - error, 0, 1)[kept]),
                near(np.clip(observed + error, 0, 1)[kept]),
                own[inside].mean(axis=0),
                [str(count) if simulated else _tens(count) for count in at_risk],
            )
        )
    title = "number at risk" if simulated else "number at risk, rounded to tens"
    return Incidence(days, simulated, found, ticks.tolist(), title)


def _kept(known: Ints, events: Ints) -> Ints:
    """Points of a curve between which 11 had the event; the last known point ends it.

    >>> _kept(np.arange(5), np.array([0, 5, 12, 20, 25])).tolist()
    [0, 2, 4]
    """
    kept = known[:1].tolist()
    for k in known[1:].tolist():
        if events[k] - events[kept[-1]] >= SMALLEST_COUNT:
            kept.append(k)
    if len(known) and kept[-1] != known[-1]:  # fewer than 11 are left over for the last stretch
        kept = [*(kept[:-1] if len(kept) > 1 else kept), int(known[-1])]
    return np.array(kept, dtype=np.int64)


def _groups(risk: Floats, event: Bools, wanted: int, *, smallest: int) -> list[Ints]:
    """Rows by rising risk in groups of about equal size; fewer groups where one would be too small, or none at all.

    A group needs so many rows with the event and so many without; of a simulation one row is enough.
    """
    order = np.argsort(risk, kind="stable")
    for number in range(min(wanted, len(order)), 0, -1):
        parts = np.array_split(order, number)
        if smallest <= 1 or all(min(event[p].sum(), (~event[p]).sum()) >= smallest for p in parts):
            return parts
    return []


def _name(number: int, groups: int) -> str:
    if groups == 1:
        return "all"
    if number in (1, groups):
        return "lowest risk" if number == 1 else "highest risk"
    return f"group {number}"


def _tens(count: int) -> str:
    """A number of people, rounded to tens.

    >>> _tens(7), _tens(17), _tens(1234)
    ('<15', '20', '1,230')
    """
    return "<15" if count < 15 else f"{round(count / 10 + 1e-9) * 10:,}"


def rounder(reach: float) -> Any:
    """Rounds risks to steps of about a 25th of their reach."""
    step = next(s for s in _STEPS if s >= min(reach / 25, _STEPS[-1]))
    return lambda risk: np.round(np.asarray(risk, dtype=np.float64) / step) * step


def _numbers(values: Any) -> Floats:
    return np.array([np.nan if v is None else v for v in values or []], dtype=np.float64)
