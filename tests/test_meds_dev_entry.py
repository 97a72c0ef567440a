"""The entry for MEDS-DEV: its files load, and its two commands run as MEDS-DEV runs them, without MEDS-DEV."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import ehrsequencing
from ehrsequencing.config import load_task
from helpers.meds import DAY_US, Row, us, write_meds

ENTRY = Path(__file__).parents[1] / "examples" / "meds-dev" / "ehrsequencing"
TASKS = sorted(path.relative_to(ENTRY / "tasks").with_suffix("").as_posix() for path in ENTRY.rglob("tasks/**/*.yaml"))
READMISSION = "readmission/general_hospital/30d"


def model() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ENTRY / "model.yaml").read_text())
    return found


def run_as_meds_dev(command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What `MEDS_DEV.utils.run_in_env` does: one Bash script with `set -e`; `ehrseq` and `python` are on the path."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, words in {"ehrseq": " -m ehrsequencing", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/bash\nexec "{sys.executable}"{words} "$@"\n')
        (programs / name).chmod(0o755)
    script = folder / "cmd.sh"
    script.write_text("\n".join(["#!/bin/bash", "set -e", command]))
    source = str(Path(ehrsequencing.__file__).parents[1])
    found = {**os.environ, "PYTHONPATH": source, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **env}
    return subprocess.run(["bash", str(script)], env=found, capture_output=True, text=True, check=False)


@pytest.fixture
def hospital(tmp_path: Path) -> tuple[Path, Path]:
    """Sixty people with stays, and labels at their discharges in a folder for each split, as ACES writes them."""
    rng, rows, splits = random.Random(1), [], {}
    labels: dict[str, list[tuple[int, int, bool]]] = {"train": [], "tuning": [], "held_out": []}
    for person in range(1, 61):
        splits[person] = ("train", "train", "tuning", "held_out")[person % 4]
        rows.append(Row(person, us("1950-03-01"), "MEDS_BIRTH"))
        day = us("2015-01-01") + person * DAY_US
        for _ in range(rng.randrange(2, 6)):
            rows += [
                Row(person, day, "HOSPITAL_ADMISSION//EW EMER."),
                Row(person, day + DAY_US // 2, "LAB//50811//g/dL", 12.0),
            ]
            day += 3 * DAY_US
            rows.append(Row(person, day, "HOSPITAL_DISCHARGE//HOME"))
            gap = rng.choice((10, 20, 60, 200))
            labels[splits[person]].append((person, day, gap <= 30))
            day += gap * DAY_US
        rows.append(Row(person, day, "LAB//50811//g/dL", 13.5))
    data = write_meds(tmp_path / "meds", rows, splits=splits)
    folder = tmp_path / "labels"
    for split, found in labels.items():
        person, time, value = zip(*found, strict=True)
        table = pa.table(
            {
                "subject_id": pa.array(person, pa.int64()),
                "prediction_time": pa.array(time, pa.timestamp("us")),
                "boolean_value": pa.array(value),
            }
        )
        (folder / split).mkdir(parents=True)
        pq.write_table(table, folder / split / "0.parquet")
    return data, folder


@pytest.mark.parametrize("name", TASKS)
def test_each_task_file_is_a_task_with_one_horizon(name: str, tmp_path: Path) -> None:
    """`predict` needs no --horizons then, and its first cause is that of the label."""
    text = (ENTRY / "tasks" / f"{name}.yaml").read_text()
    (tmp_path / "task.yaml").write_text(text.replace("LABELS", '"/labels"'))
    task = load_task(tmp_path / "task.yaml")
    assert len(task.horizons) == 1
    assert task.recurrent
    assert "MEDS_DEATH" in [code for codes in task.patterns.values() for code in codes]
    assert all(line.isascii() and len(line) < 160 for line in text.splitlines())


@pytest.mark.slow
def test_its_two_commands_end_in_predictions_that_its_evaluator_reads(
    hospital: tuple[Path, Path], tmp_path: Path
) -> None:
    data, labels = hospital
    steps, out = model()["commands"]["supervised"], tmp_path / "out" / "MIMIC-IV" / READMISSION
    given = {"dataset_dir": data, "labels_dir": labels, "model_dir": ENTRY, "demo": True}
    one = run_as_meds_dev(steps["train"].format(**given, output_dir=out / "train"), tmp_path)
    assert one.returncode == 0, one.stderr
    more = {"output_dir": out / "predict", "model_initialization_dir": out / "train", "split": "held_out"}
    (out / "predict").mkdir()
    two = run_as_meds_dev(steps["predict"].format(**given, **more), tmp_path)
    assert two.returncode == 0, two.stderr
    found = pq.read_table(out / "predict" / "predictions.parquet")
    wanted = pq.read_table(labels / "held_out")
    assert {f.name: f.type for f in found.schema} == {  # meds_evaluation.schema of 0.0.3, in Arrow's types
        "subject_id": pa.int64(),
        "prediction_time": pa.timestamp("us"),
        "boolean_value": pa.bool_(),
        "predicted_boolean_value": pa.bool_(),
        "predicted_boolean_probability": pa.float64(),
    }
    keys = ["subject_id", "prediction_time", "boolean_value"]
    assert (
        found.select(keys)
        .sort_by([(key, "ascending") for key in keys])
        .equals(wanted.select(keys).sort_by([(key, "ascending") for key in keys]))
    )
    risk = found["predicted_boolean_probability"].to_numpy()
    assert ((risk > 0) & (risk < 1)).all()
    assert np.ptp(risk) > 0


def test_the_task_is_named_by_a_folder_or_a_variable(tmp_path: Path) -> None:
    labels, out, script = tmp_path / "labels", tmp_path / "out", ENTRY / "make_task.py"
    command = f'python "{script}" "{{}}" "{out}"'
    unknown = run_as_meds_dev(command.format(labels), tmp_path)
    assert unknown.returncode == 1
    assert READMISSION in unknown.stderr
    for folder, env in ((labels / READMISSION, {}), (labels, {"MEDS_DEV_TASK": READMISSION})):
        done = run_as_meds_dev(command.format(folder), tmp_path, **env)
        assert done.returncode == 0, done.stderr
        task = load_task(out / "task.yaml")
        assert (task.name, task.index.file) == ("readmission_30d", str(folder))
        (out / "task.yaml").unlink()
