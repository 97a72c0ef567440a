"""The simple baselines: Aalen–Johansen, the same curve for everybody, and a Poisson regression on age and sex."""

from collections.abc import Callable

import numpy as np
from sklearn.linear_model import PoissonRegressor

from ehrsequencing.baselines.base import FittingData, HazardBaseline
from ehrsequencing.baselines.history import AGE_KNOTS_YEARS, has_static
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.metrics.censoring import StepFunction, aalen_johansen
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.hazards import cohort_hazards, exposure
from ehrsequencing.records.timelines import TaskRecords, TaskRows


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

    def curves(self, records: TaskRecords, chosen: Ints) -> Callable[[Floats], Floats]:
        """See `HazardBaseline`."""
        nearest = self._nearest(records, chosen)
        return lambda days: np.stack([curve.at(days) for curve in self.incidences])[nearest]

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `HazardBaseline`."""
        return np.stack(self.landmark_hazards)[self._nearest(records, chosen)]


class AgeAndSex(HazardBaseline):
    """A Poisson regression on what a model knows without reading the record: age, sex, and the time since the index.

        λ_e(k | x) = base_e(k) · f_e(x)      k a bin of the run's grid, base the training cohort's own hazards

    Age enters as a linear spline. Sex: static codes whose name starts with GENDER or SEX; all static codes where there
    is none. A competing event ends the exposure of every cause.
    """

    name = "age + sex"

    def __init__(self, data: FittingData) -> None:
        self.edges, self.n_causes = data.edges_days, len(data.task.causes)
        self.base = data.cohort_hazards()  # (causes, bins)
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
            total, events = days @ self.base[e], (rows.cause == e + 1).astype(np.float64)
            at_risk = total > 0
            if not events.any():
                self.models.append(None)
                continue
            model = PoissonRegressor(alpha=1e-4, solver="newton-cholesky", max_iter=200)
            rate = events[at_risk] / total[at_risk]
            self.models.append(model.fit(x[at_risk], rate, sample_weight=total[at_risk]))

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

    def factor(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins); the same in every bin."""
        x = self._filled(self._design(records, chosen))
        flat = np.ones(len(x))  # a cause without a training event keeps the cohort's own hazard
        factors = [flat if model is None else model.predict(x) for model in self.models]
        return np.repeat(np.stack(factors, axis=1)[:, :, None], len(self.edges) + 1, axis=2)

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `HazardBaseline`."""
        return self.base * self.factor(records, chosen)


def _days_since_index(rows: TaskRows, chosen: Ints) -> Floats:
    """Days (r,) from the index to each chosen prediction time."""
    return (rows.prediction_us[chosen] - rows.index_us[chosen]) / DAY_US
