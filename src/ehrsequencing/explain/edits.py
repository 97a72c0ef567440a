"""Exact deletion: what a run predicts for a record from which some rows were struck.

Each edit is one copy of the subject, and all copies are encoded and answered together, so that networks, ensembles and
blends are explained by the same path as they predict.

What is struck are codes. When visits took place, and when the risk is asked, stays as it was: a visit whose codes are
all struck stays as an empty visit. A query's summaries are those of the edited record.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Bools, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain.record import SubjectRecord
from ehrsequencing.prediction.predict import horizons_of, start_days_of
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.cohort import NEVER
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import opens_run
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.visits import Record, Visits
from ehrsequencing.records.vocabulary import Vocabulary

ROWS_AT_ONCE = 400_000  # rows of all copies that are encoded together


@dataclass(frozen=True)
class Edit:
    """What is struck from a record before the risk is asked. `Edit()` strikes nothing.

    Attributes:
        codes: These codes, wherever they are, without a time as well.
        visits: All codes of these visits, by their numbers within the record, from 0.
        code_at: One code in one visit: (visit, code).

    Example:
        >>> Edit(codes=frozenset({"DX//I50"}), visits=frozenset({3})) == Edit()
        False
    """

    codes: frozenset[str] = frozenset()
    visits: frozenset[int] = frozenset()
    code_at: frozenset[tuple[int, str]] = frozenset()

    @classmethod
    def of_code(cls, *codes: str) -> "Edit":
        """Strike some codes everywhere."""
        return cls(codes=frozenset(codes))

    @classmethod
    def of_visit(cls, *visits: int) -> "Edit":
        """Strike all codes of some visits."""
        return cls(visits=frozenset(visits))

    @classmethod
    def of_code_at(cls, *places: tuple[int, str]) -> "Edit":
        """Strike some codes in one visit each."""
        return cls(code_at=frozenset(places))

    def __or__(self, other: "Edit") -> "Edit":
        """What either of two edits strikes."""
        return Edit(
            self.codes | other.codes, self.visits | other.visits, self.code_at | other.code_at
        )


def edited_risks(
    run: Run,
    record: SubjectRecord,
    edits: Sequence[Edit],
    *,
    rows: Sequence[int] | Ints | None = None,
    horizons_days: Sequence[float] | None = None,
    recalibrated: bool = False,
) -> Floats32:
    """The risks of edited copies of a record.

    Args:
        run: A trained run: a network, an ensemble or a blend.
        record: The subject.
        edits: E edits, one copy of the record for each.
        rows: Which of the record's prediction times, by their numbers; default: all of them.
        horizons_days: Days after the prediction time; default: the task's horizons.
        recalibrated: Whether to use what `ehrseq evaluate --recalibrate` fitted.

    Returns:
        (E, R, causes, horizons) cumulative incidence, as `predict` gives it; for the `visit` head (E, R, 1, 1).

    Raises:
        EhrseqError: An edit names a code or a visit that the record does not have, or a horizon is out of reach.
    """
    days = [float(horizon) for horizon in horizons_of(run, horizons_days) if horizon is not None]
    start, answers = start_days_of(run), run.recalibrated if recalibrated else run.answers
    return edited_answers(
        run.vocabulary,
        record,
        (kept_rows(record, edit) for edit in edits),
        rows=rows,
        answer=lambda copies: answers.risk(copies, horizons_days=days, start_days=start),
    )


def edited_answers(
    vocabulary: Vocabulary,
    record: SubjectRecord,
    kept: Iterable[Bools],
    *,
    rows: Sequence[int] | Ints | None = None,
    answer: Callable[[TaskRecords], NDArray[Any]],
) -> NDArray[Any]:
    """What `answer` says of copies that keep some rows.

    Args:
        vocabulary: The run's.
        record: The subject.
        kept: (n,) of each copy, which rows of the record it keeps.
        rows: Which of the record's prediction times, by their numbers; default: all of them.
        answer: Gives (E · R, ...) for E packed copies.

    Returns:
        (E, R, ...).
    """
    chosen = np.arange(len(record.moments))[
        slice(None) if rows is None else np.asarray(rows, dtype=np.int64)
    ]
    step = max(1, ROWS_AT_ONCE // max(len(record.record.events), 1))
    waiting, parts = iter(kept), list[NDArray[Any]]()
    while together := list(itertools.islice(waiting, step)):
        found = answer(encode_copies(vocabulary, record, np.stack(together), chosen))
        parts.append(found.reshape(-1, len(chosen), *found.shape[1:]))
    return np.concatenate(parts)


def encode_copies(
    vocabulary: Vocabulary, record: SubjectRecord, kept: Bools, rows: Ints
) -> TaskRecords:
    """Copies of a record that keep some of its rows, encoded as `predict` encodes records.

    Args:
        vocabulary: The run's.
        record: The subject.
        kept: (E, n) which rows of the record each copy keeps.
        rows: (R,) which prediction times.

    Returns:
        E subjects, numbered from 0, with R prediction times each.
    """
    whole, n_copies = record.record, len(kept)
    kept = kept & ~whole.excluded
    copy, row = np.nonzero(kept)
    visits = _visits(whole.visits, kept)
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


def _visits(whole: Visits, kept: Bools) -> Visits:
    """The visits of all copies; those of which nothing is left are there as well, at their times."""
    n_copies, n_visits = len(kept), len(whole)
    number = (np.cumsum(kept) - 1).reshape(kept.shape)  # of each kept row among those of all copies
    copy, place = np.nonzero(kept[:, whole.event])
    return Visits(
        event=number[copy, whole.event[place]],
        visit=whole.visit[place] + copy * n_visits,
        subject=np.repeat(np.arange(n_copies), n_visits),
        start_us=np.tile(whole.start_us, n_copies),
        end_us=np.tile(whole.end_us, n_copies),
    )


def kept_rows(record: SubjectRecord, edit: Edit) -> Bools:
    """(n,) rows of the record that an edit leaves.

    Raises:
        EhrseqError: The edit names a code or a visit that the record does not have.
    """
    events, visits, bounds = record.record.events, record.record.visits, record.event_bounds
    number = record.code_number
    kept = np.ones(len(events), dtype=bool)
    if not all(
        0 <= visit < len(visits) for visit in (*edit.visits, *(visit for visit, _ in edit.code_at))
    ):
        fix = f"number them within the record: from 0 to {len(visits) - 1}"
        raise EhrseqError(
            "an edit names a visit that the record does not have", where="edits", fix=fix
        )
    if not all(code in number for code in (*edit.codes, *(code for _, code in edit.code_at))):
        raise EhrseqError(
            "an edit names a code that the record does not have",
            where="edits",
            fix="name codes of the record",
        )
    for code in edit.codes:
        kept[events.code == number[code]] = False
    for visit in edit.visits:
        kept[visits.event[bounds[visit] : bounds[visit + 1]]] = False
    for visit, code in edit.code_at:
        own = visits.event[bounds[visit] : bounds[visit + 1]]
        kept[own[events.code[own] == number[code]]] = False
    return kept
