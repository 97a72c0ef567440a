"""Ridge Cox regressions on the history features: of each cause from every landmark on, and of censoring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.baselines.base import FittingData, HazardBaseline
from ehrsequencing.baselines.cox import (
    CoxFit,
    CoxRegression,
    CoxRiskSets,
    CoxRows,
    choose_ridge,
    cox_incidence,
    partial_log_likelihood,
)
from ehrsequencing.baselines.history import (
    AGE_KNOTS_YEARS,
    FeatureSpec,
    fit_feature_spec,
    has_people,
    history_features,
)
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.metrics.censoring import RowCensoring, StepFunction, dropout_cause
from ehrsequencing.records.cohort import potential_days
from ehrsequencing.records.hazards import cohort_hazards, horizon_nll
from ehrsequencing.records.scales import fit_scale
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary

MOST_CELLS = 8_000_000  # prediction times × covariates; above, prediction times are drawn at random
# features, by the start of their names, whose logarithm is used
_SKEWED = (
    "days_",
    "visits",
    "count ",
)
MOST_CODES = 20  # of the history, the most frequent ones: who drops out depends on few things
MOST_CENSORING_ROWS = 20_000  # prediction times that one regression is fitted to
RIDGES_PER_CENSORED = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
# censored rows for each effective degree of freedom, else one of them decides huge weights
CENSORED_PER_FREEDOM = 10


@dataclass(frozen=True)
class LinearDesign:
    """History features made fit for a linear model; everything fitted on training rows. Make it with `fit`.

    Counts and times become log(1 + ·), what is not known becomes the training median with a mark of its own (marks that
    are alike in all training rows share one), age gets hinges, and nothing is extrapolated beyond the training range.
    Medians and ranges come from enough people each (`feature_range`).
    """

    columns: FeatureSpec  # the features that it takes
    used: Ints  # (U,) numbers of the features that vary among training rows
    fill: Floats  # (U,) training medians
    low: Floats  # (U,) lowest training values
    high: Floats  # (U,) highest training values
    marked: Ints  # numbers of the features, one for each distinct pattern of what is not known

    @classmethod
    def fit(
        cls, features: Floats32, columns: FeatureSpec, owner: Ints, *, enough: int
    ) -> LinearDesign:
        """Choose and scale by training rows.

        Args:
            features: (r, F) from `history_features`.
            columns: What they are.
            owner: (r,) whose rows they are.
            enough: People that every stored number must come from.
        """
        found = [feature_range(column, owner, enough=enough) for column in features.T]
        nothing = (np.nan, np.nan, np.nan)
        low, fill, high = _logarithms(
            np.array([nothing if f is None else f for f in found]).T, columns
        )
        used = np.flatnonzero(high > low)
        unknown = np.isnan(features)
        patterns: dict[bytes, int] = {}
        for column, mark in enumerate(unknown.T):
            # set in rows of enough people, and not set in rows of enough people
            if has_people(owner[mark], enough) and has_people(owner[~mark], enough):
                patterns.setdefault(np.packbits(mark).tobytes(), column)
        marked = np.array(list(patterns.values()), dtype=np.int64)
        return cls(columns, used, fill[used], low[used], high[used], marked)

    def logarithms(self, features: Floats32) -> Floats:
        """(r, F) history features as the ranges are: counts and times as log(1 + ·)."""
        return _logarithms(features, self.columns)

    def __call__(self, features: Floats32) -> Floats:
        """(r, F) history features → (r, D) finite covariates."""
        values = self.logarithms(features)
        used = values[:, self.used]
        parts = [np.clip(np.where(np.isnan(used), self.fill, used), self.low, self.high)]
        parts.append(np.isnan(values[:, self.marked]).astype(np.float64))
        if 0 in self.used:
            age = parts[0][:, list(self.used).index(0), None]
            parts.append(np.maximum(age - np.array(AGE_KNOTS_YEARS), 0.0))
        return np.concatenate(parts, axis=1)


def _logarithms(features: Floats | Floats32, columns: FeatureSpec) -> Floats:
    values = np.array(features, dtype=np.float64)
    skewed = [number for number, name in enumerate(columns.names) if name.startswith(_SKEWED)]
    values[:, skewed] = np.log1p(np.maximum(values[:, skewed], 0.0))
    return values


def feature_range(
    values: Floats32, owner: Ints, *, enough: int
) -> tuple[float, float, float] | None:
    """Lowest, middle and highest number of a feature by `fit_scale`; None where too few people have the feature.

    Args:
        values: (n,) of the training rows; NaN where it is not known.
        owner: (n,) whose rows they are.
        enough: People that each of the three must come from.
    """
    known = ~np.isnan(values)
    found = fit_scale(
        values[known].astype(np.float64), owner[known].astype(np.uint32), enough=enough
    )
    return (
        None
        if found is None
        else (float(found.knots[0]), float(np.median(found.knots)), float(found.knots[-1]))
    )


@dataclass
class CoxHazards(HazardBaseline):
    """Cox regressions on the run's grid: all that a blend keeps of them.

        λ_e(k | x) = base_e(k) · exp(β_e · (z − mean_e) / scale_e)

    Attributes:
        vocabulary: The one that encodes the records.
        design: Records' features → covariates z (D).
        mean: (causes, D).
        scale: (causes, D).
        beta: (causes, D); 0 for a cause without a training event.
        base: (causes, bins) hazards per day of a row at the mean.
        edges: The inner edges of the grid.
    """

    vocabulary: Vocabulary
    design: LinearDesign
    mean: Floats
    scale: Floats
    beta: Floats
    base: Floats
    edges: tuple[float, ...]

    name = "landmark Cox"

    def __post_init__(self) -> None:
        self.n_causes = len(self.base)

    def covariates(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, D) what the regressions know of the chosen rows."""
        columns = self.design.columns
        return self.design(
            history_features(records, self.vocabulary, chosen=chosen, columns=columns)
        )

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, causes, bins) hazards per day."""
        z = self.covariates(records, chosen)
        scores = [
            ((z - mean) / scale) @ beta
            for mean, scale, beta in zip(self.mean, self.scale, self.beta, strict=True)
        ]
        factors = np.exp(np.stack(scores, axis=1))
        return np.asarray(factors[:, :, None] * self.base, dtype=np.float64)


class LandmarkCox(CoxHazards):
    """The landmark supermodel of van Houwelingen (2007): cause-specific ridge Cox regressions on what is known so far.

    All training prediction times are stacked, each with its own clock and with the time since the index among the
    covariates, so that there is an answer at every prediction time. The ridge is the one with the lowest NLL of tuning
    subjects at all their prediction times, the number that reports compare. (One regression per landmark was worse on
    tuning subjects of PBC2 and NAFLD: docs/metrics.md.)

    Risks come from Breslow's baseline, which has no grid. The likelihood needs one: in each bin of the run's grid the
    baseline hazard is events over days at risk, a day of a row counting exp(β·z) times (`cohort_hazards`).
    """

    def __init__(self, data: FittingData) -> None:
        train, tuning = data.train.rows, data.tuning.rows
        columns = fit_feature_spec(data.train, data.vocabulary, enough=data.enough)
        chosen = data.draw(np.arange(len(train)), max(1, MOST_CELLS // (len(columns) + 1)))
        history = history_features(data.train, data.vocabulary, chosen=chosen, columns=columns)
        self.vocabulary, self.edges = data.vocabulary, data.edges_days
        self.design = LinearDesign.fit(history, columns, train.subject[chosen], enough=data.enough)
        watched = data.draw(np.arange(len(tuning)), max(1, MOST_CELLS // (len(columns) + 1)))
        x, watched_x = self.design(history), self.covariates(data.tuning, watched)
        self.fits = []
        for cause in range(1, len(data.task.causes) + 1):
            own, others = (
                _cox_rows(rows, some, values, cause)
                for rows, some, values in ((train, chosen, x), (tuning, watched, watched_x))
            )
            score = partial(_log_likelihood, train=own, tuning=others, edges_days=data.edges_days)
            self.fits.append(choose_ridge(own, others, score=score))
        base = cohort_hazards(
            data.edges_days,
            train.entry_days[chosen],
            train.duration_days[chosen],
            train.cause[chosen],
            n_causes=len(self.fits),
            factors=[np.exp(fit.log_hazard(x)) for fit in self.fits],
        )
        mean, scale, beta = (
            np.stack([getattr(fit, name) for fit in self.fits])
            for name in ("mean", "scale", "beta")
        )
        super().__init__(data.vocabulary, self.design, mean, scale, beta, base, data.edges_days)

    def curves(self, records: TaskRecords, chosen: Ints) -> Callable[[Floats], Floats]:
        """See `HazardBaseline`."""
        x = self.covariates(records, chosen)
        return lambda days: cox_incidence(self.fits, x, days)


def _log_likelihood(
    fit: CoxFit, *, train: CoxRows, tuning: CoxRows, edges_days: tuple[float, ...]
) -> float:
    """Mean log-likelihood of tuning rows, one cause, under hazards constant in the bins of the run's grid."""
    factor = np.exp(fit.log_hazard(train.x))
    base = cohort_hazards(
        edges_days,
        train.entry_days,
        train.duration_days,
        train.event.astype(np.int8),
        n_causes=1,
        factors=[factor],
    )
    hazards = np.exp(fit.log_hazard(tuning.x))[:, None, None] * base
    nll = horizon_nll(
        hazards,
        edges_days,
        duration_days=tuning.duration_days,
        cause=tuning.event.astype(np.int8),
        entry_days=tuning.entry_days,
    )
    return -float(nll.mean())


