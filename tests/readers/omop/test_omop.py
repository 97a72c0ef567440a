"""OMOP → MEDS: one result whatever holds the tables, every rule counted, and a way back from simulated records."""

import csv
import gzip
import json
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from meds import schema as meds

from ehrsequencing.core.errors import EhrseqError
from helpers.command_line import ehrseq, refused
from helpers.meds import meds_rows, written
from helpers.omop import (
    SMALL,
    Tables,
    postgres_server,
    write_csv,
    write_duckdb,
    write_parquet,
    write_postgres,
)
from helpers.settings import examples

pytest.importorskip("ibis", reason="needs the extra omop")

from ehrsequencing.readers.omop.database import connect
from ehrsequencing.readers.omop.reader import import_omop


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    import_omop(str(write_csv(SMALL, folder / "csv")), folder / "meds")
    return folder / "meds"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_rows_counted_by_hand(small: Path) -> None:
    hba1c = "LOINC//4548-4"
    assert meds_rows(small) == [
        (-2, at("1960-01-01"), "MEDS_BIRTH", None, None, None),
        (-2, at("2011-02-02 06:30"), f"{hba1c}//SNOMED//10828004", None, None, None),
        (-2, at("2011-05-05 10:00"), "OMOP//0//CONDITION", None, None, None),
        (-2, at("2013-07-01 23:59:59"), "MEDS_DEATH", None, None, None),
        (1, None, "Gender//F", None, None, None),
        (1, at("1950-03-01"), "MEDS_BIRTH", None, None, None),
        (1, at("2010-01-01"), "OBSERVATION_PERIOD_START", None, None, None),
        (1, at("2010-02-01 08:00"), "Visit//IP", None, None, 10),
        (1, at("2010-02-01 23:59:59"), "SNOMED//44054006", None, None, 10),
        (1, at("2010-02-02 06:30"), f"{hba1c}//%", 7.25, None, 10),
        (1, at("2010-02-02 06:30"), f"{hba1c}//mmol/mol", 53.0, None, 10),
        (1, at("2010-02-03 12:00"), "SNOMED//44054006", None, None, 10),
        (1, at("2010-02-03 12:00"), "Visit//IP//END", None, None, 10),
        (1, at("2010-05-05 10:00"), "OMOP//77", None, None, None),
        (1, at("2010-12-31 23:59:59"), "OBSERVATION_PERIOD_END", None, None, None),
        (1, at("2012-01-01"), "OBSERVATION_PERIOD_START", None, None, None),
        (1, at("2012-02-01 23:59:59"), "OBSERVATION_PERIOD_END", None, None, None),
    ]


def test_every_rule_is_counted(small: Path) -> None:
    report = json.loads((small / "metadata" / "import_report.json").read_text())
    assert {name: rule["rows"] for name, rule in report["rules"].items()} == {
        "date_only": 3,  # two conditions and a death
        "dangling_encounter": 3,  # 999 twice, and another person's visit
        "duplicates": 1,
        "no_person": 1,
        "no_time": 1,
        "overlapping_periods": 1,
        "unknown_person": 1,
        "unmapped": 1,
    }
    assert report["tables"]["condition_occurrence"] == 8
    assert "device_exposure" in report["missing"]
    assert report["written"] == {"subjects": 2, "rows": 17, "codes": 13, "shards": report["written"]["shards"]}


def test_codes_have_descriptions_and_ancestors(small: Path) -> None:
    table = pq.read_table(small / "metadata" / "codes.parquet")
    meds.CodeMetadataSchema.validate(table)
    facts = {row["code"]: (row["description"], row["parent_codes"]) for row in table.to_pylist()}
    assert facts["SNOMED//44054006"] == ("Diabetes 2", ["SNOMED//73211009"])
    assert facts["SNOMED//73211009"] == ("Diabetes", ["SNOMED//64572001"])  # not met: an ancestor
    assert facts["SNOMED//64572001"] == ("Disease", None)
    assert facts["LOINC//4548-4//%"] == ("HbA1c", ["LOINC//4548-4"])
    assert facts["Visit//IP//END"] == ("Inpatient Visit", ["Visit//IP"])


def upper_case(folder: Path) -> Path:
    """The folder, each of its files by its name in upper case, as some databases export them."""
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.upper())
    return folder


