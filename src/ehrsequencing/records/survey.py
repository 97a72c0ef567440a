"""The survey: one pass over all shards of a data set, before anything is made of its records.

Every survey collects the subjects and the rows by day, which tell where the data ends. Whatever else a user needs is a
`Part`. If a few rows lie far after all others, the pass is made again without them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import pandas as pd

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import BIRTH, DAY_US, DEATH, NEVER, STATIC, Events, opens_run
from ehrsequencing.records.meds import (
    OPEN_DAY,
    OPEN_GAP_DAYS,
    LateRows,
    MedsReader,
    refuse_scattered,
)
from ehrsequencing.records.vocabulary import Vocabulary

Progress = Callable[[int, int], None]  # called with (pieces of work done, pieces to do)

# A few rows long after all others (an open end written as 2099-12-31, a typing error) must not extend everybody's
# follow-up. They are late if they are few, of few subjects, and follow a gap far longer than those between other rows,
# since dates that were shifted person by person are spread thinly everywhere.
FEWEST_SUBJECTS = 11  # with fewer, a late row looks like a thin record
FEW_SUBJECTS = 100  # with fewer, only a gap of ten years counts
GAP_DAYS = 365
MOST_ROWS = 0.01  # share that late rows are at most; one row is always few
MOST_SUBJECTS = 0.05  # share that their subjects are at most
TIMES_LONGER = 3  # than any gap that has more than `MOST_ROWS` on both sides


@dataclass(frozen=True)
class DayCounts:
    """Rows on each day that has any, so that shards can be added up in any order."""

    day: Ints  # (D,) int64 days since 1970, rising
    rows: Ints  # (D,) rows but births
    births: Ints  # (D,) births
    deaths: Ints  # (D,) deaths, which `rows` count too
    leaving: Ints  # (D,) subjects whose last row it is
    last_us: int  # the latest time, late rows apart; `STATIC` without any
    static: int  # rows without a time
    with_number: int  # rows with a number
    content: int = 0  # of all rows (`Events.content`)

    @property
    def years(self) -> list[int]:
        """The first and the last year with a row but births; empty without any."""
        recorded = self.day[self.rows > 0]
        return [_year(recorded[0]), _year(recorded[-1])] if len(recorded) else []


_OF_DAYS = ("day", "rows", "births", "deaths", "leaving")


def count_days(events: Events, late: LateRows | None = None) -> DayCounts:
    """Count a shard, which holds whole subjects; late rows do not move its last time."""
    timed = np.flatnonzero(events.time_us != STATIC)
    until_us = NEVER if late is None else late.until_us
    day = events.time_us[timed] // DAY_US
    first = int(day.min(initial=0))
    is_birth = events.is_code(BIRTH)[timed]
    is_last = np.append(opens_run(events.subject_id)[1:], True)[timed]  # of its subject
    rows, births, deaths, leaving = (
        np.bincount(day[chosen] - first, minlength=int(day.max(initial=0)) - first + 1)
        for chosen in (~is_birth, is_birth, events.is_code(DEATH)[timed], is_last)
    )
    days = np.flatnonzero(rows + births)
    return DayCounts(
        day=days + first,
        rows=rows[days],
        births=births[days],
        deaths=deaths[days],
        leaving=leaving[days],
        last_us=int(events.time_us[events.time_us <= until_us].max(initial=STATIC)),
        static=len(events) - len(timed),
        with_number=int(np.count_nonzero(~np.isnan(events.value))),
        content=events.content,
    )


def find_late_rows(days: DayCounts) -> LateRows | None:
    """The late rows of a data set; None where there are none.

    Births do not count, since they need not fall into the time that was recorded, unless they follow all other rows.
    """
    # deaths written as 2099-12-31, however many: nobody has died yet, and all else is judged without them
    is_open = (days.day >= OPEN_DAY) & (days.deaths > 0)
    others = days.rows - np.where(is_open, days.deaths, 0)
    if not (days.rows > days.deaths).any():
        return None
    # few rows, of few subjects, after a gap that is longer than any usual one
    n_subjects, is_late = int(days.leaving.sum()), np.zeros(len(days.day), dtype=bool)
    if n_subjects >= FEWEST_SUBJECTS:
        last_day = days.day[others > 0][-1]
        counted = others + np.where(days.day > last_day, days.births, 0)
        nonempty = np.flatnonzero(counted)
        rows = np.cumsum(counted[nonempty])
        gap, before, after = np.diff(days.day[nonempty]), rows[:-1], rows[-1] - rows[:-1]
        few = max(1, int(MOST_ROWS * rows[-1]))
        usual = int(gap[(before > few) & (after > few)].max(initial=0))
        least = GAP_DAYS if n_subjects >= FEW_SUBJECTS else OPEN_GAP_DAYS
        # whoever only leaves by a death on an open day does not stay until then
        leaving = np.where(is_open, np.minimum(days.leaving, others), days.leaving)
        staying = np.cumsum(leaving[::-1])[::-1][nonempty[1:]]  # then or later
        few_subjects = max(1, int(MOST_SUBJECTS * n_subjects))
        is_far = gap > max(least, TIMES_LONGER * usual)
        is_late[nonempty[1:]] = (after <= few) & (staying <= few_subjects) & is_far
    last = days.day[(others > 0) & ~is_late][-1]
    is_late |= is_open & (days.day > last + OPEN_GAP_DAYS)
    if not is_late.any():
        return None
    first = int(np.argmax(is_late))
    with_rows = days.day[:first][days.rows[:first] > 0]
    last = int(with_rows[-1] if len(with_rows) else days.day[first - 1])
    return LateRows(
        until_us=(last + 1) * DAY_US - 1,
        rows=int((days.rows + days.births)[first:].sum()),
        subjects=int(days.leaving[first:].sum()),
        gap_days=int(days.day[first]) - last,
        years=(_year(days.day[first]), _year(days.day[-1])),
    )


def _year(day: int) -> int:
    return int(np.datetime64(int(day), "D").astype("datetime64[Y]").astype(np.int64)) + 1970


class Part:
    """What a survey counts beside subjects and days."""

    def add(self, events: Events) -> None:
        """Count one shard."""

    def shards(self, reader: MedsReader) -> Iterator[tuple[Ints, DayCounts]]:
        """Read and count every shard; yields its distinct subject ids and its rows by day."""
        for path in reader.shards:
            events = reader.read(path)
            self.add(events)
            yield events.subjects[0], count_days(events, reader.late)


Counted = TypeVar("Counted", bound=Part)


@dataclass(frozen=True)
class Survey(Generic[Counted]):
    """What is in a data set."""

    subject_id: Ints  # (S,) all subjects, sorted
    days: DayCounts  # rows by day
    end_us: int  # the data's end: as `data.extracted` says, else the last timestamp
    part: Counted  # what else was counted


def survey(
    reader: MedsReader, new_part: Callable[[], Counted], tick: Callable[[], None] = lambda: None
) -> Survey[Counted]:
    """Survey a data set; from then on `reader` drops its late rows.

    With `data.extracted`, later rows are refused and none is late.

    Args:
        reader: The data set.
        new_part: Makes what else is counted, empty; called again for a second pass.
        tick: Called after each shard.

    Raises:
        EhrseqError: A shard cannot be used, a subject is in two of them, or nobody has a timed row.
    """
    while True:
        part, ids, counts = new_part(), list[Ints](), list[DayCounts]()
        for subject_id, of_shard in part.shards(reader):
            ids.append(subject_id)
            counts.append(of_shard)
            tick()
        refuse_scattered(ids, reader.shards)
        every = np.sort(np.concatenate(ids))
        frames = [pd.DataFrame({n: getattr(one, n) for n in _OF_DAYS}) for one in counts]
        total = pd.concat(frames).groupby("day").sum()
        days = DayCounts(
            day=total.index.to_numpy(),
            **{name: total[name].to_numpy() for name in total.columns},
            last_us=max(one.last_us for one in counts),
            static=sum(one.static for one in counts),
            with_number=sum(one.with_number for one in counts),
            content=sum(one.content for one in counts) % 2**64,
        )
        if not len(every):
            raise EhrseqError(
                "holds no subject with a timed row",
                where=str(reader.data),
                fix="check the data set",
            )
        is_first = reader.declared_us is None and reader.late is None
        late = find_late_rows(days) if is_first else None
        if late is None:
            end_us = days.last_us if reader.declared_us is None else reader.declared_us
            return Survey(every, days, end_us, part)
        reader.late, reader.fixes, reader.people = late, Counter(), Counter()


@dataclass
class Steps:
    """Counts pieces of work for a progress bar: the shards of a survey, then `after` more."""

    reader: MedsReader
    after: int
    progress: Progress | None
    done: int = 0
    total: int = 0  # pieces to do, known from the first one on

    def __call__(self) -> None:
        """One more piece is done."""
        self.done += 1
        passes = 1 if self.reader.late is None else 2  # a second one reads every shard again
        self.total = max(self.done, passes * len(self.reader.shards) + self.after)
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass
class CodeCounts(Part):
    """Counts the subjects and the rows of each code, and the subjects with any code of each group (`people`)."""

    groups: Sequence[CodeMatcher] = ()
    subjects: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    people: Counter[int] = field(default_factory=Counter)

    def add(self, events: Events) -> None:
        """Count one shard."""
        pairs = np.unique(np.stack([events.code.astype(np.int64), events.subject_id]), axis=1)
        for counter, codes in ((self.rows, events.code), (self.subjects, pairs[0])):
            counts = np.bincount(codes, minlength=len(events.codes)).tolist()
            counter.update(dict(zip(events.codes, counts, strict=True)))
        for place, group in enumerate(self.groups):
            self.people[place] += len(np.unique(pairs[1][group.mask(events.codes)[pairs[0]]]))

    def unknown(self, vocabulary: Vocabulary, excluded: CodeMatcher) -> dict[str, int]:
        """Codes that make a token which `vocabulary` does not know → subjects, most first."""
        codes = tuple(code for code, _ in self.subjects.most_common() if not excluded(code))
        is_unknown = vocabulary.ids(codes) < vocabulary.n_unknown
        new = zip(codes, is_unknown, strict=True)
        return {code: self.subjects[code] for code, is_new in new if is_new}
