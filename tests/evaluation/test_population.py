"""`evaluation.subjects` draws at random, and everything that is told is of those who were drawn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.evaluation.evaluate import Evaluation, evaluate
from ehrsequencing.evaluation.population import Population, drawn_subjects
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords

SETTINGS = EvaluationConfig(baselines="none", bootstrap=4, subjects=60, seed=3)
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
