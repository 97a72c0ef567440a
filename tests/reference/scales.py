"""Scales of numbers by plain loops: the oracle of `ehrsequencing.records.scales`, written from docs/records.md only."""

import math
from collections.abc import Sequence
from typing import NamedTuple

Pairs = Sequence[tuple[float, int]]  # number, whose


class Group(NamedTuple):
    """Neighbouring numbers that one number stands for."""

    pairs: list[tuple[float, int]]
    shared: float | None  # the value that enough people share


def groups(pairs: Pairs, enough: int) -> list[Group]:
    """Cut sorted numbers into groups of at least `enough` people."""
    out: list[Group] = []
    left: list[tuple[float, int]] = []  # too few people so far
    for value in sorted({value for value, _ in pairs}):
        own = sorted(pair for pair in pairs if pair[0] == value)
        if len({who for _, who in own}) >= enough:
            if left and out:
                out[-1].pairs.extend(left)
                left = []
            out.append(Group([*left, *own], value))
            left = []
            continue
        left += own
        if len({who for _, who in left}) >= enough:
            out.append(Group(left, None))
            left = []
    if left and out:
        out[-1].pairs.extend(left)
    return out


def weighted(group: Group) -> list[tuple[float, float]]:
    """Each number of a group and its weight: every person weighs the same, the group as much as its numbers."""
    people = {who for _, who in group.pairs}
    each = len(group.pairs) / len(people)
    return [(value, each / sum(w == who for _, w in group.pairs)) for value, who in group.pairs]


def scale(pairs: Pairs, enough: int) -> tuple[list[float], float, float] | None:
    """Quantiles, mean and standard deviation; None with too few people."""
    found = groups(pairs, enough)
    if not found or len({who for _, who in pairs}) < enough:
        return None
    n = len(pairs)
    every = [pair for group in found for pair in weighted(group)]
    mean = sum(w * v for v, w in every) / n
    sd = math.sqrt(sum(w * (v - mean) ** 2 for v, w in every) / n)
    line: list[tuple[float, float]] = []  # rank, number
    before = 0
    for group in found:
        first, last = before, before + len(group.pairs) - 1
        if group.shared is not None:
            line += [(first, group.shared), (last, group.shared)]
        else:
            line.append(((first + last) / 2, sum(w * v for v, w in weighted(group)) / len(group.pairs)))
        before = last + 1
    is_constant = len({value for value, _ in pairs}) == 1
    return [at(line, k / 128 * (n - 1)) for k in range(129)], mean, 1.0 if is_constant else sd


def at(line: list[tuple[float, float]], rank: float) -> float:
    """The line's number at a rank; beyond its ends that of the end."""
    below = [point for point in line if point[0] <= rank]
    above = [point for point in line if point[0] > rank]
    if not below or not above:
        return (above[0] if above else below[-1])[1]
    (x0, y0), (x1, y1) = below[-1], above[0]
    return y0 + (y1 - y0) * (rank - x0) / (x1 - x0)
