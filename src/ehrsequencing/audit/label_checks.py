"""Checks the labels against the records, their moments, and that every subject is in one split only."""

from pathlib import Path

import numpy as np

from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding, count_text, judge, no_source
from ehrsequencing.audit.source import Source, follow_up
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import BIRTH, DAY_US, STATIC, Events, parse_date_us
from ehrsequencing.records.labels import read_index_times
from ehrsequencing.records.timelines import TaskRows

SLACK_DAYS = 1e-6  # a tenth of a second: durations are days in float64


def same_instant(data: AuditData) -> Finding:
    """A prediction time lies before the end of its follow-up, and after any blanking."""
    bad = total = 0
    for rows in (records.rows for records in data.records.values()):
        duration, entry = rows.duration_days, rows.entry_days
        bad += int((~(duration > 0) | ~(duration > entry)).sum())
        total += len(rows)
    what = "prediction times lie at or after the outcome or the end of follow-up"
    clean = "every prediction time lies before the end of its follow-up"
    return judge(bad, of=total, what=what, clean=clean, tested={"rows": total})


def labels_agree(data: AuditData) -> Finding:
    """All prediction times of one index end in the same event at the same instant."""
    bad = total = 0
    for rows in (records.rows for records in data.records.values()):
        if not len(rows):
            continue
        index = rows.index_us
        group = np.r_[0, np.cumsum((np.diff(rows.subject) != 0) | (np.diff(index) != 0))]
        first = np.searchsorted(group, group)  # the first row of each row's group
        since_first = (rows.prediction_us - rows.prediction_us[first]) / DAY_US
        end = since_first + rows.duration_days
        cause = rows.cause
        apart = ~(np.abs(end - end[first]) <= SLACK_DAYS) | (cause != cause[first])
        if data.task.recurrent:  # the end moves on when it has been reached, and only then
            moved = ~(np.abs(np.diff(end)) <= SLACK_DAYS) | (np.diff(cause) != 0)
            too_soon = since_first[1:] < end[:-1] - SLACK_DAYS
            apart = np.r_[False, moved & too_soon & (np.diff(group) == 0)]
        bad += int((apart | (since_first < 0)).sum())
        bad += int((np.diff(rows.visits_before)[np.diff(group) == 0] < 0).sum())
        total += len(rows)
    what = "labels do not fit the other labels of the same person"
    clean = "all labels of one person end at one instant, in one event"
    return judge(bad, of=total, what=what, clean=clean, tested={"rows": total})


def labels_in_records(data: AuditData) -> Finding:
    """Index, end of follow-up and cause of the sampled subjects, read from the records again by simple loops."""
    if data.source is None:
        return no_source(data)
    causes = [
        CodeMatcher(patterns, parents=data.source.parents)
        for patterns in data.task.patterns.values()
    ]
    code = data.task.censoring.code
    censoring = CodeMatcher(code, parents=data.source.parents) if code else None
    bad = {
        "after the outcome": 0,
        "after the end of follow-up": 0,
        "with another end": 0,
        "with another index": 0,
    }
    total = subjects = 0
    for name in SPLITS:
        timelines, rows = data.records[name].timelines, data.records[name].rows
        for subject in data.sample[name].tolist():
            events = data.source.records[int(timelines.subject_id[subject])]
            recurring = len(data.task.outcome) if data.task.recurrent else 0
            known, subjects = (
                follow_up(events, causes, censoring, recurring=recurring),
                subjects + 1,
            )
            starts = _indexes(data, data.source, events)
            for row in range(int(rows.row_offsets[subject]), int(rows.row_offsets[subject + 1])):
                p, index_us = int(rows.prediction_us[row]), int(rows.index_us[row])
                end_us, cause = known.end(
                    index_us, data.task, dataset_end_us=data.source.dataset_end_us, moment_us=p
                )
                if known.event_us is not None and p >= known.event_us:
                    bad["after the outcome"] += 1
                elif p >= end_us:
                    bad["after the end of follow-up"] += 1
                elif not _same_label(rows, row, end_us, cause):
                    bad["with another end"] += 1
                elif starts is not None and index_us not in starts:
                    bad["with another index"] += 1
                total += 1
    parts = [f"{count_text(n)} {what}" for what, n in bad.items() if n]
    what = f"labels do not follow from the records: {', '.join(parts)}"
    clean = "every sampled label follows from the records"
    return judge(
        sum(bad.values()),
        of=total,
        what=what,
        clean=clean,
        tested={"subjects": subjects, "rows": total},
    )


