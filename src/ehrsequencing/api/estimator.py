"""`EHRSurvival`: a run as an estimator with the interface of scikit-learn and scikit-survival."""

import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ehrsequencing.api.data import is_path, meds_folder, prepare, task_of
from ehrsequencing.api.predictions import days_of, opened
from ehrsequencing.api.training import fit as fit_run
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import private_folder
from ehrsequencing.evaluation.external import read_external
from ehrsequencing.evaluation.risk_source import RunRisks
from ehrsequencing.metrics.plain import concordance
from ehrsequencing.prediction.predict import Moment, RiskPredictor

_POINTS = 100  # of a step function, beside the horizons
# a frame holds training data only
_OF_FRAMES = {"splits": {"by": "hash", "train": 0.85, "tuning": 0.1499}}


class StepFunction:
    """A risk curve as scikit-survival gives it: a function that is constant between its points.

    Attributes:
        x: (n,) days, increasing, 0 first.
        y: (n,) values there.
        domain: The first and the last day.

    Example:
        >>> curve = StepFunction(np.array([0.0, 30.0, 90.0]), np.array([0.0, 0.1, 0.2]))
        >>> curve(45.0), curve([0, 90]).tolist()
        (0.1, [0.0, 0.2])
    """

    def __init__(self, x: Floats, y: Floats) -> None:
        self.x, self.y = x, y
        self.domain = (float(x[0]), float(x[-1]))

    def __call__(self, x: ArrayLike) -> Any:
        """The value at some days.

        Raises:
            ValueError: A day is not within the domain.
        """
        days = np.asarray(x, dtype=np.float64)
        if not ((days >= self.domain[0]) & (days <= self.domain[1])).all():
            raise ValueError(f"x must be within [{self.domain[0]:g}; {self.domain[1]:g}]")
        found = self.y[np.searchsorted(self.x, days, side="right") - 1]
        return float(found) if found.ndim == 0 else found

    def __repr__(self) -> str:
        return (
            f"StepFunction({len(self.x)} points from {self.domain[0]:g} to {self.domain[1]:g} days)"
        )


class EHRSurvival(BaseEstimator):  # type: ignore[misc]
    """A survival model of health records for users of scikit-learn.

    `X` is MEDS data (a folder, or a frame of MEDS rows) and `y` is the task, from which the labels are made.

    Args:
        preset: `small_cohort`, `medium_cohort` or `domain_shift`.
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
        >>> model = eh.EHRSurvival(model={"dim": 16, "heads": 2, "layers": 1}, training={"epochs": 1, "min_steps": 2})
        >>> model.fit("meds/", "task.yaml").causes_
        ('hf', 'death')
        >>> curves = model.predict_cumulative_incidence_function("meds/")
        >>> curves.shape, 0 < curves[0, 0](365.25) < 1
        ((400, 2), True)
    """

    def __init__(
        self,
        preset: str | None = None,
        model: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        prepare: Mapping[str, Any] | None = None,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
    ) -> None:
        self.preset = preset
        self.model = model
        self.training = training
        self.prepare = prepare
        self.seed = seed
        self.out = out

    def fit(self, X: Any, y: Any) -> Self:
        """Prepare the records and fit a run.

        Args:
            X: MEDS data. A data set with splits keeps them: its held-out subjects are not used. Of a frame, 15 % of
                the subjects decide when training stops.
            y: The task: its file, its content as a mapping, or a `TaskConfig`.

        Raises:
            EhrseqError: Data, task or settings cannot be used.
        """
        task = task_of(y)
        if self.out is None:
            kept = ExitStack()
            folder = kept.enter_context(private_folder())
            weakref.finalize(self, kept.close)
        else:
            folder = Path(self.out)
        sections = {**({} if is_path(X) else _OF_FRAMES), **dict(self.prepare or {})}
        data = prepare(X, task, out=folder / "prepared", progress=False, **sections)
        self.run_ = fit_run(
            data,
            out=folder / "run",
            model=self.model,
            training=self.training,
            preset=self.preset,
            seed=self.seed,
            progress=False,
        )
        self.causes_, self.horizons_ = self.run_.task.causes, np.array(self.run_.task.horizons)
        grid = np.linspace(self.run_.task.blanking, self.horizons_[-1], _POINTS + 1)[1:]
        self.unique_times_ = np.unique(np.r_[grid, self.horizons_])
        return self

    def predict_risk(
        self, X: Any, *, horizons: Sequence[str | float] | None = None, at: str = "last"
    ) -> Any:
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
        asked = RiskPredictor(self.run_, (self.unique_times_ if days is None else days).tolist())
        with opened(self.run_, X, show=False) as records:
            records.require_known(force=False)
            parts = [risks.risk for risks in asked.answers(records, Moment("last"))]
        return np.concatenate(parts).astype(np.float64)

    def score(self, X: Any, y: Any = None, *, horizon: str | float | None = None) -> float:
        """C of the first cause at the task's first landmark, corrected for censoring.

        Args:
            X: MEDS data with outcomes, best of other subjects than those of `fit`.
            y: The task; it must be that of `fit`. None: that one.
            horizon: Default: the last.

        Raises:
            EhrseqError: The task is another one, or nobody is at risk at the landmark.
        """
        check_is_fitted(self, "run_")
        task = self.run_.task
        if y is not None and task_of(y) != task:
            fix = "fit another estimator with this task"
            raise EhrseqError("the estimator was fitted with another task", where="score", fix=fix)
        days = (
            float(self.horizons_[-1]) if horizon is None else days_of(horizon, where="horizon")[0]
        )
        with meds_folder(X) as folder:
            records = read_external(self.run_, folder).population.records
        at = records.at_landmark(task.landmarks[0])
        if not len(at):
            raise EhrseqError(
                "nobody is at risk at the landmark", where="score", fix="see ehrseq check"
            )
        risk = RunRisks(self.run_).risk(records, np.array([days]))[at, 0, 0]
        rows = records.rows
        return concordance(
            rows.duration_days[at], rows.cause[at].astype(np.int64), risk, horizon=days
        )
