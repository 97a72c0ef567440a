"""Whatever a task says, an honest pipeline raises no alarm: values, recurrence, undeclared deaths, roll-up."""

from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.config import load_study
from ehrsequencing.records.prepare import prepare
from helpers.audit import TASK, assemble, hospital_rows, hospital_splits, leaks, task
from helpers.meds import write_meds

OUTCOME = TASK["outcome"]
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "recurrent": ({"recurrent": True}, []),
    "a death that is no cause": ({"competing": {}, "censoring": {"dataset_end": True}}, []),
    "by value": ({"outcome": {name: [codes, "LAB//1 > 1"] for name, codes in OUTCOME.items()}}, []),
    "roll-up": ({}, ["vocabulary.rollup=on", "vocabulary.min_subjects=20"]),
}


@pytest.mark.parametrize(("changes", "settings"), CASES.values(), ids=CASES)
def test_an_honest_pipeline_raises_no_alarm(changes: dict[str, Any], settings: list[str], tmp_path: Path) -> None:
    rows = hospital_rows()
    parents = {row.code: ["GROUP"] for row in rows}
    write_meds(tmp_path / "data", rows, splits=hospital_splits(rows), parents=parents)
    prepare(tmp_path / "data", tmp_path / "set", study=load_study(None, settings), tasks=[task(**changes)])
    assert leaks(assemble(tmp_path / "set", tmp_path / "run")) == set()
