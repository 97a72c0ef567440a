"""Journalled predictions and newer records → who was at risk when, and what happened by the task's own rules.

A person counts once, by the newest prediction that was journalled before a moment, from the first night on and until
the first event, a competing one, or the end of follow-up as the task declares it. "Last seen" is no such end: it looks
ahead, so that people stay at risk until the last closed day where the task declares none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.journal import Journal, Persons
from ehrsequencing.prediction.predict import Encoder
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import DAY_US, STATIC, Events, opens_run
from ehrsequencing.records.hazards import exposure
from ehrsequencing.records.visits import Record, count_at_or_before, make_record

SAME_SHIFT = 0.5  # of the journalled indexes are in the records, or their dates are shifted


@dataclass(frozen=True)
class Spells:
    """Times at risk, each under one journalled prediction, ordered by person and time.

    Attributes:
        person: (n,) what the journal calls each person.
        prediction_us: (n,) when the prediction was made.
        known_us: (n,) when it was journalled, and the time at risk under it begins.
        next_us: (n,) when it ends: at a newer prediction, an event, or the end of follow-up.
        end_us: (n,) end of the person's follow-up under the prediction's index, whatever comes between.
        cause: (n,) of the event at `end_us`, 0 none.
        is_last: (n,) whether `next_us` is `end_us`.
        groups: (n, G) which groups the person is in; the first is everybody.
        hazard: (n, causes, bins) per day.
    """

    person: Persons
    prediction_us: Ints
    known_us: Ints
    next_us: Ints
    end_us: Ints
    cause: Ints
    is_last: Bools
    groups: Bools
    hazard: Floats

    def take(self, rows: Ints | Bools) -> "Spells":
        """Some of them."""
        return Spells(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    def observed(self, days: Ints, start_days: float, stop_days: float) -> Floats:
        """(D, G, E) first events of each day, at an age of the prediction from `start_days` to `stop_days`."""
        age = (self.next_us - self.prediction_us) / DAY_US
        day = self.next_us // DAY_US - (days[0] if len(days) else 0)
        counts = self.is_last & (self.cause > 0) & (age > start_days) & (age <= stop_days)
        out = np.zeros((len(days), self.groups.shape[1], self.hazard.shape[1]))
        for row in np.flatnonzero(counts & (day >= 0) & (day < len(days))):
            out[day[row], :, self.cause[row] - 1] += self.groups[row]
        return out

    def expected(self, days: Ints, edges_days: Sequence[float], start_days: float) -> Floats:
        """(D, G, E) what the hazards add up to on each day, from the age `start_days` to the grid's last edge."""
        out = np.zeros((len(days), self.groups.shape[1], self.hazard.shape[1]))
        first, last = (
            self.prediction_us + round(age * DAY_US) for age in (start_days, edges_days[-1])
        )
        begin, end = np.maximum(self.known_us, first), np.minimum(self.next_us, last)
        for place, day in enumerate(days.tolist()):
            low, high = np.maximum(begin, day * DAY_US), np.minimum(end, (day + 1) * DAY_US)
            rows = np.flatnonzero(low < high)
            ages = ((one[rows] - self.prediction_us[rows]) / DAY_US for one in (low, high))
            events = np.einsum("rek,rk->re", self.hazard[rows], exposure(edges_days, *ages))
            out[place] = self.groups[rows].astype(np.float64).T @ events
        return out


