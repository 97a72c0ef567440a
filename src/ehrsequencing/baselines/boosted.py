"""The baseline "boosted visits": gradient-boosted trees on history features and code pairs, giving hazards per bin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from ehrsequencing.arrays import Floats, Floats32, Ints
from ehrsequencing.baselines.base import FittingData, HazardModel
from ehrsequencing.baselines.history import FeatureSpec, fit_feature_spec, history_features
from ehrsequencing.records.hazards import event_bin, exposure
from ehrsequencing.records.timelines import TaskRecords, TaskRows

Predict = Callable[[Floats32], Floats]
MOST_PAIRS = 120  # code pairs with features of their own
TIME_PARTS = 2  # within which the factor is constant; the cohort's own hazard keeps the whole grid
MOST_CELLS = 160_000_000  # prediction times × parts of time × features; above, prediction times are drawn at random
UNWATCHED_TREES = 100  # of a cause that no tuning subject had: nothing says when to stop
MOST_BINS = 64  # of a feature
_ALWAYS: dict[str, Any] = {
    "loss": "poisson", "max_iter": 500, "max_bins": MOST_BINS, "n_iter_no_change": 25, "tol": 0.0
}  # fmt: skip
_FIRST: dict[str, Any] = {
    "learning_rate": 0.05, "max_leaf_nodes": 8, "min_samples_leaf": 50, "l2_regularization": 20.0, "max_features": 0.3,
}  # fmt: skip
#: What is tried, in this order, as many as there are trials; the tuning likelihood chooses, cause by cause.
TRIALS: tuple[dict[str, Any], ...] = (
    _FIRST,
    _FIRST | {"max_leaf_nodes": 16},
    _FIRST | {"max_leaf_nodes": 4},
    _FIRST | {"max_features": 1.0},
    _FIRST | {"max_features": 0.1},
    _FIRST | {"min_samples_leaf": 200},
    _FIRST | {"min_samples_leaf": 20, "l2_regularization": 5.0},
    _FIRST | {"learning_rate": 0.02},
    _FIRST | {"learning_rate": 0.1},
    _FIRST | {"max_leaf_nodes": 16, "min_samples_leaf": 200},
    _FIRST | {"max_leaf_nodes": 4, "max_features": 0.1},
    _FIRST | {"max_leaf_nodes": 2, "max_features": 1.0},
)


@dataclass(frozen=True)
class Periods:
    """Prediction times × parts of time in which they were at risk.

    Attributes:
        row: (P,) position of the prediction time among those chosen.
        part: (P,) of time.
        expected: (causes, P) events that the cohort's own hazards expect there.
        cause: (P,) event in this period, 0 for none.
    """

    row: Ints
    part: Ints
    expected: Floats
    cause: Ints


class BoostedVisits(HazardModel):
    """Boosted trees on everything in `history_features`, code pairs included, and the part of time; Poisson loss.

    Every training prediction time is seen, unless there are more than `MOST_CELLS` cells. A trial is one of `TRIALS`
    for all causes. Boosting stops by the likelihood of tuning subjects at all their prediction times, and so the best
    trial is chosen. A cause that none of them had gets a fixed number of trees, and one without a training event keeps
    the cohort's own hazard.

    Args:
        data: What to fit; its seed is that of the boosting.
        trials: How many settings to try, at most `len(TRIALS)`.
    """

    name = "boosted visits"

    def __init__(self, data: FittingData, *, trials: int = 1) -> None:
        super().__init__(data)
        self.vocabulary, self.seed = data.vocabulary, data.seed
        self.columns: FeatureSpec = fit_feature_spec(data.train, data.vocabulary, max_pairs=MOST_PAIRS)
        bins = len(self.edges) + 1
        self.part_of: Ints = np.arange(bins) * min(TIME_PARTS, bins) // bins  # of each bin of the grid
        self.trials = max(1, min(trials, len(TRIALS)))
        most = max(1, MOST_CELLS // ((int(self.part_of[-1]) + 1) * (len(self.columns) + 1)))
        self.fitted = data.draw(np.arange(len(data.train)), most)
        self.cuts: list[Floats32] = []
        self.models = self._fit(data.train, data.tuning)

    def periods(self, rows: TaskRows, chosen: Ints) -> Periods:
        """Some prediction times, cut into the parts of time in which they were at risk."""
        duration, cause = rows.duration_days[chosen], rows.cause[chosen].astype(np.int64)
        days = exposure(self.edges, rows.entry_days[chosen], duration)
        first_bin = np.flatnonzero(np.diff(self.part_of, prepend=-1))
        expected = np.stack([np.add.reduceat(days * base, first_bin, axis=1) for base in self.base])
        row, part = np.nonzero(expected.sum(axis=0) > 0)
        last = self.part_of[event_bin(self.edges, duration)]
        return Periods(row, part, expected[:, row, part], np.where(last[row] == part, cause[row], 0))

    def _fit(self, train: TaskRecords, tuning: TaskRecords) -> list[Predict | None]:
        every = np.arange(len(tuning))
        periods, watched = self.periods(train.rows, self.fitted), self.periods(tuning.rows, every)
        history = self._history(train, self.fitted)
        self.cuts = [feature_cuts(column, MOST_BINS) for column in history.T]
        design, watched_design = self._design(history, periods), self._design(self._history(tuning, every), watched)
        models: list[Predict | None] = []
        for e in range(self.n_causes):
            weight, watched_weight = periods.expected[e], watched.expected[e]
            event, watched_event = periods.cause == e + 1, watched.cause == e + 1
            if not event.any():
                models.append(None)
                continue
            if not watched_event.any():  # a Poisson loss needs an event
                model = _boosting(TRIALS[0] | {"max_iter": UNWATCHED_TREES}, self.seed, stop=False)
                models.append(model.fit(design, event / weight, sample_weight=weight).predict)
                continue
            held = {
                "X_val": watched_design,
                "y_val": watched_event / watched_weight,
                "sample_weight_val": watched_weight,
            }
            tried = [
                _boosting(settings, self.seed, stop=True).fit(design, event / weight, sample_weight=weight, **held)
                for settings in TRIALS[: self.trials]
            ]
            models.append(_best_iterations(max(tried, key=lambda model: float(np.max(model.validation_score_)))))
        return models

    def _history(self, records: TaskRecords, chosen: Ints) -> Floats32:
        return history_features(records, self.vocabulary, chosen=chosen, columns=self.columns)

    def _design(self, history: Floats32, periods: Periods) -> Floats32:
        """(P, F + 1): the number of each feature's bin (those that vary), and the part of time."""
        used = [column for column, cuts in enumerate(self.cuts) if len(cuts)]
        binned = np.empty((len(history), len(used)), dtype=np.float32)
        for place, column in enumerate(used):
            known = history[:, column]
            binned[:, place] = np.where(np.isnan(known), np.nan, np.searchsorted(self.cuts[column], known))
        return np.concatenate([binned[periods.row], periods.part.astype(np.float32)[:, None]], axis=1)

    def factor(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins)."""
        shape = (len(chosen), int(self.part_of[-1]) + 1)
        row, part = (place.ravel() for place in np.indices(shape))
        everywhere = Periods(row, part, np.empty(0), np.empty(0, np.int64))
        design = self._design(self._history(records, chosen), everywhere)
        parts = [np.ones(shape) if model is None else model(design).reshape(shape) for model in self.models]
        return np.stack(parts, axis=1)[:, :, self.part_of]


def feature_cuts(values: Floats32, most: int) -> Floats32:
    """Where a feature is cut into at most `most` bins of about as many training rows; none where it does not vary.

    scikit-learn bins too, but with weighted rows it sorts a feature once for every cut, which took most of the time. It
    also fails on a feature that no row has (ages without births). Here that one has no cut and is left out, and one
    that some rows lack has a cut below all others.

    >>> feature_cuts(np.array([1, 2, 2, 4, np.nan], np.float32), 8).tolist()
    [-inf, 1.5, 3.0]
    """
    known = values[~np.isnan(values)]
    distinct = np.unique(known)
    if len(distinct) > most - 1:
        inner = np.unique(np.quantile(known, np.linspace(0, 1, most)[1:-1]).astype(np.float32))
    else:
        inner = ((distinct[1:] + distinct[:-1]) / 2).astype(np.float32)
    lacking = len(known) and len(known) < len(values)
    return np.r_[np.float32(-np.inf), inner] if lacking else inner


def _boosting(settings: dict[str, Any], seed: int, *, stop: bool) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(**(_ALWAYS | settings), early_stopping=stop, random_state=seed)


def _best_iterations(model: HistGradientBoostingRegressor) -> Predict:
    """Predict with as many trees as the tuning subjects liked best; none at all is a possible answer."""
    best = int(np.argmax(model.validation_score_))

    def predict(design: Floats32) -> Floats:
        if best == 0:
            return np.full(len(design), float(np.exp(model._baseline_prediction.ravel()[0])))
        for number, answer in enumerate(model.staged_predict(design), start=1):
            if number == best:
                return np.asarray(answer, dtype=np.float64)
        raise AssertionError("the boosting has fewer trees than scores")

    return predict
