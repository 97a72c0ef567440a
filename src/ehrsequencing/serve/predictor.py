"""Rows of one subject → risk curves, by the same steps as `ehrseq predict`; the model's thread; what all paths use."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import prometheus_client as prometheus
import pyarrow as pa

from ehrsequencing.config import DialectConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import Encoder, Moment, PredictionTimes, RiskPredictor
from ehrsequencing.prediction.prediction_file import Risks
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.cohort import cohort_steps
from ehrsequencing.records.events import STATIC, Events, parse_date_us
from ehrsequencing.records.meds import fix
from ehrsequencing.records.parquet_rows import events_of_table
from ehrsequencing.records.survey import TokenRows
from ehrsequencing.serve.schemas import PredictRequest, Problem
from ehrsequencing.serve.security import Limits

Result = TypeVar("Result")
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)
REQUEST = Path("request")  # what messages call the rows
MUCH_UNKNOWN = 0.5  # share of rows with an unknown code that an answer warns of
_NONE = np.zeros(0, np.int64)
NO_RISKS = Risks(_NONE, _NONE, np.zeros((0, 0, 0), np.float32))


@dataclass(frozen=True)
class Question:
    """What one request asks.

    Attributes:
        rows: The subject's rows, with the columns of MEDS but `subject_id`.
        moment: At which prediction times.
        horizons_days: Default: the task's horizons.
        until_us: No later prediction time is answered; default: the record's last row.
    """

    rows: pa.Table
    moment: Moment
    horizons_days: tuple[float, ...] | None = None
    until_us: int | None = None


def question_of(request: PredictRequest, encounter_column: str | None) -> Question:
    """The question of a request.

    Raises:
        Problem: Rows of several subjects, or a moment that no calendar has.
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
    days = None if request.horizons_days is None else tuple(request.horizons_days)
    until_us = None
    if request.until is not None:
        until_us = int(np.datetime64(request.until, "us").astype(np.int64))
    try:
        if request.at not in ("all", "last"):
            parse_date_us(request.at)
    except EhrseqError:
        what, fix = "is not a date of the calendar", "write it as 2026-03-01"
        raise Problem(422, what, where="at", fix=fix) from None
    return Question(pa.table(columns), Moment(request.at), days, until_us)


@dataclass(frozen=True)
class Answer:
    """Risks of one subject, and what became of its rows."""

    horizons_days: tuple[float | None, ...]
    risks: Risks
    why_none: str | None  # where there is no prediction
    rows: int
    tokens: int
    unknown_rows: int
    unknown_codes: int
    visits: int
    fixes: dict[str, int]

    @property
    def warnings(self) -> list[str]:
        """What a reader of the risks should know."""
        share = self.unknown_rows / max(self.tokens, 1)
        if share <= MUCH_UNKNOWN:
            return []
        return [
            f"{share:.0%} of the rows have a code that the run does not know: it cannot use them"
        ]


