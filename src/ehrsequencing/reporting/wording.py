"""Formatting: numbers, intervals, durations, lists, counts and metrics as short pieces of text.

The words of the metrics are in their records (`metrics/`), whole sentences in the templates.
"""

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.records.check import needed_events

MINUS = "\N{MINUS SIGN}"
Show = str | Callable[[float], str]  # how a number is printed: a format, or a function


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
    ('better', 'level')
    >>> verdict({"value": .03, "low": -.01, "high": .07}, "c")
    'not distinguishable'
    >>> verdict({"value": .01, "low": .005, "high": .02}, "brier")
    'WORSE'
    >>> verdict({"value": .3, "low": None, "high": None, "reason": "too few events"}, "c")
    'not compared (too few events)'
    """
    low, high = gap["low"], gap["high"]
    if gap.get("reason"):
        return f"not compared ({gap['reason']})"
    if low is None or high is None:
        return "not compared (no interval)"
    from ehrsequencing.metrics.registry import METRICS  # which load scipy, and a list needs none

    low, high = (low, high) if METRICS[metric].better > 0 else (-high, -low)
    if low > 0:
        return "better"
    if high < 0:
        return "WORSE"
    margin = METRICS[metric].margin
    return "level" if margin is not None and max(-low, high) <= margin else "not distinguishable"


# of settings, commands and task files
_OF_AUTHORS = re.compile(r"\behrseq\b|[a-z_]\.[a-z_]|\w[=]|\{\w")


def for_readers(text: str) -> str:
    """The sentences of a warning that name no setting and no command; the details have the others.

    >>> for_readers("Risks are too high. List it, as in competing: {death: MEDS_DEATH}.")
    'Risks are too high.'
    """
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
    return " ".join(one for one in sentences if not _OF_AUTHORS.search(one))


def size(people: str) -> str:
    """A count on one line: `n = 310`, or `n <11`."""
    return f"n\u00a0=\u00a0{people}" if people[:1].isdigit() else f"n\u00a0{people}"


# ------------------------------------------------------------------------------------------------------------ numbers


def number(value: float, form: str) -> str:
    """A number by a format, with a real minus: every number of the pages comes from here.

    >>> number(-0.0204, ".2f"), number(0.3, "+.1f"), number(-0.0004, "+.3f")
    ('−0.02', '+0.3', '0.000')
    """
    text = f"{value:{form}}"
    return re.sub(r"^-(?=[0.]+%?$)", "", text).replace("-", MINUS)


def percent(value: float) -> str:
    """A risk in percent with two digits, as the explorer prints it.

    >>> percent(0.0251), percent(0.1234), percent(0.998), percent(0.00004)
    ('2.5%', '12%', '>99%', '<0.01%')
    """
    scaled = 100 * value
    if 99 < scaled < 100:
        return ">99%"
    if 0 < scaled < 0.01:
        return "<0.01%"
    return f"{scaled:.0f}%" if scaled >= 9.95 else f"{scaled:.2g}%"


def percent_mark(value: float) -> str:
    """A round percentage beside an axis: `12.5%`."""
    return f"{plain(100 * value)}%"


def plain(value: float) -> str:
    """A number without trailing zeros."""
    return number(value, ".6g")


def with_interval(value: float | None, low: float | None, high: float | None, show: Show) -> str:
    """A value with its interval, each printed by a format or a function.

    >>> with_interval(0.861, 0.85, 0.88, ".2f"), with_interval(0.861, None, None, ".1%"), with_interval(None, 0, 1, "")
    ('0.86 (0.85 to 0.88)', '86.1%', 'undefined')
    """
    if value is None:
        return "undefined"
    middle = number(value, show) if isinstance(show, str) else show(value)
    around = interval(low, high, show)
    return f"{middle} ({around})" if around else middle


def interval(low: float | None, high: float | None, show: Show) -> str:
    """`0.85 to 0.88`; empty where there is no interval."""
    if low is None or high is None:
        return ""
    ends = (number(end, show) if isinstance(show, str) else show(end) for end in (low, high))
    return " to ".join(ends)


def rounded(value: float, sign: str = "") -> str:
    """A number in prose: two significant digits, at most four after the point.

    >>> rounded(0.8612), rounded(0.0204), rounded(-0.2, "+"), rounded(12.3), rounded(0.0)
    ('0.86', '0.020', '−0.20', '12', '0.0')
    """
    size = math.floor(math.log10(abs(value))) if value else 0
    return number(value, f"{sign}.{min(max(1 - size, 0), 4)}f")


# ---------------------------------------------------------------------------------------------------------- templates


@cache
def environment(*rooms: str) -> Environment:
    """The templates, compiled once, with the filters that they format numbers with; what they print is escaped.

    Templates of further rooms extend those of reporting.
    """
    loaders = [PackageLoader(f"ehrsequencing.{room}") for room in (*rooms, "reporting")]
    made = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        duration=duration,
        landmark=from_landmark,
        listed=listed,
        percent=percent,
        rounded=rounded,
        size=size,
        for_readers=for_readers,
        number=number,
        prose_percent=lambda value: f"{rounded(100 * value)}%",
        whole_percent="{:.0%}".format,
        per_100=lambda value: f"{100 * value:.0f}",
    )
    made.globals.update(needed_events=needed_events, interval=interval, with_interval=with_interval)
    return made


def hashed(script: str) -> str:
    """What a page's policy says of a script, or a style, that it may hold."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def json_text(value: object) -> Markup:
    """Data for a page's script, as JSON that no text in it can end."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
