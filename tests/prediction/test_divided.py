"""Several processes answer as one does, to the last bit; a process that is killed leaves one message and no file."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.external import validate
from ehrsequencing.prediction.divided import bounds_of, part_of, parts_of
from ehrsequencing.prediction.predict import predict
from ehrsequencing.prediction.predict_labels import predict_labels
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training import inference as answers
from ehrsequencing.training.inference import batches
from helpers.divided import BUDGET, QUICK, one_after_another
from helpers.together import run_two


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "VISIT_BUDGET", BUDGET)


@pytest.fixture(scope="module")
def two(sim_run: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("divided")
    shutil.copytree(sim_run, out / "run")
    (first, text), (second, _) = run_two(out / "run", sim_data, out, module="helpers.divided")
    assert (first, second) == (0, -9), text
    return out


def told(two: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((two / "told.json").read_text())
    return found


def test_two_processes_write_the_file_of_one(two: Path, sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    predict(sim_run, sim_data, tmp_path / "all.parquet")
    predict(sim_run, sim_data, tmp_path / "last.csv.gz", at="last", horizons_days=[90.0])
    for name in ("all.parquet", "last.csv.gz"):
        assert (two / name).read_bytes() == (tmp_path / name).read_bytes()
    assert (two / "broken.parquet").read_bytes() != (tmp_path / "all.parquet").read_bytes()


def test_two_processes_find_the_metrics_of_one(two: Path, sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sim_run, tmp_path / "run")
    alone = evaluate(run, settings=QUICK)
    assert alone["metrics"]
    assert told(two)["evaluated"] == json.loads(json.dumps(alone))
    external, _ = validate(run, sim_data, out=tmp_path / "external", settings=QUICK)
    assert told(two)["external"] == json.loads(json.dumps(external))
    assert not list(two.rglob(".arrays"))


def test_a_killed_process_leaves_one_message_and_no_file(two: Path) -> None:
    assert "another process of this command has ended" in told(two)["killed"]
    names = {path.name for path in two.iterdir()}
    assert names == {"run", "all.parquet", "last.csv.gz", "broken.parquet", "external", "told.json"}


def test_labels_are_answered_by_several_as_by_one(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.parquet"
    predict(sim_run, sim_data, tmp_path / "all.parquet", at="last", horizons_days=[90.0])
    asked = pq.read_table(tmp_path / "all.parquet", columns=["subject_id", "prediction_time"])
    pq.write_table(asked.append_column("boolean_value", pa.array([True] * len(asked))), labels)

    def write(out: Path, **who: Any) -> int:
        return predict_labels(sim_run, sim_data, out, labels=labels, horizons_days=[90.0], **who)

    assert write(tmp_path / "one.parquet") == one_after_another(
        3, lambda us: write(tmp_path / "3.parquet", processes=us)
    )
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "3.parquet").read_bytes()


# ---- how work is divided ---------------------------------------------------------------------------------------------


def subjects_of_batches(run: Run, records: TaskRecords) -> list[list[int]]:
    loader = SubjectLoader.of_model(run.model.config, records, code_types=run.code_types)
    return [records.timelines.subject_id[one].tolist() for one in loader.together(visit_budget=BUDGET)]


def test_parts_have_the_batches_of_the_whole(sim_run: Path, sim_prepared: Path) -> None:
    run, records = Run(sim_run), Prepared(sim_prepared).records("simulated", "train")
    whole, cut = subjects_of_batches(run, records), batches(run.model, records, code_types=run.code_types)
    assert len(whole) > 6
    parts = [subjects_of_batches(run, part_of(records, cut, 3, number)) for number in range(3)]
    assert [batch for part in parts for batch in part] == whole
    assert all(parts)
    shifted = [subjects_of_batches(run, part_of(records, (cut[0] + 1, cut[1]), 3, number)) for number in range(3)]
    assert [batch for part in shifted for batch in part] != whole, "a cut within a batch is seen"


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50)), max_size=20), st.integers(1, 6))
def test_bounds_divide_all_subjects_at_batches(drawn: list[tuple[int, int]], parts: int) -> None:
    starts = np.cumsum([0, *(size for size, _ in drawn)])
    cost = np.array([one for _, one in drawn], dtype=np.int64)
    bounds = bounds_of(starts[:-1], cost, int(starts[-1]), parts)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, starts[-1], parts + 1)
    assert bounds == sorted(bounds)
    assert set(bounds) <= set(starts.tolist())
    loads = [cost[(starts[:-1] >= low) & (starts[:-1] < high)].sum() for low, high in pairwise(bounds)]
    assert max(loads, default=0) <= cost.sum() / parts + max(cost, default=0)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 6))
def test_every_process_gets_about_as_many_rows(sizes: list[int], count: int) -> None:
    parts = parts_of(sizes, count)
    assert all(1 <= part <= count for part in parts)
    load, number = np.zeros(count), 0
    for size, part in zip(sizes, parts, strict=True):
        for _ in range(part):
            load[number % count] += size / part
            number += 1
    assert load.max() - load.min() <= sum(sizes) / 2 + 1000 / count
