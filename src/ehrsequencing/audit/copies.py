"""Makes copies of subjects with another past or future, and compares the predictions that the model gives them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ehrsequencing.audit.data import AuditData, Check, Finding, judge, no_source
from ehrsequencing.audit.source import Source, join
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, Ints32, ragged
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.events import DAY_US, STATIC, Events
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.visits import make_record
from ehrsequencing.training.inference import VISIT_BUDGET

MOVED = 1e-5  # of a logit, relative to max(1, |logit|): what another batch may change in float32
MOVES = 1e-3  # what a changed past must change somewhere, or the check is vacuous
MAX_CUTS = 12  # prediction times per subject, drawn at random
MAX_TOKENS = 400_000  # of all copies of one check together
MOST_OUTCOMES = 16  # outcomes whose hazards are compared
FREE_FLAT_TOKENS = 800  # a flat model's cost of a token doubles with so many others
NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Cut:
    """A subject at one of its prediction times: rows and visits up to it are its past."""

    subject: int  # row of the timelines
    first_visit: int
    past_visits: int  # with the visit that the prediction time lies in
    last_visit: int  # exclusive
    first_row: int
    row: int
    last_row: int  # exclusive


def cuts(data: AuditData, *, share: int) -> list[Cut]:
    """Prediction times of the sampled subjects, in random order: all of a subject's, or some where there are many.

    Args:
        data: The audited run.
        share: In how many ways the budget of tokens is shared.
    """
    timelines, rows = data.asked.timelines, data.asked.rows
    visits, first = timelines.subject_offsets, rows.row_offsets
    cost = np.diff(timelines.visit_offsets[visits]).astype(np.float64)
    if data.model.config.architecture == "flat":  # every token looks at every other
        cost *= 1 + cost / FREE_FLAT_TOKENS
    rng = data.rng(10)
    pairs = [
        (subject, row)
        for subject in range(len(timelines))
        for row in rng.permutation(np.arange(first[subject], first[subject + 1]))[
            :MAX_CUTS
        ].tolist()
    ]
    found, spent = list[Cut](), 0.0
    for subject, row in (pairs[k] for k in rng.permutation(len(pairs)).tolist()):
        spent += float(cost[subject])
        if found and spent > MAX_TOKENS / share:
            return found
        past = int(rows.visits_before[row]) + int(rows.unfinished_codes[row] > 0)
        low, high = int(visits[subject]), int(visits[subject + 1])
        found.append(
            Cut(subject, low, past, high, int(first[subject]), row, int(first[subject + 1]))
        )
    return found


@dataclass(frozen=True)
class Copies:
    """Copies of subjects, and which of their visits, codes and rows stand after the cut."""

    records: TaskRecords
    later_visit: Bools
    later_code: Bools  # of later visits, and of a visit that the cut lies in
    later_row: Bools


def copy_subjects(
    data: AuditData,
    chosen: list[Cut],
    *,
    visits_after: Callable[[Cut], Ints],
    rows_after: bool,
    end: bool,
) -> Copies:
    """One copy of its subject for each cut: the past as it is, then other visits.

    Args:
        data: The audited run.
        chosen: Cuts.
        visits_after: Which visits, of anybody, come after the cut.
        rows_after: Whether the subject's own later prediction times stay (their visits must then stay too).
        end: Whether a query after everything makes the loader read all of it.
    """
    timelines, rows = data.asked.timelines, data.asked.rows
    visit_ids, row_ids = list[Ints](), list[Ints]()
    for cut in chosen:
        visit_ids.append(
            np.r_[np.arange(cut.first_visit, cut.first_visit + cut.past_visits), visits_after(cut)]
        )
        own = np.arange(cut.first_row, cut.last_row if rows_after else cut.row + 1)
        row_ids.append(np.r_[own, cut.row] if end else own)
    n_visits, n_rows = np.array([len(v) for v in visit_ids]), np.array([len(r) for r in row_ids])
    subjects, visits, row = (
        np.array([cut.subject for cut in chosen]),
        np.concatenate(visit_ids),
        np.concatenate(row_ids),
    )
    codes, visit_offsets = ragged(timelines.visit_offsets, visits)
    people = timelines.take(subjects)
    place = _places(n_visits)
    made = replace(
        people,
        subject_offsets=np.r_[0, np.cumsum(n_visits)],
        visit_offsets=visit_offsets,
        codes=np.array(timelines.codes[codes]),
        values=np.array(timelines.values[codes]),
        **{
            f: np.array(getattr(timelines, f)[visits])
            for f in ("start_us", "end_us", "age_years", "delta_days")
        },
    )
    past = np.array([cut.past_visits for cut in chosen])
    later_row = row > np.repeat([cut.row for cut in chosen], n_rows)
    asked = rows.select(row, np.r_[0, np.cumsum(n_rows)])
    last = np.cumsum(n_rows) - 1
    if end:
        later_row[last] = True
        seen, is_query = np.array(asked.visits_before), np.array(asked.is_query)
        moment = np.array(asked.prediction_us)
        seen[last], is_query[last] = n_visits, True
        unfinished = np.array(asked.unfinished_codes)
        unfinished[last] = 0
        moment[last] = np.maximum(moment[last], int(made.end_us.max(initial=0))) + DAY_US
        asked = replace(
            asked,
            visits_before=seen,
            is_query=is_query,
            prediction_us=moment,
            unfinished_codes=unfinished,
        )
    later_visit = place >= np.repeat(past, n_visits)
    shown = np.diff(visit_offsets)  # of each visit's codes
    known = np.array([int(rows.unfinished_codes[cut.row]) for cut in chosen])
    shown[(made.subject_offsets[:-1] + past - 1)[known > 0]] = known[known > 0]
    shown[later_visit] = 0
    later_code = _places(np.diff(visit_offsets)) >= np.repeat(shown, np.diff(visit_offsets))
    return Copies(TaskRecords(made, asked), later_visit, later_code, later_row)


def _places(lengths: Ints) -> Ints:
    """0, 1 … within each of several runs."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def noisy(
    data: AuditData, copies: Copies, rng: np.random.Generator, *, past: bool = False
) -> Copies:
    """Replace what stands after the cut by noise: codes, values, ages, gaps, stamps; with `past`, what stands before.

    Half of the tokens become random ones, and nothing else stays.
    """
    old, asked = copies.records.timelines, copies.records.rows
    visit = ~copies.later_visit if past else copies.later_visit
    row = ~copies.later_row if past else copies.later_row
    token = ~copies.later_code if past else copies.later_code
    codes, values = np.array(old.codes), np.array(old.values)
    _scramble(data, codes, values, token, rng)
    carry = np.repeat(row & asked.is_query, np.diff(asked.carry_offsets))
    carry_codes, carry_values = np.array(asked.carry_codes), np.array(asked.carry_values)
    _scramble(data, carry_codes, carry_values, carry, rng)

    def other(array: NDArray[Any], chosen: Bools, noise: Floats) -> NDArray[Any]:
        return np.where(chosen, noise.astype(array.dtype), array)

    n, r = len(visit), len(row)
    shift = rng.integers(1, 400, n) * DAY_US
    timelines = replace(
        old,
        codes=codes,
        values=values,
        age_years=other(old.age_years, visit, rng.uniform(0, 120, n)),
        delta_days=other(old.delta_days, visit, rng.exponential(100, n)),
        start_us=old.start_us + np.where(visit & (not past), shift, 0),
        end_us=old.end_us + np.where(visit & (not past), shift, 0),
    )
    rows = replace(
        asked,
        carry_codes=carry_codes,
        carry_values=carry_values,
        age_years=other(asked.age_years, row, rng.uniform(0, 120, r)),
        delta_days=other(asked.delta_days, row, rng.exponential(100, r)),
    )
    return replace(copies, records=TaskRecords(timelines, rows))


