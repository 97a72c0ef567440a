"""The baseline "boosted visits": gradient-boosted trees on history features and code pairs, giving hazards per bin."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Bools, Bytes, Floats, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.signals import give_back_freed_memory
from ehrsequencing.metrics.hazards import event_bin, exposure
from ehrsequencing.predictors.fitting_data import (
    MOST_BINS,
    UNKNOWN,
    FittingData,
    before_pairs,
    binned,
    kind_of,
)
from ehrsequencing.predictors.history import FeatureSpec
from ehrsequencing.predictors.predictor import OfHistory
from ehrsequencing.predictors.trees import Trees
from ehrsequencing.records.timelines import TaskRows

TIME_PARTS = 2  # within which the factor is constant; the cohort's own hazard keeps the whole grid
# tuning subjects with the event; fewer choose the worse setting (PBC2: 46 people made it worse)
EVENTS_TO_TRY = 500
UNWATCHED_TREES = 100  # of a cause that no tuning subject had: nothing says when to stop
# periods × columns
MOST_SAMPLED = 10_000_000  # by which LightGBM chooses how it stores them, some 16 bytes each
MOST_GROWN = 32_000_000  # that a tree looks at
_REDRAWN = 10  # trees that look at one draw, which LightGBM copies
MOST_TREES = 500  # of a cause
PATIENCE = 25  # trees without a gain for tuning subjects, after which it stops
_FEW_ROWS = 20_000  # below, threads wait for one another longer than they work
_ALWAYS: dict[str, Any] = {
    "objective": "poisson",
    "poisson_max_delta_step": 1e-9,  # plain Newton steps
    "metric": "poisson",
    "boost_from_average": False,
    "max_bin": 2 * MOST_BINS,  # the features are bins already, and NaN is one more
    "min_data_in_bin": 1,
    "bin_construct_sample_cnt": 2**31 - 1,
    "min_sum_hessian_in_leaf": 1e-3,
    "feature_pre_filter": False,
    "deterministic": True,
    "force_col_wise": True,
    "verbosity": -1,
}
_FIRST: dict[str, Any] = {
    "learning_rate": 0.05,
    "num_leaves": 8,
    "min_data_in_leaf": 50,
    "lambda_l2": 20.0,
    "feature_fraction": 0.3,
    "pairs": True,
}
#: What is tried, in this order, as many as there are trials; the tuning likelihood chooses, cause by cause. `pairs`:
#: whether the trees see the features of code pairs; the rest are settings of LightGBM.
TRIALS: tuple[dict[str, Any], ...] = (
    _FIRST,
    _FIRST | {"pairs": False},
    _FIRST | {"num_leaves": 16},
    _FIRST | {"num_leaves": 4},
    _FIRST | {"feature_fraction": 1.0},
    _FIRST | {"feature_fraction": 0.1},
    _FIRST | {"min_data_in_leaf": 200},
    _FIRST | {"min_data_in_leaf": 20, "lambda_l2": 5.0},
    _FIRST | {"learning_rate": 0.02},
    _FIRST | {"learning_rate": 0.1},
    _FIRST | {"num_leaves": 16, "min_data_in_leaf": 200},
    _FIRST | {"num_leaves": 4, "feature_fraction": 0.1},
    _FIRST | {"num_leaves": 2, "feature_fraction": 1.0},
)


class PeriodBins:
    """Bins of features and the part of time of P periods (P, used + 1): a matrix of which some rows at a time exist.

    Args:
        bins: (·, used) of prediction times.
        row: (P,) which of them each period is of.
        part: (P,) part of time.
    """

    def __init__(self, bins: Bytes, row: Ints, part: Ints) -> None:
        self.bins, self.row, self.part = bins, row, part
        self._seen: Ints | None = None
        self._dataset: Any = None

    def __len__(self) -> int:
        return len(self.row)

    def numbers(self, some: slice | Ints, seen: Ints) -> Floats32:
        """(p, seen) some columns of some periods; NaN = not known."""
        bins = np.column_stack([self.bins[self.row[some]], self.part[some].astype(np.uint8)])
        numbers = bins[:, seen].astype(np.float32)
        numbers[numbers == UNKNOWN] = np.nan
        return numbers

    def dataset(self, seen: Ints, settings: dict[str, Any], reference: Any = None) -> Any:
        """LightGBM's copy of some columns, made once for all causes.

        Args:
            seen: Which columns.
            settings: Of the boosting.
            reference: The copy of the training rows, for other rows.
        """
        if self._seen is not None and np.array_equal(self._seen, seen):
            return self._dataset

        def made(data: Any, rows: int, reference: Any) -> Any:
            copy = _lightgbm().Dataset(data, np.zeros(rows), params=settings, reference=reference)
            return copy.construct()

        most = max(1, MOST_SAMPLED // len(seen))

        class Streamed(_lightgbm().Sequence):  # type: ignore[misc]
            """Rows that LightGBM reads some at a time."""

            batch_size = 1024

            def __init__(self, design: "PeriodBins") -> None:
                self.design = design

            def __len__(self) -> int:
                return len(self.design)

            def __getitem__(self, some: slice) -> Floats32:
                return self.design.numbers(some, seen)

        data = self.numbers(slice(None), seen) if len(self) <= most else Streamed(self)
        if len(self) > most and reference is None:
            some = np.linspace(0, len(self) - 1, most).astype(np.int64)
            reference = made(self.numbers(some, seen), most, None)
            give_back_freed_memory()  # of the sample, some thousand small blocks
        self._seen, self._dataset = seen, made(data, len(self), reference)
        return self._dataset


@dataclass(frozen=True)
class Counts:
    """Rows of a Poisson regression: events where so many are expected.

    Attributes:
        design: (P, columns).
        event: (P,)
        expected: (P,)
    """

    design: PeriodBins
    event: Bools
    expected: Floats

    def dataset(
        self, seen: Ints, settings: dict[str, Any], start: float, reference: Any = None
    ) -> Any:
        """LightGBM's copy of some columns, with these counts."""
        made = self.design.dataset(seen, settings, reference)
        made.set_label(self.event / self.expected)
        made.set_weight(self.expected)
        return made.set_init_score(np.full(len(self.event), start))