def _same_label(rows: TaskRows, row: int, end_us: int, cause: int) -> bool:
    days = (end_us - int(rows.prediction_us[row])) / DAY_US
    return (
        int(rows.cause[row]) == cause and abs(float(rows.duration_days[row]) - days) <= SLACK_DAYS
    )


def _indexes(data: AuditData, source: Source, events: Events) -> set[int] | None:
    """The moments that may be an index of this record; None where the visits decide (their stamps are checked)."""
    index = data.task.index
    if index.first_visit:
        return None
    if index.file is not None:
        if not Path(index.file).exists():
            return None
        _, found = read_index_times(Path(index.file), cohort_id=index.cohort_id).of(
            events.subject_id[:1]
        )
        chosen = found if index.which == "every" else found[:1]
        return {int(moment) + round(index.after * DAY_US) for moment in chosen}
    if index.date is not None:
        return {parse_date_us(index.date)}
    timed = events.time_us != STATIC
    if index.age is not None:
        birth = events.time_us[timed & events.is_code(BIRTH)]
        return {int(moment) + round(index.age * DAY_US) for moment in birth[:1]}
    matcher = CodeMatcher(index.code or (), parents=source.parents)
    moments = np.sort(events.time_us[timed & matcher.events(events)])
    chosen = moments if index.which == "every" else moments[:1]
    return {int(moment) + round(index.after * DAY_US) for moment in chosen}


def splits(data: AuditData) -> Finding:
    """Nobody is in two splits, or twice in one."""
    ids = np.concatenate([data.records[name].timelines.subject_id for name in SPLITS])
    distinct = len(np.unique(ids))
    what = "subjects are in more than one split, or twice in one"
    clean = "every subject is in one split, once"
    return judge(
        len(ids) - distinct, of=distinct, what=what, clean=clean, tested={"subjects": distinct}
    )


CHECKS = (
    Check(
        "same_instant",
        "Does every prediction come before the outcome, never at its very instant?",
        same_instant,
    ),
    Check(
        "labels_agree",
        "Do all labels of one person name the same outcome at the same time?",
        labels_agree,
    ),
    Check(
        "labels_in_records",
        "Are outcome and end of follow-up those of the records?",
        labels_in_records,
    ),
    Check("splits", "Is nobody in both training and test?", splits),
)


def outcomes_in_records(data: AuditData) -> Finding:
    """Events of every outcome of the sampled subjects, read from the records again by simple loops."""
    if data.source is None:
        return no_source(data)
    names, store = data.run.outcomes, data.prepared
    if store.outcomes(data.task.name) != names:
        return Finding(
            "leak", "the run's outcomes are not those of its prepared set", {"outcomes": len(names)}
        )
    number = {code: k for k, code in enumerate(names)}
    bad = total = subjects = 0
    for split in SPLITS:
        records = store.outcome_records(data.task.name, split)
        assert records.outcomes is not None
        for subject in data.sample[split].tolist():
            events = data.source.records[int(records.timelines.subject_id[subject])]
            earliest = dict[int, int]()
            for code, moment in zip(events.code.tolist(), events.time_us.tolist(), strict=True):
                place = number.get(events.codes[code])
                if place is not None and moment != STATIC:
                    earliest[place] = min(moment, earliest.get(place, moment))
            expected = set(earliest.items())
            low, high = records.outcomes.outcome_offsets[subject : subject + 2].tolist()
            codes, moments = (
                records.outcomes.outcome_codes[low:high],
                records.outcomes.outcome_us[low:high],
            )
            bad += len(expected ^ set(zip(codes.tolist(), moments.tolist(), strict=True)))
            total, subjects = total + len(expected), subjects + 1
    what = "events of outcomes are not those of the records"
    clean = "every sampled event of an outcome is in the records, and none is missing"
    return judge(
        bad, of=total, what=what, clean=clean, tested={"subjects": subjects, "events": total}
    )


OUTCOME_CHECKS = (
    Check(
        "outcomes_in_records",
        "Are the events of all outcomes those of the records?",
        outcomes_in_records,
    ),
)
