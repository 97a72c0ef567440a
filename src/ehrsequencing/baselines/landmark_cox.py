"""The landmark supermodel of van Houwelingen (2007): one ridge Cox regression per cause on what is known so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ehrsequencing.arrays import Floats, Floats32, Ints
from ehrsequencing.baselines.cox import CoxFit, CoxRows, choose_ridge, cox_incidence
from ehrsequencing.baselines.history import FeatureSpec, LinearDesign, fit_feature_spec, history_features
from ehrsequencing.baselines.piecewise import nll_of_hazards
from ehrsequencing.config import TaskConfig
from ehrsequencing.metrics.censoring import conditional_risk
from ehrsequencing.records.hazards import cohort_hazards
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

MOST_CELLS = 8_000_000  # prediction times × covariates; prediction times are drawn at random
_PREDICT_ROWS = 20_000


class LandmarkCox:
    """Cause-specific ridge Cox regressions on last values, counts, times since, age, static codes, marks of absence.

    All training prediction times are stacked, each with its own clock and with the time since the index among the
    covariates, so that there is an answer at every prediction time. The ridge is the one under which tuning subjects
    at the task's landmarks are most likely. (One regression per landmark was worse on tuning subjects of PBC2 and
    NAFLD: docs/metrics.md.)

    Risks come from Breslow's baseline, which has no grid. The likelihood needs one: in each bin of the run's grid the
    baseline hazard is events over days at risk, a day of a row counting exp(β·z) times (`cohort_hazards`).

    Args:
        task: The question.
        vocabulary: Names of the tokens.
        train: Visits and prediction times to fit on.
        tuning: Of other subjects.
        edges_days: Inner edges of the run's grid.
        seed: Of the draw where there are too many prediction times.
    """

    name = "landmark Cox"

    def __init__(
        self,
        task: TaskConfig,
        vocabulary: Vocabulary,
        train: tuple[Timelines, TaskRows],
        tuning: tuple[Timelines, TaskRows],
        *,
        edges_days: Sequence[float],
        seed: int,
    ) -> None:
        self.vocabulary, self.edges = vocabulary, tuple(edges_days)
        self.columns: FeatureSpec = fit_feature_spec(*train, vocabulary)
        most = max(1, MOST_CELLS // (len(self.columns) + 1))
        chosen = np.sort(np.random.default_rng(seed).permutation(len(train[1]))[:most])
        watched = np.flatnonzero(np.any([tuning[1].at_landmark(days) for days in task.landmarks], axis=0))
        history = self._history(*train, chosen)
        self.design = LinearDesign.fit(history, self.columns)
        x, watched_x = self.design(history), self.design(self._history(*tuning, watched))
        self.fits: list[CoxFit | None] = []
        for number in range(1, len(task.causes) + 1):
            rows = _rows_of(train[1], chosen, x, number)
            judges = _rows_of(tuning[1], watched, watched_x, number)
            self.fits.append(choose_ridge(rows, judges) if rows.event.any() else None)
        self.base = cohort_hazards(
            self.edges, train[1].entry_days[chosen], train[1].duration_days[chosen],
            train[1].cause[chosen], n_causes=len(self.fits), factors=self._factors(x),
        )  # fmt: skip

    def _factors(self, x: Floats) -> list[Floats | None]:
        """Per cause exp(β·z), relative to a row at the mean."""
        return [None if fit is None else np.exp(fit.log_hazard(x)) for fit in self.fits]

    def _history(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats32:
        return history_features(timelines, rows, self.vocabulary, chosen=chosen, columns=self.columns)

    def risk(
        self, timelines: Timelines, rows: TaskRows, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        out = np.empty((len(chosen), len(self.fits), len(horizons_days)))
        for start in range(0, len(chosen), _PREDICT_ROWS):
            part = slice(start, start + _PREDICT_ROWS)
            x = self.design(self._history(timelines, rows, chosen[part]))

            def cumulative(days: Floats, x: Floats = x) -> Floats:
                return cox_incidence(self.fits, x, days)

            out[part] = conditional_risk(cumulative, horizons_days, start_days=start_days)
        return out

    def nll(self, timelines: Timelines, rows: TaskRows, chosen: Ints) -> Floats:
        """See `Baseline`."""
        out = np.empty(len(chosen))
        for start in range(0, len(chosen), _PREDICT_ROWS):
            part = chosen[start : start + _PREDICT_ROWS]
            factors = self._factors(self.design(self._history(timelines, rows, part)))
            flat = np.ones(len(part))
            scale = np.stack([flat if factor is None else factor for factor in factors], axis=1)
            out[start : start + len(part)] = nll_of_hazards(scale[:, :, None] * self.base, self.edges, rows, part)
        return out


def _rows_of(rows: TaskRows, chosen: Ints, x: Floats, cause: int) -> CoxRows:
    return CoxRows.of(
        x, rows.duration_days[chosen], rows.cause[chosen] == cause,
        entry_days=rows.entry_days[chosen],
    )  # fmt: skip
