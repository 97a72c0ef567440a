"""A run and records → risk curves.

A `RUN` folder is all that prediction needs. New records go the way that training records went, shard by shard, but
nothing about the end of follow-up is assumed to be known: only where the data ends, after which there is no answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ehrsequencing.config import DataConfig, DriftConfig
from ehrsequencing.core.arrays import Floats32
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, refuse_overlap
from ehrsequencing.core.outputs import PREDICTIONS, refuse_existing
from ehrsequencing.prediction.drift import MUCH_UNKNOWN, compare
from ehrsequencing.prediction.journal import Journal
from ehrsequencing.prediction.prediction_file import PredictionWriter, Risks, require_suffix
from ehrsequencing.prediction.reference import check_reference
from ehrsequencing.prediction.run import Run, horizons_of
from ehrsequencing.predictors.predictor import Predictor, member_band
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.cohort import Cohort, CohortBuilder, CohortRows
from ehrsequencing.records.encoding import Moment as Moment, encode_rows, encode_timelines
from ehrsequencing.records.events import DAY_US, NEVER, Events
from ehrsequencing.records.meds import MedsReader, find_shards
from ehrsequencing.records.outcomes import find_outcomes, renumbered
from ehrsequencing.records.people import People
from ehrsequencing.records.survey import Part, Progress, Steps, survey
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.visits import Record, make_record

GRACE_DAYS = 31  # a day asked for may lie so long after the last row, where nobody tells when the records were taken
MOST_UNKNOWN = 0.9  # share of rows with a code that training did not know: refused


@dataclass(frozen=True)
class PredictionTimes:
    """Events with their visits and prediction times, before they are encoded."""

    record: Record  # the events with their visits
    cohort: Cohort  # every prediction time, and which step of the cohort each subject reached
    rows: CohortRows  # the prediction times that are asked about and have an answer
    late: int  # prediction times after the data's end


class Encoder:
    """Events → visits and prediction times, encoded the way the run's training data was.

    Args:
        run: The run.
        parents: Of the data's codes.

    Attributes:
        excluded: Codes that make no token.
        builder: Applies the run's task.
    """

    def __init__(self, run: Run, parents: Mapping[str, list[str]]) -> None:
        self.run = run
        self.excluded = CodeMatcher(run.manifest["excluded"], parents=parents)
        self.builder = CohortBuilder(run.task, parents=parents)

    def prediction_times(self, events: Events, moment: Moment, *, end_us: int) -> PredictionTimes:
        """Visits and prediction times of sorted events; none after `end_us`, unless a date is asked for."""
        record = make_record(events, excluded=self.excluded, settings=self.run.study.visits)
        cohort = self.builder.build(
            record, dataset_end_us=int(NEVER), labelled=False, as_of_us=moment.as_of_us
        )
        known = (cohort.rows.prediction_us <= end_us) | (moment.as_of_us is not None)
        rows = cohort.rows.take(known)
        chosen = rows.take(moment.chosen(rows, end_us))
        return PredictionTimes(record, cohort, chosen, late=int((~known).sum()))

    def encode(self, record: Record, rows: CohortRows) -> TaskRecords:
        """Encode visits and prediction times."""
        timelines, _ = encode_timelines(record, self.run.vocabulary)
        encoded = encode_rows(record, rows, self.run.vocabulary)
        if self.builder.outcomes is None:
            return TaskRecords(timelines, encoded)
        number = {code: k for k, code in enumerate(self.run.outcomes)}
        numbers = np.array([number.get(code, -1) for code in record.events.codes], np.int32)
        found = find_outcomes(record, self.builder.outcomes)
        return TaskRecords(timelines, encoded, renumbered(found, numbers))


@dataclass
class NewRecords:
    """Records to predict for: surveyed in one pass, encoded in another.

    Attributes:
        only: The subjects to answer for; None: all.
        subjects: How many there are in the shards encoded so far.
        moments: How many prediction times they have, late ones included.
        late: Moments after the data's end, which have no answer.
        answered: How many subjects have an answer; whoever answers counts them.
        people: What was counted of all people; of `only` nobody is.
        made_by: The run's name and fingerprint, and the digest of the rows.
    """

    run: Run
    data: Path
    facts: DataConfig | None = None
    progress: Progress | None = None
    only: frozenset[int] | None = None
    limits: DriftConfig = field(default_factory=DriftConfig)
    subjects: int = field(default=0, init=False)
    moments: int = field(default=0, init=False)
    late: int = field(default=0, init=False)
    answered: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.reader = MedsReader(self.data, self.facts, self.run.study)
        self.parents = read_parents(self.data)
        self.encoder = Encoder(self.run, self.parents)
        self.excluded, self.builder = self.encoder.excluded, self.encoder.builder
        self._tick = Steps(self.reader, len(self.reader.shards), self.progress)
        nobody = partial(People, self.run.vocabulary, self.excluded, self.run.study.visits)
        surveyed = survey(self.reader, nobody if self.only is None else Part, self._tick)
        self.people = surveyed.part if isinstance(surveyed.part, People) else nobody()
        self.end_us = surveyed.end_us
        self.made_by = {
            "run": self.run.folder.name,
            "fingerprint": self.run.fingerprint,
            "data": digest(surveyed.days.content),
        }

    def prediction_times(self, moment: Moment) -> Iterator[tuple[Record, CohortRows]]:
        """Visits and prediction times that have an answer, shard by shard."""
        for events in self.reader:
            if self.only is not None:
                wanted = np.fromiter(self.only, np.int64, len(self.only))
                events = events.take(np.isin(events.subject_id, wanted))
            moments = self.encoder.prediction_times(events, moment, end_us=self.end_us)
            self.subjects += len(moments.record.subject_id)
            self.moments += len(moments.cohort.rows)
            self.late += moments.late
            yield moments.record, moments.rows
            self._tick()

    def now_us(self, moment: Moment) -> int:
        """The date that is asked about, else the data's end."""
        return self.end_us if moment.as_of_us is None else moment.as_of_us

    def answerable(
        self, moment: Moment, *, force: bool = False, say: Callable[[str], None] = lambda _: None
    ) -> Iterator[TaskRecords]:
        """Visits and prediction times to answer for, shard by shard; says what a reader of the answers should know.

        Raises:
            EhrseqError: Nobody was `answered`, the date lies after the data's end, or (unless `force`) the run knows
                hardly any code.
        """
        # whoever has no row by a day after the data's end may be silent, or not be recorded any more
        declared = self.reader.declared_us is not None
        until_us = self.end_us + (0 if declared else GRACE_DAYS * DAY_US)
        if moment.as_of_us is not None and moment.as_of_us > until_us:
            what = "lies after data.extracted"
            fix = "ask for a day until then, or correct data.extracted"
            if not declared:
                what = f"lies more than {GRACE_DAYS} days after the data's last row"
                fix = "state when the records were extracted, as in data.extracted=2026-03-01, "
                fix += "or ask for an earlier day"
            raise EhrseqError(what, where=f"--at {moment.at}", fix=fix)
        say(self.require_known(force=force))
        for record, rows in self.prediction_times(moment):
            yield self.encoder.encode(record, rows)
        if not self.answered:
            raise no_prediction_times(self)
        for text in unanswered(self, answered=self.answered):
            say(text)

    def require_known(self, *, force: bool) -> str:
        """Refuse records of which the run knows hardly anything, unless `force`; else say how they differ.

        The same text warns where the run does not give its reference risks here.
        """
        if not self.people.total:
            return "no row has a code that makes a token"
        rows, unknown = self.people.all_rows.tolist()
        share = unknown / rows
        what = f"{share:.1%} of the rows have a code that the run does not know"
        # one person's many rows do not decide
        of_subject = self.people.unknown_share / self.people.total
        if min(share, of_subject) > MOST_UNKNOWN and not force:
            fix = "map its codes to those of the run's training data; --force predicts anyway"
            raise EhrseqError(what, where=str(self.data), fix=fix)
        drift = compare(self.people, self.run, parents=self.parents, limits=self.limits)
        unlike = [
            *check_reference(self.run),
            *([drift.verdict] if drift.is_alarm or drift.notes else ()),
        ]
        if share > MUCH_UNKNOWN:
            unlike.insert(0, f"{what}: it cannot use them")
        return f"warning: {'; '.join(unlike)}" if unlike else what


