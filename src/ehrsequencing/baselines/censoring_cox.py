"""The censoring distribution where censoring depends on the record: G_i(t) = P(C > t | x_i), by ridge Cox regression.

Kaplan–Meier's G assumes that whoever is censored is like those who stay. Where the sick (or the healthy) drop out
early, weights of 1 / G bias every metric; weights of 1 / G_i do not, as far as x_i tells who drops out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.baselines.base import FittingData
from ehrsequencing.baselines.cox import (
    CoxFit,
    CoxRegression,
    CoxRiskSets,
    CoxRows,
    choose_ridge,
    partial_log_likelihood,
)
from ehrsequencing.baselines.history import LinearDesign, fit_feature_spec, history_features
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.metrics.censoring import RowCensoring, StepFunction
from ehrsequencing.records.timelines import TaskRecords, TaskRows

MOST_CODES = 20  # of the history, the most frequent ones: who drops out depends on few things
MOST_ROWS = 20_000  # prediction times that one regression is fitted to
RIDGES_PER_CENSORED = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
# censored rows for each effective degree of freedom, else one of them decides huge weights
CENSORED_PER_FREEDOM = 10


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
    weights: ArrayLike = 1.0,
) -> CoxRows:
    """Rows in which censoring is the event, with the tie rule of `censoring_survival`: events leave before.

    Args:
        x: (n, F) covariates.
        duration_days: (n,) to the event or censoring.
        cause: (n,) int, 0 = censored.
        until_days: Later censorings do not count.
        entry_days: (n,) at risk after this time.
        weights: (n,) multiplicities.
    """
    duration, is_censored = np.asarray(duration_days, dtype=np.float64), np.asarray(cause) == 0
    entry = np.broadcast_to(np.asarray(entry_days, dtype=np.float64), duration.shape)
    left = np.where(is_censored, duration, np.maximum(np.nextafter(duration, -np.inf), entry))
    return CoxRows.of(
        x, left, is_censored & (duration <= until_days), entry_days=entry, weights=weights
    )


def fit_censoring_cox(
    rows: CoxRows, *, tuning: CoxRows | None = None, ridge_per_event: float = 0.1
) -> CensoringCox:
    """Fit the distribution of the censoring time.

    The jumps h(t) of H_0 solve, with θ_j = exp(β·z_j),

        Σ_{j censored at t} w_j θ_j / (1 − exp(−h θ_j)) = Σ_{j at risk at t} w_j θ_j

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
    sets, n_features = CoxRiskSets(rows), rows.x.shape[1]
    last = float(rows.duration_days.max(initial=-np.inf))
    fitted = CoxRows(
        rows.x,
        rows.entry_days,
        rows.duration_days,
        rows.event & (rows.duration_days < last),
        rows.weights,
    )
    if not len(CoxRiskSets(fitted).times_days):
        nothing = StepFunction(np.zeros(0), np.zeros(1))
        fit = CoxFit(np.zeros(n_features), np.ones(n_features), np.zeros(n_features), nothing, 0.0)
    elif tuning is None:
        fit = CoxRegression(fitted).fit(ridge=ridge_per_event * fitted.n_events)
    else:
        fit = choose_ridge(fitted, tuning, per_event=_bearable_ridges(fitted))
    return CensoringCox(fit, _kalbfleisch_prentice(rows, sets, fit))


def _bearable_ridges(rows: CoxRows) -> list[float]:
    """Ridges under which Σ_k d_k / (d_k + ridge), d the eigenvalues of the information at β = 0, is small enough."""
    regression, events = CoxRegression(rows), rows.n_events
    information = partial_log_likelihood(regression.z, np.zeros(rows.x.shape[1]), regression.sets)[
        2
    ]
    values = np.maximum(np.linalg.eigvalsh(information), 0.0)
    freedom = [
        float((values / (values + strength * events)).sum()) for strength in RIDGES_PER_CENSORED
    ]
    bearable = [
        s
        for s, f in zip(RIDGES_PER_CENSORED, freedom, strict=True)
        if f <= events / CENSORED_PER_FREEDOM
    ]
    return bearable or [RIDGES_PER_CENSORED[0]]


def _kalbfleisch_prentice(rows: CoxRows, sets: CoxRiskSets, fit: CoxFit) -> StepFunction:
    """H_0 whose jumps solve the equation in `fit_censoring_cox`, by bisection of log h at all times together."""
    if not len(sets.times_days):
        return StepFunction(np.zeros(0), np.zeros(1))
    theta = np.exp(fit.log_hazard(rows.x[sets.row]))
    at_risk = sets.sums(sets.weight * theta)
    leaver, time = theta[sets.event], sets.stop[sets.event] - 1
    weight = sets.weight[sets.event] * leaver
    everybody = at_risk <= np.bincount(time, weights=weight, minlength=len(at_risk)) * (1 + 1e-12)
    low, high = np.full(len(at_risk), -80.0), np.full(len(at_risk), 80.0)
    for _ in range(70):
        middle = 0.5 * (low + high)
        share = np.maximum(-np.expm1(-np.exp(middle)[time] * leaver), 1e-300)
        is_small = np.bincount(time, weights=weight / share, minlength=len(at_risk)) > at_risk
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
        if not len(
            chosen
        ):  # no training subject is at risk there: all prediction times are the next best
            chosen = self._at(train, None)
        history = self._features(train, chosen)
        # it is not stored
        design = LinearDesign.fit(history, self.columns, train.rows.subject[chosen], enough=1)
        fitted = self._rows(train.rows, chosen, design(history))
        others = self._rows(tuning.rows, watched, design(self._features(tuning, watched)))
        return design, fit_censoring_cox(fitted, tuning=others)

    def _at(self, records: TaskRecords, landmark_days: float | None) -> Ints:
        every = (
            np.arange(len(records)) if landmark_days is None else records.at_landmark(landmark_days)
        )
        return self.data.draw(every, MOST_ROWS)

    def _rows(self, rows: TaskRows, chosen: Ints, x: Floats) -> CoxRows:
        duration, cause, entry = (
            rows.duration_days[chosen],
            rows.cause[chosen],
            rows.entry_days[chosen],
        )
        return censoring_rows(
            x, duration, cause, until_days=max(self.data.task.horizons), entry_days=entry
        )
