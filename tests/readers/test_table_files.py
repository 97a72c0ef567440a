"""Sources that cannot be read are refused in one line that names the file, and leave the output as it was."""

import gzip
import os
import random
import re
import socket
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import ehrsequencing as eh
from ehrsequencing.config import ImportConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import count_dates, date_order, parse_times
from ehrsequencing.readers.flat_table import import_csv
from ehrsequencing.readers.omop.reader import import_omop
from ehrsequencing.readers.synthea import import_synthea
from helpers.command_line import ehrseq, refused
from helpers.fhir import of, write_ndjson
from helpers.meds import record, write_meds, written
from helpers.omop import SMALL, write_csv, write_parquet
from helpers.synthea import NEW, write_tables

pytest.importorskip("ibis", reason="needs the extra omop")

FILES: dict[str, tuple[str, str, str]] = {  # file of persons, another one, and what a good row of this is like
    "omop": ("person.csv", "death.csv", "person_id,death_date\n1,2010-01-01\n"),
    "synthea": ("patients.csv", "conditions.csv", "START,PATIENT,CODE\n2010-01-01,anna,1\n"),
}


def source_of(kind: str, folder: Path) -> Path:
    return write_csv(SMALL, folder) if kind == "omop" else write_tables(NEW, folder)


#: Which file is spoilt, its content (None: it is gone), and what is said; ROWS is a good header with a good row.
BREAKS: dict[str, tuple[str, bytes | None, str]] = {
    "no persons": ("{persons}", None, "holds no"),
    "nobody": ("{persons}", b"HEADER\n", ""),
    "no such columns": ("{other}", b"log,in\nSECRET,1\n", "column"),
    "a web page": ("{other}", b"<html><body>Log in\nSECRET\n", "holds XML or HTML, not CSV"),
    "no text": ("{other}", b"ROWSSECRET\xff\xfe", "cannot be read as CSV"),
    "a truncated file": ("{other}.gz", gzip.compress(random.Random(0).randbytes(500))[:250], "cannot be read as CSV"),
    "a table twice": ("{persons}.gz", b"\x1f\x8b", "both hold the table"),
    "an empty file": ("{other}", b"", "is empty"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_source_is_refused_in_one_line(kind: str, how: str, tmp_path: Path) -> None:
    source, (persons, other, rows), (file, content, said) = source_of(kind, tmp_path / "csv"), FILES[kind], BREAKS[how]
    header = (source / persons).read_bytes().partition(b"\n")[0]
    if how != "a table twice":
        (source / file.format(persons=persons, other=other).removesuffix(".gz")).unlink()
    if content is not None:
        content = content.replace(b"HEADER", header).replace(b"ROWS", rows.encode())
        (source / file.format(persons=persons, other=other)).write_bytes(content)
    result = ehrseq("import", kind, source, tmp_path / "meds")
    assert result.exit_code == 2, result.output
    assert len(result.output.strip().splitlines()) == 1
    assert said in result.output
    assert "SECRET" not in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"csv"}


OTHERS = {
    b"PAR1\x00\x00\x00\x00PAR1": "holds Parquet, not CSV",
    b"\x1f\x8b\x08\x00": "holds gzip, not CSV",
    b"PK\x03\x04\x00\x00": "holds a zip archive or a spreadsheet, not CSV",
    b'{"_type": "COMPOSITION"}': "holds JSON, not CSV",
    b"<?xml version='1.0'?>": "holds XML or HTML, not CSV",
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("content", OTHERS)
def test_a_file_of_another_kind_is_named(kind: str, content: bytes, tmp_path: Path) -> None:
    source, other = source_of(kind, tmp_path / "csv"), FILES[kind][1]
    (source / other).write_bytes(content)
    with pytest.raises(EhrseqError, match=f"{other}: {OTHERS[content]}"):
        {"omop": import_omop, "synthea": import_synthea}[kind](str(source), tmp_path / "meds")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("death.parquet", b"person_id,death_date\n1,2010-01-01\n", "holds no Parquet"),
        ("death.csv.gz", b"person_id,death_date\n1,2010-01-01\n", "holds no gzip"),
        ("death.parquet", b"PAR1 and then nothing of it", "cannot be read"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    source = write_csv({n: rows for n, rows in SMALL.items() if n != "death"}, tmp_path / "csv")
    (source / name).write_bytes(content)
    with pytest.raises(EhrseqError, match=f"{name}: {said}"):
        import_omop(str(source), tmp_path / "meds")


MOMENTS = pa.array([datetime(2015, 1, 1), datetime(2016, 1, 1)])
FLAT = """subject: who
time: at
events:
  - {code: LAB, value: number}
  - {code_from: what, time: {column: age, unit: y, since: at}}
"""
WRONG_TYPES = {
    "number": (MOMENTS, "timestamp[us] cannot be read as numbers"),
    "age": (MOMENTS, "timestamp[us] cannot be read as numbers"),
    "what": (pa.array([["A"], ["B"]]), "list<element: string> cannot be read as text"),
    "who": (pa.array([["A"], ["B"]]), "list<element: string> cannot be read as text"),
}


@pytest.mark.parametrize("column", WRONG_TYPES)
def test_a_column_of_a_flat_table_of_a_wrong_type_is_named(column: str, tmp_path: Path) -> None:
    cells, message = WRONG_TYPES[column]
    table = {"who": [1, 2], "at": MOMENTS, "number": [1.0, 2.0], "what": ["A", "B"], "age": [1.0, 2.0]} | {
        column: cells
    }
    pq.write_table(pa.table(table), tmp_path / "visits.parquet")
    (tmp_path / "map.yaml").write_text(FLAT)
    with pytest.raises(EhrseqError) as error:
        import_csv(tmp_path / "visits.parquet", tmp_path / "meds", settings=ImportConfig(map=tmp_path / "map.yaml"))
    assert (
        str(error.value) == f"table visits, column {column}: its type {message} (store it in another type, or as text)"
    )


def test_a_person_id_beyond_64_bits_is_refused_and_not_printed(tmp_path: Path) -> None:
    source = write_parquet(SMALL, tmp_path / "omop")
    ids = pa.array([2**63 + 5, 7], pa.uint64())
    pq.write_table(pa.table({"person_id": ids, "year_of_birth": [1950, 1960]}), source / "person.parquet")
    result = ehrseq("import", "omop", source, tmp_path / "meds")
    assert result.exit_code == 2
    message = "table person, column person_id: its type uint64 cannot be read as whole numbers of 64 bits"
    assert message in " ".join(result.output.split())
    assert str(2**63 + 5) not in result.output


# ---- The first line of a table without a header is a patient's, and a pipe among the files of a source is refused ----


SECRETS = ("4711007", "1961", "HIV")
FIRST = "4711007,1961-03-04,HIV positive\n4711008,1955-01-02,C50.9\n"


def says_nothing(error: str) -> bool:
    return "header" in error and not any(secret in error for secret in SECRETS)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_flat_table_without_a_header(ending: str, tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text("subject: patient\ntime: date\nevents: [{code: DX, code_from: icd}]\n")
    (tmp_path / "a.csv").write_text(FIRST)
    if ending == "parquet":
        pq.write_table(pacsv.read_csv(tmp_path / "a.csv"), tmp_path / "a.parquet")
    error = refused("import", "csv", tmp_path / f"a.{ending}", "--map", tmp_path / "map.yaml", tmp_path / "meds")
    assert says_nothing(error)


@pytest.mark.parametrize(("kind", "persons"), [("omop", "person.csv"), ("synthea", "patients.csv")])
def test_a_table_of_a_folder_without_a_header(kind: str, persons: str, tmp_path: Path) -> None:
    source = write_csv(SMALL, tmp_path / "in") if kind == "omop" else write_tables(NEW, tmp_path / "in")
    (source / persons).write_text(FIRST)
    assert says_nothing(refused("import", kind, source, tmp_path / "meds"))


def test_meds_and_frames_without_a_header(tmp_path: Path) -> None:
    data = write_meds(tmp_path / "meds", record(1, "0 A"))
    for path in (data / "data").rglob("*.parquet"):
        pq.write_table(pa.table({"4711007 patient": [1], "1961-03-04": [2], "HIV positive": [3]}), path)
    error = refused("check", data)
    assert not any(secret in error for secret in SECRETS)
    frame = pd.DataFrame([[4711008, "1955-01-02", "C50.9"]], columns=["4711007", "1961-03-04", "HIV positive"])
    with pytest.raises(EhrseqError) as raised:
        eh.from_table(frame, subject="patient", time="date", event="icd", out=tmp_path / "flat")
    assert says_nothing(str(raised.value))


# ---- what is no file ---------------------------------------------------------------------------------------------


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


ODD: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": a_socket,
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("kind", ["omop", "synthea", "fhir", "meds"])
def test_what_is_no_file_is_refused(
    kind: str, odd: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make: dict[str, tuple[Callable[[], Path], str]] = {
        "omop": (lambda: write_csv(SMALL, tmp_path / "in"), "measurement.csv"),
        "synthea": (lambda: write_tables(NEW, tmp_path / "in"), "allergies.csv"),
        "fhir": (lambda: write_ndjson([of("Patient", id="a")], tmp_path / "in"), "b.ndjson"),
        "meds": (lambda: write_meds(tmp_path / "in", record(1, "0 A")), "data/b.parquet"),
    }
    source, name = make[kind][0](), make[kind][1]
    (source / name).unlink(missing_ok=True)
    odd(source / name)
    command = ["check", source] if kind == "meds" else ["import", kind, source, tmp_path / "out"]
    assert "a pipe, a socket" in refused(*command)


@pytest.mark.parametrize("document", [False, True])
def test_half_a_surrogate_in_fhir_is_refused_with_its_line(document: bool, tmp_path: Path) -> None:
    half = '{"resourceType": "Condition", "id": "c", "note": [{"text": "\\ud83d"}]}'
    whole = '{"resourceType": "Patient", "id": "a", "birthDate": "1950-01-01"}'
    path = tmp_path / ("x.json" if document else "x.ndjson")
    path.write_text(f"[{whole}, {half}]" if document else f"{whole}\n{half}\n")
    error = refused("import", "fhir", tmp_path, tmp_path.parent / f"{tmp_path.name}-out")
    assert "half a surrogate pair" in error
    assert ("file 1 of 1" if document else "x.ndjson, line 2") in error


# ---- dates: one order over the whole column or none, zones, missing columns ------------------------------------------


FORMATS = {"ymd": "%Y-%m-%d", "compact": "%Y%m%d", "dmy": "%d/%m/%Y", "mdy": "%m/%d/%Y", "german": "%d.%m.%Y"}
DATES = {"death_date", "condition_start_date", "measurement_date"}
TIMES = {"death_datetime", "condition_start_datetime", "measurement_datetime"}


AMBIGUOUS = {"person": SMALL["person"], "death": [{"person_id": 1, "death_date": "03/04/2013"}]}


def test_an_ambiguous_column_is_refused_and_the_setting_decides(tmp_path: Path) -> None:
    source = write_csv(AMBIGUOUS, tmp_path / "csv")
    result = ehrseq("import", "omop", source, tmp_path / "meds")
    assert result.exit_code == 2
    assert "death.csv, column death_date" in result.output
    assert "import.dates=dmy" in result.output
    assert "03/04" not in result.output
    for order, day in (("dmy", date(2013, 4, 3)), ("mdy", date(2013, 3, 4))):
        assert ehrseq("import", "omop", source, tmp_path / order, f"import.dates={order}").exit_code == 0
        rows = [r for p in (tmp_path / order / "data").rglob("*.parquet") for r in pq.read_table(p).to_pylist()]
        assert [r["time"].date() for r in rows if r["code"] == "MEDS_DEATH"] == [day]


def test_mixed_and_unreadable_columns_are_refused(tmp_path: Path) -> None:
    for name, texts, said in (
        ("mixed", ["13/04/2013", "04/13/2013"], "written in several ways"),
        ("words", ["SECRET", "SECRET2"], "can be read"),
        ("epoch", ["1.2e9", "1.3e9"], "can be read"),
    ):
        deaths = [{"person_id": i, "death_date": text} for i, text in enumerate(texts, start=1)]
        source = write_csv({"person": SMALL["person"], "death": deaths}, tmp_path / name)
        with pytest.raises(EhrseqError, match=said) as caught:
            import_omop(str(source), tmp_path / "meds")
        assert "column death_date" in str(caught.value)
        assert "SECRET" not in str(caught.value)


@given(st.lists(st.dates(date(1900, 1, 1), date(2100, 1, 1)), min_size=1), st.sampled_from(sorted(FORMATS)))
def test_a_column_is_read_right_or_refused(days: list[date], format: str) -> None:
    text = pa.chunked_array([[day.strftime(FORMATS[format]) for day in days]])
    try:
        how = date_order(count_dates(text), None, where="x")
    except EhrseqError:
        assert all(day.day <= 12 for day in days)
        assert format in ("dmy", "mdy", "german")
        return
    assert [t.date() for t in parse_times(text, how).to_pylist()] == days


ZONED = [
    {"person_id": 1, "condition_concept_id": 77, "condition_start_datetime": text}
    for text in ("2010-05-05T10:00:00+02:00", "2010-05-05T23:30:00-05:00", "2010-01-01T00:00:00Z")
]


def test_the_same_instants_from_csv_and_parquet(tmp_path: Path) -> None:
    """Text with zones, Parquet with zones, and Parquet in a zone of its own are the same bytes."""
    person = {"person": SMALL["person"]}
    import_omop(str(write_csv({**person, "condition_occurrence": ZONED}, tmp_path / "csv")), tmp_path / "one")
    instants = [datetime.fromisoformat(str(row["condition_start_datetime"])) for row in ZONED]
    for zone in ("UTC", "America/New_York"):
        source = write_parquet(person, tmp_path / zone.replace("/", "-"))
        table = {
            "person_id": [1, 1, 1],
            "condition_concept_id": [77, 77, 77],
            "condition_start_datetime": pa.array(instants, pa.timestamp("us", zone)),
        }
        pq.write_table(pa.table(table), source / "condition_occurrence.parquet")
        import_omop(str(source), tmp_path / f"{source.name}-meds")
        assert written(tmp_path / f"{source.name}-meds") == written(tmp_path / "one")
    rows = [r for p in (tmp_path / "one" / "data").rglob("*.parquet") for r in pq.read_table(p).to_pylist()]
    times = {r["time"] for r in rows if r["code"] == "OMOP//77"}
    assert {datetime(2010, 5, 5, 8), datetime(2010, 5, 6, 4, 30)} < times


def gibleed(header: str, folder: Path) -> Path:
    source = write_csv({"person": SMALL["person"]}, folder)
    rows = "".join(f"{i},1,77,2010-05-{i + 10}\n" for i in range(9))
    text = f"procedure_occurrence_id,person_id,procedure_concept_id,{header}\n{rows}"
    (source / "procedure_occurrence.csv").write_text(text)
    return source


@pytest.mark.parametrize(
    ("header", "what", "said"),
    [
        ("\"date(procedure_date,'unixepoch')\"", "the header", "name the column that it holds: procedure_date"),
        ("\"DATE(PROCEDURE_DATETIME, 'unixepoch')\"", "the header", "name the column that it holds: procedure_date"),
        ("date(procedure_date,'unixepoch')", "", "name the column that it holds: procedure_date"),
        ("strftime('%Y procedure_datetime' procedure_date)", "", "name the column that it holds: procedure_date"),
        ('"coalesce(procedure_datetime,procedure_date)"', "the header", "that it holds: procedure_date or proc"),
        ("when_done", "has no", "has no column procedure_date or procedure_datetime"),
        ("\"date(day_done,'unixepoch')\"", "has no", "has no column procedure_date or procedure_datetime"),
    ],
)
def test_a_date_column_that_cannot_be_found_is_refused_by_name(
    tmp_path: Path, header: str, what: str, said: str
) -> None:
    result = ehrseq("import", "omop", gibleed(header, tmp_path / "csv"), tmp_path / "meds")
    assert result.exit_code == 2
    assert f"procedure_occurrence.csv: {what}" in result.output
    assert ("is an expression, and no column's name" in result.output) == (what != "has no")
    assert said in result.output


CODED = "condition_concept_id", "condition_start_date"
NO_DATES: dict[str, pa.Array] = {
    "int64": pa.array([1425254400, 1425254401]),
    "double": pa.array([20150302.0, 20160302.0]),
    "bool": pa.array([True, False]),
    "decimal128(8, 0)": pa.array([Decimal(20150302), Decimal(20160302)]),
    "time32[ms]": pa.array([1, 2], pa.time32("ms")),
}


def dated(cells: pa.Array, folder: Path) -> tuple[Path, Path]:
    """A table of conditions with these dates, as a flat table and as OMOP."""
    (folder / "omop").mkdir()
    people = pa.table({"person_id": [1, 2], "year_of_birth": [1950, 1960]})
    pq.write_table(people, folder / "omop" / "person.parquet")
    path = folder / "omop" / "condition_occurrence.parquet"
    pq.write_table(pa.table({"person_id": [1, 2], CODED[0]: [77, 78], CODED[1]: cells}), path)
    (folder / "map.yaml").write_text(
        f"subject: person_id\ntime: {CODED[1]}\nevents:\n  - {{code: A, code_from: {CODED[0]}}}\n"
    )
    return path, folder / "map.yaml"


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint32()])
def test_whole_numbers_of_8_digits_are_dates(kind: pa.DataType, tmp_path: Path) -> None:
    path, table_map = dated(pa.array([20150302, 20160302], kind), tmp_path)
    table = pq.read_table(path).append_column("condition_start_datetime", pa.nulls(2, kind))
    pq.write_table(table, path)
    import_csv(path, tmp_path / "flat", settings=ImportConfig(map=table_map))
    import_omop(str(path.parent), tmp_path / "meds")
    for folder in ("flat", "meds"):
        rows = pa.concat_tables(pq.read_table(p) for p in (tmp_path / folder / "data").rglob("*.parquet")).to_pylist()
        days = {row["time"].date() for row in rows if row["time"] is not None and row["code"] != "MEDS_BIRTH"}
        assert days == {date(2015, 3, 2), date(2016, 3, 2)}


@pytest.mark.parametrize("kind", NO_DATES)
def test_a_column_of_dates_of_another_type_is_refused(kind: str, tmp_path: Path) -> None:
    path, table_map = dated(NO_DATES[kind], tmp_path)
    where = f"table condition_occurrence, column {CODED[1]}: its type {kind} cannot be read as dates"
    with pytest.raises(EhrseqError, match=re.escape(where)):
        import_csv(path, tmp_path / "flat", settings=ImportConfig(map=table_map))
    with pytest.raises(EhrseqError, match=re.escape(where)):
        import_omop(str(path.parent), tmp_path / "meds")
