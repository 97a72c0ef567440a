"""The first line of a table without a header is a patient's, and a pipe among the files of a source is refused."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from helpers.command_line import refused
from helpers.fhir import of, write_ndjson
from helpers.meds import record, write_meds
from helpers.omop import SMALL, write_csv
from helpers.synthea import NEW, write_tables

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


def test_keys_that_are_a_patients_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(FIRST)
    (tmp_path / "map.yaml").write_text("subject: patient\ntime: date\n4711007: x\nevents: [{code: DX}]\n")
    error = refused("import", "csv", tmp_path / "a.csv", "--map", tmp_path / "map.yaml", tmp_path / "meds")
    assert "unknown setting" in error
    assert "4711007" not in error


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
