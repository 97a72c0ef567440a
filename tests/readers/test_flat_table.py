"""A flat table by its map: beside plain loops over the csv module, from CSV and Parquet; errors say what to do."""

import csv
import datetime as dt
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import ImportConfig
from ehrsequencing.readers.flat_table import import_csv
from helpers.command_line import ehrseq, refused
from helpers.meds import stored_subjects

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
Row = tuple[int, dt.datetime | None, str, float | None, str | None]  # subject, time, code, number, encounter


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
        who, time, stay = int(row["ID"]), after(row["year"]), row["stay"]
        out |= {(who, after(row["age"], -1), "MEDS_BIRTH", None, None), (who, NOON, "ENROLLMENT", None, None)}
        out |= {(who, None, f"SEX//{row['sex']}", None, None)} if row["sex"] not in missing else set()
        end, ended = {"dead": "MEDS_DEATH", "alive": "END"}.get(row["status"]), after(row["years"])
        near = ended is not None and (time is None or abs(ended.date() - time.date()) <= dt.timedelta(days=1))
        out |= {(who, ended, end, None, stay if near and end == "END" else None)} if end else set()
        if time is None:
            continue
        if row["Bili"] not in missing:
            value = number(row["Bili"])
            out.add((who, time, "LAB//bili" if value is None else "LAB//bili//mg/dL", value, stay))
        if row["alb"] not in missing:
            code = f"LAB//alb//{row['alb_unit']}" if row["alb_unit"] else "LAB//alb"
            out.add((who, time, code, number(row["alb"]), stay))
        out |= {(who, time, f"SIGN//edema//{row['edema']}", None, stay)} if row["edema"] not in missing else set()
    named = {row[:4] for row in out if row[4] is not None}
    return {row for row in out if row[4] is not None or row[:4] not in named}


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
    columns = ("subject_id", "time", "code", "numeric_value", "encounter_id")
    found = list(zip(*(table[c].to_pylist() for c in columns), strict=True))
    assert len(found) == len(set(found))
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
    assert (
        "dropped from long: 1 of 5 rows (patient: the person id is missing or cannot be read "
        "(in FHIR, an `identifier` alone cannot be followed); first: long.csv, row 5)" in done.output
    )
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


STAYS = """
subject: patient
time: visit_date
encounter: visit_id
events:
  - {code: LAB//crp, value: crp, unit: mg/L}
  - {code: ICD10GM, code_from: diagnosis}
  - {code_from: test, value: result, unit_from: unit, time: taken}
  - {code: END_OF_STUDY, time: last_seen}
"""
STAY_ROWS = """patient,visit_id,visit_date,crp,diagnosis,test,result,unit,taken,last_seen
1,a,2011-05-03 08:00,12,I50.1,,,,,2015-01-01
1,a,2011-05-05 09:00,7,,Na,140,mmol/L,2011-05-04 10:00,2015-01-01
1,b,2011-05-04 12:00,3,,K,4.1,mmol/L,2011-05-04 13:00,2015-01-01
1,c,2012-01-01 08:00,3,E11,K,4.1,mmol/L,2011-12-01 13:00,2015-01-01
2,a,2013-01-01 08:00,3,E11,,,,,2015-01-01
"""
TASK = "name: t\nindex: {first_visit: true}\noutcome: {e: ICD10GM//E11}\nhorizons: [30d]\n"


def prepared_visits(meds_: Path, folder: Path, *words: str) -> list[tuple[str, str]]:
    """Start and end of every visit that `prepare` cuts."""
    (folder / "task.yaml").write_text(TASK)
    out = folder / "prepared"  # the import noted the column of encounters
    done = ehrseq("prepare", meds_, "--task", folder / "task.yaml", "--out", out, "vocabulary.min_subjects=1", *words)
    assert done.exit_code == 0, done.output
    stored = stored_subjects(out).values()
    times = [np.array([one.start_us, one.end_us], dtype="datetime64[us]").T for one in stored]
    return sorted((str(start)[:16], str(end)[:16]) for visits in times for start, end in visits)


