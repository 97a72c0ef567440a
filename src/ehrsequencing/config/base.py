"""What all settings share: frozen, typed, strict about names; durations and lists as people write them."""

import math
import re
from datetime import datetime
from typing import Annotated, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

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


Days = Annotated[float, BeforeValidator(parse_days)]


class Settings(BaseModel):
    """Base of every section: immutable, and strict about names."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )


SettingsT = TypeVar("SettingsT", bound=BaseModel)


def as_list(value: object) -> object:
    """One text as a list of one."""
    return [value] if isinstance(value, str) else value


CodeList = Annotated[tuple[str, ...], BeforeValidator(as_list), Field(min_length=1)]


def check_zone(name: str) -> str:
    """Refuse what is no time zone, and return the name."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone such as Europe/Berlin or UTC") from error
    return name


TimeZone = Annotated[str, AfterValidator(check_zone)]


def check_date(text: str | None) -> None:
    """Refuse what is no ISO date, or no day of the calendar."""
    if text is None:
        return
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?", text, re.ASCII) is None:
            raise ValueError
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO date such as 2015-01-01") from None
