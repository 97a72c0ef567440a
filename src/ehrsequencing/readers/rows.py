"""What a reader gives to the writer: rows of a few columns, ids of patients, and what it knows of the codes."""

import hashlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ehrsequencing.core.arrays import Ints, Ints32

SUBJECT_IDS = "metadata/subject_ids.parquet"
END_SUFFIX = "//END"  # the end of a visit or stay has the code of its start with this suffix
PERIOD_START = "OBSERVATION_PERIOD_START"
_MANY = 1 << 62  # combinations that a number of 8 bytes can tell apart


class Role(IntEnum):
    """What a row is. The cleaning rules depend on it."""

    EVENT = 0  # happened at `time`
    PERSON = 1  # this subject exists; born at `time`; makes no row where that is unknown
    STATIC = 2  # true without a time (sex)
    DEATH = 3
    VISIT = 4  # an encounter from `time` to `end`; other rows refer to it by `encounter_id`
    SPAN = 5  # anything else that starts and ends (a stay on a ward)
    OBSERVED = 6  # a period under observation, with the code `PERIOD_START`
    REPORTED = 7  # began between `time` and `end`, and was reported in its visit: when it became known is not said
    NAMED_VISIT = 8  # only the id of an encounter, and its `time` and `end` where these are known; makes no row
    ISSUED = 9  # a result that became available at `time`: of its encounter only until that ends


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
            # of a visit: of an inpatient, emergency, observation or intensive-care class
            "acute": pa.bool_(),
            # of a visit: whether its end was a death, as the source says; null where it does not say
            "died": pa.bool_(),
            "source": pa.int64(),  # the number of the source's row, from `TableCounts.take`
        }
    )


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


# ---- values as numbers -------------------------------------------------------------------------


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column as places among its distinct values; one that is of a dictionary stays as it is."""
    if not pa.types.is_dictionary(column.type):
        return column.combine_chunks().dictionary_encode()
    column = column.unify_dictionaries() if column.num_chunks > 1 else column
    return column.combine_chunks()


def places(column: pa.DictionaryArray) -> Ints:
    """(n,) place of each value in the dictionary, -1 for null."""
    number = pc.fill_null(column.indices, -1)
    return np.asarray(number.to_numpy(zero_copy_only=False), dtype=np.int64)


def packed(columns: Sequence[Ints]) -> Ints:
    """(n,) one number for the numbers of some columns, none below 0, in the order of these.

    >>> packed([np.array([2, 0, 2]), np.array([5, 9, 5])]).tolist()
    [25, 9, 25]
    """
    number, kinds = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        if kinds * size > _MANY:  # ranks have the same order
            number, column = (np.unique(x, return_inverse=True)[1] for x in (number, column))
            kinds, size = len(number) + 1, len(number) + 1
        number = number * size + column
        kinds *= size
    return number


def combinations(columns: Mapping[str, pa.ChunkedArray]) -> tuple[pa.Table, Ints32]:
    """The distinct combinations of the values of some columns, and (n,) the place of each row's combination.

    >>> few, place = combinations({"a": pa.chunked_array([[1, 1, None]]), "b": pa.chunked_array([["x", "x", "y"]])})
    >>> few.to_pylist(), place.tolist()
    ([{'a': 1, 'b': 'x'}, {'a': None, 'b': 'y'}], [0, 0, 1])
    """
    number = packed([places(encoded(column)) + 1 for column in columns.values()])
    place = pa.array(number).dictionary_encode()
    at = place.indices.to_numpy()
    first = np.empty(len(place.dictionary), dtype=np.int64)
    first[at[::-1]] = np.arange(len(at))[::-1]  # the last write is the first row
    return pa.table({name: column.take(pa.array(first)) for name, column in columns.items()}), at


# ---- codes -------------------------------------------------------------------------------------


def joined(*parts: Any) -> pa.ChunkedArray:
    """Texts with // between them; null where one is null."""
    return pc.binary_join_element_wise(*parts, "//")


def clean_codes(code: pa.ChunkedArray | pa.Array) -> Any:
    """Codes without line breaks, NULs, runs of blanks and outer blanks, which MEDS readers refuse."""
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(code, r"[\s\x00]+", " "))


class CodeFacts(NamedTuple):
    """A code's entry in `codes.parquet`."""

    description: str | None = None
    parents: tuple[str, ...] = ()


class CodeBook:
    """Descriptions and parents of the codes read so far.

    Attributes:
        facts: Of each code the first description in alphabetical order, so that the order of rows does not matter, and
            its parent.
    """

    def __init__(self) -> None:
        self.facts: dict[str, CodeFacts] = {}

    def add(self, code: Any, description: Any = None, parent: Any = None) -> None:
        """Take the (n,) codes of some rows with their descriptions and parents, null where unknown."""
        nothing = pa.nulls(len(code), pa.string())
        facts = {"description": description, "parent": parent}
        given = {name: nothing if column is None else column for name, column in facts.items()}
        table = pa.table({"code": code, **given}).filter(pc.is_valid(code))
        least = [(name, "min") for name in facts]
        for row in table.group_by("code", use_threads=False).aggregate(least).to_pylist():
            before = self.facts.get(row["code"], CodeFacts())
            texts = [text for text in (before.description, row["description_min"]) if text]
            parents = (row["parent_min"],) if row["parent_min"] else before.parents
            self.facts[row["code"]] = CodeFacts(min(texts, default=None), parents)


# ---- ids of patients ---------------------------------------------------------------------------


def subject_ids(names: pa.ChunkedArray) -> pa.Array:
    """The first 63 bits of the SHA-256 of each name, so that a patient has the same id in every export.

    >>> subject_ids(pa.chunked_array([["a", "a", None]])).to_pylist()
    [7299139317422481125, 7299139317422481125, None]
    """
    few = encoded(names)
    digests = [hashlib.sha256(name.encode()).digest() for name in few.dictionary.to_pylist()]
    hashes = [int.from_bytes(digest[:8], "big") >> 1 for digest in digests]
    return pa.array(hashes, pa.int64()).take(few.indices)


class SubjectNames:
    """The patients' names in a source, which `metadata/subject_ids.parquet` keeps beside their ids."""

    def __init__(self) -> None:
        self._names: list[pa.Array] = []

    def add(self, names: pa.ChunkedArray) -> None:
        """Take the names of a block of patients."""
        self._names.append(pc.unique(names).drop_null())

    def write(self, folder: Path) -> None:
        """Write the table."""
        names = pc.unique(pa.chunked_array(self._names, pa.string()))
        ids = subject_ids(pa.chunked_array([names]))
        path = folder / SUBJECT_IDS
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({"subject_id": ids, "source_id": names})
        pq.write_table(table.sort_by("subject_id"), path)
