"""Births, deaths and stays: what is outside of a life, the deaths that a data set leaves open, and episodes of care.

Deaths without a date, and deaths that life contradicts, get codes of their own; a task says what they mean.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import (
    BIRTH,
    BIRTH_NAMES,
    CONTINUED,
    DAY_US,
    DEATH,
    DOUBTFUL_DEATH,
    FOLLOW_UP,
    MOVED,
    NEVER,
    OPEN,
    SECOND_US,
    STATIC,
    TRANSFERRED,
    UNDATED_DEATH,
    Events,
    OfCodes,
    first_time,
    last_time,
    opens_run,
    within_life,
)
from ehrsequencing.records.visits import Record, count_at_or_before, is_dated, next_of

TERMS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("terms.toml").read_text("utf-8"))
DOUBTFUL = "doubtful_deaths.parquet"  # of a prepared set: subjects whose death is in doubt
DOUBT_DAYS = 60  # after a death, beyond which two days of presence make it doubtful
AGREE_DAYS = 7  # between a death and another source that agrees
MOST_UNDATED = (
    0.05  # share of the deaths that may be undated where a task does not say what they mean
)
_PRESENT = re.compile("|".join(TERMS["presence"].values()), re.IGNORECASE)
_STATED = re.compile(TERMS["deaths"]["stated"], re.IGNORECASE)
_stated = OfCodes(lambda codes: np.array([bool(_STATED.fullmatch(code)) for code in codes]))
# which codes mean that somebody is there: those of stays, whose ends imports name, and vital signs
_present = OfCodes(
    lambda codes: (
        np.array([bool(_PRESENT.fullmatch(code)) for code in codes])
        | np.isin([f"{code}//END" for code in codes], codes)
    )
)


def settle_deaths(events: Events, fixes: Counter[str]) -> Events:
    """Give deaths without a date, and deaths that their person outlived, a code of their own; see the module.

    Args:
        events: Sorted by subject and time.
        fixes: Counted on.
    """
    is_death = events.is_code(DEATH)
    if not is_death.any():
        return events
    events = _date(events, is_death, fixes)
    subject, time_us, n = events.subjects[1], events.time_us, len(events.starts)
    death_us = first_time(events, events.is_code(DEATH), subject, n)
    first_us, last_us = (bound[subject] for bound in filled_period(death_us))
    # a filled date yields to a stay of that year or month that ended by the death, and to life after it
    stated = _stated(events.codes)[events.code]
    inside = (first_us <= time_us) & (time_us <= last_us) & (death_us != STATIC)[subject]
    said_us = last_time(events, stated & inside, subject, n)
    new_us = np.where(said_us == STATIC, death_us, said_us)
    is_later = (new_us != STATIC)[subject] & (time_us // DAY_US > new_us[subject] // DAY_US)
    # rows with a clock that say that their person was there
    is_later &= _present(events.codes)[events.code] & ~is_dated(time_us)
    is_later &= ~events.is_code(DEATH)
    seen_us = last_time(events, is_later & inside, subject, n)
    new_us = np.where(seen_us == STATIC, new_us, seen_us)
    is_moved = new_us != death_us
    if not is_moved.any() and not is_later.any():
        return events
    fixes["filled_death"] += int(is_moved.sum())
    row_us = new_us[subject]
    is_later &= time_us > row_us + DOUBT_DAYS * DAY_US
    stated &= abs(time_us - row_us) <= AGREE_DAYS * DAY_US
    agrees = np.bincount(subject[stated], minlength=n) > 0
    later = np.flatnonzero(is_later)
    who = subject[later]
    days = who[opens_run(who, time_us[later] // DAY_US)]  # of presence
    doubtful = (np.bincount(days, minlength=n) > 1) & ~agrees
    fixes["doubtful_death"] += int(doubtful.sum())
    is_death = events.is_code(DEATH) & (events.time_us != STATIC)
    is_placed = is_death & is_moved[subject]
    events = _renamed(events, is_death & doubtful[subject], DOUBTFUL_DEATH)
    events = replace(events, time_us=np.where(is_placed, row_us, time_us))
    return events.take(np.lexsort((events.time_us, events.subject_id)))


def _date(events: Events, is_death: Bools, fixes: Counter[str]) -> Events:
    """Put deaths without a time at the last sign of life, and drop those of people whose death has one."""
    undated = is_death & (events.time_us == STATIC)
    if not undated.any():
        return events
    subject, n = events.subjects[1], len(events.starts)
    is_sign = ~is_death & ~np.isin(events.codes, (BIRTH, *FOLLOW_UP))[events.code]
    last_us = last_time(events, is_sign, subject, n)[subject]
    dated = np.bincount(subject[is_death & ~undated], minlength=n)[subject] > 0
    drop = undated & (dated | (last_us == STATIC))
    fixes["undated_death"] += int((undated & ~drop).sum())
    events = replace(events, time_us=np.where(undated & ~drop, last_us, events.time_us))
    events = _renamed(events, undated & ~drop, UNDATED_DEATH).take(~drop)
    return events.take(np.lexsort((events.time_us, events.subject_id)))


def filled_period(time_us: Ints) -> tuple[Ints, Ints]:
    """(n,) first and last second of the year or month that a filled date means: 1 January, 31 December, a 15th.

    Elsewhere both are the time.
    """
    is_date = is_dated(time_us)
    day = np.where(is_date, time_us // DAY_US, 1).astype("datetime64[D]")
    month, year = day.astype("datetime64[M]"), day.astype("datetime64[Y]")
    start, stop = (one.astype("datetime64[D]") for one in (year, year + 1))
    is_year = is_date & ((day == start) | (day == stop - 1))
    is_month = is_date & (day - month.astype("datetime64[D]") == np.timedelta64(14, "D"))
    first = np.where(is_year, start, month.astype("datetime64[D]")).astype(np.int64)
    last = np.where(is_year, stop, (month + 1).astype("datetime64[D]")).astype(np.int64)
    is_filled = is_year | is_month
    return (
        np.where(is_filled, first * DAY_US, time_us),
        np.where(is_filled, last * DAY_US - SECOND_US, time_us),
    )


def _renamed(events: Events, chosen: Bools, name: str) -> Events:
    """The events, some of them with another code."""
    if not chosen.any():
        return events
    codes = events.codes if name in events.codes else (*events.codes, name)
    code = np.where(chosen, codes.index(name), events.code).astype(np.int32)
    return replace(events, codes=codes, code=code)


def keep_lifetimes(
    events: Events, path: Path, fixes: Counter[str], ends: CodeMatcher, no_ends: CodeMatcher | None
) -> Events:
    """Refuse two births; drop impossible births and deaths, rows outside of a life, and who has only static rows."""
    time_us, (subjects, row) = events.time_us, events.subjects
    n = len(subjects)
    timed, is_birth, is_death = time_us != STATIC, events.is_code(BIRTH), events.is_code(DEATH)
    birth_us = first_time(events, is_birth, row, n)
    if np.any(is_birth & timed & (time_us != birth_us[row])):
        raise EhrseqError(
            "a subject has two births",
            where=str(path),
            fix=f"keep one {BIRTH} per subject; {', '.join(BIRTH_NAMES)} count as births, too",
        )
    # looked at first, since a wrong birth or death would drop everything else
    other_us = last_time(events, ~is_birth, row, n)
    late_birth = is_birth & ((other_us != STATIC) & (birth_us > other_us))[row]
    early_death = is_death & timed & (other_us >= birth_us)[row] & (time_us < birth_us[row])
    is_sound = ~late_birth & ~early_death
    birth_us = first_time(events, is_birth & is_sound, row, n)[row]
    death_us = first_time(events, is_death & is_sound, row, n)[row]
    # a date is at the start or, after an import, at the last second of its day
    dated = is_dated(time_us)
    inside_us = within_life(time_us, dated, birth_us, death_us)
    fixes["life_day"] += int((inside_us != time_us).sum())
    time_us, events = inside_us, replace(events, time_us=inside_us)
    before = is_sound & timed & (time_us < birth_us)
    after = is_sound & timed & (death_us != STATIC) & (time_us > death_us)
    is_end = after & ends.mask(events.codes)[events.code]
    if no_ends is not None:  # an outcome after a death is none at the death either
        is_end &= ~no_ends.mask(events.codes)[events.code]
    if is_end.any():  # who has one after their death is not without it
        events = replace(events, time_us=np.where(is_end, death_us, time_us))
        after &= ~is_end
    is_sound &= ~before & ~after
    static_only = is_sound & ~(np.bincount(row[is_sound & timed], minlength=n) > 0)[row]
    for name, chosen in {
        "late_birth": late_birth,
        "early_death": early_death,
        "before_birth": before,
        "after_death": after,
        "static_value": ~timed & ~np.isnan(events.value),
    }.items():
        fixes[name] += int(chosen.sum())
    fixes["static_only"] += len(np.unique(row[static_only]))
    is_sound &= ~static_only
    return events if is_sound.all() else events.take(is_sound)


def deaths_of(record: Record, task: TaskConfig) -> tuple[Record, Ints | None]:
    """A record whose deaths are those that a task counts.

    Returns:
        The record, and (S,) where a death without a date ends the follow-up; None where it ends nobody's.
    """
    events, rules = record.events, task.deaths
    counted = {UNDATED_DEATH: rules.undated != "censor", DOUBTFUL_DEATH: rules.doubtful == "keep"}
    chosen = np.isin(events.codes, [code for code in counted if counted[code]])[events.code]
    end_us = None
    if not counted[UNDATED_DEATH] and UNDATED_DEATH in events.codes:
        is_end = events.is_code(UNDATED_DEATH)
        end_us = first_time(events, is_end, record.subject, len(record.subject_id))
        end_us = np.where(end_us == STATIC, NEVER, end_us)
    if chosen.any():
        record = replace(record, events=_renamed(events, chosen, DEATH))
    return record, end_us


def refuse_undated(task: TaskConfig, counts: Mapping[str, int], bounds: str) -> None:
    """Refuse a task on deaths of which many have no date, unless it says what they mean.

    Args:
        task: On deaths.
        counts: Its deaths.
        bounds: What they may mean, in words.

    Raises:
        EhrseqError: With both bounds.
    """
    undated, dated = counts["undated_deaths"], counts["dated_deaths"]
    if task.deaths.undated is None and undated > MOST_UNDATED * (undated + dated):
        raise EhrseqError(
            f"{undated:,} people are known to be dead without a date, and {dated:,} deaths have one: {bounds}",
            where=f"task {task.name}",
            fix="say which in the task, as in deaths: {undated: at_last_sign} or deaths: {undated: censor}",
        )


# ---- episodes of care: ends and starts of stays that are none, since the person moved or was still there ----
# Imports mark such stays (`STAY_MARKS` of `events.py`), and codes of a discharge may say it themselves. The stays keep
# their rows: visits, tokens and features do not change.
_END = "//END"  # what imports write behind the code of a stay that ends


def _find_partners(codes: tuple[str, ...]) -> dict[str, tuple[str, bool]]:
    """Code → the code that is none at the instant of this one, and whether the stay is closed by nobody."""
    out = dict[str, tuple[str, bool]]()
    said = re.compile("|".join(TERMS["stays"].values()), re.IGNORECASE)
    for code in codes:
        if said.fullmatch(code):
            out[code] = code, True
        for mark, ending, closes in (
            (OPEN, _END, True),
            (TRANSFERRED, _END, True),
            (MOVED, _END, False),
            (CONTINUED, "", False),
        ):
            if code.startswith(mark):
                out[code] = code.removeprefix(mark) + ending, closes
    return out


_partners = OfCodes(_find_partners)


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
