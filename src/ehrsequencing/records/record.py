"""`Record`: one shard's subjects between reading and encoding, with their visits."""

from dataclasses import dataclass

from ehrsequencing.config import VisitsConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import BIRTH, STATIC, Events, first_time
from ehrsequencing.records.visits import Visits, group_visits


@dataclass(frozen=True)
class Record:
    """A shard between reading and encoding."""

    events: Events  # the events (n,)
    subject_id: Ints  # (S,) int64
    subject: Ints  # (n,) subject row of each event
    birth_us: Ints  # (S,) int64, `STATIC` where unknown
    visits: Visits  # which events make which visits
    excluded: Bools  # (n,) events that make no token


def make_record(events: Events, *, excluded: CodeMatcher, settings: VisitsConfig) -> Record:
    """Group a shard's events into visits."""
    subject_id, subject = events.subjects
    skip = excluded.mask(events.codes)[events.code]
    visits = group_visits(events, subject, ~skip & (events.time_us != STATIC), settings=settings)
    birth_us = first_time(events, events.is_code(BIRTH), subject, len(subject_id))
    return Record(events, subject_id, subject, birth_us, visits, skip)