def import_stays(folder: Path, table_map: str = STAYS, rows: str = STAY_ROWS) -> str:
    (folder / "stays.csv").write_text(rows)
    done = ehrseq("import", "csv", folder / "stays.csv", "--map", write_map(folder, table_map), folder / "meds")
    assert done.exit_code == 0, done.output
    return str(done.output)


def test_the_encounters_of_a_table_become_visits(tmp_path: Path) -> None:
    """Stay a holds what was measured in it, and b, which overlaps it; the end of study and an early test stretch none.

    Rows without the encounter fall on their day: on 4 May that is a's span, on 1 December and in 2015 a visit alone.
    """
    said = import_stays(tmp_path)
    assert "rule: 6 rows more than a day before or after their visit were kept without it" in said
    assert "does not exist" not in said
    table = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "meds/data").rglob("*.parquet")).to_pylist()
    by_stay: dict[Any, list[str]] = {}
    for row in sorted(table, key=lambda row: (row["subject_id"], str(row["time"]), row["code"])):
        by_stay.setdefault((row["subject_id"], row["encounter_id"]), []).append(row["code"])
    assert by_stay == {
        (1, "a"): ["ICD10GM//I50.1", "LAB//crp//mg/L", "Na//mmol/L", "LAB//crp//mg/L"],
        (1, "b"): ["LAB//crp//mg/L", "K//mmol/L"],
        (1, "c"): ["ICD10GM//E11", "LAB//crp//mg/L"],
        (1, None): ["K//mmol/L", "END_OF_STUDY"],
        (2, "a"): ["ICD10GM//E11", "LAB//crp//mg/L"],
        (2, None): ["END_OF_STUDY"],
    }
    assert prepared_visits(tmp_path / "meds", tmp_path) == [
        ("2011-05-03T08:00", "2011-05-05T09:00"),
        ("2011-12-01T13:00", "2011-12-01T13:00"),
        ("2012-01-01T08:00", "2012-01-01T08:00"),
        ("2013-01-01T08:00", "2013-01-01T08:00"),
        ("2015-01-01T23:59", "2015-01-01T23:59"),
        ("2015-01-01T23:59", "2015-01-01T23:59"),
    ]
    (tmp_path / "days").mkdir()
    days = prepared_visits(tmp_path / "meds", tmp_path / "days", "visits.by=day")  # what the user says comes first
    assert len(days) == 8


def test_a_stay_with_start_and_end_holds_what_was_measured_between_them(tmp_path: Path) -> None:
    rows = """patient,stay,admitted,discharged,crp,taken
1,a,2011-05-03,2011-05-20,12,2011-05-11 10:00
1,a,2011-05-03,2011-05-20,12,2011-05-20
1,a,2011-05-03,2011-05-20,12,2011-05-22 10:00
1,b,2012-05-03,,12,2012-07-01 10:00
1,b,2012-05-03,,12,2012-05-01 10:00
"""
    table_map = """
subject: patient
encounter: {id: stay, start: admitted, end: discharged}
events:
  - {code: LAB//crp, value: crp, time: taken}
  - {code: ADMISSION, code_from: stay, time: admitted}
"""
    import_stays(tmp_path, table_map, rows)
    table = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "meds/data").rglob("*.parquet")).to_pylist()
    found = {str(row["time"])[:13]: row["encounter_id"] for row in table if row["code"] == "LAB//crp"}
    assert found == {
        "2011-05-11 10": "a",
        "2011-05-20 23": "a",
        "2011-05-22 10": None,
        "2012-07-01 10": "b",
        "2012-05-01 10": None,  # without an end, the stay may go on
    }
    error = refused(
        "import",
        "csv",
        tmp_path / "stays.csv",
        "--map",
        write_map(tmp_path, table_map.replace("start: admitted, ", "")),
        tmp_path / "other",
    )
    assert "encounter: has an end, and no start" in error


STAYS = """Stay;Admitted;At;Born;HR
1;03.11.2021 00:00;03.11.2021 00:30;1950-02-13;71
1;03.11.2021 00:00;04.11.2021 00:00;1950-02-13;3,5
2;05.11.2021 00:00;05.11.2021 02:10;1960-06-25;2,25
"""
STAYS_MAP = """
subject: Stay
time: At
birth: Born
events:
  - {code: ADMISSION, time: Admitted}
  - {code: HR, value: HR}
"""


