"""What a prepared set is made of: the rows of its records, whatever their files, and what decides beside them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.core.made_of import differing
from ehrsequencing.core.outputs import IMPORTED, MANIFEST, save_manifest
from ehrsequencing.records import prepare as room
from ehrsequencing.records.check import check_data
from ehrsequencing.records.events import Events
from ehrsequencing.records.meds import find_shards
from ehrsequencing.records.prepare import content_of, prepare, require_made_of
from ehrsequencing.records.prepared import Prepared, is_simulation
from helpers.disclosure import records_of_people


@pytest.fixture(scope="module")
def records(sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated records without the hashes of their files, so that they may change."""
    out = Path(shutil.copytree(sim_data, tmp_path_factory.mktemp("records") / "meds"))
    (out / "manifest.json").unlink()
    return out


@pytest.fixture(scope="module")
def made(records: Path, sim_task: TaskConfig) -> dict[str, str]:
    return content_of(records, StudyConfig(), [sim_task])


def shards(data: Path) -> list[Path]:
    return sorted((data / "data").rglob("*.parquet"))


def compress(data: Path) -> None:
    for path in shards(data):
        pq.write_table(pq.read_table(path, partitioning=None), path, compression="zstd", row_group_size=500)


def rename(data: Path) -> None:
    for number, path in enumerate(shards(data)):
        path.rename(path.with_name(f"{99 - number}.parquet"))


def divide(data: Path) -> None:
    for path in shards(data):
        table = pq.read_table(path, partitioning=None)
        is_odd = pc.equal(pc.bit_wise_and(table["subject_id"], 1), 1)
        pq.write_table(table.filter(is_odd), path.with_name(f"odd-{path.name}"))
        pq.write_table(table.filter(pc.invert(is_odd)), path)


SAME = {"compression": compress, "names of shards": rename, "other shards": divide}


@pytest.mark.parametrize("name", SAME)
def test_other_files_of_the_same_rows_are_the_same(
    name: str, records: Path, made: dict[str, str], sim_task: TaskConfig, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(records, tmp_path / "elsewhere"))
    SAME[name](copy)
    assert differing(content_of(copy, StudyConfig(), [sim_task]), made) == []


def edit(column: str, change: Callable[[pa.ChunkedArray], pa.Array]) -> Callable[[Path], None]:
    def edited(data: Path) -> None:
        path = shards(data)[-1]
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.set_column(table.column_names.index(column), column, change(table[column])), path)

    return edited


def last(array: pa.ChunkedArray, value: object) -> pa.Array:
    """The last row that has a value gets another one."""
    values = array.to_pylist()
    place = max(k for k, one in enumerate(values) if one is not None)
    values[place] = value
    return pa.array(values, array.type)


def without_a_row(data: Path) -> None:
    table = pq.read_table(shards(data)[0], partitioning=None)
    pq.write_table(table.slice(0, len(table) - 1), shards(data)[0])


def other_splits(data: Path) -> None:
    path = data / "metadata" / "subject_splits.parquet"
    table = pq.read_table(path)
    splits = np.roll(table["split"].to_pylist(), 1).tolist()
    pq.write_table(pa.table({"subject_id": table["subject_id"], "split": splits}), path)


OTHER = {
    "a number": (edit("numeric_value", lambda column: last(column, 0.123)), ["records"]),
    "a code": (edit("code", lambda column: last(column, "DX//NEW")), ["records"]),
    "a row less": (without_a_row, ["records"]),
    "splits": (other_splits, ["splits_of_subjects"]),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_change_is_named(
    name: str, records: Path, made: dict[str, str], sim_task: TaskConfig, tmp_path: Path
) -> None:
    change, parts = OTHER[name]
    copy = Path(shutil.copytree(records, tmp_path / records.name))  # of the same name
    change(copy)
    assert differing(content_of(copy, StudyConfig(), [sim_task]), made) == parts


def test_rows_are_read_again_only_where_a_file_has_another_size_or_time(
    records: Path, sim_task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EHRSEQ_CACHE", str(tmp_path / "cache"))
    copy, read, whole = Path(shutil.copytree(records, tmp_path / "meds")), list[int](), room.survey

    def counted(*given: object) -> object:
        read.append(1)
        return whole(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(room, "survey", counted)
    for reads in (1, 1):
        content_of(copy, StudyConfig(), [sim_task])
        assert len(read) == reads
    os.utime(shards(copy)[0], (1, 1))
    content_of(copy, StudyConfig(), [sim_task])
    assert len(read) == 2


def test_a_prepared_set_knows_its_records(records: Path, sim_task: TaskConfig, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(records, tmp_path / "meds"))
    prepare(copy, tmp_path / "set", study=StudyConfig(), tasks=[sim_task])
    prepared = Prepared(tmp_path / "set")
    require_made_of(prepared, copy)
    require_made_of(prepared, records)
    without_a_row(copy)
    with pytest.raises(EhrseqError, match=r"holds other records .*\(what differs: records\)"):
        require_made_of(prepared, copy)


def test_encounters_count_by_the_rows_that_they_join() -> None:
    """Their numbers are the shard's own, and decide nothing."""

    def content(*encounter: int) -> int:
        return Events(
            subject_id=np.array([1, 1, 1, 2]),
            time_us=np.arange(4),
            code=np.zeros(4, np.int32),
            codes=("A",),
            value=np.zeros(4, np.float32),
            encounter=np.array(encounter, np.int32),
        ).content

    assert content(0, 1, 0, 2) == content(5, 3, 5, 0)
    assert len({content(0, 1, 0, 2), content(0, 1, 2, 2), content(0, 0, 0, 2), content(-1, 1, -1, 2)}) == 4


# ---- Simulated is what a simulation's manifest lists, with its hashes, and nothing that only looks like it ----


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
