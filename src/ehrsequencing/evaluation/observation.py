"""Whether everybody could be observed: warnings where weights cannot stand in for people who were never followed."""

import numpy as np

from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Floats
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.metrics.calibration import quantile_groups
from ehrsequencing.metrics.censoring import RiskSets
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords

TENTHS = 10
FEWEST_ROWS = 20 * TENTHS  # below, a tenth is a handful


def unobserved_tenths(scope: Comparison, records: TaskRecords) -> list[str]:
    """Warnings where nobody in a tenth of the ages, or of the prediction times, is observed up to a horizon.

    Args:
        scope: A landmark, or all prediction times.
        records: The prediction times that it is made of.
    """
    rows, landmark = records.rows, scope.landmark_days
    at = np.arange(len(rows)) if landmark is None else records.at_landmark(landmark)
    sides = {"ages": np.asarray(rows.age_years[at], dtype=np.float64)}
    if landmark is None:
        sides["prediction times"] = (rows.prediction_us[at] - rows.index_us[at]) / DAY_US
    found = []
    for name, values in sides.items():
        for horizon in scope.horizons_days:
            if _has_unobserved_tenth(scope, values, float(horizon)):
                found.append(
                    f"In at least one tenth of the {name} {scope.where} nobody is observed for "
                    f"{format_days(float(horizon))}: no weight stands in for them, so that all numbers by then may be "
                    "biased. If follow-up ends at a fixed age or date, name it, as in censoring: {age: 80y}."
                )
    return found


def _has_unobserved_tenth(scope: Comparison, values: Floats, horizon_days: float) -> bool:
    inside = scope.followed(horizon_days) & ~np.isnan(values)
    if inside.sum() < FEWEST_ROWS:
        return False
    tenth = quantile_groups(values[inside], TENTHS)
    duration, event = scope.duration_days[inside], (scope.cause[inside] > 0).astype(np.int64)
    for number in np.unique(tenth):
        here = tenth == number
        if not RiskSets.count(duration[here], event[here], 1, None).reaches([horizon_days])[0]:
            return True
    return False
