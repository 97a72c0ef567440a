"""Baselines on the very same subjects, prediction times and history: what a model has to beat.

Aalen–Johansen (the same curve for everybody), age + sex, landmark Cox (landmark_cox.py) and a boosted visit supermodel
(boosted.py), the last two on hand-made history features; with `all` also our own LSTM and flat BEHRT (trained.py). All
but the first are landmark supermodels (van Houwelingen 2007) fitted on all training prediction times. Which of them is
the strongest depends on the data: their likelihood on tuning subjects says it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from sklearn.linear_model import PoissonRegressor

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.evaluation.boosted import BoostedVisits
from ehrsequencing.evaluation.censoring import StepFunction, aalen_johansen, conditional_risk
from ehrsequencing.evaluation.history import AGE_KNOTS_YEARS
from ehrsequencing.evaluation.landmark_cox import LandmarkCox
from ehrsequencing.evaluation.piecewise import Floats, HazardModel, Ints, nll_of_hazards
from ehrsequencing.evaluation.trained import FLAT, LSTM, is_variant, train_baseline
from ehrsequencing.records.grid import cohort_hazards, exposure
from ehrsequencing.records.meds import DAY_US
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary


class Baseline(Protocol):
    """Anything that answers at prediction times."""

    name: str

    def risk(
        self, timelines: Timelines, rows: TaskRows, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """Cumulative incidence (r, causes, horizons) from the chosen rows on; of any split.

        `start_days`: given no event for so long after the prediction time (a task's blanking).
        """
        ...

    def nll(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """The model's own `horizon` likelihood (r,) of the chosen rows, by hazards constant in the bins of its grid."""
        ...


@dataclass(frozen=True)
class Fitted:
    """A baseline, and what the tuning subjects say of it.

    Attributes:
        model: The baseline.
        tuning_nll: Mean over all tuning prediction times; NaN without any.
    """

    model: Baseline
    tuning_nll: float


@dataclass(frozen=True)
class RunToRival:
    """The run that `all` trains rivals for: they are trained as it was, into its folder.

    Attributes:
        folder: The run.
        prepared: What it was trained on.
        study: Its settings.
    """

    folder: Path
    prepared: Prepared
    study: StudyConfig


def fit_baselines(
    kind: Literal["fast", "all", "none"],
    *,
    task: TaskConfig,
    vocabulary: Vocabulary,
    train: tuple[Timelines, TaskRows],
    tuning: tuple[Timelines, TaskRows],
    edges_days: Sequence[float],
    seed: int,
    trials: int | None = None,
    run: RunToRival | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Fitted]:
    """Fit the baselines, the strongest first: by the likelihood of tuning subjects at all their prediction times.

    Args:
        kind: `fast`: boosted visits, landmark Cox, age + sex, Aalen–Johansen. `all`: also LSTM and flat BEHRT, less the
            one that the run is itself. `none`: nothing.
        task: The question.
        vocabulary: Names of the tokens.
        train: Visits and prediction times to fit on.
        tuning: Other subjects; they choose the boosting's settings and length, the ridge, and the strongest.
        edges_days: Inner edges of the run's grid, on which every likelihood is computed.
        seed: Of the boosting.
        trials: Settings that were tried for the run; the boosting tries as many. None: one.
        run: Needed by `all`.
        progress: Called with the name of each baseline before it is fitted.

    Raises:
        EhrseqError: `all` without a run.
    """
    if kind == "none":
        return []
    fits: dict[str, Callable[[], Baseline]] = {
        BoostedVisits.name: lambda: BoostedVisits(
            task, vocabulary, train, tuning, edges_days=edges_days, seed=seed, trials=trials or 1
        )
    }
    if kind == "all":
        fits |= _trained(run, task.name)
    fits |= {
        LandmarkCox.name: lambda: LandmarkCox(task, vocabulary, train, tuning, edges_days=edges_days, seed=seed),
        AgeAndSex.name: lambda: AgeAndSex(task, vocabulary, train, edges_days=edges_days),
        MarginalIncidence.name: lambda: MarginalIncidence(task, train[1], edges_days=edges_days),
    }
    out: list[Fitted] = []
    every = np.arange(len(tuning[1]))
    for name, fit in fits.items():
        progress(name)
        model = fit()
        out.append(Fitted(model, float(model.nll(*tuning, every).mean()) if len(every) else float("nan")))
    return sorted(out, key=lambda fitted: fitted.tuning_nll)


def _trained(run: RunToRival | None, task_name: str) -> dict[str, Callable[[], Baseline]]:
    """How to get LSTM and flat BEHRT, as far as the run is another one."""
    if run is None:
        mend = "evaluate a run whose prepared set is still there, or use --baselines fast"
        raise EhrseqError("LSTM and flat BEHRT need the run's own data", where="evaluation.baselines=all", mend=mend)

    def train(name: str) -> Baseline:
        return train_baseline(name, prepared=run.prepared, task_name=task_name, study=run.study, run_folder=run.folder)

    return {name: partial(train, name) for name in (LSTM, FLAT) if not is_variant(run.study.model, name)}


class MarginalIncidence:
    """Aalen–Johansen on the training queries of each landmark; a row takes the landmark nearest in time since index.

    For the likelihood, the same queries' events over days at risk in each bin of the run's grid.
    """

    name = "Aalen–Johansen"

    def __init__(self, task: TaskConfig, rows: TaskRows, *, edges_days: Sequence[float]) -> None:
        self.n_causes, self.edges = len(task.causes), tuple(edges_days)
        self.landmarks: list[float] = []
        self.curves: list[StepFunction] = []
        self.hazards: list[Floats] = []  # (causes, bins) of each landmark
        for days in sorted({0.0, *task.landmarks}):
            at = rows.at_landmark(days)
            if at.any():
                self.landmarks.append(days)
                duration, cause = rows.duration_days[at], rows.cause[at]
                self.curves.append(aalen_johansen(duration, cause.astype(np.int64), n_causes=self.n_causes))
                self.hazards.append(
                    cohort_hazards(self.edges, rows.entry_days[at], duration, cause, n_causes=self.n_causes)
                )

    def _nearest(self, rows: TaskRows, chosen: Ints) -> Ints:
        """Number of the landmark of each row."""
        since = _days_since_index(rows, chosen)
        nearest: Ints = np.abs(since[:, None] - np.array(self.landmarks)).argmin(axis=1)
        return nearest

    def risk(
        self, timelines: Timelines, rows: TaskRows, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        curves = self.curves

        def cumulative(days: Floats) -> Floats:
            return np.stack([curve.at(days) for curve in curves])

        answers: Floats = conditional_risk(cumulative, horizons_days, start_days=start_days)[
            self._nearest(rows, chosen)
        ]
        return answers

    def nll(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """See `Baseline`."""
        return nll_of_hazards(np.stack(self.hazards)[self._nearest(rows, chosen)], self.edges, rows, chosen)


class AgeAndSex(HazardModel):
    """A Poisson regression on a spline of age, sex, time since the index and the bin.

    Sex: static codes whose name starts with GENDER or SEX; all static codes where there is none.
    """

    name = "age + sex"

    def __init__(
        self,
        task: TaskConfig,
        vocabulary: Vocabulary,
        train: tuple[Timelines, TaskRows],
        *,
        edges_days: Sequence[float],
    ) -> None:
        super().__init__(task, train[1], edges_days)
        tokens = np.unique(np.asarray(train[0].static_codes))
        sexes = [t for t in tokens.tolist() if vocabulary.tokens[t].upper().startswith(("GENDER", "SEX"))]
        self.static = sexes or tokens.tolist()
        chosen = np.arange(len(train[1]))
        days = exposure(self.edges, train[1].entry_days, np.asarray(train[1].duration_days))
        cause = np.asarray(train[1].cause)
        design = self._design(*train, chosen)
        self.mean_age = float(np.nanmean(design[:, 0])) if np.isfinite(design[:, 0]).any() else 50.0
        x = self._filled(design)
        self.models: list[PoissonRegressor | None] = []
        for e in range(len(self.base)):
            # The factor is the same in every bin, so that a prediction time needs one row with its summed weight.
            total, events = days @ self.base[e], (cause == e + 1).astype(np.float64)
            rows = total > 0
            if not events.any():
                self.models.append(None)
                continue
            model = PoissonRegressor(alpha=1e-4, solver="newton-cholesky", max_iter=200)
            self.models.append(model.fit(x[rows], events[rows] / total[rows], sample_weight=total[rows]))

    def _design(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        age = np.asarray(rows.age_years)[chosen].astype(np.float64)
        owner = np.repeat(np.arange(len(timelines)), np.diff(timelines.static_offsets))
        has = np.zeros((len(timelines), len(self.static)))
        for column, token in enumerate(self.static):
            has[owner[np.asarray(timelines.static_codes) == token], column] = 1.0
        since = np.log1p(_days_since_index(rows, chosen))
        return np.concatenate([age[:, None], since[:, None], has[rows.subject[chosen]]], axis=1)

    def _filled(self, design: Floats) -> Floats:
        """Unknown ages become the mean age with a mark; age gets a linear spline, in decades."""
        unknown = np.isnan(design[:, :1])
        age = np.where(unknown, self.mean_age, design[:, :1])
        spline = [np.maximum(age - knot, 0.0) for knot in AGE_KNOTS_YEARS]
        return np.concatenate([np.concatenate([age, *spline], axis=1) / 10.0, unknown, design[:, 1:]], axis=1)

    def factor(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins); the same in every bin."""
        x = self._filled(self._design(timelines, rows, chosen))
        flat = np.ones(len(x))  # a cause without a training event keeps the cohort's own hazard
        factors = np.stack([flat if model is None else model.predict(x) for model in self.models], axis=1)
        return np.repeat(factors[:, :, None], len(self.edges) + 1, axis=2)


def _days_since_index(rows: TaskRows, chosen: Ints) -> Floats:
    days = (np.asarray(rows.prediction_us)[chosen] - np.asarray(rows.index_us)[chosen]) / DAY_US
    return np.asarray(days, dtype=np.float64)
