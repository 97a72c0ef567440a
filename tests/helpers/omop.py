"""A small OMOP database by hand, and ways to store it: files of every kind, DuckDB, PostgreSQL."""

import csv
import gzip
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Tables = Mapping[str, Sequence[Mapping[str, Any]]]
TYPES = {"_id": "BIGINT", "_of_birth": "INTEGER", "_date": "DATE", "_datetime": "TIMESTAMP", "_number": "NUMERIC"}
OTHER_TYPES = {"vocabulary_id": "TEXT", "relationship_id": "TEXT", "min_levels_of_separation": "INTEGER"}

# Two persons; every rule for messy records that needs several tables has a case here.
SMALL: Tables = {
    "person": [
        {"person_id": 1, "gender_concept_id": 8532, "year_of_birth": 1950, "month_of_birth": 3, "day_of_birth": None},
        {"person_id": -2, "gender_concept_id": 0, "year_of_birth": 1960, "month_of_birth": None, "day_of_birth": None},
    ],
    "observation_period": [
        {"person_id": 1, "observation_period_start_date": "2010-01-01", "observation_period_end_date": "2010-06-30"},
        {"person_id": 1, "observation_period_start_date": "2010-06-01", "observation_period_end_date": "2010-12-31"},
        {"person_id": 1, "observation_period_start_date": "2012-01-01", "observation_period_end_date": "2012-02-01"},
    ],
    "visit_occurrence": [
        {
            "visit_occurrence_id": 10,
            "person_id": 1,
            "visit_concept_id": 9201,
            "visit_start_date": "2010-02-01",
            "visit_start_datetime": "2010-02-01 08:00:00",
            "visit_end_date": "2010-02-03",
            "visit_end_datetime": "2010-02-03 12:00:00",
        }
    ],
    "condition_occurrence": [
        {
            "person_id": 1,
            "condition_concept_id": 201826,
            "condition_start_date": "2010-02-01",
            "condition_start_datetime": None,
            "visit_occurrence_id": 10,
        },
        {
            "person_id": 1,
            "condition_concept_id": 201826,
            "condition_start_date": "2010-02-03",
            "condition_start_datetime": None,
            "visit_occurrence_id": 10,
        },
        {
            "person_id": 1,
            "condition_concept_id": 77,
            "condition_start_date": "2010-05-05",
            "condition_start_datetime": "2010-05-05 10:00:00",
            "visit_occurrence_id": 999,
        },
        {
            "person_id": 1,
            "condition_concept_id": 77,
            "condition_start_date": "2010-05-05",
            "condition_start_datetime": "2010-05-05 10:00:00",
            "visit_occurrence_id": 999,
        },
        {
            "person_id": -2,
            "condition_concept_id": 0,
            "condition_start_date": "2011-05-05",
            "condition_start_datetime": "2011-05-05 10:00:00",
            "visit_occurrence_id": 10,
        },
        {
            "person_id": 3,
            "condition_concept_id": 77,
            "condition_start_date": "2010-05-05",
            "condition_start_datetime": None,
            "visit_occurrence_id": None,
        },
        {
            "person_id": None,
            "condition_concept_id": 77,
            "condition_start_date": "2010-05-05",
            "condition_start_datetime": None,
            "visit_occurrence_id": None,
        },
        {
            "person_id": 1,
            "condition_concept_id": 77,
            "condition_start_date": None,
            "condition_start_datetime": None,
            "visit_occurrence_id": None,
        },
    ],
    "measurement": [
        {
            "person_id": 1,
            "measurement_concept_id": 3004410,
            "measurement_date": "2010-02-02",
            "measurement_datetime": "2010-02-02 06:30:00",
            "value_as_number": "7.25",
            "value_as_concept_id": None,
            "unit_concept_id": 8554,
            "unit_source_value": "pct",
            "visit_occurrence_id": 10,
        },
        {
            "person_id": 1,
            "measurement_concept_id": 3004410,
            "measurement_date": "2010-02-02",
            "measurement_datetime": "2010-02-02 06:30:00",
            "value_as_number": "53",
            "value_as_concept_id": None,
            "unit_concept_id": 0,
            "unit_source_value": "mmol/mol",
            "visit_occurrence_id": 10,
        },
        {
            "person_id": -2,
            "measurement_concept_id": 3004410,
            "measurement_date": "2011-02-02",
            "measurement_datetime": "2011-02-02 06:30:00",
            "value_as_number": None,
            "value_as_concept_id": 9191,
            "unit_concept_id": None,
            "unit_source_value": None,
            "visit_occurrence_id": None,
        },
    ],
    "death": [{"person_id": -2, "death_date": "2013-07-01", "death_datetime": None}],
    "concept": [
        {"concept_id": 8532, "concept_name": "FEMALE", "vocabulary_id": "Gender", "concept_code": "F"},
        {"concept_id": 9201, "concept_name": "Inpatient Visit", "vocabulary_id": "Visit", "concept_code": "IP"},
        {"concept_id": 201826, "concept_name": "Diabetes 2", "vocabulary_id": "SNOMED", "concept_code": "44054006"},
        {"concept_id": 201820, "concept_name": "Diabetes", "vocabulary_id": "SNOMED", "concept_code": "73211009"},
        {"concept_id": 442793, "concept_name": "Disease", "vocabulary_id": "SNOMED", "concept_code": "64572001"},
        {"concept_id": 3004410, "concept_name": "HbA1c", "vocabulary_id": "LOINC", "concept_code": "4548-4"},
        {"concept_id": 8554, "concept_name": "percent", "vocabulary_id": "UCUM", "concept_code": "%"},
        {"concept_id": 9191, "concept_name": "Positive", "vocabulary_id": "SNOMED", "concept_code": "10828004"},
    ],
    "concept_ancestor": [
        {"ancestor_concept_id": a, "descendant_concept_id": d, "min_levels_of_separation": n}
        for a, d, n in [(201826, 201826, 0), (201820, 201826, 1), (442793, 201820, 1), (442793, 201826, 2)]
    ],
}


