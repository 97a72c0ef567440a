"""The columns and roles of a reader's rows, before the cleaning rules turn them into MEDS rows."""

from enum import IntEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class Role(IntEnum):
    """What a row is. The cleaning rules depend on it."""

    EVENT = 0  # happened at `time`
    PERSON = 1  # this subject exists; born at `time`; makes no row where that is unknown
    STATIC = 2  # true without a time (sex)
    DEATH = 3
    VISIT = 4  # an encounter from `time` to `end`; other rows refer to it by `encounter_id`
    SPAN = 5  # anything else that starts and ends (a stay on a ward)
    OBSERVED = 6  # a period under observation


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


def clean_codes(code: pa.ChunkedArray | pa.Array) -> Any:
    """Codes without line breaks, NULs, runs of blanks and outer blanks, which MEDS readers refuse."""
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(code, r"[\s\x00]+", " "))
