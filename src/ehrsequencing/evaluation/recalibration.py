"""A recalibration of a run beside it: fitted on the tuning split's landmark queries, shown before and after."""

from typing import Any

import numpy as np

from ehrsequencing.baselines.blend.blend import RunAnswers
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.disclosure import shareable_count
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.estimates import metric_estimates
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.results import number
from ehrsequencing.metrics.registry import METRICS
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.cohort import potential_days
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.recalibration import Recalibration, fit_recalibration

FITTED_ON = "tuning"
SHOWN = ("intercept", "slope", "oe")


def recalibrate(run: Run, prepared: Prepared) -> Recalibration:
    """Fit each cause's recalibration on the tuning split's landmark queries, where models are compared.

        log λ'_{e,k} = a_e + b_e · log λ_{e,k}        a = 0, b = 1: nothing to fix

    λ are the hazards of the run, in a blend the blended ones. b < 1 draws the hazards of different people together (an
    over-fitted model), a moves their level. The model is not changed: `ehrseq predict --recalibrate` uses the result.
    """
    records = prepared.records(run.task.name, FITTED_ON)
    rows = records.rows
    at_landmark = np.any([rows.at_landmark(days) for days in run.task.landmarks], axis=0)
    eta = [np.log(hazards[at_landmark[part]]) for part, hazards in run.answers.hazards(records)]
    chosen = np.flatnonzero(at_landmark)
    return fit_recalibration(
        np.concatenate(eta),
        run.model.config.edges_days,
        duration_days=rows.duration_days[chosen],
        cause=rows.cause[chosen],
        entry_days=rows.entry_days[chosen],
    )


def before_and_after(
    run: Run, fitted: Recalibration, population: Population, *, landmark_days: float
) -> dict[str, Any]:
    """The `recalibration` key of `metrics.json`: calibration at one landmark, as trained and recalibrated."""
    records, horizons = population.records, np.array(run.task.horizons)
    rows, at = records.rows, records.at_landmark(landmark_days)
    after = run.answers.recalibrated(fitted.intercept[:, 0], fitted.slope[:, 0])
    ends = potential_days(records, run.task, population.dataset_end_us)

    def risk(answers: RunAnswers) -> Floats:
        start_days = float(run.task.blanking)
        found = answers.risk(records, horizons_days=horizons, start_days=start_days)
        return found[at].astype(np.float64)

    scope = Comparison(
        landmark_days,
        rows.subject[at],
        rows.duration_days[at],
        rows.cause[at].astype(np.int64),
        horizons,
        {"before": risk(run.answers), "after": risk(after)},
        draw_subjects(len(records.timelines), 0, 0),
        potential_days=ends[at],
    )

    def measured(side: str) -> dict[str, dict[str, list[float | None]]]:
        found = metric_estimates(scope, side, [METRICS[key] for key in SHOWN])
        return {
            name: {key: [number(v) for v in one.value[e]] for key, one in found.items()}
            for e, name in enumerate(run.task.causes)
        }

    columns = zip(
        run.task.causes, fitted.intercept[:, 0], fitted.slope[:, 0], fitted.subjects, strict=True
    )
    return {
        "fitted_on": FITTED_ON,
        "landmark_days": landmark_days,
        "horizons_days": horizons.tolist(),
        "before": measured("before"),
        "after": measured("after"),
        "fitted": {
            name: {"intercept": float(a), "slope": float(b), "events": shareable_count(int(n))}
            for name, a, b, n in columns
        },
    }
