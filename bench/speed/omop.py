"""OMOP → MEDS: rows per CPU-second, memory and share of DuckDB's speed; `python -m bench omop OUT [--rows N …]`.

Writes OMOP databases of given sizes as Parquet (rows in random order, visits to refer to, and the faults of real ones:
repeated rows, concepts of 0, visits that do not exist, absent dates), imports each in a process of its own, and prints
a table and `omop.json`. CPU time is user and system time, of all of the engine's threads. Memory is that of all
processes, without the pages of mapped files. A database that is there already is used again; `--clean` removes each
size's files after it was measured.

The engine's own speed is that of DuckDB doing the least that an import must: join each row with its concept, sort all
rows by person, time and code, and write them as Parquet. It drops no repeat, moves no date and counts no cell.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.measure import Child, machine, made_once, run_bench
from ehrsequencing.core.files import write_json
from ehrsequencing.readers.omop import import_omop

MUST_RATE, MUST_GIB = 0.87e6, 2.0  # source rows per CPU-second at 20 M rows, and peak memory
MUST_SHARE = 0.6  # of the engine's own speed
CHUNK_PERSONS = 10_000  # persons of one file
VISITS, ROWS_PER_PERSON = 12, 12 * 31 + 4
CONCEPTS, UNITS, VALUES = 40_000, 40, 200
DAY_US = 86_400_000_000
# Table, its rows per visit, whether the rows have numbers, the end of its columns of time.
EVENTS = (
    ("condition_occurrence", "condition", 4, "condition_start"),
    ("drug_exposure", "drug", 5, "drug_exposure_start"),
    ("measurement", "measurement", 18, "measurement"),
    ("procedure_occurrence", "procedure", 1, "procedure"),
    ("observation", "observation", 2, "observation"),
)
Ints = NDArray[np.int64]
Row = dict[str, Any]


# ---- data ------------------------------------------------------------------------------------------------------------


def times(
    us: Ints, absent: NDArray[np.bool_], undated: NDArray[np.bool_]
) -> tuple[pa.Array, pa.Array]:
    """A column of dates and one of times, null where a row has only a date, or neither."""
    date = pa.array((us // DAY_US).astype(np.int32), mask=undated).cast(pa.date32())
    return date, pa.array(us, mask=absent | undated).cast(pa.timestamp("us"))


def zipf(rng: np.random.Generator, n: int, kinds: int) -> Ints:
    """(n,) numbers below `kinds`, of which the first are the most frequent."""
    return np.minimum(np.exp(rng.random(n) * np.log(kinds + 1)).astype(np.int64) - 1, kinds - 1)


def event_table(
    rng: np.random.Generator, name: str, stem: str, when: str, visit: pa.Table, each: int
) -> pa.Table:
    """`each` rows for every visit, and faults: 1 row in 200 comes twice, 1 in 100 has no concept, 1 in 1000 no date."""
    place = np.repeat(np.arange(len(visit)), each)
    start = visit["start"].to_numpy()[place]
    us = start + rng.integers(0, 3 * 86_400, len(place)) * 1_000_000
    place, us = (np.r_[x, x[: len(x) // 200]] for x in (place, us))
    n = len(place)
    repeated = n - n // 201
    concept = 1000 + (zipf(rng, n, 8_000) * 5 + [e[0] for e in EVENTS].index(name)) % CONCEPTS
    concept[rng.random(n) < 0.01] = 0
    of_visit = visit["visit_occurrence_id"].to_numpy()[place]
    kind = rng.random(n)
    of_visit[kind < 0.02] += 10**12
    only_date = rng.random(n) < (0.5 if name == "condition_occurrence" else 0.1)
    date, moment = times(us, only_date, rng.random(n) < 0.001)
    columns = {
        f"{name}_id": pa.array(np.arange(n)),
        "person_id": pa.array(visit["person_id"].to_numpy()[place]),
        f"{stem}_concept_id": pa.array(concept.astype(np.int32)),
        f"{when}_date": date,
        f"{when}_datetime": moment,
        "visit_occurrence_id": pa.array(of_visit, mask=(kind > 0.9)),
        f"{stem}_source_value": pa.array(concept).cast(pa.string()),
        f"{stem}_source_concept_id": pa.array(np.zeros(n, np.int32)),
    }
    if name in ("measurement", "observation"):
        columns |= valued(rng, concept, share=0.85 if name == "measurement" else 0.1)
    table = pa.table(columns)
    order = np.r_[np.arange(repeated), np.arange(n - repeated)]  # the last rows repeat the first
    return table.take(pa.array(order[rng.permutation(n)]))


def valued(rng: np.random.Generator, concept: Ints, share: float) -> dict[str, pa.Array]:
    """Numbers with the unit of their concept, values that are concepts, and texts."""
    n, kind = len(concept), rng.random(len(concept))
    unit, number = concept % UNITS, rng.normal(50 + concept % 97, 12).round(2)
    names = pa.array([f"unit {i}" for i in range(UNITS)])
    value = 100 + (concept + zipf(rng, n, 4)) % VALUES  # four values of each concept
    return {
        "value_as_number": pa.array(number, mask=kind >= share),
        "value_as_string": pa.array(np.where(kind > 0.98, "see comment", ""), mask=kind <= 0.98),
        "value_as_concept_id": pa.array(value.astype(np.int32), mask=kind < 1 - (1 - share) / 2),
        "unit_concept_id": pa.array(np.where(unit < UNITS // 2, 1 + unit, 0).astype(np.int32)),
        "unit_source_value": names.take(pa.array(unit)),
    }


def make_chunk(folder: Path, number: int, person: Ints) -> int:
    """Write one file of each table, for some persons; returns how many rows."""
    rng = np.random.default_rng(number)
    n = len(person)
    birth = rng.integers(-20_000, 10_000, n) * DAY_US
    years = (birth // DAY_US).astype("datetime64[D]")
    month = years.astype("datetime64[M]").astype(np.int64)
    visits = np.maximum(np.rint(rng.lognormal(np.log(VISITS) - 0.32, 0.8, n)), 1).astype(np.int64)
    owner = np.repeat(np.arange(n), visits)
    start = (birth + 7_000 * DAY_US)[owner] + rng.integers(
        0, 5_000 * 86_400, len(owner)
    ) * 1_000_000
    end = start + rng.integers(3_600, 5 * 86_400, len(owner)) * 1_000_000
    visit = pa.table(
        {
            "visit_occurrence_id": pa.array(number * 10**7 + np.arange(len(owner))),
            "person_id": pa.array(person[owner]),
            "visit_concept_id": pa.array(
                np.array([9201, 9202, 9203], np.int32)[rng.integers(0, 3, len(owner))]
            ),
            "start": pa.array(start),
        }
    )
    none = np.zeros(len(owner), dtype=bool)
    tables = {
        name: event_table(rng, name, stem, when, visit, each) for name, stem, each, when in EVENTS
    }
    dates = [*times(start, none, none), *times(end, none, none)]
    named = [f"visit_{which}_{kind}" for which in ("start", "end") for kind in ("date", "datetime")]
    for name, column in zip(named, dates, strict=True):
        visit = visit.append_column(name, column)
    tables["visit_occurrence"] = visit.drop_columns("start").take(
        pa.array(rng.permutation(len(visit)))
    )
    tables["person"] = pa.table(
        {
            "person_id": pa.array(person),
            "year_of_birth": pa.array((1970 + month // 12).astype(np.int32)),
            "month_of_birth": pa.array((month % 12 + 1).astype(np.int32)),
            "day_of_birth": pa.nulls(n, pa.int32()),
            "gender_concept_id": pa.array(np.where(person % 2, 8507, 8532).astype(np.int32)),
            "race_concept_id": pa.array(np.full(n, 8527, np.int32)),
        }
    )
    dead = np.flatnonzero(rng.random(n) < 0.1)
    last = np.full(n, birth.min())
    np.maximum.at(last, owner, end)
    date, moment = times(
        last[dead] + 30 * DAY_US, rng.random(len(dead)) < 0.5, np.zeros(len(dead), bool)
    )
    tables["death"] = pa.table(
        {"person_id": pa.array(person[dead]), "death_date": date, "death_datetime": moment}
    )
    for name, table in tables.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name / f"{number:05d}.parquet")
    return sum(map(len, tables.values()))


def make_concepts(folder: Path) -> None:
    """A vocabulary: the concepts of the events in a hierarchy, units, values, kinds of visits, and sexes."""
    ids = np.r_[
        np.arange(1, 1 + UNITS // 2), np.arange(100, 100 + VALUES), np.arange(1000, 1000 + CONCEPTS)
    ]
    ids = np.r_[ids, 9201 + 10**6, 8507 + 10**6]  # which nobody uses
    vocabularies = np.array(["SNOMED", "RxNorm", "LOINC", "CPT4", "ICD10CM"])
    concept = pa.table(
        {
            "concept_id": pa.array(ids.astype(np.int32)),
            "concept_name": pa.array([f"Concept number {i}" for i in ids]),
            "vocabulary_id": pa.array(np.where(ids < 100, "UCUM", vocabularies[ids % 5])),
            "concept_code": pa.array(
                [f"{i * 7919 % 10**7:07d}" if i >= 100 else f"u{i}" for i in ids.tolist()]
            ),
        }
    )
    child = np.arange(1100, 1000 + CONCEPTS)
    ancestor = pa.table(
        {
            "ancestor_concept_id": pa.array((1000 + (child - 1000) // 10).astype(np.int32)),
            "descendant_concept_id": pa.array(child.astype(np.int32)),
            "min_levels_of_separation": pa.array(np.ones(len(child), np.int32)),
        }
    )
    pq.write_table(concept, folder / "concept.parquet")
    pq.write_table(ancestor, folder / "concept_ancestor.parquet")


def make_data(folder: Path, rows: int) -> int:
    """Write a database with about so many rows of persons' tables; returns how many it has."""
    return made_once(folder, "rows", lambda: _write_data(folder, rows))