def write_deltas(tables: Tables, folder: Path) -> Path:
    """Parquet as Spark and DuckDB may write it: texts and numbers as differences."""
    for path in write_parquet(tables, folder).iterdir():
        table = pq.read_table(path)
        whole = [name for name in table.column_names if name.endswith("_id") and name != "vocabulary_id"]
        texts = [name for name in table.column_names if name not in whole]
        for name in whole:
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
        encoding = dict.fromkeys(texts, "DELTA_BYTE_ARRAY") | dict.fromkeys(whole, "DELTA_BINARY_PACKED")
        pq.write_table(table, path, use_dictionary=False, column_encoding=encoding, data_page_version="2.0")
    return folder


STORES: dict[str, Callable[[Tables, Path], Path | str]] = {
    "upper-case headers": lambda t, f: write_csv(t, f, upper=True),
    "upper-case endings": lambda t, f: upper_case(write_csv(t, f, gz=True)),
    "gz": lambda t, f: write_csv(t, f, gz=True),
    "tabs": lambda t, f: write_csv(t, f, delimiter="\t"),
    "parquet": write_parquet,
    "parquet of differences": write_deltas,
    "duckdb": lambda t, f: write_duckdb(t, f.with_suffix(".duckdb")),
    "rows backwards": lambda t, f: write_csv({name: rows[::-1] for name, rows in t.items()}, f),
}


@pytest.mark.parametrize("store", STORES)
def test_the_same_bytes_from_every_store(small: Path, tmp_path: Path, store: str) -> None:
    import_omop(str(STORES[store](SMALL, tmp_path / "source")), tmp_path / "meds")
    assert written(tmp_path / "meds") == written(small)


