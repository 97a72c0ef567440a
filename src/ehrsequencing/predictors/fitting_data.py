"""What predictors are fitted to: rows of training and tuning subjects, and the history features of trees and Cox.

Features are cut into bins for trees and made linear for Cox.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Bytes, Floats, Floats32, Ints, offsets, row_blocks, scratch
from ehrsequencing.metrics.hazards import cohort_hazards, event_bin, exposure
from ehrsequencing.predictors.history import (
    AGE_KNOTS_YEARS,
    OF_CODE,
    FeatureSpec,
    fit_feature_spec,
    has_people,
    history_features,
)
from ehrsequencing.records.scales import between_float32, fit_scale
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary

MOST_PAIRS = 120  # code pairs with features of their own
MOST_BINS = 64  # of a feature
UNKNOWN = 255  # the bin of what is not known
MOST_CELLS = 80_000_000  # training rows × features of trees; above, rows are drawn at random
MOST_LINEAR_CELLS = 8_000_000  # the same of Cox, and of the tuning rows of both
MOST_CUT_CELLS = 32_000_000  # the same of the rows by which features are cut into bins
# first parts of the names of features whose logarithm is used
_SKEWED = (
    "days_",
    "visits",
    "count ",
)


@dataclass(frozen=True)
class Features:
    """History features of training and tuning rows, made once for all fits to them or to a part of them.

    No outcome has a part in them, so that fits which must not know one another's subjects may share them.

    Attributes:
        columns: Which features.
        cuts: Where each is cut into bins; a feature without a cut is not used by trees.
        design: Features → covariates of a linear model.
        rows: (r,) training rows, all or a draw.
        place: (r,) where each of them stands among `bins`.
        bins: (·, used) number of the bin of each cut feature, or `UNKNOWN`.
        linear: (l,) places among these rows of those that have covariates.
        x: (l, D) their covariates.
        tuning_rows: (t,) tuning rows, all or a draw.
        tuning_bins: (t, used).
        tuning_x: (t, D).
    """

    columns: FeatureSpec
    cuts: list[Floats]
    design: "LinearDesign"
    rows: Ints
    place: Ints
    bins: Bytes
    linear: Ints
    x: Floats
    tuning_rows: Ints
    tuning_bins: Bytes
    tuning_x: Floats

    @classmethod
    def fit(
        cls,
        train: TaskRecords,
        tuning: TaskRecords,
        vocabulary: Vocabulary,
        *,
        draw: Callable[[Ints, int], Ints],
        enough: int,
    ) -> "Features":
        """Choose features, cuts and covariates by training rows, and make them for both splits.

        Args:
            train: Visits and prediction times of training subjects.
            tuning: Of tuning subjects.
            vocabulary: The one that encoded them.
            draw: Some row numbers, sorted, and how many at most → as many at random.
            enough: Training subjects that every stored name and number must come from.
        """
        columns = fit_feature_spec(train, vocabulary, max_pairs=MOST_PAIRS, enough=enough)

        def most(cells: int) -> int:
            return max(1, cells // (len(columns) + 1))

        rows = draw(np.arange(len(train)), most(MOST_CELLS))
        linear = draw(np.arange(len(rows)), most(MOST_LINEAR_CELLS))
        tuning_rows = draw(np.arange(len(tuning)), most(MOST_LINEAR_CELLS))
        some, owner = draw(np.arange(len(rows)), most(MOST_CUT_CELLS)), train.rows.subject[rows]
        history = history_features(train, chosen=rows[some], columns=columns)
        cuts = [feature_cuts(one, owner[some], most=MOST_BINS, enough=enough) for one in history.T]
        if len(some) == len(rows):
            bins, of_linear = binned(history, cuts), history[linear]
        else:
            bins = np.empty((len(rows), sum(len(one) > 0 for one in cuts)), dtype=np.uint8)
            for part in row_blocks(len(rows)):
                history = history_features(train, chosen=rows[part], columns=columns)
                bins[part] = binned(history, cuts)
            of_linear = history_features(train, chosen=rows[linear], columns=columns)
        watched = history_features(tuning, chosen=tuning_rows, columns=columns)
        design = LinearDesign.fit(of_linear, columns, owner[linear], enough=enough)
        return cls(
            columns,
            cuts,
            design,
            rows,
            np.arange(len(rows)),
            bins,
            linear,
            design(of_linear),
            tuning_rows,
            binned(watched, cuts),
            design(watched),
        )

    def without(self, train: TaskRecords, subjects: Ints) -> "Features":
        """Those of a split without some subjects, its rows numbered as `train.take(others)` numbers them.

        Bins are shared.
        """
        is_kept = ~np.isin(train.rows.subject, subjects)
        place = np.cumsum(is_kept) - 1
        kept = is_kept[self.rows]
        has_x = kept[self.linear]
        return replace(
            self,
            rows=place[self.rows[kept]],
            place=self.place[kept],
            linear=(np.cumsum(kept) - 1)[self.linear[has_x]],
            x=self.x[has_x],
        )


def before_pairs(columns: FeatureSpec) -> int:
    """How many features come before those of code pairs, which are the last."""
    return len(columns) - len(OF_CODE) * len(columns.pairs)


def binned(history: Floats32, cuts: list[Floats]) -> Bytes:
    """(r, F) features → (r, used) number of the bin of each feature that is cut; `UNKNOWN` = not known."""
    used = np.flatnonzero([len(one) > 0 for one in cuts])
    out = np.empty((len(history), len(used)), dtype=np.uint8)
    for place, column in enumerate(used.tolist()):
        known = history[:, column]
        out[:, place] = np.where(np.isnan(known), UNKNOWN, np.searchsorted(cuts[column], known))
    return out


@dataclass(frozen=True)
class LinearDesign:
    """History features made fit for a linear model; everything fitted on training rows. Make it with `fit`.

    Features of code pairs are left to trees. Counts and times become log(1 + ·), what is not known becomes the training
    median with a mark of its own (marks that are alike in all training rows share one), age gets hinges, and nothing is
    extrapolated beyond the training range. Medians and ranges come from enough people each (`feature_range`).
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
    ) -> "LinearDesign":
        """Choose and scale by training rows.

        Args:
            features: (r, F) from `history_features`.
            columns: What they are.
            owner: (r,) whose rows they are.
            enough: People that every stored number must come from.
        """
        alone, nothing = before_pairs(columns), (np.nan, np.nan, np.nan)
        ranges = [feature_range(column, owner, enough=enough) for column in features[:, :alone].T]
        ranges += [None] * (len(columns) - alone)
        low, fill, high = _logarithms(
            np.array([nothing if f is None else f for f in ranges]).T, columns.names
        )
        used = np.flatnonzero(high > low)
        unknown = np.isnan(features)
        patterns: dict[bytes, int] = {}
        for column, mark in enumerate(unknown[:, :alone].T):
            # marks that are set for enough people and not set for enough others
            if has_people(owner[mark], enough) and has_people(owner[~mark], enough):
                patterns.setdefault(np.packbits(mark).tobytes(), column)
        marked = np.array(list(patterns.values()), dtype=np.int64)
        return cls(columns, used, fill[used], low[used], high[used], marked)

    def __call__(self, features: Floats32) -> Floats:
        """(r, F) history features → (r, D) finite covariates."""
        names = [self.columns.names[column] for column in self.used.tolist()]
        # age is the first of all features, and so of those used
        knots = np.array(AGE_KNOTS_YEARS if 0 in self.used else ())
        out = scratch(len(features), len(self.used) + len(self.marked) + len(knots))
        for some in row_blocks(len(features)):
            used = _logarithms(features[some, self.used], names)
            used = np.clip(np.where(np.isnan(used), self.fill, used), self.low, self.high)
            out[some] = np.hstack(
                [
                    used,
                    np.isnan(features[some, self.marked]),
                    np.maximum(used[:, :1] - knots, 0.0),
                ]
            )
        return out


