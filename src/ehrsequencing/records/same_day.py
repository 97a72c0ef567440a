"""Rows that are dated by the day, beside an index whose hour is known: which came first?

A time of 00:00:00, or the last second of a day, where imports put such rows, counts as a date.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.events import BIRTH, DAY_US, NEVER, SECOND_US, STATIC, Events


def is_dated(time_us: Ints) -> Bools:
    """(n,) whether a time is a date, as far as it can be told."""
    real = (time_us != STATIC) & (time_us != NEVER)
    return np.asarray(real & np.isin(time_us % DAY_US, (0, DAY_US - SECOND_US)))


def is_undecided(event_us: Ints, moment_us: Ints) -> Bools:
    """(n,) whether an event is dated by the day of an index with a clock."""
    same = (event_us // DAY_US == moment_us // DAY_US) & (event_us != NEVER)
    return np.asarray(same & is_dated(event_us) & ~is_dated(moment_us))


def counted_from(event_us: Ints, rule: str | None) -> Ints:
    """From when on an event is history: with `before` a dated one from the start of its day."""
    if rule != "before":
        return event_us
    return np.where(is_dated(event_us), event_us // DAY_US * DAY_US, event_us)


def index_of(moment_us: Ints, rule: str | None) -> Ints:
    """The index: with `exclude` the end of its day, so that nobody's first day counts."""
    return moment_us // DAY_US * DAY_US + DAY_US - 1 if rule == "exclude" else moment_us


def study_of_days(study: StudyConfig, tasks: Sequence[TaskConfig]) -> StudyConfig:
    """The study with dates at the end of their day, where the tasks say that what is dated comes after an index.

    Raises:
        EhrseqError: One task says so, and another does not: they share visits.
    """
    rules = {task.same_day == "after" for task in tasks}
    if len(rules) > 1:
        raise EhrseqError(
            "same_day: after of one task moves the dates of all records to the end of their day",
            where=", ".join(task.name for task in tasks),
            fix="prepare tasks with and without it apart",
        )
    if True not in rules:
        return study
    return study.model_copy(update={"visits": study.visits.model_copy(update={"dates": "last"})})


def with_dates_last(events: Events) -> Events:
    """The same with every midnight at the end of its day, but births: nothing dated is known before."""
    moved: NDArray[np.bool_] = (events.time_us % DAY_US == 0) & (events.time_us != STATIC)
    moved &= ~events.is_code(BIRTH)
    time_us = events.time_us + moved * (DAY_US - SECOND_US)
    order = np.lexsort((time_us, events.subject_id))
    return replace(events, time_us=time_us).take(order)
