"""The baseline "age + sex": a Poisson regression on what a model knows without reading the record."""

import numpy as np
from sklearn.linear_model import PoissonRegressor

from ehrsequencing.baselines.base import FittingData, HazardModel
from ehrsequencing.baselines.history import AGE_KNOTS_YEARS, has_static
from ehrsequencing.baselines.piecewise import days_since_index
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.hazards import exposure
from ehrsequencing.records.timelines import TaskRecords


class AgeAndSex(HazardModel):
    """A Poisson regression on a spline of age, sex, and the time since the index.

    Sex: static codes whose name starts with GENDER or SEX; all static codes where there is none.
    """

    name = "age + sex"

    def __init__(self, data: FittingData) -> None:
        super().__init__(data)
        rows, names = data.train.rows, data.vocabulary.tokens
        tokens = np.unique(data.train.timelines.static_codes).tolist()
        self.static = [
            token for token in tokens if names[token].upper().startswith(("GENDER", "SEX"))
        ] or tokens
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
            self.models.append(
                model.fit(
                    x[at_risk], events[at_risk] / total[at_risk], sample_weight=total[at_risk]
                )
            )

    def _design(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, ·) age in years, log of the days since the index, and the static codes."""
        rows = records.rows
        age, since = (
            rows.age_years[chosen].astype(np.float64),
            np.log1p(days_since_index(rows, chosen)),
        )
        static = has_static(records.timelines, self.static)[rows.subject[chosen]]
        return np.concatenate([age[:, None], since[:, None], static], axis=1)

    def _filled(self, design: Floats) -> Floats:
        """Unknown ages become the mean age with a mark; age gets a linear spline, in decades."""
        unknown = np.isnan(design[:, :1])
        age = np.where(unknown, self.mean_age, design[:, :1])
        spline = [np.maximum(age - knot, 0.0) for knot in AGE_KNOTS_YEARS]
        return np.concatenate(
            [np.concatenate([age, *spline], axis=1) / 10.0, unknown, design[:, 1:]], axis=1
        )

    def factor(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins); the same in every bin."""
        x = self._filled(self._design(records, chosen))
        flat = np.ones(len(x))  # a cause without a training event keeps the cohort's own hazard
        factors = np.stack(
            [flat if model is None else model.predict(x) for model in self.models], axis=1
        )
        return np.repeat(factors[:, :, None], len(self.edges) + 1, axis=2)