def _scramble(
    data: AuditData, codes: Ints32, values: Floats32, chosen: Bools, rng: np.random.Generator
) -> None:
    swap = chosen & (rng.random(len(codes)) < 0.5)
    codes[swap] = rng.integers(1, max(len(data.vocabulary), 2), int(swap.sum()))
    number = chosen & ~np.isnan(values[:, 0])
    values[number] = rng.normal(size=(int(number.sum()), 2))


def answers(data: AuditData, records: TaskRecords) -> Floats:
    """(R, ·) logits at every row, through the loader and the model, as predictions are made; NaN without an answer.

    Of a blend, also the logarithms of the blended hazards.
    """
    loader = SubjectLoader(
        records, queries=not data.run.is_visit_head, code_types=data.run.code_types
    )
    out: Floats | None = None
    with torch.no_grad():
        for step in loader.in_order(visit_budget=VISIT_BUDGET):
            logits = (
                data.model(step.batch).double().flatten(1)
                if not data.run.is_visit_head
                else data.model(step.batch)
            )
            found = logits.double().view(len(logits), -1).numpy()
            if data.model.config.outcomes:
                found = np.concatenate([found, _outcome_logits(data, step.batch)], axis=1)
            out = np.full((len(records), found.shape[1]), np.nan) if out is None else out
            out[step.rows] = found[step.positions]
    if out is not None and data.run.blend is not None:
        blended = [
            np.log(hazards).reshape(len(hazards), -1)
            for _, hazards in data.run.answers.hazards(records)
        ]
        out = np.concatenate([out, np.concatenate(blended)], axis=1)
    return out if out is not None else np.full((len(records), 1), np.nan)


