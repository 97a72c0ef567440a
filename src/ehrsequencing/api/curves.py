"""Curves of an evaluation, ready to draw.

The content of `metrics.json` goes in. `incidence` takes the outcomes of single subjects; of real people its curve has a
point only where 11 of a group had the event and 11 had not, and counts go through `core.disclosure`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.api.predictions import days_of
from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text, enough_people
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.censoring import RiskSets, aalen_johansen_se
from ehrsequencing.metrics.censoring import aalen_johansen as cumulative_incidence


class StepFunction:
    """A curve that is constant between its points, as scikit-survival's users know it.

    Attributes:
        x: (n,) days, increasing, 0 first.
        y: (n,) values there.
        low: (n,) lower limits of a 95 % interval; None without one.
        high: (n,) the upper limits.
        domain: The first and the last day.

    Example:
        >>> curve = StepFunction(np.array([0.0, 30.0, 90.0]), np.array([0.0, 0.1, 0.2]))
        >>> curve(45.0), curve([0, 90]).tolist()
        (0.1, [0.0, 0.2])
    """

    def __init__(
        self, x: Floats, y: Floats, *, low: Floats | None = None, high: Floats | None = None
    ) -> None:
        self.x, self.y = x, y
        self.low, self.high = low, high
        self.domain = (float(x[0]), float(x[-1]))

    def __call__(self, x: ArrayLike) -> Any:
        """The value at some days.

        Raises:
            ValueError: A day is not within the domain.
        """
        days = np.asarray(x, dtype=np.float64)
        if not ((days >= self.domain[0]) & (days <= self.domain[1])).all():
            raise ValueError(f"x must be within [{self.domain[0]:g}; {self.domain[1]:g}]")
        found = self.y[np.searchsorted(self.x, days, side="right") - 1]
        return float(found) if found.ndim == 0 else found

    def __repr__(self) -> str:
        return (
            f"StepFunction({len(self.x)} points from {self.domain[0]:g} to {self.domain[1]:g} days)"
        )


def aalen_johansen(time: ArrayLike, cause: ArrayLike, *, of: int = 1) -> StepFunction:
    """The exact Aalen–Johansen curve of a cause, with a 95 % interval. It shows single persons: do not share it.

    Args:
        time: (n,) days to the event or censoring.
        cause: (n,) int, 0 = censored, 1 = the event of interest, 2 … = competing.
        of: Whose cumulative incidence.

    Returns:
        A step function from 0 to the longest follow-up, with `low` and `high` (estimate ± 1.96 standard errors).

    Example:
        >>> import ehrsequencing as eh
        >>> curve = eh.aalen_johansen([10.0, 20.0, 30.0, 40.0], [1, 2, 0, 1])
        >>> curve(25), curve.y.tolist()
        (0.25, [0.0, 0.25, 0.25, 0.25, 0.75])
    """
    duration = np.asarray(time, dtype=np.float64)
    codes = np.asarray(cause, dtype=np.int64)
    n_causes = max(of, int(codes.max(initial=1)))
    found = cumulative_incidence(duration, codes, n_causes=n_causes)
    x = np.unique(np.r_[0.0, found.times_days, duration.max(initial=0.0)])
    y = found.at(x)[of - 1]
    error = 1.96 * aalen_johansen_se(duration, codes, x, n_causes=n_causes)[of - 1]
    return StepFunction(x, y, low=np.clip(y - error, 0, 1), high=np.clip(y + error, 0, 1))


_FINE, _COARSE = 200, 24  # points of a curve: of a simulation, and of real people
Row = Mapping[str, Any]


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


def at_place(
    rows: Sequence[Row], *, landmark: float | None, cause: str, horizon: float
) -> list[Row]:
    """The rows of one landmark, cause and horizon."""
    place = (landmark, cause, horizon)
    return [
        row for row in rows if (row["landmark_days"], row["cause"], row["horizon_days"]) == place
    ]


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
            events = [int((had <= day).sum()) for day in days]
            shown = [not n or enough_people(n, len(inside)) for n in events]
            kept = kept[np.array(shown)[kept]]
        at_risk = [int((duration_days[inside] >= tick).sum()) for tick in ticks]
        found.append(
            Group(
                _name(number, len(chosen)),
                days[kept],
                observed[kept],
                np.clip(observed - error, 0, 1)[kept],
                np.clip(observed + error, 0, 1)[kept],
                own[inside].mean(axis=0),
                [str(count) if simulated else count_text(count) for count in at_risk],
            )
        )
    return Incidence(days, simulated, found, ticks.tolist())


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


def place_of(
    result: Mapping[str, Any], horizon: Any, cause: str | None, landmark: Any
) -> tuple[dict[str, Any], str]:
    """Landmark, cause and horizon of a figure, and its title.

    Raises:
        EhrseqError: One of them was not evaluated.
    """
    known = result["horizons_days"]
    days = (
        float(result["main"]["horizon_days"])
        if horizon is None
        else _known("horizon", horizon, known)
    )
    cause = result["causes"][0] if cause is None else cause
    if cause not in result["causes"]:
        fix = f"use one of {', '.join(result['causes'])}"
        raise EhrseqError(f"there is no cause {cause!r}", where="cause", fix=fix)
    since = landmark_of(result, landmark)
    later = "" if since == 0 else f", {format_days(since)} after the index"
    place = {"landmark": since, "cause": cause, "horizon": days}
    return place, f"{cause} by {format_days(days)}{later}"


def landmark_of(result: Mapping[str, Any], landmark: str | float | None) -> float:
    """Days from the index to a landmark; None: the main one."""
    if landmark is None:
        return float(result["main"]["landmark_days"] or 0.0)
    return _known("landmark", landmark, result["landmarks_days"])


def _known(what: str, given: str | float, known: Sequence[float]) -> float:
    days = days_of(given)[0]
    if not any(abs(days - one) < 1e-9 for one in known):
        fix = f"use one of {', '.join(map(format_days, known))}"
        raise EhrseqError(f"{format_days(days)} was not evaluated", where=what, fix=fix)
    return days