@dataclass(frozen=True)
class Request:
    """What is asked of a run about new records, and how.

    Attributes:
        at: `all` prediction times, each subject's `last`, at each subject's newest `index` or at `every-index`, or a
            date ("as of that day").
        since: Only people whose index is so recent, as in 14d or 2026-03-01 (`Moment`).
        horizons_days: Default: the task's horizons.
        facts: What the data set's own files do not tell.
        limits: Beyond which people differ from the training people so much that it is said.
        force: Whether to answer even if hardly any code of the data is known to the run.
        overwrite: Whether predictions that are there are replaced.
        journal: Where the predictions are kept too.
        progress: Called with (shards done, shards to do).
        say: Called with what a reader of the risks should know.
    """

    at: str = "all"
    since: str | None = None
    horizons_days: Sequence[float] | None = None
    facts: DataConfig | None = None
    limits: DriftConfig = field(default_factory=DriftConfig)
    force: bool = False
    overwrite: bool = False
    journal: Journal | None = None
    progress: Progress | None = None
    say: Callable[[str], None] = lambda _: None

    def refuse_early(self, out: Path, data: Path) -> Moment:
        """Refuse what is wrong before a model is loaded.

        Raises:
            EhrseqError: The output may not be written, the data is no data set, or `at` is no moment.
        """
        refuse_existing(out, PREDICTIONS, overwrite=self.overwrite)
        require_suffix(out)
        find_shards(data)
        refuse_overlap(out, data)
        return Moment(self.at, self.since)