def _outcome_logits(data: AuditData, batch: VisitBatch) -> Floats:
    """(N, ·) log-hazards of some outcomes, spread over all of them: they are functions of one state."""
    assert data.model.outcomes is not None
    count = data.model.config.outcomes
    chosen = torch.arange(0, count, 1 + count // MOST_OUTCOMES)
    _, states = data.model.states(batch)
    return np.asarray(data.model.outcomes.log_hazards(states, chosen).double().flatten(1).numpy())


def movement(before: Floats, after: Floats) -> Floats:
    """(R,) largest change of a logit relative to max(1, |logit|); infinite where one of both has no answer, else 0."""
    both = ~np.isnan(before).any(axis=1) & ~np.isnan(after).any(axis=1)
    neither = np.isnan(before).any(axis=1) & np.isnan(after).any(axis=1)
    moved = np.where(neither, 0.0, np.inf)
    scale = np.maximum(1.0, np.abs(before[both]))
    moved[both] = (np.abs(after[both] - before[both]) / scale).max(axis=1, initial=0.0)
    return moved


def reacts(data: AuditData) -> bool:
    """Whether a changed past moves any answer; where it does not, that nothing else moves one proves nothing."""
    if data.reaction is None:
        chosen = cuts(data, share=8)
        dropped = copy_subjects(
            data, chosen, visits_after=lambda cut: NONE, rows_after=False, end=False
        )
        past = noisy(data, dropped, data.rng(14), past=True)
        before = answers(data, dropped.records)
        data.reaction = float(movement(before, answers(data, past.records)).max(initial=0.0))
    return data.reaction >= MOVES


VACUOUS = (
    "the model gives the same prediction whatever the past, so that nothing could have changed"
)


def judge_movement(
    data: AuditData, moved: Floats, *, leak: str, clean: str, tested: dict[str, int]
) -> Finding:
    """The verdict of a check in which no answer may move.

    Args:
        data: The audited run.
        moved: (n,) from `movement`.
        leak: What happened to the answers that moved, for "N % of the predictions …".
        clean: The reason of a pass.
        tested: Counts to show.
    """
    worst = float(moved.max(initial=0.0))
    measured = worst if np.isfinite(worst) else None
    if worst > MOVED:
        return Finding(
            "leak",
            f"{np.mean(moved > MOVED):.0%} of the predictions {leak}",
            tested,
            measured,
            MOVED,
        )
    if not reacts(data):
        return Finding("not_tested", VACUOUS, tested, measured, MOVED)
    return Finding("passed", clean, tested, measured, MOVED)


def prefix_equality(data: AuditData) -> Finding:
    """Cut the records at p, encode them again, and ask again."""
    if data.source is None:
        return no_source(data)
    if data.task.index.file is not None:
        return Finding("not_tested", "index.file does not know the ids of records that are cut")
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


CHECKS = (
    Check(
        "prefix_equality",
        "Does the record up to a prediction time give the same prediction as the whole record?",
        prefix_equality,
    ),
)
