"""What is explained: the risk of one cause by one horizon, and the logarithm of its cumulative hazard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ehrsequencing.baselines.blend.blend import RunAnswers
from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain.edits import edited_answers
from ehrsequencing.explain.record import SubjectRecord
from ehrsequencing.prediction.predict import horizons_of, start_days_of
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.hazards import cumulative_incidence, exposure
from ehrsequencing.records.timelines import TaskRecords


@dataclass(frozen=True)
class Question:
    """One cause, one horizon. Make it with `of`.

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
    def of(
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
        rows: Sequence[int] | Ints | None = None,
    ) -> Floats:
        """(E, R, 2) risk and log hazard of copies that keep some rows of a record."""
        return np.asarray(
            edited_answers(self.run.vocabulary, record, kept, rows=rows, answer=self.answer)
        )
