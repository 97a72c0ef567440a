"""The two simple baselines; all baselines, fitted on the same subjects, prediction times and history as the run.

All but Aalen–Johansen are landmark supermodels (van Houwelingen 2007), fitted on all training prediction times. Which
one is the strongest depends on the data: the likelihood of tuning subjects decides.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from sklearn.linear_model import PoissonRegressor

from ehrsequencing.baselines.base import Baseline, FittingData, HazardBaseline, kind_of
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.baselines.history import AGE_KNOTS_YEARS, has_static
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.metrics.censoring import StepFunction, aalen_johansen, conditional_risk
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.hazards import cohort_hazards, exposure
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.training.recalibration import MOST_ROWS, fit_recalibration


class MarginalIncidence(HazardBaseline):
    """Aalen–Johansen on the training queries of each landmark; a row takes the landmark nearest in time since index.

    For the likelihood, the same queries' events over days at risk in each bin of the run's grid.
    """

    name = "Aalen–Johansen"

    def __init__(self, data: FittingData) -> None:
        self.edges, self.n_causes = data.edges_days, len(data.task.causes)
        rows = data.train.rows
        self.landmarks: list[float] = []
        self.incidences: list[StepFunction] = []  # of each landmark
        self.landmark_hazards: list[Floats] = []  # (causes, bins) of each landmark
        for days in sorted({0.0, *data.task.landmarks}):
            at = rows.at_landmark(days)
            if at.any():
                duration, cause = rows.duration_days[at], rows.cause[at]
                self.landmarks.append(days)
                self.incidences.append(
                    aalen_johansen(duration, cause.astype(np.int64), n_causes=self.n_causes)
                )
                hazards = cohort_hazards(
                    self.edges, rows.entry_days[at], duration, cause, n_causes=self.n_causes
                )
                self.landmark_hazards.append(hazards)

    def _nearest(self, records: TaskRecords, chosen: Ints) -> Ints:
        """(r,) number of the landmark of each row."""
        since = _days_since_index(records.rows, chosen)
        nearest: Ints = np.abs(since[:, None] - np.array(self.landmarks)).argmin(axis=1)
        return nearest

    def risk(
        self, records: TaskRecords, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        risk = conditional_risk(
            lambda days: np.stack([curve.at(days) for curve in self.incidences]),
            horizons_days,
            start_days=start_days,
        )
        return risk[self._nearest(records, chosen)]

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `HazardBaseline`."""
        return np.stack(self.landmark_hazards)[self._nearest(records, chosen)]


class AgeAndSex(HazardBaseline):
    """A Poisson regression on what a model knows without reading the record: age, sex, and the time since the index.

        λ_e(k | x) = base_{g,e}(k) · f_e(x)      k a bin of the run's grid, g visit or query (`FittingData.level`)

    Age enters as a linear spline. Sex: static codes whose name starts with GENDER or SEX; all static codes where there
    is none. A competing event ends the exposure of every cause.
    """

    name = "age + sex"

    def __init__(self, data: FittingData) -> None:
        self.edges, self.n_causes = data.edges_days, len(data.task.causes)
        cohort = data.cohort_hazards()
        rows, names = data.train.rows, data.vocabulary.tokens
        tokens = np.unique(data.train.timelines.static_codes).tolist()
        sexes = [token for token in tokens if names[token].upper().startswith(("GENDER", "SEX"))]
        self.static = sexes or tokens
        days = exposure(self.edges, rows.entry_days, rows.duration_days)
        design = self._design(data.train, np.arange(len(rows)))
        self.mean_age = float(np.nanmean(design[:, 0])) if np.isfinite(design[:, 0]).any() else 50.0
        x = self._filled(design)
        self.models: list[PoissonRegressor | None] = []
        for e in range(self.n_causes):
            # The factor is the same in every bin, so that a prediction time needs one row with its summed weight.
            total, events = days @ cohort[e], (rows.cause == e + 1).astype(np.float64)
            at_risk = total > 0
            if not events.any():
                self.models.append(None)
                continue
            model = PoissonRegressor(alpha=1e-4, solver="newton-cholesky", max_iter=200)
            rate = events[at_risk] / total[at_risk]
            self.models.append(model.fit(x[at_risk], rate, sample_weight=total[at_risk]))
        level = data.level(np.arange(len(rows)), lambda part: cohort * self._factor(x[part]))
        self.base = cohort * level  # (2, causes, bins)

    def _design(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, ·) age in years, log of the days since the index, and the static codes."""
        rows = records.rows
        age = rows.age_years[chosen].astype(np.float64)
        since = np.log1p(_days_since_index(rows, chosen))
        static = has_static(records.timelines, self.static)[rows.subject[chosen]]
        return np.concatenate([age[:, None], since[:, None], static], axis=1)

    def _filled(self, design: Floats) -> Floats:
        """Unknown ages become the mean age with a mark; age gets a linear spline, in decades."""
        unknown = np.isnan(design[:, :1])
        age = np.where(unknown, self.mean_age, design[:, :1])
        spline = [np.maximum(age - knot, 0.0) for knot in AGE_KNOTS_YEARS]
        decades = np.concatenate([age, *spline], axis=1) / 10.0
        return np.concatenate([decades, unknown, design[:, 1:]], axis=1)

    def _factor(self, x: Floats) -> Floats:
        """The factor f (r, causes, 1) of covariates (r, ·)."""
        flat = np.ones(len(x))  # of a cause without a training event
        factors = [flat if model is None else model.predict(x) for model in self.models]
        return np.stack(factors, axis=1)[:, :, None]

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `HazardBaseline`."""
        factor = self._factor(self._filled(self._design(records, chosen)))
        return self.base[kind_of(records.rows, chosen)] * factor