@dataclass
class Joiner:
    """Joins a journal with shards of newer records.

    Attributes:
        found: Journalled people who are in the records.
        indexes: Journalled predictions of them, and how many of their indexes are in the records.
    """

    journal: Journal
    version: str
    encoder: Encoder
    closed_us: int
    matchers: Sequence[CodeMatcher] = ()
    found: int = 0
    indexes: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.encoder.builder.task = declared(self.encoder.run.task)

    def spells(self, events: Events) -> Spells:
        """The times at risk of a shard's people."""
        run = self.encoder.run
        record = make_record(events, excluded=self.encoder.excluded, settings=run.study.visits)
        cohort = self.encoder.builder.build(record, dataset_end_us=self.closed_us)
        rows = cohort.rows.take(cohort.rows.prediction_us == cohort.rows.index_us)
        persons = self.journal.persons(record.subject_id)
        kept = self.journal.rows(self.version, persons)
        order = np.argsort(persons)
        who = order[np.searchsorted(persons[order], kept["person"])]
        self.found += len(np.unique(who))
        has = np.isin(
            who * np.int64(2**40) + kept["index_time"] // 2**20,
            cohort.index_owner * np.int64(2**40) + cohort.index_us // 2**20,
        )
        self.indexes = (self.indexes[0] + len(has), self.indexes[1] + int(has.sum()))
        keys = ("prediction_time", "known_time")
        count, first = count_at_or_before(rows.subject, rows.index_us, who, kept["prediction_time"])
        order = np.lexsort((*(kept[name] for name in keys), who))
        order = order[count[order] > 0]
        who, index = who[order], (first + count - 1)[order]
        prediction_us, known_us = (kept[name][order] for name in keys)
        end_us = rows.prediction_us + np.rint(rows.duration_days * DAY_US).astype(np.int64)
        # deaths after the data's end end a follow-up too: they are of days that are not closed
        is_event = (rows.cause > 0) & (end_us < self.closed_us)
        end_us, cause = (
            np.minimum(end_us, self.closed_us)[index],
            np.where(is_event, rows.cause, 0)[index],
        )
        opens = opens_run(who)
        newer_us = (
            np.where(np.append(opens[1:], True), self.closed_us, np.append(known_us[1:], 0))
            if len(who)
            else end_us
        )
        spells = Spells(
            persons[who],
            prediction_us,
            known_us,
            np.minimum(newer_us, end_us),
            end_us,
            cause,
            end_us <= newer_us,
            self._groups(record, who, known_us[np.flatnonzero(opens)] if len(who) else known_us),
            kept["hazard"][order].reshape(len(who), len(run.task.causes), -1),
        )
        # the first event of a person ends all that follows, also where outcomes recur
        had_us = np.full(len(record.subject_id), self.closed_us)
        ends = spells.is_last & (cause > 0) & (spells.known_us < end_us)
        np.minimum.at(had_us, who[ends], end_us[ends])
        return spells.take((spells.known_us < spells.next_us) & (spells.known_us < had_us[who]))

    def _groups(self, record: Record, who: Ints, first_us: Ints) -> Bools:
        """(n, G) who is everybody, and who has a code of a group by the first night; `first_us` is of each person."""
        events, subject = record.events, record.subject
        since_us = np.full(len(record.subject_id), STATIC)
        since_us[np.unique(who)] = first_us
        out = np.ones((len(record.subject_id), 1 + len(self.matchers)), dtype=bool)
        for place, matcher in enumerate(self.matchers, start=1):
            rows = np.flatnonzero(matcher.events(events) & (events.time_us <= since_us[subject]))
            out[:, place] = np.isin(np.arange(len(out)), subject[rows])
        return out[who]

    def require_joined(self) -> None:
        """Refuse records of other people, or with dates that are shifted otherwise.

        Raises:
            EhrseqError: Nobody, or hardly any of their indexes, is in the records.
        """
        rows, known = self.indexes
        where, fix = str(self.journal.folder), "name the records that the nightly list is made of"
        if not self.found:
            raise EhrseqError(
                "none of its people is in these records: the ids have another form, or are others'",
                where=where,
                fix=fix,
            )
        if known < SAME_SHIFT * rows:
            raise EhrseqError(
                "hardly any of its index times is in these records: their dates are shifted otherwise",
                where=where,
                fix=f"{fix}, and shift dates alike every night",
            )


def declared(task: TaskConfig) -> TaskConfig:
    """The task with a follow-up that ends as declared, or else on the last closed day; no blanking."""
    ends = task.censoring.model_copy(
        update={"date": None, "dataset_end": task.censoring.age is None}
    )
    return task.model_copy(update={"censoring": ends, "blanking": 0.0, "landmarks": (0.0,)})
