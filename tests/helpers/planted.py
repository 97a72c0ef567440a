"""Leaks that the audit must find: a pipeline with one thing broken, by its name, and the checks that find it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ehrsequencing.records.visits as record_room
from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.models import attention, behrt
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.events import STATIC
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows, open_arrays
from helpers.audit import (
    assemble,
    broken_model,
    broken_set,
    hospital_rows,
    load,
    make_set,
    rewrite_manifest,
    save,
)
from helpers.meds import DAY_US, SPLITS, Row

Make = Callable[[Path, Path, pytest.MonkeyPatch], Path]


PLANTED: dict[str, tuple[Make, set[str]]] = {}


def planted(*found_by: str) -> Callable[[Make], Make]:
    """Register a leaky pipeline: (honest prepared set, scratch folder, monkeypatch) → run; and who must find it."""

    def register(make: Make) -> Make:
        PLANTED[make.__name__] = (make, set(found_by))
        return make

    return register


def spoiled(*found_by: str) -> Callable[[Callable[[Path, Path], None]], Callable[[Path, Path], None]]:
    """Register what is done to the visits and the prediction times of each split of the honest set."""

    def register(change: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def every_split(folder: Path) -> None:
            for split in SPLITS:
                change(folder / "visits" / split, folder / "tasks" / "hospital" / split)

        def make(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
            return assemble(broken_set(honest, tmp / "set", every_split), tmp / "run")

        PLANTED[change.__name__] = (make, set(found_by))
        return change

    return register


def assemble_with(
    folder: Path, patch: pytest.MonkeyPatch, owner: object, name: str, change: Callable[..., Any], *settings: str
) -> Path:
    """Prepare and assemble a run while one function of the preparation is replaced."""
    with patch.context() as during:
        during.setattr(owner, name, change)
        prepared = make_set(folder, hospital_rows(), *settings)
    return assemble(prepared, folder / "run")


@planted("future_perturbation", "prefix_equality")
def bidirectional_timeline(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    return broken_model(assemble(honest, tmp / "run"), attention="bidirectional")


@planted("future_perturbation", "prefix_equality")
def flat_without_visit_mask(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """No mask at all: every token of a person sees every other, those of later visits and of other questions too."""

    def unmasked(batch: Any, *, offsets: Any, **settings: Any) -> Any:
        return attention.codes_plan(offsets[batch.subject_offsets])

    patch.setattr(behrt, "time_plan", unmasked)
    return assemble(honest, tmp / "run", "model.architecture=flat")


@planted("future_perturbation")
def window_off_by_one(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """Each visit sees the one after it, too: the visit mask is shifted by one."""
    see = attention.time_plan

    def ahead(batch: Any, *, window: int, bidirectional: bool = False) -> Any:
        return see(batch, window=2, bidirectional=True)  # itself, one back, one ahead

    patch.setattr(attention, "time_plan", ahead)
    return assemble(honest, tmp / "run")


@planted("future_perturbation")
def queries_visible(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    see = attention.time_plan

    def as_visits(batch: Any, **settings: Any) -> Any:
        return see(replace(batch, is_query=torch.zeros_like(batch.is_query)), **settings)

    patch.setattr(attention, "time_plan", as_visits)
    return assemble(honest, tmp / "run")


@planted("future_perturbation", "prefix_equality")
def gap_of_the_next_visit_in_the_batch(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    collate = SubjectLoader.collate

    def leaky(self: SubjectLoader, subjects: Any) -> Step:
        step = collate(self, subjects)
        return replace(step, batch=replace(step.batch, delta_days=step.batch.delta_days.roll(-1)))

    patch.setattr(SubjectLoader, "collate", leaky)
    return assemble(honest, tmp / "run")


@planted("prefix_equality")
def outcome_code_kept_as_input(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """The newest visit that a person with the event has before it says so."""
    token = Prepared(honest).vocabulary.index["DX//RELAPSE"]

    def change(folder: Path) -> None:
        for split in SPLITS:
            visits, rows = folder / "visits" / split, folder / "tasks" / "hospital" / split
            codes, first = load(visits, "codes"), load(visits, "visit_offsets")
            per_subject = np.diff(load(rows, "row_offsets"))
            owner = np.repeat(np.arange(len(per_subject)), per_subject)
            chosen = np.flatnonzero((load(rows, "cause") == 1) & ~load(rows, "is_query"))
            newest = load(visits, "subject_offsets")[owner[chosen]] + load(rows, "visits_before")[chosen] - 1
            codes[first[newest]] = token
            save(visits, "codes", codes)

    return assemble(broken_set(honest, tmp / "set", change), tmp / "run")


@planted("prefix_equality")
def codes_after_the_stamped_end_of_their_visit(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """A visit is said to be known in full at its start: codes of the outcome's day come before the outcome."""
    group = record_room.group_visits

    def early(*arguments: Any, **settings: Any) -> Any:
        visits = group(*arguments, **settings)
        return replace(visits, end_us=visits.start_us)

    return assemble_with(tmp, patch, record_room, "group_visits", early)