def _days_since_index(rows: TaskRows, chosen: Ints) -> Floats:
    """Days (r,) from the index to each chosen prediction time."""
    return (rows.prediction_us[chosen] - rows.index_us[chosen]) / DAY_US


class Recalibrated(HazardBaseline):
    """A baseline whose log-hazards are shifted and stretched, as `training.recalibration` does with a network's.

        log λ'_{e,k} = a_{e,k} + b_{e,k} · log λ_{e,k}

    Risks, too, are those of the recalibrated hazards.

    Args:
        inner: The fitted baseline.
        data: Whose tuning subjects decide, and how strongly (`recalibration`).
    """

    def __init__(self, inner: HazardBaseline, data: FittingData) -> None:
        self.inner, self.name = inner, inner.name
        self.edges, self.n_causes = inner.edges, inner.n_causes
        rows, every = data.tuning.rows, data.draw(np.arange(len(data.tuning)), MOST_ROWS)
        fitted = fit_recalibration(
            np.log(inner.hazards(data.tuning, every)),
            self.edges,
            duration_days=rows.duration_days[every],
            cause=rows.cause[every],
            entry_days=rows.entry_days[every],
            subject=rows.subject[every],
            prior_sd=data.recalibration,
        )
        self.intercept, self.slope = fitted.intercept, fitted.slope

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `HazardBaseline`."""
        log_hazards = np.log(self.inner.hazards(records, chosen))
        return np.asarray(np.exp(self.intercept + self.slope * log_hazards), dtype=np.float64)


BASELINES = (
    BoostedVisits.name,
    LandmarkCox.name,
    AgeAndSex.name,
    MarginalIncidence.name,
)


@dataclass(frozen=True)
class Fitted:
    """A baseline, and what the tuning subjects say of it.

    Attributes:
        model: The baseline.
        tuning_nll: Mean over all tuning prediction times; NaN without any.
    """

    model: Baseline
    tuning_nll: float


def fit_baselines(
    kind: Literal["fast", "none"],
    data: FittingData,
    *,
    trials: int | None = None,
    known: Mapping[str, Baseline] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Fitted]:
    """Fit the baselines, the strongest first: by the likelihood of tuning subjects at all their prediction times.

    Each gets the last step that our own training has, a recalibration by tuning likelihood; Aalen–Johansen stays what
    it is, the cohort's own incidence.

    Args:
        kind: `fast`: boosted visits, landmark Cox, age + sex, Aalen–Johansen. `none`: nothing.
        data: What to fit. Tuning subjects choose the boosting's settings and length, the ridge, and the strongest.
        trials: Settings that were tried for the run; the boosting tries as many. None: one.
        known: Baselines by name that were fitted to this very data with these settings, and are not fitted again.
        progress: Called with the name and number of each baseline before it is fitted.
    """
    if kind == "none":
        return []
    fits: dict[str, Callable[[], Baseline]] = {
        BoostedVisits.name: partial(BoostedVisits.fit, data, trials=trials or 1),
        LandmarkCox.name: partial(LandmarkCox, data),
        AgeAndSex.name: partial(AgeAndSex, data),
        MarginalIncidence.name: partial(MarginalIncidence, data),
    }
    out: list[Fitted] = []
    every = np.arange(len(data.tuning))
    for number, (name, fit) in enumerate(fits.items(), start=1):
        progress(f"{name}, {number} of {len(fits)}")
        model = known[name] if known is not None and name in known else fit()
        is_last_step = data.recalibration > 0 and len(every) > 0 and name != MarginalIncidence.name
        if is_last_step and isinstance(model, HazardBaseline):
            model = Recalibrated(model, data)
        nll = float(model.nll(data.tuning, every).mean()) if len(every) else float("nan")
        out.append(Fitted(model, nll))
    return sorted(out, key=lambda fitted: fitted.tuning_nll)