def test_a_clock_of_midnight_is_a_date_until_the_map_says_otherwise(tmp_path: Path) -> None:
    source = tmp_path / "stays.csv"
    source.write_text(STAYS)

    def imported(name: str, table_map: str) -> tuple[str, list[tuple[Any, ...]]]:
        command = ("import", "csv", source, "--map", write_map(tmp_path, table_map), tmp_path / name)
        done = ehrseq(*command, "import.dates=dmy")
        assert done.exit_code == 0, done.output
        rows = pq.read_table(next((tmp_path / name / "data").rglob("*.parquet"))).to_pylist()
        columns = ("subject_id", "time", "code", "numeric_value")
        return done.stderr, [tuple(row[c] for c in columns) for row in rows if row["code"] != "MEDS_BIRTH"]

    warned, rows = imported("dates", STAYS_MAP)
    assert "column Admitted: 00:00 counts as a date" in warned
    assert "in 3 of its cells" in warned
    assert "column At: 00:00 counts as a date, known at the end of the day, in 1 of its cells" in warned
    assert "midnight: [Admitted]" in warned
    assert "column Born" not in warned
    assert "column HR has numbers such as 3,5, which were not read: add decimal: ',' to the map" in warned
    assert rows[1] == (1, dt.datetime(2021, 11, 3, 23, 59, 59), "ADMISSION", None)

    warned, rows = imported("clocks", STAYS_MAP + "midnight: [Admitted, At]\ndecimal: ','\n")
    assert "00:00" not in warned
    assert "3,5" not in warned
    assert rows == [
        (1, dt.datetime(2021, 11, 3, 0, 0, 1), "ADMISSION", None),
        (1, dt.datetime(2021, 11, 3, 0, 30), "HR", 71.0),
        (1, dt.datetime(2021, 11, 4, 0, 0, 1), "HR", 3.5),
        (2, dt.datetime(2021, 11, 5, 0, 0, 1), "ADMISSION", None),
        (2, dt.datetime(2021, 11, 5, 2, 10), "HR", 2.25),
    ]
    wrong = write_map(tmp_path, STAYS_MAP + "midnight: [HR]\n")
    assert "midnight names HR" in refused("import", "csv", source, "--map", wrong, tmp_path / "wrong")


