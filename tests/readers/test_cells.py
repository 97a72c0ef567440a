"""Cells in = values + empty + unread: for every kind of column beside plain Python, and for every reader over dirt."""

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
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
from ehrsequencing.readers.synthea import import_synthea
from helpers.fhir import RESOURCES
from helpers.meds import meds_rows
from helpers.omop import SMALL, write_csv, write_parquet
from helpers.synthea import NEW, write_tables

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
        folder = write_csv({"t": rows}, Path(name) / "csv")
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
        people = [{"person_id": str(i), "gender_concept_id": "0", "year_of_birth": "1950"} for i in (1, 2, 3, 12, -4)]
        folder = write_csv({"person": people, "measurement": rows, "death": deaths}, Path(name) / "omop")
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
    folder = write_csv({"t": rows}, tmp_path / "csv")
    (tmp_path / "map.yaml").write_text("subject: who\ntime: at\nevents:\n  - {code_from: what}\n")
    made = lambda: import_csv(folder / "t.csv", tmp_path / "meds", settings=ImportConfig(map=tmp_path / "map.yaml"))  # noqa: E731
    if share == 1:
        with pytest.raises(EhrseqError, match="column at"):
            made()
        return
    assert any("column at" in warning for warning in made().warnings()) == (share > 0.05)


# ---- What means nothing in ids, codes, units and numbers; ids and numbers that another program has changed ----


MAP_m = """subject: id
time: t
static: {sex: SEX}
events:
  - {code: DX, code_from: dx}
  - {code: LAB, value: lab, unit_from: unit}
"""


def imported(folder: Path, table: pa.Table, table_map: str = MAP_m) -> ImportReport:
    (folder / "map.yaml").write_text(table_map)
    pq.write_table(table, folder / "t.parquet")
    return import_csv(folder / "t.parquet", folder / "meds", settings=ImportConfig(map=folder / "map.yaml"))


def imported_text(folder: Path, text: str, table_map: str) -> ImportReport:
    (folder / "map.yaml").write_text(table_map)
    (folder / "t.csv").write_text(text)
    return import_csv(folder / "t.csv", folder / "meds", settings=ImportConfig(map=folder / "map.yaml"))


def codes(meds: Path) -> Counter[str]:
    return Counter(row[2] for row in meds_rows(meds) if row[2] != "MEDS_BIRTH")


