"""One subject's record as a run sees it: rows, visits and prediction times, before anything is encoded.

Explanations ask what the risk would be without a code. They must therefore start from the rows of the record and not
from tokens: a summary that a query carries, a code that stands for several others, and a repeated code all depend on
which rows there are.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, offsets
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import Moment, NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import NEVER, CohortBuilder, CohortRows
from ehrsequencing.records.encoding import age_years
from ehrsequencing.records.events import STATIC, Events
from ehrsequencing.records.visits import Record, make_record


@dataclass(frozen=True)
class SubjectRecord:
    """One subject's visits, with the prediction times of a run's task. Make it with `of` or `of_events`.

    A visit is known by its number within the record, from 0. `codes[v]` and `values[v]` have one entry for each row of
    visit v that the model may see, in the order of their times; codes are those of the data, not tokens.

    Attributes:
        record: The rows, grouped into visits.
        moments: The prediction times, in time order.
    """

    record: Record
    moments: CohortRows

    @classmethod
    def of(cls, run: Run, data: Path | str, subject: int) -> "SubjectRecord":
        """The record of a subject of a MEDS data set.

        Args:
            run: A trained run.
            data: The folder of the data set.
            subject: The `subject_id`.

        Raises:
            EhrseqError: The data cannot be used, there is no such subject, or it has no prediction time.
        """
        for found in subject_records(NewRecords(run, Path(data)), {subject}):
            return found
        fix = "name a subject_id of the data that ehrseq predict answers for"
        raise EhrseqError(
            "no such subject, or it has no prediction time", where="--subject", fix=fix
        )

    @classmethod
    def of_events(
        cls,
        run: Run,
        events: Events,
        *,
        parents: Mapping[str, list[str]] | None = None,
        as_of_us: int | None = None,
    ) -> "SubjectRecord":
        """The record of one subject from rows in memory.

        Args:
            run: A trained run.
            events: Checked rows of one subject, in time order.
            parents: Parents of each code, for `under:` patterns.
            as_of_us: Ask only at this moment; default: at every prediction time until the last row.

        Raises:
            EhrseqError: The rows are those of several subjects, or there is no prediction time.
        """
        if len(events.subjects[0]) != 1:
            raise EhrseqError(
                f"rows of {len(events.subjects[0])} subjects",
                where="events",
                fix="give the rows of one subject",
            )
        excluded = CodeMatcher(run.manifest["excluded"], parents=parents)
        record = make_record(events, excluded=excluded, settings=run.study.visits)
        builder = CohortBuilder(run.task, parents=parents)
        moments = builder.build(
            record, dataset_end_us=int(NEVER), labelled=False, as_of_us=as_of_us
        ).rows
        if as_of_us is None:
            moments = moments.take(moments.prediction_us <= events.time_us.max())
        if not len(moments):
            fix = "check the task's index and outcome with ehrseq check"
            raise EhrseqError("this subject has no prediction time", where="events", fix=fix)
        return cls(record, moments)

    # ---- what is in it -----------------------------------------------------------------------------------------------

    @property
    def subject_id(self) -> int:
        """The subject's id."""
        return int(self.record.subject_id[0])

    @property
    def n_visits(self) -> int:
        """Number of visits N, those after the last prediction time included."""
        return len(self.record.visits)

    @property
    def visit_us(self) -> Ints:
        """(N,) start of each visit."""
        return self.record.visits.start_us

    @property
    def visit_end_us(self) -> Ints:
        """(N,) end of each visit."""
        return self.record.visits.end_us

    @cached_property
    def visit_ages(self) -> Floats32:
        """(N,) age in years at the start of each visit, NaN where unknown."""
        return age_years(self.visit_us, np.repeat(self.record.birth_us, self.n_visits))[0]

    @property
    def prediction_us(self) -> Ints:
        """(R,) prediction times."""
        return self.moments.prediction_us

    @cached_property
    def prediction_ages(self) -> Floats32:
        """(R,) age in years at each prediction time, NaN where unknown."""
        return age_years(self.prediction_us, np.repeat(self.record.birth_us, len(self.moments)))[0]

    @property
    def visits_before(self) -> Ints:
        """(R,) how many visits had ended by each prediction time: visits 0 … `visits_before[r] − 1`."""
        return self.moments.visits_before

    @cached_property
    def event_bounds(self) -> Ints:
        """(N+1,) visit v owns the rows `record.visits.event[bounds[v]:bounds[v + 1]]`."""
        return offsets(self.record.visits.visit, self.n_visits)

    @cached_property
    def codes(self) -> tuple[tuple[str, ...], ...]:
        """The codes of each visit, one entry a row."""
        names, code = (
            self.record.events.codes,
            self.record.events.code[self.record.visits.event].tolist(),
        )
        bounds = self.event_bounds.tolist()
        return tuple(tuple(names[k] for k in code[a:b]) for a, b in itertools.pairwise(bounds))

    @cached_property
    def values(self) -> tuple[Floats, ...]:
        """The number of each row of each visit, NaN without one."""
        value = self.record.events.value[self.record.visits.event].astype(np.float64)
        return tuple(np.split(value, self.event_bounds[1:-1])) if self.n_visits else ()

    @cached_property
    def code_number(self) -> dict[str, int]:
        """The number, among `record.events.codes`, of each code that the subject has."""
        return {self.record.events.codes[k]: k for k in np.unique(self.record.events.code).tolist()}

    @property
    def static_rows(self) -> Bools:
        """(n,) which rows of the record have a code without a time that the model may see."""
        return np.asarray((self.record.events.time_us == STATIC) & ~self.record.excluded)

    @cached_property
    def static_codes(self) -> tuple[str, ...]:
        """Codes without a time."""
        rows = np.flatnonzero(self.static_rows)
        return tuple(
            dict.fromkeys(
                self.record.events.codes[k] for k in self.record.events.code[rows].tolist()
            )
        )

    def known_rows(self, row: int = -1) -> Bools:
        """(n,) which rows of the record are part of a visit and known at a prediction time: those stamped by then."""
        known = np.zeros(len(self.record.events), dtype=bool)
        known[self.record.visits.event] = True
        return np.asarray(known & (self.record.events.time_us <= self.prediction_us[row]))

    def known_codes(self, row: int = -1) -> tuple[str, ...]:
        """The distinct codes known at a prediction time, in the order of their first time."""
        codes = self.record.events.code[np.flatnonzero(self.known_rows(row))]
        return tuple(dict.fromkeys(self.record.events.codes[k] for k in codes.tolist()))

    def known_visits(self, row: int = -1) -> tuple[int, ...]:
        """The visits that had begun by a prediction time, by their numbers."""
        visits = self.record.visits
        is_known = self.known_rows(row)[visits.event]
        return tuple(np.unique(visits.visit[is_known]).tolist())


def subject_records(
    records: NewRecords, subjects: set[int] | None = None
) -> Iterator[SubjectRecord]:
    """The records of all subjects that have a prediction time, or of some of them, in the order of the data."""
    settings = records.run.study.visits
    for record, rows in records.prediction_times(Moment("all")):
        bounds = offsets(rows.subject, len(record.subject_id))
        starts = np.r_[record.events.starts, len(record.events)]
        for k, subject in enumerate(record.subject_id.tolist()):
            if bounds[k] == bounds[k + 1] or (subjects is not None and subject not in subjects):
                continue
            events = record.events.take(np.arange(starts[k], starts[k + 1]))
            own = rows.take(np.arange(bounds[k], bounds[k + 1]))
            alone = make_record(events, excluded=records.excluded, settings=settings)
            yield SubjectRecord(alone, replace(own, subject=np.zeros(len(own), dtype=np.int64)))