NUMBERS = "subject: patient\ntime: date\nevents:\n  - {code: CRP, value: crp}\n  - {code: NA, value: na}\n"


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_decimal_commas_are_read_where_the_map_says_so(form: str, tmp_path: Path) -> None:
    cells = ["3,5", "1.234,5", "-7", "1,5e3", "< 5"]
    if form == "csv":
        source = tmp_path / "labs.csv"
        source.write_text(
            "patient;date;crp;na\n" + "".join(f"1;0{i + 1}.06.2011;{c};{i}\n" for i, c in enumerate(cells))
        )
    else:
        source = tmp_path / "labs.parquet"
        numbers = pa.array([i + 0.5 for i in range(5)])  # numbers of Parquet have no comma
        dates = [dt.date(2011, 6, i + 1) for i in range(5)]
        pq.write_table(pa.table({"patient": [1] * 5, "date": dates, "crp": cells, "na": numbers}), source)
    table_map = write_map(tmp_path, f"decimal: ','\n{NUMBERS}")
    done = ehrseq("import", "csv", source, "--map", table_map, tmp_path / "meds", "import.dates=dmy")
    assert done.exit_code == 0, done.output
    assert "1 of 5 values in column crp of labs (20.0%) cannot be read" in done.stderr
    rows = pq.read_table(next((tmp_path / "meds/data").rglob("*.parquet"))).to_pylist()
    assert [row["numeric_value"] for row in rows if row["code"] == "CRP"] == [3.5, 1234.5, -7.0, 1500.0, None]
    expected = [0.5, 1.5, 2.5, 3.5, 4.5] if form == "parquet" else [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [row["numeric_value"] for row in rows if row["code"] == "NA"] == expected
    report = json.loads((tmp_path / "meds/metadata/import_report.json").read_text())
    assert report["rows"]["labs"]["cells"]["crp"] == {"values": 4, "empty": 0, "unread": 1}


@pytest.mark.parametrize(("cells", "decimal"), [(["3,5", "4,5"], "."), (["3.5", "4.75"], ","), (["I50", "E11"], ".")])
def test_a_column_without_a_number_is_refused(cells: list[str], decimal: str, tmp_path: Path) -> None:
    source = tmp_path / "labs.csv"
    source.write_text("patient;date;crp;na\n" + "".join(f"1;2011-06-01;{cell};1\n" for cell in cells))
    table_map = write_map(tmp_path, f"decimal: '{decimal}'\n{NUMBERS}")
    error = refused("import", "csv", source, "--map", table_map, tmp_path / "meds")
    assert "labs.csv: none of the 2 cells of column crp can be read" in error
    assert "decimal mark" in error
    assert not any(cell in error for cell in cells)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value: Bili", "value: bilirubin", "has no column bilirubin (did you mean bili?"),
        ("subject: ID", "subjekt: ID", "unknown setting 'subjekt' (did you mean subject?)"),
        ("subject: ID", "subject: whom", "its columns are id, years, status"),
        ("unit: mg/dL", "units: mg/dL", "unknown setting 'events.1.units'"),
        ("value: Bili, ", "", "has a unit, and no column value"),
        ("code: ENROLLMENT, ", "", "needs code, code_from or both"),
        ("time: {column: year", "when: {column: year", "unknown setting 'when'"),
        ("since: 2000-01-01 12:00}\nenc", "}\nenc", "needs either since or before"),
        ("time: {column: year, unit: y, since: 2000-01-01 12:00}\n", "", "an event has no time"),
        ("since: 2000-01-01 12:00}\nenc", "since: sex}\nenc", "cells of column sex cannot be read"),
    ],
)
def test_a_wrong_map_is_refused_with_what_to_do(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in WIDE
    source = write(wide(), tmp_path / "visits.csv")
    error = refused("import", "csv", source, "--map", write_map(tmp_path, WIDE.replace(old, new, 1)), tmp_path / "meds")
    assert message in error
    assert not (tmp_path / "meds").exists()


CODES = ["01", "010", "8", "250.00", "250.0", "1_000", "0x1F", "No", "null", "1e3"]


def test_keys_of_a_map_are_codes_as_they_are_written(tmp_path: Path) -> None:
    rows = "".join(f"1,2015-01-{day:02d} 10:00,{code}\n" for day, code in enumerate(CODES, 1))
    (tmp_path / "t.csv").write_text(f"id,at,dx\n{rows}1,2015-02-01,009\n1,2015-02-02,9\n")
    codes = ", ".join(f"{code}: CODE//{place}" for place, code in enumerate(CODES))
    mapping = f"""subject: id
time: at
missing: [009]
events:
  - {{code_from: dx, codes: {{{codes}, 9: NINE}}}}
"""
    settings = ImportConfig(map=write_map(tmp_path, mapping))
    import_csv(tmp_path / "t.csv", tmp_path / "meds", settings=settings)
    rows_ = [r for p in (tmp_path / "meds/data").rglob("*.parquet") for r in pq.read_table(p).to_pylist()]
    assert [row["code"] for row in rows_] == [*(f"CODE//{place}" for place in range(len(CODES))), "NINE"]


@pytest.mark.parametrize("ids", [["0012", "12", "00012"], ["12", "A7", "7"], ["1", "1.0", "01"]])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_ids_that_are_written_differently_are_different_people(ids: list[str], form: str, tmp_path: Path) -> None:
    source = tmp_path / f"t.{form}"
    if form == "csv":
        source.write_text("id,at\n" + "".join(f"{name},2015-06-01\n" for name in ids))
    else:
        pq.write_table(pa.table({"id": ids, "at": ["2015-06-01"] * 3}), source)
    table_map = write_map(tmp_path, "subject: id\ntime: at\nevents:\n  - {code: A}\n")
    report = import_csv(source, tmp_path / "meds", settings=ImportConfig(map=table_map))
    assert report.subjects == 3
    names = pq.read_table(tmp_path / "meds/metadata/subject_ids.parquet")["source_id"].to_pylist()
    assert sorted(names) == sorted(ids)
