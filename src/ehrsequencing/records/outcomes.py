"""Many outcomes at once: when each code was recorded, labels of prediction times, and which codes are common enough.

Events are kept per subject, not per prediction time: one record of a code labels every prediction time before it. The
loader makes the labels of a batch from them (`outcome_labels`), so that files and memory hold each event once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import OutcomesConfig, TaskConfig
from ehrsequencing.core.arrays import Floats, Ints, Ints32, offsets, ragged
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import BIRTH, DAY_US, DEATH, STATIC, opens_run
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.timelines import (
    ArrayAppender,
    OutcomeEvents,
    TaskRecords,
    TaskRows,
    open_arrays,
)
from ehrsequencing.records.visits import Record

ROWS_AT_ONCE = 20_000  # prediction times looked at together; the time grid is fitted on about so many rows' outcomes


def find_outcomes(record: Record, matcher: CodeMatcher) -> OutcomeEvents:
    """First events of a shard's subjects; an outcome's number is that of its code in the shard's `Events.codes`.

    Birth, death and what ends a follow-up are taken out later.
    """
    events = record.events
    rows = np.flatnonzero(matcher.events(events) & (events.time_us != STATIC))
    subject, code, time_us = record.subject[rows], events.code[rows], events.time_us[rows]
    order = np.lexsort((time_us, code, subject))
    subject, code, time_us = subject[order], code[order], time_us[order]
    first = np.flatnonzero(opens_run(subject, code))
    return OutcomeEvents(
        offsets(subject[first], len(record.subject_id)), code[first], time_us[first]
    )


def renumbered(events: OutcomeEvents, numbers: Ints32) -> OutcomeEvents:
    """The events with other numbers of outcomes, sorted by them; those whose new number is −1 are left out."""
    code = numbers[events.outcome_codes]
    subject = np.repeat(np.arange(len(events.outcome_offsets) - 1), np.diff(events.outcome_offsets))
    rows = np.flatnonzero(code >= 0)
    rows = rows[np.lexsort((code[rows], subject[rows]))]  # stable: times stay in order
    return OutcomeEvents(
        offsets(subject[rows], len(events.outcome_offsets) - 1),
        code[rows].astype(np.int32),
        events.outcome_us[rows],
    )


@dataclass(frozen=True)
class ListedPairs:
    """Pairs of a prediction time and an outcome with an event within its follow-up, or without risk."""

    row: Ints  # (m,) position among the rows asked about, ascending
    code: Ints  # (m,)
    days: Floats  # (m,) from the prediction time to the event; 0: not at risk


def outcome_labels(events: OutcomeEvents, rows: TaskRows, chosen: Ints) -> ListedPairs:
    """Labels of some prediction times.

    An outcome's event is its first record, if it comes after the prediction time and until the follow-up's end, that
    instant included. Its exposure ends there, and at the follow-up's end without one. A row after the first record is
    not at risk, nor is one whose event falls into the blanking.

    Args:
        events: Of the same subjects as `rows`.
        rows: The task's prediction times.
        chosen: (r,) rows asked about; with labels.
    """
    subject = np.searchsorted(rows.row_offsets, chosen, side="right") - 1
    item, bounds = ragged(events.outcome_offsets, subject)
    row = np.repeat(np.arange(len(chosen)), np.diff(bounds))
    of_row = chosen[row]
    days = (events.outcome_us[item] - rows.prediction_us[of_row]) / DAY_US
    observed = np.flatnonzero(days <= rows.duration_days[of_row])
    days = np.where(days > rows.entry_days[of_row], days, 0.0)
    code = events.outcome_codes[item].astype(np.int64)
    return ListedPairs(row[observed], code[observed], days[observed])


def with_outcome_events(records: TaskRecords) -> tuple[Floats, NDArray[np.int8], Ints]:
    """What the time grid is fitted on: the follow-up of all prediction times, and outcomes' events at some of them.

    Args:
        records: With outcomes.

    Returns:
        (n,) durations, causes (0: censored; an outcome's event is 1) and subjects, sorted by subject.
    """
    rows = records.rows
    some = np.arange(0, len(rows), 1 + len(rows) // ROWS_AT_ONCE)
    listed = outcome_labels(cast(OutcomeEvents, records.outcomes), rows, some)
    event = listed.days > 0
    duration = np.r_[rows.duration_days, listed.days[event]]
    cause = np.r_[rows.cause, np.ones(int(event.sum()), dtype=np.int8)]
    subject = np.r_[rows.subject, rows.subject[some[listed.row[event]]]]
    order = np.argsort(subject, kind="stable")
    return duration[order], cause[order], subject[order]


def already_had(events: OutcomeEvents, rows: TaskRows) -> tuple[Ints, Ints]:
    """Pairs (row, outcome) whose outcome was recorded at or before the prediction time; needs no labels."""
    item, bounds = ragged(events.outcome_offsets, rows.subject)
    row = np.repeat(np.arange(len(rows)), np.diff(bounds))
    had = np.flatnonzero(events.outcome_us[item] <= rows.prediction_us[row])
    return row[had], events.outcome_codes[item[had]].astype(np.int64)


OUTCOMES_FILE = "outcomes.json"  # of a task and of a run: the codes, in the order of their numbers
_CHUNK = 20_000  # subjects looked at together


def choose_outcomes(
    folder: Path,
    matches: Path,
    task: TaskConfig,
    codes: Sequence[str],
    parents: Mapping[str, list[str]],
) -> dict[str, Any]:
    """Keep the outcomes that enough training subjects have after a prediction time, and write their events.

    Args:
        folder: The task's folder in a prepared set that is being made, with the task's prediction times.
        matches: Folder with the events of each split; their numbers are places in `codes`.
        task: With `outcomes`.
        codes: All codes of the data set.
        parents: Of each code.

    Returns:
        For `attrition.json`: how many codes are kept, how many are too rare, how many are births, deaths, causes or
        censoring codes, and the patterns that match no code.

    Raises:
        EhrseqError: No code is common enough.
    """
    settings = cast(OutcomesConfig, task.outcomes)
    subjects = np.zeros(len(codes), dtype=np.int64)
    for events, rows in _chunks(folder / "train", matches / "train"):
        # how many subjects have an event of each outcome after one of their prediction times
        listed = outcome_labels(events, rows, np.arange(len(rows)))
        is_event = listed.days > 0
        pairs = np.unique(rows.subject[listed.row[is_event]] * len(codes) + listed.code[is_event])
        subjects += np.bincount(pairs % len(codes), minlength=len(codes))
    ends = [BIRTH, DEATH, *(code for patterns in task.patterns.values() for code in patterns)]
    is_end = CodeMatcher(
        [*ends, *(task.censoring.code or ()), *(task.censoring.start or ())], parents=parents
    ).mask(tuple(codes))
    matched = {
        pattern: CodeMatcher([pattern], parents=parents, confirmed=True).mask(tuple(codes))
        for pattern in settings.codes
    }
    any_of = np.logical_or.reduce(list(matched.values()))
    chosen = np.flatnonzero((subjects >= settings.min_subjects) & any_of & ~is_end)
    if not len(chosen):
        raise EhrseqError(
            f"no code has an event in {settings.min_subjects} training subjects",
            where=f"task {task.name}, outcomes",
            fix="lower outcomes.min_subjects, or correct outcomes.codes",
        )
    chosen = np.array(sorted(chosen.tolist(), key=lambda k: codes[k]))
    numbers = np.full(len(codes), -1, dtype=np.int32)
    numbers[chosen] = np.arange(len(chosen))
    with ExitStack() as stack:
        writer = ArrayAppender(stack)
        for split in SPLITS:
            for events, _ in _chunks(folder / split, matches / split):
                writer.append(folder / split, renumbered(events, numbers))
    write_json(folder / OUTCOMES_FILE, {"codes": [codes[k] for k in chosen.tolist()]})
    return {
        "kept": len(chosen),
        "rare": int((any_of & ~is_end).sum()) - len(chosen),
        "ends": int((any_of & is_end).sum()),
        "unmatched": [pattern for pattern, hits in matched.items() if not hits.any()],
    }


def _chunks(rows: Path, events: Path) -> Iterator[tuple[OutcomeEvents, TaskRows]]:
    """Events and prediction times of some subjects after others; of no subjects where there are none."""
    all_events, all_rows = open_arrays(OutcomeEvents, events), open_arrays(TaskRows, rows)
    for start in range(0, max(len(all_events.outcome_offsets) - 1, 1), _CHUNK):
        part = slice(start, min(start + _CHUNK, len(all_events.outcome_offsets) - 1))
        yield all_events.take(part), all_rows.take(part)


def read_outcomes(folder: Path) -> list[str]:
    """The codes of a task's or a run's outcomes; a code's place is its number."""
    stored = read_json(folder / OUTCOMES_FILE)
    codes = stored.get("codes") if isinstance(stored, dict) else None
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise EhrseqError(
            "holds no list of codes", where=str(folder / OUTCOMES_FILE), fix="make the folder again"
        )
    return list(codes)
