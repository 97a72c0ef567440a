"""Rows of one subject → risk curves, by the same steps as `ehrseq predict`; and the one thread that has the model."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ehrsequencing.config import DialectConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import Asked, Encoder, Moment, PredictionTimes, horizons_of
from ehrsequencing.prediction.prediction_file import Risks
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.cohort import cohort_steps
from ehrsequencing.records.events import STATIC, Events
from ehrsequencing.records.fixes import FixLog, fix
from ehrsequencing.records.parquet_rows import events_of_table
from ehrsequencing.records.survey import TokenRows
from ehrsequencing.records.timelines import TaskRecords, joined
from ehrsequencing.serve.limits import Limits
from ehrsequencing.serve.problems import Problem

Result = TypeVar("Result")
_Job = tuple["Question | Callable[[], Any]", "Future[Any]"]
REQUEST = Path("request")  # what messages call the rows
TOGETHER = 16  # requests that the model answers in one pass
MUCH_UNKNOWN = 0.5  # share of rows with an unknown code that an answer warns of


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


@dataclass(frozen=True)
class _Read:
    """A question on its way to the model."""

    records: TaskRecords
    horizons_days: tuple[float | None, ...]
    why_none: str | None
    counts: dict[str, int]
    fixes: dict[str, int]


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
        self.asked = Asked(run, recalibrated=recalibrated)
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

    def answer(self, questions: Sequence[Question]) -> list[Answer | Exception]:
        """Answer several questions in one pass of the model; one that fails does not concern the others."""
        read: list[_Read | Exception] = []
        for question in questions:
            try:
                read.append(self._read(question))
            except Exception as error:
                read.append(error)
        self.run.vocabulary.forget()
        out: list[Answer | Exception] = [
            x if isinstance(x, Exception) else _no_answer(x) for x in read
        ]
        groups: dict[tuple[float | None, ...], list[int]] = {}
        for place, one in enumerate(read):
            if not isinstance(one, Exception) and len(one.records):
                groups.setdefault(one.horizons_days, []).append(place)
        for horizons, places in groups.items():
            self._ask(horizons, places, read, out)
        return out

    def _ask(
        self,
        horizons: tuple[float | None, ...],
        places: list[int],
        read: list[_Read | Exception],
        out: list[Answer | Exception],
    ) -> None:
        """Answer the questions at some places, all by the same horizons."""
        parts = [one.records for place in places if not isinstance(one := read[place], Exception)]
        try:
            risks = self._asked(horizons).answer(_together(parts))
        except Exception as error:
            if len(places) > 1:  # one of them may be to blame
                for place in places:
                    self._ask(horizons, [place], read, out)
                return
            out[places[0]] = error
            return
        bounds = np.searchsorted(risks.subject_id, np.arange(len(places) + 1))
        for number, place in enumerate(places):
            own, before = slice(int(bounds[number]), int(bounds[number + 1])), out[place]
            if not isinstance(before, Exception):
                out[place] = replace(before, risks=_cut(risks, own))

    def _asked(self, horizons: tuple[float | None, ...]) -> Asked:
        if horizons == self.asked.horizons_days:
            return self.asked
        days = [horizon for horizon in horizons if horizon is not None]
        return Asked(self.run, days, recalibrated=self.recalibrated)

    # ---- rows → prediction times ---------------------------------------------------------------------------------

    def events(self, rows: pa.Table, log: FixLog) -> Events:
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

    def _read(self, question: Question) -> _Read:
        horizons, log = question.horizons_days, FixLog()
        if horizons is not None and len(horizons) > self.limits.horizons:
            raise Problem(
                422,
                f"more than {self.limits.horizons} horizons",
                where="horizons_days",
                fix="ask for fewer",
            )
        days = self.asked.horizons_days if horizons is None else horizons_of(self.run, horizons)
        events = self.events(question.rows, log)
        timed = events.time_us[events.time_us != STATIC]
        if not len(timed):
            fix = "give at least one row with a time"
            raise Problem(422, "no row has a time, once the rows were fixed", where="rows", fix=fix)
        encoder = Encoder.of(self.run, self.parents)  # a new one, which has met no code yet
        end_us = int(timed.max()) if question.until_us is None else question.until_us
        found = encoder.prediction_times(events, question.moment, end_us=end_us)
        visits, asked = len(found.record.visits), len(found.rows)
        if visits > self.limits.visits:
            raise Problem(
                413,
                f"more than {self.limits.visits:,} visits",
                where="rows",
                fix="send the newest visits",
            )
        if asked * len(self.asked.causes) * len(days) > self.limits.numbers:
            what = f"more than {self.limits.numbers:,} risks"
            raise Problem(413, what, where="at", fix="ask at last, or by fewer horizons")
        tokens = TokenRows(self.run.vocabulary, encoder.excluded)
        tokens.add(events)
        makes_token = ~encoder.excluded.mask(events.codes)
        unknown = makes_token & self.run.vocabulary.is_unknown(
            self.run.vocabulary.ids(events.codes)
        )
        counts = {
            "rows": len(question.rows),
            "tokens": tokens.tokens,
            "unknown_rows": tokens.unknown,
            "unknown_codes": int(unknown.sum()),
            "visits": visits,
        }
        why = None if asked else self._why_none(found)
        # JSON has one type of number
        fixes = {name: count for name, count in log.items() if name != "value_type"}
        return _Read(encoder.encode(found.record, found.rows), days, why, counts, fixes)

    def _why_none(self, found: PredictionTimes) -> str:
        """What a subject without a prediction time lacks."""
        if found.late:
            return "every prediction time lies after the record's end"
        reached = int(found.cohort.reached[0])
        if reached < len(self._steps):
            return f"the subject is not one {self._steps[reached]}"
        return "there is no prediction time then"


def _together(parts: Sequence[TaskRecords]) -> TaskRecords:
    """Several questions as the subjects 0, 1, … of one set of records."""
    numbered = [
        replace(part.timelines, subject_id=np.array([number])) for number, part in enumerate(parts)
    ]
    return TaskRecords(joined(numbered), joined([part.rows for part in parts]))


def _cut(risks: Risks, own: slice) -> Risks:
    low, high = (None if band is None else band[own] for band in (risks.low, risks.high))
    return Risks(risks.subject_id[own], risks.prediction_us[own], risks.risk[own], low, high)


def _no_answer(read: _Read) -> Answer:
    none = np.zeros(0, np.int64)
    empty = Risks(none, none, np.zeros((0, 0, 0), np.float32))
    return Answer(read.horizons_days, empty, read.why_none, fixes=read.fixes, **read.counts)


class ModelThread:
    """One thread that answers questions, all that wait together; for use from an event loop.

    Args:
        predictor: What answers.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._queue: queue.Queue[_Job | None] = queue.Queue(predictor.limits.waiting)
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many questions wait."""
        return self._queue.qsize()

    async def ask(self, question: Question) -> Answer:
        """The answer to a question.

        Raises:
            Problem: Too many questions wait, or the answer takes too long.
            EhrseqError: The rows or horizons cannot be used.
        """
        found: Answer = await self._result(question)
        return found

    async def run(self, call: Callable[[], Result]) -> Result:
        """What a function returns, called in the thread of the model.

        Raises:
            Problem: As of `ask`; or what the function raises.
        """
        found: Result = await self._result(call)
        return found

    async def _result(self, work: "Question | Callable[[], Any]") -> Any:
        future: Future[Any] = Future()
        try:
            self._queue.put_nowait((work, future))
        except queue.Full:
            raise Problem(
                503, "the server is busy", fix="ask again later", headers={"Retry-After": "1"}
            ) from None
        try:
            return await asyncio.wait_for(
                asyncio.wrap_future(future), self.predictor.limits.seconds
            )
        except TimeoutError:
            raise Problem(
                503, "the answer took too long", fix="send fewer visits, or ask at last"
            ) from None

    def close(self) -> None:
        """Stop once what runs is answered."""
        self._queue.put(None)
        self._thread.join(timeout=self.predictor.limits.seconds)

    def _work(self) -> None:
        while True:
            jobs = [self._queue.get()]
            while len(jobs) < TOGETHER and jobs[-1] is not None:
                try:
                    jobs.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            mine = [
                job for job in jobs if job is not None and job[1].set_running_or_notify_cancel()
            ]
            questions = [(work, future) for work, future in mine if isinstance(work, Question)]
            found = self.predictor.answer([question for question, _ in questions])
            for (_, future), answer in zip(questions, found, strict=True):
                _settle(future, answer)
            for work, future in mine:
                if not isinstance(work, Question):
                    _settle(future, _called(work))
            if jobs[-1] is None:
                return


def _called(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def _settle(future: "Future[Any]", found: Any) -> None:
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)
