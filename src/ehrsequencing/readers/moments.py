"""Times of the cleaning rules, as microseconds since 1970."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.readers.import_report import RuleCounts
from ehrsequencing.records.events import DAY_US, SECOND_US

NO_TIME = np.iinfo(np.int64).min
OPEN = np.iinfo(np.int64).max - DAY_US  # the end of a period that has not ended


def micros(column: pa.ChunkedArray) -> Ints:
    """(n,) microseconds since 1970, `NO_TIME` for null."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), NO_TIME).to_numpy(), dtype=np.int64)


def end_of_day(time_us: Ints, counts: RuleCounts | None = None) -> Ints:
    """The times, with midnight moved to the last second of the day; each move is counted."""
    bare = (time_us % DAY_US == 0) & (time_us != NO_TIME)
    if counts is not None:
        counts["date_only"] += int(bare.sum())
    return np.where(bare, time_us + DAY_US - SECOND_US, time_us)


def day_of(time_us: Ints) -> Ints:
    """Midnight of the day of each time."""
    return time_us - time_us % DAY_US
