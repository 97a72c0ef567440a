"""What is asked of a prediction, and refused before a model is loaded: which prediction times, and the output."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import refuse_overlap
from ehrsequencing.core.outputs import PREDICTIONS, refuse_existing
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.events import opens_run, parse_date_us
from ehrsequencing.records.meds import find_shards
from ehrsequencing.records.timelines import TaskRows

_NAMED = ("all", "last", "index", "every-index")
SUFFIXES = (".parquet", ".csv", ".csv.gz")  # of files of predictions
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


def refuse_early(out: Path, data: Path, at: str, *, overwrite: bool) -> Moment:
    """Refuse what is wrong with the arguments of a prediction before a model is loaded.

    Raises:
        EhrseqError: The output may not be written, the data is no data set, or `at` is no moment.
    """
    refuse_existing(out, PREDICTIONS, overwrite=overwrite)
    require_suffix(out)
    find_shards(data)
    refuse_overlap(out, data)
    return Moment(at)


def require_suffix(
    out: Path, suffixes: tuple[str, ...] = SUFFIXES, *, what: str = "predictions"
) -> None:
    """Refuse a file name whose ending is not that of a format for predictions, or for something else."""
    if not out.name.endswith(suffixes):
        raise EhrseqError(
            f"does not end in a format for {what}",
            where=str(out),
            fix=f"end its name with {', '.join(suffixes[:-1])} or {suffixes[-1]}",
        )
