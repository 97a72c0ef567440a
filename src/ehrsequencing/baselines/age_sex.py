"""Age and sex: what a model knows without reading the record."""

from collections.abc import Sequence

import numpy as np
from sklearn.linear_model import PoissonRegressor

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.baselines.history import AGE_KNOTS_YEARS
from ehrsequencing.baselines.piecewise import HazardModel, days_since_index
from ehrsequencing.config import TaskConfig
from ehrsequencing.records.hazards import exposure
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary


class AgeAndSex(HazardModel):
    """A Poisson regression on a spline of age, sex, time since the index and the bin.

    Sex: static codes whose name starts with GENDER or SEX; all static codes where there is none.
    """

    name = "age + sex"

    def __init__(
        self,
        task: TaskConfig,
        vocabulary: Vocabulary,
        train: tuple[Timelines, TaskRows],
        *,
        edges_days: Sequence[float],
    ) -> None:
        super().__init__(task, train[1], edges_days)
        tokens = np.unique(train[0].static_codes)
        sexes = [t for t in tokens.tolist() if vocabulary.tokens[t].upper().startswith(("GENDER", "SEX"))]
        self.static = sexes or tokens.tolist()
        chosen = np.arange(len(train[1]))
        days = exposure(self.edges, train[1].entry_days, train[1].duration_days)
        cause = train[1].cause
        design = self._design(*train, chosen)
        self.mean_age = float(np.nanmean(design[:, 0])) if np.isfinite(design[:, 0]).any() else 50.0
        x = self._filled(design)
        self.models: list[PoissonRegressor | None] = []
        for e in range(len(self.base)):
            # The factor is the same in every bin, so that a prediction time needs one row with its summed weight.
            total, events = days @ self.base[e], (cause == e + 1).astype(np.float64)
            rows = total > 0
            if not events.any():
                self.models.append(None)
                continue
            model = PoissonRegressor(alpha=1e-4, solver="newton-cholesky", max_iter=200)
            self.models.append(model.fit(x[rows], events[rows] / total[rows], sample_weight=total[rows]))

    def _design(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        age = rows.age_years[chosen].astype(np.float64)
        owner = np.repeat(np.arange(len(timelines)), np.diff(timelines.static_offsets))
        has = np.zeros((len(timelines), len(self.static)))
        for column, token in enumerate(self.static):
            has[owner[timelines.static_codes == token], column] = 1.0
        since = np.log1p(days_since_index(rows, chosen))
        return np.concatenate([age[:, None], since[:, None], has[rows.subject[chosen]]], axis=1)

    def _filled(self, design: Floats) -> Floats:
        """Unknown ages become the mean age with a mark; age gets a linear spline, in decades."""
        unknown = np.isnan(design[:, :1])
        age = np.where(unknown, self.mean_age, design[:, :1])
        spline = [np.maximum(age - knot, 0.0) for knot in AGE_KNOTS_YEARS]
        return np.concatenate([np.concatenate([age, *spline], axis=1) / 10.0, unknown, design[:, 1:]], axis=1)

    def factor(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """The factor f, (r, causes, bins); the same in every bin."""
        x = self._filled(self._design(timelines, rows, chosen))
        flat = np.ones(len(x))  # a cause without a training event keeps the cohort's own hazard
        factors = np.stack([flat if model is None else model.predict(x) for model in self.models], axis=1)
        return np.repeat(factors[:, :, None], len(self.edges) + 1, axis=2)
