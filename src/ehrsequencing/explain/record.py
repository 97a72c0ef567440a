"""One subject's record as a run sees it, and copies of it without some of its rows.

Explanations ask what the risk would be without a code. They must therefore start from the rows of the record and not
from tokens: a summary that a query carries, a code that stands for several others, and a repeated code all depend on
which rows there are. So each edit is one copy of the subject, and copies are encoded as `predict` encodes records.

Only codes are removed: visits, empty ones too, and prediction times stay. Summaries are those of the edited record.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats, Floats32, offsets
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.hazards import cumulative_incidence, exposure
from ehrsequencing.prediction.predict import (
    Moment,
    NewRecords,
    RiskPredictor,
)
from ehrsequencing.prediction.run import Run, horizons_of
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import NEVER, STATIC, opens_run
from ehrsequencing.records.timelines import TaskRecords, joined
from ehrsequencing.records.visits import Record, Visits, make_record
from ehrsequencing.records.vocabulary import Vocabulary


@dataclass(frozen=True)
class SubjectRecord:
    """One subject's visits, with the prediction times of a run's task; `subject_records` reads them from data.

    A visit is known by its number within the record, from 0. `codes[v]` and `values[v]` have one entry for each row of
    visit v that the model may see, in the order of their times; codes are those of the data, not tokens.

    Attributes:
        record: The rows, grouped into visits.
        moments: The prediction times, in time order.
    """

    record: Record
    moments: CohortRows

    @property
    def subject_id(self) -> int:
        """The subject's id."""
        return int(self.record.subject_id[0])

    @cached_property
    def codes(self) -> tuple[tuple[str, ...], ...]:
        """The codes of each visit, one entry a row."""
        names = self.record.events.codes
        code = self.record.events.code[self.record.visits.event].tolist()
        bounds = offsets(self.record.visits.visit, len(self.record.visits)).tolist()
        return tuple(tuple(names[k] for k in code[a:b]) for a, b in itertools.pairwise(bounds))

    @cached_property
    def code_number(self) -> dict[str, int]:
        """The number, among `record.events.codes`, of each code that the subject has."""
        return {self.record.events.codes[k]: k for k in np.unique(self.record.events.code).tolist()}

    @property
    def static_rows(self) -> Bools:
        """(n,) which rows of the record have a code without a time that the model may see."""
        return np.asarray((self.record.events.time_us == STATIC) & ~self.record.excluded)

    def known_rows(self, row: int = -1) -> Bools:
        """(n,) which rows of the record are part of a visit and known at a prediction time: those stamped by then."""
        known = np.isin(np.arange(len(self.record.events)), self.record.visits.event)
        return np.asarray(known & (self.record.events.time_us <= self.moments.prediction_us[row]))

    def codes_of(self, rows: Bools) -> tuple[str, ...]:
        """The distinct codes of some rows, as of `known_rows` and `static_rows`, in the order of their first time."""
        codes = self.record.events.code[rows].tolist()
        return tuple(dict.fromkeys(self.record.events.codes[k] for k in codes))


def subject_records(
    records: NewRecords, subjects: set[int] | None = None, moment: Moment | None = None
) -> Iterator[SubjectRecord]:
    """The records of all subjects that have a prediction time, or of some of them, in the order of the data."""
    settings = records.run.study.visits
    for record, rows in records.prediction_times(moment or Moment("all")):
        bounds = offsets(rows.subject, len(record.subject_id))
        starts = np.r_[record.events.starts, len(record.events)]
        for k, subject in enumerate(record.subject_id.tolist()):
            if bounds[k] == bounds[k + 1] or (subjects is not None and subject not in subjects):
                continue
            events = record.events.take(np.arange(starts[k], starts[k + 1]))
            own = rows.take(np.arange(bounds[k], bounds[k + 1]))
            alone = make_record(events, excluded=records.excluded, settings=settings)
            yield SubjectRecord(alone, replace(own, subject=np.zeros(len(own), dtype=np.int64)))


def subject_record(records: NewRecords, subject: int) -> SubjectRecord:
    """The record of one subject.

    Raises:
        EhrseqError: There is no such subject, or it has no prediction time.
    """
    for record in subject_records(records, {subject}):
        return record
    raise EhrseqError(
        "no such subject, or it has no prediction time",
        where="subject",
        fix="name a subject_id of the predictions for these data",
    )


