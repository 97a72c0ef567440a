"""The landmark supermodel of van Houwelingen (2007): one ridge Cox regression per cause on what is known so far."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ehrsequencing.baselines.base import ChunkedBaseline, FittingData
from ehrsequencing.baselines.cox import CoxFit, CoxRows, choose_ridge, cox_incidence
from ehrsequencing.baselines.history import LinearDesign, fit_feature_spec, history_features
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.hazards import cohort_hazards
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary

MOST_CELLS = 8_000_000  # prediction times × covariates; above, prediction times are drawn at random


@dataclass(frozen=True)
class CoxHazards:
    """What the regressions say of a record on the run's grid: all that a blend keeps of them.

        λ_e(k | x) = base_e(k) · exp(β_e · (z − mean_e) / scale_e)

    Attributes:
        vocabulary: The one that encodes the records.
        design: Records' features → covariates z (D).
        mean: (causes, D).
        scale: (causes, D).
        beta: (causes, D); 0 for a cause without a training event.
        base: (causes, bins) hazards per day of a row at the mean.
    """

    vocabulary: Vocabulary
    design: LinearDesign
    mean: Floats
    scale: Floats
    beta: Floats
    base: Floats

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, causes, bins) hazards per day."""
        z = self.design(
            history_features(records, self.vocabulary, chosen=chosen, columns=self.design.columns)
        )
        scores = [
            ((z - mean) / scale) @ beta
            for mean, scale, beta in zip(self.mean, self.scale, self.beta, strict=True)
        ]
        return np.asarray(
            np.exp(np.stack(scores, axis=1))[:, :, None] * self.base, dtype=np.float64
        )


class LandmarkCox(ChunkedBaseline):
    """Cause-specific ridge Cox regressions on last values, counts, times since, age, static codes, marks of absence.

    All training prediction times are stacked, each with its own clock and with the time since the index among the
    covariates, so that there is an answer at every prediction time. The ridge is the one under which tuning subjects
    at the task's landmarks are most likely. (One regression per landmark was worse on tuning subjects of PBC2 and
    NAFLD: docs/metrics.md.)

    Risks come from Breslow's baseline, which has no grid. The likelihood needs one: in each bin of the run's grid the
    baseline hazard is events over days at risk, a day of a row counting exp(β·z) times (`cohort_hazards`).
    """

    name = "landmark Cox"

    def __init__(self, data: FittingData) -> None:
        super().__init__(data)
        train, tuning = data.train.rows, data.tuning.rows
        self.vocabulary = data.vocabulary
        self.columns = fit_feature_spec(data.train, data.vocabulary, enough=data.enough)
        chosen = data.draw(np.arange(len(train)), max(1, MOST_CELLS // (len(self.columns) + 1)))
        watched = np.flatnonzero(
            np.any([tuning.at_landmark(days) for days in data.task.landmarks], axis=0)
        )
        history = history_features(data.train, self.vocabulary, chosen=chosen, columns=self.columns)
        self.design = LinearDesign.fit(
            history, self.columns, train.subject[chosen], enough=data.enough
        )
        x, watched_x = self.design(history), self.covariates(data.tuning, watched)
        self.fits: list[CoxFit | None] = []
        for cause in range(1, self.n_causes + 1):
            fitted = _cox_rows(train, chosen, x, cause)
            others = _cox_rows(tuning, watched, watched_x, cause)
            self.fits.append(choose_ridge(fitted, others) if fitted.event.any() else None)
        at_risk = train.entry_days[chosen], train.duration_days[chosen], train.cause[chosen]
        self.base = cohort_hazards(
            self.edges, *at_risk, n_causes=self.n_causes, factors=self._factors(x)
        )

    @property
    def kept(self) -> CoxHazards:
        """The regressions on the run's grid."""
        width = next((len(fit.beta) for fit in self.fits if fit is not None), 0)
        none = np.zeros(width), np.ones(width), np.zeros(width)
        found = [none if fit is None else (fit.mean, fit.scale, fit.beta) for fit in self.fits]
        mean, scale, beta = (np.stack(column) for column in zip(*found, strict=True))
        return CoxHazards(self.vocabulary, self.design, mean, scale, beta, self.base)

    def covariates(self, records: TaskRecords, chosen: Ints) -> Floats:
        """(r, D) what the regressions know of the chosen rows."""
        return self.design(
            history_features(records, self.vocabulary, chosen=chosen, columns=self.columns)
        )

    def _factors(self, x: Floats) -> list[Floats | None]:
        """Per cause exp(β·z), relative to a row at the mean."""
        return [None if fit is None else np.exp(fit.log_hazard(x)) for fit in self.fits]

    def curves(self, records: TaskRecords, chosen: Ints) -> Callable[[Floats], Floats]:
        """See `ChunkedBaseline`."""
        x = self.covariates(records, chosen)
        return lambda days: cox_incidence(self.fits, x, days)

    def hazards(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `ChunkedBaseline`."""
        flat = np.ones(len(chosen))
        factors = self._factors(self.covariates(records, chosen))
        scale = np.stack([flat if factor is None else factor for factor in factors], axis=1)
        return scale[:, :, None] * self.base


def _cox_rows(rows: TaskRows, chosen: Ints, x: Floats, cause: int) -> CoxRows:
    entry = rows.entry_days[chosen]
    return CoxRows.of(x, rows.duration_days[chosen], rows.cause[chosen] == cause, entry_days=entry)
