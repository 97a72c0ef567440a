"""Scales of numbers that reveal no single person: quantiles, mean and standard deviation of groups of people.

Scales are stored with every model. So no number of a scale is one person's, and none is a mean that one person
determines (microaggregation, Domingo-Ferrer & Mateo-Sanz 2002):

1. A value that at least `enough` people share stands for itself.
2. All other values, in their order, are cut into groups of at least `enough` people. In a group each of its p people
   weighs 1/p, however many values they have, and the group's mean stands for all its values. What is left over before
   a shared value, with too few people, joins the group before it (at the very start, the one after it).
3. Quantiles are read off the line through the groups' means, each at the middle of its group's ranks; a shared value
   is level from the first to the last of its ranks. Mean and standard deviation use the weights of 2.
4. What is no shared value is stored halfway between two float32 numbers, 3e-8 of it away. MEDS stores values in
   float32, so a stored number that equals a value is one that `enough` people share, and the audit can check that.

The lowest and the highest number of a scale are the means of its lowest and highest group.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats, Ints, Ints32
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.deaths import TERMS
from ehrsequencing.records.events import number_runs, opens_run
from ehrsequencing.records.words import lines_of

KNOTS = 129  # quantiles at 0, 1/128 … 1


class Scale(NamedTuple):
    """The stored scale of a code's numbers."""

    knots: Floats  # (129,) quantiles, rising
    mean: float  # mean
    sd: float  # standard deviation, 1 for constant values


def fit_scale(value: Floats, owner: NDArray[np.uint32], *, enough: int) -> Scale | None:
    """The scale of some numbers; None where fewer than `enough` people have them.

    Args:
        value: (n,) numbers, in any order.
        owner: (n,) who has each number.
        enough: People that every stored number must come from.

    >>> shared, spread = np.full(6, 1.0), np.array([2.0, 3, 4, 5, 6, 7])
    >>> scale = fit_scale(np.r_[shared, spread], np.arange(12, dtype=np.uint32), enough=3)
    >>> scale.knots[[0, 64, 128]].round(3).tolist(), round(scale.mean, 3), round(scale.sd, 3)
    ([1.0, 1.5, 6.0], 2.75, 2.126)
    """
    # a cheap test first: most often the first few rows show enough people
    if len(set(owner[: 4 * enough].tolist())) < enough and len(set(owner.tolist())) < enough:
        return None
    order = np.lexsort((owner, value))
    value, owner = value.take(order), owner.take(order)
    starts, first_shared = _groups(value, owner, enough)
    group, n = number_runs(starts, len(value)), len(value)
    stop = np.append(starts[1:], n)
    # the people of a group weigh the same, and its values together as many as they are
    weight, pair = np.ones(n), (group.astype(np.uint64) << np.uint64(32)) | owner
    if not opens_run(np.sort(pair)).all():
        pairs, inverse, count = np.unique(pair, return_inverse=True, return_counts=True)
        people = np.bincount((pairs >> np.uint64(32)).astype(np.int64))
        weight = ((stop - starts) / people).take(group) / count.take(inverse)
    mean = float((weight * value).sum()) / n
    sd = float(np.sqrt((weight * (value - mean) ** 2).sum() / n))
    means = np.add.reduceat(weight * value, starts) / (stop - starts)
    of_shared = group.take(first_shared)
    # the mean of a shared value is itself, without the few people that joined its group
    means[of_shared] = shared = value.take(first_shared)
    # two ranks of each group: first and last of a shared value, twice the middle of others
    rank = np.repeat((starts + stop - 1) / 2, 2)
    rank[2 * of_shared], rank[2 * of_shared + 1] = starts.take(of_shared), stop.take(of_shared) - 1
    knots = np.interp(np.linspace(0, n - 1, KNOTS), rank, np.repeat(means, 2))
    stored = between_float32(np.r_[knots, mean, sd], shared)
    return Scale(
        np.sort(stored[:-2]), float(stored[-2]), float(stored[-1]) if value[0] != value[-1] else 1.0
    )


def _groups(value: Floats, owner: NDArray[np.uint32], enough: int) -> tuple[Ints, Ints]:
    """First row of each group, and of each shared value; the rows are sorted by value and owner."""
    opens = opens_run(value)
    first = np.flatnonzero(opens)
    people = np.add.reduceat(opens_run(value, owner).astype(np.int64), first)
    is_shared = np.repeat(people >= enough, np.diff(first, append=len(value)))
    rare = np.flatnonzero(~is_shared)
    # whether a rare value is the last of its stretch between shared ones
    last = np.r_[rare[1:] != rare[:-1] + 1, True][: len(rare)]
    closes = np.r_[opens[1:], True].take(rare)
    starts, begin, group = list[int](), -1, set[int]()
    rows = zip(
        rare.tolist(), owner.take(rare).tolist(), closes.tolist(), last.tolist(), strict=True
    )
    for row, who, is_last_of_value, is_last in rows:
        if not group:
            begin = row
        group.add(who)
        if is_last_of_value and len(group) >= enough:
            starts.append(begin)
            group = set()
        elif is_last:
            group = set()
    shared = first[people >= enough]
    first_rows = np.sort(np.append(np.array(starts, dtype=np.int64), shared))
    first_rows[0] = 0  # too few people at the very start join the group after them
    return first_rows, shared