def boosting(
    fitted: Counts, watched: Counts | None, seen: Ints, trial: dict[str, Any], *, seed: int
) -> tuple[Trees, float]:
    """Boost the trees of one trial; and the loss of the watched rows.

    Args:
        fitted: What to fit.
        watched: Whose loss says how many trees, perhaps none; None: `UNWATCHED_TREES`.
        seen: Columns of the design that the trees see.
        trial: One of `TRIALS`.
        seed: Of the features that a node looks at.
    """
    lightgbm = _lightgbm()
    settings = {name: value for name, value in (_ALWAYS | trial).items() if name != "pairs"}
    settings |= {"seed": seed, "num_threads": 1 if len(fitted.event) < _FEW_ROWS else 0}
    most = MOST_GROWN / len(seen)
    if len(fitted.event) > most:  # each tree has a draw of its own
        settings |= {"bagging_fraction": most / len(fitted.event), "bagging_freq": _REDRAWN}
    start = float(np.log(fitted.event.sum() / fitted.expected.sum()))
    train = fitted.dataset(seen, settings, start)
    if watched is None:
        booster = lightgbm.train(settings, train, UNWATCHED_TREES)
        return Trees.from_lightgbm(booster, seen, start=start, trees=UNWATCHED_TREES), np.inf
    booster = lightgbm.train(
        settings,
        train,
        MOST_TREES,
        valid_sets=[watched.dataset(seen, settings, start, train)],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    loss = booster.best_score["valid_0"]["poisson"]
    expected, events = watched.expected.sum(), watched.event.sum()
    without = float((expected * np.exp(start) - events * start) / expected)
    if loss >= without:
        return Trees.from_lightgbm(booster, seen, start=start, trees=0), without
    return Trees.from_lightgbm(booster, seen, start=start, trees=booster.best_iteration), loss


def _lightgbm() -> Any:
    """The library of trees; its import takes seconds, which predictions need not wait.

    Raises:
        EhrseqError: The machine lacks what it needs.
    """
    try:
        import lightgbm
    except OSError as error:  # its wheel holds no OpenMP
        raise EhrseqError(
            f"LightGBM cannot be loaded: {error}",
            where="libgomp",
            fix="install it, as with apt-get install libgomp1",
        ) from error
    return lightgbm


@dataclass
class BoostedVisits(OfHistory):
    """Boosted trees on everything in `history_features`, code pairs included, and the part of time. Make it with `fit`.

        λ_e(k | x) = base_{g,e}(k) · f_e(x, part of k)      k a bin of the run's grid, g visit or query

    f_e is fitted by Poisson likelihood as a factor of the cohort's own hazards; the base comes afterwards, so that the
    training rows of each kind expect the events that they had (`FittingData.level`).

    A bin counts with the days at risk in it, so that a partly observed bin is neither dropped nor taken as whole. A
    competing event ends the exposure of every cause.

    Attributes:
        columns: The history features.
        cuts: Where each of them is cut into bins; a feature without a cut is not used.
        part_of: (bins,) part of time of each bin of the grid.
        base: (2, causes, bins) hazards at visits and at queries of a row whose trees say 1.
        edges_days: The inner edges of the grid.
        trees: Of each cause; None = the cohort's own hazard.
    """

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
    def fit(cls, data: FittingData) -> "BoostedVisits":
        """Fit to every training prediction time, or to a draw where there are many.

        A trial is one of `TRIALS`, as many as `data.trials` where `EVENTS_TO_TRY` tuning subjects look at them.
        Boosting stops by the likelihood of tuning subjects at all their prediction times, and so the best trial is
        chosen. A cause that none of them had gets a fixed number of trees, and one without a training event keeps the
        cohort's own hazard, apart from its level.

        Args:
            data: What to fit; its seed is that of the boosting.
        """
        features, tuning, bins = data.features, data.tuning.rows, len(data.edges_days) + 1
        part_of: Ints = np.arange(bins) * min(TIME_PARTS, bins) // bins
        cohort = data.cohort_hazards()
        base = np.stack([cohort, cohort])  # until the trees are there
        made = cls(features.columns, features.cuts, part_of, base, data.edges_days, [])
        row, part, expected, cause = made.periods(data.train.rows, features.rows, cohort)
        design = PeriodBins(features.bins, features.place[row], part)
        row, part, watched, watched_cause = made.periods(tuning, features.tuning_rows, cohort)
        watched_design = PeriodBins(features.tuning_bins, row, part)
        # all but pairs, and the part of time
        sees_always = np.append(made.used < before_pairs(made.columns), True)
        for e in range(made.n_causes):
            event, watched_event = cause == e + 1, watched_cause == e + 1
            if not event.any():
                made.trees.append(None)
                continue
            counts = Counts(design, event, expected[e])
            # a Poisson loss needs an event
            looked_at = Counts(watched_design, watched_event, watched[e])
            seen_by = looked_at if watched_event.any() else None
            people = len(np.unique(tuning.subject[tuning.cause == e + 1]))
            grown = list[tuple[Trees, float]]()  # of each trial, and what it loses
            for trial in TRIALS[: max(1, data.trials if people >= EVENTS_TO_TRY else 1)]:
                seen = np.flatnonzero(sees_always | trial["pairs"])
                grown.append(boosting(counts, seen_by, seen, trial, seed=data.seed))
            made.trees.append(min(grown, key=lambda one: one[1])[0])
        del design, watched_design  # with LightGBM's copies
        made.base = cohort * data.level(
            features.rows, lambda part: cohort * made._factor(features.bins[features.place[part]])
        )
        return made

    def periods(
        self, rows: TaskRows, chosen: Ints, cohort: Floats
    ) -> tuple[Ints, Ints, Floats, Ints]:
        """P periods: some prediction times, cut into the parts of time in which they were at risk.

        Args:
            rows: The labels.
            chosen: (r,) which of them.
            cohort: (causes, bins) the training cohort's own hazards.

        Returns:
            (P,) position of the prediction time among those chosen; (P,) part of time; (causes, P) events that the
            cohort's own hazards expect there; (P,) event in this period, 0 for none.
        """
        duration, cause = rows.duration_days[chosen], rows.cause[chosen].astype(np.int64)
        days = exposure(self.edges_days, rows.entry_days[chosen], duration)
        first_bin = np.flatnonzero(np.diff(self.part_of, prepend=-1))
        expected = np.stack([np.add.reduceat(days * base, first_bin, axis=1) for base in cohort])
        row, part = np.nonzero(expected.sum(axis=0) > 0)
        last = self.part_of[event_bin(self.edges_days, duration)]
        return row, part, expected[:, row, part], np.where(last[row] == part, cause[row], 0)

    def _factor(self, bins: Bytes) -> Floats:
        """(r, causes, bins) what multiplies the base, of rows with these bins of features (r, used)."""
        parts = int(self.part_of[-1]) + 1
        factor = np.ones((len(bins), self.n_causes, parts))
        design = np.empty((len(bins), bins.shape[1] + 1), np.uint8)
        design[:, :-1] = bins
        for part in range(parts):
            design[:, -1] = part
            for e, trees in enumerate(self.trees):
                if trees is not None:
                    factor[:, e, part] = trees.predict(design)
        return factor[:, :, self.part_of]

    def of_history(self, history: Floats32, rows: TaskRows) -> Floats:
        """See `OfHistory`."""
        factor = self._factor(binned(history, self.cuts))
        return self.base[kind_of(rows, np.arange(len(rows)))] * factor
