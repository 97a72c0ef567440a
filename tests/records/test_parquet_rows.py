"""MEDS dialects: whatever a hospital calls and stores things, the prepared set is, to the byte, the same."""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from ehrsequencing.config import StudyConfig, TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.records import parquet_rows
from ehrsequencing.records.events import STATIC
from ehrsequencing.records.parquet_rows import read_events
from ehrsequencing.records.prepare import prepare
from helpers.meds import DAY_US, SPLITS, STARTS, Row, record, us, write_meds

TASK = TaskConfig.model_validate(
    {"name": "t", "index": {"code": "A"}, "outcome": {"death": ["MEDS_DEATH"]}, "horizons": ["10d"]}
)
START = STARTS[1]


def rows_of(birth: str = "MEDS_BIRTH", death: str = "MEDS_DEATH") -> list[Row]:
    text = f"- SEX//F, -20000 {birth}, 0 A @e1, 0.5 LAB//X=2.5 @e1, 9 A @e2, 9.25 LAB//X=7 @e2, 20 B"
    return [row for s in range(40) for row in record(s, text + (f", 30 {death}" if s % 3 else ""))]


def write(folder: Path, rows: Sequence[Row], *, column: str | None = None, shards: int = 1) -> Path:
    splits = {s: SPLITS[max(s - 37, 0)] for s in range(40)}
    return write_meds(folder, rows, splits=splits, column=column, shards=shards)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "meds", rows_of())


def rewrite(data: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    for path in (data / "data").rglob("*.parquet"):
        pq.write_table(change(pq.read_table(path, partitioning=None)), path, **options)


def cast(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.set_column(t.column_names.index(name), name, t[name].cast(kind))


def prepared(data: Path, *settings: str) -> tuple[dict[str, str], dict[str, int]]:
    """Hashes of the prepared files (the settings apart), and the fixes."""
    out = data.parent / f"set-{len(list(data.parent.iterdir()))}"
    prepare(data, out, study=load_study(None, settings), tasks=[TASK])
    manifest = read_json(out / MANIFEST)
    return {name: hashed for name, hashed in manifest["files"].items() if name != "config.yaml"}, manifest["fixes"]


@pytest.mark.parametrize(
    ("birth", "death"),
    [("BIRTH", "DEATH"), ("DOB", "MEDS_DEATH//HOME"), ("SNOMED/184099003", "SNOMED/419620001")],
)
def test_other_names_of_birth_and_death(data: Path, tmp_path: Path, birth: str, death: str) -> None:
    other = write(tmp_path / "other", rows_of(birth, death))
    files, fixes = prepared(other)
    assert files == prepared(data)[0]
    assert fixes == {"birth_name": 40, "death_name": 26}


def test_another_name_of_who_has_a_birth_stays_a_code(tmp_path: Path) -> None:
    """It is something else, a delivery say."""
    other = write(tmp_path / "other", [*rows_of(), *(Row(s, START, "BIRTH") for s in range(40))])
    assert prepared(other)[1] == {}


def test_a_task_that_asks_for_the_other_name_is_told(tmp_path: Path) -> None:
    """Otherwise it would silently find no event at all."""
    other = write(tmp_path / "other", rows_of("MEDS_BIRTH", "DEATH"))
    task = TASK.model_copy(update={"outcome": {"death": ("DEATH",)}})
    with pytest.raises(EhrseqError, match=r"no code of the data matches DEATH.*MEDS_DEATH"):
        prepare(other, tmp_path / "set", study=StudyConfig(), tasks=[task])


def test_a_column_with_another_name_is_to_be_renamed(data: Path) -> None:
    rewrite(data, lambda t: t.rename_columns(["patient_id", "timestamp", "concept_code", "value"]))
    with pytest.raises(EhrseqError, match=r"no column 'subject_id'.*rename patient_id"):
        prepared(data)


_NO_VIEWS = pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 18, reason="this PyArrow makes no views of strings")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("subject_id", pa.int16()),
        ("subject_id", pa.uint64()),
        ("code", pa.large_string()),
        pytest.param("code", pa.string_view(), marks=_NO_VIEWS),
        ("code", pa.dictionary(pa.int32(), pa.large_string())),
    ],
    ids=str,
)
def test_types_that_mean_the_same_are_taken_without_a_word(data: Path, name: str, kind: pa.DataType) -> None:
    files = prepared(data)[0]
    rewrite(data, cast(name, kind), row_group_size=7)  # each row group has a dictionary of its own
    assert prepared(data) == (files, {})


def test_a_data_set_without_values(data: Path) -> None:
    rewrite(data, lambda t: t.set_column(3, "numeric_value", pa.nulls(len(t))))
    files, fixes = prepared(data)
    rewrite(data, lambda t: t.drop_columns(["numeric_value"]))
    assert (files, fixes) == prepared(data)
    assert fixes == {}


UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "date32": DAY_US, "date64": 1_000}


@given(unit=st.sampled_from([*UNITS, "ns"]), moments=st.lists(st.none() | st.integers(-(2**60), 2**60), min_size=1))
def test_any_unit_of_time_means_the_same_moment(
    tmp_path_factory: pytest.TempPathFactory, unit: str, moments: list[int | None]
) -> None:
    """Against Python's integers: fractions of a microsecond are cut off downwards, before 1970 too."""
    step = 1_000_000 if unit == "s" else DAY_US if unit.startswith("date") else 1_000
    us = [x if x is None else (x % (2 * 10**15) - 10**15) // step * step for x in moments]  # 1938 to 2001
    ticks = [x if x is None else x * 1000 + 999 if unit == "ns" else x // UNITS[unit] for x in us]
    kind = {"date32": pa.date32(), "date64": pa.date64()}.get(unit) or pa.timestamp(unit)
    column = pa.array(ticks, pa.int32() if unit == "date32" else pa.int64()).cast(kind)
    path = tmp_path_factory.mktemp("shard") / "0.parquet"
    pq.write_table(pa.table({"subject_id": [1] * len(us), "time": column, "code": ["A"] * len(us)}), path)
    log = Counter[str]()
    events = read_events(path, log)
    assert [None if x == STATIC else x for x in events.time_us.tolist()] == us
    assert log["time_unit"] == (0 if unit == "us" else sum(x is not None for x in us))


ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC", "Australia/Lord_Howe")


@given(
    zone=st.sampled_from(ZONES),
    stored=st.sampled_from(["UTC", "Asia/Tokyo"]),
    seconds=st.lists(st.integers(0, 2_000_000_000), min_size=1, max_size=20),
)
def test_times_with_a_zone_become_the_hospitals_clock(
    tmp_path_factory: pytest.TempPathFactory, zone: str, stored: str, seconds: list[int]
) -> None:
    """Against Python's own zoneinfo, through summer time and half hours, whatever zone the file is written in."""
    path = tmp_path_factory.mktemp("shard") / "0.parquet"
    time = pa.array([1_000_000 * s for s in seconds]).cast(pa.timestamp("us", stored))
    pq.write_table(pa.table({"subject_id": [1] * len(seconds), "time": time, "code": ["A"] * len(seconds)}), path)
    log = Counter[str]()
    events = read_events(path, log, time_zone=zone)
    clocks = [dt.datetime.fromtimestamp(s, ZoneInfo(zone)).replace(tzinfo=dt.UTC) for s in seconds]
    assert events.time_us.tolist() == [round(clock.timestamp()) * 1_000_000 for clock in clocks]
    assert log == {"time_zone": len(seconds)}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.int64(), pa.float64(), "dictionary"], ids=str)
def test_encounter_ids_may_be_text_or_numbers(tmp_path: Path, kind: Any) -> None:
    data = write(tmp_path / "meds", rows_of(), column="hadm_id")
    by = ("visits.by=encounter", "visits.column=hadm_id")
    files = prepared(data, *by)[0]

    def change(t: pa.Table) -> pa.Table:
        ids = t["hadm_id"].to_pylist()
        if kind == "dictionary":
            return t.set_column(4, "hadm_id", pa.array(ids).dictionary_encode())
        numbers = [x if x is None or "string" in str(kind) else 10 * int(x[1:]) for x in ids]
        return t.set_column(4, "hadm_id", pa.array(numbers, kind))

    rewrite(data, change)
    assert prepared(data, *by) == (files, {})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.float64()], ids=str)
def test_a_blank_encounter_is_none(kind: Any) -> None:
    """Rows without an encounter must not become one visit of many years."""
    text = ["", "x", " ", None, "x"]
    ids = [{"x": 7.0, None: None}.get(one, np.nan) for one in text] if kind == pa.float64() else text
    found = parquet_rows._encounters(pa.chunked_array([pa.array(ids, kind)]), "enc", Path("x"))
    assert found.tolist() == [-1, found[1], -1, -1, found[1]]
    assert found[1] >= 0


def test_a_dated_birth_of_another_name_is_at_the_start_of_its_day(tmp_path: Path) -> None:
    table = pa.table(
        {
            "subject_id": [1, 1],
            "time": pa.array([us("2010-01-01"), us("2010-01-01")], pa.timestamp("us")),
            "code": ["MEDS_BIRTH//F", "A"],
            "numeric_value": pa.nulls(2, pa.float32()),
            "date_only": pa.array([1, 1], pa.int8()),
        }
    )
    events = parquet_rows.events_of_table(table, tmp_path, Counter())
    assert events.time_us[0] == us("2010-01-01") < events.time_us[1]