def _cox_rows(rows: TaskRows, chosen: Ints, x: Floats, cause: int) -> CoxRows:
    duration, event = rows.duration_days[chosen], rows.cause[chosen] == cause
    return CoxRows(x, np.asarray(rows.entry_days[chosen], np.float64), duration, event)


@dataclass(frozen=True)
class CensoringCox:
    """Censoring as a Cox regression on what is known at the prediction time."""

    fit: CoxFit  # the regression of the time to censoring
    cumulative_hazard: StepFunction  # H_0 of Kalbfleisch and Prentice, see `fit_censoring_cox`

    def of_rows(self, x: ArrayLike) -> RowCensoring:
        """G of rows with covariates `x` (n, F)."""
        return RowCensoring(self.cumulative_hazard, np.exp(self.fit.log_hazard(x)))


def censoring_rows(
    x: ArrayLike,
    duration_days: ArrayLike,
    cause: ArrayLike,
    *,
    until_days: float = np.inf,
    entry_days: ArrayLike = 0.0,
) -> CoxRows:
    """Rows in which censoring is the event, with the tie rule of `censoring_survival`: events leave before.

    Args:
        x: (n, F) covariates.
        duration_days: (n,) to the event or censoring.
        cause: (n,) int, 0 = censored.
        until_days: Later censorings do not count.
        entry_days: (n,) at risk after this time.
    """
    duration, is_censored = np.asarray(duration_days, dtype=np.float64), np.asarray(cause) == 0
    entry = np.broadcast_to(np.asarray(entry_days, dtype=np.float64), duration.shape)
    left = np.where(is_censored, duration, np.maximum(np.nextafter(duration, -np.inf), entry))
    event = is_censored & (duration <= until_days)
    return CoxRows(np.asarray(x, dtype=np.float64), entry, left, event)


