"""Trainings that know the labels of some subjects only: what they see, and that they see no other label."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.files import sha256
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan
from helpers.bench import load_bench

LEAST_TUNING, FewLabels = (getattr(load_bench("_labels"), name) for name in ("LEAST_TUNING", "FewLabels"))


def labels_of(prepared: Path, task: TaskConfig, n: int | None) -> Any:
    return FewLabels(Prepared(prepared), task.name, n, seed=3)


def test_only_labelled_subjects_have_prediction_times(sim_prepared: Path, sim_task: TaskConfig) -> None:
    few, whole = labels_of(sim_prepared, sim_task, 40), Prepared(sim_prepared)
    for split, size in (("train", 40), ("tuning", LEAST_TUNING)):
        rows, every = few.rows(sim_task.name, split), whole.rows(sim_task.name, split)
        size = min(size, len(np.unique(every.subject)))
        assert len(np.unique(rows.subject)) == size
        assert len(rows.row_offsets) == len(every.row_offsets)
        for subject in few.subjects(split):
            mine, asked = (one.take(np.array([subject])) for one in (rows, every))
            np.testing.assert_array_equal(mine.prediction_us, asked.prediction_us)
            np.testing.assert_array_equal(mine.duration_days, asked.duration_days)
    held_out = few.rows(sim_task.name, "held_out")
    assert len(held_out) == len(whole.rows(sim_task.name, "held_out"))
    assert few.events <= 40


def test_who_is_among_few_is_among_more(sim_prepared: Path, sim_task: TaskConfig) -> None:
    few, more, every = (set(labels_of(sim_prepared, sim_task, n).subjects("train")) for n in (20, 60, None))
    assert few < more < every
    assert labels_of(sim_prepared, sim_task, None).rows(sim_task.name, "train").subject.size


def test_a_training_does_not_see_the_labels_of_others(
    sim_prepared: Path, sim_task: TaskConfig, tiny_study: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all other labels changed the same weights come out, and with its own changed, others."""
    few, read = labels_of(sim_prepared, sim_task, 60), Prepared.rows
    own = {split: few.subjects(split) for split in ("train", "tuning", "held_out")}

    def weights(name: str, change: Callable[[Ints, Ints], Bools]) -> str:
        def rows(self: Prepared, task: str, split: str) -> TaskRows:
            found = read(self, task, split)
            return _ended(found, change(found.subject, own[split]))

        monkeypatch.setattr(Prepared, "rows", rows)
        fit(Plan.of(labels_of(sim_prepared, sim_task, 60), sim_task.name, tiny_study), tmp_path / name)
        return sha256(tmp_path / name / "model.safetensors")

    as_they_are = weights("as-they-are", lambda subject, own: np.zeros(len(subject), dtype=bool))
    assert weights("others", lambda subject, own: ~np.isin(subject, own)) == as_they_are
    assert weights("own", lambda subject, own: np.isin(subject, own[::2])) != as_they_are


def _ended(rows: TaskRows, these: Bools) -> TaskRows:
    """The same prediction times, some of them observed for a day only, without an event."""
    days, cause = np.array(rows.duration_days), np.array(rows.cause)
    days[these], cause[these] = 1.0, 0
    return replace(rows, duration_days=days, cause=cause)
