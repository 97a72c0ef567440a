"""Simulated is what a simulation's manifest lists, with its hashes, and nothing that only looks like it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import IMPORTED, MANIFEST, save_manifest
from ehrsequencing.records.check import check_data
from ehrsequencing.records.meds import find_shards
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared, is_simulation
from helpers.disclosure import records_of_people


def test_a_simulation_is_one_and_its_task_may_be_edited(sim_data: Path, tmp_path: Path) -> None:
    assert is_simulation(sim_data)
    copy = Path(shutil.copytree(sim_data, tmp_path / "copy"))
    (copy / "task.yaml").write_text("name: another\n")
    assert is_simulation(copy)


def _another_shard(folder: Path) -> None:
    shutil.copy(find_shards(folder)[0], folder / "data" / "more.parquet")


def _a_changed_shard(folder: Path) -> None:
    first, last = find_shards(folder)[0], find_shards(folder)[-1]
    shutil.copy(last, first)


def _a_changed_truth(folder: Path) -> None:
    shutil.copy(folder / "truth.parquet", folder / "truth_hazards.parquet")


def _another_kind(folder: Path) -> None:
    save_manifest(folder, read_json(folder / MANIFEST) | IMPORTED.facts)


@pytest.mark.parametrize("change", [_another_shard, _a_changed_shard, _a_changed_truth, _another_kind])
def test_what_is_not_as_the_manifest_says_is_of_people(
    sim_data: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    copy = Path(shutil.copytree(sim_data, tmp_path / "copy"))
    change(copy)
    assert not is_simulation(copy)


def test_a_changed_truth_is_said(sim_data: Path, tiny_study: StudyConfig, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(sim_data, tmp_path / "copy"))
    _a_changed_truth(copy)
    (warning,) = check_data(copy, study=tiny_study, tasks=[]).facts["warnings"]
    assert "count as those of real people" in warning
    assert "truth_hazards.parquet" in warning


def test_prepare_decides_and_a_planted_truth_decides_nothing(
    sim_data: Path, sim_task: TaskConfig, tiny_study: StudyConfig, sim_prepared: Path, tmp_path: Path
) -> None:
    assert Prepared(sim_prepared).manifest["simulated"] is True
    hospital = records_of_people(sim_data, tmp_path / "hospital")
    shutil.copy(sim_data / "truth_hazards.parquet", hospital)
    prepare(hospital, tmp_path / "set", study=tiny_study, tasks=[sim_task])
    assert Prepared(tmp_path / "set").manifest["simulated"] is False
