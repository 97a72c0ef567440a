"""Piecewise-constant cause-specific hazards of the baselines: their likelihood, and the risks that follow from them."""

from collections.abc import Sequence

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.hazards import horizon_nll
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRows


def nll_of_hazards(
    hazards: Floats, edges_days: Sequence[float], rows: TaskRows, chosen: Ints
) -> Floats:
    """NLL (r,) of hazards (r, E, K) at chosen prediction times, by the formula of the model (`horizon_nll`)."""
    return horizon_nll(
        hazards,
        edges_days,
        duration_days=rows.duration_days[chosen],
        cause=rows.cause[chosen],
        entry_days=rows.entry_days[chosen],
    )


def days_since_index(rows: TaskRows, chosen: Ints) -> Floats:
    """Days (r,) from the index to each chosen prediction time."""
    return (rows.prediction_us[chosen] - rows.index_us[chosen]) / DAY_US
