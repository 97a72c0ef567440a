"""Checks that a record cut at a prediction time gives the same prediction there as the whole record."""

from dataclasses import dataclass

import numpy as np

from ehrsequencing.audit.copies import (
    MOVED,
    NONE,
    answers,
    copy_subjects,
    cuts,
    judge_movement,
    movement,
)
from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.audit.source import Source, join
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import STATIC, Events
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.visits import make_record


def prefix_equality(data: AuditData) -> Finding:
    """Cut the records at p, encode them again, and ask again; without the records, cut the prepared timelines."""
    if (
        data.source is None or data.task.index.file is not None
    ):  # cut records get ids that no file knows
        return _of_prepared(data)
    rows = data.asked.rows
    asked = np.array([cut.row for cut in cuts(data, share=2)])
    in_progress = _in_progress(data.asked, asked)
    if (
        data.prepared.study.visits.by != "encounter"
    ):  # an encounter's later rows decide with which others it merges
        in_progress &= ~rows.is_query[asked]
    before = answers(data, data.asked)[asked]
    people, moments_us = data.asked.subject_id[asked], rows.prediction_us[asked]
    parts = [
        _until(data.source, *of_row)
        for of_row in zip(people.tolist(), moments_us.tolist(), strict=True)
    ]
    has_record = np.array([bool(np.any(part.time_us != STATIC)) for part in parts])
    usable = np.flatnonzero(~in_progress & has_record & ~np.isnan(before).any(axis=1))
    asked, before = asked[usable], before[usable]
    tested = {
        "subjects": len(np.unique(rows.subject[asked])),
        "rows": len(asked),
        "rows left out (during a visit)": int(in_progress.sum()),
    }
    if not len(asked):
        return Finding(
            "not_tested",
            "no sampled prediction time falls between visits, with a record before it",
            tested,
        )
    again = _encode(data, data.source, [parts[k] for k in usable], rows.prediction_us[asked])
    after = np.full_like(before, np.nan)
    after[again.pair] = answers(data, again.records)[again.row]
    lost = ~np.isin(np.arange(len(asked)), again.pair)
    if lost.any():
        what = "prediction times exist only because of what came after them"
        return judge(int(lost.sum()), of=len(asked), what=what, clean="", tested=tested)
    leak = "differ from those of the record up to that time"
    clean = "the record up to that time gives the same predictions"
    return judge_movement(data, movement(before, after), leak=leak, clean=clean, tested=tested)


def _in_progress(records: TaskRecords, asked: Ints) -> Bools:
    """Which rows fall into a visit that ends later: in the cut record it ends there."""
    timelines, rows = records.timelines, records.rows
    following = records.first_visit[asked] + rows.visits_before[asked]
    exists = following < timelines.subject_offsets[rows.subject[asked] + 1]
    out = np.zeros(len(asked), dtype=bool)
    out[exists] = timelines.start_us[following[exists]] <= rows.prediction_us[asked[exists]]
    return out


def _until(source: Source, subject_id: int, moment_us: int) -> Events:
    """The record of a subject as it stood at a moment."""
    events = source.records[subject_id]
    return events.take(events.time_us <= moment_us)  # STATIC is the smallest of numbers


@dataclass(frozen=True)
class _Again:
    """Cut records, encoded: prediction time `row[i]` asks what cut record `pair[i]` was cut for."""

    records: TaskRecords
    pair: Ints
    row: Ints


def _encode(data: AuditData, source: Source, parts: list[Events], moment_us: Ints) -> _Again:
    """Each cut record becomes a subject of its own, and goes the way that new records go in use."""
    record = make_record(join(parts), excluded=source.excluded, settings=data.prepared.study.visits)
    builder = CohortBuilder(data.task, parents=source.parents)
    cohort = builder.build(record, dataset_end_us=int(moment_us.max()), labelled=False)
    timelines, _ = encode_timelines(record, data.vocabulary)
    rows = encode_rows(record, cohort.rows, data.vocabulary)
    pair = record.subject_id[rows.subject]
    row = np.flatnonzero(rows.prediction_us == moment_us[pair])
    return _Again(TaskRecords(timelines, rows), pair[row], row)


def _of_prepared(data: AuditData) -> Finding:
    """The prepared timelines, cut: says nothing about how they were made."""
    chosen = cuts(data, share=2)
    copies = copy_subjects(data, chosen, visits_after=lambda cut: NONE, rows_after=False, end=False)
    own = np.concatenate([np.arange(cut.first_row, cut.row + 1) for cut in chosen])
    before = answers(data, data.asked)[own]
    moved = movement(before, answers(data, copies.records))
    worst = float(moved.max(initial=0.0))
    tested = {"subjects": len({cut.subject for cut in chosen}), "rows": len(own)}
    if worst > MOVED:
        why = f"{np.mean(moved > MOVED):.0%} of the predictions differ when the prepared timeline ends there"
        return Finding("leak", why, tested, worst if np.isfinite(worst) else None, MOVED)
    why = f"only the prepared timelines could be cut, with equal predictions; {data.why_no_source}"
    return Finding("not_tested", why, tested, worst, MOVED)


CHECKS = (
    Check(
        "prefix_equality",
        "Does the record up to a prediction time give the same prediction as the whole record?",
        prefix_equality,
    ),
)
