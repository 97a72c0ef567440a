"""Metrics of competing risks, weighted for censoring: plain arrays in, numbers out.

`plain` has the functions that a notebook calls, as in `ehrsequencing.metrics.concordance(time, cause, risk,
horizon=365.25)`; they are names of this package.

Reading order: `censoring` (Kaplan–Meier, Aalen–Johansen, the censoring distribution), `outcomes` (what a metric is, and
the rows that it takes), `discrimination`, `accuracy`, `calibration`, `registry` (all metrics), `bootstrap` (intervals
over subjects). `docs/metrics.md` has the definitions, the tie rules, and which library checks what.
"""

from typing import TYPE_CHECKING, Any

from ehrsequencing.core.elsewhere import missing_name, public

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


def __getattr__(name: str) -> Any:
    """A function, on first use: they load scipy, which `ehrseq predict` does not need."""
    if name not in __all__:
        raise missing_name(__name__, name, __all__)
    from ehrsequencing.metrics import plain

    globals()[name] = public(plain, name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