class Predictor:
    """A run that answers questions about single subjects. For one thread only.

    Args:
        run: The run; its model is loaded now.
        data: A data set whose `codes.parquet` names the parents of codes; needed where the task has `under:` patterns.
        recalibrated: Whether to use what `ehrseq evaluate --recalibrate` fitted.
        limits: Of one question.

    Raises:
        EhrseqError: The run needs parents of codes and there is no data set.
    """

    def __init__(
        self,
        run: Run,
        data: Path | None = None,
        *,
        recalibrated: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.run, self.recalibrated, self.limits = run, recalibrated, limits or Limits()
        self.parents = {} if data is None else read_parents(data)
        self.asked = RiskPredictor(run, recalibrated=recalibrated)
        self._steps = cohort_steps(run.task)
        visits = run.study.visits
        self.encounter_column = visits.column if visits.by == "encounter" else None
        if data is None and any("under:" in pattern for pattern in self._patterns()):
            what = "the task has patterns with under:, which need the parents of codes"
            raise EhrseqError(
                what, where=str(run.folder), fix="name the data set: ehrseq serve RUN DATA"
            )

    def _patterns(self) -> list[str]:
        """Patterns that need the parents of codes, and others."""
        task, rules = self.run.task, self.run.task.eligibility
        named = [
            *(task.index.code or ()),
            *(task.censoring.code or ()),
            *self.run.manifest["excluded"],
        ]
        named += [pattern for patterns in task.patterns.values() for pattern in patterns]
        return named if rules is None else [*named, rules.model_dump_json()]

    def events(self, rows: pa.Table, log: Counter[str]) -> Events:
        """Rows of one subject as events, checked, fixed and sorted as those of a data set are."""
        if len(rows) > self.limits.rows:
            what = f"more than {self.limits.rows:,} rows"
            raise Problem(
                413, what, where="rows", fix="leave out rows that the model does not read"
            )
        subject = pa.array(np.zeros(len(rows), dtype=np.int64))
        table, dialect = rows.append_column("subject_id", subject), DialectConfig()
        events = events_of_table(
            table, REQUEST, log, dialect=dialect, encounter_column=self.encounter_column
        )
        return fix(events, REQUEST, log, dialect=dialect, extracted_us=None)

    def answer(self, question: Question) -> Answer:
        """The risks of a question's subject.

        Raises:
            Problem: The record or the answer is too large, or no row has a time.
            EhrseqError: Rows or horizons cannot be used.
        """
        try:
            return self._answer(question)
        finally:
            self.run.vocabulary.forget()  # codes of a request

    def _answer(self, question: Question) -> Answer:
        asked, log, limits = self.asked, Counter[str](), self.limits
        if question.horizons_days is not None:
            if len(question.horizons_days) > limits.horizons:
                what = f"more than {limits.horizons} horizons"
                raise Problem(422, what, where="horizons_days", fix="ask for fewer")
            asked = RiskPredictor(self.run, question.horizons_days, recalibrated=self.recalibrated)
        events = self.events(question.rows, log)
        timed = events.time_us[events.time_us != STATIC]
        if not len(timed):
            fix = "give at least one row with a time"
            raise Problem(422, "no row has a time, once the rows were fixed", where="rows", fix=fix)
        encoder = Encoder(self.run, self.parents)  # a new one, which has met no code yet
        end_us = int(timed.max()) if question.until_us is None else question.until_us
        found = encoder.prediction_times(events, question.moment, end_us=end_us)
        visits, times = len(found.record.visits), len(found.rows)
        if visits > limits.visits:
            what = f"more than {limits.visits:,} visits"
            raise Problem(413, what, where="rows", fix="send the newest visits")
        if times * len(asked.causes) * len(asked.horizons_days) > limits.numbers:
            what = f"more than {limits.numbers:,} risks"
            raise Problem(413, what, where="at", fix="ask at last, or by fewer horizons")
        tokens = TokenRows(self.run.vocabulary, encoder.excluded)
        tokens.add(events)
        makes_token = ~encoder.excluded.mask(events.codes)
        is_unknown = self.run.vocabulary.is_unknown(self.run.vocabulary.ids(events.codes))
        return Answer(
            horizons_days=asked.horizons_days,
            risks=asked.answer(encoder.encode(found.record, found.rows)) if times else NO_RISKS,
            why_none=None if times else self._why_none(found),
            rows=len(question.rows),
            tokens=tokens.tokens,
            unknown_rows=tokens.unknown,
            unknown_codes=int((makes_token & is_unknown).sum()),
            visits=visits,
            # JSON has one type of number
            fixes={name: count for name, count in log.items() if name != "value_type"},
        )

    def _why_none(self, found: PredictionTimes) -> str:
        """What a subject without a prediction time lacks."""
        if found.late:
            return "every prediction time lies after the record's end"
        reached = int(found.cohort.reached[0])
        if reached < len(self._steps):
            return f"the subject is not one {self._steps[reached]}"
        return "there is no prediction time then"


class ModelThread:
    """One thread that calls the model, one request after another; for use from an event loop.

    Args:
        limits: How many requests may wait, and how long.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.waiting = limits, 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def run(self, call: Callable[[], Result]) -> Result:
        """What a function returns, called in the thread of the model.

        Raises:
            Problem: Too many requests wait, or the answer takes too long; or what the function raises.
        """
        if self.waiting > self.limits.waiting:  # one of them is being answered
            again = {"Retry-After": "1"}
            raise Problem(503, "the server is busy", fix="ask again later", headers=again)
        self.waiting += 1
        try:
            future = asyncio.wrap_future(self._pool.submit(call))
            return await asyncio.wait_for(future, self.limits.seconds)
        except TimeoutError:
            fix = "send fewer visits, or ask at last"
            raise Problem(503, "the answer took too long", fix=fix) from None
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Stop once what runs is answered."""
        self._pool.shutdown(cancel_futures=True)


class Metrics:
    """What the server has done since it started. Labels are paths, methods and statuses, never anything of a request.

    Args:
        paths: Its paths; any other is counted as `other`.
    """

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths, self.registry = paths, prometheus.CollectorRegistry()
        self._requests = prometheus.Counter(
            "ehrseq_requests", "Requests", ["path", "method", "status"], registry=self.registry
        )
        self._seconds = prometheus.Histogram(
            "ehrseq_request_seconds",
            "Time from a request's head to the end of its answer",
            ["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._predictions = prometheus.Counter(
            "ehrseq_predictions", "Prediction times answered", registry=self.registry
        )
        self._rows = prometheus.Counter(
            "ehrseq_rows", "Rows with a code that makes a token", registry=self.registry
        )
        self._unknown = prometheus.Counter(
            "ehrseq_unknown_rows",
            "Those of them with a code that the run does not know",
            registry=self.registry,
        )
        self._waiting = prometheus.Gauge(
            "ehrseq_waiting", "Requests that wait for the model", registry=self.registry
        )

    def watch(self, waiting: Callable[[], int]) -> None:
        """Ask for the number of waiting requests whenever the metrics are read."""
        self._waiting.set_function(waiting)

    def request(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        path = path if path in self.paths else "other"
        self._requests.labels(path, method if method in _METHODS else "other", str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def answer(self, answer: Answer) -> None:
        """Count what a request's rows were."""
        self._predictions.inc(len(answer.risks))
        self._rows.inc(answer.tokens)
        self._unknown.inc(answer.unknown_rows)

    def text(self) -> bytes:
        """The exposition."""
        return prometheus.generate_latest(self.registry)


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    predictor: Predictor
    model: ModelThread
    metrics: Metrics

    async def ask(self, question: Question) -> Answer:
        """The answer to a question, counted."""
        answer = await self.model.run(lambda: self.predictor.answer(question))
        self.metrics.answer(answer)
        return answer

    def facts(self) -> dict[str, Any]:
        """What an answer says of the run."""
        asked = self.predictor.asked
        days = [day for day in asked.horizons_days if day is not None]
        run = self.predictor.run
        return {
            "task": run.task.name,
            "run": run.fingerprint,
            "causes": list(asked.causes),
            "horizons_days": days or None,
        }
