"""Made-up records of a run's own codes, with which an export is checked against the run: nobody's data is needed."""

from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.export.example import ExportedRun, Row
from ehrsequencing.prediction.predict import Encoder, horizons_of, start_days_of
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.events import BIRTH, DAY_US, STATIC, Events
from ehrsequencing.records.visits import Record, make_record
from ehrsequencing.training.inference import risk_of_rows

_START_US = 1_500_000_000_000_000  # in 2017
_HOUR_US = DAY_US // 24


@dataclass(frozen=True)
class Question:
    """A record, and a moment at which the risk is asked: by a query, or at the end of the last visit."""

    rows: list[Row]
    at_us: int
    is_query: bool


def sample_questions(run: Run, count: int, *, seed: int = 0) -> list[Question]:
    """Random records: known and unknown codes, with and without numbers, equal times, and unknown ages."""
    chance = np.random.default_rng(seed)
    codes = [*run.vocabulary.codes, "LAB//UNKNOWN", "UNKNOWN"]
    numbers = run.vocabulary.knots.ravel() if run.vocabulary.knots.size else np.zeros(1)
    found = []
    for number in range(count):
        days = np.sort(chance.integers(0, 2_000, size=chance.integers(1, 12)))
        rows: list[Row] = [
            (None, codes[k], None) for k in chance.integers(0, len(codes), size=number % 4)
        ]
        if number % 5:
            rows.append((_START_US - int(chance.integers(20, 90) * 366 * DAY_US), BIRTH, None))
        for day in days.tolist():
            for _ in range(int(chance.integers(1, 9))):
                value = (
                    None
                    if chance.random() < 0.4
                    else float(np.float32(chance.choice(numbers) + chance.normal()))
                )
                time = _START_US + day * DAY_US + int(chance.integers(0, 6)) * _HOUR_US
                rows.append((time, codes[int(chance.integers(0, len(codes)))], value))
        record = record_of(run, rows)
        ends = record.visits.end_us
        is_query = run.is_visit_head is False and number % 2 == 0
        last = int(ends[-1]) if len(ends) else _START_US
        at = last + int(chance.integers(0, 3)) * 40 * DAY_US if is_query else last
        if len(ends) or is_query:
            found.append(Question(rows, at, is_query))
    return found


def record_of(run: Run, rows: list[Row]) -> Record:
    """A record of rows in memory, without the fixes of a data set: the rows need none."""
    rows = sorted(dict.fromkeys(rows), key=lambda row: STATIC if row[0] is None else row[0])
    names = tuple(dict.fromkeys(code for _, code, _ in rows))
    events = Events(
        subject_id=np.zeros(len(rows), np.int64),
        time_us=np.array([STATIC if t is None else t for t, _, _ in rows], dtype=np.int64),
        code=np.array([names.index(code) for _, code, _ in rows], dtype=np.int32),
        codes=names,
        value=np.array(
            [np.nan if value is None else value for _, _, value in rows], dtype=np.float32
        ),
    )
    return make_record(events, excluded=Encoder.of(run, {}).excluded, settings=run.study.visits)


def own_risk(run: Run, question: Question) -> Floats:
    """(causes, horizons) what the run's network says."""
    known = [row for row in question.rows if row[0] is None or row[0] <= question.at_us]
    record = record_of(run, known)
    one = np.ones(1)
    rows = CohortRows(
        subject=np.zeros(1, np.int64),
        prediction_us=np.array([question.at_us]),
        index_us=np.array([question.at_us]),
        is_query=np.array([question.is_query]),
        visits_before=np.array([len(record.visits)]),
        duration_days=one * np.nan,
        cause=np.zeros(1, np.int8),
        entry_days=0 * one,
    )
    records = Encoder.of(run, {}).encode(record, rows)
    days = [float(day) for day in horizons_of(run, None) if day is not None]
    found = risk_of_rows(
        run.model,
        records,
        horizons_days=days,
        code_types=run.code_types,
        start_days=start_days_of(run),
    )
    return np.asarray(found[0], dtype=np.float64)


def worst_difference(run: Run, exported: ExportedRun, questions: list[Question]) -> float:
    """The largest difference of a risk between the export and the run; infinite where one of them is NaN."""
    worst = 0.0
    for question in questions:
        found = exported.predict(question.rows, at_us=question.at_us, query=question.is_query)[
            "risk"
        ]
        gap = float(np.abs(found - own_risk(run, question)).max())
        worst = max(worst, gap if np.isfinite(gap) else np.inf)
    return worst
