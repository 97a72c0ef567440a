"""A flat table by its map: beside plain loops over the csv module, from CSV and Parquet; errors say what to do."""

import csv
import datetime as dt
import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import ImportConfig
from ehrsequencing.readers.flat_table import import_csv
from helpers.command_line import ehrseq, refused

WIDE = """
subject: ID
time: {column: year, unit: y, since: 2000-01-01 12:00}
encounter: stay
birth: {column: age, unit: y, before: 2000-01-01 12:00}
static: {sex: SEX}
events:
  - {code: ENROLLMENT, time: 2000-01-01 12:00}
  - {code: LAB//bili, value: Bili, unit: mg/dL}
  - {code: LAB//alb, value: alb, unit_from: alb_unit}
  - {code: SIGN//edema, code_from: edema}
  - {code_from: status, codes: {dead: MEDS_DEATH, alive: END}, time: {column: years, unit: y, since: 2000-01-01 12:00}}
"""
COLUMNS = ("ID", "years", "status", "age", "sex", "year", "stay", "Bili", "alb", "alb_unit", "edema", "unused")
NOON = dt.datetime(2000, 1, 1, 12)
Row = tuple[int, dt.datetime | None, str, float | None]


def wide(seed: int = 0) -> list[dict[str, str]]:
    """Visits of twenty people, with gaps and slips."""
    rng, rows = random.Random(seed), []
    for person in range(1, 21):
        fixed = {
            "ID": str(person),
            "years": f"{rng.uniform(3, 9):.2f}",
            "status": rng.choice(["dead", "alive", "moved"]),
        }
        fixed |= {"age": f"{rng.uniform(30, 80):.1f}", "sex": rng.choice(["f", "m", "NA"])}
        for visit in range(rng.randrange(1, 5)):
            labs = {"Bili": rng.choice(["NA", "", "1.25", "< 5", "3"]), "alb": rng.choice(["", "4.5"])}
            signs = {"alb_unit": rng.choice(["g/dL", ""]), "edema": rng.choice(["yes", "no", "NA"]), "unused": "x, y"}
            year = rng.choice([f"{visit + rng.random():.2f}", "?" if rng.random() < 0.1 else "0.5"])
            rows.append(fixed | labs | signs | {"year": year, "stay": f"s{person}-{visit}"})
    return rows


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def plain(rows: list[dict[str, str]]) -> set[Row]:
    """What the map WIDE means, in loops."""
    out: set[Row] = set()
    missing = ("", "NA")

    def after(years: str, sign: int = 1) -> dt.datetime | None:
        value = number(years)
        if value is None:
            return None
        time = NOON + sign * dt.timedelta(seconds=int(value * 365.25 * 86_400))
        return time + dt.timedelta(seconds=1) if time.time() == dt.time(0) else time  # midnight would mean a whole day

    for row in rows:
        who, time = int(row["ID"]), after(row["year"])
        out |= {(who, after(row["age"], -1), "MEDS_BIRTH", None), (who, NOON, "ENROLLMENT", None)}
        out |= {(who, None, f"SEX//{row['sex']}", None)} if row["sex"] not in missing else set()
        end = {"dead": "MEDS_DEATH", "alive": "END"}.get(row["status"])
        out |= {(who, after(row["years"]), end, None)} if end else set()
        if time is None:
            continue
        if row["Bili"] not in missing:
            value = number(row["Bili"])
            out.add((who, time, "LAB//bili" if value is None else "LAB//bili//mg/dL", value))
        if row["alb"] not in missing:
            out.add((who, time, f"LAB//alb//{row['alb_unit']}" if row["alb_unit"] else "LAB//alb", number(row["alb"])))
        out |= {(who, time, f"SIGN//edema//{row['edema']}", None)} if row["edema"] not in missing else set()
    return out


def write(rows: list[dict[str, str]], path: Path, *, delimiter: str = ",") -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())
    return path


def write_map(folder: Path, text: str = WIDE) -> Path:
    path = folder / "map.yaml"
    path.write_text(text)
    return path


def meds(source: Path, table_map: Path, out: Path) -> set[Row]:
    import_csv(source, out, settings=ImportConfig(map=table_map))
    table = pa.concat_tables(pq.read_table(path) for path in sorted((out / "data").rglob("*.parquet")))
    columns = ("subject_id", "time", "code", "numeric_value")
    found = list(zip(*(table[c].to_pylist() for c in columns), strict=True))
    return set(found)


