"""The baseline "boosted visits": gradient-boosted trees on history features and code pairs, giving hazards per bin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints
from ehrsequencing.predictors.fitting_data import FittingData, kind_of
from ehrsequencing.predictors.history import (
    OF_CODE,
    FeatureSpec,
    fit_feature_spec,
    has_people,
    history_features,
)
from ehrsequencing.predictors.predictor import Predictor, in_parts
from ehrsequencing.records.hazards import event_bin, exposure
from ehrsequencing.records.scales import between_float32
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary

MOST_PAIRS = 120  # code pairs with features of their own
TIME_PARTS = 2  # within which the factor is constant; the cohort's own hazard keeps the whole grid
MOST_CELLS = 160_000_000  # prediction times × parts of time × features; above, prediction times are drawn at random
UNWATCHED_TREES = 100  # of a cause that no tuning subject had: nothing says when to stop
MOST_BINS = 64  # of a feature
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
class BoostedVisits(Predictor):
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
    def fit(
        cls, data: FittingData, *, trials: int = 1, like: BoostedVisits | None = None
    ) -> BoostedVisits:
        """Fit to every training prediction time, unless there are more than `MOST_CELLS` cells.

        A trial is one of `TRIALS` for all causes. Boosting stops by the likelihood of tuning subjects at all their
        prediction times, and so the best trial is chosen. A cause that none of them had gets a fixed number of trees,
        and one without a training event keeps the cohort's own hazard, apart from its level.

        Args:
            data: What to fit; its seed is that of the boosting.
            trials: How many settings to try, at most `len(TRIALS)`.
            like: Take its features and their cuts, which no outcome had a part in, instead of choosing them again.
        """
        if like is not None:
            columns = like.columns
        else:
            columns = fit_feature_spec(
                data.train, data.vocabulary, max_pairs=MOST_PAIRS, enough=data.enough
            )
        bins = len(data.edges_days) + 1
        part_of: Ints = np.arange(bins) * min(TIME_PARTS, bins) // bins
        most = max(1, MOST_CELLS // ((int(part_of[-1]) + 1) * (len(columns) + 1)))
        chosen = data.draw(np.arange(len(data.train)), most)
        history = history_features(data.train, data.vocabulary, chosen=chosen, columns=columns)
        if like is not None:
            cuts = like.cuts
        else:
            owner = data.train.rows.subject[chosen]
            cuts = [
                feature_cuts(column, owner, most=MOST_BINS, enough=data.enough)
                for column in history.T
            ]
        cohort = data.cohort_hazards()
        base = np.stack([cohort, cohort])  # until the trees are there
        made = cls(data.vocabulary, columns, cuts, part_of, base, data.edges_days, [])
        every = np.arange(len(data.tuning))
        periods, watched = (
            made.periods(data.train.rows, chosen, cohort),
            made.periods(data.tuning.rows, every, cohort),
        )
        design = made.design(history, periods.row, periods.part)
        watched_design = made.design(made.history(data.tuning, every), watched.row, watched.part)
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
            for settings in TRIALS[: max(1, trials)]:
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
                    # as many trees as the tuning subjects liked best, perhaps none
                    trees = Trees.from_sklearn(model, seen, trees=int(np.argmax(scores)))
            made.trees.append(trees)
        made.base = cohort * data.level(chosen, lambda part: cohort * made._factor(history[part]))
        return made

    def _boosting(
        self, settings: dict[str, Any], *, seed: int
    ) -> tuple[HistGradientBoostingRegressor, Ints]:
        """A boosting with the settings of a trial, and the columns of the design that it sees."""
        theirs = {name: value for name, value in (_ALWAYS | settings).items() if name != "pairs"}
        seen = np.arange(len(self.used) + 1) if settings["pairs"] else self.without_pairs()
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

    def history(self, records: TaskRecords, chosen: Ints) -> Floats32:
        """(r, F) history features."""
        return history_features(records, self.vocabulary, chosen=chosen, columns=self.columns)

    def design(self, history: Floats32, row: Ints, part: Ints) -> Floats32:
        """(P, used + 1) of some rows in some parts of time: the number of each feature's bin, and the part."""
        binned = np.empty((len(history), len(self.used)), dtype=np.float32)
        for place, column in enumerate(self.used.tolist()):
            known = history[:, column]
            binned[:, place] = np.where(
                np.isnan(known), np.nan, np.searchsorted(self.cuts[column], known)
            )
        return np.concatenate([binned[row], part.astype(np.float32)[:, None]], axis=1)

    def without_pairs(self) -> Ints:
        """Columns of the design that are no features of code pairs."""
        first_pair = len(self.columns) - len(OF_CODE) * len(self.columns.pairs)
        return np.flatnonzero(np.r_[self.used < first_pair, True])

    def _factor(self, history: Floats32) -> Floats:
        """(r, causes, bins) what multiplies the base."""
        shape = (len(history), int(self.part_of[-1]) + 1)
        row, part = (place.ravel() for place in np.indices(shape))
        design = self.design(history, row, part)
        parts = [
            np.ones(shape) if trees is None else trees.predict(design).reshape(shape)
            for trees in self.trees
        ]
        return np.stack(parts, axis=1)[:, :, self.part_of]

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """See `Predictor`."""
        for rows, part in in_parts(records):
            every = np.arange(len(part))
            yield (
                rows,
                self.base[kind_of(part.rows, every)] * self._factor(self.history(part, every)),
            )


