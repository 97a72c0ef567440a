"""Whether an outcome could happen: times in which people were at risk and its codes were not in use yet, or no more."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.events import DAY_US, Events
from ehrsequencing.records.survey import CodeCounts

EXPECTED = (
    10  # events in a silent time, below which it may be chance: above, the chance is below e⁻¹⁰
)
_BINS, _SPREAD_DAYS, _NEAR_DAYS, _NAMED = 10, 180, 92, 3


class Silence(NamedTuple):
    """A time without a single event."""

    before: bool  # before the first event, else after the last
    day: float  # of that event, since 1970
    people: int  # at risk in it
    expected: float  # events, by the rates of the other time at the same time since the index


def silent_times(start: Floats, days: Floats, is_event: Bools) -> list[Silence]:
    """The times in which events are expected and none is there.

    Args:
        start: (n,) when each person's follow-up begins, in days since 1970.
        days: (n,) how long it goes on.
        is_event: (n,) whether it ends with the event.
    """
    # where all begin at about one time, dates are no calendar
    spread = np.diff(np.quantile(start, [0.1, 0.9]))[0] if len(start) else 0.0
    when = (start + days)[is_event]
    if len(when) < EXPECTED or spread < _SPREAD_DAYS:
        return []
    edges = np.unique(np.quantile(days, np.linspace(0, 1, _BINS + 1)[1:]))
    low = np.r_[0.0, edges[:-1]]

    def exposure(first: float, last: float) -> Floats:
        """(n, bins) days at risk between two days of the calendar, by the time since the index."""
        since = np.clip(first - start, 0, days)[:, None]
        until = np.clip(last - start, 0, days)[:, None]
        return np.clip(np.minimum(until, edges) - np.maximum(since, low), 0, None)

    events = np.histogram(days[is_event], np.r_[0.0, edges])[0]
    out = list[Silence]()
    for before, day in ((True, when.min()), (False, when.max())):
        silent, other = exposure(-np.inf, day), exposure(day, np.inf)
        if not before:
            silent, other = other, silent
        total = other.sum(axis=0)
        rate = np.divide(events, total, out=np.zeros(len(total)), where=total > 0)
        expected = float((silent.sum(axis=0) * rate).sum())
        if expected >= EXPECTED:
            out.append(Silence(before, float(day), int((silent.sum(axis=1) > 0).sum()), expected))
    return out


def codes_that_end(shards: Iterable[Events], day: float, patterns: Iterable[str]) -> list[str]:
    """Codes of like vocabularies whose last use is near a day, of enough people, those of most people first."""
    last, counts = dict[str, int](), CodeCounts()
    for events in shards:
        counts.add(events)
        latest = np.full(len(events.codes), np.iinfo(np.int64).min)
        np.maximum.at(latest, events.code, events.time_us)
        for code, time_us in zip(events.codes, latest.tolist(), strict=True):
            last[code] = max(last.get(code, time_us), time_us)
    kinds = {code_type(pattern)[:3] for pattern in patterns} - {""}
    ended = [
        code
        for code, time_us in last.items()
        if code_type(code)[:3] in kinds
        and abs(time_us / DAY_US - day) < _NEAR_DAYS
        and counts.subjects[code] >= SMALLEST_COUNT
    ]
    return sorted(ended, key=lambda code: -counts.subjects[code])[:_NAMED]


def silence_warning(name: str, silence: Silence, people: int, ended: list[str]) -> str:
    """What a silent time means for a task."""
    month = np.datetime64(int(silence.day), "D").astype("datetime64[M]")
    begins, side, then = (
        ("begins", "before", "later") if silence.before else ("ends", "after", "earlier")
    )
    like = f" Codes that end there: {', '.join(ended)}." if ended else ""
    return (
        f"The outcome {name} {begins} in {month}: {silence.people:,} of {people:,} people were at risk {side}, when "
        f"{silence.expected:,.0f} events would be expected at the {then} rate, and there is none. If its codes "
        f"were not in use, list those that were, or take an index and an end within the time of their use.{like}"
    )
