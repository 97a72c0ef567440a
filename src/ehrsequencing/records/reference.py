"""Reference records: made-up people whose risks a run keeps, so that a moved answer is noticed before it is used.

`prepare` draws and encodes them. No row of a patient is among them: codes are drawn from the vocabulary, numbers by the
mean and deviation of each code.
"""

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ehrsequencing.config import VisitsConfig
from ehrsequencing.core.files import write_json
from ehrsequencing.records.account import ReferenceColumns
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import BIRTH, DAY_US, Events
from ehrsequencing.records.timelines import (
    ArrayAppender,
    TaskRecords,
    TaskRows,
    Timelines,
    open_arrays,
)
from ehrsequencing.records.visits import make_record
from ehrsequencing.records.vocabulary import Vocabulary

# of a prepared set: the records, column by column, and the folder of their arrays; of a run: with their risks
REFERENCE, ARRAYS = "reference.json", "reference"
_SHAPE = (20, 16)  # people, and rows of each


def write_reference(
    folder: Path, vocabulary: Vocabulary, excluded: CodeMatcher, visits: VisitsConfig
) -> None:
    """Draw the records, and write them and their arrays into the folder of a prepared set."""
    columns = draw_reference(vocabulary)
    records = encode_reference(columns, vocabulary, excluded, visits)
    write_json(folder / REFERENCE, columns)
    with ExitStack() as stack:
        writer = ArrayAppender(stack)
        writer.append(folder / ARRAYS / "visits", records.timelines)
        writer.append(folder / ARRAYS / "rows", records.rows)


def read_reference(folder: Path) -> TaskRecords:
    """The arrays that `write_reference` wrote."""
    place = folder / ARRAYS
    return TaskRecords(
        open_arrays(Timelines, place / "visits"), open_arrays(TaskRows, place / "rows")
    )


def draw_reference(vocabulary: Vocabulary) -> ReferenceColumns:
    """Columns of the records: each person has a birth, a code that no run knows, and codes of the vocabulary."""
    random, known = np.random.default_rng(0), len(vocabulary.codes)
    place = random.integers(0, known + 1, _SHAPE)
    place[:, :2] = known + 1, known
    gaps = random.integers(-20, 45, _SHAPE).clip(0) ** 2  # short ones are frequent
    days = np.cumsum(gaps, axis=1)
    code = np.array([*vocabulary.codes, "MADE_UP//UNKNOWN", BIRTH])[place]
    # the row of each code among the means; the last row is added for codes without numbers
    scale = np.r_[vocabulary.scale[vocabulary.n_unknown :][:known], -1, -1][place]
    mean, sd = (np.r_[numbers, 0.0][scale] for numbers in (vocabulary.mean, vocabulary.sd))
    return {
        "subject": np.indices(_SHAPE)[0].ravel().tolist(),
        "day": days.ravel().tolist(),
        "code": code.ravel().tolist(),
        "value": (mean + sd * random.standard_normal(_SHAPE)).ravel().tolist(),
    }


def encode_reference(
    columns: ReferenceColumns, vocabulary: Vocabulary, excluded: CodeMatcher, visits: VisitsConfig
) -> TaskRecords:
    """The records with a prediction time at the end of every visit; every other person is asked by a query there."""
    codes, code = np.unique(np.array(columns["code"], dtype=str), return_inverse=True)
    subject, day = (np.array(one, dtype=np.int64) for one in (columns["subject"], columns["day"]))
    value, alone = np.array(columns["value"], np.float32), np.full(len(code), -1, np.int32)
    events = Events(
        subject, day * DAY_US, code.astype(np.int32), tuple(codes.tolist()), value, alone
    )
    record = make_record(events, excluded=excluded, settings=visits)
    own, nothing = record.visits, np.zeros(len(record.visits))
    rows = CohortRows(
        subject=own.subject,
        prediction_us=own.end_us,
        index_us=own.start_us,
        is_query=own.subject % 2 == 0,
        visits_before=1 + np.arange(len(own)) - np.searchsorted(own.subject, own.subject),
        duration_days=nothing,
        cause=nothing.astype(np.int8),
        entry_days=nothing,
    )
    timelines = encode_timelines(record, vocabulary)[0]
    return TaskRecords(timelines, encode_rows(record, rows, vocabulary))
