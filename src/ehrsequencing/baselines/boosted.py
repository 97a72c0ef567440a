"""The baseline "boosted visits": gradient-boosted trees on history features and code pairs, giving hazards per bin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from ehrsequencing.baselines.base import FittingData, HazardModel
from ehrsequencing.baselines.history import OF_CODE, FeatureSpec, fit_feature_spec, history_features
from ehrsequencing.baselines.many_people import feature_cuts
from ehrsequencing.baselines.trees import Trees
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.core.hazards import event_bin, exposure
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary

MOST_PAIRS = 120  # code pairs with features of their own
TIME_PARTS = 2  # within which the factor is constant; the cohort's own hazard keeps the whole grid
MOST_CELLS = 160_000_000  # prediction times × parts of time × features; above, prediction times are drawn at random
UNWATCHED_TREES = 100  # of a cause that no tuning subject had: nothing says when to stop
MOST_BINS = 64  # of a feature
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


@dataclass(frozen=True)
class BoostedHazards:
    """What boosted trees say of a record, apart from how they were fitted: all that is kept of them.

    Attributes:
        vocabulary: The one that encodes the records.
        columns: The history features.
        cuts: Where each of them is cut into bins; a feature without a cut is not used.
        part_of: (bins,) part of time of each bin of the grid.
        base: (causes, bins) the training cohort's own hazards.
        trees: Of each cause; None = the cohort's own hazard.
    """

    vocabulary: Vocabulary
    columns: FeatureSpec
    cuts: list[Floats]
    part_of: Ints
    base: Floats
    trees: list[Trees | None]

    @property
    def used(self) -> Ints:
        """Numbers of the features that have a cut."""
        return np.flatnonzero([len(cuts) > 0 for cuts in self.cuts])

    def history(self, records: TaskRecords, chosen: Ints) -> Floats32:
        """(r, F) history features."""
        return history_features(records, self.vocabulary, chosen=chosen, columns=self.columns)

    def design(self, history: Floats32, periods: Periods) -> Floats32:
        """(P, used + 1): the number of each feature's bin, and the part of time."""
        binned = np.empty((len(history), len(self.used)), dtype=np.float32)
        for place, column in enumerate(self.used.tolist()):
            known = history[:, column]
            binned[:, place] = np.where(
                np.isnan(known), np.nan, np.searchsorted(self.cuts[column], known)
            )
        return np.concatenate(
            [binned[periods.row], periods.part.astype(np.float32)[:, None]], axis=1
        )

    def without_pairs(self) -> Ints:
        """Columns of the design that are no features of code pairs."""
        first_pair = len(self.columns) - len(OF_CODE) * len(self.columns.pairs)
        return np.flatnonzero(np.r_[self.used < first_pair, True])

    def factor(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, causes, bins) what multiplies the cohort's own hazards."""
        shape = (len(chosen), int(self.part_of[-1]) + 1)
        row, part = (place.ravel() for place in np.indices(shape))
        everywhere = Periods(row, part, np.empty(0), np.empty(0, np.int64))
        design = self.design(self.history(records, chosen), everywhere)
        parts = [
            np.ones(shape) if trees is None else trees.predict(design).reshape(shape)
            for trees in self.trees
        ]
        return np.stack(parts, axis=1)[:, :, self.part_of]

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, causes, bins) hazards per day."""
        return self.base * self.factor(records, chosen)


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
        self.seed = data.seed
        self.columns = fit_feature_spec(
            data.train, data.vocabulary, max_pairs=MOST_PAIRS, enough=data.enough
        )
        bins = len(self.edges) + 1
        # of each bin of the grid
        self.part_of: Ints = np.arange(bins) * min(TIME_PARTS, bins) // bins
        self.trials = max(1, min(trials, len(TRIALS)))
        most = max(1, MOST_CELLS // ((int(self.part_of[-1]) + 1) * (len(self.columns) + 1)))
        self.fitted = data.draw(np.arange(len(data.train)), most)
        history = history_features(
            data.train, data.vocabulary, chosen=self.fitted, columns=self.columns
        )
        owner = data.train.rows.subject[self.fitted]
        self.cuts = [
            feature_cuts(column, owner, most=MOST_BINS, enough=data.enough) for column in history.T
        ]
        self.kept = BoostedHazards(
            data.vocabulary, self.columns, self.cuts, self.part_of, self.base, []
        )
        self.kept.trees.extend(self._fit(history, data.train, data.tuning))

    def periods(self, rows: TaskRows, chosen: Ints) -> Periods:
        """Some prediction times, cut into the parts of time in which they were at risk."""
        duration, cause = rows.duration_days[chosen], rows.cause[chosen].astype(np.int64)
        days = exposure(self.edges, rows.entry_days[chosen], duration)
        first_bin = np.flatnonzero(np.diff(self.part_of, prepend=-1))
        expected = np.stack([np.add.reduceat(days * base, first_bin, axis=1) for base in self.base])
        row, part = np.nonzero(expected.sum(axis=0) > 0)
        last = self.part_of[event_bin(self.edges, duration)]
        return Periods(
            row, part, expected[:, row, part], np.where(last[row] == part, cause[row], 0)
        )

    def _fit(
        self, history: Floats32, train: TaskRecords, tuning: TaskRecords
    ) -> list[Trees | None]:
        every = np.arange(len(tuning))
        periods, watched = self.periods(train.rows, self.fitted), self.periods(tuning.rows, every)
        design = self.kept.design(history, periods)
        watched_design = self.kept.design(self.kept.history(tuning, every), watched)
        models: list[Trees | None] = []
        for e in range(self.n_causes):
            weight, watched_weight = periods.expected[e], watched.expected[e]
            event, watched_event = periods.cause == e + 1, watched.cause == e + 1
            if not event.any():
                models.append(None)
                continue
            if not watched_event.any():  # a Poisson loss needs an event
                model, columns = self._boosting(
                    TRIALS[0] | {"max_iter": UNWATCHED_TREES}, stop=False
                )
                model.fit(design[:, columns], event / weight, sample_weight=weight)
                models.append(Trees.of_sklearn(model).with_columns(columns))
                continue
            best: tuple[float, Trees] | None = None
            for settings in TRIALS[: self.trials]:
                model, columns = self._boosting(settings, stop=True)
                model.fit(
                    design[:, columns],
                    event / weight,
                    sample_weight=weight,
                    X_val=watched_design[:, columns],
                    y_val=watched_event / watched_weight,
                    sample_weight_val=watched_weight,
                )
                score, trees = (
                    float(np.max(model.validation_score_)),
                    int(np.argmax(model.validation_score_)),
                )
                if (
                    best is None or score > best[0]
                ):  # as many trees as the tuning subjects liked best, perhaps none
                    best = score, Trees.of_sklearn(model, trees=trees).with_columns(columns)
            assert best is not None
            models.append(best[1])
        return models

    def _boosting(
        self, settings: dict[str, Any], *, stop: bool
    ) -> tuple[HistGradientBoostingRegressor, Ints]:
        """A boosting with the settings of a trial, and the columns of the design that it sees."""
        theirs = {name: value for name, value in (_ALWAYS | settings).items() if name != "pairs"}
        columns = (
            np.arange(len(self.kept.used) + 1) if settings["pairs"] else self.kept.without_pairs()
        )
        return HistGradientBoostingRegressor(
            **theirs, early_stopping=stop, random_state=self.seed
        ), columns

    def factor(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins)."""
        return self.kept.factor(records, chosen)
