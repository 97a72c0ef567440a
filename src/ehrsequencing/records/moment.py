"""Which prediction times are asked about."""

import re
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.durations import day_of
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.events import DAY_US, STATIC, opens_run, parse_date_us
from ehrsequencing.records.timelines import TaskRows

_NAMED = ("all", "last", "index", "every-index")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
KINDS = ("index", "landmark", "visit", "date")  # what a prediction time is


@dataclass(frozen=True)
class Moment:
    """Which prediction times to use.

    Every one (`all`), each subject's newest (`last`), at each subject's newest index (`index`) or at each of them
    (`every-index`), or a date. `since` keeps the people whose index lies no longer before that date, or before the
    data's end, as in 14d, or at this date or later.

    Raises:
        EhrseqError: It is none of these.
    """

    at: str = "all"
    since: str | None = None

    def __post_init__(self) -> None:
        self.since_us(0)  # a wrong one is refused before anything is read
        if self.at in _NAMED:
            return
        if not _DATE.match(self.at):
            raise EhrseqError(
                f"{self.at!r} is not a date",
                where="--at",
                fix=f"use {', '.join(_NAMED)} or a date: 2026-03-01",
            )
        parse_date_us(self.at)

    @property
    def as_of_us(self) -> int | None:
        """The date, at midnight unless it has a time of day."""
        return None if self.at in _NAMED else parse_date_us(self.at)

    def since_us(self, end_us: int) -> int:
        """The earliest index of the people who are asked about; `end_us` is the data's end."""
        if self.since is None or _DATE.match(self.since):
            return STATIC if self.since is None else parse_date_us(self.since)
        now_us = end_us if self.as_of_us is None else self.as_of_us
        return now_us - round(day_of(self.since, where="--since") * DAY_US)

    def chosen(self, rows: CohortRows | TaskRows, end_us: int = 0) -> Bools:
        """(R,) which rows are asked about."""
        is_chosen = np.ones(len(rows), dtype=bool)
        if self.at in ("index", "every-index"):
            is_chosen = rows.prediction_us == rows.index_us
        if self.at in ("last", "index"):
            places = np.flatnonzero(is_chosen)
            is_newest = opens_run(rows.subject[places][::-1])[::-1]
            is_chosen = np.zeros(len(rows), dtype=bool)
            is_chosen[places[is_newest]] = True
        return np.asarray(is_chosen & (rows.index_us >= self.since_us(end_us)))

    def kind(self, rows: TaskRows) -> Ints:
        """(R,) number of each row's kind among `KINDS`."""
        if self.as_of_us is not None:
            return np.full(len(rows), KINDS.index("date"))
        is_index = rows.prediction_us == rows.index_us
        return np.where(is_index, KINDS.index("index"), np.where(rows.is_query, 1, 2))
