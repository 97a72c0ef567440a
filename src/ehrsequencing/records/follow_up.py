"""The end of follow-up is only a claim, so it is held against the records.

Is it the last event of most people without the event, does it lie years after their last row, do only deaths go on
until it, is it still to come, and of whom is it not known?
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.codes import PROVISIONAL, CodeMatcher, code_type
from ehrsequencing.records.cohort import CohortBuilder, CohortRows
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    DEATH,
    DOUBTFUL_DEATH,
    NEVER,
    STATIC,
    UNDATED_DEATH,
    Events,
    last_time,
    opens_run,
    parse_date_us,
)
from ehrsequencing.records.labels import designed_end
from ehrsequencing.records.meds import SPLITS, MedsReader
from ehrsequencing.records.survey import CodeCounts, DayCounts
from ehrsequencing.records.timelines import TaskRows, Timelines, open_arrays
from ehrsequencing.records.visits import Record

MOST = 0.5  # share of the subjects without the event from which on their rows speak against an end of follow-up
# days after somebody's last row, above which an end by design may have missed that they left
LONG_DAYS = 730


def count_ends(
    builder: CohortBuilder, record: Record, rows: CohortRows, dataset_end_us: int
) -> dict[str, int]:
    """Hold the end of each subject's follow-up against their own rows.

    Args:
        builder: Of the task.
        record: A shard.
        rows: Its prediction times.
        dataset_end_us: End of the data set.

    Returns:
        `without_event`: subjects with no event after their first prediction time. `end_on_last_day`: those of them
        whose code of censoring is on the day of their last other row. `end_years_after`: those of them whose end by
        design is more than `LONG_DAYS` after their last row.
    """
    events, codes = record.events, builder.censoring_codes
    first = np.flatnonzero(opens_run(rows.subject) & (rows.cause == 0))
    end_us = np.full(len(record.subject_id), NEVER)
    end_us[rows.subject[first]] = rows.prediction_us[first] + np.rint(
        rows.duration_days[first] * DAY_US
    )
    is_end = codes.events(events) if codes is not None else np.zeros(len(events), dtype=bool)
    code_us, other_us, row_us = (
        last_time(events, chosen, record.subject, len(end_us))
        for chosen in (
            is_end & (events.time_us == end_us[record.subject]),
            ~builder.marks.events(events) & ~events.is_code(DEATH),
            ~events.is_code(BIRTH),
        )
    )
    is_last = (code_us != STATIC) & (code_us // DAY_US == other_us // DAY_US)
    designed_us = designed_end(builder.task.censoring, record.birth_us, dataset_end_us)
    is_late = (designed_us == end_us) & (row_us < end_us - LONG_DAYS * DAY_US) & (end_us != NEVER)
    # per outcome: who has a confirmed code of it, and who codes that are not confirmed only
    unsure, sure = np.array([code.endswith(PROVISIONAL) for code in events.codes]), Counter[str]()
    for (name, patterns), matcher in zip(
        builder.task.outcome.items(), builder.cause_codes, strict=False
    ):
        if unsure.any():
            known = np.unique(record.subject[matcher.events(events)])
            is_other = CodeMatcher(patterns, parents=builder.parents).mask(events.codes) & unsure
            others = np.unique(record.subject[is_other[events.code]])
            sure[f"confirmed {name}"] = len(known)
            sure[f"unconfirmed {name}"] = len(np.setdiff1d(others, known))
    who = np.unique(rows.subject)
    deaths = {"dated": DEATH, "undated": UNDATED_DEATH, "doubtful": DOUBTFUL_DEATH}
    return {
        **{
            f"{name}_deaths": int(np.isin(who, record.subject[events.is_code(code)]).sum())
            for name, code in deaths.items()
        },
        **sure,
        "without_event": len(first),
        "end_on_last_day": int(is_last.sum()),
        "end_years_after": int(is_late.sum()),
    }


def undated_bounds(
    folder: Path, builder: CohortBuilder, undated: Sequence[tuple[Ints, Ints]]
) -> dict[str, float] | None:
    """The risk of a task's first cause if all deaths without a date were at the last sign of life, and if none were.

    Args:
        folder: Of the prepared set, with visits and prediction times.
        builder: Of the task.
        undated: Ids of people whose death has no date, and their last signs of life.

    Returns:
        None where death is no cause of the task, or nobody's follow-up ends so.
    """
    task, ids = builder.task, np.concatenate([one[0] for one in undated])
    deaths = [k for k, matcher in enumerate(builder.cause_codes, start=1) if matcher(DEATH)]
    if not deaths or not len(ids):
        return None
    order, last_us = np.argsort(ids), np.concatenate([one[1] for one in undated])
    ids, last_us = ids[order], last_us[order]
    horizon = task.main_horizon or task.horizons[0]
    days, cause, is_open = list[Floats](), list[Ints](), list[Bools]()
    for split in SPLITS:
        rows = open_arrays(TaskRows, folder / "tasks" / task.name / split)
        who = np.flatnonzero(np.diff(rows.row_offsets))
        first = rows.row_offsets[who]
        people = open_arrays(Timelines, folder / "visits" / split).subject_id[who]
        place = np.minimum(np.searchsorted(ids, people), len(ids) - 1)
        end_us = rows.prediction_us[first] + np.rint(rows.duration_days[first] * DAY_US)
        days.append(rows.duration_days[first])
        cause.append(rows.cause[first].astype(np.int64))
        is_end = (ids[place] == people) & (last_us[place] == end_us)
        is_open.append(is_end & np.isin(cause[-1], (0, deaths[0])))
    every, undecided = np.concatenate(days), np.concatenate(is_open)
    ends = np.concatenate(cause)
    if not undecided.any():
        return None
    order = np.argsort(every)
    time, first = np.unique(every[order], return_index=True)
    at_risk, risks = len(every) - first, list[float]()
    for answer in (0, deaths[0]):  # cumulative incidence of the first cause (Aalen–Johansen)
        kind = np.where(undecided, answer, ends)[order]
        ended = np.add.reduceat(kind > 0, first, dtype=float)
        had = np.add.reduceat(kind == 1, first, dtype=float)
        free = np.r_[1.0, np.cumprod(1 - ended / at_risk)[:-1]]
        risks.append(float((free * had / at_risk)[time <= horizon].sum()))
    return {
        "people": int(undecided.sum()),
        "horizon_days": horizon,
        "censored": risks[0],
        "died": risks[1],
    }


def bounds_text(task: TaskConfig, bounds: Mapping[str, float]) -> str:
    """Both risks in words."""
    name, horizon = task.causes[0], format_days(bounds["horizon_days"])
    return (
        f"the risk of {name} by {horizon} is {bounds['died']:.3f} if all died at their last sign of life, "
        f"{bounds['censored']:.3f} if all are censored there ({bounds['people']:,} people)"
    )


def count_beyond(reader: MedsReader, builders: Sequence[CohortBuilder]) -> dict[str, Counter[str]]:
    """Per task: subjects with an event of each cause after the data's end, which is dropped with the late rows."""
    counts = {builder.task.name: Counter[str]() for builder in builders}
    if reader.late is None:
        return counts
    whole = copy(reader)
    whole.late, whole.fixes, whole.causes = None, Counter(), {}
    for events in whole:
        late = events.time_us > reader.late.until_us
        for builder in builders:
            for name, matcher in zip(builder.task.causes, builder.cause_codes, strict=True):
                who = np.unique(events.subject_id[matcher.events(events) & late])
                counts[builder.task.name][f"beyond {name}"] += len(who)
    return counts


