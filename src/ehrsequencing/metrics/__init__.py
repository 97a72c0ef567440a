"""Metrics of competing risks, weighted for censoring: plain arrays in, numbers out.

`plain` has the functions that a notebook calls, as in `ehrsequencing.metrics.concordance(time, cause, risk,
horizon=365.25)`; they are names of this package.

Reading order: `censoring` (Kaplan–Meier, Aalen–Johansen, the censoring distribution), `outcomes` (the rows that every
metric takes), `metric` (what a metric is), `discrimination`, `accuracy`, `calibration`, `registry` (all metrics),
`decision`, `bootstrap` (intervals over subjects). `docs/metrics.md` has the definitions, the tie rules, and which
library checks what.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PLAIN = (
    "auc",
    "brier",
    "calibration_intercept",
    "calibration_slope",
    "concordance",
    "cumulative_incidence",
    "ici",
    "ipa",
    "net_benefit",
    "observed_over_expected",
)
__all__ = [
    "auc",
    "brier",
    "calibration_intercept",
    "calibration_slope",
    "concordance",
    "cumulative_incidence",
    "ici",
    "ipa",
    "net_benefit",
    "observed_over_expected",
]

if TYPE_CHECKING:
    from ehrsequencing.metrics.plain import (
        auc,
        brier,
        calibration_intercept,
        calibration_slope,
        concordance,
        cumulative_incidence,
        ici,
        ipa,
        net_benefit,
        observed_over_expected,
    )


def __getattr__(name: str) -> Any:
    if name in _PLAIN:
        return getattr(import_module("ehrsequencing.metrics.plain"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
