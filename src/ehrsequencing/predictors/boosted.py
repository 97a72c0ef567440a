"""The baseline "boosted visits": gradient-boosted trees on history features and code pairs, giving hazards per bin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints
from ehrsequencing.predictors.features import MOST_BINS, before_pairs, binned
from ehrsequencing.predictors.fitting_data import FittingData, kind_of
from ehrsequencing.predictors.history import FeatureSpec
from ehrsequencing.predictors.of_history import OfHistory
from ehrsequencing.records.hazards import event_bin, exposure
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.records.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

TIME_PARTS = 2  # within which the factor is constant; the cohort's own hazard keeps the whole grid
UNWATCHED_TREES = 100  # of a cause that no tuning subject had: nothing says when to stop
_CHUNK_ROWS = 1024  # rows that walk through all trees together: what fits the cache
_ALWAYS: dict[str, Any] = {
    "loss": "poisson",
    "max_iter": 500,
    "max_bins": MOST_BINS,
    "n_iter_no_change": 25,
    "tol": 0.0,
}
_FIRST: dict[str, Any] = {
    "learning_rate": 0.05,
    "max_leaf_nodes": 8,
    "min_samples_leaf": 50,
    "l2_regularization": 20.0,
    "max_features": 0.3,
    "pairs": True,
}
#: What is tried, in this order, as many as there are trials; the tuning likelihood chooses, cause by cause. `pairs`:
#: whether the trees see the features of code pairs; the rest are settings of scikit-learn.
TRIALS: tuple[dict[str, Any], ...] = (
    _FIRST,
    _FIRST | {"pairs": False},
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
class Trees:
    """T trees of at most n nodes as plain arrays, kept without a pickle.

        f(x) = exp(start + Σ_t value_t(leaf of x in tree t))

    At an inner node a row goes left where its feature is at most the threshold, or unknown and `missing_left`. A leaf
    is its own left and right.

    Attributes:
        start: () the sum before the first tree.
        feature: (T, n) column that a node looks at.
        threshold: (T, n) float64.
        missing_left: (T, n) where rows without the feature go.
        left: (T, n) number of the left child.
        right: (T, n) of the right one.
        value: (T, n) of a leaf.
    """

    start: Floats
    feature: Ints
    threshold: Floats
    missing_left: Bools
    left: Ints
    right: Ints
    value: Floats

    @classmethod
    def from_sklearn(
        cls, model: HistGradientBoostingRegressor, columns: Ints, *, trees: int | None = None
    ) -> Trees:
        """The first trees of a fitted boosting with a logarithmic link (Poisson loss).

        Args:
            model: The boosting.
            columns: Where each of its features stands in the rows to predict for.
            trees: How many; default: all.
        """
        stages = [stage[0].nodes for stage in model._predictors[:trees]]
        shape = (len(stages), max(map(len, stages), default=1))
        own = np.broadcast_to(np.arange(shape[1]), shape)
        feature, left, right = np.zeros(shape, np.int64), own.copy(), own.copy()
        threshold, value = np.zeros(shape), np.zeros(shape)
        missing_left = np.zeros(shape, bool)
        for t, nodes in enumerate(stages):
            inner = np.flatnonzero(nodes["is_leaf"] == 0)
            feature[t, inner] = nodes["feature_idx"][inner]
            threshold[t, inner] = nodes["num_threshold"][inner]
            missing_left[t, inner] = nodes["missing_go_to_left"][inner]
            left[t, inner] = nodes["left"][inner]
            right[t, inner] = nodes["right"][inner]
            leaves = np.flatnonzero(nodes["is_leaf"])
            value[t, leaves] = nodes["value"][leaves]
        start = np.asarray(model._baseline_prediction, dtype=np.float64).ravel()[0]
        return cls(start, columns[feature], threshold, missing_left, left, right, value)

    def predict(self, design: Floats32) -> Floats:
        """F of each row of (r, columns); NaN = unknown."""
        out = np.empty(len(design))
        for first in range(0, len(design), _CHUNK_ROWS):
            part = slice(first, first + _CHUNK_ROWS)
            out[part] = self._walk(np.asarray(design[part], dtype=np.float64))
        return out

    def _walk(self, x: Floats) -> Floats:
        feature, threshold, value = (
            nodes.ravel() for nodes in (self.feature, self.threshold, self.value)
        )
        missing_left, left, right = (
            nodes.ravel() for nodes in (self.missing_left, self.left, self.right)
        )
        root = np.arange(len(self.feature))[:, None] * self.feature.shape[1]
        row, node = np.arange(len(x)), np.repeat(root, len(x), axis=1)
        while True:
            known = x[row, feature[node]]
            goes_left = np.where(np.isnan(known), missing_left[node], known <= threshold[node])
            child = root + np.where(goes_left, left[node], right[node])
            if (child == node).all():
                break
            node = child
        total = np.full(len(x), float(self.start))
        for leaf in node:  # one tree after another, as they were added in training
            total += value[leaf]
        return np.asarray(np.exp(total), dtype=np.float64)


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


@dataclass
class BoostedVisits(OfHistory):
    """Boosted trees on everything in `history_features`, code pairs included, and the part of time. Make it with `fit`.

        λ_e(k | x) = base_{g,e}(k) · f_e(x, part of k)      k a bin of the run's grid, g visit or query

    f_e is fitted by Poisson likelihood as a factor of the cohort's own hazards; the base comes afterwards, so that the
    training rows of each kind expect the events that they had (`FittingData.level`).

    A bin counts with the days at risk in it, so that a partly observed bin is neither dropped nor taken as whole. A
    competing event ends the exposure of every cause.

    Attributes:
        vocabulary: The one that encodes the records.
        columns: The history features.
        cuts: Where each of them is cut into bins; a feature without a cut is not used.
        part_of: (bins,) part of time of each bin of the grid.
        base: (2, causes, bins) hazards at visits and at queries of a row whose trees say 1.
        edges_days: The inner edges of the grid.
        trees: Of each cause; None = the cohort's own hazard.
    """

    vocabulary: Vocabulary
    columns: FeatureSpec
    cuts: list[Floats]
    part_of: Ints
    base: Floats
    edges_days: tuple[float, ...]
    trees: list[Trees | None]

    name = "boosted visits"

    def __post_init__(self) -> None:
        self.n_causes = self.base.shape[1]
        self.used: Ints = np.flatnonzero([len(cuts) > 0 for cuts in self.cuts])

    @classmethod
    def fit(cls, data: FittingData) -> BoostedVisits:
        """Fit to every training prediction time, or to a draw where there are many.

        A trial is one of `TRIALS` for all causes, as many as `data.trials`. Boosting stops by the likelihood of tuning
        subjects at all their prediction times, and so the best trial is chosen. A cause that none of them had gets a
        fixed number of trees, and one without a training event keeps the cohort's own hazard, apart from its level.

        Args:
            data: What to fit; its seed is that of the boosting.
        """
        features, bins = data.features, len(data.edges_days) + 1
        part_of: Ints = np.arange(bins) * min(TIME_PARTS, bins) // bins
        cohort = data.cohort_hazards()
        base = np.stack([cohort, cohort])  # until the trees are there
        made = cls(
            data.vocabulary, features.columns, features.cuts, part_of, base, data.edges_days, []
        )
        periods, watched = (
            made.periods(data.train.rows, features.rows, cohort),
            made.periods(data.tuning.rows, features.tuning_rows, cohort),
        )
        design = _design(features.bins, periods.row, periods.part)
        watched_design = _design(features.tuning_bins, watched.row, watched.part)
        for e in range(made.n_causes):
            weight, watched_weight = periods.expected[e], watched.expected[e]
            event, watched_event = periods.cause == e + 1, watched.cause == e + 1
            if not event.any():
                made.trees.append(None)
                continue
            if not watched_event.any():  # a Poisson loss needs an event
                settings = TRIALS[0] | {"max_iter": UNWATCHED_TREES, "early_stopping": False}
                model, seen = made._boosting(settings, seed=data.seed)
                model.fit(design[:, seen], event / weight, sample_weight=weight)
                made.trees.append(Trees.from_sklearn(model, seen))
                continue
            best = -np.inf
            for settings in TRIALS[: max(1, data.trials)]:
                model, seen = made._boosting(settings | {"early_stopping": True}, seed=data.seed)
                model.fit(
                    design[:, seen],
                    event / weight,
                    sample_weight=weight,
                    X_val=watched_design[:, seen],
                    y_val=watched_event / watched_weight,
                    sample_weight_val=watched_weight,
                )
                scores = model.validation_score_
                if float(np.max(scores)) > best:
                    best = float(np.max(scores))
                    # as many trees as have the best likelihood on the tuning subjects, perhaps none
                    trees = Trees.from_sklearn(model, seen, trees=int(np.argmax(scores)))
            made.trees.append(trees)
        made.base = cohort * data.level(
            features.rows, lambda part: cohort * made._factor(features.bins[part])
        )
        return made

    def _boosting(
        self, settings: dict[str, Any], *, seed: int
    ) -> tuple[HistGradientBoostingRegressor, Ints]:
        """A boosting with the settings of a trial, and the columns of the design that it sees."""
        from sklearn.ensemble import (
            HistGradientBoostingRegressor,  # seconds, which predictions need not wait
        )

        theirs = {name: value for name, value in (_ALWAYS | settings).items() if name != "pairs"}
        is_seen = np.append(self.used < before_pairs(self.columns), True)  # the part of time, too
        seen = np.flatnonzero(is_seen | settings["pairs"])
        return HistGradientBoostingRegressor(**theirs, random_state=seed), seen

    def periods(self, rows: TaskRows, chosen: Ints, cohort: Floats) -> Periods:
        """Some prediction times, cut into the parts of time in which they were at risk.

        Args:
            rows: The labels.
            chosen: (r,) which of them.
            cohort: (causes, bins) the training cohort's own hazards.
        """
        duration, cause = rows.duration_days[chosen], rows.cause[chosen].astype(np.int64)
        days = exposure(self.edges_days, rows.entry_days[chosen], duration)
        first_bin = np.flatnonzero(np.diff(self.part_of, prepend=-1))
        expected = np.stack([np.add.reduceat(days * base, first_bin, axis=1) for base in cohort])
        row, part = np.nonzero(expected.sum(axis=0) > 0)
        last = self.part_of[event_bin(self.edges_days, duration)]
        return Periods(
            row, part, expected[:, row, part], np.where(last[row] == part, cause[row], 0)
        )

    def _factor(self, bins: Floats32) -> Floats:
        """(r, causes, bins) what multiplies the base, of rows with these bins of features (r, used)."""
        shape = (len(bins), int(self.part_of[-1]) + 1)
        row, part = (place.ravel() for place in np.indices(shape))
        design = _design(bins, row, part)
        parts = [
            np.ones(shape) if trees is None else trees.predict(design).reshape(shape)
            for trees in self.trees
        ]
        return np.stack(parts, axis=1)[:, :, self.part_of]

    def of_history(self, history: Floats32, rows: TaskRows) -> Floats:
        """See `OfHistory`."""
        factor = self._factor(binned(history, self.cuts))
        return self.base[kind_of(rows, np.arange(len(rows)))] * factor


def _design(bins: Floats32, row: Ints, part: Ints) -> Floats32:
    """(P, used + 1) of some rows in some parts of time: the number of each feature's bin, and the part."""
    return np.concatenate([bins[row], part.astype(np.float32)[:, None]], axis=1)