@pytest.mark.parametrize("mark", [".", "N/A", "n/a", "#N/A", "<NA>", "NaT", "nan", "NULL", "None"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_marks_of_missing(mark: str, form: str, tmp_path: Path) -> None:
    columns = {
        "id": ["1", "2", mark],
        "t": ["2015-01-05 10:00"] * 3,
        "sex": ["F", mark, "F"],
        "dx": [mark, "I10", "I10"],
        "lab": ["7", mark, "8"],
        "unit": [mark, "g", "g"],
    }
    if form == "csv":
        lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
        report = imported_text(tmp_path, "\n".join(lines) + "\n", MAP_m)
    else:
        report = imported(tmp_path, pa.table(columns))
    is_answer = {"SEX//None": 1, "DX//None": 1} if mark == "None" else {}
    assert codes(tmp_path / "meds") == {"SEX//F": 1, "DX//I10": 1, "LAB": 1, **is_answer}
    assert report.tables["t"].cells["lab"].unread == 0
    assert report.subjects == 2
    assert [note.split(":")[0] for note in report.notes] == (["2 codes are None"] if is_answer else [])


@pytest.mark.parametrize("written", ["-9", "-9.0", "-9.00", "-9.000"])
@pytest.mark.parametrize("listed", ["-9", "-9.00"])
@pytest.mark.parametrize("kind", [pa.string(), pa.float64()])
def test_missing_numbers_in_any_form(written: str, listed: str, kind: pa.DataType, tmp_path: Path) -> None:
    lab: list[Any] = [written, "7.5"] if kind == pa.string() else [float(written), 7.5]
    table = pa.table({"id": [1, 2], "t": ["2015-01-05"] * 2, "lab": pa.array(lab, kind)})
    table_map = f"subject: id\ntime: t\nmissing: [{listed}]\nevents:\n  - {{code: LAB, value: lab}}\n"
    report = imported(tmp_path, table, table_map)
    assert codes(tmp_path / "meds") == {"LAB": 1}
    assert report.tables["t"].cells["lab"].empty == 1


ONE = "subject: id\ntime: t\nevents:\n  - {code: A}\n"


@pytest.mark.parametrize("name", ["2.023E+11", "2,023E+11", "2.023e11", "2E+11", "-2.5E+03"])
def test_ids_in_scientific_notation_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"column id: 2 ids are in scientific notation") as error:
        imported_text(tmp_path, f'id,t\n"{name}",2015-01-05\n"{name}",2015-01-06\nA7,2015-01-06\n', ONE)
    assert name == "2.023E+11" or name not in str(error.value)
    with pytest.raises(EhrseqError, match=r"column stay: 1 ids are in scientific notation"):
        imported_text(tmp_path, f'id,stay,t\n1,"{name}",2015-01-05\n', ONE + "encounter: stay\n")
    persons = [{"person_id": name, "year_of_birth": 1950}, {"person_id": "2", "year_of_birth": 1950}]
    with pytest.raises(EhrseqError, match="holds numbers in scientific notation"):
        import_omop(str(write_csv({**SMALL, "person": persons}, tmp_path / "omop")), tmp_path / "meds")
    tables = {**NEW, "patients": NEW["patients"].replace("anna", f'"{name}"')}
    with pytest.raises(EhrseqError, match="scientific notation"):
        import_synthea(str(write_tables(tables, tmp_path / "synthea")), tmp_path / "meds")


def test_ids_with_an_e_are_ids(tmp_path: Path) -> None:
    assert imported_text(tmp_path, "id,t\n12E34,2015-01-05\n1E5,2015-01-05\n", ONE).subjects == 2


@pytest.mark.parametrize(("name", "form"), [("12.5", "decimal numbers"), ("0012", "leading zeros"), ("A7", "text")])
def test_a_refusal_of_ids_says_their_form(name: str, form: str, tmp_path: Path) -> None:
    persons = [{"person_id": text, "year_of_birth": 1950} for text in ("12", name)]
    for write in (write_csv, write_parquet):
        with pytest.raises(EhrseqError, match=f"column person_id holds .*{form} instead of whole numbers"):
            import_omop(str(write({**SMALL, "person": persons}, tmp_path / write.__name__)), tmp_path / "meds")


NUMBERS_m = ["0.125", "00.125", "-0.125", "1.2345", "0.875"]


def test_a_dot_that_marks_no_thousands_is_unread(tmp_path: Path) -> None:
    rows = [*NUMBERS_m, "1.250", "12.345,5", "-1.250", "0,125", "100"]
    text = "id;t;lab\n" + "".join(f"{i};2015-01-05;{number}\n" for i, number in enumerate(rows))
    report = imported_text(tmp_path, text, "subject: id\ntime: t\ndecimal: ','\nevents:\n  - {code: LAB, value: lab}\n")
    found = [row[3] for row in meds_rows(tmp_path / "meds") if row[2] == "LAB" and row[3] is not None]
    assert sorted(found) == [-1250, 0.125, 100, 1250, 12345.5]
    assert report.tables["t"].cells["lab"].unread == len(NUMBERS_m)
    assert any("column lab has numbers such as 0.125, which were not read" in line for line in report.warnings())


def test_months_pass_in_a_map(tmp_path: Path) -> None:
    table_map = ONE.replace("time: t", "time: {column: t, unit: month, since: 2015-01-01}")
    imported_text(tmp_path, "id,t\n1,2\n2,0\n", table_map)
    assert [str(row[1]) for row in meds_rows(tmp_path / "meds") if row[2] == "A"] == [
        "2015-03-02 21:00:00",
        "2015-01-01 00:00:01",
    ]
    for unit in ("m", "mo"):
        with pytest.raises(EhrseqError, match="unit"):
            imported_text(tmp_path, "id,t\n1,2\n", table_map.replace("month", unit))


def test_columns_of_a_dictionary_are_exact(tmp_path: Path) -> None:
    ids = [2**55 + 1, 2**55 + 2]
    times = pa.array(["2015-01-05 10:00", "2015-01-06 11:00"]).cast(pa.timestamp("us")).dictionary_encode()
    imported(tmp_path, pa.table({"id": pa.array(ids).dictionary_encode(), "t": times}), ONE)
    rows = [row for row in meds_rows(tmp_path / "meds") if row[2] == "A"]
    assert sorted(row[0] for row in rows) == ids
    assert {str(row[1]) for row in rows} == {"2015-01-05 10:00:00", "2015-01-06 11:00:00"}


def test_whole_floats_are_ids(tmp_path: Path) -> None:
    """A column of ids with a gap becomes floats in pandas; large ones must not become 2.023e+11."""
    ids = pa.array([202_300_000_017.0, 202_300_000_029.0, None])
    imported(tmp_path, pa.table({"id": ids, "t": ["2015-01-05"] * 3}), ONE)
    assert sorted({row[0] for row in meds_rows(tmp_path / "meds")}) == [202_300_000_017, 202_300_000_029]
