"""The last step of our own training, for a baseline: its hazards recalibrated by the likelihood of tuning subjects."""

import numpy as np

from ehrsequencing.baselines.base import FittingData, HazardBaseline
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.recalibration import MOST_ROWS, fit_recalibration


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


def with_last_step(model: HazardBaseline, data: FittingData) -> HazardBaseline:
    """The baseline recalibrated, where our own training recalibrates and there are tuning subjects."""
    if data.recalibration <= 0 or not len(data.tuning):
        return model
    return Recalibrated(model, data)