def fit_censoring_cox(
    rows: CoxRows, *, tuning: CoxRows | None = None, ridge_per_event: float = 0.1
) -> CensoringCox:
    """Fit the distribution of the censoring time.

    The jumps h(t) of H_0 solve, with θ_j = exp(β·z_j),

        Σ_{j censored at t} θ_j / (1 − exp(−h θ_j)) = Σ_{j at risk at t} θ_j

    (Kalbfleisch & Prentice 1973), so that G is exactly Kaplan–Meier's when β = 0, instants at which many are censored
    included; Breslow's exp(−d / n) is not. Instants at which everybody left is censored do not enter β.

    Args:
        rows: From `censoring_rows`, with `until_days` the largest horizon: the end of a study, which takes everybody,
            would hide who drops out early. G is constant from there on.
        tuning: Such rows of other subjects, who choose the ridge among those that leave each effective degree of
            freedom `CENSORED_PER_FREEDOM` censored rows; None: `ridge_per_event`.
        ridge_per_event: Ridge per censored row.

    Returns:
        The model; where nobody is censored its G is 1.
    """
    last = float(rows.duration_days.max(initial=-np.inf))
    fitted = replace(rows, event=rows.event & (rows.duration_days < last))
    if not len(CoxRiskSets(fitted).times_days):
        fit = CoxFit.without_events(rows.x.shape[1])
    elif tuning is None:
        fit = CoxRegression(fitted).fit(ridge=ridge_per_event * float(fitted.event.sum()))
    else:
        fit = choose_ridge(fitted, tuning, per_event=_bearable_ridges(fitted))
    return CensoringCox(fit, _kalbfleisch_prentice(rows, fit))


