"""Where a data set ends: at its last row, unless a few rows come long after all others.

An open end written as 2099-12-31, or a typing error, must not extend everybody's follow-up. Rows are late if they are
few, belong to few subjects, and follow a long gap without any row. Where dates were shifted person by person, rows are
spread thinly and gaps are long everywhere, so the gap must also be far longer than those between the other rows.

Rows are counted by day, so that shards can be added up in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Ints
from ehrsequencing.records.events import BIRTH, DAY_US, STATIC, Events

FEWEST_SUBJECTS = 10  # with fewer, a late row looks like a thin record
FEW_SUBJECTS, SMALL_GAP_DAYS = 100, 3652  # below so many subjects, only a gap of ten years counts
GAP_DAYS = 365
# shares of the data that late rows are of, at most; one is always few
MOST_ROWS, MOST_SUBJECTS = (
    0.01,
    0.05,
)
TIMES_LONGER = 3  # than any gap that has more than `MOST_ROWS` on both sides


@dataclass(frozen=True)
class DayCounts:
    """Rows on each day that has any."""

    day: Ints  # (D,) int64 days since 1970, rising
    rows: Ints  # (D,) rows but births
    births: Ints  # (D,) births
    leaving: Ints  # (D,) subjects whose last row it is
    last_us: int  # the latest time; `STATIC` without any

    @classmethod
    def of(cls, events: Events) -> "DayCounts":
        """Count a shard, which holds whole subjects."""
        last = events.time_us[np.append(events.starts[1:], len(events))[: len(events.starts)] - 1]
        last = last[last != STATIC]
        timed = events.time_us[np.flatnonzero(events.time_us != STATIC)] // DAY_US
        if not len(timed):
            none = np.zeros(0, np.int64)
            return cls(none, none, none, none, int(STATIC))
        start, n = int(timed.min()), int(timed.max() - timed.min()) + 1
        born = (
            events.time_us[np.flatnonzero(events.is_code(BIRTH) & (events.time_us != STATIC))]
            // DAY_US
        )
        rows, births = (
            np.bincount(timed - start, minlength=n),
            np.bincount(born - start, minlength=n),
        )
        leaving = np.bincount(last // DAY_US - start, minlength=n)
        day = np.flatnonzero(rows)
        return cls(
            day + start, (rows - births)[day], births[day], leaving[day], int(events.time_us.max())
        )

    @classmethod
    def added(cls, parts: Sequence["DayCounts"]) -> "DayCounts":
        """The counts of all parts together."""
        day, place = np.unique(np.concatenate([part.day for part in parts]), return_inverse=True)
        sums = {}
        for name in ("rows", "births", "leaving"):
            sums[name] = np.zeros(len(day), dtype=np.int64)
            np.add.at(sums[name], place, np.concatenate([getattr(part, name) for part in parts]))
        return cls(day, **sums, last_us=max(part.last_us for part in parts))


@dataclass(frozen=True)
class LateRows:
    """Rows so long after all others that the data ends before them."""

    until_us: int  # the last microsecond of the last day before them
    rows: int  # how many
    subjects: int  # of how many subjects
    gap_days: int  # days without any row before them
    years: tuple[int, int]  # the first and the last of their years

    @property
    def text(self) -> str:
        """The rows in words; dates are shown as years only."""
        years = " to ".join(map(str, dict.fromkeys(self.years)))
        what = f"{self.rows:,} rows of {self.subjects:,} subjects, in {years}"
        return f"{what}, after {self.gap_days:,} days without any row"


def find_late_rows(days: DayCounts) -> LateRows | None:
    """The late rows of a data set; None where there are none.

    Births do not count, since they need not fall into the time that was recorded, unless they follow all other rows.
    """
    n_subjects = int(days.leaving.sum())
    recorded = days.day[days.rows > 0]
    if n_subjects < FEWEST_SUBJECTS or not len(recorded):
        return None
    counted = days.rows + np.where(days.day > recorded[-1], days.births, 0)
    kept = np.flatnonzero(counted)
    day, rows = days.day[kept], np.cumsum(counted[kept])
    # subjects with a row on that day or later
    staying = (n_subjects - np.cumsum(days.leaving) + days.leaving)[kept]
    gap, before, after = np.diff(day), rows[:-1], rows[-1] - rows[:-1]
    few = max(1, int(MOST_ROWS * rows[-1]))
    usual = int(gap[(before > few) & (after > few)].max(initial=0))
    enough = max(GAP_DAYS if n_subjects >= FEW_SUBJECTS else SMALL_GAP_DAYS, TIMES_LONGER * usual)
    is_late = (
        (after <= few) & (staying[1:] <= max(1, int(MOST_SUBJECTS * n_subjects))) & (gap > enough)
    )
    if not is_late.any():
        return None
    first = int(np.argmax(is_late)) + 1
    late = days.day >= day[first]
    return LateRows(
        until_us=(int(day[first - 1]) + 1) * DAY_US - 1,
        rows=int((days.rows + days.births)[late].sum()),
        subjects=int(staying[first]),
        gap_days=int(gap[first - 1]),
        years=(_year(int(day[first])), _year(int(day[-1]))),
    )


def _year(day: int) -> int:
    return int(np.datetime64(day, "D").astype("datetime64[Y]").astype(np.int64)) + 1970
