"""The order of MEDS rows, and which of them repeat another: one sort of packed integers, a slow one only for ties."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

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
    order, same = _by_first_keys(keys)
    if not same.any():
        return order
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    place = np.flatnonzero(tied)
    group = np.cumsum(np.r_[True, ~same])[place]
    row = keys.row[order[place]]
    rest = [
        _value_keys(keys.value.take(row)),
        _ranks(keys.text.take(row)),
        _ranks(keys.encounter.take(row)),
    ]
    dated = keys.date_only[order[place]]  # of equal rows, one with a clock stays
    inner = np.lexsort((keys.source[row], dated, keys.lost[row], *reversed(rest), group))
    order[place] = order[place][inner]
    repeats = np.ones(max(len(place) - 1, 0), dtype=bool)
    for key in (group, *rest[:2]):
        ordered = key[inner]
        repeats &= ordered[1:] == ordered[:-1]
    encounter, lost = rest[2][inner], keys.lost[row][inner]
    repeats &= (encounter[1:] == encounter[:-1]) | lost[1:]
    keep = np.ones(len(order), dtype=bool)
    keep[place[1:][repeats]] = False
    return order[keep]


def _by_first_keys(keys: Keys) -> tuple[Ints, Bools]:
    """(n,) an order by subject, time and code, and (n-1,) which neighbours in it are equal in all three."""
    packed = _packed(keys)
    if packed is not None:
        order = np.argsort(packed)
        ordered = packed[order]
        return order, ordered[1:] == ordered[:-1]
    order = np.lexsort((keys.code, keys.time_us, keys.subject))
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for key in (keys.subject, keys.time_us, keys.code):
        ordered = key[order]
        same &= ordered[1:] == ordered[:-1]
    return order, same


def _packed(keys: Keys) -> Ints | None:
    """(n,) subject, time and code in one integer, None where they do not fit."""
    if not len(keys.row):
        return np.zeros(0, dtype=np.int64)
    timed = keys.time_us != np.iinfo(np.int64).min
    since = keys.time_us[timed] if not timed.all() else keys.time_us
    first = int(since.min()) if len(since) else 0
    span = (int(since.max()) - first) if len(since) else 0
    unit = 1 if ((since - first) % SECOND_US).any() else SECOND_US
    sizes = [int(keys.subject.max()) + 1, span // unit + 2, int(keys.code.max()) + 1]
    bits = [size.bit_length() for size in sizes]
    if sum(bits) > _KEY_BITS:
        return None
    time = np.where(timed, (keys.time_us - first) // unit + 1, 0)
    return (((keys.subject << bits[1]) | time) << bits[2]) | keys.code


def _value_keys(values: pa.Array) -> Ints:
    """(n,) integers in the order of float32 values, NaN after the largest, and null last."""
    bits = (
        np.ascontiguousarray(pc.fill_null(values, 0).to_numpy(zero_copy_only=False))
        .view(np.int32)
        .astype(np.int64)
    )
    keys = np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)
    return np.where(np.asarray(values.is_null()), np.iinfo(np.int64).max, keys)


def _ranks(column: pa.Array) -> Ints:
    """(n,) the place of each value among the sorted distinct ones, and null last."""
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=np.int64)
    encoded = column.dictionary_encode()
    ranks: NDArray[np.int64] = np.empty(len(encoded.dictionary), dtype=np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    at = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return np.where(at < 0, len(ranks), ranks[at])
