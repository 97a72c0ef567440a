"""Which prediction times are asked about."""

import re
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.events import opens_run, parse_date_us
from ehrsequencing.records.timelines import TaskRows

_NAMED = ("all", "last", "index", "every-index")
KINDS = ("index", "landmark", "visit", "date")  # what a prediction time is


@dataclass(frozen=True)
class Moment:
    """Which prediction times to use.

    Every one (`all`), each subject's newest (`last`), at each subject's newest index (`index`) or at each of them
    (`every-index`), or a date.

    Raises:
        EhrseqError: It is none of these.
    """

    at: str = "all"

    def __post_init__(self) -> None:
        if self.at in _NAMED:
            return
        if not re.match(r"\d{4}-\d{2}-\d{2}", self.at):
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

    def chosen(self, rows: CohortRows | TaskRows) -> Bools:
        """(R,) which rows are asked about."""
        is_chosen = np.ones(len(rows), dtype=bool)
        if self.at in ("index", "every-index"):
            is_chosen = rows.prediction_us == rows.index_us
        if self.at in ("last", "index"):
            places = np.flatnonzero(is_chosen)
            is_newest = opens_run(rows.subject[places][::-1])[::-1]
            is_chosen = np.zeros(len(rows), dtype=bool)
            is_chosen[places[is_newest]] = True
        return is_chosen

    def kind(self, rows: TaskRows) -> Ints:
        """(R,) number of each row's kind among `KINDS`."""
        if self.as_of_us is not None:
            return np.full(len(rows), KINDS.index("date"))
        is_index = rows.prediction_us == rows.index_us
        return np.where(is_index, KINDS.index("index"), np.where(rows.is_query, 1, 2))