def test_the_same_bytes_from_postgresql(small: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    folder = tmp_path_factory.mktemp("server")
    with postgres_server(folder) as url:
        import_omop(write_postgres(SMALL, url), folder / "meds")
    assert written(folder / "meds") == written(small)


def test_neighbouring_decimal_ids_in_a_database_stay_two_persons(tmp_path: Path) -> None:
    import duckdb

    with duckdb.connect(tmp_path / "cdm.duckdb") as connection:
        rows = "(9007199254740992, 8507, 1950), (9007199254740993, 8532, 1960)"
        columns = "person_id DECIMAL(38, 0), gender_concept_id DECIMAL(38, 10), year_of_birth DECIMAL(4, 0)"
        connection.execute(f"CREATE TABLE person ({columns}); INSERT INTO person VALUES {rows}")
        at = "SELECT person_id, 77 condition_concept_id, DATE '2010-01-01' condition_start_date FROM person"
        connection.execute(f"CREATE TABLE condition_occurrence AS {at}")
    import_omop(f"duckdb://{tmp_path / 'cdm.duckdb'}", tmp_path / "meds")
    sexes = {(row[0], row[2]) for row in meds_rows(tmp_path / "meds") if row[1] is None}
    assert sexes == {(2**53, "Gender//M"), (2**53 + 1, "Gender//F")}


def test_hidden_marks_in_concept_codes_are_fixed(tmp_path: Path) -> None:
    concepts = [{**c, "concept_code": "44054006 \n x "} if c["concept_id"] == 201826 else c for c in SMALL["concept"]]
    import_omop(str(write_csv({**SMALL, "concept": concepts}, tmp_path / "csv")), tmp_path / "meds")
    facts = {r["code"]: r for r in pq.read_table(tmp_path / "meds" / "metadata" / "codes.parquet").to_pylist()}
    assert facts["SNOMED//44054006 x"]["parent_codes"] == ["SNOMED//73211009"]


OPERATORS = [None, None, 4171756, 4172703]  # the last one is =
WRITTEN: dict[str, tuple[list[Any], list[tuple[float | None, str | None]], int]] = {
    "text": (["1,5", "<5", "5.4", "7"], [(None, "1,5"), (None, "<5"), (None, "<5.4"), (7.0, None)], 2),
    "numbers": ([1.5, None, 5.5, 7.0], [(1.5, None), (None, None), (None, "<5.5"), (7.0, None)], 0),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_bound_and_what_is_no_number_stay_as_text_and_repeat_nothing(kind: str, tmp_path: Path) -> None:
    cells, expected, unread = WRITTEN[kind]
    source, n = write_csv({"person": SMALL["person"]}, tmp_path / "source"), len(cells)
    table = {
        "person_id": [1] * n,
        "measurement_concept_id": [77] * n,
        "measurement_date": ["2011-05-05"] * n,
        "value_as_number": cells,
        "operator_concept_id": OPERATORS,
    }
    pq.write_table(pa.table(table), source / "measurement.parquet")
    report = import_omop(str(source), tmp_path / "meds")
    found = [row[3:5] for row in meds_rows(tmp_path / "meds") if row[2].startswith("OMOP//77")]
    assert sorted(found, key=repr) == sorted(((v, t) for v, t in expected), key=repr)
    assert (report.counts["bound"], report.counts["duplicates"]) == (1, 0)
    assert report.tables["measurement"].cells["value_as_number"].unread == unread


def test_without_ibis_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ibis", None)
    with pytest.raises(EhrseqError, match=r'pip install -e "\.\[omop\]"'):
        import_omop("duckdb://cdm.duckdb", tmp_path / "meds")
    import_omop(str(write_csv(SMALL, tmp_path / "csv")), tmp_path / "meds")  # files need none


@pytest.fixture
def duckdb_file(tmp_path: Path) -> Path:
    write_duckdb(SMALL, tmp_path / "cdm.duckdb")
    return tmp_path / "cdm.duckdb"


def test_a_duckdb_file_of_another_version_is_refused_with_the_way_on(duckdb_file: Path) -> None:
    content = bytearray(duckdb_file.read_bytes())
    content[12:20] = (999).to_bytes(8, "little")  # the version of the storage; the header's checksum is left as it is
    duckdb_file.write_bytes(content)
    error = refused("import", "omop", f"duckdb://{duckdb_file}", duckdb_file.parent / "meds")
    assert "cannot be opened by DuckDB 1." in error
    assert "EXPORT DATABASE 'FOLDER' (FORMAT parquet)" in error


@pytest.mark.parametrize("content", [b"", b"DUCK", b"PAR1" * 30, b"person_id\n1\n"], ids=repr)
def test_a_file_that_is_no_duckdb(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cdm.duckdb"
    path.write_bytes(content)
    assert "is no DuckDB file" in refused("import", "omop", f"duckdb://{path}", tmp_path / "meds")


def test_a_sqlite_file_is_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "cdm.duckdb")) as connection:
        connection.execute("CREATE TABLE person (person_id INT)")
        connection.commit()
    assert "is a SQLite file" in refused("import", "omop", f"duckdb://{tmp_path}/cdm.duckdb", tmp_path / "meds")


def test_without_its_driver_the_extra_of_postgresql_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = refused("import", "omop", "postgres://me:SECRET@127.0.0.1:1/cdm", tmp_path / "meds")
    assert "needs its driver, which is not installed (in a clone" in error
    assert 'pip install -e ".[postgres]")' in error
    assert "SECRET" not in error


def test_mimic_demo_against_a_plain_reading(real_data: Path, tmp_path: Path) -> None:
    """The real demo: subjects, births, deaths, and each table's distinct rows as Python's csv module reads them."""
    source = real_data / "mimic4_demo_omop"
    report = import_omop(str(source), tmp_path / "meds")
    rows = meds_rows(tmp_path / "meds")

    def plain(name: str) -> list[dict[str, str]]:
        with gzip.open(source / f"{name}.csv.gz", "rt", newline="") as file:
            return list(csv.DictReader(file))

    assert {row[0] for row in rows} == {int(person["person_id"]) for person in plain("person")}
    assert sum(row[2] == "MEDS_DEATH" for row in rows) == len(plain("death"))
    assert report.missing == ["measurement", "observation", "concept_ancestor"]
    assert report.tables["drug_exposure"].rows_in == len(plain("drug_exposure"))
    for counts in report.tables.values():
        table = counts.as_json()
        assert table["rows_in"] == table["rows_out"] + sum(d["rows"] for d in table["dropped"])
        assert {d["reason"] for d in table["dropped"]} <= {"duplicates"}

    assert {"Gender//F", "Gender//M", "Race//8527"} <= {row[2] for row in rows if row[1] is None}
    named = {
        c["concept_id"]: f"{c['vocabulary_id']}//{' '.join(c['concept_code'].split())}" for c in plain("2b_concept")
    }
    expected = set()
    for name, concept in (("drug_exposure", "drug"), ("device_exposure", "device")):
        stem = f"{name}_start"
        for row in plain(name):
            time = at(row[f"{stem}_datetime"])
            if (time.hour, time.minute, time.second) == (0, 0, 0):
                continue
            chosen = [row[f"{concept}{kind}_concept_id"] for kind in ("", "_source")]
            chosen = [c for c in chosen if c not in ("", "0")] or [""]
            code = named.get(chosen[0], f"OMOP//{chosen[0]}") if chosen[0] else f"OMOP//0//{concept.upper()}"
            expected.add((int(row["person_id"]), time, code))
    assert expected <= {row[:3] for row in rows}
    assert len(expected) > 10_000
    check = ehrseq("check", tmp_path / "meds", "visits.by=encounter", "visits.column=encounter_id")
    assert check.exit_code == 0, check.output


def test_units_have_names_without_a_vocabulary_and_one_number_of_two_people_is_said(tmp_path: Path) -> None:
    at = {"measurement_date": "2015-01-01", "measurement_concept_id": 3009201, "value_as_number": 2}
    tables: Tables = {
        "person": [
            {"person_id": i, "year_of_birth": 1950, "person_source_value": "000" if i > 2 else "MRN-7"}
            for i in range(1, 5)
        ],
        "measurement": [{"person_id": i, "unit_concept_id": unit, **at} for i, unit in ((1, 9040), (2, 9093))],
    }
    report = import_omop(str(write_csv(tables, tmp_path / "csv")), tmp_path / "meds")
    codes = {row[2] for row in meds_rows(tmp_path / "meds")}
    assert codes >= {"OMOP//3009201//m[IU]/L", "OMOP//3009201//u[IU]/mL"}
    assert next(text for text in report.warnings() if "share a record number" in text).startswith("2 ")


# ---- A password in the URL of a database never reaches a message, a traceback or a file ----


# A core that stands in no message, between characters that break parsers.
odd = st.text(st.sampled_from("/#?@[]:%&=+;' \\\"$aZ0é"), max_size=5)
passwords = st.tuples(odd, odd).map(lambda around: f"{around[0]}Xq7zW{around[1]}")
SHAPES = {
    "url": "postgres://me:{raw}@127.0.0.1:1/cdm",
    "encoded": "postgresql://me:{encoded}@127.0.0.1:1/cdm?schema=x",
    "query": "postgres://127.0.0.1:1/cdm?user=me&password={raw}",
    "one slash": "postgres:/me:{raw}@127.0.0.1/cdm",
    "DSN": "host=127.0.0.1 port=1 user=me password={raw}",
    "DuckDB": "duckdb://me:{raw}@cdm.duckdb",
    "unknown": "what{raw}://me:{raw}@host/cdm",
    "password only": "{raw}://",
}


@pytest.mark.parametrize("shape", SHAPES)
@given(password=passwords)
@example(password="pa/ss#Xq7zW?@[")
@example(password="Xq7zW%41%zz")
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_message_holds_the_password(tmp_path: Path, shape: str, password: str) -> None:
    source = SHAPES[shape].format(raw=password, encoded=quote(password, safe=""))
    with pytest.raises(EhrseqError) as caught:
        import_omop(source, tmp_path / "meds")
    assert "Xq7zW" not in "".join(traceback.format_exception(caught.value))
    links: list[BaseException] = [caught.value]
    for error in links:
        links += [e for e in (error.__cause__, error.__context__) if e is not None]
        assert "Xq7zW" not in repr(error) + str(error)
    for words in ([source, str(tmp_path / "meds")], [str(tmp_path), source]):
        result = ehrseq("import", "omop", *words)
        assert result.exit_code == 2
        assert "Xq7zW" not in result.output
    assert not list(tmp_path.iterdir())


@given(password=passwords, encoded=st.booleans())
@settings(max_examples=200)
def test_the_driver_gets_host_and_password_apart(password: str, encoded: bool) -> None:
    import ibis

    given_to = {}
    text = quote(password, safe="") if encoded else password.replace("%", "%25")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ibis.postgres, "connect", lambda **words: given_to.update(words))
        connect(f"postgres://me:{text}@db.example.org:5433/cdm?schema=omop")
    assert given_to == {
        "user": "me",
        "password": password,
        "host": "db.example.org",
        "port": 5433,
        "database": "cdm",
        "schema": "omop",
    }
