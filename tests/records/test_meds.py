"""An impossible value is dropped before it acts; dates without a clock stand at the end of their day."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.audit.data import Source, join
from ehrsequencing.config import load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_json
from ehrsequencing.records.labels import read_index_times
from ehrsequencing.records.meds import MedsReader, find_shards, fix
from ehrsequencing.records.parquet_rows import read_events
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.audit import untrained_run
from helpers.bad_inputs import write_clean
from helpers.cohorts import a_task
from helpers.meds import DAY_US, Row, table, us, write_meds

OURS = {"ehrseq_import": {}}
RECORD = [Row(1, us("2010-01-02"), "A"), Row(1, us("2015-01-02"), "A")]


def fixed(rows: list[Row], tmp_path: Path) -> tuple[list[str], Counter[str]]:
    """The codes that are left of a file, and what was counted."""
    path, counts = tmp_path / "0.parquet", Counter[str]()
    pq.write_table(table(rows), path)
    events = fix(read_events(path, counts), path, counts, declared_us=None)
    return [events.codes[code] for code in events.code], +counts


@pytest.mark.parametrize(
    ("born", "died", "left", "counted"),
    [
        ("1950-01-01", "2016-01-01", ["MEDS_BIRTH", "A", "A", "MEDS_DEATH"], {}),
        ("1950-01-01", "1940-01-01", ["MEDS_BIRTH", "A", "A"], {"early_death": 1}),
        ("2040-01-01", None, ["A", "A"], {"late_birth": 1}),
        ("2040-01-01", "2016-01-01", ["A", "A", "MEDS_DEATH"], {"late_birth": 1}),
        ("2012-01-01", None, ["MEDS_BIRTH", "A"], {"before_birth": 1}),
        (None, "2012-01-01", ["A", "MEDS_DEATH"], {"after_death": 1}),
    ],
)
def test_an_impossible_birth_or_death_erases_nobody(
    born: str | None, died: str | None, left: list[str], counted: dict[str, int], tmp_path: Path
) -> None:
    rows = [*RECORD]
    rows += [Row(1, us(born), "MEDS_BIRTH")] if born else []
    rows += [Row(1, us(died), "MEDS_DEATH")] if died else []
    codes, counts = fixed(sorted(rows, key=lambda row: row.time or 0), tmp_path)
    assert codes == left
    assert counts == counted


def test_dates_without_a_clock_stand_at_the_end_of_their_day(tmp_path: Path) -> None:
    times = ["2010-01-01", "2010-01-01", "2010-01-01", "2010-01-01 12:00"]
    rows = [Row(1, us(t), c) for t, c in zip(times, ["MEDS_BIRTH", "B", "A", "A"], strict=True)]
    (shard,) = (write_meds(tmp_path / "meds", rows) / "data").rglob("*.parquet")
    plain = pq.read_table(shard)

    def clocks(flags: list[int | str | None], kind: pa.DataType, card: object = OURS) -> list[int]:
        pq.write_table(plain.append_column("date_only", pa.array(flags).cast(kind)), shard)
        write_json(tmp_path / "meds" / "metadata" / "dataset.json", card)
        (events,) = MedsReader(tmp_path / "meds")
        return sorted((events.time_us % DAY_US) // 1_000_000)

    assert clocks([1, 1, 1, 1], pa.int8()) == [0, 43_200, 86_399, 86_399]
    assert clocks([0, None, 0, 1], pa.int8()) == [0, 0, 0, 43_200]
    for others in ({}, {"other_extension_columns": ["date_only"]}, {"etl_name": "ehrseq import omop"}, [], None):
        assert clocks([1, 1, 1, 1], pa.int8(), others) == [0, 0, 0, 43_200]  # somebody else's column
    assert clocks(["x"] * 4, pa.string(), {}) == [0, 0, 0, 43_200]
    with pytest.raises(EhrseqError, match="'date_only' has type int64"):
        clocks([1, 0, 0, 1], pa.int64())


def cohort(rows: list[Row], folder: Path, **task: object) -> tuple[Prepared, dict[int, tuple[float, int]]]:
    """The prepared set, and each subject's days and cause at its index."""
    write_meds(folder / "meds", rows)
    asked = a_task(**task)
    prepare(folder / "meds", folder / "prep", study=load_study(None, ["vocabulary.min_subjects=1"]), tasks=[asked])
    labels = pq.read_table(folder / "prep" / "tasks" / "t" / "cohort.parquet").to_pylist()
    found = {row["subject_id"]: (row["duration_days"], row["cause"]) for row in labels if row["kind"] == "query"}
    return Prepared(folder / "prep"), found


