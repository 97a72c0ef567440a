"""All metrics by their key. Evaluation, report and terminal read from here what to compute, compare and print.

Each record is beside its function. To add a metric, append its record to the `RECORDS` of one of these files, or
pass it to `register`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.accuracy import RECORDS as ACCURACY
from ehrsequencing.metrics.calibration import RECORDS as CALIBRATION
from ehrsequencing.metrics.discrimination import RECORDS as DISCRIMINATION
from ehrsequencing.metrics.outcomes import Metric, ScoredRows

__all__ = ["METRICS", "Metric", "in_columns", "register", "taken", "values"]

METRICS: dict[str, Metric] = {}


def register(metric: Metric) -> None:
    """Add a metric: from now on it is evaluated, compared and reported.

    Raises:
        EhrseqError: There is one by this key.
    """
    if metric.key in METRICS:
        raise EhrseqError(
            "is the key of another metric", where=metric.key, fix="choose another key"
        )
    METRICS[metric.key] = metric


for _record in (*DISCRIMINATION, *ACCURACY, *CALIBRATION):
    register(_record)


def taken(*where: str) -> list[Metric]:
    """The metrics that are taken there (see `Metric.taken`).

    >>> [metric.key for metric in taken("everywhere")][:2]
    ['c', 'auc']
    """
    return [metric for metric in METRICS.values() if metric.taken in where]


def in_columns(metrics: Iterable[Metric]) -> list[Metric]:
    """Metrics in the order of a table's columns: accuracy before calibration, each with its fixed scales first.

    >>> [metric.key for metric in in_columns(METRICS[key] for key in ("oe", "brier", "ipa"))]
    ['ipa', 'brier', 'oe']
    """
    return sorted(metrics, key=lambda metric: (metric.part, metric.margin is None))


def values(rows: ScoredRows, metrics: Iterable[Metric]) -> dict[str, Floats]:
    """Key → value of each metric that is made of scored rows; what they share is computed once.

    Example:
        >>> rows = ScoredRows.of([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], [[[0.9]], [[0.2]], [[0.6]], [[0.1]]], [3.5])
        >>> {key: round(float(value[0, 0]), 5) for key, value in values(rows, [METRICS["c"], METRICS["oe"]]).items()}
        {'c': 1.0, 'oe': 1.28205}
    """
    return {metric.key: rows.once(metric.of) for metric in metrics if metric.of is not None}
