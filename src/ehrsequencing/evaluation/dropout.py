"""Drop-out given the history: who leaves before follow-up ends by design, and the weights that stand in for them.

A Cox model of the time to leaving, on the clock since the first index, censored by every cause and by the end by
design. What is known changes at each prediction time, so that the hazard between two of them is that of the newest
history (Robins & Finkelstein 2000):

    G_i(t) = exp(− ∫₀ᵗ exp(β η_i(u)) dA(u)),      A the baseline: with β = 0 the Kaplan–Meier curve of leaving

η is the log hazard that a ridge regression on other people gives (cross-fitted), β makes it right on these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.evaluation.estimates import metric_rows, scope_estimates
from ehrsequencing.metrics.bootstrap import Z95
from ehrsequencing.metrics.calibration import clipped_logit
from ehrsequencing.metrics.censoring import StepFunction, SubjectClock, divide, moment_days
from ehrsequencing.predictors.cox import (
    CoxFit,
    CoxRegression,
    CoxRiskSets,
    CoxRows,
    information,
    partial_log_likelihood,
)
from ehrsequencing.predictors.fitting_data import LinearDesign
from ehrsequencing.predictors.history import fit_feature_spec, history_features
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.results.result_types import MetricRow

FOLDS = 5
RIDGES_PER_EVENT = (10.0, 1.0, 0.1, 0.01)
_ENOUGH = 1e-6  # relative gain that another step of a fit must promise
MOST_CODES, MOST_STATIC = 40, 20
FEWEST_LEAVING = 50  # fewer people who left tell too little of why
MOST_PEOPLE = 20_000  # whom the regressions are fitted to
SOME_GAIN = 2.0  # of the log-likelihood of other people
SOME_RATIO = 1.1  # of the rate of leaving, per sd
LEAST_G = 0.05  # smaller ones count as this in reports
MOST_THIN = (
    0.01  # share of the rows at risk with a smaller one, above which a horizon has no number
)
FEWEST_EFFECTIVE = 10  # events, by Kish's formula


@dataclass(frozen=True)
class Pieces:
    """Time under observation in pieces, one a prediction time, on the clock since the first index.

    Attributes:
        subject: (R,) whose, rising.
        start_days: (R,) the prediction time.
        stop_days: (R,) the next one, or the end of follow-up.
        left: (R,) whether the subject leaves at its end, and nothing else ends it.
        had_event: (R,) whether it ends by an event.
    """

    subject: Ints
    start_days: Floats
    stop_days: Floats
    left: Bools
    had_event: Bools

    @classmethod
    def of_rows(
        cls, subject: Ints, since_days: Floats, duration_days: Floats, dropout: Ints
    ) -> "Pieces":
        """Of rows by subject and time; `dropout` (R,) is 0 where the subject drops out (`dropout_cause`)."""
        start, end = moment_days(since_days, 0.0), moment_days(since_days, duration_days)
        is_last = np.r_[subject[1:] != subject[:-1], True]
        following = np.r_[start[1:], np.inf]
        stop = np.where(is_last, end, np.minimum(end, following))
        return cls(subject, start, stop, is_last & (dropout == 0), (dropout > 0) & (stop == end))

    def matter(self, duration_days: Floats, horizon_days: float) -> bool:
        """Whether enough people leave within a horizon from their last prediction time."""
        return int((self.left & (duration_days < horizon_days)).sum()) >= FEWEST_LEAVING

    def cox_rows(self, x: Floats, some: Bools) -> CoxRows:
        """Some of the pieces with covariates, for a regression of leaving."""
        return CoxRows(x[some], self.start_days[some], self.stop_days[some], self.left[some])


@dataclass(frozen=True)
class Dropout:
    """What a model of leaving found.

    Attributes:
        left: People who left.
        ratio: Of the rate of leaving, per standard deviation of the log hazard, with its interval.
        gain: In the log-likelihood of people whom the model had not seen.
        paths: The chance of being followed along each subject's history.
    """

    left: int
    ratio: float
    low: float
    high: float
    gain: float
    paths: "Paths"

    @property
    def is_by_history(self) -> bool:
        """Whether leaving depends on the history by more than chance explains."""
        return self.low > 1.0 and (self.gain > SOME_GAIN or self.ratio > SOME_RATIO)

    def as_part(self) -> dict[str, Any]:
        """The `dropout` key of a result."""
        return {
            "events": self.left,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "gain": self.gain,
            "by_history": self.is_by_history,
        }


@dataclass(frozen=True)
class Paths:
    """The cumulative hazard of leaving of every subject, piece by piece."""

    pieces: Pieces
    factor: Floats  # (R,) exp(β η) during each piece
    baseline: StepFunction  # A by time since the index

    @cached_property
    def _clock(self) -> tuple[Floats, Ints, Floats, Floats]:
        """Distinct starts, and of each piece (R,) its key, A at its start, and the subject's hazard up to there."""
        starts = np.unique(self.pieces.start_days)
        rank = np.searchsorted(starts, self.pieces.start_days)
        at_start = self.baseline.at(self.pieces.start_days)
        gained = self.factor * (self.baseline.at(self.pieces.stop_days) - at_start)
        total = np.r_[0.0, np.cumsum(gained)][:-1]
        first = np.searchsorted(self.pieces.subject, self.pieces.subject)
        keys = self.pieces.subject * (len(starts) + 1) + rank
        return starts, keys, at_start, total - total[first]

    def hazard(self, subject: ArrayLike, days: ArrayLike, *, before: bool) -> Floats:
        """Cumulative hazard of leaving by `days` since the index, or just before them; by the newest history there."""
        owner, until = np.broadcast_arrays(np.asarray(subject), np.asarray(days, np.float64))
        starts, keys, at_start, total = self._clock
        wanted = owner * (len(starts) + 1) + np.searchsorted(starts, until, side="left")
        piece = np.maximum(np.searchsorted(keys, wanted, side="left") - 1, 0)
        inside = self.pieces.subject[piece] == owner
        at = (self.baseline.before if before else self.baseline.at)(until)
        return np.where(inside, total[piece] + self.factor[piece] * (at - at_start[piece]), 0.0)


