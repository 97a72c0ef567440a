"""A query that lies in a visit sees that visit up to its moment, in every model: as if the record ended there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ehrsequencing.predictors.history import fit_feature_spec, history_features
from ehrsequencing.records.codes import excluded_codes
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.encoding import encode_rows, encode_timelines
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.visits import make_record
from helpers.audit import assemble, broken_set, hospital_rows, leaks, load, make_set, save, verdicts
from helpers.meds import Row, scratch, write_meds
from helpers.models import make_model
from helpers.rows import risk_of_rows

LANDMARKS = ["0d", "8h", "40d", "180d"]  # visits of several days: many a landmark lies in one
KINDS: dict[str, dict[str, Any]] = {
    "attention": {},
    "mini-transformer": {"visit_encoder": "transformer"},
    "flat": {"architecture": "flat"},
}


class World(NamedTuple):
    folder: Path
    rows: list[Row]
    store: Prepared
    arrays: TaskRecords  # of some held-out subjects


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with scratch() as name:
        folder, rows = Path(name), hospital_rows(subjects=80)
        make_set(folder, rows, "visits.by=gap", "visits.gap=60d", "vocabulary.min_subjects=1", landmarks=LANDMARKS)
        store = Prepared(folder / "set")
        some = np.arange(12)
        yield World(folder, rows, store, store.records("hospital", "held_out").take(some))


def inside(rows: TaskRows) -> np.ndarray[Any, Any]:
    return np.flatnonzero(rows.unfinished_codes)


def cut_records(world: World, folder: Path) -> tuple[TaskRecords, np.ndarray[Any, Any]]:
    """The record of each query that lies in a visit, cut at its moment; and the row that asks at it."""
    rows = world.arrays.rows
    moments = np.asarray(rows.prediction_us)[inside(rows)].tolist()
    owners = world.arrays.subject_id[inside(rows)].tolist()
    cut = [
        row._replace(subject=k)
        for k, (owner, p) in enumerate(zip(owners, moments, strict=True))
        for row in world.rows
        if row.subject == owner and (row.time is None or row.time <= p)
    ]
    reader = MedsReader(write_meds(folder, cut), None)
    [events] = reader
    question, study = world.store.task("hospital"), world.store.study
    record = make_record(events, excluded=excluded_codes(study, [question], {}), settings=study.visits)
    cohort = CohortBuilder(question).build(record, dataset_end_us=max(moments), labelled=False)
    asked = encode_rows(record, cohort.rows, world.store.vocabulary)
    timelines, _ = encode_timelines(record, world.store.vocabulary)
    row = np.flatnonzero(np.asarray(asked.prediction_us) == np.array(moments)[asked.subject])
    assert asked.subject[row].tolist() == list(range(len(moments)))
    assert not asked.unfinished_codes[row].any()  # what is known of the visit is all of it now
    return TaskRecords(timelines, asked), row


def answers(kind: str, world: World, arrays: TaskRecords) -> np.ndarray[Any, Any]:
    model = make_model(**{"head": "horizon", "causes": 2, "vocab_size": len(world.store.vocabulary), **KINDS[kind]})
    return risk_of_rows(model.float().eval(), arrays, horizons_days=[90.0, 900.0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_inside_a_visit_is_that_of_the_record_cut_there(kind: str, world: World, tmp_path: Path) -> None:
    timelines, rows = world.arrays.timelines, world.arrays.rows
    here = inside(rows)
    assert len(here) >= 12
    again, row = cut_records(world, tmp_path / "cut")
    expected = answers(kind, world, again)[row]
    np.testing.assert_allclose(answers(kind, world, world.arrays)[here], expected, atol=2e-6)
    for broken in (lambda n, whole: 0 * n, lambda n, whole: whole):  # sees nothing of its visit; sees the whole of it
        visit = timelines.subject_offsets[rows.subject[here]] + rows.visits_before[here]
        codes = np.array(rows.unfinished_codes)
        codes[here] = broken(codes[here], np.diff(timelines.visit_offsets)[visit])
        other = answers(kind, world, TaskRecords(timelines, replace(rows, unfinished_codes=codes)))[here]
        assert np.abs(other - expected).max() > 1e-4


def test_baselines_see_what_the_cut_record_shows(world: World, tmp_path: Path) -> None:
    timelines, rows = world.arrays.timelines, world.arrays.rows
    cut, row = cut_records(world, tmp_path / "cut")
    vocabulary = world.store.vocabulary
    columns = fit_feature_spec(world.arrays, vocabulary)
    found = history_features(world.arrays, chosen=np.arange(len(rows)), columns=columns)[inside(rows)]
    expected = history_features(cut, chosen=row, columns=columns)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    blind = replace(rows, unfinished_codes=0 * rows.unfinished_codes)
    missed = history_features(TaskRecords(timelines, blind), chosen=inside(rows), columns=columns)
    assert (np.nan_to_num(missed) != np.nan_to_num(expected)).any(axis=1).all()


def test_asking_inside_a_visit_moves_no_other_answer(world: World) -> None:
    timelines, rows = world.arrays.timelines, world.arrays.rows
    others = np.flatnonzero(rows.unfinished_codes == 0)
    counts = np.bincount(rows.subject[others], minlength=len(timelines))
    kept = TaskRecords(timelines, rows.select(others, np.r_[0, np.cumsum(counts)]))
    before, after = (answers("attention", world, world.arrays)[others], answers("attention", world, kept))
    np.testing.assert_allclose(after, before, atol=2e-6)


def test_the_audit_cuts_records_inside_visits(world: World, tmp_path: Path) -> None:
    run = assemble(world.folder / "set", tmp_path / "run")
    found = verdicts(run)
    assert {found[name] for name in ("prefix_equality", "future_perturbation")} == {"passed"}


def show_the_rest(prepared: Path) -> None:
    """Queries see the whole of the visit that they lie in."""
    for split in ("train", "tuning", "held_out"):
        visits, rows = prepared / "visits" / split, prepared / "tasks" / "hospital" / split
        codes, offsets = load(rows, "unfinished_codes"), np.diff(load(visits, "visit_offsets"))
        owner = np.repeat(np.arange(len(load(rows, "row_offsets")) - 1), np.diff(load(rows, "row_offsets")))
        visit = load(visits, "subject_offsets")[owner] + load(rows, "visits_before")
        save(rows, "unfinished_codes", np.where(codes > 0, np.r_[offsets, 0][visit], 0))


def test_a_query_that_sees_too_much_of_a_visit_is_a_leak(world: World, tmp_path: Path) -> None:
    bad = broken_set(world.folder / "set", tmp_path / "bad", show_the_rest)
    assert leaks(assemble(bad, tmp_path / "run"), only=["prefix_equality"])
