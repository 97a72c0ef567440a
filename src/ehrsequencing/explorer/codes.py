"""A run and records → everything that an explorer shows: patients, codes, and what the removal of codes does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, offsets
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explain import Edit, edited_risks, subject_records
from ehrsequencing.explorer.patients import (
    ExplorerSettings,
    Gathered,
    Patients,
    curve_days,
    gather,
)
from ehrsequencing.prediction.predict import NewRecords, RiskPredictor, unanswered
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import read_descriptions
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.reporting.patient import kind_of

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

RARE = "rare code"
COMMON = 10  # a code goes along with another if `COMMON` times as many patients have the first as lack the second
MOST_PAIRED = 2000  # codes that are compared with each other


@dataclass(frozen=True)
class ShownCodes:
    """D codes of a page.

    Attributes:
        names: (D,) codes; `RARE` stands for all that few patients have.
        words: (D,) descriptions; the names where there are none.
        units: (D,) units of their numbers, empty where none is known.
        lanes: (D,) kinds of codes, in the field's words.
        is_known: (D,) whether the model has a token for it.
        n_common: How many of them are codes of the data; the others stand for rare ones.
        of_code: (C,) the shown code of each code of the data.
        together: (·, 2) pairs (a, b) of shown codes: hardly any patient has a without b. (b, b): hardly any lacks b.
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    units: tuple[str, ...]
    lanes: tuple[str, ...]
    is_known: Bools
    n_common: int
    of_code: Ints
    together: Ints


def shown_codes(
    patients: Patients,
    codes: tuple[str, ...],
    vocabulary: Vocabulary,
    descriptions: Mapping[str, str],
    *,
    fewest: int,
) -> ShownCodes:
    """What a page calls each code, with those that fewer than `fewest` patients have under one name."""
    has = _carriers(patients, len(codes))
    people = np.asarray(has.sum(axis=0)).ravel()
    common = np.flatnonzero(people >= fewest)
    of_code = np.full(len(codes), len(common), dtype=np.int64)
    of_code[common] = np.arange(len(common))
    names = [codes[k] for k in common.tolist()]
    known = (
        vocabulary.ids(tuple(names)) >= vocabulary.n_unknown if names else np.zeros(0, dtype=bool)
    )
    words, units = words_of(names, descriptions), [unit_of(name) for name in names]
    lanes = [kind_of(name) for name in names]
    if ((people > 0) & (people < fewest)).any():
        names, words, units, lanes = (
            [*names, RARE],
            [*words, RARE],
            [*units, ""],
            [*lanes, "rare codes"],
        )
        known = np.r_[known, True]
    together = _together(has[:, common], fewest=fewest)
    return ShownCodes(
        tuple(names),
        tuple(words),
        tuple(units),
        tuple(lanes),
        known,
        len(common),
        of_code,
        together,
    )


def words_of(names: list[str], descriptions: Mapping[str, str]) -> list[str]:
    """Descriptions; codes that share one also have their names."""
    words = [descriptions.get(name, name) for name in names]
    several = {text for text, count in Counter(words).items() if count > 1}
    return [
        f"{text} ({name})" if text in several else text
        for text, name in zip(words, names, strict=True)
    ]


def unit_of(code: str) -> str:
    """The unit in the name of a code, as `LAB//50912//mg/dL` has it; empty where there is none.

    >>> unit_of("LAB//50912//mg/dL"), unit_of("LAB//227969//UNK"), unit_of("LAB//MARKER")
    ('mg/dL', '', '')
    """
    parts = code.split("//")
    return (
        parts[-1]
        if len(parts) >= 3 and parts[0].upper() in _MEASURED and parts[-1] != "UNK"
        else ""
    )


_MEASURED = {"LAB", "MEASUREMENT", "VITAL", "OBSERVATION"}


def _carriers(patients: Patients, n_codes: int) -> csr_matrix:
    """(S, C) which patient has which code, at any time or without one."""
    from scipy.sparse import csr_matrix

    owner = np.repeat(np.arange(len(patients)), np.diff(patients.visit_offsets))
    owner = np.repeat(owner, np.diff(patients.item_offsets))
    static = np.repeat(np.arange(len(patients)), np.diff(patients.static_offsets))
    at = np.r_[owner, static], np.r_[patients.item_code, patients.static_code]
    has_code = csr_matrix((np.ones(len(at[0]), dtype=np.int32), at), shape=(len(patients), n_codes))
    has_code.data[:] = 1
    return has_code


def _together(has: csr_matrix, *, fewest: int) -> Ints:
    """(·, 2) pairs (a, b): fewer than `fewest` patients have a without b, and many have a.

    A record with a and without b is then unlike any that was seen.
    """
    people = np.asarray(has.sum(axis=0)).ravel()
    chosen = np.sort(np.argsort(-people, kind="stable")[:MOST_PAIRED])
    both = (has[:, chosen].T @ has[:, chosen]).toarray()
    lack = people[chosen][:, None] - both
    pairs = np.argwhere((lack < fewest) & (people[chosen][:, None] >= COMMON * fewest))
    pairs = chosen[pairs[pairs[:, 0] != pairs[:, 1]]]
    always = np.flatnonzero((people > 0) & (has.shape[0] - people < fewest))
    return np.concatenate([np.asarray(pairs, dtype=np.int64), np.stack([always, always], axis=1)])


