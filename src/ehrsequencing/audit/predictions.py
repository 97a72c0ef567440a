"""Experiments on predictions: the raw record cut at the prediction time, and another future after it.

Both ask the model through the loader, as predictions are made. `labels_in_records` makes the labels again the same way.
"""

from dataclasses import replace

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, Ints32
from ehrsequencing.records.events import DAY_US, STATIC
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.timelines import TaskRecords, TaskRows

# Of a logit, relative to max(1, |logit|). In float64 another batch changes a network by less than 1e-12 (tested for
# every architecture; in float32 six layers of 256 changed by 3e-5). A blend's features are float32, rounded at 6e-8.
MOVED = 1e-6
MOVES = 1e-3  # what a changed past must change somewhere, or the check is vacuous
MAX_CUTS = 12  # prediction times per subject, drawn at random
MAX_TOKENS = 200_000  # of all copies of one check together
FREE_FLAT_TOKENS = 800  # a flat model's cost of a token doubles with so many others


def answers(data: AuditData, records: TaskRecords) -> Floats:
    """(R, ·) logits at every row, NaN without an answer; of a blend, also the logarithms of the blended hazards."""
    out: Floats = np.full((len(records), 1), np.nan)
    if data.model is not None:
        from ehrsequencing.predictors.network import all_logits

        out = all_logits(data.model, records, code_types=data.run.code_types)
    if data.run.blend is not None:
        logs = np.log(data.run.blend.all_hazards(records)).reshape(len(records), -1)
        out = logs if data.model is None else np.concatenate([out, logs], axis=1)
    return out


def movement(before: Floats, after: Floats) -> Floats:
    """(R,) largest change of a logit relative to max(1, |logit|); infinite where one of both has no answer, else 0."""
    moved = np.abs(after - before) / np.maximum(1.0, np.abs(before))
    moved[(before == after) | (np.isnan(before) & np.isnan(after))] = 0.0
    return np.asarray(np.nan_to_num(moved, nan=np.inf).max(axis=1, initial=0.0))


def cut_rows(data: AuditData) -> Ints:
    """Some prediction times of each drawn subject in random order, as many as the budget of tokens allows."""
    timelines, rows = data.asked.timelines, data.asked.rows
    cost = np.diff(timelines.visit_offsets[timelines.subject_offsets]).astype(np.float64)
    if (
        data.model is not None and data.model.config.architecture == "flat"
    ):  # every token looks at every other
        cost *= 1 + cost / FREE_FLAT_TOKENS
    order = data.rng(10).permutation(len(rows))
    order = order[np.argsort(rows.subject[order], kind="stable")]
    place = np.arange(len(rows)) - rows.row_offsets[rows.subject[order]]
    chosen = data.rng(11).permutation(order[place < MAX_CUTS])
    spent = np.cumsum(cost[rows.subject[chosen]])
    return chosen[: max(1, int(np.searchsorted(spent, MAX_TOKENS, side="right")))]


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
    cut = cut_rows(data)
    reaction = movement(answers(data, data.asked)[cut], _with_noise(data, cut, past=True))
    if reaction.max(initial=0.0) < MOVES:
        return Finding(
            "not_tested",
            "the model gives the same prediction whatever the past, so that nothing could change it",
            tested,
            measured,
            MOVED,
        )
    return Finding("passed", clean, tested, measured, MOVED)


# ---- the raw record, cut at the prediction time ----------------------------------------------------------------------


def prefix_equality(data: AuditData) -> Finding:
    """Cut the records at p, encode them again, and ask again: the same prediction as from the prepared set."""
    rows, cut = data.asked.rows, cut_rows(data)
    inside = np.zeros(len(cut), dtype=bool)
    # where encounters make the visits, later rows decide which of them overlap, also of two that touch at the time
    if data.prepared.study.visits.by == "encounter":
        starts = np.append(data.asked.timelines.start_us, 0)
        visit = data.asked.timelines.subject_offsets[rows.subject[cut]] + rows.visits_before[cut]
        has_next = visit < data.asked.timelines.subject_offsets[rows.subject[cut] + 1]
        inside = has_next & (starts[visit] <= rows.prediction_us[cut])
    before = answers(data, data.asked)[cut]
    parts = []
    for who, moment_us in zip(data.asked.subject_id[cut], rows.prediction_us[cut], strict=True):
        record = data.source.records[int(who)]
        parts.append(record.take(record.time_us <= moment_us))  # STATIC is the smallest of numbers
    has_record = np.array([bool(np.any(part.time_us != STATIC)) for part in parts])
    usable = np.flatnonzero(~inside & has_record & ~np.isnan(before).all(axis=1))
    cut, before = cut[usable], before[usable]
    tested = {
        "subjects": len(np.unique(rows.subject[cut])),
        "rows": len(cut),
        "rows left out (during a visit)": int(inside.sum()),
    }
    if not len(cut):
        return Finding("not_tested", "no sampled time has a record before it", tested)
    moment_us = rows.prediction_us[cut]
    again = data.source.encode(
        [parts[k] for k in usable],
        data.asked.subject_id[cut],
        end_us=int(moment_us.max()),
        labelled=False,
    )
    pair = again.rows.subject
    row = np.flatnonzero(again.rows.prediction_us == moment_us[pair])
    after = np.full_like(before, np.nan)
    after[pair[row]] = answers(data, again)[row]
    return judge_movement(
        data,
        movement(before, after),
        leak="differ from those of the record up to that time, or do not exist there",
        clean="the record up to that time gives the same predictions",
        tested=tested,
    )


# ---- another future --------------------------------------------------------------------------------------------------