@dataclass(frozen=True)
class HistoryClock(SubjectClock):
    """Censoring on each subject's own clock, given its history (`Paths`)."""

    paths: Paths
    subject: Ints  # (n,) of each row
    least: float = LEAST_G  # smaller chances count as this; 0: none does
    refused_days: tuple[float, ...] = ()  # horizons with too many small chances, or too few events

    is_by_history = True

    def take(self, rows: Bools | Ints) -> "HistoryClock":
        """Some of the rows."""
        return replace(self, since_days=self.since_days[rows], subject=self.subject[rows])

    def covers(self, horizon_days: float) -> Bools:
        """(n,) whether p + t lies within the support, and the horizon is not refused."""
        late = moment_days(self.since_days, horizon_days)
        return (late <= self.support_days) & (horizon_days not in self.refused_days)

    def before(self, days: ArrayLike) -> Floats:
        """See `SubjectClock`."""
        shape = (-1, *[1] * np.ndim(days))
        return self._chance(self.subject.reshape(shape), self.since_days.reshape(shape), days)

    def before_own(self, days: ArrayLike) -> Floats:
        """See `SubjectClock`; `days` (n,) or (n, m)."""
        shape = (-1, *[1] * (np.ndim(days) - 1))
        return self._chance(self.subject.reshape(shape), self.since_days.reshape(shape), days)

    def _chance(self, subject: Ints, since: Floats, days: ArrayLike) -> Floats:
        until = self.paths.hazard(subject, moment_days(since, days), before=True)
        lost = until - self.paths.hazard(subject, since, before=False)
        return np.maximum(np.exp(-np.maximum(lost, 0.0)), self.least)

    def refused(self, horizons: Floats, duration_days: Floats, cause: Ints) -> "HistoryClock":
        """The same without the horizons at which few people carry a number."""
        raw = replace(self, least=0.0)
        own, refused = raw.before_own(duration_days), list[float]()
        for horizon in horizons.tolist():
            without = (duration_days > horizon) | (
                cause == 0
            )  # some of them left: few like them are seen
            thin = (without & (raw.before(horizon) < LEAST_G)).mean()
            had = (cause == 1) & (duration_days <= horizon)
            weight = divide(1.0, np.maximum(own[had], self.least), undefined=0.0)
            effective = divide(weight.sum() ** 2, (weight**2).sum(), undefined=0.0)
            few = had.sum() >= FEWEST_EFFECTIVE > effective
            if thin > MOST_THIN or few:
                refused.append(horizon)
        return replace(self, refused_days=tuple(refused))

    def capped(self, duration_days: Floats, horizon_days: float) -> int:
        """How many rows have a chance below the least one at the horizon, or where they end before it."""
        raw = replace(self, least=0.0).before_own(np.minimum(duration_days, horizon_days))
        return int((raw < self.least).sum())


def history_covariates(
    records: TaskRecords, vocabulary: Vocabulary, risks: Mapping[str, Floats]
) -> Floats:
    """(R, D) what is known at each prediction time, for a linear model: the history, and what each model says of it."""
    columns = fit_feature_spec(
        records, vocabulary, max_codes=MOST_CODES, max_static_codes=MOST_STATIC
    )
    history = history_features(records, chosen=np.arange(len(records)), columns=columns)
    x = LinearDesign.fit(history, columns, records.rows.subject, enough=1)(history)
    return np.column_stack([x, *map(risk_covariates, risks.values())])


def risk_covariates(risk: Floats) -> Floats:
    """(R, causes) log odds of the risks (R, causes, horizons) by the last horizon."""
    return clipped_logit(np.asarray(risk[:, :, -1], dtype=np.float64))


