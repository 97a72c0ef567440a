"""Journalled predictions and newer records → who was at risk when, and what happened by the task's own rules.

A person counts once, by the newest prediction that was journalled before a moment, from the first night on and until
the first event, a competing one, or the end of follow-up as the task declares it. "Last seen" is no such end: it looks
ahead, so that people stay at risk until the last closed day where the task declares none.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.hazards import exposure
from ehrsequencing.prediction.journal import Journal, Persons
from ehrsequencing.prediction.predict import Encoder
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortRows
from ehrsequencing.records.events import DAY_US, STATIC, Events, opens_run
from ehrsequencing.records.visits import Record, count_at_or_before, make_record


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
        indexes: How many of their journalled indexes are not in the records, and how many are.
    """

    journal: Journal
    version: str
    edges_days: Sequence[float]
    encoder: Encoder
    closed_us: int
    matchers: Sequence[CodeMatcher]
    found: int = 0
    indexes: Ints = field(default_factory=lambda: np.zeros(2, np.int64))

    def __post_init__(self) -> None:
        self.encoder.builder.task = declared(self.encoder.run.task)

    def spells(self, shards: Iterable[Events]) -> Iterator[Spells]:
        """The times at risk of the journalled people in each shard that has any."""
        run, builder = self.encoder.run, self.encoder.builder
        for events in shards:
            record = make_record(events, excluded=self.encoder.excluded, settings=run.study.visits)
            cohort = builder.build(record, dataset_end_us=self.closed_us)
            persons = self.journal.persons(record.subject_id)
            kept = self.journal.rows(self.version, persons)
            order = np.argsort(persons)
            who = order[np.searchsorted(persons[order], kept["person"])]
            self.found += len(np.unique(who))
            known = {*zip(cohort.index_owner.tolist(), cohort.index_us.tolist(), strict=True)}
            pairs = zip(who.tolist(), kept["index_time"].tolist(), strict=True)
            self.indexes += np.bincount([pair in known for pair in pairs], minlength=2)
            rows = cohort.rows.take(cohort.rows.prediction_us == cohort.rows.index_us)
            made_us = kept["prediction_time"]
            count, first = count_at_or_before(rows.subject, rows.index_us, who, made_us)
            chosen = np.lexsort((made_us, kept["known_time"], who))
            chosen = chosen[count[chosen] > 0]
            if len(chosen):
                kept = {name: values[chosen] for name, values in kept.items()}
                yield self._spells(record, rows.take((first + count - 1)[chosen]), kept)

    def _spells(self, record: Record, index: CohortRows, kept: dict[str, Any]) -> Spells:
        """The times at risk under some predictions, by person and time; `index` is the row of each one's index."""
        n_causes, n_bins = len(self.encoder.run.task.causes), len(self.edges_days) + 1
        end_us = index.prediction_us + np.rint(index.duration_days * DAY_US).astype(np.int64)
        # a death after the closed days ends a follow-up too
        cause = np.where(end_us < self.closed_us, index.cause, 0)
        end_us, known_us = np.minimum(end_us, self.closed_us), kept["known_time"]
        is_newest = np.append(opens_run(index.subject)[1:], True)
        newer_us = np.where(is_newest, self.closed_us, np.append(known_us[1:], 0))
        spells = Spells(
            person=kept["person"],
            prediction_us=kept["prediction_time"],
            known_us=known_us,
            next_us=np.minimum(newer_us, end_us),
            end_us=end_us,
            cause=cause,
            is_last=end_us <= newer_us,
            groups=self._groups(record, index.subject, known_us),
            hazard=kept["hazard"].reshape(-1, n_causes, n_bins),
        )
        # the first event of a person ends all that follows, also where outcomes recur
        had_us = np.full(len(record.subject_id), self.closed_us)
        ends = np.flatnonzero(spells.is_last & (cause > 0) & (known_us < end_us))
        np.minimum.at(had_us, index.subject[ends], end_us[ends])
        return spells.take(known_us < np.minimum(spells.next_us, had_us[index.subject]))

    def _groups(self, record: Record, who: Ints, known_us: Ints) -> Bools:
        """(n, G) who is everybody, and who has a code of a group by the first night; rows by person and night."""
        events, since_us = record.events, np.full(len(record.subject_id), STATIC)
        first = opens_run(who)
        since_us[who[first]] = known_us[first]
        out = np.ones((len(since_us), 1 + len(self.matchers)), dtype=bool)
        for place, matcher in enumerate(self.matchers, start=1):
            has = matcher.events(events) & (events.time_us <= since_us[record.subject])
            out[:, place] = np.bincount(record.subject[has], minlength=len(since_us)) > 0
        return out[who]

    def require_joined(self) -> None:
        """Refuse records of other people, or with dates that are shifted otherwise.

        Raises:
            EhrseqError: Nobody, or hardly any of their indexes, is in the records.
        """
        where, fix = str(self.journal.folder), "name the records that the nightly list is made of"
        if not self.found:
            raise EhrseqError(
                "none of its people is in these records: the ids have another form, or are others'",
                where=where,
                fix=fix,
            )
        if self.indexes[1] < self.indexes[0]:
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
