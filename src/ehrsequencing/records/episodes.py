"""Episodes of care: which ends and starts of stays are none to a task, since the person moved or was still there.

Imports mark such stays (`STAY_MARKS` of `events.py`), and codes of a discharge may say it themselves. The stays keep
their rows: visits, tokens and features do not change.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import (
    CONTINUED,
    MOVED,
    OPEN,
    STATIC,
    TRANSFERRED,
    OfCodes,
    opens_run,
)
from ehrsequencing.records.visits import Record, count_at_or_before, next_of

TERMS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("terms.toml").read_text("utf-8"))
_END = "//END"  # what imports write behind the code of a stay that ends


def _partner(code: str) -> tuple[str, bool] | None:
    """The code that is none at the instant of this one, and whether the stay is closed by nobody; None for others."""
    for mark, ending, closes in (
        (OPEN, _END, True),
        (TRANSFERRED, _END, True),
        (MOVED, _END, False),
        (CONTINUED, "", False),
    ):
        if code.startswith(mark):
            return code.removeprefix(mark) + ending, closes
    if any(re.fullmatch(pattern, code, re.IGNORECASE) for pattern in TERMS["stays"].values()):
        return code, True
    return None


_partners = OfCodes(
    lambda codes: {code: found for code in codes if (found := _partner(code)) is not None}
)


@dataclass(frozen=True)
class Episodes:
    """What a shard says of its stays, for one task."""

    hidden: Bools  # (n,) ends and starts inside an episode of care
    left: Ints  # (m,) rows from which on nobody knows how the stay went on, where the task asks for it
    begun: Ints  # (k,) rows at which a stay begins that may be closed so

    def until(self, record: Record, owner: Ints, moment: Ints) -> Ints:
        """(I,) when the follow-up of each index ends because nobody knows how its stay went on; `NEVER` elsewhere."""
        subject, time_us = record.subject, record.events.time_us
        out = next_of(subject[self.left], time_us[self.left], owner, moment)[1]
        last = []
        for rows in (self.left, self.begun):
            count, first = count_at_or_before(subject[rows], time_us[rows], owner, moment)
            times = np.append(time_us[rows], STATIC)
            last.append(np.where(count > 0, times[first + count - 1], STATIC))
        is_inside = (last[0] != STATIC) & (last[1] <= last[0])
        return np.where(is_inside, last[0], out)


def find_episodes(record: Record, causes: Sequence[CodeMatcher]) -> Episodes | None:
    """The episodes of a shard for the causes of a task; None where no stay is marked."""
    events = record.events
    # a code of a discharge that the task names by itself counts as it stands
    named = {pattern for matcher in causes for pattern in matcher.patterns}
    partners = {code: p for code, p in _partners(events.codes).items() if code not in named}
    if not partners:
        return None
    place = {code: number for number, code in enumerate(events.codes)}
    partner, closes, begins = (np.full(len(place), value) for value in (-1, False, False))
    for code, (other, is_closing) in partners.items():
        partner[place[code]] = place.get(other, -1)
        closes[place[code]] = is_closing and any(matcher(other) for matcher in causes)
        if is_closing and other.removesuffix(_END) in place and other != code:
            begins[place[other.removesuffix(_END)]] = True
    moment = np.cumsum(opens_run(events.subject_id, events.time_us)) * len(place)
    beside = partner[events.code]
    hidden = np.isin(moment + events.code, (moment + beside)[beside >= 0])
    timed = events.time_us != STATIC
    left, begun = (np.flatnonzero(chosen[events.code] & timed) for chosen in (closes, begins))
    return Episodes(hidden & timed, left, begun)
