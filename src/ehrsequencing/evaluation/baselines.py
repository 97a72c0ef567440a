"""Baselines on the very same subjects, prediction times and history: what a model has to beat.

From weakest to strongest: Aalen–Johansen (the same curve for everybody), age + sex, landmark Cox (landmark_cox.py) and
a boosted visit supermodel, the last two on hand-made history features; with `all` also our own LSTM and flat BEHRT
(trained.py). All but the first are landmark supermodels (van Houwelingen 2007) fitted on all training prediction times.
Age + sex and boosted visits have cause-specific piecewise-constant hazards on the time after the prediction:

    λ_e(k | x) = base_e(k) · f_e(x, k)      k a bin, base_e the cohort's own hazard, f_e fitted by Poisson likelihood

A bin counts with the days at risk in it, so that partly observed bins are neither dropped nor taken as whole, and a
competing event ends the exposure of every cause.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.evaluation.censoring import StepFunction, aalen_johansen, conditional_risk
from ehrsequencing.evaluation.history import AGE_KNOTS_YEARS, FeatureSpec, fit_feature_spec, history_features
from ehrsequencing.evaluation.landmark_cox import LandmarkCox
from ehrsequencing.evaluation.trained import FLAT, LSTM, is_variant, train_baseline
from ehrsequencing.records.grid import cohort_hazards, event_bin, exposure, grid_edges
from ehrsequencing.records.meds import DAY_US
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Predict = Callable[[NDArray[np.float32]], Floats]
BINS = 8  # quantile bins of the event durations; the horizons are edges too
# What the boosting sees at most, prediction times × bins and those × features; prediction times are drawn at random.
MOST_PERIODS, MOST_CELLS = 400_000, 40_000_000
UNWATCHED_TREES = 100  # of a cause that no tuning subject had: nothing says when to stop
_PREDICT_ROWS = 20_000


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
    seed: int,
    run: RunToRival | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Baseline]:
    """Fit the baselines, the strongest first.

    Args:
        kind: `fast`: boosted visits, landmark Cox, age + sex, Aalen–Johansen. `all`: after the boosted visits also LSTM
            and flat BEHRT, less the one that the run is itself. `none`: nothing.
        task: The question.
        vocabulary: Names of the tokens.
        train: Visits and prediction times to fit on.
        tuning: Other subjects; they decide how long the boosting goes on.
        seed: Of the boosting.
        run: Needed by `all`.
        progress: Called with the name of each baseline before it is fitted.

    Raises:
        EhrseqError: `all` without a run.
    """
    if kind == "none":
        return []
    fits: dict[str, Callable[[], Baseline]] = {
        BoostedVisits.name: lambda: BoostedVisits(task, vocabulary, train, tuning, seed=seed)
    }
    if kind == "all":
        fits |= _trained(run, task.name)
    fits |= {
        LandmarkCox.name: lambda: LandmarkCox(task, vocabulary, train, tuning, seed=seed),
        AgeAndSex.name: lambda: AgeAndSex(task, vocabulary, train),
        MarginalIncidence.name: lambda: MarginalIncidence(task, train[1]),
    }
    out: list[Baseline] = []
    for name, fit in fits.items():
        progress(name)
        out.append(fit())
    return out


def _trained(run: RunToRival | None, task_name: str) -> dict[str, Callable[[], Baseline]]:
    """How to get LSTM and flat BEHRT, as far as the run is another one."""
    if run is None:
        mend = "evaluate a run whose prepared set is still there, or use --baselines fast"
        raise EhrseqError("LSTM and flat BEHRT need the run's own data", where="evaluation.baselines=all", mend=mend)

    def train(name: str) -> Baseline:
        return train_baseline(name, prepared=run.prepared, task_name=task_name, study=run.study, run_folder=run.folder)

    return {name: partial(train, name) for name in (LSTM, FLAT) if not is_variant(run.study.model, name)}


class MarginalIncidence:
    """Aalen–Johansen on the training queries of each landmark; a row takes the landmark nearest in time since index."""

    name = "Aalen–Johansen"

    def __init__(self, task: TaskConfig, rows: TaskRows) -> None:
        self.n_causes = len(task.causes)
        self.landmarks, self.curves = [], []
        for days in sorted({0.0, *task.landmarks}):
            at = rows.at_landmark(days)
            if at.any():
                self.landmarks.append(days)
                self.curves.append(self._fit(rows, at))

    def _fit(self, rows: TaskRows, at: NDArray[np.bool_]) -> StepFunction:
        return aalen_johansen(rows.duration_days[at], rows.cause[at].astype(np.int64), n_causes=self.n_causes)

    def risk(
        self, timelines: Timelines, rows: TaskRows, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        since = _days_since_index(rows, chosen)
        nearest = np.abs(since[:, None] - np.array(self.landmarks)).argmin(axis=1)
        curves = self.curves

        def cumulative(days: Floats) -> Floats:
            return np.stack([curve.at(days) for curve in curves])

        answers: Floats = conditional_risk(cumulative, horizons_days, start_days=start_days)[nearest]
        return answers


@dataclass(frozen=True)
class _Periods:
    """Prediction times × bins in which they were at risk.

    Attributes:
        row: (P,) position of the prediction time.
        bin: (P,).
        days: (P,) at risk in the bin.
        cause: (P,) event in this bin, 0 for none.
    """

    row: Ints
    bin: Ints
    days: Floats
    cause: Ints


def _periods(rows: TaskRows, chosen: Ints, edges_days: Sequence[float]) -> _Periods:
    duration, cause = np.asarray(rows.duration_days)[chosen], np.asarray(rows.cause)[chosen].astype(np.int64)
    days = exposure(edges_days, np.asarray(rows.entry_days)[chosen], duration)
    row, bin_ = np.nonzero(days > 0)
    last = event_bin(edges_days, duration)
    return _Periods(row, bin_, days[row, bin_], np.where(last[row] == bin_, cause[row], 0))


class _HazardModel(ABC):
    """Cause-specific piecewise-constant hazards, `base_e(k)` times a factor that subclasses fit."""

    name: str

    def __init__(self, task: TaskConfig, rows: TaskRows) -> None:
        duration, cause = np.asarray(rows.duration_days), np.asarray(rows.cause)
        self.edges = grid_edges(duration, cause, horizons_days=task.horizons, bins=BINS)
        self.base = cohort_hazards(self.edges, rows.entry_days, duration, cause, n_causes=len(task.causes))

    @abstractmethod
    def factor(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins)."""

    def risk(
        self, timelines: Timelines, rows: TaskRows, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        out = np.empty((len(chosen), len(self.base), len(horizons_days)))
        for start in range(0, len(chosen), _PREDICT_ROWS):
            part = slice(start, start + _PREDICT_ROWS)
            hazards = self.base * self.factor(timelines, rows, chosen[part])

            def cumulative(days: Floats, hazards: Floats = hazards) -> Floats:
                return incidence(hazards, self.edges, days)

            out[part] = conditional_risk(cumulative, horizons_days, start_days=start_days)
        return out


class BoostedVisits(_HazardModel):
    """Boosted trees on everything in `history_features` and the bin, with a Poisson loss; usually the hardest to beat.

    Boosting stops by the loss of tuning subjects at the task's landmarks. A cause that none of them had there gets a
    fixed number of trees, and one without a training event keeps the cohort's own hazard.
    """

    name = "boosted visits"

    def __init__(
        self,
        task: TaskConfig,
        vocabulary: Vocabulary,
        train: tuple[Timelines, TaskRows],
        tuning: tuple[Timelines, TaskRows],
        *,
        seed: int,
    ) -> None:
        super().__init__(task, train[1])
        self.vocabulary = vocabulary
        self.columns: FeatureSpec = fit_feature_spec(*train, vocabulary)
        bins = len(self.edges) + 1
        periods = min(MOST_PERIODS, MOST_CELLS // (len(self.columns) + 1))
        wanted = min(len(train[1]), max(1, periods // bins))
        fitted = np.sort(np.random.default_rng(seed).permutation(len(train[1]))[:wanted])
        stopping = np.flatnonzero(np.any([tuning[1].at_landmark(days) for days in task.landmarks], axis=0))
        self.models = self._fit(train, fitted, tuning, stopping, seed)

    def _fit(
        self,
        train: tuple[Timelines, TaskRows],
        fitted: Ints,
        tuning: tuple[Timelines, TaskRows],
        stopping: Ints,
        seed: int,
    ) -> list[Predict | None]:
        periods, watched = _periods(train[1], fitted, self.edges), _periods(tuning[1], stopping, self.edges)
        design = self._design(*train, fitted)
        self.seen = ~np.isnan(design).all(axis=0)  # not the age where no birth is known: the trees refuse such columns
        design = design[periods.row * (len(self.edges) + 1) + periods.bin][:, self.seen]
        watched_design = self._design(*tuning, stopping)[watched.row * (len(self.edges) + 1) + watched.bin]
        watched_design = watched_design[:, self.seen]
        models: list[Predict | None] = []
        for e in range(len(self.base)):
            weight, watched_weight = periods.days * self.base[e][periods.bin], watched.days * self.base[e][watched.bin]
            event, watched_event = periods.cause == e + 1, watched.cause == e + 1
            if not event.any():
                models.append(None)
                continue
            is_watched = bool(watched_event.any())  # a Poisson loss needs an event
            model = HistGradientBoostingRegressor(
                loss="poisson", learning_rate=0.05, max_iter=500 if is_watched else UNWATCHED_TREES,
                max_leaf_nodes=8, min_samples_leaf=50, l2_regularization=20.0, max_features=0.3,
                early_stopping=is_watched, n_iter_no_change=25, tol=0.0, random_state=seed,
            )  # fmt: skip
            held = {
                "X_val": watched_design, "y_val": watched_event / watched_weight, "sample_weight_val": watched_weight
            }  # fmt: skip
            model.fit(design, event / weight, sample_weight=weight, **(held if is_watched else {}))
            models.append(_best_iterations(model) if is_watched else model.predict)
        return models

    def _design(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> NDArray[np.float32]:
        """(r · bins, F + 1): the history, and the number of the bin."""
        history = history_features(timelines, rows, self.vocabulary, chosen=chosen, columns=self.columns)
        bins = len(self.edges) + 1
        number = np.tile(np.arange(bins, dtype=np.float32), len(chosen))[:, None]
        return np.concatenate([np.repeat(history, bins, axis=0), number], axis=1)

    def factor(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins)."""
        design = self._design(timelines, rows, chosen)[:, self.seen]
        shape = (len(chosen), len(self.edges) + 1)
        parts = [np.ones(shape) if model is None else model(design).reshape(shape) for model in self.models]
        return np.stack(parts, axis=1)


def _best_iterations(model: HistGradientBoostingRegressor) -> Predict:
    """Predict with as many trees as the tuning subjects liked best; none at all is a possible answer."""
    best = int(np.argmin(-np.asarray(model.validation_score_)))

    def predict(design: NDArray[np.float32]) -> Floats:
        if best == 0:
            return np.full(len(design), float(np.exp(model._baseline_prediction.ravel()[0])))
        for number, answer in enumerate(model.staged_predict(design), start=1):
            if number == best:
                return np.asarray(answer, dtype=np.float64)
        raise AssertionError("the boosting has fewer trees than scores")

    return predict


class AgeAndSex(_HazardModel):
    """A Poisson regression on a spline of age, sex, time since the index and the bin.

    Sex: static codes whose name starts with GENDER or SEX; all static codes where there is none.
    """

    name = "age + sex"

    def __init__(self, task: TaskConfig, vocabulary: Vocabulary, train: tuple[Timelines, TaskRows]) -> None:
        super().__init__(task, train[1])
        tokens = np.unique(np.asarray(train[0].static_codes))
        sexes = [t for t in tokens.tolist() if vocabulary.tokens[t].upper().startswith(("GENDER", "SEX"))]
        self.static = sexes or tokens.tolist()
        chosen = np.arange(len(train[1]))
        periods = _periods(train[1], chosen, self.edges)
        design = self._design(*train, chosen)
        self.mean_age = float(np.nanmean(design[:, 0])) if np.isfinite(design[:, 0]).any() else 50.0
        x = self._filled(design)
        self.models: list[PoissonRegressor | None] = []
        for e in range(len(self.base)):
            weight = periods.days * self.base[e][periods.bin]
            # The factor is the same in every bin, so that a prediction time needs one row with its summed weight.
            total = np.bincount(periods.row, weights=weight, minlength=len(chosen))
            events = np.bincount(periods.row, weights=periods.cause == e + 1, minlength=len(chosen))
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


def incidence(hazards: Floats, edges_days: Sequence[float], horizons_days: Floats) -> Floats:
    """Cumulative incidence of piecewise-constant cause-specific hazards.

        F_e(t) = Σ_k (λ_{e,k} / λ_{·,k}) · S(τ_{k−1}) · (1 − exp(−λ_{·,k} · |[τ_{k−1}, τ_k) ∩ [0, t)|))

    Args:
        hazards: (r, E, K) per day.
        edges_days: The K − 1 inner edges.
        horizons_days: (H,).

    Returns:
        (r, E, H).

    >>> incidence(np.full((1, 1, 1), 0.01), [], np.array([100.0])).round(4).tolist()  # 1 − exp(−1)
    [[[0.6321]]]
    """
    total = hazards.sum(axis=1)  # (r, K)
    share = hazards / np.where(total > 0, total, 1.0)[:, None]
    spans = exposure(edges_days, np.zeros(len(horizons_days)), np.asarray(horizons_days, dtype=np.float64))  # (H, K)
    out = np.empty((*hazards.shape[:2], len(horizons_days)))
    for h, span in enumerate(spans):
        inside = total * span
        before = np.exp(-(np.cumsum(inside, axis=1) - inside))
        out[:, :, h] = np.einsum("rek,rk->re", share, before * -np.expm1(-inside))
    return out


def _days_since_index(rows: TaskRows, chosen: Ints) -> Floats:
    days = (np.asarray(rows.prediction_us)[chosen] - np.asarray(rows.index_us)[chosen]) / DAY_US
    return np.asarray(days, dtype=np.float64)
