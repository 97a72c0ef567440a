"""Counts of people that may be published: those under 11 are hidden, and cannot be worked out from what is shown.

A count is a sum over disjoint groups of people, so that all that is printed is a system of linear equations about those
groups. `hide_small` takes the counts and returns the text of each: it hides the small ones, then more counts wherever
reasoning about sums would still pin a small one down. `merge_bins` and `pool_groups` coarsen the figures. The threshold
is that of the US CMS cell size policy, in which nobody (0) is not a small group.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from scipy.optimize import linprog

from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.core.minimum_counts import SMALLEST_COUNT

_POSSIBLE = 5  # values that a hidden small count must still be able to have
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Count:
    """A number of people, the disjoint groups that it adds up, and how much a reader would miss it."""

    value: int
    groups: frozenset[Hashable]
    weight: int = 0


class InconsistentCounts(ValueError):
    """The counts cannot be sums over the same groups."""


def hide_small(
    counts: Mapping[Key, Count],
    implied: Iterable[frozenset[Hashable]] = (),
    links: Iterable[tuple[frozenset[Hashable], frozenset[Hashable]]] = (),
) -> dict[Key, str]:
    """How each count may be printed so that no number of people from 1 to 10 can be worked out.

    Counts from 1 to 10 print as `<11`. A reader then knows equalities (printed numbers) and bounds (`<11`, `≥11`); the
    range that linear programming finds under them must leave every small count, printed or implied, at least
    `_POSSIBLE` values. While it does not, one of the printed counts that the deduction rests on is withheld, that of
    least weight and then the smallest: it prints as `≥11` (`≥100`, `≥1,000` …), and if that still tells too much, as
    `hidden`.

    Args:
        counts: What the report prints. Zeros are printed.
        implied: Further sets of groups that nobody may count to 1..10 by subtraction.
        links: Pairs of sets of groups that hold the same people, cut in two ways (by sex, and by age).

    Returns:
        The text for every key of `counts`.

    Raises:
        InconsistentCounts: No numbers of people in the groups give these counts.
    """
    if not counts:
        return {}
    keys, asked = list(counts), tuple(counts.values())
    return dict(zip(keys, _texts(asked, tuple(implied), tuple(links)), strict=True))


_Groups = frozenset[Hashable]


@lru_cache(maxsize=64)
def _texts(
    counts: tuple[Count, ...],
    implied: tuple[_Groups, ...],
    links: tuple[tuple[_Groups, _Groups], ...],
) -> tuple[str, ...]:
    """The texts of `hide_small`, kept: a report asks for those of the same counts again for each of its pages."""
    members = [count.groups for count in counts] + [side for pair in links for side in pair]
    groups = sorted({group for some in members for group in some}, key=repr)
    rows: dict[
        tuple[frozenset[Hashable], int], int
    ] = {}  # counts of the same people share a row, and a fate
    for count in counts:
        rows[count.groups, count.value] = max(
            count.weight, rows.get((count.groups, count.value), 0)
        )
    costs = [(weight, value) for (_, value), weight in rows.items()]
    matrix = _indicators([members for members, _ in rows], groups)
    values = np.array([value for _, value in rows], dtype=float)
    same = _indicators([a for a, _ in links], groups) - _indicators([b for _, b in links], groups)
    full, known = np.vstack([matrix, same]), np.concatenate([values, np.zeros(len(same))])
    inverse = np.linalg.pinv(full)
    if np.abs(full @ (inverse @ known) - known).max(initial=0.0) > 1e-6:
        raise InconsistentCounts
    low, high = values.copy(), values.copy()  # what is told about each count
    # refuses counts that need negative groups
    _deduce(np.zeros(len(groups)), matrix, low, high, same)
    small = (values >= 1) & (values < SMALLEST_COUNT)
    low[small], high[small] = 1, SMALLEST_COUNT - 1
    sets = dict.fromkeys(
        [*(members for members, _ in rows), *_differences([m for m, _ in rows]), *implied]
    )
    targets = _indicators(
        [members for members in sets if members and members <= set(groups)], groups
    )
    # by the full tables, that is
    told = np.abs(targets @ inverse @ full - targets).max(axis=1, initial=0.0) < 1e-7
    derived = np.round(targets @ inverse @ known)
    targets = targets[told & (derived >= 1) & (derived < SMALLEST_COUNT)]
    trouble = np.zeros(len(targets))
    for t, target in enumerate(targets):
        while (deduced := _deduce(target, matrix, low, high, same)).possible < _POSSIBLE:
            _withhold(costs, low, high, deduced.used)
            trouble[t] += 1
    targets = targets[np.argsort(-trouble, kind="stable")]
    withheld = [k for k in np.flatnonzero((low != high) & ~small) if costs[k][0]]
    for k in sorted(
        withheld, key=lambda k: costs[k], reverse=True
    ):  # some turn out to be withheld for nothing
        before = low[k], high[k]
        low[k] = high[k] = values[k]
        if any(_deduce(target, matrix, low, high, same).possible < _POSSIBLE for target in targets):
            low[k], high[k] = before
    texts = {row: _printed(row[1], *told) for row, *told in zip(rows, low, high, strict=True)}
    return tuple(texts[count.groups, count.value] for count in counts)


def _differences(sets: Sequence[frozenset[Hashable]]) -> list[frozenset[Hashable]]:
    """What a reader gets by subtracting a count from one that holds it: a total less a part."""
    return [whole - part for whole in sets for part in sets if part < whole]


def _indicators(sets: Sequence[frozenset[Hashable]], groups: Sequence[Hashable]) -> Floats:
    rows = [[group in members for group in groups] for members in sets]
    return np.array(rows, dtype=float).reshape(len(rows), len(groups))


@dataclass(frozen=True)
class _Deduction:
    possible: int  # how many whole numbers the target may still be
    used: Bools  # the counts that this rests on


def _deduce(target: Floats, matrix: Floats, low: Floats, high: Floats, same: Floats) -> _Deduction:
    """Range of `target · groups` for all groups ≥ 0 that agree with what is told and with the links (`same`)."""
    bounded = np.flatnonzero(np.isfinite(high))
    rows, bounds = np.vstack([matrix[bounded], -matrix]), np.concatenate([high[bounded], -low])
    origin = np.concatenate([bounded, np.arange(len(low))])
    most_people = 10 * (1 + low.max(initial=0.0))  # keeps the programs bounded
    ends, used = [], np.zeros(len(low), dtype=bool)
    for sign in (1.0, -1.0) if target.any() else (1.0,):
        found = linprog(
            sign * target,
            A_ub=rows,
            b_ub=bounds,
            A_eq=same if len(same) else None,
            b_eq=np.zeros(len(same)) if len(same) else None,
            bounds=(0, most_people),
            method="highs-ds",
            options={"presolve": False},
        )
        if not found.success:
            raise InconsistentCounts
        ends.append(sign * float(found.fun))
        used[origin[np.abs(found.ineqlin.marginals) > 1e-9]] = True
    return _Deduction(
        possible=math.floor(ends[-1] + 1e-6) - math.ceil(ends[0] - 1e-6) + 1, used=used
    )


def _withhold(costs: Sequence[tuple[int, int]], low: Floats, high: Floats, used: Bools) -> None:
    """Tell less about one of the counts used, the least cost first: a printed one; then a bounded one; then a zero."""
    values = np.array([value for _, value in costs])
    printed, free = low == high, (low == 0) & np.isinf(high)
    for among in (used & printed & (values > 0), used & ~printed & ~free, used & printed):
        if among.any():
            chosen = min(np.flatnonzero(among).tolist(), key=lambda k: costs[k])
            low[chosen], high[chosen] = (
                (_coarse(values[chosen]) if printed[chosen] else 0.0),
                np.inf,
            )
            return
    raise InconsistentCounts


def _coarse(value: float) -> float:
    """The largest of 0, 11, 100, 1,000 … that is not above the value."""
    return max(
        bound
        for bound in (0.0, float(SMALLEST_COUNT), *(10.0**k for k in range(2, 10)))
        if bound <= value
    )


def _printed(value: int, low: float, high: float) -> str:
    if low == high:
        return f"{value:,}"
    if np.isfinite(high):
        return f"<{SMALLEST_COUNT}"
    return f"≥{low:,.0f}" if low else "hidden"


def exact(text: str) -> bool:
    """Whether a published count is the number itself."""
    return text.replace(",", "").isdigit()


def people(text: str | None) -> int:
    """How many a published count tells for certain: `312` → 312, `≥100` → 100, `<11` → 0.

    >>> people("1,312"), people("≥100"), people("<11"), people("hidden"), people(None)
    (1312, 100, 0, 0, 0)
    """
    digits = (text or "").replace(",", "").removeprefix("≥")
    return int(digits) if digits.isdigit() else 0


# ------------------------------------------------------------------------------------------------------- the figures


def merge_bins(edges: Sequence[float], counts: Sequence[int]) -> list[tuple[float, float, int]]:
    """Join neighbouring bins of a histogram until each holds nobody or at least 11 people.

    Returns:
        (left edge, right edge, people) from left to right; empty where there are fewer than 11 in all.
    """
    merged: list[tuple[float, float, int]] = []
    start, people, end = 0, 0, 0
    for k, count in enumerate(counts):
        start = k if people == 0 else start
        people += count
        end = k + 1 if count else end
        if people == 0 or people >= SMALLEST_COUNT:
            merged.append((edges[start], edges[k + 1], people))
            people = 0
    if people:  # what is left over joins the last bar
        while merged and merged[-1][2] == 0:
            merged.pop()
        if not merged:
            return []
        left, _, held = merged.pop()
        merged.append((left, edges[end], held + people))
    return merged


@dataclass(frozen=True)
class CalibrationGroup:
    """Predicted and observed risk of a group of people, the limits of it, and how many they are (0: withheld)."""

    predicted: float
    observed: float
    low: float | None
    high: float | None
    n: int


def pool_groups(groups: Mapping[str, Sequence[float]]) -> list[CalibrationGroup]:
    """Join neighbouring calibration groups until each has at least 11 subjects with the event and 11 without.

    Predicted and observed risks are averaged by size; the groups are disjoint, so the squared half-widths of their
    intervals add up by squared weight.

    Args:
        groups: `predicted`, `observed`, `low`, `high`, `n`, a number per group.

    Returns:
        Points by rising predicted risk; empty where even all subjects together have fewer than 11 events.
    """
    fields = ("predicted", "observed", "low", "high", "n")
    points = [
        CalibrationGroup(*row) for row in zip(*(groups[name] for name in fields), strict=True)
    ]
    pools: list[list[CalibrationGroup]] = [[]]
    for point in sorted((p for p in points if p.n), key=lambda p: p.predicted):
        pools[-1].append(point)
        if _large(_pooled(pools[-1])):
            pools.append([])
    while len(pools) > 1 and (not pools[-1] or not _large(_pooled(pools[-1]))):
        left_over = pools.pop()
        pools[-1] += left_over
    pooled = [_pooled(pool) for pool in pools if pool]
    return [point for point in pooled if _large(point)]


def _large(point: CalibrationGroup) -> bool:
    # none is too few as well: where a group ends must not pick people out
    events = point.n * point.observed
    return min(round(events), round(point.n - events)) >= SMALLEST_COUNT


def _pooled(points: Sequence[CalibrationGroup]) -> CalibrationGroup:
    if len(points) == 1:
        return points[0]
    n = sum(p.n for p in points)
    predicted, observed = (
        sum(p.n / n * getattr(p, name) for p in points) for name in ("predicted", "observed")
    )
    low: float | None = None
    high: float | None = None
    if all(p.low is not None and p.high is not None for p in points):
        below, above = (
            sum((p.n / n * (p.observed - getattr(p, name))) ** 2 for p in points) ** 0.5
            for name in ("low", "high")
        )
        low, high = max(observed - below, 0.0), min(observed + above, 1.0)
    return CalibrationGroup(predicted, observed, low, high, n)