def _logarithms(features: Floats | Floats32, names: Sequence[str]) -> Floats:
    """Features (r, n) of such names in float64, skewed ones as log(1 + ·)."""
    values = np.array(features, dtype=np.float64)
    for column, name in enumerate(names):
        if name.startswith(_SKEWED):
            values[:, column] = np.log1p(np.maximum(values[:, column], 0.0))
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
    scale = fit_scale(
        values[known].astype(np.float64), owner[known].astype(np.uint32), enough=enough
    )
    return (
        None
        if scale is None
        else (float(scale.knots[0]), float(np.median(scale.knots)), float(scale.knots[-1]))
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
    # only cuts between people: the mean of two values may equal somebody's
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


# ---- the rows, and the run's grid ---

PRIOR_EVENTS = 10.0  # of each bin, by which a level is drawn to 1


@dataclass(frozen=True)
class FittingData:
    """What a predictor is fitted to.

    Attributes:
        task: The question.
        vocabulary: Names of the tokens.
        train: Visits and prediction times to fit on.
        tuning: Those of other subjects, which choose settings.
        edges_days: The K − 1 inner edges of the run's grid.
        seed: Of every random draw.
        enough: Training subjects that every stored name and number must come from (`vocabulary.min_subjects`).
        trials: How many settings of the boosting are tried.
        recalibration: Strength of the last step, as of our own training (`training.recalibration`); 0: none.
        made: Features of the rows, where they are made already.
    """

    task: TaskConfig
    vocabulary: Vocabulary
    train: TaskRecords
    tuning: TaskRecords
    edges_days: tuple[float, ...]
    seed: int = 0
    enough: int = 5
    trials: int = 1
    recalibration: float = 0.0
    made: Features | None = None

    @property
    def features(self) -> Features:
        """What trees and Cox are fitted to; made anew each time, unless they are `made`."""
        return self.made or Features.fit(
            self.train, self.tuning, self.vocabulary, draw=self.draw, enough=self.enough
        )

    def without(self, subjects: Ints) -> "FittingData":
        """The same without the prediction times of some training subjects, with the features of all."""
        rows = self.train.rows
        others = np.flatnonzero(~np.isin(rows.subject, subjects))
        left = rows.select(others, offsets(rows.subject[others], len(rows.row_offsets) - 1))
        return replace(
            self,
            train=replace(self.train, rows=left),
            made=self.features.without(self.train, subjects),
        )

    def draw(self, rows: Ints, most: int) -> Ints:
        """Some row numbers, sorted: all of them, or `most` drawn at random."""
        return np.sort(np.random.default_rng(self.seed).permutation(rows)[:most])

    def cohort_hazards(self) -> Floats:
        """(causes, bins) hazards per day of the training cohort."""
        rows = self.train.rows
        return cohort_hazards(
            self.edges_days,
            rows.entry_days,
            rows.duration_days,
            rows.cause,
            n_causes=len(self.task.causes),
        )

    def level(self, chosen: Ints, hazards: Callable[[slice], Floats]) -> Floats:
        """What multiplies a model's hazards at visits and at queries, so that they expect what happened there.

            level_{g,e,k} = (n + m) / (m + Σ_{rows of g} λ_e(k | x) · days at risk in k)      m = `PRIOR_EVENTS`

        n counts the events of cause e in bin k after training rows of kind g: 0 visits, 1 queries. A model that
        multiplies the cohort's own hazards by a factor that many bins share needs it, because people at high risk
        leave first (Breslow 1974). So does one that is regularised: people who come often weigh more among the visits
        than among the queries, and it learns that in part only. A bin that fewer than `enough` people of a kind reach
        keeps the level 1.

        Args:
            chosen: (r,) training rows that the model was fitted to.
            hazards: Some of them, by place → the model's hazards (·, causes, bins).

        Returns:
            (2, causes, bins).
        """
        rows, shape = self.train.rows, (2, len(self.task.causes), len(self.edges_days) + 1)
        kind, cause = kind_of(rows, chosen), rows.cause[chosen].astype(np.int64)
        last, owner = event_bin(self.edges_days, rows.duration_days[chosen]), rows.subject[chosen]
        had = cause > 0
        events, expected = np.zeros(shape), np.zeros(shape)
        np.add.at(events, (kind[had], cause[had] - 1, last[had]), 1.0)
        for part in row_blocks(len(chosen)):
            some = chosen[part]
            days = exposure(self.edges_days, rows.entry_days[some], rows.duration_days[some])
            seen = hazards(part) * days[:, None]
            for g in range(2):
                expected[g] += seen[kind[part] == g].sum(axis=0)
        level = (events + PRIOR_EVENTS) / (expected + PRIOR_EVENTS)
        for g, k in np.ndindex(2, shape[2]):
            if not has_people(owner[(kind == g) & (last >= k)], self.enough):
                level[g, :, k] = 1.0
        return level


def kind_of(rows: TaskRows, chosen: Ints) -> Ints:
    """(r,) 1 for queries (landmarks, the index, a given moment), 0 for visits."""
    return rows.is_query[chosen].astype(np.int64)
