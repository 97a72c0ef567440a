"""A few subjects for the report: their visits, their risk at every prediction time, whole curves, and what happened.

A run and a population go in, rows of `trajectories` come out. Subjects get letters instead of ids, and days since the
index instead of dates. The rows are individual data: they never enter a file that may be shared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.explain import Question, change, subject_records
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.predictors.predictor import member_band
from ehrsequencing.records.codes import read_descriptions
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.results.result_types import Trajectory

LONGEST_TRAJECTORY = 40  # prediction times, and visits before the last of them
CURVE_POINTS = 40  # of a whole risk curve
SIMULATED_TRAJECTORIES = 4  # nobody else is shown
MOVES = 3  # changes of the risk that are explained
CURVES = 5  # prediction times whose whole curve is kept
# share of the main horizon that must be left before the event or the end at the time that is shown
LEFT_TO_SEE = 0.25


def trajectories(
    source: Evaluated,
    population: Population,
    risk: Floats,
    *,
    wanted: int,
    horizon_days: float,
) -> list[Trajectory]:
    """A few subjects, half of them with the event, spread over the risk at their last prediction.

    Args:
        source: Whose risks; a run also gives whole curves, and members of an ensemble a band around them.
        population: The subjects.
        risk: (R, causes, H) at the horizons.
        wanted: How many subjects.
        horizon_days: By when is the risk that is followed over time.
    """
    records = population.records
    chosen = choose(records.rows, risk, wanted=wanted)
    rows = [
        _risks(chr(65 + k), subject, records.rows, risk, source.task, horizon_days)
        for k, subject in enumerate(chosen)
    ]
    known = {} if population.source is None else read_descriptions(population.source)
    lines, words = records.timelines, source.vocabulary
    for row, subject in zip(rows, chosen, strict=True):
        # what was recorded until the time that is shown: days, codes, and descriptions of those that have one
        now = _own(records.rows, subject)[row["now"]]
        first, origin = int(lines.subject_offsets[subject]), int(records.rows.index_us[now])
        last = first + int(records.rows.visits_before[now])
        for visit in range(first, last)[-LONGEST_TRAJECTORY:]:
            ids = words.base[lines.codes[slice(*lines.visit_offsets[visit : visit + 2])]]
            codes = dict.fromkeys(words.tokens[k] for k in ids.tolist() if k >= words.n_unknown)
            day = round(float((lines.start_us[visit] - origin) / DAY_US), 2)
            row["visits"].append({"day": day, "codes": list(codes)})
        names = {code for visit in row["visits"] for code in visit["codes"]}
        row["descriptions"] = {code: known[code] for code in sorted(names) if known.get(code)}
        if source.run is None or not source.is_curve:
            continue
        # whole curves from a few prediction times, and the band of the members where there are several
        alone, horizons, times = (
            records.take(np.array([subject])),
            row["horizons_days"],
            row["times_days"],
        )
        spaced = np.linspace(0, horizons[-1], CURVE_POINTS + 1)[1:]
        days, start = np.unique(np.r_[spaced, horizons]), source.task.blanking
        offset, last = len(alone.rows) - len(times), len(times) - 1
        at = sorted({round(k * last / (CURVES - 1)) for k in range(CURVES)} | {row["now"]})
        whole, of_members = source.predictor.risk_of_members(alone, days, start_days=start)
        row |= {"curve_days": days.round(2).tolist(), "curve_at": at, "full": {}}
        for e, name in enumerate(source.task.causes):
            row["full"][name] = whole[offset:][at, e].round(4).tolist()
        if len(of_members):
            ends = [
                end.round(4).tolist() for end in member_band(of_members[:, offset + row["now"]])
            ]
            row["band"] = {
                name: {"low": low, "high": high}
                for name, low, high in zip(source.task.causes, *ends, strict=True)
            }
    if source.run is not None and source.is_curve and population.source is not None:
        question = Question.for_run(source.run, horizon_days=horizon_days)
        _add_moves(rows, chosen, records, question, population.source)
    return rows


def choose(rows: TaskRows, risk: Floats, *, wanted: int) -> list[int]:
    """Subjects with at least three prediction times, half of them with the event of interest."""
    offsets = rows.row_offsets
    long = np.flatnonzero(np.diff(offsets) >= 3)
    had = rows.cause[np.maximum(offsets[long + 1] - 1, 0)] == 1
    chosen: list[int] = []
    for group in (long[had], long[~had]):
        count = min(len(group), (wanted + 1) // 2)
        by_risk = group[np.argsort(risk[offsets[group + 1] - 1, 0, -1])]
        chosen += (
            by_risk[np.linspace(0, len(by_risk) - 1, count + 2)[1:-1].astype(int)].tolist()
            if count
            else []
        )
    return chosen[:wanted]


def _own(rows: TaskRows, subject: int) -> Ints:
    start, stop = rows.row_offsets[subject : subject + 2]
    return np.arange(start, stop)[-LONGEST_TRAJECTORY:]


def _risks(
    label: str, subject: int, rows: TaskRows, risk: Floats, task: TaskConfig, horizon_days: float
) -> Trajectory:
    """Risk by each horizon at every prediction time, what happened, and which prediction time is shown in full."""
    own = _own(rows, subject)
    times = (rows.prediction_us[own] - rows.index_us[own]) / DAY_US
    cause, end = int(rows.cause[own[-1]]), float(times[-1] + rows.duration_days[own[-1]])
    left = LEFT_TO_SEE * horizon_days
    early = np.flatnonzero(end - times >= left)
    return {
        "label": label,
        "risk_horizon_days": horizon_days,
        "outcome": f"{task.causes[cause - 1] if cause else 'event-free'} at {format_days(float(round(end)))}",
        "event": {"day": round(end, 2), "cause": task.causes[cause - 1] if cause else None},
        "times_days": [round(float(t), 2) for t in times],
        "now": int(early[-1]) if len(early) else 0,
        "kind": np.where(rows.is_query[own], "query", "visit").tolist(),
        "curves": {name: risk[own, e].round(4).tolist() for e, name in enumerate(task.causes)},
        "horizons_days": list(task.horizons),
        "visits": [],
        "descriptions": {},
    }


def _add_moves(
    rows: list[Trajectory],
    chosen: Sequence[int],
    records: TaskRecords,
    question: Question,
    data: Path,
) -> None:
    """Add `moves`: the largest changes of the risk in question up to `now`, and which codes made them.

    The parts of a change add up to it (`explain/deletions.py`). Without the records there are no moves.
    """
    ids = [int(records.timelines.subject_id[subject]) for subject in chosen]
    cause = question.run.task.causes[question.cause]
    try:
        record_of = {
            record.subject_id: record
            for record in subject_records(
                NewRecords(question.run, data, only=frozenset(ids)), set(ids)
            )
        }
    except EhrseqError:
        return
    for row, subject, who in zip(rows, chosen, ids, strict=True):
        if who not in record_of:
            continue
        own = _own(records.rows, subject)[: row["now"] + 1]
        moments_us = record_of[who].moments.prediction_us
        places = np.searchsorted(moments_us, records.rows.prediction_us[own])
        at = row["horizons_days"].index(row["risk_horizon_days"])
        risk = [risks[at] for risks in row["curves"][cause]][: row["now"] + 1]
        largest = sorted(np.argsort(-np.abs(np.diff(risk)), kind="stable")[:MOVES].tolist())
        row["moves"] = []
        for k in largest:
            if places[k + 1] != places[k] + 1:
                continue
            before, after, moved = change(question, record_of[who], row=int(places[k + 1]))
            parts: list[dict[str, Any]] = [
                {"code": part.code, "codes": part.codes, "change": round(part.change, 5)}
                for part in moved
            ]
            row["moves"].append(
                {
                    "day": row["times_days"][k + 1],
                    "before": round(before, 5),
                    "after": round(after, 5),
                    "parts": parts,
                }
            )
