"""The baseline "competing-risk forest": one random survival forest per cause, combined into cumulative incidences.

scikit-survival grows the trees. It is the optional extra `forest` (licence GPL-3).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ehrsequencing.baselines.base import FittingData, HazardBaseline
from ehrsequencing.baselines.history import FeatureSpec, fit_feature_spec, history_features
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.core.errors import install
from ehrsequencing.records.hazards import event_bin, horizon_nll
from ehrsequencing.records.timelines import TaskRecords

MOST_ROWS = 2_500  # training prediction times; above, they are drawn at random
MOST_WATCHED = 2_500  # tuning prediction times that choose among the trials
TREES = 60
#: What is grown, in this order; with each, every number of `TIME_PARTS` is tried. The tuning likelihood chooses.
LEAVES: tuple[int, ...] = (20, 60, 180)  # fewest prediction times in a leaf
TIME_PARTS: tuple[int, ...] = (
    1,
    3,
    6,
    64,
)  # parts of time within which the factor is constant; 64: every bin
FEATURES_PER_SPLIT = "sqrt"
INSTALL = install("forest")


def has_forest() -> bool:
    """Whether the library that grows the trees is installed."""
    return find_spec("sksurv") is not None


class CompetingForest(HazardBaseline):
    """One random survival forest per cause on all of `history_features`, other causes being censored.

    Each forest (Ishwaran 2008) gives the cause-specific cumulative hazard of a record, here in bins of the run's grid,
    Nelson–Aalen in every leaf, averaged over the trees. The causes are combined by their hazards (Ishwaran 2014):

        ΔH_e(k | x)   increment of the forest's cumulative hazard in bin k;  ΔH_e(k)  that of all rows it was grown on
        g_e(x, j)     = Σ_{k in part j} ΔH_e(k | x) / Σ_{k in part j} ΔH_e(k)
        f_e(x, k)     = (N_e · g_e(x, j) + ½) / (N_e + ½)        j the part of time of bin k, N_e events of the cause
        λ_e(k | x)    = base_e(k) · f_e(x, k)

    A leaf without events would give the hazard 0 and an infinite likelihood. Half an event among the N_e, as in
    `cohort_hazards`, keeps the logarithm finite and the mean at 1. Cumulative incidences follow from the hazards, so
    that they rise with the horizon and their sum over the causes stays below 1.

    Budget: at most `MOST_ROWS` training prediction times, `TREES` trees a forest, `len(LEAVES)` forests a cause.

    Args:
        data: What to fit; its seed is that of the forests and of the rows drawn.

    Attributes:
        trials: How many settings were tried: sizes of leaves × parts of time.
        chosen: Leaf size and parts of time of the lowest tuning likelihood.
    """

    name = "competing-risk forest"

    def __init__(self, data: FittingData) -> None:
        self.edges, self.n_causes = data.edges_days, len(data.task.causes)
        self.base = data.cohort_hazards()
        self.vocabulary, self.seed = data.vocabulary, data.seed
        self.columns: FeatureSpec = fit_feature_spec(data.train, data.vocabulary)
        self.fitted = data.draw(np.arange(len(data.train)), MOST_ROWS)
        rows, bins = data.train.rows, len(self.edges) + 1
        features = self._features(data.train, self.fitted)
        at = event_bin(self.edges, rows.duration_days[self.fitted])
        had = rows.cause[self.fitted][None] == np.arange(1, self.n_causes + 1)[:, None]  # (E, r)
        self.events = had.sum(axis=1)  # (E,)
        at_risk = np.cumsum(np.bincount(at, minlength=bins)[::-1])[::-1]
        # (E, K)
        self.cohort = np.stack([np.bincount(at[own], minlength=bins) for own in had]) / np.maximum(
            at_risk, 1
        )
        watched = data.draw(np.arange(len(data.tuning)), MOST_WATCHED)
        watched_features = self._features(data.tuning, watched)
        label = data.tuning.rows
        best, self.trials = np.inf, 0
        for leaf in LEAVES:
            forests = [self._grow(features, at, own, leaf) for own in had]
            steps = self._increments(forests, watched_features)
            for parts in sorted({min(parts, bins) for parts in TIME_PARTS}):
                self.trials += 1
                part_of = np.arange(bins) * parts // bins
                nll = horizon_nll(
                    self.base * self._factor(steps, part_of),
                    self.edges,
                    duration_days=label.duration_days[watched],
                    cause=label.cause[watched],
                    entry_days=label.entry_days[watched],
                )
                mean = float(nll.mean()) if len(nll) else 0.0  # nobody to tune by: the first
                if mean < best:
                    best, self.chosen = mean, (leaf, parts)
                    self.forests, self.part_of = forests, part_of

    def _features(self, records: TaskRecords, chosen: Ints) -> Floats32:
        return history_features(records, self.vocabulary, chosen=chosen, columns=self.columns)

    def _grow(self, features: Floats32, at: Ints, own: Any, leaf: int) -> Any:
        """The forest of one cause; None for a cause without an event."""
        if not own.any():
            return None
        from sksurv.ensemble import RandomSurvivalForest
        from sksurv.util import Surv

        forest = RandomSurvivalForest(
            n_estimators=TREES,
            min_samples_leaf=leaf,
            min_samples_split=2 * leaf,
            max_features=FEATURES_PER_SPLIT,
            random_state=self.seed,
        )
        return forest.fit(features, Surv.from_arrays(own, at + 1.0))  # times are numbers of bins

    def _increments(self, forests: Sequence[Any], features: Floats32) -> Floats:
        """ΔH (r, E, K) of each record."""
        out = np.zeros((len(features), self.n_causes, len(self.edges) + 1))
        for e, forest in enumerate(forests):
            if forest is not None and len(features):
                summed = forest.predict_cumulative_hazard_function(features, return_array=True)
                out[:, e, forest.unique_times_.astype(np.int64) - 1] = np.diff(
                    summed, axis=1, prepend=0.0
                )
        return out

    def _factor(self, steps: Floats, part_of: Ints) -> Floats:
        """The factor f (r, E, K) of increments (r, E, K)."""
        first = np.flatnonzero(np.diff(part_of, prepend=-1))
        own = np.add.reduceat(steps, first, axis=2)
        all_rows = np.add.reduceat(self.cohort, first, axis=1)
        ratio = np.divide(own, all_rows, out=np.ones_like(own), where=all_rows > 0)
        events = self.events[:, None].astype(np.float64)
        factor: Floats = ((events * ratio + 0.5) / (events + 0.5))[:, :, part_of]
        # a cause without a training event keeps the cohort's own hazard
        factor[:, self.events == 0] = 1.0
        return factor

    def factor(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins)."""
        return self._factor(
            self._increments(self.forests, self._features(records, chosen)), self.part_of
        )

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `HazardBaseline`."""
        return self.base * self.factor(records, chosen)