def compare_end(
    days: DayCounts, end_us: int, *, stated: str | None = None, today: str | None = None
) -> dict[str, int]:
    """Hold the end of a data set, or the date that a task states, against the calendar, and deaths against other rows.

    Args:
        days: Rows by day of the whole data set.
        end_us: The data's end.
        stated: The ISO date that takes its place.
        today: An ISO date; by default the day of this machine's clock.

    Returns:
        `beyond_today`: 1 where the median subject's last row lies after today, so that the records are not dated by the
        calendar (they are shifted, or simulated) and nothing is said of today; else 0. `days_after_today`: of the end;
        `rows_after_today`, and the `subjects_after_today` who have them. `deaths_alone`: days from the last other row
        to the last death, or to the end if that is earlier.
    """
    day = int(np.datetime64(today or "today", "D").astype(np.int64))
    end_day = (parse_date_us(stated) if stated else end_us) // DAY_US
    after = days.day > day
    is_beyond = bool(2 * days.leaving[after].sum() > days.leaving.sum())
    after &= not is_beyond
    last_death, last_other = (
        int(days.day[rows > 0].max(initial=days.day[0]))
        for rows in (days.deaths, days.rows - days.deaths)
    )
    return {
        "beyond_today": int(is_beyond),
        "days_after_today": 0 if is_beyond else max(0, end_day - day),
        "rows_after_today": int(days.rows[after].sum()),
        "subjects_after_today": int(days.leaving[after].sum()),
        "deaths_alone": min(last_death, end_day) - last_other,
    }


# ---- whether an outcome could happen: times in which its codes were not in use yet, or no more ----
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
