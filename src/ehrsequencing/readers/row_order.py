"""The order of MEDS rows, and which of them repeat another: one sort of packed integers, a slow one only for ties."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.records.events import SECOND_US

_KEY_BITS = 63


@dataclass(frozen=True, eq=False)
class Keys:
    """What rows are ordered by: subject, time, code, then value, text and encounter, the last three null last."""

    subject: Ints  # (n,) ranks
    time_us: Ints  # (n,)
    code: Ints  # (n,) ranks
    value: pa.Array  # (m,) float32 of the rows that these rows were made of
    text: pa.Array  # (m,)
    encounter: pa.Array  # (m,)
    lost: Bools  # (m,) those whose encounter was removed
    source: Ints  # (m,) the number of the source's row
    row: Ints  # (n,) which of the m rows each row was made of
    date_only: Bools  # (n,) those whose source gave a date, and no time of day


def ordered_rows(keys: Keys) -> Ints:
    """(k,) the rows in their order, each of several equal rows once: one with a clock, then the smallest `source`.

    A row whose encounter was removed goes where any other row is equal but for the encounter.
    """
    number = first_keys(keys)
    order = np.argsort(number)
    number = number[order]
    same = number[1:] == number[:-1]
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    place = np.flatnonzero(tied)
    group, row = number[place], keys.row[order[place]]
    value, text, encounter = (
        ranks(column.take(row)) for column in (keys.value, keys.text, keys.encounter)
    )
    dated, lost = keys.date_only[order[place]], keys.lost[row]
    inner = np.lexsort((keys.source[row], dated, lost, encounter, text, value, group))
    order[place] = order[place][inner]
    repeats = np.ones(max(len(place) - 1, 0), dtype=bool)
    for key in (group, value, text):
        repeats &= key[inner][1:] == key[inner][:-1]
    encounter, lost = encounter[inner], lost[inner]
    repeats &= (encounter[1:] == encounter[:-1]) | lost[1:]
    keep = np.ones(len(order), dtype=bool)
    keep[place[1:][repeats]] = False
    return order[keep]


def first_keys(keys: Keys) -> Ints:
    """(n,) numbers in the order of subject, time and code, equal where all three are."""
    since, unit = keys.time_us, SECOND_US
    timed = since != np.iinfo(np.int64).min
    first = int(since[timed].min()) if timed.any() else 0
    span = int(since.max()) - first if timed.any() else 0
    if ((since[timed] - first) % SECOND_US).any():
        unit = 1
    sizes = (span // unit + 2, int(keys.code.max(initial=0)) + 1)
    time_bits, code_bits = (size.bit_length() for size in sizes)
    subject_bits = int(keys.subject.max(initial=0)).bit_length()
    if subject_bits + time_bits + code_bits <= _KEY_BITS:
        time = np.where(timed, (since - first) // unit + 1, 0)
        return (((keys.subject << time_bits) | time) << code_bits) | keys.code
    order = np.lexsort((keys.code, since, keys.subject))
    differs = np.zeros(len(order), dtype=bool)
    for key in (keys.subject, since, keys.code):
        differs[1:] |= key[order][1:] != key[order][:-1]
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(differs)
    return number


def ranks(column: pa.Array) -> Ints:
    """(n,) the place of each value among the sorted distinct ones, and null last."""
    places = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(places, dtype=np.int64)