def future_perturbation(data: AuditData) -> Finding:
    """Fill later visits, and the questions at other times, with noise: the prediction must not move."""
    cut = cut_rows(data)
    before = answers(data, data.asked)[cut]
    tested = {"subjects": len(np.unique(data.asked.rows.subject[cut])), "rows": len(cut)}
    if np.isnan(before).all():
        return Finding("not_tested", "the model gives no prediction at the sampled times", tested)
    return judge_movement(
        data,
        movement(before, _with_noise(data, cut, past=False)),
        leak="changed with later visits, or with questions at other times",
        clean="changing later visits changed no prediction; changing earlier visits did",
        tested=tested,
    )


def _with_noise(data: AuditData, cut: Ints, *, past: bool) -> Floats:
    """(cuts, ·) answers at the cuts, each from a copy of its subject with noise after the cut, or with `past` before.

    Noise: half of the tokens become random ones; values, ages, gaps and later stamps all do.
    """
    rng, own = data.rng(14), data.asked.rows
    copies = data.asked.take(own.subject[cut])
    old, times = copies.timelines, copies.rows
    row = times.row_offsets[:-1] + cut - own.row_offsets[own.subject[cut]]
    unfinished = own.unfinished_codes[cut]
    n_visits, n_codes = np.diff(old.subject_offsets), np.diff(old.visit_offsets)
    seen = own.visits_before[cut].astype(np.int64) + (unfinished > 0)
    later_visit = _places(n_visits) >= np.repeat(seen, n_visits)
    shown = np.where(later_visit, 0, n_codes)
    inside = np.flatnonzero(unfinished)
    shown[(old.subject_offsets[:-1] + seen - 1)[inside]] = unfinished[inside]
    later_code = _places(n_codes) >= np.repeat(shown, n_codes)
    is_cut = np.isin(np.arange(len(times)), row)
    visit, code = later_visit ^ past, later_code ^ past
    question = times.is_query & (is_cut == past)
    codes, values = _scrambled(data, old.codes, old.values, code, rng)
    shift_us = np.where(visit & (not past), rng.integers(1, 400, len(visit)) * DAY_US, 0)
    timelines = replace(
        old,
        codes=codes,
        values=values,
        age_years=np.where(
            visit, rng.uniform(0, 120, len(visit)).astype(np.float32), old.age_years
        ),
        delta_days=np.where(
            visit, rng.exponential(100, len(visit)).astype(np.float32), old.delta_days
        ),
        start_us=old.start_us + shift_us,
        end_us=old.end_us + shift_us,
    )
    carried = np.repeat(question, np.diff(times.carry_offsets))
    codes, values = _scrambled(data, times.carry_codes, times.carry_values, carried, rng)
    rows: TaskRows = replace(
        times,
        carry_codes=codes,
        carry_values=values,
        age_years=np.where(
            question, rng.uniform(0, 120, len(times)).astype(np.float32), times.age_years
        ),
        delta_days=np.where(
            question, rng.exponential(100, len(times)).astype(np.float32), times.delta_days
        ),
    )
    return np.asarray(answers(data, TaskRecords(timelines, rows))[row])


def _places(lengths: Ints) -> Ints:
    """0, 1 … within each of several runs."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _scrambled(
    data: AuditData, codes: Ints32, values: Floats32, chosen: Bools, rng: np.random.Generator
) -> tuple[Ints32, Floats32]:
    swap = chosen & (rng.random(len(codes)) < 0.5)
    random = rng.integers(1, max(len(data.vocabulary), 2), len(codes))
    number = chosen & ~np.isnan(values[:, 0])
    noise = rng.normal(size=values.shape).astype(np.float32)
    return np.where(swap, random, codes).astype(np.int32), np.where(number[:, None], noise, values)


# ---- labels ----------------------------------------------------------------------------------------------------------


def labels_in_records(data: AuditData) -> Finding:
    """Index, prediction times, ends of follow-up and causes of the drawn subjects, made from the raw records again."""
    bad = total = 0
    for name in SPLITS:
        drawn = data.sample[name]
        ids = data.records[name].timelines.subject_id[drawn]
        again = data.source.encode(
            [data.source.records[who] for who in ids.tolist()],
            ids,
            end_us=min(data.source.dataset_end_us, data.prepared.cut_us(name)),
            labelled=True,
        )
        stored = _labels(data.prepared.outcome_records(data.task.name, name).take(drawn))
        expected = _labels(again)
        bad += len(stored ^ expected)
        total += len(stored | expected)
    return judge(
        bad,
        of=total,
        what="labels are not those that the records give, or are missing",
        clean="every sampled label follows from the records",
        tested={"subjects": sum(map(len, data.sample.values())), "labels": total},
    )


def _labels(records: TaskRecords) -> set[tuple[float, ...]]:
    """Of each prediction time; of many outcomes, their events."""
    names = ("subject", "prediction_us", "index_us", "cause", "duration_days", "entry_days")
    labels: set[tuple[float, ...]] = set(
        zip(*(getattr(records.rows, name).tolist() for name in names), strict=True)
    )
    if records.outcomes is not None:
        events = records.outcomes
        owner = np.repeat(np.arange(len(records.timelines)), np.diff(events.outcome_offsets))
        columns = (owner, events.outcome_codes, events.outcome_us)
        labels.update(zip(*(column.tolist() for column in columns), strict=True))
    return labels


CHECKS = (
    Check(
        "prefix_equality",
        "Does the record up to a prediction time give the same prediction as the whole record?",
        prefix_equality,
        needs_records=True,
    ),
    Check(
        "future_perturbation",
        "Does a prediction change with later visits, or with questions at other times?",
        future_perturbation,
    ),
    Check(
        "labels_in_records",
        "Are index, outcome and end of follow-up those of the records?",
        labels_in_records,
        needs_records=True,
    ),
)