@pytest.mark.parametrize("form", ["csv", "semicolons", "parquet"])
def test_a_wide_table_is_read_as_plain_loops_read_it(form: str, tmp_path: Path) -> None:
    rows = wide()
    if form == "parquet":
        source = tmp_path / "visits.parquet"
        table = {name: [row[name] for row in rows] for name in COLUMNS}
        typed = {**table, "ID": pa.array(map(int, table["ID"])), "age": pa.array(map(float, table["age"]))}
        pq.write_table(pa.table(typed), source)
    else:
        source = write(rows, tmp_path / "visits.csv", delimiter="," if form == "csv" else ";")
    assert meds(source, write_map(tmp_path), tmp_path / "meds") == plain(rows)


LONG = """
subject: patient
time: date
birth: born
death: died
events:
  - {code: ICD10GM, code_from: icd}
  - {code_from: test, value: result, unit_from: unit, time: taken}
"""
LONG_ROWS = """patient;date;born;died;icd;test;result;unit;taken
p1;03.05.2011;13.02.1950;;I50.1;;;;
p1;04.05.2011;13.02.1950;;;CRP;12.5;mg/L;2011-05-04 10:30
p1;;13.02.1950;;E11;;;;
p2;13.06.2012;25.06.1960;30.12.2015;I10;;;;
;13.06.2012;;;I10;;;;
"""


def test_a_long_table_with_dates_and_text_ids(tmp_path: Path) -> None:
    source = tmp_path / "long.csv"
    source.write_text(LONG_ROWS)
    done = ehrseq("import", "csv", source, "--map", write_map(tmp_path, LONG), tmp_path / "meds")
    assert done.exit_code == 0, done.output
    assert "dropped from long: 1 of 5 rows (patient: no readable person id; first: long.csv, row 5)" in done.output
    ids = pq.read_table(tmp_path / "meds/metadata/subject_ids.parquet").to_pylist()
    names = {row["subject_id"]: row["source_id"] for row in ids}
    table = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "meds/data").rglob("*.parquet")).to_pylist()
    found = {(names[r["subject_id"]], str(r["time"]), r["code"], r["numeric_value"]) for r in table}
    assert found == {
        ("p1", "1950-02-13 00:00:00", "MEDS_BIRTH", None),
        ("p1", "2011-05-03 23:59:59", "ICD10GM//I50.1", None),
        ("p1", "2011-05-04 10:30:00", "CRP//mg/L", 12.5),
        ("p2", "1960-06-25 00:00:00", "MEDS_BIRTH", None),
        ("p2", "2012-06-13 23:59:59", "ICD10GM//I10", None),
        ("p2", "2015-12-30 23:59:59", "MEDS_DEATH", None),
    }
    codes = {row["code"]: row for row in pq.read_table(tmp_path / "meds/metadata/codes.parquet").to_pylist()}
    assert codes["CRP//mg/L"]["parent_codes"] == ["CRP"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value: Bili", "value: bilirubin", "has no column 'bilirubin', which the map names (did you mean bili?"),
        ("subject: ID", "subjekt: ID", "subject: Field required"),
        ("subject: ID", "subject: whom", "its columns are id, years, status"),
        ("unit: mg/dL", "units: mg/dL", "unknown setting 'events.1.units'"),
        ("value: Bili, ", "", "has a unit, and no column value"),
        ("code: ENROLLMENT, ", "", "needs code, code_from or both"),
        ("time: {column: year", "when: {column: year", "unknown setting 'when'"),
        ("since: 2000-01-01 12:00}\nenc", "}\nenc", "needs either since or before"),
        ("time: {column: year, unit: y, since: 2000-01-01 12:00}\n", "", "an event has no time"),
        ("since: 2000-01-01 12:00}\nenc", "since: sex}\nenc", "none of its dates can be read"),
    ],
)
def test_a_wrong_map_is_refused_with_what_to_do(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in WIDE
    source = write(wide(), tmp_path / "visits.csv")
    error = refused("import", "csv", source, "--map", write_map(tmp_path, WIDE.replace(old, new, 1)), tmp_path / "meds")
    assert message in error
    assert not (tmp_path / "meds").exists()


def test_a_table_without_a_map_says_where_to_read_on(tmp_path: Path) -> None:
    assert "--map map.yaml" in refused("import", "csv", write(wide(), tmp_path / "visits.csv"), tmp_path / "meds")


def test_texts_without_a_number_and_unlisted_texts_are_counted(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = wide()
    report = import_csv(
        write(rows, tmp_path / "visits.csv"), tmp_path / "meds", settings=ImportConfig(map=write_map(tmp_path))
    )
    assert report.counts["no_number"] == sum(row["Bili"] == "< 5" for row in rows) > 0
    assert report.counts["unlisted"] == sum(row["status"] == "moved" for row in rows) > 0
    table = report.row_counts.tables["visits"]
    assert table.kept + sum(n for n, _ in table.dropped.values()) == table.read == len(rows)
