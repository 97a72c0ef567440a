"""Ridge Cox regressions on the history features: of each cause from every landmark on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.metrics.hazards import cohort_hazards, horizon_nll
from ehrsequencing.predictors.cox import CoxFit, CoxRows, choose_ridge
from ehrsequencing.predictors.features import LinearDesign, feature_range
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.of_history import OfHistory
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.records.vocabulary import Vocabulary


@dataclass
class CoxHazards(OfHistory):
    """Cox regressions on the run's grid: all that a blend keeps of them.

        λ_e(k | x) = base_e(k) · exp(η_e),   η_e = β_e · (z − mean_e) / scale_e, held within bounds_e

    Attributes:
        vocabulary: The one that encodes the records.
        design: Records' features → covariates z (D).
        mean: (causes, D).
        scale: (causes, D).
        beta: (causes, D); 0 for a cause without a training event.
        base: (causes, bins) hazards per day of a row at the mean.
        bounds: (causes, 2) lowest and highest η of the training rows, of enough people each. Beyond them a line is a
            guess, and a few wild risks would carry every mean.
        edges_days: The inner edges of the grid.
    """

    vocabulary: Vocabulary
    design: LinearDesign
    mean: Floats
    scale: Floats
    beta: Floats
    base: Floats
    bounds: Floats
    edges_days: tuple[float, ...]

    name = "landmark Cox"

    def __post_init__(self) -> None:
        self.n_causes, self.columns = len(self.base), self.design.columns

    def of_history(self, history: Floats32, rows: TaskRows) -> Floats:
        """See `OfHistory`."""
        z = self.design(history)
        scores = [
            np.clip(z @ (beta / scale) - mean @ (beta / scale), *bounds)
            for mean, scale, beta, bounds in zip(
                self.mean, self.scale, self.beta, self.bounds, strict=True
            )
        ]
        return np.asarray(np.exp(np.stack(scores, axis=1))[:, :, None] * self.base)


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
        train, tuning, features = data.train.rows, data.tuning.rows, data.features
        chosen, watched, x = features.rows[features.linear], features.tuning_rows, features.x
        self.fits = []
        for cause in range(1, len(data.task.causes) + 1):
            own, others = (
                _cox_rows(rows, some, values, cause)
                for rows, some, values in (
                    (train, chosen, x),
                    (tuning, watched, features.tuning_x),
                )
            )
            score = partial(_log_likelihood, train=own, tuning=others, edges_days=data.edges_days)
            self.fits.append(choose_ridge(own, others, score=score))
        scores, owner = [fit.log_hazard(x) for fit in self.fits], train.subject[chosen]
        ranges = [
            feature_range(one.astype(np.float32), owner, enough=data.enough) for one in scores
        ]
        bounds = np.array([(-np.inf, np.inf) if one is None else one[::2] for one in ranges])
        base = cohort_hazards(
            data.edges_days,
            train.entry_days[chosen],
            train.duration_days[chosen],
            train.cause[chosen],
            n_causes=len(self.fits),
            factors=[
                np.exp(np.clip(score, *own)) for score, own in zip(scores, bounds, strict=True)
            ],
        )
        mean, scale, beta = (
            np.stack([getattr(fit, name) for fit in self.fits])
            for name in ("mean", "scale", "beta")
        )
        design = features.design
        super().__init__(data.vocabulary, design, mean, scale, beta, base, bounds, data.edges_days)


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