def predict(
    run: Run | Path,
    data: Path,
    out: Path,
    request: Request | None = None,
    *,
    each: Callable[[Risks], None] = lambda _: None,
    before_end: Callable[[NewRecords], None] = lambda _: None,
) -> int:
    """Write the risks for any MEDS data, seen or not: those that `evaluate` evaluates.

    Args:
        run: A trained run, or its folder.
        data: A MEDS data set.
        out: The file to write: `.parquet`, `.csv` or `.csv.gz`.
        request: At which moments, by which horizons.
        each: Called with the risks of each shard.
        before_end: Called when all risks are written; where it raises an error, there will be no file.

    Returns:
        The number of prediction times.

    Raises:
        EhrseqError: Run or data cannot be used, or nobody has a prediction time.
    """
    request = request or Request()
    moment = request.refuse_early(out, data)
    run = run if isinstance(run, Run) else Run(run)
    predictor = RiskPredictor(run, request.horizons_days)
    records = NewRecords(run, data, request.facts, request.progress, limits=request.limits)
    file = PredictionWriter(
        predictor.causes,
        predictor.horizons_days,
        predictor.start_days,
        records.now_us(moment),
        is_banded=predictor.of_run is not None and len(predictor.of_run.members) > 0,
    )
    count, takers = 0, [file.write, each]
    with ExitStack() as stack:
        stack.enter_context(file.opened(out, records.made_by, overwrite=request.overwrite))
        if request.journal is not None:  # its file appears before the list
            predictor.keeps_hazards = True
            takers.append(stack.enter_context(request.journal.writer(run, records.end_us)))
        for risks in predictor.answers(records, moment, force=request.force, say=request.say):
            count += len(risks.subject_id)
            for take in takers:
                take(risks)
        before_end(records)
    return count


