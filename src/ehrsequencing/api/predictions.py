"""What a run says about records: predictions as a frame, one subject's history with its risks, attention weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ehrsequencing.api.data import data_config, meds_folder, times
from ehrsequencing.api.progress import bar
from ehrsequencing.config import DataConfig, format_days, parse_days
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import refuse_overlap
from ehrsequencing.core.outputs import EXPLORER, refuse_existing
from ehrsequencing.explain import Question, subject_record
from ehrsequencing.explain.cohort import explain_cohort
from ehrsequencing.explain.deletions import KINDS
from ehrsequencing.explain.tables import CHANGE, attention_weights, explain_subject
from ehrsequencing.explorer import ExplorerSettings, collect, write_page
from ehrsequencing.explorer.collect import Explorer
from ehrsequencing.prediction.predict import Moment, NewRecords, RiskPredictor
from ehrsequencing.prediction.prediction_file import Risks
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.timelines import TaskRecords

CURVE_POINTS = 60  # of a drawn risk curve


def days_of(
    horizons: Sequence[str | float] | str | float, *, where: str = "horizons"
) -> list[float]:
    """Horizons as days: `90d`, `1y`, or numbers of days.

    >>> days_of(["90d", "1y", 30])
    [90.0, 365.25, 30.0]

    Raises:
        EhrseqError: One is no duration.
    """
    listed = [horizons] if isinstance(horizons, str | int | float) else list(horizons)
    try:
        return [parse_days(one if isinstance(one, str) else float(one)) for one in listed]
    except ValueError as error:
        raise EhrseqError(str(error), where=where, fix="write it as 90d or 1y") from error


@contextmanager
def opened(
    run: Run,
    data: Any,
    *,
    facts: dict[str, Any] | None = None,
    show: bool = True,
    label: str = "predicting",
) -> Iterator[NewRecords]:
    """Records that a run is asked about: a folder of MEDS data, or a frame of MEDS rows."""
    with meds_folder(data) as folder, bar(label, show=show) as tick:
        yield NewRecords(run, folder, data_config(facts), tick)


def risk_column(cause: str, horizon_days: float | None) -> str:
    """Name of the column of a cause's risk.

    >>> risk_column("hf", 365.25), risk_column("hf", None)
    ('hf_1y', 'hf_next_visit')
    """
    return f"{cause}_next_visit" if horizon_days is None else f"{cause}_{format_days(horizon_days)}"


def risk_columns(risks: Risks, asked: RiskPredictor) -> dict[str, Any]:
    """One column a cause and horizon; for an ensemble also the limits of its band."""
    parts = {"": risks.risk, "_low": risks.low, "_high": risks.high}
    return {
        risk_column(cause, horizon) + end: values[:, e, h].astype(np.float64)
        for e, cause in enumerate(asked.causes)
        for h, horizon in enumerate(asked.horizons_days)
        for end, values in parts.items()
        if values is not None
    }


def predictions(
    records: NewRecords, asked: RiskPredictor, *, at: str, force: bool
) -> tuple[pa.Table, list[str]]:
    """One row a prediction time with its risks, and what a reader of them should know."""
    moment, notes = Moment(at), list[str]()
    records.require_until_end(moment)
    notes.append(records.require_known(force=force))
    parts = []
    for risks in asked.answers(records, moment, say=notes.append):
        keys = {
            "subject_id": pa.array(risks.subject_id),
            "prediction_time": times(risks.prediction_us),
        }
        columns = {name: pa.array(values) for name, values in risk_columns(risks, asked).items()}
        parts.append(pa.table(keys | columns))
    return pa.concat_tables(parts), notes


@dataclass(frozen=True)
class SubjectRisk:
    """One subject's visits, risks at every prediction time, and the curves from the last of them on.

    Attributes:
        visit_us: (N,) start of each visit.
        codes: (N,) number of codes of each visit.
        prediction_us: (P,) prediction times.
        horizons_days: The horizons of `risk`.
        risk: (P, causes, horizons) cumulative incidence from each prediction time on.
        curve_days: (C,) days after the last prediction time.
        curve: (causes, C) cumulative incidence from there on, with `low` and `high` for an ensemble.
        events: Cause → when its first code after the first prediction time is stamped, where there is one.
    """

    causes: tuple[str, ...]
    visit_us: Ints
    codes: Ints
    prediction_us: Ints
    horizons_days: tuple[float, ...]
    risk: Floats
    curve_days: Floats
    curve: Floats
    low: Floats | None
    high: Floats | None
    events: dict[str, int]


def subject_risk(
    run: Run, records: NewRecords, subject: int, horizons: Sequence[float] | None
) -> SubjectRisk:
    """A subject's record as a run sees it.

    Raises:
        EhrseqError: The head is `visit`, or the subject has no prediction time in these records.
    """
    if run.is_visit_head:
        raise EhrseqError(
            "the visit head knows no days", where="plot_risk", fix="train with head='horizon'"
        )
    own = subject_records(records, subject)
    at_horizons = RiskPredictor(run, horizons)
    days = tuple(float(day) for day in at_horizons.horizons_days if day is not None)
    grid = np.linspace(at_horizons.start_days, days[-1], CURVE_POINTS + 1)[1:]
    found, last = at_horizons.answer(own), RiskPredictor(run, grid.tolist()).answer(own)
    if not len(found):
        raise _no_subject()
    timelines = own.timelines
    return SubjectRisk(
        tuple(at_horizons.causes),
        timelines.start_us,
        np.diff(timelines.visit_offsets),
        found.prediction_us,
        days,
        found.risk.astype(np.float64),
        np.r_[0.0, grid],
        _from_zero(last.risk),
        None if last.low is None else _from_zero(last.low),
        None if last.high is None else _from_zero(last.high),
        _events(run, records, subject, after_us=int(found.prediction_us[0])),
    )


def _from_zero(risk: Any) -> Floats:
    """(causes, C) the curves at the last prediction time, 0 at its start."""
    return np.pad(risk[-1].astype(np.float64), ((0, 0), (1, 0)))


def subject_records(records: NewRecords, subject: int) -> TaskRecords:
    """The visits and prediction times of one subject.

    Raises:
        EhrseqError: There is no such subject, or it has no prediction time.
    """
    for encoded in records.encoded(Moment("all")):
        place = np.flatnonzero(encoded.timelines.subject_id == subject)
        if len(place) and len(own := encoded.take(place)):
            return own
    raise _no_subject()


def _no_subject() -> EhrseqError:
    fix = "name a subject_id of the data that ehrseq predict answers for"
    return EhrseqError("no such subject, or it has no prediction time", where="subject", fix=fix)


def _events(run: Run, records: NewRecords, subject: int, *, after_us: int) -> dict[str, int]:
    """When each cause first occurs after a moment; its codes make no tokens, so they are read from the rows."""
    parents, found = read_parents(records.data), dict[str, int]()
    for events in records.reader:
        own = np.flatnonzero((events.subject_id == subject) & (events.time_us > after_us))
        if not len(own):
            continue
        for cause, patterns in run.task.patterns.items():
            matches = CodeMatcher(patterns, parents=parents)
            is_cause = np.array([matches(code) for code in events.codes])
            when = events.time_us[own[is_cause[events.code[own]]]]
            if len(when):
                found[cause] = int(when.min())
    return found


@dataclass(frozen=True)
class Explanation:
    """What moves the risk of one subject, or the risks of a cohort.

    Attributes:
        question: Cause and horizon in words.
        risk: The subject's risk, or the cohort's mean.
        table: The effects.
        visits: How many visits the subject has at its last prediction time.
        subjects: How many subjects of a cohort were explained.
    """

    question: str
    risk: float
    table: pa.Table
    visits: int | None = None
    subjects: int | None = None


def explained(
    question: Question,
    records: NewRecords,
    subject: int | None,
    *,
    kind: str = "all",
    subjects: int = 1000,
    progress: Callable[[int, int], None] = lambda done, todo: None,
) -> Explanation:
    """The effects of one kind, or of all, on a subject's last risk, or the mean effects of a cohort.

    Raises:
        EhrseqError: There is no such kind or subject, or the subject has no prediction time.
    """
    kinds = (*KINDS, CHANGE)
    if kind not in (*kinds, "all"):
        fix = f"name one of {', '.join(kinds)}, or all"
        raise EhrseqError(f"no kind {kind!r}", where="explain", fix=fix)
    if subject is None:
        found = explain_cohort(question, records, subjects=subjects, progress=progress)
        return Explanation(question.text, found.risk, found.table, subjects=found.subjects)
    record = subject_record(records, subject)
    of_subject, table = explain_subject(question, record, kinds=kinds if kind == "all" else [kind])
    if kind != "all":
        used = [name for name in table.column_names if table[name].null_count < max(len(table), 1)]
        table = table.select([name for name in used if name != "kind"])
    return Explanation(question.text, of_subject.risk, table, visits=record.visits_before[-1])


def write_explorer(
    run: Run,
    data: Path,
    out: Path,
    settings: ExplorerSettings,
    *,
    facts: DataConfig | None = None,
    force: bool = False,
    overwrite: bool = False,
    progress: Callable[..., None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Explorer:
    """Write the explorer of a run and a data set; `run.explore` and `ehrseq explore` call it.

    Raises:
        EhrseqError: The data cannot be used, or something else is at `out`.
    """
    refuse_existing(out, EXPLORER, overwrite=overwrite)
    refuse_overlap(out, data, run.folder)
    records = NewRecords(run, data, facts)
    found = collect(records, settings, force=force, progress=progress, say=say)
    write_page(found, out, overwrite=overwrite)
    return found


def attention_table(run: Run, records: NewRecords, subject: int | None) -> pa.Table:
    """Weights of each visit's codes in the visit's vector, summing to 1 over a visit; the mean over an ensemble.

    Raises:
        EhrseqError: The visit encoder gives no weights, or there is no such subject.
    """
    parts, names = [], pa.array(run.vocabulary.tokens)
    for encoded in records.encoded(Moment("all")):
        timelines = encoded.timelines
        if subject is not None:
            timelines = timelines.take(np.flatnonzero(timelines.subject_id == subject))
        weights = attention_weights(run, timelines)
        visit = np.repeat(np.arange(len(timelines.start_us)), np.diff(timelines.visit_offsets))
        parts.append(
            pa.table(
                {
                    "subject_id": pa.array(timelines.subject_id[timelines.owner[visit]]),
                    "time": times(timelines.start_us[visit]),
                    "code": names.take(pa.array(timelines.codes)),
                    "weight": pa.array(weights),
                }
            )
        )
    table = pa.concat_tables(parts)
    if subject is not None and not len(table):
        fix = "name one of the subject_id of run.predict(data)"
        raise EhrseqError(
            "the data has no such subject, or it has no visit", where="subject", fix=fix
        )
    return table
