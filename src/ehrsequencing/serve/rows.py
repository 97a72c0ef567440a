"""Rows of a request → a table with the columns of MEDS."""

from datetime import datetime

import pyarrow as pa

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import Moment
from ehrsequencing.records.events import parse_date_us
from ehrsequencing.serve.predictor import Question
from ehrsequencing.serve.problems import Problem
from ehrsequencing.serve.shapes import PredictRequest

_EPOCH = datetime(1970, 1, 1)  # MEDS times have no zone


def question_of(request: PredictRequest, encounter_column: str | None) -> Question:
    """The question of a request.

    Raises:
        Problem: Rows of several subjects, or a moment that no calendar has.
    """
    rows = request.rows
    if len({row.subject_id for row in rows}) > 1:
        raise Problem(
            422,
            "the rows are of more than one subject",
            where="rows",
            fix="send one subject at a time",
        )
    columns = {
        "time": pa.array([row.time for row in rows], pa.timestamp("us")),
        "code": pa.array([row.code for row in rows], pa.string()),
        "numeric_value": pa.array([row.numeric_value for row in rows], pa.float64()),
    }
    if encounter_column is not None:
        ids = [None if row.encounter_id is None else str(row.encounter_id) for row in rows]
        columns[encounter_column] = pa.array(ids, pa.string())
    days = None if request.horizons_days is None else tuple(request.horizons_days)
    return Question(pa.table(columns), moment_of(request.at), days, _micros(request.until))


def moment_of(at: str) -> Moment:
    """The moment asked about.

    Raises:
        Problem: No calendar has it.
    """
    try:
        if at not in ("all", "last"):
            parse_date_us(at)
        return Moment(at)
    except EhrseqError:
        raise Problem(
            422, "is not a date of the calendar", where="at", fix="write it as 2026-03-01"
        ) from None


def _micros(time: datetime | None) -> int | None:
    if time is None:
        return None
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
