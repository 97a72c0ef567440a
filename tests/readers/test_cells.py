"""Cells in = values + empty + unread: for every kind of column beside plain Python, and for every reader over dirt."""

import csv
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ehrsequencing.config import ImportConfig
from ehrsequencing.config.importing import TableMap
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import Block, as_times, as_whole, parse_times
from ehrsequencing.readers.fhir import read_bundle
from ehrsequencing.readers.flat_table import import_csv
from ehrsequencing.readers.import_report import ImportReport, TableCounts
from ehrsequencing.readers.omop import import_omop
from helpers.fhir import RESOURCES

DATES = st.sampled_from(
    [
        "2019-01-01",
        "2019-01-01 03:04:05",
        "2019-01-01T03:04:05Z",
        "2019-01-01 03:04:05 UTC",
        "2019-01-01 03:04:05 PM",
        "2019-01-01 13:04 PM",
        "2019-02-30",
        "2019-01-01 25:00:00",
        "2019-01-01 03:04:05.25+02:00",
        "2019-1-5",
        "2019-01-01 03:04:05 Europe/Berlin",
        "2019-01-01x",
        "20190101",
        "unknown",
        " ",
        "",
        " 2019-01-01 ",
    ]
)
NUMBERS = st.sampled_from(["1", "1.5", "-2e3", "1,5", "<5", "5.4 mg", "1:128", "NaN?", "", " ", " 7 ", "0x1F", "1e999"])
IDS = st.sampled_from(["1", "2", "0012", "12", "12.0", "1.5", "x", "", " 3 ", "9223372036854775808", "-4"])
TEXTS = st.sampled_from(["A", "B", "", "  ", "long text"])


def read_date(text: str) -> datetime | None:
    """One cell, by Python's own parser."""
    text = re.sub(r" ?(UTC|GMT)$", "+00:00", text.strip())
    for form in ("%Y-%m-%d %I:%M:%S %p", "%Y-%m-%d %I:%M %p"):
        try:
            return datetime.strptime(text, form)
        except ValueError:
            pass
    date, _, clock = text.replace("T", " ").partition(" ")
    if not re.fullmatch(r"\d{4}-\d{1,2}-\d{1,2}", date):
        return None
    try:
        found = datetime.fromisoformat(
            "-".join(part.zfill(2) for part in date.split("-")) + (f" {clock}" if clock else "")
        )
    except ValueError:
        return None
    if found.tzinfo is not None:
        found = found.astimezone(ZoneInfo("UTC")).replace(tzinfo=None)
    return found.replace(microsecond=0)


@given(st.lists(DATES, min_size=1))
def test_dates_are_read_as_python_reads_them(cells: list[str]) -> None:
    cells = [text for text in cells if text != "20190101"]
    assert parse_times(pa.chunked_array([pa.array(cells, pa.string())])).to_pylist() == [
        read_date(text) for text in cells
    ]


@pytest.mark.parametrize(
    ("kind", "cells", "oracle"),
    [
        ("times", DATES, read_date),
        ("numbers", NUMBERS, lambda text: re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text.strip())),
        ("whole", IDS, lambda text: re.fullmatch(r"[+-]?\d+(\.0*)?", text.strip()) and float(text) < 2**63),
        ("text", TEXTS, str.strip),
    ],
)
@given(data=st.data())
def test_every_cell_of_a_column_is_a_value_or_empty_or_unread(
    kind: str, cells: st.SearchStrategy[str], oracle: Callable[[str], object], data: st.DataObject
) -> None:
    texts = [t for t in data.draw(st.lists(st.none() | cells, max_size=8)) if t != "20190101"]
    counts = TableCounts("t", 0)
    block = Block(pa.table({"a": pa.array(texts, pa.string())}), counts)
    made = getattr(block, kind)("a")
    filled = [t for t in texts if t is not None and t.strip()]
    good = [t for t in filled if oracle(t)]
    found = counts.cells["a"]
    assert len(made) - made.null_count == len(good)
    assert (found.values, found.unread) == (len(good), len(filled) - len(good))
    assert found.values + found.unread + found.empty == len(texts)


@pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(76, 2)])
def test_decimal_ids_are_exact(kind: pa.DataType) -> None:
    ids = [2**53, 2**53 + 1, 0, -12, 2**63 - 1, 2**63, None]
    cells = pa.chunked_array([pa.array([None if i is None else Decimal(i) for i in ids], kind)])
    assert as_whole(cells).to_pylist() == [*ids[:5], None, None]