def test_whoever_was_followed_far_longer_is_censored_at_the_data_s_end(tmp_path: Path) -> None:
    """R's `transplant` and `rotterdam`: one origin, few long follow-ups, which end by a code."""
    days = [30 + 9 * i for i in range(118)] + [1600, 1950]
    rows = [Row(i, us("2000-01-01 12:00"), "IDX") for i in range(120)]
    rows += [Row(i, us("2000-01-01 12:00") + d * DAY_US, "OUT" if i % 3 == 0 else "END") for i, d in enumerate(days)]
    prepared, found = cohort(rows, tmp_path, index={"code": "IDX", "which": "first"}, censoring={"code": "END"})
    assert len(found) == 120
    assert {subject: found[subject] for subject in (3, 4)} == {3: (57.0, 1), 4: (66.0, 0)}
    last = days[117]
    assert [cause for _, cause in (found[118], found[119])] == [0, 0]
    assert all(last <= duration < last + 1 for duration, _ in (found[118], found[119]))
    run = untrained_run(prepared)
    source = Source.read(run, prepared, tmp_path / "meds", wanted=np.array([4, 118]))  # as the audit counts them
    assert join([source.records[4], source.records[118]]).beyond.tolist() == [1]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"index": {"code": "LAST"}, "outcome": {"o": "OUT"}}, "censoring: {dataset_end: true}"),
        ({"index": {"code": "OUT"}, "outcome": {"o": "OUT"}}, "set recurrent: true"),
        ({"index": {"code": "IDX"}, "outcome": {"o": "OUT"}, "eligibility": {"min_age": "90y"}}, "eligibility"),
    ],
)
def test_a_task_that_keeps_nobody_is_refused_with_what_helps(
    task: dict[str, object], said: str, tmp_path: Path
) -> None:
    rows = [Row(i, us("2010-01-01 12:00"), "IDX") for i in range(50)]
    rows += [Row(i, us("2011-01-01 12:00"), "OUT") for i in range(20)]
    rows += [Row(i, us("2010-06-01 12:00"), "LAST") for i in range(30, 50)]
    with pytest.raises(EhrseqError, match="keeps nobody") as caught:
        cohort(rows, tmp_path, **task)
    assert said in str(caught.value)
    assert not (tmp_path / "prep").exists()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("visits.csv", "import csv"),
        ("omop/PERSON.csv.gz", "import omop"),
        ("synthea/patients.csv", "import synthea"),
        ("fhir/Patient.ndjson.gz", "import fhir"),
        ("other/readme.txt", "name the folder of a MEDS data set"),
    ],
)
def test_what_is_no_meds_is_told_the_import_that_reads_it(name: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    if "synthea" in name:
        (path.parent / "encounters.csv").touch()
    with pytest.raises(EhrseqError) as caught:
        MedsReader(path.parent if "/" in name else path)
    assert command in str(caught.value)


# ---- Files that cannot be listed, followed or read: an error that names them, never people who vanish in silence ----


HELD_OUT = "data/held_out"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_clean(tmp_path / "meds")


def link_to_nothing(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to("nowhere")


@pytest.mark.parametrize("place", [HELD_OUT, "data", "metadata"])
def test_a_folder_that_cannot_be_listed_is_an_error(data: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Root may list every folder, so the system's refusal is played at the call that lists."""
    scandir, listdir = os.scandir, os.listdir

    def refusing(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: object = ".") -> object:
            if Path(os.fspath(path)) == data / place:  # type: ignore[call-overload]
                raise PermissionError(13, "Permission denied", str(data / place))
            return real(path)

        return call

    monkeypatch.setattr(os, "scandir", refusing(scandir))
    monkeypatch.setattr(os, "listdir", refusing(listdir))
    with pytest.raises(EhrseqError, match=f"{data / place}: cannot be listed: Permission denied"):
        find_shards(data)


def test_index_times_in_a_folder_are_all_read_or_refused(tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    labels.mkdir()
    link_to_nothing(labels / "0.parquet")
    with pytest.raises(EhrseqError, match="is a link to a folder or to nothing"):
        read_index_times(labels)


def test_an_empty_split_folder_and_the_files_of_spark_are_no_loss(data: Path) -> None:
    shutil.rmtree(data / "data/tuning")
    (data / "data/tuning").mkdir()
    (data / HELD_OUT / "_SUCCESS").touch()
    (data / HELD_OUT / ".0.parquet.crc").touch()
    assert len(find_shards(data)) == 2
