"""Durations as people write them, `90d` or `1y`, and as numbers of days."""

import math
import re
from collections.abc import Sequence
from numbers import Real

from ehrsequencing.core.errors import EhrseqError

DAYS_PER_YEAR = 365.25
# a duration beyond this is a slip, and could overflow a clock of microseconds
_LONGEST_YEARS = 10_000
UNIT_DAYS = {"s": 1 / 86_400, "min": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "y": DAYS_PER_YEAR}


def parse_days(text: object) -> float:
    """Turn a duration such as `48h`, `30d`, `2w` or `1y` into days (`1y` = 365.25 d).

    >>> parse_days("48h"), parse_days("1y")
    (2.0, 365.25)
    """
    if isinstance(text, float):  # already days: what a recorded configuration holds
        days = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(min|h|d|w|y)\s*", str(text))
        if match is None:
            raise ValueError(
                f"{text!r} is not a duration: write a number and a unit (min, h, d, w, y), as in 30d"
            )
        days = float(match[1]) * UNIT_DAYS[match[2]]
    if math.isnan(days) or days < 0:
        fix = "it must be a number that is not negative, as in 30d"
        raise ValueError(f"{text!r} is not a duration: {fix}")
    if days > _LONGEST_YEARS * DAYS_PER_YEAR:
        raise ValueError(f"{text!r} is longer than {_LONGEST_YEARS:,} years")
    return days


def format_days(days: float) -> str:
    """Write days as a person would: `1y`, `90d`, `48h`.

    >>> format_days(365.25), format_days(90.0), format_days(0.25)
    ('1y', '90d', '6h')
    """
    if days >= DAYS_PER_YEAR and (days / DAYS_PER_YEAR) % 0.5 == 0:
        return f"{days / DAYS_PER_YEAR:g}y"
    return f"{days * 24:g}h" if 0 < days < 1 else f"{days:g}d"


def days_of(
    horizons: Sequence[str | float] | str | float, *, where: str = "horizons"
) -> list[float]:
    """Horizons as days: `90d`, `1y`, or numbers of days.

    >>> days_of(["90d", "1y", 30])
    [90.0, 365.25, 30.0]

    Raises:
        EhrseqError: One is no duration.
    """
    listed = [horizons] if isinstance(horizons, str | float | Real) else list(horizons)
    try:
        return [parse_days(one if isinstance(one, str) else float(one)) for one in listed]
    except ValueError as error:
        raise EhrseqError(str(error), where=where, fix="write it as 90d or 1y") from error


def day_of(horizon: str | float, *, where: str = "horizon") -> float:
    """One horizon as days.

    Raises:
        EhrseqError: It is no duration, or there are several.
    """
    if not isinstance(horizon, str | Real):
        fix = "ask for one at a time, as in '1y' or 365.25"
        raise EhrseqError(f"expected one, got {type(horizon).__name__}", where=where, fix=fix)
    return days_of(horizon, where=where)[0]