@pytest.mark.parametrize("kind", ["us", "ns", "ms"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_a_fraction_of_a_second_means_the_same_in_text_and_in_timestamps(kind: str, zone: str | None) -> None:
    texts = ["2015-01-02 00:00:00.4", "1960-01-02 00:00:00.4", "1969-12-31 23:59:59.999", "2015-06-01 10:11:12.5"]
    ends = "Z" if zone else ""
    cells = pa.array([datetime.fromisoformat(text) for text in texts]).cast(pa.timestamp(kind))
    if zone:
        cells = cells.cast(pa.timestamp(kind, "UTC"))
    there = ZoneInfo(zone) if zone else None
    written = pa.chunked_array([[f"{text}{ends}" for text in texts]])
    assert as_times(pa.chunked_array([cells]), zone=there) == parse_times(written, zone=there)


def test_a_float_that_is_no_whole_number_of_64_bits_is_none() -> None:
    cells = pa.chunked_array([[12.0, 1.5, 2.0**63, -1e19, float("inf"), float("nan")]])
    assert as_whole(cells).to_pylist() == [12, None, None, None, None, None]


def table(data: st.DataObject, columns: dict[str, st.SearchStrategy[str]]) -> list[dict[str, str]]:
    """A table of drawn cells; the first row is good, so that no required column is unread as a whole."""
    good = {id(DATES): "2019-01-01", id(NUMBERS): "1.5", id(IDS): "1", id(TEXTS): "A"}
    first = {name: good[id(kind)] for name, kind in columns.items()}
    drawn = data.draw(st.lists(st.fixed_dictionaries(columns), max_size=6))
    return [first, *({n: "2019-01-01" if c == "20190101" else c for n, c in row.items()} for row in drawn)]


def write(rows: list[dict[str, str]], path: Path) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def check(report: ImportReport, name: str, rows: list[dict[str, str]], columns: set[str]) -> None:
    """Every cell of these columns is in the report, and every row."""
    counts = report.tables[name]
    cells = {column.lower(): found for column, found in counts.cells.items()}
    assert columns <= cells.keys()
    for column in columns:
        texts = [row[c].strip() for row in rows for c in row if c.lower() == column]
        found = cells[column]
        assert found.empty == sum(text == "" for text in texts), column
        assert found.values + found.unread + found.empty == len(rows), column
    lost = sum(counts.dropped.values())
    assert counts.kept + lost == counts.rows_in == len(rows)


DIRTY = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
MAP = """subject: who
time: at
birth: born
death: died
static: {sex: SEX}
events:
  - {code: LAB, value: number, unit_from: unit}
  - {code_from: what, time: {column: days, unit: d, since: at}}
"""
CSV_COLUMNS = {
    "who": IDS,
    "at": DATES,
    "born": DATES,
    "died": DATES,
    "sex": TEXTS,
    "number": NUMBERS,
    "unit": TEXTS,
    "what": TEXTS,
    "days": NUMBERS,
}


@DIRTY
@given(st.data())
def test_a_flat_table_of_dirt_adds_up(data: st.DataObject) -> None:
    rows = table(data, CSV_COLUMNS)
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(rows, folder / "t.csv")
        (folder / "map.yaml").write_text(MAP)
        # which would refuse such columns
        with mock.patch.object(TableMap, "strict_columns", return_value=[]):
            report = import_csv(folder / "t.csv", folder / "meds", settings=ImportConfig(map=folder / "map.yaml"))
    check(report, "t", rows, set(CSV_COLUMNS) - {"who"})


OMOP_COLUMNS = {
    "person_id": IDS,
    "measurement_concept_id": IDS,
    "measurement_date": DATES,
    "value_as_number": NUMBERS,
    "value_as_concept_id": IDS,
    "operator_concept_id": IDS,
    "visit_occurrence_id": IDS,
}


@DIRTY
@given(st.data())
def test_omop_tables_of_dirt_add_up(data: st.DataObject) -> None:
    pytest.importorskip("duckdb", reason="needs the extra omop")
    rows = table(data, OMOP_COLUMNS)
    deaths = table(data, {"person_id": IDS, "death_date": DATES})
    with TemporaryDirectory() as name:
        folder = Path(name) / "omop"
        folder.mkdir()
        people = [{"person_id": str(i), "gender_concept_id": "0", "year_of_birth": "1950"} for i in (1, 2, 3, 12, -4)]
        write(people, folder / "person.csv")
        write(rows, folder / "measurement.csv")
        write(deaths, folder / "death.csv")
        report = import_omop(str(folder), Path(name) / "meds")
    check(report, "measurement", rows, set(OMOP_COLUMNS))
    check(report, "death", deaths, {"person_id", "death_date"})


@settings(max_examples=40)
@given(RESOURCES)
def test_fhir_resources_of_dirt_add_up(resources: list[Any]) -> None:
    _, report = read_bundle(json.loads(json.dumps(resources)))
    for counts in report.tables.values():
        for column, found in counts.cells.items():
            assert min(found.values, found.empty, found.unread) >= 0
            if column != "value":
                lost = {"not_done", "no_result", "older_version", "withdrawn", "no_type", "not_read"}
                read = counts.rows_in - sum(n for reason, n in counts.dropped.items() if reason in lost)
                bills = counts.name in ("Claim", "ExplanationOfBenefit")
                assert found.values + found.empty + found.unread <= read
                assert bills or counts.name == "Patient" or found.values + found.empty + found.unread == read


@pytest.mark.parametrize("share", [0.04, 0.06, 1.0])
def test_five_per_cent_unread_warn_and_all_of_a_required_column_refuse(share: float, tmp_path: Path) -> None:
    bad = round(100 * share)
    days = [(datetime(2015, 1, 1) + timedelta(days=i)).strftime("%Y-%m-%d") for i in range(100)]
    rows = [{"who": str(i), "at": "2019-02-30" if i < bad else day, "what": "A"} for i, day in enumerate(days)]
    write(rows, tmp_path / "t.csv")
    (tmp_path / "map.yaml").write_text("subject: who\ntime: at\nevents:\n  - {code_from: what}\n")
    made = lambda: import_csv(tmp_path / "t.csv", tmp_path / "meds", settings=ImportConfig(map=tmp_path / "map.yaml"))  # noqa: E731
    if share == 1:
        with pytest.raises(EhrseqError, match="column at"):
            made()
        return
    assert any("column at" in warning for warning in made().warnings()) == (share > 0.05)
