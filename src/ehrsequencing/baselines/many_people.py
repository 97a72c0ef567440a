"""Cuts and ranges of a feature that each come from several people, because they are stored with a model.

The rule is that of `records/scales.py`: a stored number is a value that enough people share, or made from the mean of a
group of enough people, in which each of them weighs the same. What is no shared value lies halfway between two float32
numbers. Features are float32, so that a stored number which equals a value is one that enough people share.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints
from ehrsequencing.records.scales import between_float32, fit_scale

_SOME = 8  # rows for each person wanted that are looked at first


def has_people(owner: Ints, enough: int) -> bool:
    """Whether rows are of at least so many people; most often a few of them show it."""
    few = owner[:: max(1, len(owner) // (_SOME * enough))]
    return len(set(few.tolist())) >= enough or len(np.unique(owner)) >= enough


def feature_cuts(values: Floats32, owner: Ints, *, most: int, enough: int) -> Floats:
    """Where a feature is cut into at most `most` bins of about as many rows, each with values of enough people.

    A cut lies in the middle between the mean of the nearest people below and that of the nearest above. A feature that
    enough people lack in some row has a cut below all others.

    scikit-learn bins too, but its cuts are values of single people, and with weighted rows it sorts a feature once for
    every cut. It also fails on a feature that no row has (ages without births), which here has no cut and is left out.

    Args:
        values: (n,) of the training rows; NaN where it is not known.
        owner: (n,) whose rows they are.
        most: Bins at most.
        enough: People that every bin must have.

    Returns:
        Rising cuts. A feature that does not vary among enough people has none.

    >>> values = np.array([1, 2, 2, 4, 5, np.nan, np.nan], np.float32)
    >>> feature_cuts(values, np.arange(7), most=8, enough=2).round(3).tolist()  # 2 and 2, 4 and 5; and two lack it
    [-inf, 3.25]
    """
    lacking = np.isnan(values)
    order = np.argsort(values, kind="stable")[: len(values) - int(lacking.sum())]  # NaN comes last
    value, who = values[order].astype(np.float64), owner[order]
    if not has_people(who, enough):
        return np.zeros(0)
    stops = np.flatnonzero(np.r_[False, value[1:] > value[:-1]])
    if len(stops) > most - 2:
        wanted = np.linspace(0, len(value), most)[1:-1]
        stops = np.unique(stops[np.minimum(np.searchsorted(stops, wanted), len(stops) - 1)])
    stops = stops[_between_people(who, stops, enough)]
    groups = [slice(a, b) for a, b in pairwise([0, *stops.tolist(), len(value)])]
    near = [
        (_nearest(value[a][::-1], who[a][::-1], enough), _nearest(value[b], who[b], enough))
        for a, b in pairwise(groups)
    ]
    cuts = between_float32(np.array(near).reshape(-1, 2).mean(axis=1))
    # between means there may be somebody
    cuts = cuts[_between_people(who, np.searchsorted(value, cuts), enough)]
    return np.r_[-np.inf, cuts] if has_people(owner[lacking], enough) else cuts


def _nearest(value: Floats, owner: Ints, enough: int) -> float:
    """Mean of a group's first values of enough people, each of whom weighs the same; values are in order."""
    looked = _SOME * enough
    while True:
        _, first = np.unique(owner[:looked], return_index=True)
        if len(first) >= enough or looked >= len(owner):
            break
        looked *= 4
    stop = int(np.sort(first)[enough - 1]) + 1
    if value[stop - 1] == value[0]:
        return float(value[0])
    stop += int(np.argmax(np.r_[value[stop:] != value[stop - 1], True]))
    _, place, rows = np.unique(owner[:stop], return_inverse=True, return_counts=True)
    return float(np.average(value[:stop], weights=1 / rows[place]))


def _between_people(owner: Ints, stops: Ints, enough: int) -> Ints:
    """Which of the rising stops to keep so that there are enough people before, between and after them."""
    kept, start = list[int](), 0
    for number, stop in enumerate(stops.tolist()):
        if has_people(owner[start:stop], enough):
            kept.append(number)
            start = stop
    if kept and not has_people(owner[start:], enough):
        kept.pop()
    return np.array(kept, dtype=np.int64)


def feature_range(
    values: Floats32, owner: Ints, *, enough: int
) -> tuple[float, float, float] | None:
    """Lowest, middle and highest number of a feature by `fit_scale`; None where too few people have the feature.

    Args:
        values: (n,) of the training rows; NaN where it is not known.
        owner: (n,) whose rows they are.
        enough: People that each of the three must come from.
    """
    known = ~np.isnan(values)
    found = fit_scale(
        values[known].astype(np.float64), owner[known].astype(np.uint32), enough=enough
    )
    return (
        None
        if found is None
        else (float(found.knots[0]), float(np.median(found.knots)), float(found.knots[-1]))
    )


def lacking_people(unknown: NDArray[np.bool_], owner: Ints, *, enough: int) -> Bools:
    """(F,) which columns of (n, F) marks are set in rows of enough people, and not set in rows of enough people."""
    return np.array(
        [has_people(owner[c], enough) and has_people(owner[~c], enough) for c in unknown.T],
        dtype=bool,
    )