def _bearable_ridges(rows: CoxRows) -> list[float]:
    """Ridges under which Σ_k d_k / (d_k + ridge), d the eigenvalues of the information at β = 0, is small enough."""
    regression, events = CoxRegression(rows), float(rows.event.sum())
    at_zero = np.zeros(rows.x.shape[1])
    information = partial_log_likelihood(regression.z, at_zero, regression.sets)[2]
    values = np.maximum(np.linalg.eigvalsh(information), 0.0)
    bearable = [
        strength
        for strength in RIDGES_PER_CENSORED
        if float((values / (values + strength * events)).sum()) <= events / CENSORED_PER_FREEDOM
    ]
    return bearable or [RIDGES_PER_CENSORED[0]]


def _kalbfleisch_prentice(rows: CoxRows, fit: CoxFit) -> StepFunction:
    """H_0 whose jumps solve the equation in `fit_censoring_cox`, by bisection of log h at all times together."""
    sets = CoxRiskSets(rows)
    if not len(sets.times_days):
        return StepFunction(np.zeros(0), np.zeros(1))
    theta = np.exp(fit.log_hazard(rows.x[sets.row]))
    at_risk = sets.sums(theta)
    leaver, time = theta[sets.event], sets.stop[sets.event] - 1
    leaving = np.bincount(time, weights=leaver, minlength=len(at_risk))
    everybody = at_risk <= leaving * (1 + 1e-12)
    low, high = np.full(len(at_risk), -80.0), np.full(len(at_risk), 80.0)
    for _ in range(70):
        middle = 0.5 * (low + high)
        share = np.maximum(-np.expm1(-np.exp(middle)[time] * leaver), 1e-300)
        is_small = np.bincount(time, weights=leaver / share, minlength=len(at_risk)) > at_risk
        low, high = np.where(is_small, middle, low), np.where(is_small, high, middle)
    jumps = np.where(everybody, np.inf, np.exp(0.5 * (low + high)))
    return StepFunction(sets.times_days, np.r_[0.0, np.cumsum(jumps)])


class HistoryCensoring:
    """Censoring given age, static codes, timing and the most frequent codes, fitted on the training subjects.

    One regression per landmark, on the training subjects at risk there, since the clock of a prediction time and the
    end of a study run differently from landmark to landmark; for all prediction times together one on those.

    Args:
        data: What to fit: the task's largest horizon ends the fit, the tuning subjects choose the ridge.
    """

    def __init__(self, data: FittingData) -> None:
        self.data = data
        self.columns = fit_feature_spec(data.train, data.vocabulary, max_codes=MOST_CODES)
        self._fitted: dict[float | None, tuple[LinearDesign, CensoringCox]] = {}

    def of_rows(
        self, records: TaskRecords, chosen: Ints, *, landmark_days: float | None
    ) -> RowCensoring:
        """G of the chosen rows of any split.

        Args:
            records: Visits and prediction times.
            chosen: (r,) row numbers, all at the landmark.
            landmark_days: The landmark; None for all prediction times together.
        """
        if landmark_days not in self._fitted:
            self._fitted[landmark_days] = self._fit(landmark_days)
        design, model = self._fitted[landmark_days]
        return model.of_rows(design(self._features(records, chosen)))

    def _features(self, records: TaskRecords, chosen: Ints) -> Floats32:
        return history_features(records, self.data.vocabulary, chosen=chosen, columns=self.columns)

    def _fit(self, landmark_days: float | None) -> tuple[LinearDesign, CensoringCox]:
        train, tuning = self.data.train, self.data.tuning
        chosen, watched = self._at(train, landmark_days), self._at(tuning, landmark_days)
        if not len(chosen):  # no training subject is at risk there
            chosen = self._at(train, None)
        history = self._features(train, chosen)
        # it is not stored
        design = LinearDesign.fit(history, self.columns, train.rows.subject[chosen], enough=1)
        fitted = self._rows(train, chosen, design(history))
        others = self._rows(tuning, watched, design(self._features(tuning, watched)))
        return design, fit_censoring_cox(fitted, tuning=others)

    def _at(self, records: TaskRecords, landmark_days: float | None) -> Ints:
        every = np.arange(len(records))
        if landmark_days is not None:
            every = records.at_landmark(landmark_days)
        return self.data.draw(every, MOST_CENSORING_ROWS)

    def _rows(self, records: TaskRecords, chosen: Ints, x: Floats) -> CoxRows:
        rows, task = records.rows, self.data.task
        ends = potential_days(records, task, self.data.dataset_end_us)
        return censoring_rows(
            x,
            rows.duration_days[chosen],
            dropout_cause(rows.duration_days, rows.cause, ends)[chosen],
            until_days=max(task.horizons),
            entry_days=rows.entry_days[chosen],
        )
