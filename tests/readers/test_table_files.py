"""Sources that cannot be read are refused in one line that names the file, and leave the output as it was."""

import gzip
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import ImportConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.flat_table import import_csv
from ehrsequencing.readers.omop.reader import import_omop
from ehrsequencing.readers.synthea import import_synthea
from helpers.command_line import ehrseq
from helpers.omop import SMALL, write_csv, write_parquet
from helpers.synthea import NEW, write_tables

FILES: dict[str, tuple[str, str, str]] = {  # file of persons, another one, and what a good row of this is like
    "omop": ("person.csv", "death.csv", "person_id,death_date\n1,2010-01-01\n"),
    "synthea": ("patients.csv", "conditions.csv", "START,PATIENT,CODE\n2010-01-01,anna,1\n"),
}


def source_of(kind: str, folder: Path) -> Path:
    return write_csv(SMALL, folder) if kind == "omop" else write_tables(NEW, folder)


def no_persons(source: Path, persons: str, other: str, rows: str) -> None:
    (source / persons).unlink()


def nobody(source: Path, persons: str, other: str, rows: str) -> None:
    (source / persons).write_text((source / persons).read_text().partition("\n")[0] + "\n")


def no_such_columns(source: Path, persons: str, other: str, rows: str) -> None:
    (source / other).write_text("log,in\nSECRET,1\n")


def web_page(source: Path, persons: str, other: str, rows: str) -> None:
    (source / other).write_text("<html><body>Log in\nSECRET\n")


def not_text(source: Path, persons: str, other: str, rows: str) -> None:
    (source / other).write_bytes(rows.encode() + rows.partition("\n")[2].encode().replace(b"1", b"SECRET\xff\xfe"))


def truncated(source: Path, persons: str, other: str, rows: str) -> None:
    (source / other).unlink()
    data = gzip.compress("".join(f"{rows}{i}" for i in range(500)).encode())
    (source / f"{other}.gz").write_bytes(data[: len(data) // 2])


def twice(source: Path, persons: str, other: str, rows: str) -> None:
    (source / f"{persons}.gz").write_bytes(b"\x1f\x8b")


def empty(source: Path, persons: str, other: str, rows: str) -> None:
    (source / other).write_text("")


BREAKS: dict[Callable[..., None], str] = {
    no_persons: "holds no",
    nobody: "",
    no_such_columns: "column",
    web_page: "holds XML or HTML, not CSV",
    not_text: "cannot be read as CSV",
    truncated: "cannot be read as CSV",
    twice: "both hold the table",
    empty: "is empty",
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("break_it", BREAKS)
def test_a_broken_source_is_refused_in_one_line(kind: str, break_it: Callable[..., None], tmp_path: Path) -> None:
    source = source_of(kind, tmp_path / "csv")
    break_it(source, *FILES[kind])
    result = ehrseq("import", kind, source, tmp_path / "meds")
    assert result.exit_code == 2, result.output
    assert len(result.output.strip().splitlines()) == 1
    assert BREAKS[break_it] in result.output
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
