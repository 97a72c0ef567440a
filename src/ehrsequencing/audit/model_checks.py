"""Checks that no prediction depends on later visits or on other queries, through the loader that prediction uses."""

from dataclasses import replace

import numpy as np

from ehrsequencing.audit.copies import (
    MOVED,
    NONE,
    Copies,
    Cut,
    answers,
    copy_subjects,
    cuts,
    judge_movement,
    movement,
    noisy,
)
from ehrsequencing.audit.data import AuditData, Check, Finding
from ehrsequencing.core.arrays import Ints
from ehrsequencing.records.timelines import TaskRecords


def future_perturbation(data: AuditData) -> Finding:
    """Visits after each cut are dropped, changed, or replaced by strangers' noise; answers up to it must not move."""
    chosen = cuts(data, share=4)
    own_row = np.concatenate([np.arange(cut.first_row, cut.row + 1) for cut in chosen])
    before = answers(data, data.asked)[own_row]
    rng, n_visits = data.rng(11), len(data.asked.timelines.start_us)

    def own(cut: Cut) -> Ints:
        return np.arange(cut.first_visit + cut.past_visits, cut.last_visit)

    def strangers(cut: Cut) -> Ints:
        return rng.integers(0, max(n_visits, 1), int(rng.integers(1, 7))) if n_visits else NONE

    copies = {
        "dropped": copy_subjects(
            data, chosen, visits_after=lambda cut: NONE, rows_after=False, end=False
        ),
        "changed": noisy(
            data, copy_subjects(data, chosen, visits_after=own, rows_after=True, end=True), rng
        ),
        "appended": noisy(
            data,
            copy_subjects(
                data,
                chosen,
                visits_after=lambda cut: np.r_[own(cut), strangers(cut)],
                rows_after=False,
                end=True,
            ),
            rng,
        ),
        "replaced": noisy(
            data,
            copy_subjects(data, chosen, visits_after=strangers, rows_after=False, end=True),
            rng,
        ),
    }
    moved = {
        name: movement(before, answers(data, c.records)[~c.later_row]) for name, c in copies.items()
    }
    tested = {
        "subjects": len({cut.subject for cut in chosen}),
        "rows": len(before),
        "perturbations": 4 * len(chosen),
    }
    if np.isnan(before).all():
        return Finding("not_tested", "the model gives no prediction at the sampled times", tested)
    bad = [name for name, m in moved.items() if m.max(initial=0.0) > MOVED]
    leak = f"changed when later visits were {' or '.join(bad)}"
    clean = "changing later visits changed no prediction; changing earlier visits did"
    return judge_movement(
        data, np.max(list(moved.values()), axis=0), leak=leak, clean=clean, tested=tested
    )


def queries_are_silent(data: AuditData) -> Finding:
    """Other queries are dropped, or queries of strangers are added between; no other prediction may change."""
    subjects = np.unique([cut.subject for cut in cuts(data, share=4)])
    records = data.asked.take(subjects)
    people, asked = records.timelines, records.rows
    is_query, rng = asked.is_query, data.rng(12)
    tested = {"subjects": len(subjects), "rows": len(asked)}
    if data.run.is_visit_head:
        return Finding("not_tested", "the visit head predicts at visits only", tested)
    before = answers(data, records)
    # A stranger's query in front of every row, and after it: the same moment and view, other contents.
    doubled = np.repeat(np.arange(len(asked)), 3)
    stranger = np.tile([True, False, True], len(asked))
    more = asked.select(doubled, 3 * asked.row_offsets)
    more = replace(more, is_query=more.is_query | stranger)
    no_visit, no_code = (
        np.zeros(len(people.start_us), dtype=bool),
        np.zeros(len(people.codes), dtype=bool),
    )
    noise = noisy(data, Copies(TaskRecords(people, more), no_visit, no_code, stranger), rng)
    moved = movement(before, answers(data, TaskRecords(people, noise.records.rows))[~stranger])
    # Without any queries; and with each subject's last row alone.
    last = np.isin(np.arange(len(asked)), asked.row_offsets[1:] - 1)
    for keep in (~is_query, last):
        kept = np.flatnonzero(keep)
        counts = np.bincount(asked.subject[kept], minlength=len(subjects))
        fewer = TaskRecords(people, asked.select(kept, np.r_[0, np.cumsum(counts)]))
        moved = np.r_[moved, movement(before[kept], answers(data, fewer))]
    tested["perturbations"] = 2 * len(asked) + int(is_query.sum())
    leak, clean = (
        "changed when others were requested",
        "no prediction changed when others were requested",
    )
    return judge_movement(data, moved, leak=leak, clean=clean, tested=tested)


CHECKS = (
    Check(
        "future_perturbation",
        "Does a prediction change when later visits are changed, dropped or added?",
        future_perturbation,
    ),
    Check(
        "queries_are_silent",
        "Does a prediction at one time change the prediction at another?",
        queries_are_silent,
    ),
)
