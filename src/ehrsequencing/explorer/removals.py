"""Every single removal, computed in advance: a code struck everywhere, a visit struck, and the risk without it.

The file holds no model. What it answers is listed here first (`single_removals`), which also tells how many answers
there are, and then computed by exact deletion (`removed_risks`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats32, Ints, offsets
from ehrsequencing.explain import Edit, edited_risks, subject_records
from ehrsequencing.explorer.codes import ShownCodes
from ehrsequencing.explorer.patients import Gathered, Patients
from ehrsequencing.prediction.predict import NewRecords

Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Removals:
    """E edits of the patients of a page: codes by their numbers, then visits by theirs.

    Attributes:
        edit_offsets: (S+1,) patient s owns edits `[offsets[s], offsets[s+1])`.
        target: (E,) a shown code, or D + the number of the patient's visit.
        first_row: (E,) number, among the patient's prediction times, of the first that has an answer.
        answer_offsets: (E+1,) an edit owns the answers `[offsets[e], offsets[e+1])`, one a prediction time from
            `first_row` on.
    """

    edit_offsets: Ints
    target: Ints
    first_row: Ints
    answer_offsets: Ints

    def __len__(self) -> int:
        return len(self.target)

    @property
    def answers(self) -> int:
        """How many answers there are."""
        return int(self.answer_offsets[-1])


def single_removals(patients: Patients, shown: ShownCodes, *, latest_only: bool) -> Removals:
    """What can be struck from each record: everything that was recorded by a prediction time.

    Args:
        patients: The patients.
        shown: Names of their codes.
        latest_only: Whether only the latest prediction time of each patient is answered for.
    """
    n, d = len(patients), len(shown.names)
    visit_owner = np.repeat(np.arange(n), np.diff(patients.visit_offsets))
    number = np.arange(len(visit_owner)) - patients.visit_offsets[visit_owner]
    item_visit = np.repeat(np.arange(len(visit_owner)), np.diff(patients.item_offsets))
    item_owner = visit_owner[item_visit]
    key, first_item = np.unique(
        item_owner * d + shown.of_code[patients.item_code], return_index=True
    )
    owner = np.r_[key // max(d, 1), visit_owner]
    target = np.r_[key % max(d, 1), d + number]
    day = patients.visit_day[np.r_[item_visit[first_item], np.arange(len(visit_owner))]]
    order = np.lexsort((target, owner))
    owner, target, day = owner[order], target[order], day[order]
    first = _first_row(patients, owner, day)
    rows = np.diff(patients.row_offsets)[owner]
    known = np.flatnonzero(first < rows)
    owner, target, first, rows = owner[known], target[known], first[known], rows[known]
    first = rows - 1 if latest_only else first
    ends = np.r_[0, np.cumsum(rows - first)].astype(np.int64)
    return Removals(offsets(owner, n), target, first, ends)


def _first_row(
    patients: Patients, owner: Ints, day: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> Ints:
    """Number of the patient's first prediction time on or after a day."""
    span = 1.0 + max(float(np.max(patients.row_day, initial=0.0)), float(np.max(day, initial=0.0)))
    row_owner = np.repeat(np.arange(len(patients)), np.diff(patients.row_offsets))
    place = np.searchsorted(row_owner * span + patients.row_day, owner * span + day - 1e-6)
    return np.asarray(place - patients.row_offsets[owner], dtype=np.int64)


def removed_risks(
    records: NewRecords,
    gathered: Gathered,
    shown: ShownCodes,
    removals: Removals,
    *,
    recalibrated: bool = False,
    progress: Tick | None = None,
) -> Floats32:
    """(answers, causes, horizons) the risks of the edited records, by the horizons of the task.

    Args:
        records: The data set, read once more.
        gathered: Its patients.
        shown: Names of their codes.
        removals: What is struck.
        recalibrated: Whether the recalibrated model answers.
        progress: Called with (patients done, patients to do).
    """
    patients, run = gathered.patients, records.run
    shape = removals.answers, run.model.config.causes, len(run.task.horizons)
    out = np.empty(shape, dtype=np.float32)
    place = {int(subject): s for s, subject in enumerate(patients.subject_id.tolist())}
    number = {code: k for k, code in enumerate(gathered.codes)}
    for done, record in enumerate(subject_records(records, set(place))):
        s = place[record.subject_id]
        own = range(int(removals.edit_offsets[s]), int(removals.edit_offsets[s + 1]))
        codes = {code for visit in record.codes for code in visit}
        of_shown: dict[int, list[str]] = {}
        for code in codes:
            of_shown.setdefault(int(shown.of_code[number[code]]), []).append(code)
        edits = [edit_of([int(removals.target[e])], of_shown, len(shown.names)) for e in own]
        if not edits:
            continue
        n_rows = len(record.moments)
        start = int(removals.first_row[own.start : own.stop].min())
        risk = edited_risks(
            run, record, edits, rows=range(start, n_rows), recalibrated=recalibrated
        )
        for e, answers in zip(own, risk, strict=True):
            out[slice(*removals.answer_offsets[e : e + 2])] = answers[
                int(removals.first_row[e]) - start :
            ]
        if progress is not None:
            progress(done + 1, len(patients))
    return out


def edit_of(targets: Sequence[int], of_shown: dict[int, list[str]], n_shown: int) -> Edit:
    """What targets remove: visits, and all codes of the data that are shown as one.

    Args:
        targets: Shown codes, and `n_shown` + the number of a visit.
        of_shown: The patient's codes of the data behind each shown code.
        n_shown: How many codes the page shows.
    """
    codes = [code for target in targets if target < n_shown for code in of_shown[target]]
    return Edit(codes=codes, visits=[target - n_shown for target in targets if target >= n_shown])
