"""The columns and roles of a reader's rows, before the cleaning rules turn them into MEDS rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints, Ints32
from ehrsequencing.records.events import DAY_US, SECOND_US

NO_TIME = np.iinfo(np.int64).min
OPEN = np.iinfo(np.int64).max - DAY_US  # the end of a period that has not ended
_MANY = 1 << 62  # combinations that a number of 8 bytes can tell apart


class Role(IntEnum):
    """What a row is. The cleaning rules depend on it."""

    EVENT = 0  # happened at `time`
    PERSON = 1  # this subject exists; born at `time`; makes no row where that is unknown
    STATIC = 2  # true without a time (sex)
    DEATH = 3
    VISIT = 4  # an encounter from `time` to `end`; other rows refer to it by `encounter_id`
    SPAN = 5  # anything else that starts and ends (a stay on a ward)
    OBSERVED = 6  # a period under observation
    REPORTED = 7  # began between `time` and `end`, and was reported in its visit: when it became known is not said
    NAMED_VISIT = 8  # only the id of an encounter, and its `time` and `end` where these are known; makes no row


def rows_schema(encounter: pa.DataType) -> pa.Schema:
    """Columns of a reader's rows.

    A time at exactly midnight means a date without a time of day. Rows without a subject, code or (where they need
    one) time are allowed; the writer drops and counts them.
    """
    return pa.schema(
        {
            "subject_id": pa.int64(),
            "role": pa.int8(),
            "time": pa.timestamp("us"),
            "end": pa.timestamp("us"),
            "code": pa.string(),  # or a dictionary of texts, where the reader has one
            "numeric_value": pa.float32(),
            "text_value": pa.large_string(),
            "encounter_id": encounter,
            "source": pa.int64(),  # the number of the source's row, from `TableCounts.take`
        }
    )


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column as places among its distinct values; one that is of a dictionary stays as it is."""
    if not pa.types.is_dictionary(column.type):
        return column.combine_chunks().dictionary_encode()
    return column.unify_dictionaries().combine_chunks()


def combinations(columns: Mapping[str, pa.ChunkedArray]) -> tuple[pa.Table, Ints32]:
    """The distinct combinations of the values of some columns, and (n,) the place of each row's combination.

    >>> few, place = combinations({"a": pa.chunked_array([[1, 1, None]]), "b": pa.chunked_array([["x", "x", "y"]])})
    >>> few.to_pylist(), place.tolist()
    ([{'a': 1, 'b': 'x'}, {'a': None, 'b': 'y'}], [0, 0, 1])
    """
    key, kinds = np.zeros(len(next(iter(columns.values()))), dtype=np.int64), 1
    for column in columns.values():
        values = encoded(column)
        size = len(values.dictionary) + 1
        if kinds > _MANY // size:
            places = pa.array(key).dictionary_encode()
            key, kinds = places.indices.to_numpy().astype(np.int64), len(places.dictionary)
        number = pc.fill_null(values.indices, size - 1).to_numpy(zero_copy_only=False)
        key, kinds = key * size + number, kinds * size
    place = pa.array(key).dictionary_encode()
    at = place.indices.to_numpy()
    first = np.empty(len(place.dictionary), dtype=np.int64)
    first[at[::-1]] = np.arange(len(at))[::-1]  # the last write is the first row
    return pa.table({name: column.take(pa.array(first)) for name, column in columns.items()}), at


def clean_codes(code: pa.ChunkedArray | pa.Array) -> Any:
    """Codes without line breaks, NULs, runs of blanks and outer blanks, which MEDS readers refuse."""
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(code, r"[\s\x00]+", " "))


def make_rows(
    role: Role, base: Mapping[str, Any], code: Any, keep: Any = None, **columns: Any
) -> pa.Table:
    """Rows for the writer.

    Args:
        role: Of all of them.
        base: Columns that all rows of a block have: subject_id and source, maybe encounter_id.
        code: One for all, or (n,) codes; None for no code.
        keep: (n,) which rows of the block there are; default: all.
        columns: Others of `rows_schema`.
    """
    n = len(base["source"])
    code = pa.array([code] * n, pa.string()) if code is None or isinstance(code, str) else code
    roles = pa.array(np.full(n, int(role), dtype=np.int8))
    made = pa.table({**base, "role": roles, "code": code, **columns})
    return made if keep is None else made.filter(keep)


def joined(*parts: Any) -> pa.ChunkedArray:
    """Texts with // between them; null where one is null."""
    return pc.binary_join_element_wise(*parts, "//")


def together(parts: Sequence[pa.Table]) -> pa.Table:
    """Rows of several kinds as one table."""
    return pa.concat_tables(parts, promote_options="default")


# ---- plain arrays, for the cleaning rules ------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PlainRows:
    """Rows of known persons as plain columns."""

    table: pa.Table
    subject_ids: Ints  # (s,) sorted
    subject: Ints  # (n,) place among `subject_ids`
    role: Ints  # (n,) numbers of `Role`
    time_us: Ints  # (n,) `NO_TIME` for null
    end_us: Ints  # (n,) as `time_us`
    code: Ints  # (n,) place among the table's codes, -1 for null
    source: Ints  # (n,)

    def of_role(self, *roles: Role) -> Bools:
        """(n,) which rows have one of these roles."""
        return among_roles(self.role, *roles)


def among_roles(role: Ints, *roles: Role) -> Bools:
    """(n,) which of these numbers are one of these roles."""
    found: Bools = role == roles[0]
    for one in roles[1:]:
        found |= role == one
    return found


def micros(column: pa.ChunkedArray) -> Ints:
    """(n,) microseconds since 1970, `NO_TIME` for null."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), NO_TIME).to_numpy(), dtype=np.int64)


def is_date(time_us: Ints) -> Bools:
    """(n,) whether a time is a date without a time of day."""
    return np.asarray((time_us % DAY_US == 0) & (time_us != NO_TIME))


def end_of_day(time_us: Ints) -> Ints:
    """The times, with midnight moved to the last second of the day."""
    return np.where(is_date(time_us), time_us + DAY_US - SECOND_US, time_us)


def day_of(time_us: Ints) -> Ints:
    """Midnight of the day of each time."""
    return time_us - time_us % DAY_US
