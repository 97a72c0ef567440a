"""`EHRSurvival`: a run as an estimator with the interface of scikit-learn and scikit-survival."""

import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ehrsequencing.api.data import as_table, is_path, meds_folder, prepare, task_of
from ehrsequencing.api.predictions import StepFunction, opened
from ehrsequencing.api.training import fit as fit_run
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.elsewhere import Answering, Hinted
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import private_folder
from ehrsequencing.core.text import day_of
from ehrsequencing.evaluation.external import read_external
from ehrsequencing.metrics.plain import concordance
from ehrsequencing.prediction.predict import Moment, RiskPredictor

_POINTS = 100  # of a step function, beside the horizons
# a frame has training data alone, so that nobody is held out
_OF_FRAMES = {"splits": {"by": "hash", "train": 0.85, "tuning": 0.1499}}


class EHRSurvival(Hinted, Answering, BaseEstimator):  # type: ignore[misc]
    """A survival model of health records for users of scikit-learn.

    `X` is MEDS data (a folder, or a frame of MEDS rows). The labels are made from the task, which is given here or as
    `y`. In `cross_val_score` give `groups=rows.subject_id` and `cv=GroupKFold()`, so that no record is cut in two.

    Args:
        task: The task: its file, its content as a mapping, or a `TaskConfig`.
        model: Settings of the model, as of `ehrsequencing.fit`.
        training: Settings of training.
        prepare: Sections of `ehrsequencing.prepare`, as in `{"visits": {"by": "day"}}`.
        seed: Seed of the training.
        out: Folder for the prepared data and the run; by default a temporary one, which goes with the estimator.

    Attributes:
        run_: The trained run.
        causes_: Names of the causes, the cause of interest first.
        horizons_: The task's horizons in days.
        unique_times_: Days at which the step functions have their points.

    Example:
        >>> import ehrsequencing as eh
        >>> small = {"dim": 16, "heads": 2, "layers": 1}
        >>> model = eh.EHRSurvival(model=small, training={"epochs": 1, "blend": False, "distillation": 0})
        >>> model.fit("meds/", "task.yaml").causes_
        ('hf', 'death')
        >>> curves = model.predict_cumulative_incidence_function("meds/")
        >>> curves.shape, 0 < curves[0, 0](365.25) < 1
        ((400, 2), True)
    """

    def __init__(
        self,
        task: Any = None,
        model: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        prepare: Mapping[str, Any] | None = None,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.training = training
        self.prepare = prepare
        self.seed = seed
        self.out = out

    def fit(self, X: Any, y: Any = None) -> Self:
        """Prepare the records and fit a run.

        Args:
            X: MEDS data. A data set with splits keeps them: its held-out subjects are not used. Of a frame, 15 % of
                the subjects decide when training stops.
            y: The task, where it was not given before.

        Raises:
            EhrseqError: Data, task or settings cannot be used.
        """
        given = [task_of(one) for one in (self.task, y) if one is not None]
        if not given or given[0] != given[-1]:
            raise EhrseqError(
                "has two tasks" if given else "has no task",
                where="EHRSurvival",
                fix="write EHRSurvival(task='task.yaml') or fit(X, 'task.yaml')",
            )
        task = given[0]
        if self.out is None:
            cleanup = ExitStack()
            folder = cleanup.enter_context(private_folder())
            weakref.finalize(self, cleanup.close)
        else:
            folder = Path(self.out)
        sections = {**({} if is_path(X) else _OF_FRAMES), **dict(self.prepare or {})}
        data = prepare(X, task, out=folder / "prepared", progress=False, **sections)
        self.run_ = fit_run(
            data,
            out=folder / "run",
            model=self.model,
            training=self.training,
            seed=self.seed,
            progress=False,
        )
        self.rows_of_ = {} if is_path(X) else _rows_of(X)
        self.causes_, self.horizons_ = self.run_.task.causes, np.array(self.run_.task.horizons)
        grid = np.linspace(self.run_.task.blanking, self.horizons_[-1], _POINTS + 1)[1:]
        self.unique_times_ = np.unique(np.r_[grid, self.horizons_])
        return self

    def predict_risk(
        self, X: Any, *, horizons: Sequence[str | float] | None = None, at: str = "last"
    ) -> pd.DataFrame:
        """One row a subject with its risk of each cause by each horizon; as `run.predict`."""
        check_is_fitted(self, "run_")
        return self.run_.predict(X, at=at, horizons=horizons, progress=False)

    def predict(self, X: Any) -> Floats:
        """(n,) risk of the first cause by the last horizon, in the order of `predict_risk`: a score of risk."""
        return self._curves(X, self.horizons_[-1:])[:, 0, -1]

    def predict_cumulative_incidence_function(
        self, X: Any, *, return_array: bool = False
    ) -> NDArray[Any]:
        """The risk of each cause over time from each subject's last prediction time on.

        Args:
            X: MEDS data.
            return_array: Whether to give the values at `unique_times_` instead of functions.

        Returns:
            With one cause (n,) step functions, as scikit-survival's, or (n, times); with several causes (n, causes)
            step functions, or (n, causes, times). Subjects are in the order of `predict_risk`.
        """
        values = self._curves(X, None)
        values = values[:, 0] if values.shape[1] == 1 else values
        return values if return_array else self._functions(values, start=0.0)

    def predict_survival_function(self, X: Any, *, return_array: bool = False) -> NDArray[Any]:
        """(n,) step functions of the chance of no event of any cause by each day, or (n, times)."""
        values = 1.0 - self._curves(X, None).sum(axis=1)
        return values if return_array else self._functions(values, start=1.0)

    def _functions(self, values: Floats, *, start: float) -> NDArray[Any]:
        days, out = np.r_[0.0, self.unique_times_], np.empty(values.shape[:-1], dtype=object)
        for place in np.ndindex(*out.shape):
            out[place] = StepFunction(days, np.r_[start, values[place]])
        return out

    def _curves(self, X: Any, days: Floats | None) -> Floats:
        """(n, causes, days) risks of each subject at its last prediction time."""
        check_is_fitted(self, "run_")
        predictor = RiskPredictor(
            self.run_, (self.unique_times_ if days is None else days).tolist()
        )
        with opened(self.run_, X, show=False) as records:
            parts = [risks.risk for risks in predictor.answers(records, Moment("last"))]
        return np.concatenate(parts).astype(np.float64)

    def score(self, X: Any, y: Any = None, *, horizon: str | float | None = None) -> float:
        """C of the first cause at the task's first landmark, corrected for censoring.

        Args:
            X: MEDS data with outcomes, best of other subjects than those of `fit`.
            y: The task; it must be that of `fit`. None: that one.
            horizon: Default: the last.

        Raises:
            EhrseqError: The task is another one, nobody is at risk at the landmark, or a record was cut in two.
        """
        check_is_fitted(self, "run_")
        task = self.run_.task
        own = {} if is_path(X) else _rows_of(X)  # of records that folds over rows have cut
        if any(self.rows_of_.get(subject, rows) != rows for subject, rows in own.items()):
            raise EhrseqError(
                "training had other rows of the same subjects",
                where="EHRSurvival.score",
                fix="write cross_val_score(model, rows, groups=rows.subject_id, cv=GroupKFold(5))",
            )
        if y is not None and task_of(y) != task:
            raise EhrseqError(
                "the estimator was fitted with another task",
                where="score",
                fix="fit another estimator with this task",
            )
        days = float(self.horizons_[-1]) if horizon is None else day_of(horizon)
        with meds_folder(X) as folder:
            records = read_external(self.run_, folder).population.records
        at = records.at_landmark(task.landmarks[0])
        if not len(at):
            raise EhrseqError(
                "nobody is at risk at the landmark", where="score", fix="see ehrseq check"
            )
        risk = self.run_.predictor.risk(records, [days], start_days=task.blanking)[at, 0, 0]
        rows = records.rows
        return concordance(
            rows.duration_days[at], rows.cause[at].astype(np.int64), risk, horizon=days
        )


def _rows_of(frame: Any) -> dict[int, int]:
    """Subject → how many rows of a frame are its own."""
    counts = pc.value_counts(as_table(frame)["subject_id"]).to_pylist()
    return {pair["values"]: pair["counts"] for pair in counts}
