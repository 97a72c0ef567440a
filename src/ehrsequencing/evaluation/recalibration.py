"""Recalibration on the tuning split: each cause's log-hazard is shifted and stretched by maximum likelihood.

    log λ'_{e,k} = a_e + b_e · log λ_{e,k}        a = 0, b = 1: nothing to fix

In hazard space, and not risk by risk, so that survival and the incidences of all causes still sum to one. b < 1 draws
the hazards of different people together (an over-fitted model), a moves their level. The model is not touched: what was
fitted stands beside it in `recalibration.json`, and whoever wants it asks for it (`ehrseq predict --recalibrate`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.errors import EhrseqError
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.tables import number
from ehrsequencing.loader import SubjectLoader
from ehrsequencing.metrics.accuracy import observed_over_expected
from ehrsequencing.metrics.calibration import calibration_intercept_slope
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.recalibrated import Recalibrated
from ehrsequencing.predict import VISIT_BUDGET, risk_of_rows
from ehrsequencing.records.grid import event_bin, exposure
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.run import Run
from ehrsequencing.training.hazard_regression import fit_hazards
from ehrsequencing.training.recalibration import log_hazards as of_loader

FEWEST_EVENTS = 10  # of a cause among the tuning subjects: with fewer, two numbers cannot be fitted
FITTED_ON = "tuning"


@dataclass(frozen=True)
class Recalibration:
    """What was fitted, one entry a cause.

    Attributes:
        intercept: a; 0 where the cause had too few events.
        slope: b; 1 where the cause had too few events.
        events: On how many events each rests.
    """

    intercept: tuple[float, ...]
    slope: tuple[float, ...]
    events: tuple[int, ...]

    def of(self, model: SurvivalModel) -> Recalibrated:
        """The recalibrated model."""
        return Recalibrated(model, self.intercept, self.slope)

    def as_json(self, causes: tuple[str, ...]) -> dict[str, dict[str, float]]:
        """By the name of the cause."""
        return {
            name: {"intercept": a, "slope": b, "events": n}
            for name, a, b, n in zip(causes, self.intercept, self.slope, self.events, strict=True)
        }


def fit_recalibration(
    log_hazard: Floats,
    edges_days: Sequence[float],
    *,
    duration_days: Floats,
    cause: NDArray[np.integer],
    entry_days: NDArray[np.floating] | None = None,
    fewest_events: int = FEWEST_EVENTS,
) -> Recalibration:
    """Fit a and b of each cause by maximum likelihood on labelled prediction times.

    Given its exposure, each cause's part of the `horizon` likelihood stands alone:

        NLL_e(a, b) = Σ_p Σ_k exp(a + b · η_{p,e,k}) · days_{p,k} − Σ_{p: cause e} (a + b · η_{p,e,k(duration)})

    Args:
        log_hazard: (R, E, K) η, log-hazards per day.
        edges_days: The K − 1 inner edges.
        duration_days: (R,) to the event or censoring.
        cause: (R,) 0 = censored, 1..E.
        entry_days: (R,) when exposure starts; None means 0.
        fewest_events: A cause with fewer is left as it is.
    """
    days = exposure(edges_days, np.zeros(len(cause)) if entry_days is None else entry_days, duration_days)
    at_event = log_hazard[np.arange(len(cause)), :, event_bin(edges_days, duration_days)]  # (R, E)
    fitted = []
    for e in range(log_hazard.shape[1]):
        own = at_event[cause == e + 1, e]
        fitted.append(_fit_cause(log_hazard[:, e], days, own) if len(own) >= fewest_events else (0.0, 1.0))
    counts = np.bincount(cause, minlength=log_hazard.shape[1] + 1)[1:]
    return Recalibration(tuple(a for a, _ in fitted), tuple(b for _, b in fitted), tuple(counts.tolist()))


def _fit_cause(eta: Floats, days: Floats, eta_at_event: Floats) -> tuple[float, float]:
    """The pair (a, b) of one cause from η (R, K), days at risk (R, K), and η at its events."""
    seen = days > 0
    centre = float(eta_at_event.mean())  # around it level and slope hardly depend on each other
    features = np.stack([np.ones(int(seen.sum())), eta[seen] - centre])
    at_events = np.array([len(eta_at_event), (eta_at_event - centre).sum()])
    (level, slope), _ = fit_hazards(features, np.log(days[seen]), at_events, start=(centre, 1.0))
    return float(level - slope * centre), float(slope)


def recalibrate(run: Run, prepared: Prepared) -> Recalibration:
    """Fit on the tuning split's landmark queries, where models are compared.

    Raises:
        EhrseqError: The run has the `visit` head.
    """
    if run.is_visit_head:
        fix = "leave out evaluation.recalibrate, or use head=horizon"
        raise EhrseqError("the visit head has no hazards per day", where="evaluation.recalibrate", fix=fix)
    timelines, rows = prepared.timelines(FITTED_ON), prepared.rows(run.task.name, FITTED_ON)
    chosen = np.flatnonzero(np.any([rows.at_landmark(days) for days in run.task.landmarks], axis=0))
    eta = log_hazards(run.model, timelines, rows, code_types=run.code_types)[chosen]
    return fit_recalibration(
        eta, run.model.config.edges_days, duration_days=rows.duration_days[chosen],
        cause=rows.cause[chosen], entry_days=rows.entry_days[chosen],
    )  # fmt: skip


def log_hazards(
    model: SurvivalModel, timelines: Timelines, rows: TaskRows, *, code_types: Ints | None = None
) -> Floats:
    """(R, causes, bins) log-hazards per day of a `horizon` model at every prediction time."""
    out = np.empty((len(rows), model.config.causes, model.config.bins))
    loader = SubjectLoader.of_model(model.config, timelines, rows, code_types=code_types)
    row, eta = of_loader(model, loader, visit_budget=VISIT_BUDGET, device=torch.device("cpu"))
    out[row] = eta
    return out


def before_and_after(run: Run, fitted: Recalibration, judged: Population) -> dict[str, Any]:
    """The `recalibration` key of `metrics.json`: calibration at the first landmark, as trained and recalibrated."""
    rows, landmark = judged.rows, run.task.landmarks[0]
    at, horizons = np.flatnonzero(rows.at_landmark(landmark)), np.array(run.task.horizons)
    duration, cause = rows.duration_days[at], rows.cause[at].astype(np.int64)
    starts = float(run.task.blanking)

    def calibration(model: SurvivalModel) -> dict[str, dict[str, list[float | None]]]:
        risk = risk_of_rows(
            model, judged.timelines, rows, horizons_days=horizons, code_types=run.code_types, start_days=starts
        )
        scored = ScoredRows.of(duration, cause, risk[at].astype(np.float64), horizons)
        intercept, slope = calibration_intercept_slope(scored)
        columns = {"intercept": intercept, "slope": slope, "oe": observed_over_expected(scored)}
        return {
            name: {key: [number(v) for v in values[e]] for key, values in columns.items()}
            for e, name in enumerate(run.task.causes)
        }

    return {
        "fitted_on": FITTED_ON, "landmark_days": landmark, "horizons_days": horizons.tolist(),
        "before": calibration(run.model), "after": calibration(fitted.of(run.model)),
        "fitted": fitted.as_json(run.task.causes),
    }  # fmt: skip
