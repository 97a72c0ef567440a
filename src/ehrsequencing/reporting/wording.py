"""How metrics, durations, differences and counts are put into words."""

from collections.abc import Iterable, Mapping
from typing import Any

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.disclosure.small_counts import exact
from ehrsequencing.metrics.registry import METRICS as METRICS

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
    margin = METRICS[metric].margin
    return "level with" if margin is not None and max(-low, high) <= margin else "no better than"


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
