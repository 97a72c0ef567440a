"""What is explained: the risk of one cause by one horizon, and the logarithm of its cumulative hazard."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.baselines.blend.blend import RunAnswers
from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats, Floats32
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain.record import Edit, SubjectRecord, encode_copies, kept_rows
from ehrsequencing.prediction.predict import horizons_of, start_days_of
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.hazards import cumulative_incidence, exposure
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary

ROWS_AT_ONCE = 400_000  # rows of all copies that are encoded together


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
        recalibrated: Whether to use what `ehrseq evaluate --recalibrate` fitted.
    """

    run: Run
    cause: int
    horizon_days: float | None
    recalibrated: bool = False

    @classmethod
    def for_run(
        cls,
        run: Run,
        *,
        cause: str | None = None,
        horizon_days: float | None = None,
        recalibrated: bool = False,
    ) -> "Question":
        """A question that the run can answer.

        Args:
            run: The run.
            cause: Name of the cause; default: the first of the task.
            horizon_days: Default: the task's main horizon, the one in the middle.
            recalibrated: Whether to use what `ehrseq evaluate --recalibrate` fitted.

        Raises:
            EhrseqError: The run has no such cause, or cannot answer for the horizon.
        """
        causes = run.task.causes[: run.model.config.causes]
        if cause is not None and cause not in causes:
            raise EhrseqError(
                "the task has no such cause",
                where="--cause",
                fix=f"name one of {', '.join(causes)}",
            )
        horizons = horizons_of(run, None if horizon_days is None else [horizon_days])
        return cls(
            run, causes.index(cause) if cause else 0, horizons[len(horizons) // 2], recalibrated
        )

    @property
    def cause_name(self) -> str:
        """Name of the cause."""
        return self.run.task.causes[self.cause]

    @property
    def text(self) -> str:
        """The question in words, such as `hf by 1y`."""
        when = (
            "before the next visit"
            if self.horizon_days is None
            else f"by {format_days(self.horizon_days)}"
        )
        return f"{self.cause_name} {when}"

    @cached_property
    def answers(self) -> RunAnswers:
        """What answers: the network or the blend, recalibrated or not."""
        return self.run.recalibrated if self.recalibrated else self.run.answers

    @property
    def edges_days(self) -> tuple[float, ...]:
        """Edges of the bins of the hazards that answer."""
        return self.run.model.config.edges_days

    def answer(self, records: TaskRecords) -> Floats:
        """(R, 2) risk and log hazard at every prediction time; NaN where the run has no answer."""
        if self.horizon_days is None:
            risk = self.answers.risk(records, horizons_days=())[:, 0, 0].astype(np.float64)
            return np.stack([risk, np.log(-np.log1p(-risk))], axis=1)
        edges, start = self.edges_days, start_days_of(self.run)
        horizon, out = np.array([self.horizon_days]), np.empty((len(records), 2))
        days = exposure(edges, np.array([start]), horizon)[0]
        for rows, hazards in self.answers.hazards(records):
            out[rows, 0] = cumulative_incidence(hazards, edges, horizon, start_days=start)[
                :, self.cause, 0
            ]
            out[rows, 1] = np.log(hazards[:, self.cause] @ days)
        return out

    def of_copies(
        self,
        record: SubjectRecord,
        kept: Iterable[Bools],
        *,
        rows: Sequence[int] | None = None,
    ) -> Floats:
        """(E, R, 2) risk and log hazard of copies that keep some rows of a record."""
        return np.asarray(
            predict_copies(self.run.vocabulary, record, kept, rows=rows, predict=self.answer)
        )


def edited_risks(
    run: Run,
    record: SubjectRecord,
    edits: Sequence[Edit],
    *,
    rows: Sequence[int] | None = None,
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
    start = start_days_of(run)
    answers = run.recalibrated if recalibrated else run.answers
    return predict_copies(
        run.vocabulary,
        record,
        (kept_rows(record, edit) for edit in edits),
        rows=rows,
        predict=lambda copies: answers.risk(copies, horizons_days=days, start_days=start),
    )


def predict_copies(
    vocabulary: Vocabulary,
    record: SubjectRecord,
    kept: Iterable[Bools],
    *,
    rows: Sequence[int] | None,
    predict: Callable[[TaskRecords], NDArray[Any]],
) -> NDArray[Any]:
    """(E, R, ...) predictions for copies that keep some rows; `predict` gives (E · R, ...) for E packed copies."""
    every = np.arange(len(record.moments))
    chosen = every if rows is None else every[np.asarray(rows, dtype=np.int64)]
    step = max(1, ROWS_AT_ONCE // max(len(record.record.events), 1))
    waiting = iter(kept)
    parts: list[NDArray[Any]] = []
    while some := list(itertools.islice(waiting, step)):
        found = predict(encode_copies(vocabulary, record, np.stack(some), chosen))
        parts.append(found.reshape(-1, len(chosen), *found.shape[1:]))
    return np.concatenate(parts)
