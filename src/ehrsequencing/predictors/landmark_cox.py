"""Ridge Cox regressions on the history features: of each cause from every landmark on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.predictors.cox import (
    CoxFit,
    CoxRows,
    choose_ridge,
)
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.history import (
    AGE_KNOTS_YEARS,
    FeatureSpec,
    fit_feature_spec,
    has_people,
    history_features,
)
from ehrsequencing.predictors.predictor import Predictor, in_parts
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

    def __call__(self, features: Floats32) -> Floats:
        """(r, F) history features → (r, D) finite covariates."""
        values = _logarithms(features, self.columns)
        used = values[:, self.used]
        parts = [np.clip(np.where(np.isnan(used), self.fill, used), self.low, self.high)]
        parts.append(np.isnan(values[:, self.marked]).astype(np.float64))
        if 0 in self.used:
            age = parts[0][:, :1]  # the first of all features, and so of those used
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
class CoxHazards(Predictor):
    """Cox regressions on the run's grid: all that a blend keeps of them.

        λ_e(k | x) = base_e(k) · exp(β_e · (z − mean_e) / scale_e)

    Attributes:
        vocabulary: The one that encodes the records.
        design: Records' features → covariates z (D).
        mean: (causes, D).
        scale: (causes, D).
        beta: (causes, D); 0 for a cause without a training event.
        base: (causes, bins) hazards per day of a row at the mean.
        edges_days: The inner edges of the grid.
    """

    vocabulary: Vocabulary
    design: LinearDesign
    mean: Floats
    scale: Floats
    beta: Floats
    base: Floats
    edges_days: tuple[float, ...]

    name = "landmark Cox"

    def __post_init__(self) -> None:
        self.n_causes = len(self.base)

    def covariates(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, D) what the regressions know of the chosen rows."""
        columns = self.design.columns
        return self.design(
            history_features(records, self.vocabulary, chosen=chosen, columns=columns)
        )

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """See `Predictor`."""
        for rows, part in in_parts(records):
            z = self.covariates(part, np.arange(len(part)))
            scores = [
                ((z - mean) / scale) @ beta
                for mean, scale, beta in zip(self.mean, self.scale, self.beta, strict=True)
            ]
            yield rows, np.exp(np.stack(scores, axis=1))[:, :, None] * self.base


class LandmarkCox(CoxHazards):
    """The landmark supermodel of van Houwelingen (2007): cause-specific ridge Cox regressions on what is known so far.

    All training prediction times are stacked, each with its own clock and with the time since the index among the
    covariates, so that there is an answer at every prediction time. The ridge is the one with the lowest NLL of tuning
    subjects at all their prediction times, the number that reports compare. (One regression per landmark was worse on
    tuning subjects of PBC2 and NAFLD: docs/metrics.md.)

    In each bin of the run's grid the baseline hazard is events over days at risk, a day of a row counting exp(β·z)
    times (`cohort_hazards`): Breslow's (1974), constant in the bins.
    """

    def __init__(self, data: FittingData) -> None:
        train, tuning = data.train.rows, data.tuning.rows
        columns = fit_feature_spec(data.train, data.vocabulary, enough=data.enough)
        chosen = data.draw(np.arange(len(train)), max(1, MOST_CELLS // (len(columns) + 1)))
        history = history_features(data.train, data.vocabulary, chosen=chosen, columns=columns)
        self.vocabulary, self.edges_days = data.vocabulary, data.edges_days
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