def feature_cuts(values: Floats32, owner: Ints, *, most: int, enough: int) -> Floats:
    """Where a feature is cut into at most `most` bins of about as many rows, each with values of enough people.

    A cut lies in the middle between the mean of the nearest people below and that of the nearest above. A feature that
    enough people lack in some row has a cut below all others.

    scikit-learn bins too, but its cuts are values of single people, and with weighted rows it sorts a feature once for
    every cut. It also fails on a feature that no row has (ages without births), which here has no cut and is left out.

    Args:
        values: (n,) of the training rows; NaN where it is not known.
        owner: (n,) whose rows they are.
        most: Bins at most.
        enough: People that every bin must have.

    Returns:
        Rising cuts. A feature that does not vary among enough people has none.

    >>> values = np.array([1, 2, 2, 4, 5, np.nan, np.nan], np.float32)
    >>> feature_cuts(values, np.arange(7), most=8, enough=2).round(3).tolist()  # 2 and 2, 4 and 5; and two lack it
    [-inf, 3.25]
    """
    lacking = np.isnan(values)
    order = np.argsort(values, kind="stable")[: len(values) - int(lacking.sum())]  # NaN comes last
    value, who = values[order].astype(np.float64), owner[order]
    if not has_people(who, enough):
        return np.zeros(0)
    stops = np.flatnonzero(np.r_[False, value[1:] > value[:-1]])
    if len(stops) > most - 2:
        wanted = np.linspace(0, len(value), most)[1:-1]
        stops = np.unique(stops[np.minimum(np.searchsorted(stops, wanted), len(stops) - 1)])
    stops = stops[_between_people(who, stops, enough)]
    groups = [slice(a, b) for a, b in pairwise([0, *stops.tolist(), len(value)])]
    near = [
        (_nearest(value[a][::-1], who[a][::-1], enough), _nearest(value[b], who[b], enough))
        for a, b in pairwise(groups)
    ]
    cuts = between_float32(np.array(near).reshape(-1, 2).mean(axis=1))
    # between means there may be somebody
    cuts = cuts[_between_people(who, np.searchsorted(value, cuts), enough)]
    return np.r_[-np.inf, cuts] if has_people(owner[lacking], enough) else cuts


def _nearest(value: Floats, owner: Ints, enough: int) -> float:
    """Mean of a group's first values of enough people, each of whom weighs the same; values are in order."""
    people, stop = set[int](), 0
    while len(people) < enough:
        people.add(int(owner[stop]))
        stop += 1
    if value[stop - 1] == value[0]:
        return float(value[0])
    changes = np.flatnonzero(value[stop:] != value[stop - 1])
    stop = stop + int(changes[0]) if len(changes) else len(value)
    if stop == len(people):  # a row each
        return float(value[:stop].sum() / stop)
    _, place, rows = np.unique(owner[:stop], return_inverse=True, return_counts=True)
    weight = 1 / rows[place]
    return float((value[:stop] * weight).sum() / weight.sum())


def _between_people(owner: Ints, stops: Ints, enough: int) -> Ints:
    """Which of the rising stops to keep so that there are enough people before, between and after them."""
    kept, start = list[int](), 0
    for number, stop in enumerate(stops.tolist()):
        if has_people(owner[start:stop], enough):
            kept.append(number)
            start = stop
    if kept and not has_people(owner[start:], enough):
        kept.pop()
    return np.array(kept, dtype=np.int64)
