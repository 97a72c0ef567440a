"""Rows of one subject → risk curves, by the same steps as `ehrseq predict`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ehrsequencing.core.arrays import Floats32
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain import Question, SubjectRecord, deletion
from ehrsequencing.prediction.drift import MUCH_UNKNOWN, is_group
from ehrsequencing.prediction.predict import (
    Encoder,
    Moment,
    PredictionTimes,
    RiskPredictor,
)
from ehrsequencing.prediction.prediction_file import Risks
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.attrition import cohort_steps
from ehrsequencing.records.codes import read_descriptions, read_parents
from ehrsequencing.records.events import DEATH, DOUBTFUL_DEATH, NEVER, STATIC, UNDATED_DEATH, Events
from ehrsequencing.records.meds import fix
from ehrsequencing.records.parquet_rows import events_of_table
from ehrsequencing.records.people import MEASURES, PEOPLE, People
from ehrsequencing.serve.schemas import (
    ExplainResponse,
    Moved,
    Prediction,
    Problem,
    RecordFacts,
    SubjectRequest,
    Unlike,
)

REQUEST = Path("request")  # what messages call the rows
_NONE = np.zeros(0, np.int64)
NO_RISKS = Risks(_NONE, _NONE, np.zeros((0, 0, 0), np.float32))


@dataclass(frozen=True)
class Limits:
    """All limits of the server. With the defaults a network of the default size needs at most 2 s of CPU and 100 MB.

    Attributes:
        body_bytes: Size of a request's body.
        held_bytes: Size of all bodies together that arrive or wait; one alone may be larger.
        objects: JSON objects of a body, which cost up to 40 µs each; a FHIR resource has about nine, a row is one.
        values: JSON values of a body.
        rows: Rows of a record.
        visits: Visits of a record.
        explained: Rows of a record that is explained: each of its codes is removed once.
        numbers: Risks in one answer: prediction times × causes × horizons.
        waiting: Requests that may wait for the model; further ones are told to come back, and their bodies not read.
        connections: Open connections.
        seconds: How long a request may take to arrive, wait for its answer, and then read it: each as long.
        idle_seconds: How long a connection may take to send the whole head of a request.
        drain_seconds: How long open requests have to end when the server stops.
        stale_days: A card gives no risk where the record's newest row is older.
    """

    body_bytes: int = 16 * 2**20
    held_bytes: int = 64 * 2**20
    objects: int = 40_000
    values: int = 400_000
    rows: int = 20_000
    visits: int = 5_000
    explained: int = 100
    numbers: int = 200_000
    waiting: int = 64
    connections: int = 1024
    seconds: float = 30.0
    idle_seconds: int = 5
    drain_seconds: int = 5
    stale_days: float = 365.25


@dataclass(frozen=True)
class Answer:
    """Risks of one subject, and what became of its rows."""

    horizons_days: tuple[float | None, ...]
    risks: Risks
    why_none: str | None  # where there is no prediction
    record: RecordFacts

    @property
    def warnings(self) -> list[str]:
        """What a reader of the risks should know."""
        share = self.record.unknown_rows / max(self.record.tokens, 1)
        what = f"{share:.0%} of the rows have a code that the run does not know: it cannot use them"
        return [what] if share > MUCH_UNKNOWN else []

    def curves(self, causes: Sequence[str]) -> list[Prediction]:
        """The risks as they are sent."""
        risks = self.risks

        def by_cause(values: Floats32 | None, row: int) -> dict[str, list[float]] | None:
            return None if values is None else dict(zip(causes, values[row].tolist(), strict=True))

        return [
            Prediction(
                time=str(np.datetime64(us, "us")).removesuffix(".000000"),
                risk=by_cause(risks.risk, row) or {},
                low=by_cause(risks.low, row),
                high=by_cause(risks.high, row),
            )
            for row, us in enumerate(risks.prediction_us.tolist())
        ]


class Predictor:
    """A run that answers questions about single subjects. For one thread only.

    Args:
        run: The run; its model is loaded now.
        data: A data set whose `codes.parquet` names the parents of codes; needed where the task has `under:` patterns.
        limits: Of one question.

    Raises:
        EhrseqError: The run needs parents of codes and there is no data set.
    """

    def __init__(
        self,
        run: Run,
        data: Path | None = None,
        *,
        limits: Limits | None = None,
    ) -> None:
        self.run, self.limits = run, limits or Limits()
        self.parents = {} if data is None else read_parents(data)
        self.descriptions = {} if data is None else read_descriptions(data)
        self.asked = RiskPredictor(run)
        self._steps = cohort_steps(run.task)
        visits = run.study.visits
        self.encounter_column = visits.column if visits.by == "encounter" else None
        task = run.task
        named = [*(task.index.code or ()), *(task.censoring.code or ()), *run.manifest["excluded"]]
        named += [pattern for patterns in task.patterns.values() for pattern in patterns]
        if task.eligibility is not None:
            named.append(task.eligibility.model_dump_json())
        if data is None and any("under:" in pattern for pattern in named):
            raise EhrseqError(
                "the task has patterns with under:, which need the parents of codes",
                where=str(run.folder),
                fix="name the data set: ehrseq serve RUN DATA",
            )

    def facts(self) -> dict[str, object]:
        """What an answer says of the run."""
        days = [day for day in self.asked.horizons_days if day is not None]
        return {
            "task": self.run.task.name,
            "run": self.run.fingerprint,
            "causes": list(self.asked.causes),
            "horizons_days": days or None,
        }

    def events(self, rows: pa.Table, log: Counter[str], most: int) -> Events:
        """Rows of one subject, at most so many, as events: checked, fixed and sorted as those of a data set are."""
        if len(rows) > most:
            raise Problem(
                413,
                f"more than {most:,} rows",
                where="rows",
                fix="leave out rows that the model does not read",
            )
        subject = pa.array(np.zeros(len(rows), dtype=np.int64))
        table = rows.append_column("subject_id", subject)
        events = events_of_table(table, REQUEST, log, encounter_column=self.encounter_column)
        values = self.run.study.values
        return fix(events, REQUEST, log, declared_us=None, values=values)

    def answer(
        self,
        rows: pa.Table,
        at: str = "last",
        *,
        horizons_days: Sequence[float] | None = None,
        until_us: int | None = None,
    ) -> Answer:
        """The risks of one subject.

        Args:
            rows: The subject's rows, with the columns of MEDS but `subject_id`.
            at: At which prediction times, as of `Moment`.
            horizons_days: Default: the task's horizons.
            until_us: No later prediction time is answered; default: the record's last row.

        Raises:
            Problem: The record or the answer is too large, or no row has a time.
            EhrseqError: Rows or horizons cannot be used.
        """
        predictor = self.asked
        if horizons_days is not None:
            predictor = RiskPredictor(self.run, horizons_days)
        with self._read(rows, at, until_us) as (encoder, times_, has_died, facts):
            limits, times = self.limits, 0 if has_died else len(times_.rows)
            reached = int(times_.cohort.reached[0])
            why = None if times else "there is no prediction time then"
            if has_died:
                why = "the patient has died"
            elif why and times_.late:
                why = "every prediction time lies after the record's end"
            elif why and reached < len(self._steps):
                why = f"the subject is not one {self._steps[reached]}"
            if times * len(predictor.causes) * len(predictor.horizons_days) > limits.numbers:
                raise Problem(
                    413,
                    f"more than {limits.numbers:,} risks",
                    where="at",
                    fix="ask at last, or by fewer horizons",
                )
            return Answer(
                predictor.horizons_days,
                predictor.answer(encoder.encode(times_.record, times_.rows)) if times else NO_RISKS,
                why,
                facts,
            )

    def explain(
        self,
        rows: pa.Table,
        at: str = "last",
        *,
        cause: str | None = None,
        horizon_days: float | None = None,
        until_us: int | None = None,
    ) -> ExplainResponse:
        """What each code adds to one risk at the newest of the prediction times, and how unlike the record is.

        Args:
            rows: As in `answer`.
            at: As in `answer`.
            cause: Default: the task's first outcome.
            horizon_days: Default: the run's main horizon.
            until_us: As in `answer`.

        Raises:
            Problem: As in `answer`.
            EhrseqError: The run has no such cause or horizon.
        """
        question = Question.for_run(self.run, cause=cause, horizon_days=horizon_days)
        most, risk, moved = self.limits.explained, None, list[Moved]()
        with self._read(rows, at, until_us, most=most) as (encoder, times, has_died, facts):
            if len(times.rows) and not has_died:
                record = SubjectRecord(times.record, times.rows)
                found = deletion(question, record, kinds=("code",))
                risk = found.risk
                moved = [Moved(code=e.code, change=e.effect) for e in found.effects if e.code]
            people = People(self.run.vocabulary, encoder.excluded, self.run.study.visits)
            people.add(times.record.events)
            return ExplainResponse(
                cause=self.run.task.causes[question.cause],
                horizon_days=question.horizon_days,
                risk=risk,
                moved=moved,
                record=facts,
                unlike=[Unlike(code=code, why=why) for code, why in unusual(people, self.run)],
            )

    @contextmanager
    def _read(
        self, rows: pa.Table, at: str, until_us: int | None, *, most: int | None = None
    ) -> Iterator[tuple[Encoder, PredictionTimes, bool, RecordFacts]]:
        """A subject's visits and prediction times, whether its death is known, and what became of its rows.

        What is met of its codes is forgotten at the end.
        """
        try:
            moment, log, limits = Moment(at), Counter[str](), self.limits
            events = self.events(rows, log, most or limits.rows)
            timed = events.time_us[events.time_us != STATIC]
            if not len(timed):
                raise Problem(
                    422,
                    "no row has a time, once the rows were fixed",
                    where="rows",
                    fix="give at least one row with a time",
                )
            encoder = Encoder(self.run, self.parents)  # a new one, which has met no code yet
            end_us = int(timed.max()) if until_us is None else until_us
            times = encoder.prediction_times(events, moment, end_us=end_us)
            asked_us = NEVER if moment.as_of_us is None else moment.as_of_us
            # here a death that the record outlives is believed: nobody acts on a risk of the dead
            deaths = (DEATH, UNDATED_DEATH, DOUBTFUL_DEATH)
            is_death = np.any([events.is_code(code) for code in deaths], axis=0)
            has_died = bool((events.time_us[is_death] <= asked_us).any())
            if len(times.record.visits) > limits.visits:
                raise Problem(
                    413,
                    f"more than {limits.visits:,} visits",
                    where="rows",
                    fix="send the newest visits",
                )
            record, words = times.record, self.run.vocabulary
            makes_token = ~encoder.excluded.mask(record.events.codes)
            is_unknown = makes_token & (words.ids(record.events.codes) < words.n_unknown)
            facts = RecordFacts(
                rows=len(rows),
                tokens=int(makes_token[record.events.code].sum()),
                unknown_rows=int(is_unknown[record.events.code].sum()),
                unknown_codes=int(is_unknown.sum()),
                visits=len(record.visits),
                # JSON has one type of number, so that its conversion is no fix
                fixes={name: n for name, n in log.items() if n and name != "value_type"},
            )
            yield encoder, times, has_died, facts
        finally:
            self.run.vocabulary.forget()  # codes of a request


def unusual(person: People, run: Run) -> Iterator[tuple[str | None, str]]:
    """How one person's record differs from all that the run was trained on: a code or None, and what is unusual.

    Short records are not: training people had short ones too, before theirs became long.
    """
    vocabulary, reference = person.vocabulary, run.training_people
    in_groups = is_group(vocabulary)
    for code, share in person.outside.items():
        if share and not in_groups[vocabulary.scale[vocabulary.index[code]]]:
            yield code, "a number outside the 1st to 99th percentile of the training people"
    if reference is None:
        yield (
            None,
            f"not compared with the training people: {PEOPLE} of the run {run.why_no_people}",
        )
    codes, people = (reference["codes"], reference["people"]) if reference else ({}, 0)
    for code, (had, _) in codes.items():
        if had > people - SMALLEST_COUNT and not person.subjects[code]:
            yield code, "nearly all training people have it, and this record has not"
    for name, (values, _) in person.measured().items():
        knots = reference["measures"].get(name) if reference else None
        if knots is not None and len(values):
            low, high = np.interp((0.01, 0.99), np.linspace(0, 1, len(knots)), knots)
            if values[0] > high or (name == "age" and values[0] < low):
                yield (
                    None,
                    f"{MEASURES[name]}: {values[0]:,.0f}, {low:,.0f} to {high:,.0f} in training",
                )
    if person.unknown_share > MUCH_UNKNOWN:
        yield None, "more than half of its rows have a code that the run does not know"


def table_of(request: SubjectRequest, encounter_column: str | None) -> pa.Table:
    """The rows of a request.

    Raises:
        Problem: They are of several subjects.
    """
    rows = request.rows
    if len({row.subject_id for row in rows}) > 1:
        raise Problem(
            422,
            "the rows are of more than one subject",
            where="rows",
            fix="send one subject at a time",
        )
    columns = {
        "time": pa.array([row.time for row in rows], pa.timestamp("us")),
        "code": pa.array([row.code for row in rows], pa.string()),
        "numeric_value": pa.array([row.numeric_value for row in rows], pa.float64()),
    }
    if encounter_column is not None:
        ids = [None if row.encounter_id is None else str(row.encounter_id) for row in rows]
        columns[encounter_column] = pa.array(ids, pa.string())
    return pa.table(columns)
