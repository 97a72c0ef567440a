"""Metrics of plain arrays as one mapping."""

from typing import Any

from ehrsequencing.core.arrays import Floats
from ehrsequencing.metrics.accuracy import null_brier
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.registry import taken, values


def metric_table(*outcome_and_risk: Any, **options: Any) -> dict[str, Floats]:
    """Arguments of `ScoredRows.of` → the registered metrics, and what the IPA is made of."""
    rows = ScoredRows.of(*outcome_and_risk, **options)
    parts = {"observed": rows.finish(rows.observed_risk)}
    return values(rows, taken("everywhere")) | {"null_brier": null_brier(rows)} | parts