def _write_data(folder: Path, rows: int) -> int:
    persons = max(rows // ROWS_PER_PERSON, 1)
    ids = np.random.default_rng(rows).permutation(persons).astype(np.int64) + 1
    parts = np.array_split(ids, -(-persons // CHUNK_PERSONS))
    total = sum(make_chunk(folder, number, part) for number, part in enumerate(parts))
    make_concepts(folder)
    return total


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(data: Path, out: Path, what: str = "--import-from") -> Row:
    """Import in a child process, or let DuckDB alone; its CPU seconds, wall seconds and peak memory."""
    child = run_bench("omop", out, what, data, threads=None)
    return {**used_by(child), **child.json}


def used_by(child: Child) -> Row:
    """What the table shows of a child process."""
    names = ("user_s", "system_s", "wall_s", "own_gib")
    return {name: getattr(child, name) for name in names}


def rows_of(folder: Path) -> int:
    """Rows of the persons' tables, or of one of them."""
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("0*.parquet"))


def engine_here(data: Path, out: Path) -> None:
    """DuckDB's own join, sort and write of the same rows, in a child process."""
    parts = [
        f"SELECT person_id, coalesce({when}_datetime, {when}_date) AS time, {stem}_concept_id AS id, "
        f"{'value_as_number' if name in ('measurement', 'observation') else 'NULL::DOUBLE'} AS value, "
        f"visit_occurrence_id FROM '{data}/{name}/*.parquet'"
        for name, stem, _, when in (*EVENTS, ("visit_occurrence", "visit", 1, "visit_start"))
    ]
    out.mkdir(parents=True)
    with duckdb.connect() as connection:
        connection.execute("SET memory_limit='4GB'")
        connection.execute(
            "COPY (SELECT person_id, time, vocabulary_id || '//' || concept_code AS code, value, "
            f"visit_occurrence_id FROM ({' UNION ALL '.join(parts)}) LEFT JOIN '{data}/concept.parquet' "
            f"ON concept_id = id ORDER BY person_id, time, code) TO '{out}/rows.parquet' (FORMAT parquet)"
        )
    print(json.dumps({"written": pq.read_metadata(out / "rows.parquet").num_rows}))


def import_here(data: Path, out: Path) -> None:
    """What the child process does."""
    report = import_omop(data, out)
    print(
        json.dumps({"written": report.rows, "subjects": report.subjects, "shards": report.shards})
    )


def shares(rows: list[Row]) -> list[float]:
    """Of each size, the import's rate as a share of the engine's."""
    rates = {
        who: [r["rate"] for r in rows if r["who"] == who] for who in ("ehrsequencing", "DuckDB")
    }
    return [ours / engine for ours, engine in zip(*rates.values(), strict=True)]


def table(rows: list[Row]) -> str:
    """The results as Markdown."""
    lines = [
        "| | source rows | M rows per CPU-second | CPU s (user + system) | wall s | GiB | rows written |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        cpu = f"{r['user_s']:.1f} + {r['system_s']:.1f}"
        figures = f"{cpu} | {r['wall_s']:.1f} | {r['own_gib']:.2f} | {r['written']:,}"
        lines.append(f"| {r['who']} | {r['rows']:,} | {r['rate'] / 1e6:.3f} | {figures} |")
    return "\n".join(
        [
            *lines,
            "",
            f"must: {MUST_RATE / 1e6:g} M rows per CPU-second at 20 M rows, {MUST_GIB:g} GiB at every size",
            *(
                f"share of the engine's own speed: {share:.0%}, must: {MUST_SHARE:.0%}"
                for share in shares(rows)
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000, 10_000_000])
    parser.add_argument(
        "--clean", action="store_true", help="remove each size's data after it was measured"
    )
    parser.add_argument("--keep", action="store_true", help="leave each size's MEDS data set")
    parser.add_argument("--import-from", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--engine-from", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.import_from is not None:
        import_here(given.import_from, given.out)
        return
    if given.engine_from is not None:
        engine_here(given.engine_from, given.out)
        return
    rows: list[Row] = []
    for size in given.rows:
        data, out = given.out / f"omop-{size}", given.out / f"meds-{size}"
        total = make_data(data, size)
        plain = given.out / f"engine-{size}"
        found = {"ehrsequencing": {"rows": total, **measure(data, out)}}
        found["DuckDB"] = {"rows": total, **measure(data, plain, "--engine-from")}
        for who, used in found.items():
            rows.append(
                {"who": who, "rate": used["rows"] / (used["user_s"] + used["system_s"]), **used}
            )
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        for folder in [plain] + [data] * given.clean + [out] * (not given.keep):
            shutil.rmtree(folder)
    write_json(given.out / "omop.json", {"machine": machine(), "rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