def as_arrow(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table whose columns are all text, as in a CSV file."""
    names = list(rows[0])
    return pa.table(
        {n: pa.array([None if row[n] is None else str(row[n]) for row in rows], pa.string()) for n in names}
    )


def write_csv(tables: Tables, folder: Path, *, upper: bool = False, gz: bool = False, delimiter: str = ",") -> Path:
    folder.mkdir(parents=True)
    for name, rows in tables.items():
        path = folder / f"{name.upper() if upper else name}.csv{'.gz' if gz else ''}"
        with gzip.open(path, "wt", newline="") if gz else open(path, "w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            header = list(rows[0])
            writer.writerow([column.upper() for column in header] if upper else header)
            writer.writerows([["" if row[c] is None else row[c] for c in header] for row in rows])
    return folder


def write_parquet(tables: Tables, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, rows in tables.items():
        pq.write_table(as_arrow(rows), folder / f"{name}.parquet")
    return folder


def kinds_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The SQL type of each column."""
    kinds = {c: next((t for end, t in TYPES.items() if c.endswith(end)), "TEXT") for c in rows[0]}
    return kinds | {c: t for c, t in OTHER_TYPES.items() if c in kinds}


def statements(tables: Tables) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """SQL that makes each table with real types, and its insertion."""
    for name, rows in tables.items():
        columns = ", ".join(f"{column} {kind}" for column, kind in kinds_of(rows).items())
        yield f"CREATE TABLE {name} ({columns})", []
        marks = ", ".join(["%s"] * len(rows[0]))
        yield f"INSERT INTO {name} VALUES ({marks})", [tuple(row.values()) for row in rows]


def write_duckdb(tables: Tables, path: Path) -> str:
    import duckdb

    with duckdb.connect(str(path)) as connection:
        for sql, rows in statements(tables):
            connection.executemany(sql.replace("%s", "?"), rows) if rows else connection.execute(sql)
    return f"duckdb://{path}"


def write_postgres(tables: Tables, url: str) -> str:
    import psycopg

    with psycopg.connect(url.replace("postgres://", "postgresql://")) as connection:
        for sql, rows in statements(tables):
            connection.cursor().executemany(sql, rows) if rows else connection.execute(sql)
    return url


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """A PostgreSQL server of its own on loopback, for as long as the block lasts; skips where none is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        pytest.skip("needs a PostgreSQL server: apt-get install postgresql")
    programs, data = Path(initdb).parent, folder / "pg"
    data.mkdir()
    as_user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(data, "postgres")
        for parent in (folder, *folder.parents):
            if parent.stat().st_uid == 0 and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def call(*words: str) -> None:
        subprocess.run([*as_user, *words], check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    call(initdb, "-D", str(data), "-U", "omop", "--auth=trust", "-E", "UTF8")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {data}"
    try:
        call(str(programs / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(data / "log"), "-w", "start")
        yield f"postgres://omop@127.0.0.1:{port}/postgres"
    finally:
        if (data / "postmaster.pid").is_file():  # also where it started too late
            call(str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")


def hospital() -> Tables:
    """120 persons with four visits each; those with condition 2 have an emergency at last, and die within two years."""
    names = ("person", "observation_period", "visit_occurrence", "death")
    rng, tables = np.random.default_rng(3), {name: [] for name in names}
    conditions = []
    for person in range(120):
        ill, start = person % 3 == 0, date(2010, 1, 1) + timedelta(int(rng.integers(0, 700)))
        tables["person"].append({"person_id": person, "gender_concept_id": 8532, "year_of_birth": 1950})
        seen = {"observation_period_start_date": start, "observation_period_end_date": start + timedelta(700)}
        tables["observation_period"].append({"person_id": person, **seen})
        for number in range(4):
            day, visit = (start + timedelta(30 * number)).isoformat(), 4 * person + number
            tables["visit_occurrence"].append(
                {
                    "visit_occurrence_id": visit,
                    "person_id": person,
                    "visit_start_date": day,
                    "visit_end_date": day,
                    "visit_concept_id": 8870 if ill and number == 3 else 9201,
                }
            )
            conditions.append(
                {
                    "person_id": person,
                    "condition_concept_id": 2 if ill else 1,
                    "condition_start_date": day,
                    "visit_occurrence_id": visit,
                }
            )
        if ill:
            tables["death"].append({"person_id": person, "death_date": start + timedelta(int(rng.integers(150, 600)))})
    concepts = [
        {"concept_id": k, "concept_name": f"condition {k}", "vocabulary_id": "V", "concept_code": k} for k in (1, 2)
    ]
    return {**tables, "condition_occurrence": conditions, "concept": concepts}