# ---- what the removal of codes does ---------------------------------------------------------------------------------


Tick = Callable[..., None]  # called with pieces done, pieces in all, and what comes next


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
    # number of the patient's first prediction time on or after the day
    span = 1.0 + max(float(np.max(patients.row_day, initial=0.0)), float(np.max(day, initial=0.0)))
    row_owner = np.repeat(np.arange(n), np.diff(patients.row_offsets))
    place = np.searchsorted(row_owner * span + patients.row_day, owner * span + day - 1e-6)
    first = np.asarray(place - patients.row_offsets[owner], dtype=np.int64)
    rows = np.diff(patients.row_offsets)[owner]
    known = np.flatnonzero(first < rows)
    owner, target, first, rows = owner[known], target[known], first[known], rows[known]
    first = rows - 1 if latest_only else first
    ends = np.r_[0, np.cumsum(rows - first)].astype(np.int64)
    return Removals(offsets(owner, n), target, first, ends)


def removed_risks(
    records: NewRecords,
    gathered: Gathered,
    shown: ShownCodes,
    removals: Removals,
    *,
    progress: Tick | None = None,
) -> Floats32:
    """(answers, causes, horizons) the risks of the edited records, by the horizons of the task.

    Args:
        records: The data set, read once more.
        gathered: Its patients.
        shown: Names of their codes.
        removals: What is struck.
        progress: Called with (patients done, patients to do).
    """
    patients, run = gathered.patients, records.run
    shape = removals.answers, len(run.task.causes), len(run.task.horizons)
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
        edits = [
            Edit(codes=of_shown[target])
            if target < len(shown.names)
            else Edit(visits=[target - len(shown.names)])
            for target in removals.target[own.start : own.stop].tolist()
        ]
        if not edits:
            continue
        n_rows = len(record.moments)
        start = int(removals.first_row[own.start : own.stop].min())
        risk = edited_risks(run, record, edits, rows=range(start, n_rows))
        for e, answers in zip(own, risk, strict=True):
            out[slice(*removals.answer_offsets[e : e + 2])] = answers[
                int(removals.first_row[e]) - start :
            ]
        if progress is not None:
            progress(done + 1, len(patients))
    return out


# ---- a run and records → everything that an explorer shows -----------------------------------------------------------


_BYTES = 2 * 0.6 * 4 / 3  # of one answer in the file: 16 bits, deflated, in base64
_OTHER_BYTES = 0.35  # share of the file's limit that is left for everything else


@dataclass(frozen=True)
class Explorer:
    """Everything that an explorer shows of a run and a data set; `page` makes the page of it.

    Attributes:
        run: The run.
        settings: What is shown, and what is hidden.
        gathered: The patients.
        shown: What the page calls their codes.
        curve_days: (G,) days of the curves.
        removals: The edits that were answered in advance; None where there are none.
        removed: (answers, causes, horizons) their risks.
        latest_only: Whether they are answered at each patient's latest prediction time only.
    """

    run: Run
    settings: ExplorerSettings
    gathered: Gathered
    shown: ShownCodes
    curve_days: Floats
    removals: Removals | None = None
    removed: Floats32 | None = None
    latest_only: bool = False


def collect(
    records: NewRecords,
    settings: ExplorerSettings | None = None,
    *,
    force: bool = False,
    progress: Tick | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Explorer:
    """Everything that an explorer shows: risks at every prediction time, records, and single removals.

    Args:
        records: A run, and the data set that it is asked about.
        settings: What is shown, and what is hidden.
        force: Whether to answer even if hardly any code of the data is known to the run.
        progress: Called with pieces done, pieces in all, and what comes next.
        say: Called with what a reader should know.

    Raises:
        EhrseqError: Nobody has a prediction time, or the run has no risk curves.
    """
    settings, run = settings or ExplorerSettings(), records.run
    predictor = RiskPredictor(run)
    if run.is_visit_head:
        raise EhrseqError(
            "the explorer needs risk curves, and the visit head has none",
            where="model.head",
            fix="train with model.head=horizon",
        )
    say(records.require_known(force=force))
    tick = progress or (lambda *_: None)
    tick(0, 1, "predicting")
    days = curve_days(tuple(run.task.horizons), start_days=predictor.start_days)
    gathered = gather(records, predictor, days, settings)
    patients = gathered.patients
    for text in unanswered(records, answered=gathered.in_all):
        say(text)
    if len(patients) < gathered.in_all:
        say(
            f"{len(patients):,} of {gathered.in_all:,} patients, drawn at random: --subjects shows more"
        )
    words = read_descriptions(records.data)
    shown = shown_codes(patients, gathered.codes, run.vocabulary, words, fewest=settings.fewest)
    if not settings.what_if:
        return Explorer(run, settings, gathered, shown, days)
    removals = single_removals(patients, shown, latest_only=False)
    per_answer = len(predictor.causes) * len(run.task.horizons) * _BYTES
    latest_only = removals.answers * per_answer > (1 - _OTHER_BYTES) * settings.megabytes * 1e6
    if latest_only:
        removals = single_removals(patients, shown, latest_only=True)
        say(
            "what-if answers are those of each patient's latest prediction: at all of them the file would be too large"
        )
    tick(0, len(patients), "striking codes and visits")
    removed = removed_risks(records, gathered, shown, removals, progress=progress)
    return Explorer(run, settings, gathered, shown, days, removals, removed, latest_only)
