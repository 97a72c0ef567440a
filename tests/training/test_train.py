"""What is fitted beside the weights: on training subjects alone, and the recalibration on tuning subjects."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.config import load_study
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from helpers.audit import TINY, hospital_rows, hospital_splits, make_set
from helpers.meds import DAY_US
from helpers.training import NetworkTrainer

ROWS = hospital_rows(subjects=150, seed=7)
SPLITS = hospital_splits(ROWS)


def fitted(folder: Path, changed: str | None) -> dict[str, Any]:
    """Everything fitted beside the weights, where the records of one split were changed."""
    rows = []
    for row in ROWS:
        if SPLITS[row.subject] == changed and row.value is not None:
            row = row._replace(value=3 * row.value + 1)
        if SPLITS[row.subject] == changed and row.code == "DX//RELAPSE":
            row = row._replace(time=row.time + 40 * DAY_US)
        if SPLITS[row.subject] != changed or row.code != "DX//0":
            rows.append(row)
    store = Prepared(make_set(folder, rows, splits=SPLITS))
    study = load_study(None, [*TINY, "training.epochs=2"])
    NetworkTrainer(store, "hospital", folder / "run", study=study).fit()
    run = Run(folder / "run")
    return {
        "vocabulary": run.manifest["vocabulary"],
        "grid": run.predictor.edges_days,
        "recalibration": run.manifest["recalibration"],
    }


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return fitted(tmp_path_factory.mktemp("honest"), None)


def test_nothing_comes_from_held_out_people(honest: dict[str, Any], tmp_path: Path) -> None:
    assert fitted(tmp_path, "held_out") == honest


def test_the_recalibration_alone_comes_from_tuning_people(honest: dict[str, Any], tmp_path: Path) -> None:
    found = fitted(tmp_path, "tuning")
    assert found.pop("recalibration") != honest["recalibration"]
    assert found == {name: honest[name] for name in ("vocabulary", "grid")}


def test_all_of_it_comes_from_training_people(honest: dict[str, Any], tmp_path: Path) -> None:
    found = fitted(tmp_path, "train")
    assert found["vocabulary"] != honest["vocabulary"]
    assert not np.array_equal(found["grid"], honest["grid"])
    assert found["recalibration"] != honest["recalibration"]
