"""The shape that every reader gives its rows, before the rules for messy records are applied."""

from collections import Counter
from collections.abc import Callable
from enum import IntEnum

import pyarrow as pa
import pyarrow.compute as pc

Progress = Callable[[int, int], None]


class Role(IntEnum):
    """What a row is, where a rule depends on it."""

    EVENT = 0  # happened at `time`
    PERSON = 1  # this subject exists; its birth at `time`, where that is known; makes no row without it
    STATIC = 2  # true without a time (sex)
    DEATH = 3
    VISIT = 4  # an encounter from `time` to `end`, which other rows name by `encounter_id`
    SPAN = 5  # anything else that starts and ends (a stay on a ward)
    OBSERVED = 6  # a period under observation


def rows_schema(encounter: pa.DataType) -> pa.Schema:
    """Columns of a reader's rows.

    A time at exactly midnight is a date without a time of day. Rows without a subject, code or (where they need one)
    time may be given: they are dropped and counted.

    Args:
        encounter: Type of the encounter's name.
    """
    return pa.schema(
        {
            "subject_id": pa.int64(),
            "role": pa.int8(),
            "time": pa.timestamp("us"),
            "end": pa.timestamp("us"),
            "code": pa.string(),
            "numeric_value": pa.float32(),
            "text_value": pa.large_string(),
            "encounter_id": encounter,
            "source": pa.int64(),  # which row of which table it comes from, as the account numbers them
        }
    )


RULES = {
    "malformed_line": "lines with a stray quote or another number of fields than the header were dropped",
    "no_person": "rows without a readable person id were dropped",
    "unknown_person": "rows of persons that the table of persons lacks were dropped",
    "no_time": "rows without a readable date were dropped",
    "no_code": "rows without a code were dropped",
    "unmapped": "rows whose concept is 0 or missing were kept as OMOP//0//DOMAIN, without their number",
    "fixed_code": "line breaks and runs of blanks in codes became one blank",
    "duplicates": "rows that repeat another row exactly were dropped",
    "dangling_encounter": "rows whose visit does not exist for that person were kept without it",
    "date_only": "dates without a time were put at the end of their day, or of their visit where that is earlier",
    "end_before_start": "ends that lie before their start were dropped",
    "open_end": "ends in the far future were dropped: they mean that nothing had ended yet",
    "two_births": "persons with several births got the earliest",
    "two_deaths": "persons with several deaths got the earliest",
    "no_birth": "persons have no date of birth: their age is unknown",
    "overlapping_periods": "observation periods that overlap or touch were merged",
    "negative_ids": "persons have a negative id, which is kept",
    "nobody": "persons without any row of their own were left out",
}

Counts = Counter[str]  # how often each rule of RULES was applied


def clean_codes(code: pa.ChunkedArray) -> pa.ChunkedArray:
    """Codes without line breaks, NULs, runs of blanks, and blanks around them, which MEDS readers refuse."""
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(code, r"[\s\x00]+", " "))
