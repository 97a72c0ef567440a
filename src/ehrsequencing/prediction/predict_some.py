"""Risks that are asked for one by one: at the moments of a label file, or of outcomes beside the task's causes."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ehrsequencing.config.task import IndexConfig
from ehrsequencing.core.arrays import Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import refuse_overlap
from ehrsequencing.core.outputs import PREDICTIONS, output_file
from ehrsequencing.prediction.predict import (
    Moment,
    NewRecords,
    Request,
    RiskPredictor,
)
from ehrsequencing.prediction.prediction_file import PredictionWriter, with_notes
from ehrsequencing.prediction.run import Run, horizons_of
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.labels import read_boolean_labels
from ehrsequencing.records.outcomes import already_had
from ehrsequencing.records.timelines import TaskRecords

_SCHEMA = pa.schema(
    [
        ("subject_id", pa.int64()),
        ("prediction_time", pa.timestamp("us")),
        ("boolean_value", pa.bool_()),
        ("predicted_boolean_value", pa.bool_()),
        ("predicted_boolean_probability", pa.float64()),
    ]
)


def _column(predictor: RiskPredictor, cause: str | None) -> int:
    """The number of the cause that is asked, by one horizon."""
    if len(predictor.horizons_days) != 1 or predictor.horizons_days[0] is None:
        raise EhrseqError(
            "a prediction in this format needs one horizon in days",
            where="--horizon",
            fix="name one with --horizon; the visit head has none",
        )
    if cause is not None and cause not in predictor.causes:
        raise EhrseqError(
            f"{cause!r} is no cause of the run",
            where="--cause",
            fix=f"use {', '.join(predictor.causes)}",
        )
    return 0 if cause is None else predictor.causes.index(cause)


def predict_labels(
    run_folder: Path,
    data: Path,
    out: Path,
    request: Request,
    *,
    labels: Path,
    cause: str | None = None,
) -> int:
    """Write the risk of one cause by one horizon at the moments of a label file.

    Args:
        run_folder: A trained run.
        data: A MEDS data set.
        out: The Parquet file to write.
        request: With one horizon, which may be left out where the run's task has one; its moments are the labels'.
        labels: MEDS labels, a file or a folder: `subject_id`, `prediction_time`, `boolean_value`.
        cause: Default: the run's cause of interest.

    Returns:
        The number of labels that have a risk.

    Raises:
        EhrseqError: Labels, run or data cannot be used, or no label has a risk.
    """
    if not out.name.endswith(".parquet"):
        raise EhrseqError("does not end in .parquet", where=str(out), fix="write Parquet")
    moment = request.refuse_early(out, data)
    refuse_overlap(out, labels)
    run, wanted = Run(run_folder), read_boolean_labels(labels)
    predictor = RiskPredictor(run, request.horizons_days)
    column = _column(predictor, cause)
    # The labels are the index times, for everybody in them; the file of the run's own index may be gone.
    index = IndexConfig(file=str(labels), which="every")
    run.task = run.task.model_copy(
        update={"index": index, "eligibility": None, "landmarks": (0.0,)}
    )
    records = NewRecords(run, data, request.facts, request.progress, limits=request.limits)
    answers = predictor.answers(records, moment, force=request.force, say=request.say)
    count, schema = 0, with_notes(_SCHEMA, records.made_by)
    with (
        output_file(out, PREDICTIONS, overwrite=request.overwrite) as temporary,
        pq.ParquetWriter(temporary, schema) as file,
    ):
        for risks in answers:
            place, risk_row = wanted.find(risks.subject_id, risks.prediction_us)
            risk = risks.risk[risk_row, column, 0]
            file.write_table(
                pa.Table.from_arrays(
                    [
                        pa.array(risks.subject_id[risk_row]),
                        pa.array(risks.prediction_us[risk_row]).cast(pa.timestamp("us")),
                        pa.array(wanted.value[place[risk_row]]),
                        pa.array(risk >= 0.5),
                        pa.array(risk.astype(np.float32)).cast(pa.float64()),
                    ],
                    schema=schema,
                )
            )
            count += len(risk)
        if not count:
            raise EhrseqError(
                "no label has a risk",
                where=str(labels),
                fix="check that the labels are of these records, and lie before the outcome",
            )
    if missing := len(wanted.value) - count:
        why = (
            "their subjects have no records there, had the outcome before, or the data ends before"
        )
        request.say(
            f"warning: {missing:,} of {len(wanted.value):,} labels have no prediction: {why}"
        )
    return count


# ---- outcomes beside the task's causes -------------------------------------------------------------------------------


def predict_outcomes(
    run_folder: Path,
    data: Path,
    out: Path,
    request: Request,
    *,
    outcomes: Sequence[str] = (),
    top: int | None = None,
) -> int:
    """Write the risks of outcomes in the format of `predict`, with a code as the cause.

    The risk is the cumulative incidence of the code, with the task's causes (death) as competing ones.
    A code that the subject already has gets no row.

    Args:
        run_folder: A run of a task with `outcomes`.
        data: A MEDS data set.
        out: As of `predict`.
        request: As of `predict`.
        outcomes: Codes or patterns, as in a task file; none: all outcomes of the run.
        top: Only so many for each prediction time, those with the highest risks at the last horizon, highest first.

    Returns:
        The number of prediction times.

    Raises:
        EhrseqError: The run has no such outcomes, or as of `predict`.
    """
    moment = request.refuse_early(out, data)
    run = Run(run_folder)
    if not run.outcomes:
        raise EhrseqError(
            "predicts no outcomes beside its task's causes",
            where=str(run.folder),
            fix="train on a task with outcomes: (docs/outcomes.md)",
        )
    parents = read_parents(data) if outcomes else {}
    for pattern in outcomes:
        one = CodeMatcher([pattern], parents=parents)
        if not any(one(code) for code in run.outcomes):
            close = difflib.get_close_matches(pattern, run.outcomes, n=3, cutoff=0.5)
            fix = f"outcomes that come close: {', '.join(close)}"
            if not close:
                fix = "outcomes.json in the run's folder has all"
            raise EhrseqError("is no outcome of the run", where=f"--outcome {pattern}", fix=fix)
    matcher = CodeMatcher(outcomes, parents=parents)
    codes = np.flatnonzero([not outcomes or matcher(code) for code in run.outcomes])
    if top is not None and top < 1:
        raise EhrseqError("leaves no outcome", where=f"--top {top}", fix="use 1 or more")
    horizons = [float(days) for days in horizons_of(run, request.horizons_days) if days is not None]
    records = NewRecords(run, data, request.facts, request.progress, limits=request.limits)
    names = [run.outcomes[k] for k in codes]
    file = PredictionWriter(names, horizons, run.start_days, records.now_us(moment))
    count = 0
    with file.opened(out, records.made_by, overwrite=request.overwrite):
        for part in records.answerable(moment, force=request.force, say=request.say):
            subjects = np.zeros(0, np.int64)
            for subject_id, risks in _answers(run, part, moment, codes, horizons, top):
                file.write_rows(*risks)
                count, subjects = count + len(subject_id), np.union1d(subjects, subject_id)
            records.answered += len(subjects)
    return count


def _answers(
    run: Run,
    records: TaskRecords,
    moment: Moment,
    codes: Ints,
    horizons: Sequence[float],
    top: int | None,
) -> Iterator[tuple[Ints, tuple[tuple[Ints, ...], Ints, Ints, Floats32]]]:
    """Some prediction times after others: the subjects asked about, and the arguments of `write_rows`."""
    had = np.zeros((0, 2), np.int64)
    if records.outcomes is not None:
        row, code = already_had(records.outcomes, records.rows)
        place = np.full(len(run.outcomes), -1)
        place[codes] = np.arange(len(codes))
        had = np.stack([row, place[code]], axis=1)
        had = had[had[:, 1] >= 0]
    subject_id = records.subject_id
    asked = records.rows
    times = (subject_id, asked.prediction_us, moment.kind(asked), asked.index_us)
    settings = {
        "codes": codes,
        "horizons_days": horizons,
        "code_types": run.code_types,
        "start_days": run.start_days,
    }
    from ehrsequencing.predictors.network import outcome_risks  # with torch

    for rows, risk in outcome_risks(run.model, records, **settings):  # type: ignore[arg-type]
        inside = np.flatnonzero(np.isin(had[:, 0], rows))
        order = np.argsort(rows)
        risk[order[np.searchsorted(rows[order], had[inside, 0])], had[inside, 1]] = np.nan
        row, cause, horizon = _kept(risk, top)
        known = rows[row]
        risks = risk[row, cause, horizon]
        of_risk = tuple(column[known] for column in times)
        yield subject_id[rows], (of_risk, cause, horizon, risks)


def _kept(risk: Floats32, top: int | None) -> tuple[Ints, Ints, Ints]:
    """Which (row, outcome, horizon) are written, in order; NaN are not."""
    last = np.nan_to_num(risk[:, :, -1], nan=-1.0)
    order = (
        np.argsort(-last, axis=1, kind="stable")[:, :top]
        if top
        else np.tile(np.arange(risk.shape[1]), (len(risk), 1))
    )
    row = np.repeat(np.arange(len(risk)), order.shape[1])
    cause = order.reshape(-1)
    known = ~np.isnan(risk[row, cause, -1])
    row, cause = row[known], cause[known]
    n = risk.shape[2]
    return np.repeat(row, n), np.repeat(cause, n), np.tile(np.arange(n), len(row))
