"""`ehrseq evaluate --recalibrate`: fit each cause's recalibration on the tuning split, and compare before and after.

    log λ'_{e,k} = a_e + b_e · log λ_{e,k}        a = 0, b = 1: nothing to fix

λ are the hazards of the run, in a blend the blended ones.

b < 1 draws the hazards of different people together (an over-fitted model), a moves their level. The model is not
changed: the result is `recalibration.json`, and `ehrseq predict --recalibrate` uses it.
"""

from typing import Any

import numpy as np

from ehrsequencing.baselines.blend.blend import RunAnswers
from ehrsequencing.core.disclosure import shareable_count
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.results import number
from ehrsequencing.metrics.accuracy import observed_over_expected
from ehrsequencing.metrics.calibration import calibration_intercept_slope
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.recalibration import Recalibration, fit_recalibration

FITTED_ON = "tuning"


def recalibrate(run: Run, prepared: Prepared) -> Recalibration:
    """Fit on the tuning split's landmark queries, where models are compared; in a blend, the blended hazards."""
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


def before_and_after(run: Run, fitted: Recalibration, population: Population) -> dict[str, Any]:
    """The `recalibration` key of `metrics.json`: calibration at the first landmark, as trained and recalibrated."""
    rows, landmark = population.records.rows, run.task.landmarks[0]
    at, horizons = np.flatnonzero(rows.at_landmark(landmark)), np.array(run.task.horizons)
    duration, cause = rows.duration_days[at], rows.cause[at].astype(np.int64)
    starts = float(run.task.blanking)

    def calibration(answers: RunAnswers) -> dict[str, dict[str, list[float | None]]]:
        risk = answers.risk(population.records, horizons_days=horizons, start_days=starts)
        scored = ScoredRows.of(duration, cause, risk[at].astype(np.float64), horizons)
        intercept, slope = calibration_intercept_slope(scored)
        columns = {"intercept": intercept, "slope": slope, "oe": observed_over_expected(scored)}
        return {
            name: {key: [number(v) for v in values[e]] for key, values in columns.items()}
            for e, name in enumerate(run.task.causes)
        }

    return {
        "fitted_on": FITTED_ON,
        "landmark_days": landmark,
        "horizons_days": horizons.tolist(),
        "before": calibration(run.answers),
        "after": calibration(run.answers.recalibrated(fitted.intercept[:, 0], fitted.slope[:, 0])),
        "fitted": {
            name: {"intercept": float(a), "slope": float(b), "events": shareable_count(int(n))}
            for name, a, b, n in zip(
                run.task.causes,
                fitted.intercept[:, 0],
                fitted.slope[:, 0],
                fitted.subjects,
                strict=True,
            )
        },
    }
