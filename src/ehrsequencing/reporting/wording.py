"""How metrics, durations, differences and counts are put into words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.reporting.disclosure.small_counts import exact


@dataclass(frozen=True)
class _Metric:
    """How a metric is printed: `better` is +1, -1, or 0 where neither more nor less is better."""

    name: str
    better: int
    digits: int
    meaning: str
    part: str = "accuracy"
    scale: float = 1.0  # what it is multiplied by before it is printed


_CALIBRATION = {
    "oe": _Metric("O/E", 0, 2, "events observed for each event expected; 1 is right, above 1 the risks are too low"),
    "intercept": _Metric("intercept", 0, 2, "shift of the log odds that would put the risks right; 0 is right"),
    "slope": _Metric("slope", 0, 2, "calibration slope; 1 is right, below 1 the risks are too extreme"),
    "ici": _Metric("ICI", -1, 1, "mean distance between predicted and observed risk; lower is better", scale=100),
    "ici_null": _Metric("chance", 0, 1, "what the ICI of right risks stays under 95 times in 100", scale=100),
    "e50": _Metric("E50", -1, 1, "median distance between predicted and observed risk", scale=100),
    "e90": _Metric("E90", -1, 1, "distance that 90% of the subjects stay under", scale=100),
    "ks": _Metric("KS", -1, 1, "largest gap between events expected and observed up to some risk", scale=100),
    "ks_p": _Metric("p (KS)", 0, 3, "how often right risks would show so large a gap; small speaks against the risks"),
}  # fmt: skip
METRICS = {
    "c": _Metric("C", 1, 3, "of two subjects, how often the one with the earlier event was given the higher risk"),
    "auc": _Metric("AUC", 1, 3, "how often a subject with the event by the horizon was given more risk than others"),
    "ipa": _Metric("IPA", 1, 3, "share of the prediction error removed, against giving everyone the same average risk"),
    "brier": _Metric("Brier", -1, 4, "mean squared error of the predicted risk; lower is better"),
    "ibs": _Metric("IBS", -1, 4, "Brier score averaged over time; lower is better"),
    "nll": _Metric("NLL", -1, 4, "negative log-likelihood per prediction; lower is better"),
    **{name: replace(metric, part="calibration") for name, metric in _CALIBRATION.items()},
}  # fmt: skip
RIGHT = {"oe": 1.0, "slope": 1.0, "intercept": 0.0}  # what the metric is where the risks mean what they say
MARGIN = 0.02  # a difference in C, AUC or IPA that would matter
ANY = "any cause"


def duration(days: float) -> str:
    """Days in words.

    >>> duration(365.25), duration(730.5), duration(30.0), duration(0.25), duration(1234.0)
    ('1 year', '2 years', '30 days', '6 hours', '3.4 years')
    """
    years = days / DAYS_PER_YEAR
    if years >= 2 or (years >= 1 and years % 0.5 == 0):
        amount, unit = f"{round(years, 1):g}", "year"
    elif 0 < days < 1:
        amount, unit = f"{round(days * 24, 1):g}", "hour"
    else:
        amount, unit = f"{round(days, 1):g}", "day"
    return f"{amount} {unit}" + ("" if amount == "1" else "s")


def from_landmark(days: float | None) -> str:
    """Where the clock of a prediction starts."""
    if days is None:
        return "all prediction times together"
    return "at the index" if days == 0 else f"{duration(days)} after the index"


def listed(words: Iterable[str], last: str = "and") -> str:
    """Words as in a sentence: `a, b and c`."""
    *most, final = list(words)
    return f"{', '.join(most)} {last} {final}" if most else final


def verdict(gap: Mapping[str, Any], metric: str) -> str:
    """What the interval of "ours less theirs" allows one to say.

    >>> verdict({"value": .03, "low": .01, "high": .05}, "c"), verdict({"value": .0, "low": -.01, "high": .01}, "c")
    ('better than', 'level with')
    >>> verdict({"value": .03, "low": -.01, "high": .07}, "c")
    'no better than'
    >>> verdict({"value": .01, "low": .005, "high": .02}, "brier")
    'WORSE than'
    >>> verdict({"value": .3, "low": None, "high": None, "reason": "too few events"}, "c")
    'not compared (too few events) with'
    """
    low, high = gap["low"], gap["high"]
    if gap.get("reason"):
        return f"not compared ({gap['reason']}) with"
    if low is None or high is None:
        return "not compared by interval with"
    low, high = (low, high) if METRICS[metric].better > 0 else (-high, -low)
    if low > 0:
        return "better than"
    if high < 0:
        return "WORSE than"
    return "level with" if max(-low, high) <= MARGIN and metric not in ("brier", "nll") else "no better than"


def said(gap: Mapping[str, Any], metric: str) -> str:
    """The verdict without its object: `better`, `level`, `no better`."""
    return verdict(gap, metric).removesuffix(" than").removesuffix(" with")


def difference(gap: Mapping[str, Any], metric: str) -> str:
    """A difference with its sign and interval."""
    digits = METRICS[metric].digits
    if gap["low"] is None or gap["high"] is None:
        return f"difference {gap['value']:+.{digits}f}"
    return f"difference {gap['value']:+.{digits}f}, 95% interval {gap['low']:+.{digits}f} to {gap['high']:+.{digits}f}"


def size(people: str) -> str:
    """`n = 312` or `n ≥11`, on one line."""
    return f"n\u00a0=\u00a0{people}" if exact(people) else f"n\u00a0{people}"