# ---- copies without some rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """What is removed from a record before the risk is predicted. `Edit()` removes nothing.

    Attributes:
        codes: These codes, wherever they are, without a time as well.
        visits: All codes of these visits, by their numbers within the record, from 0.
        code_at: One code in one visit: (visit, code).

    Example:
        >>> Edit(codes=["DX//I50"], visits=[3])
        Edit(codes=['DX//I50'], visits=[3], code_at=())
    """

    codes: Collection[str] = ()
    visits: Collection[int] = ()
    code_at: Collection[tuple[int, str]] = ()


def kept_rows(record: SubjectRecord, edits: Iterable[Edit]) -> list[Bools]:
    """(n,) rows of the record that each edit leaves; edits name codes and visits of the record."""
    events, visits, number = record.record.events, record.record.visits, record.code_number
    bounds, kept = offsets(visits.visit, len(visits)), list[Bools]()
    for edit in edits:
        is_left = np.ones(len(events), dtype=bool)
        for code in edit.codes:
            is_left[events.code == number[code]] = False
        for visit in edit.visits:
            is_left[visits.event[bounds[visit] : bounds[visit + 1]]] = False
        for visit, code in edit.code_at:
            own = visits.event[bounds[visit] : bounds[visit + 1]]
            is_left[own[events.code[own] == number[code]]] = False
        kept.append(is_left)
    return kept


def encode_copies(
    vocabulary: Vocabulary, record: SubjectRecord, kept: Bools, rows: Sequence[int]
) -> TaskRecords:
    """Copies of a record that keep some of its rows, encoded as `predict` encodes records.

    Args:
        vocabulary: The run's.
        record: The subject.
        kept: (E, n) which rows of the record each copy keeps.
        rows: (R,) which prediction times, by their numbers.

    Returns:
        E subjects, numbered from 0, with R prediction times each.
    """
    whole, n_copies = record.record, len(kept)
    kept = kept & ~whole.excluded
    copy, row = np.nonzero(kept)
    # Visits of all copies; those of which nothing is left are there as well, at their times.
    number = (np.cumsum(kept) - 1).reshape(kept.shape)  # of each kept row among those of all copies
    copy_of_event, place = np.nonzero(kept[:, whole.visits.event])
    visits = Visits(
        event=number[copy_of_event, whole.visits.event[place]],
        visit=whole.visits.visit[place] + copy_of_event * len(whole.visits),
        subject=np.repeat(np.arange(n_copies), len(whole.visits)),
        start_us=np.tile(whole.visits.start_us, n_copies),
        end_us=np.tile(whole.visits.end_us, n_copies),
    )
    copies = Record(
        events=replace(whole.events.take(row), subject_id=copy),
        subject_id=np.arange(n_copies),
        subject=copy,
        birth_us=np.repeat(whole.birth_us, n_copies),
        visits=visits,
        excluded=np.zeros(len(row), dtype=bool),
    )
    moments = record.moments.take(np.tile(rows, n_copies))
    moments = replace(moments, subject=np.repeat(np.arange(n_copies), len(rows)))
    timelines, _ = encode_timelines(copies, vocabulary)
    # A query that lies in a visit sees what is left of it by then, and nothing of a visit of which nothing is left.
    first = np.flatnonzero(opens_run(visits.visit))
    begun_us = np.full(len(visits), NEVER)
    begun_us[visits.visit[first]] = copies.events.time_us[visits.event[first]]
    begun = replace(copies, visits=replace(visits, start_us=begun_us))
    return TaskRecords(timelines, encode_rows(begun, moments, vocabulary))


@dataclass(frozen=True)
class Copies:
    """Copies of a record that keep some of its rows, each copy (n,), and the numbers of R prediction times."""

    record: SubjectRecord
    kept: Sequence[Bools]
    rows: Sequence[int]


# ---- the question: which cause, horizon and prediction time ----------------------------------------------------------

ROWS_AT_ONCE = (
    100_000  # rows of all copies that are answered together: four times as many take 480 MiB more
)


@dataclass(frozen=True)
class Question:
    """One cause, one horizon. Make it with `for_run`.

    Two numbers answer it, from hazards λ_{e,k} per day in the bins of the run's grid:

        risk        F_e(h) = Σ_k (λ_{e,k} / λ_{·,k}) · S(τ_{k−1}) · (1 − exp(−λ_{·,k} · |[τ_{k−1}, τ_k) ∩ [s, h)|))
        log hazard  log H_e(h) = log Σ_k λ_{e,k} · |[τ_{k−1}, τ_k) ∩ [s, h)|

    with s the task's blanking. For the `visit` head the risk is the probability p before the next visit, and the
    log hazard log(−log(1 − p)).

    Attributes:
        run: The run.
        cause: Number of the cause, from 0.
        horizon_days: None for the `visit` head.
    """

    run: Run
    cause: int
    horizon_days: float | None

    @classmethod
    def for_run(
        cls,
        run: Run,
        *,
        cause: str | None = None,
        horizon_days: float | None = None,
    ) -> "Question":
        """A question that the run can answer.

        Args:
            run: The run.
            cause: Name of the cause; default: the first of the task.
            horizon_days: Default: the run's main horizon.

        Raises:
            EhrseqError: The run has no such cause, or cannot answer for the horizon.
        """
        causes = run.task.causes
        if cause is not None and cause not in causes:
            raise EhrseqError(
                "the task has no such cause",
                where="--cause",
                fix=f"name one of {', '.join(causes)}",
            )
        asked = run.main_horizon if horizon_days is None and not run.is_visit_head else horizon_days
        (horizon,) = horizons_of(run, None if asked is None else [asked])
        return cls(run, causes.index(cause) if cause else 0, horizon)

    @property
    def text(self) -> str:
        """The question in words, such as `hf by 1y`."""
        cause = self.run.task.causes[self.cause]
        if self.horizon_days is None:
            return f"{cause} before the next visit"
        return f"{cause} by {format_days(self.horizon_days)}"

    def answer(self, records: TaskRecords) -> Floats:
        """(R, 2) risk and log hazard at every prediction time; NaN where the run has no answer."""
        if self.horizon_days is None:
            visit_head = self.run.visit_hazards(records)
            risk = visit_head[:, 0, 0].astype(np.float64)
            return np.stack([risk, np.log(-np.log1p(-risk))], axis=1)
        predictor, start = self.run.predictor, self.run.start_days
        edges = predictor.edges_days
        horizon, out = np.array([self.horizon_days]), np.empty((len(records), 2))
        days = exposure(edges, np.array([start]), horizon)[0]
        for rows, hazards in predictor.hazards(records):
            out[rows, 0] = cumulative_incidence(hazards, edges, horizon, start_days=start)[
                :, self.cause, 0
            ]
            out[rows, 1] = np.log(hazards[:, self.cause] @ days)
        return out

    def of_copies(
        self, record: SubjectRecord, kept: Sequence[Bools], *, rows: Sequence[int] | None = None
    ) -> Floats:
        """(E, R, 2) risk and log hazard of copies that keep some rows of a record; without `rows` at all its times."""
        asked = [Copies(record, kept, range(len(record.moments)) if rows is None else rows)]
        return next(predict_copies(self.run.vocabulary, asked, predict=self.answer))


def edited_risks(
    run: Run,
    record: SubjectRecord,
    edits: Sequence[Edit],
    *,
    rows: Sequence[int] | None = None,
    horizons_days: Sequence[float] | None = None,
) -> Floats32:
    """The risks of edited copies of a record.

    Args:
        run: A trained run: a network, an ensemble or a blend.
        record: The subject.
        edits: E edits, one copy of the record for each.
        rows: Which of the record's prediction times, by their numbers; default: all of them.
        horizons_days: Days after the prediction time; default: the task's horizons.

    Returns:
        (E, R, causes, horizons) cumulative incidence, as `predict` gives it; for the `visit` head (E, R, 1, 1).

    Raises:
        EhrseqError: A horizon is out of reach.
    """
    predictor = RiskPredictor(run, horizons_days)
    every = range(len(record.moments)) if rows is None else rows
    copies = Copies(record, kept_rows(record, edits), every)
    return next(predict_copies(run.vocabulary, [copies], predict=predictor.risk))


def predict_copies(
    vocabulary: Vocabulary,
    asked: Iterable[Copies],
    *,
    predict: Callable[[TaskRecords], NDArray[Any]],
) -> Iterator[NDArray[Any]]:
    """(E, R, ...) predictions of one record's copies after another; many are answered together, which costs far less.

    `predict` takes packed copies of any records.
    """
    waiting, held = list[Copies](), 0
    for one in asked:
        size = len(one.kept) * len(one.record.record.events)
        if waiting and held + size > ROWS_AT_ONCE:
            yield from _together(vocabulary, waiting, predict)
            waiting, held = [], 0
        waiting.append(one)
        held += size
    if waiting:
        yield from _together(vocabulary, waiting, predict)


def _together(
    vocabulary: Vocabulary, asked: Sequence[Copies], predict: Callable[[TaskRecords], NDArray[Any]]
) -> Iterator[NDArray[Any]]:
    """The same of records that are answered at once, or of one with so many copies that they go in parts."""
    parts = (
        encode_copies(vocabulary, one.record, np.stack(one.kept[first : first + step]), one.rows)
        for one in asked
        for step in [max(1, ROWS_AT_ONCE // max(len(one.record.record.events), 1))]
        for first in range(0, len(one.kept), step)
    )
    if len(asked) == 1:
        answers = np.concatenate([predict(part) for part in parts])
    else:
        lines, rows = zip(*((part.timelines, part.rows) for part in parts), strict=True)
        answers = predict(TaskRecords(joined(lines), joined(rows)))
    for one in asked:
        own, answers = np.split(answers, [len(one.kept) * len(one.rows)])
        yield own.reshape(len(one.kept), len(one.rows), *own.shape[1:])
