"""What may be said of people: how counts, shares and numbers are rounded, and which are hidden. `redaction.py` does it.

Counts are of people, never of rows: 1 to 10 become `<11`, 0 stays 0, and from 11 on a count is rounded to the nearest
5, but never below 15. A cell (landmark, cause, horizon) without 11 people with the event and 11 without it has no
metric. Rates and metrics have three decimals, the likelihood four; curves come from rounded counts.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

SMALLEST_COUNT = 11  # people behind a count or a code that is named: fewer may point at a person
TOO_FEW = "too few events"  # why a row has no interval, or no value


def enough_people(events: float, subjects: int) -> bool:
    """Whether at least 11 people had the event and 11 had not.

    >>> enough_people(11, 22), enough_people(10, 500), enough_people(490, 500)
    (True, False, False)
    """
    return min(events, subjects - events) >= SMALLEST_COUNT


def shareable_count(count: int | str | None) -> int | str | None:
    """A count of people that may be shared; one that is a text has been redacted already.

    >>> [shareable_count(n) for n in (0, 1, 10, 11, 17, 18, 1234, "<11", None)]
    [0, '<11', '<11', 15, 15, 20, 1235, '<11', None]
    """
    if count is None or isinstance(count, str) or count == 0:
        return count
    return nearest(count) or f"<{SMALLEST_COUNT}"


def nearest(count: float) -> int:
    """A count of 11 people or more as it may be shared; 0 for fewer."""
    return max(15, round(count + 2) // 5 * 5) if count >= SMALLEST_COUNT else 0


def stands_for(count: int) -> tuple[int, int]:
    """The least and the largest count that are shown as this one of 11 or more is.

    >>> stands_for(12), stands_for(101)
    ((11, 17), (98, 102))
    """
    shown = nearest(count)
    return (SMALLEST_COUNT if shown == nearest(SMALLEST_COUNT) else shown - 2), shown + 2


def count_text(count: int | str | None) -> str:
    """A count of people as text: `1,310`, `<11`.

    >>> count_text(1312), count_text(3), count_text(0)
    ('1,310', '<11', '0')
    """
    return f"{shown:,}" if isinstance(shown := shareable_count(count), int) else str(shown)


def shareable_rate(rate: float | None, people: int) -> float | None:
    """A share of people, from rounded counts; None where it would stand for 1 to 10 people, or for all but so few.

    >>> shareable_rate(0.1234, 300), shareable_rate(0.01, 300), shareable_rate(0.99, 300), shareable_rate(1.0, 300)
    (0.117, None, None, 1.0)
    """
    if rate is None or rate in (0.0, 1.0):
        return rate
    some = round(rate * people, 6)
    return round(nearest(some) / nearest(people), 3) if enough_people(some, people) else None


class Share(NamedTuple):
    """A share of people: as it may be shown, None where it is hidden, and between which limits it then lies.

    `least` is the share as it is shown; of a hidden one the least that it may be.
    """

    shown: float | None
    low: float
    high: float
    least: float

    @classmethod
    def of(cls, some: float, people: int) -> "Share":
        """Of some of n people.

        >>> Share.of(37, 300), Share.of(3, 300).high
        (Share(shown=0.117, low=0.117, high=0.117, least=0.117), 0.03333333333333333)
        >>> Share.of(12, 30)  # 11 to 17 people are told as 15
        Share(shown=0.5, low=0.367, high=0.5, least=0.5)
        """
        shown, few = shareable_rate(some / people, people), (SMALLEST_COUNT - 1) / nearest(people)
        if shown is not None and nearest(some) == nearest(SMALLEST_COUNT):  # the widest class
            return cls(shown, round(SMALLEST_COUNT / nearest(people), 3), shown, shown)
        if shown is not None:
            return cls(shown, shown, shown, shown)
        low, high = (0.0, few) if some < SMALLEST_COUNT else (1 - few, 1.0)
        return cls(None, low, high, low)

    def most_from(self, share: float) -> float:
        """How far it is from another share; of a hidden one, from that of nobody or of everybody."""
        if self.shown is not None:
            return abs(share - self.shown)
        return abs(share - (self.low if self.low == 0 else self.high))


def rounded(value: Any, digits: int = 3) -> Any:
    """Numbers with three decimals, likelihoods with four; days stay as they are."""
    if isinstance(value, Mapping):
        digits = 4 if value.get("metric") == "nll" else digits
        return {
            key: inner
            if str(key).endswith("days")
            else rounded(inner, 4 if str(key).endswith(("nll", "loss")) else digits)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [rounded(inner, digits) for inner in value]
    return round(value, digits) if isinstance(value, float) else value