@spoiled("prefix_equality")
def gap_to_the_next_visit(visits: Path, rows: Path) -> None:
    gap = load(visits, "delta_days")
    save(visits, "delta_days", np.r_[gap[1:], 0.0])


@planted("labels_in_records")
def rows_after_censoring(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """The end of follow-up is forgotten: people go on to be asked, and have events, after it."""

    def last(self: Any, record: Any, marks: Any, owner: Any, *others: Any) -> Any:
        timed = record.events.time_us != STATIC
        end = np.full(int(record.subject.max()) + 1, STATIC)
        np.maximum.at(end, record.subject[timed], record.events.time_us[timed])
        return end[owner], np.zeros(len(owner), dtype=np.int64)

    return assemble_with(tmp, patch, CohortBuilder, "_censoring", last)


@planted("labels_in_records")
def index_chosen_by_the_future(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """Time zero is the last admission instead of the first one."""
    candidates = CohortBuilder._candidates

    def last(self: Any, *arguments: Any) -> Any:
        owner, moment = candidates(self, *arguments)
        newest = np.r_[owner[1:] != owner[:-1], True]
        return owner[newest], moment[newest]

    rows = hospital_rows()
    rows += [Row(row.subject, row.time + 300 * DAY_US, "INDEX") for row in rows if row.code == "INDEX" and row.time]
    with patch.context() as during:
        during.setattr(CohortBuilder, "_candidates", last)
        prepared = make_set(tmp, rows, index={"code": "INDEX", "which": "every"})
    store = prepared / "tasks" / "hospital" / "task.yaml"
    store.write_text(store.read_text().replace("which: every", "which: first"))

    rewrite_manifest(prepared)
    return assemble(prepared, tmp / "run")


@spoiled("labels_in_records")
def labels_of_dropped_visits(visits: Path, rows: Path) -> None:
    """Truncation dropped each person's first row, and kept its label: all labels stand one row late."""
    offsets, duration = load(rows, "row_offsets"), load(rows, "duration_days")
    late = np.r_[duration[:1], duration[:-1]]
    first = offsets[:-1][np.diff(offsets) > 0]
    late[first] = duration[first]
    save(rows, "duration_days", late)


@spoiled("labels_in_records")
def prediction_times_of_survivors(visits: Path, rows: Path) -> None:
    """Nobody is asked who has an event within a year: who is asked depends on the future."""
    asked = open_arrays(TaskRows, rows)
    kept = np.flatnonzero((asked.cause == 0) | (asked.duration_days > 365))
    counts = np.bincount(asked.subject[kept], minlength=len(asked.row_offsets) - 1)
    for name, array in vars(asked.select(kept, np.r_[0, np.cumsum(counts)])).items():
        save(rows, name, array)


@planted("splits")
def split_by_row(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """Prediction times were dealt out, and not people: every other one of a training person is held out."""

    def change(folder: Path) -> None:
        train, held_out = (folder / "tasks" / "hospital" / split for split in ("train", "held_out"))
        rows, subject = Prepared(honest).rows("hospital", "train"), Prepared(honest).rows("hospital", "train").subject
        shutil.rmtree(folder / "visits" / "held_out")
        shutil.copytree(folder / "visits" / "train", folder / "visits" / "held_out")
        for remainder, place in enumerate((train, held_out)):
            kept = np.flatnonzero(np.arange(len(rows)) % 2 == remainder)
            counts = np.bincount(subject[kept], minlength=len(rows.row_offsets) - 1)
            part = rows.select(kept, np.r_[0, np.cumsum(counts)])
            for name, array in vars(part).items():
                save(place, name, array)

    return assemble(broken_set(honest, tmp / "set", change), tmp / "run")
