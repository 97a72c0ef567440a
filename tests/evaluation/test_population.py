"""`evaluation.subjects` draws at random, and everything that is told is of those who were drawn."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.baselines.blend.train import trainer_of
from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.files import sha256
from ehrsequencing.evaluation.evaluate import Evaluation, evaluate
from ehrsequencing.evaluation.population import Population, drawn_subjects
from ehrsequencing.evaluation.trained_baselines import LEAST_TUNING, FewLabels
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, TaskRows

SETTINGS = EvaluationConfig(baselines="none", bootstrap=4, explained_subjects=0, subjects=60, seed=3)
NUMBERS = ("metrics", "smooth_calibration", "subgroups", "incidence", "at_risk", "decision")


@pytest.fixture(scope="module")
def drawn(sim_run: Path) -> dict[str, Any]:
    return evaluate(sim_run, split="train", settings=SETTINGS)


@pytest.fixture(scope="module")
def chosen(sim_prepared: Path, records: TaskRecords) -> pd.DataFrame:
    """Rows of the cohort of those who are drawn, found without the package's counting."""
    subjects = drawn_subjects(records, SETTINGS)
    assert subjects is not None
    cohort = pd.read_parquet(sim_prepared / "tasks" / "simulated" / "cohort.parquet")
    return cohort[cohort["subject_id"].isin(records.timelines.subject_id[subjects])]


@pytest.fixture(scope="module")
def records(sim_prepared: Path) -> TaskRecords:
    return Prepared(sim_prepared).records("simulated", "train")


@given(subjects=st.integers(50, 250), seed=st.integers(0, 2**32 - 1))
def test_a_draw_has_so_many_different_people_with_a_prediction_time(
    records: TaskRecords, subjects: int, seed: int
) -> None:
    asked = np.flatnonzero(np.diff(records.rows.row_offsets))
    found = drawn_subjects(records, EvaluationConfig(subjects=subjects, seed=seed))
    if subjects >= len(asked):
        assert found is None
        return
    assert found is not None
    assert len(np.unique(found)) == len(found) == subjects
    assert np.isin(found, asked).all()


def test_everybody_is_drawn_as_often(records: TaskRecords) -> None:
    """Neither long records nor events are preferred: 400 draws of 60 each, mean and spread of a binomial."""
    asked = np.flatnonzero(np.diff(records.rows.row_offsets))
    times = np.zeros(len(records.timelines))
    for seed in range(400):
        times[drawn_subjects(records, EvaluationConfig(subjects=60, seed=seed))] += 1
    share = 60 / len(asked)
    off = (times[asked] - 400 * share) / np.sqrt(400 * share * (1 - share))
    assert 0.8 < off.std() < 1.2
    rows = np.diff(records.rows.row_offsets)[asked]
    assert abs(np.corrcoef(rows, off)[0, 1]) < 0.25


def test_counts_are_those_of_the_cohort_file(drawn: dict[str, Any], chosen: pd.DataFrame) -> None:
    assert drawn["data"]["subjects"]["train"] == chosen["subject_id"].nunique() == 60
    assert drawn["data"]["prediction_times"]["train"] == len(chosen)
    first = chosen.groupby("subject_id")["cause"].first()
    assert list(drawn["events"]["train"].values()) == [int((first == cause).sum()) for cause in range(3)]
    by = {(row["landmark_days"], row["metric"], row["cause"]): row["subjects"] for row in drawn["metrics"]}
    assert (
        by[0.0, "c", "outcome"]
        == ((chosen["kind"] == "query") & (chosen["prediction_time"] == chosen["index_time"])).sum()
    )
    assert any("Only 60 of" in text and "drawn at random" in text for text in drawn["warnings"])


def test_it_is_the_evaluation_of_these_people_alone(sim_run: Path, drawn: dict[str, Any]) -> None:
    """The same numbers as an evaluation to which nobody else was given."""
    run = Run(sim_run)
    store = run.prepared()
    whole = Population.of_split(store, run.task, "train")
    alone = whole.take(drawn_subjects(whole.records, SETTINGS))
    settings = SETTINGS.model_copy(update={"subjects": None})
    found = Evaluation(run, alone, prepared=store, settings=settings).result()
    assert {name: found[name] for name in NUMBERS} == {name: drawn[name] for name in NUMBERS}
    other = replace(alone, records=whole.records.take(np.arange(60)))  # a mutant: the first 60
    found = Evaluation(run, other, prepared=store, settings=settings).result()
    assert found["metrics"] != drawn["metrics"]


# ---- trainings that know the labels of some subjects only: what they see, and that they see no other label -----------


def labels_of(prepared: Path, task: TaskConfig, n: int | None) -> FewLabels:
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
        trainer_of(labels_of(sim_prepared, sim_task, 60), sim_task.name, tmp_path / name, study=tiny_study).fit()
        return sha256(tmp_path / name / "model.safetensors")

    as_they_are = weights("as-they-are", lambda subject, own: np.zeros(len(subject), dtype=bool))
    assert weights("others", lambda subject, own: ~np.isin(subject, own)) == as_they_are
    assert weights("own", lambda subject, own: np.isin(subject, own[::2])) != as_they_are


def _ended(rows: TaskRows, these: Bools) -> TaskRows:
    """The same prediction times, some of them observed for a day only, without an event."""
    days, cause = np.array(rows.duration_days), np.array(rows.cause)
    days[these], cause[these] = 1.0, 0
    return replace(rows, duration_days=days, cause=cause)