class RiskPredictor:
    """What predicts for a run, the network or the blend, and for which horizons.

    Args:
        run: The run.
        horizons_days: Default: the task's horizons.

    Attributes:
        of_run: What answers, and its members, whose risks make the band; None for the `visit` head.
        causes: Names of the causes that it answers for.
        horizons_days: One None for the `visit` head.
        start_days: Risks are given no event for so long after the prediction time.
        keeps_hazards: Whether answers hold the hazards too.

    Raises:
        EhrseqError: A horizon that the run cannot answer for.
    """

    def __init__(self, run: Run, horizons_days: Sequence[float] | None = None) -> None:
        self.run = run
        self.horizons_days = horizons_of(run, horizons_days)
        self.of_run: Predictor | None = None if run.is_visit_head else run.predictor
        self.causes = run.task.causes
        self.start_days = run.start_days
        self.keeps_hazards = False

    def risk(self, records: TaskRecords) -> Floats32:
        """(R, causes, horizons) of every row; NaN where the `visit` head has no answer."""
        if self.of_run is None:
            return self.run.visit_hazards(records)
        days = [day for day in self.horizons_days if day is not None]
        return self.of_run.risk(records, days, start_days=self.start_days).astype(np.float32)

    def answer(
        self, records: TaskRecords, moment: Moment | None = None, now_us: int | None = None
    ) -> Risks:
        """The risks of the rows that have an answer, and the band of the members; `now_us` is the date asked about."""
        rows, kind = records.rows, (moment or Moment()).kind(records.rows)
        low = high = hazards = of_members = None
        if self.of_run is None or not self.of_run.members:
            risk = self.risk(records)
        else:
            days, start = [day for day in self.horizons_days if day is not None], self.start_days
            whole, of_members = self.of_run.risk_of_members(records, days, start_days=start)
            risk = whole.astype(np.float32)
        chosen = np.flatnonzero(~np.isnan(risk[:, 0, 0]))
        if self.keeps_hazards and self.of_run is not None:
            hazards = self.of_run.all_hazards(records)[chosen].astype(np.float32)
        if of_members is not None:
            low, high = (band[chosen] for band in member_band(of_members.astype(np.float32)))
            # Hazards were averaged, not risks.
            low, high = np.minimum(low, risk[chosen]), np.maximum(high, risk[chosen])
        return Risks(
            records.subject_id[chosen],
            rows.prediction_us[chosen],
            risk[chosen],
            low,
            high,
            kind=kind[chosen],
            index_us=rows.index_us[chosen],
            now_us=now_us,
            hazards=hazards,
        )

    def answers(
        self,
        records: NewRecords,
        moment: Moment,
        *,
        force: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Iterator[Risks]:
        """The risks at the prediction times of new records, shard by shard; errors as of `NewRecords.answerable`."""
        for part in records.answerable(moment, force=force, say=say):
            risks = self.answer(part, moment, records.now_us(moment))
            records.answered += len(np.unique(risks.subject_id))
            yield risks


def no_prediction_times(records: NewRecords) -> EhrseqError:
    """The error of records without a prediction time that has an answer."""
    if records.late and records.late == records.moments:
        what = f"all {records.late:,} prediction times lie after the data's end"
        fix = "state when the records were extracted, as in data.extracted=2026-03-01, if they reach further"
        return EhrseqError(what, where=str(records.data), fix=fix)
    fix = "check the index codes of the task against the data with ehrseq check, and the day of --at if you gave one"
    return EhrseqError("nobody has a prediction time", where=str(records.data), fix=fix)


def unanswered(records: NewRecords, *, answered: int) -> Iterator[str]:
    """What was not answered, and why."""
    if records.reader.late is not None:
        yield f"left out: {records.reader.late.text}; they do not move the data's end"
    if records.late:
        what = f"{records.late:,} of {records.moments:,} prediction times lie after the data's end and are left out"
        how = (
            ""
            if records.reader.declared_us is not None
            else "; data.extracted=DATE sets an end after the last row"
        )
        yield what + how
    if answered < records.subjects:
        without = records.subjects - answered
        yield f"{without:,} of {records.subjects:,} subjects have no prediction: see ehrseq check with the run's task"