def fit_dropout(pieces: Pieces, x: Floats, *, seed: int) -> Dropout | None:
    """Fit leaving given the covariates (R, D) of each piece; None where too few people leave."""
    left = int(pieces.left.sum())
    if left < FEWEST_LEAVING:
        return None
    x = x[:, np.ptp(x, axis=0) > 0]
    number = np.unique(pieces.subject, return_inverse=True)[1]
    order = np.random.default_rng([seed, 83]).permutation(int(number.max()) + 1)
    fold, is_fitted = order[number] % FOLDS, order[number] < MOST_PEOPLE
    eta = np.zeros(len(x))
    for k in range(FOLDS):
        tuning = fold == (k + 1) % FOLDS
        others = (fold != k) & ~tuning & is_fitted
        watched = pieces.cox_rows(x, tuning & is_fitted)
        regression = CoxRegression(pieces.cox_rows(x, others))
        fits = [
            regression.fit(ridge=strength * left, tolerance=_ENOUGH)
            for strength in RIDGES_PER_EVENT
        ]
        best = max(fits, key=lambda fit: _log_likelihood(fit, watched))
        eta[fold == k] = best.log_hazard(x[fold == k])
    every = np.ones(len(eta), dtype=bool)
    rows = pieces.cox_rows(eta[:, None], every)
    if np.ptp(eta) == 0:
        return Dropout(left, 1.0, 1.0, 1.0, 0.0, _paths(pieces, np.zeros(len(eta))))
    regression = CoxRegression(rows)
    fit = regression.fit(ridge=1e-6, tolerance=_ENOUGH)
    spread = float(information(regression.z, fit.beta, regression.sets)[0, 0]) ** -0.5
    beta, error = float(fit.beta[0]), Z95 * spread
    gain = _log_likelihood(CoxFit(np.zeros(1), np.ones(1), np.ones(1), 0.0), rows)
    gain -= _log_likelihood(CoxFit(np.zeros(1), np.ones(1), np.zeros(1), 0.0), rows)
    ratio, low, high = np.exp([beta, beta - error, beta + error]).tolist()
    return Dropout(left, ratio, low, high, gain, _paths(pieces, fit.log_hazard(eta[:, None])))


def _log_likelihood(fit: CoxFit, rows: CoxRows) -> float:
    """Partial log-likelihood of some rows under a fit to others."""
    sets = CoxRiskSets(rows)
    score = fit.log_hazard(rows.x)[sets.row][:, None]
    return partial_log_likelihood(score, np.ones(1), sets)[0] if len(sets.times_days) else 0.0


def _paths(pieces: Pieces, log_hazard: Floats) -> Paths:
    """Breslow's baseline of leaving; at one instant events leave first, as everywhere."""
    factor = np.exp(log_hazard - log_hazard.mean())
    times, leaving = np.unique(pieces.stop_days[pieces.left], return_counts=True)

    def at_risk(weight: Floats) -> Floats:
        """Sum over the pieces at each time: begun before, not ended before, and without an event then."""
        total = np.zeros(len(times))
        for days, some, side, sign in (
            (pieces.start_days, slice(None), "left", 1),
            (pieces.stop_days, slice(None), "left", -1),
            (pieces.stop_days, pieces.had_event, "right", -1),
            (pieces.stop_days, pieces.had_event, "left", 1),
        ):
            order = np.argsort(days[some], kind="stable")
            until = np.r_[0.0, np.cumsum(weight[some][order])]
            total += sign * until[np.searchsorted(days[some][order], times, side=side)]  # type: ignore[call-overload]
        return total

    count = at_risk(np.ones(len(factor)))
    share = np.minimum(leaving / np.maximum(count, 1.0), 1 - 1e-12)
    # with equal factors the curve is that of Kaplan and Meier
    jumps = -np.log1p(-share) * count / np.maximum(at_risk(factor), 1e-12)
    return Paths(pieces, factor, StepFunction(times, np.r_[0.0, np.cumsum(jumps)]))


def weighted_by_risks(
    scope: Comparison, *, names: Sequence[str], seed: int, alone: bool
) -> tuple[Comparison, dict[str, Any] | None, list[MetricRow[int]]]:
    """Rows without records, weighted by what the models' risks say of leaving, where it depends on them.

    Args:
        scope: The rows.
        names: Of the causes that are shown.
        seed: Of the folds.
        alone: Whether each row is somebody else; else nothing is fitted.

    Returns:
        The rows, what was found, and the metrics without these weights where there are some with them.
    """
    none = np.zeros(len(scope))
    pieces = Pieces.of_rows(scope.subject, none, scope.duration_days, scope.cause)
    if not alone or not pieces.matter(scope.duration_days, scope.horizons_days[-1]):
        return scope, None, []
    found = fit_dropout(
        pieces, np.column_stack([*map(risk_covariates, scope.risk.values())]), seed=seed
    )
    if found is None or not found.is_by_history:
        return scope, None if found is None else found.as_part(), []
    whole = StepFunction(np.zeros(0), np.ones(1))
    clock = HistoryClock(whole, np.inf, none, found.paths, scope.subject)
    clock = clock.refused(scope.horizons_days, scope.duration_days, scope.cause)
    rows = metric_rows(plain := scope.without_resamples(), scope_estimates(plain, names))
    return replace(scope, censoring=clock), found.as_part(), rows
