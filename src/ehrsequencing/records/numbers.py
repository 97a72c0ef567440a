"""What is odd about the numbers of a data set's codes: marks of missing values, and one code in several units."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.episodes import TERMS
from ehrsequencing.records.scales import Values

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
    out = list[str]()
    if marks:
        out.append(
            f"A value repeats far outside all others, and may mean that there is none: {_few(marks)}. To set it aside: "
            "values.missing=[9999]."
        )
    several, equal = list[str](), False
    for base, names in units.items():
        who = {name: people[numbers[f"{base}//{name}"]] for name in names}
        known = [name for name in names if who[name] >= SMALLEST_COUNT]
        if len(known) > 1 and any(name.lower() in _SAME for name in known):
            shares = (f"{name} {who[name] / sum(who.values()):.0%}" for name in known)
            same = len({canonical_unit(f"{base}//{name}") for name in known}) < len(known)
            equal |= same
            several.append(f"{base} in {', '.join(shares)}{' (some are equal)' if same else ''}")
    if several:
        fix = " To join units that are equal: values.units=join." if equal else ""
        out.append(
            f"Codes have numbers in several units, each a code of its own: {_few(several)}.{fix}"
        )
    return out


def _few(items: Sequence[str]) -> str:
    more = len(items) - MOST_NAMED
    return "; ".join(items[:MOST_NAMED]) + (f"; and {more:,} more" if more > 0 else "")