def between_float32(number: Floats, shared: Floats | tuple[float, ...] = ()) -> Floats:
    """Numbers, moved to the middle of the two float32 numbers around them where they are no shared value."""
    low = number.astype(np.float32)
    low = np.where(low > number, np.nextafter(low, np.float32(-np.inf)), low)
    middle = (low.astype(np.float64) + np.nextafter(low, np.float32(np.inf)).astype(np.float64)) / 2
    return np.where(np.isin(number, shared), number, middle)


MOST_EVENTS = 1 << 17  # rows with an event from which stored edges are computed


def grid_edges(
    duration_days: Floats,
    cause: NDArray[np.int8],
    *,
    horizons_days: Sequence[float],
    bins: int,
    subject: Ints,
    enough: int,
) -> tuple[float, ...]:
    """Inner edges of the hazard's bins: quantiles of the event durations of all causes, and every reported horizon.

    Where outcomes have a date and no clock, many events share a duration. In the first tenth of a bin it is an edge,
    too: if 95 of 100 leave after an hour and five stay for days, one hazard for a day says that 1 in 50,000 stays.

    Args:
        duration_days: (R,) training durations.
        cause: (R,) causes, 0 = censored.
        horizons_days: Horizons that must be edges.
        bins: Number of quantile bins.
        subject: (R,) whose durations they are: edges are stored, and so they are quantiles of groups of people
            (`fit_scale`) and no edge is one person's duration.
        enough: People in a group. Where fewer have events, the horizons are the only edges.

    Returns:
        Rising edges in days; the last bin, after the last edge, is open. A quantile closer to a horizon than a tenth of
        the horizon / `bins` is dropped.

    >>> days, cause = np.arange(1.0, 101), np.ones(100, np.int8)
    >>> edges = grid_edges(days, cause, horizons_days=[50.0], bins=4, subject=np.arange(100), enough=5)
    >>> [round(edge) for edge in edges]
    [26, 50, 75]
    """
    events = np.asarray(duration_days[cause > 0], dtype=np.float64)
    at = np.linspace(0, 1, bins + 1)[1:-1]
    # every so many rows; they are sorted by subject, so that all subjects have their share
    some = slice(None, None, 1 + len(events) // MOST_EVENTS)
    scale = fit_scale(events[some], subject[cause > 0][some].astype(np.uint32), enough=enough)
    inner = np.zeros(0) if scale is None else np.interp(at, np.linspace(0, 1, KNOTS), scale.knots)
    horizons = np.asarray(horizons_days, dtype=np.float64)
    distance = np.abs(inner[:, None] - horizons[None, :])
    clear = np.all(distance > 0.1 * np.maximum(horizons, 1e-9) / bins, axis=1)
    edges = np.unique(np.r_[0.0, inner[clear & (inner > 0)], horizons, np.inf])
    # durations that enough people share, half as many as a bin's events
    pairs = np.unique(np.c_[events, subject[cause > 0]][some], axis=0)
    days, people = np.unique(pairs[:, 0], return_counts=True)
    shared = days[people >= max(enough, len(pairs) / (2 * bins))]
    after = np.searchsorted(edges, shared)
    is_early = shared - edges[after - 1] < 0.1 * (edges[after] - edges[after - 1])
    return tuple(map(float, np.unique(np.r_[edges[1:-1], shared[is_early]])))


Rows = tuple[Ints32, NDArray[np.uint64], NDArray[np.floating], NDArray[np.uint32]]
_NO_ROWS: Rows = (
    np.zeros(0, np.int32),
    np.zeros(0, np.uint64),
    np.zeros(0, np.float32),
    np.zeros(0, np.uint32),
)
SAMPLE = 2048  # values kept per key
# rows that wait at least before a sample is cut down again; in a large one, half of what it holds
WAITING = 1 << 19


@dataclass
class Sample:
    """A bounded sample of values per key: those with the smallest hashes, whatever the order of the rows.

    Most rows of a large data set cost one comparison, since hashes above a key's limit are dropped at once.
    """

    # per key, the largest hash that may still enter
    _limit: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    _parts: list[Rows] = field(default_factory=list)
    _waiting: int = 0
    _kept: int = 0

    def add(
        self,
        key: Ints,
        hashed: NDArray[np.uint64],
        value: NDArray[np.floating],
        owner: NDArray[np.uint32],
    ) -> None:
        """Add rows: keys, hashes, values and owners (n,)."""
        missing = max(int(key.max(initial=-1)) + 1 - len(self._limit), 0)
        self._limit = np.append(self._limit, np.full(missing, np.iinfo(np.uint64).max, np.uint64))
        near = np.flatnonzero(hashed <= self._limit.take(key))
        some = key.take(near).astype(np.int32)
        self._parts.append((some, hashed.take(near), value.take(near), owner.take(near)))
        self._waiting += len(near)
        if self._waiting > max(WAITING, self._kept // 2):
            self.rows()

    def rows(self) -> Rows:
        """Keys (sorted), hashes, values and owners of the sample."""
        columns = list(zip(_NO_ROWS, *self._parts, strict=True))
        self._parts = []  # freed one by one
        key, hashed, value, owner = (np.concatenate(columns.pop(0)) for _ in range(4))
        if self._waiting:
            order = np.lexsort((owner, value, hashed, key))
            sorted_key = key.take(order)
            rank = np.arange(len(key)) - np.searchsorted(sorted_key, sorted_key)
            last = order[rank == SAMPLE - 1]
            self._limit[key[last]] = hashed[last]
            drawn = order[rank < SAMPLE]
            key, hashed, value, owner = (part.take(drawn) for part in (key, hashed, value, owner))
            self._waiting, self._kept = 0, len(key)
        self._parts = [(key, hashed, value, owner)]
        return key, hashed, value, owner

    def by_key(self) -> "Values":
        """The sample's values, key by key."""
        key, _, value, owner = self.rows()
        return Values(
            np.searchsorted(key, np.arange(len(self._limit) + 1, dtype=np.int32)), value, owner
        )


@dataclass(frozen=True)
class Values:
    """Values (n,) and their owners, key by key; key k has `[offsets[k]:offsets[k + 1]]`."""

    offsets: Ints
    value: NDArray[np.floating]
    owner: NDArray[np.uint32]

    def of(self, key: int) -> tuple[Floats, NDArray[np.uint32]]:
        """Values of one key, and their owners."""
        own = slice(*self.offsets[key : key + 2]) if 0 <= key < len(self.offsets) - 1 else slice(0)
        return self.value[own].astype(np.float64), self.owner[own]


# ---- what is odd about the numbers of a data set's codes: marks of missing values, one code in several units ----
FAR = 3  # times the range of all other values, beyond which a value that repeats is no measurement
FEWEST_LEVELS = 5  # different values, up to which no range is known
MOST_NAMED = 10  # codes that a warning names
# unit in lower case → the first spelling of its group
_SAME = {name.lower(): group[0] for group in TERMS["units"]["equal"] for name in group}


def canonical_unit(code: str) -> str:
    """A code with the first of the spellings that mean its unit.

    >>> canonical_unit("LOINC//3016-3//uIU/mL"), canonical_unit("LOINC//8867-4")
    ('LOINC//3016-3//m[IU]/L', 'LOINC//8867-4')
    """
    base, _, unit = code.rpartition("//")
    return f"{base}//{_SAME[unit.lower()]}" if base and unit.lower() in _SAME else code


def repeated_far_away(value: Floats) -> list[float]:
    """The values that repeat far outside all others, as 9999, or −1 where no other is below 0; not those at the edge.

    >>> some = [1.0, 1.5, 2.0, 2.0, 2.5, 3.0]
    >>> repeated_far_away(np.array([*some, 9999, 9999])), repeated_far_away(np.array([*some, 4.0, 4.0]))
    ([9999.0], [])
    """
    levels, counts = np.unique(value, return_counts=True)
    out = list[float]()
    while len(levels) > FEWEST_LEVELS:
        low, high = levels[0], levels[-1]
        is_high = high - levels[-2] > FAR * (levels[-2] - low)
        is_low = levels[1] - low > FAR * (high - levels[1])
        is_low |= low < 0 <= levels[1] and counts[0] > 1 and low == round(low)
        if not (is_high or is_low) or counts[-1 if is_high else 0] < 2:
            break
        out.append(float(levels[-1 if is_high else 0]))
        inside = slice(None, -1) if is_high else slice(1, None)
        levels, counts = levels[inside], counts[inside]
    return out


def number_warnings(numbers: Mapping[str, int], values: Values, people: Sequence[int]) -> list[str]:
    """Warnings on the numbers of training people.

    Args:
        numbers: Code → its number.
        values: A sample of the values of each number.
        people: By number, how many have a number of the code.
    """
    marks, units = list[str](), defaultdict[str, list[str]](list)
    for code, number in numbers.items():
        value, owner = values.of(number)
        if not len(value):
            continue
        base, _, unit = code.rpartition("//")
        if base:
            units[base].append(unit)
        for mark in repeated_far_away(value):
            if len(np.unique(owner[value == mark])) >= SMALLEST_COUNT:
                marks.append(f"{code}: {mark:g} ({np.mean(value == mark):.0%} of its numbers)")
    several, equal = list[str](), False
    for base, names in units.items():
        who = {name: people[numbers[f"{base}//{name}"]] for name in names}
        known = [name for name in names if who[name] >= SMALLEST_COUNT]
        if len(known) > 1 and any(name.lower() in _SAME for name in known):
            shares = (f"{name} {who[name] / sum(who.values()):.0%}" for name in known)
            same = len({canonical_unit(f"{base}//{name}") for name in known}) < len(known)
            equal |= same
            several.append(f"{base} in {', '.join(shares)}{' (some are equal)' if same else ''}")
    path = Path(__file__).with_name("templates") / "numbers.txt.jinja"
    return lines_of(path, marks=marks, several=several, equal=equal, MOST_NAMED=MOST_NAMED)
