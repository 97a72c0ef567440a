"""No row of a source vanishes unseen: rows in = rows out + rows dropped, each with a reason and a place."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.readers.table_files import open_table
from helpers.command_line import ehrseq
from helpers.omop import SMALL, Tables, write_csv
from helpers.settings import examples
from helpers.synthea import write_tables

pytest.importorskip("ibis", reason="needs the extra omop")

from ehrsequencing.readers.omop.reader import import_omop

DAYS = [f"2010-{1 + i // 28:02d}-{1 + i % 28:02d}" for i in range(300)]


def lines(header: str, rows: list[str]) -> str:
    return "\n".join([header, *rows]) + "\n"


def omop_tables(conditions: list[str], *, deaths: list[str] | None = None) -> dict[str, str]:
    """Twenty persons with conditions, and deaths if there are any."""
    tables = {
        "person": lines("person_id,year_of_birth,gender_concept_id", [f"{i},1950,8507" for i in range(20)]),
        "condition_occurrence": lines("person_id,condition_concept_id,condition_start_date,note", conditions),
    }
    return tables | ({"death": lines("person_id,death_date,note", deaths)} if deaths else {})


def conditions(n: int = 300, *, note: Callable[[int], str] = lambda i: "x") -> list[str]:
    return [f"{i % 20},201826,{DAYS[i]},{note(i)}" for i in range(n)]


def row_counts(out: Path) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads((out / "metadata" / "import_report.json").read_text())["rows"]
    return rows


def balanced(rows: dict[str, Any]) -> bool:
    return all(t["rows_in"] == t["rows_out"] + sum(d["rows"] for d in t["dropped"]) for t in rows.values())


def test_every_row_of_a_small_database_is_accounted_for(tmp_path: Path) -> None:
    import_omop(str(write_csv(SMALL, tmp_path / "csv")), tmp_path / "meds")
    rows = row_counts(tmp_path / "meds")
    assert balanced(rows)
    assert rows["condition_occurrence"]["rows_in"] == 8
    assert rows["condition_occurrence"]["rows_out"] == 4
    file = "condition_occurrence.csv"
    dates = "condition_start_datetime or condition_start_date"
    assert rows["condition_occurrence"]["dropped"] == [
        {"reason": "duplicates", "column": None, "rows": 1, "example": {"file": file, "row": 4}},
        {"reason": "no_person", "column": "person_id", "rows": 1, "example": {"file": file, "row": 7}},
        {"reason": "no_time", "column": dates, "rows": 1, "example": {"file": file, "row": 8}},
        {"reason": "unknown_person", "column": "person_id", "rows": 1, "example": {"file": file, "row": 6}},
    ]
    merged = [d for d in rows["observation_period"]["dropped"] if d["reason"] == "overlapping_periods"]
    assert [d["rows"] for d in merged] == [1]


def test_a_stray_quote_in_a_file_without_quotes_loses_nothing(tmp_path: Path) -> None:
    rows = conditions(note=lambda i: '"10 mg' if i == 5 else "x")
    import_omop(str(write_tables(omop_tables(rows), tmp_path / "csv")), tmp_path / "meds")
    made = row_counts(tmp_path / "meds")["condition_occurrence"]
    assert (made["rows_in"], made["rows_out"]) == (300, 300)


def test_a_vocabulary_with_tabs_and_stray_quotes_keeps_every_concept(tmp_path: Path) -> None:
    names = ['"Light" smoker', '5" needle', '"Sodium" 5" x', "plain", '"Quoted name"']
    concepts = [f"{i}\t{name}\tLOINC\tL{i}" for i, name in enumerate(names, 1)]
    head = "concept_id\tconcept_name\tvocabulary_id\tconcept_code"
    rows = [f'"{i}"\t"{i}"\t"2010-01-0{i}"' for i in range(1, 6)]
    people = [f"{i}\t1950" for i in range(1, 6)]
    tables = {
        "person": lines("person_id\tyear_of_birth", people),
        "concept": lines(head, concepts),
        "condition_occurrence": lines('"person_id"\t"condition_concept_id"\t"condition_start_date"', rows),
    }
    import_omop(str(write_tables(tables, tmp_path / "csv")), tmp_path / "meds")
    facts = pq.read_table(tmp_path / "meds/metadata/codes.parquet").to_pylist()
    described = {row["code"]: row["description"] for row in facts}
    assert {f"LOINC//L{i}": name for i, name in enumerate(names, 1)}.items() <= described.items()
    tables["concept"] = lines(
        '"' + head.replace("\t", '"\t"') + '"', [f'{i}\t"n {i}"\t"LOINC"\t"L{i}"' for i in range(1, 6)]
    )
    import_omop(str(write_tables(tables, tmp_path / "r")), tmp_path / "r_meds")
    facts = pq.read_table(tmp_path / "r_meds/metadata/codes.parquet").to_pylist()
    assert {f"LOINC//L{i}": f"n {i}" for i in range(1, 6)}.items() <= {
        r["code"]: r["description"] for r in facts
    }.items()


def quoted(i: int) -> str:
    return '"a ""b"", c"' if i % 7 == 0 and i < 200 else '"10 mg' if i == 250 else "x"


def test_a_stray_quote_among_quotes_is_counted_and_warned_about(tmp_path: Path) -> None:
    source = write_tables(omop_tables(conditions(note=quoted)), tmp_path / "csv")
    result = ehrseq("import", "omop", source, tmp_path / "meds")
    assert result.exit_code == 0, result.output
    rows = row_counts(tmp_path / "meds")
    assert balanced(rows)
    made = rows["condition_occurrence"]
    assert made["rows_in"] == 300
    (lost,) = made["dropped"]
    assert lost["reason"] == "malformed_line"
    assert lost["rows"] > 15
    assert lost["example"] == {"file": "condition_occurrence.csv", "line": 252}
    assert f"warning: {lost['rows']} of 300 rows of condition_occurrence" in result.stderr
    assert "10 mg" not in result.output


def test_a_table_that_loses_all_its_rows_is_refused(tmp_path: Path) -> None:
    source = write_tables(omop_tables(conditions(), deaths=["77,2012-01-01,x", "78,2012-01-01,x"]), tmp_path / "csv")
    result = ehrseq("import", "omop", source, tmp_path / "meds")
    assert result.exit_code == 2
    assert (
        "death.csv: all 2 rows would be dropped (column person_id: the person is not in the table of persons"
        in result.output
    )
    assert not (tmp_path / "meds").exists()


plain_cells, broken_cells = (st.text(st.sampled_from(letters), max_size=6) for letters in ('ab,"\t ', 'ab"\n '))


@given(st.lists(st.tuples(plain_cells, plain_cells | broken_cells, plain_cells), min_size=1, max_size=20))
@settings(max_examples=examples(160), deadline=None)
def test_well_formed_files_lose_nothing(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]) -> None:
    """Every row that Python's csv module writes is read, and the lines show as many rows as there are."""
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerows([("one", "two", "three"), *rows])
    table = open_table(path)
    read = [row for block in table.blocks(["one", "two", "three"]) for row in block.to_pylist()]
    assert [tuple(cell or "" for cell in row.values()) for row in read] == rows
    assert table.lost_rows()[0] == 0


OPEN_ENDS = ["2099-12-31", "2999-12-31", "9999-12-31"]


@pytest.mark.parametrize("end", OPEN_ENDS)
def test_open_ends_make_no_rows_in_the_future(tmp_path: Path, end: str) -> None:
    visit = dict(SMALL["visit_occurrence"][0]) | {"visit_end_date": end, "visit_end_datetime": None}
    period = dict(SMALL["observation_period"][2]) | {"observation_period_end_date": end}
    tables: Tables = {**SMALL, "visit_occurrence": [visit], "observation_period": [period]}
    report = import_omop(str(write_csv(tables, tmp_path / "csv")), tmp_path / "meds")
    assert report.counts["open_end"] == 2
    made = [r for p in (tmp_path / "meds" / "data").rglob("*.parquet") for r in pq.read_table(p).to_pylist()]
    assert max(r["time"].year for r in made if r["time"] is not None) == 2013
    codes = {r["code"] for r in made}
    assert "OBSERVATION_PERIOD_START" in codes
    assert not codes & {"OBSERVATION_PERIOD_END", "Visit//IP//END"}
    assert balanced(row_counts(tmp_path / "meds"))


def shifted(tables: Tables, years: int) -> Tables:
    """All dates so many years later."""

    def later(value: Any) -> Any:
        return f"{int(value[:4]) + years}{value[4:]}" if isinstance(value, str) and value[:2] == "20" else value

    return {name: [{key: later(value) for key, value in row.items()} for row in rows] for name, rows in tables.items()}


def test_shifted_records_keep_their_ends_and_a_wrong_date_opens_none(tmp_path: Path) -> None:
    report = import_omop(str(write_csv(shifted(SMALL, 150), tmp_path / "shifted")), tmp_path / "one")
    assert report.counts["open_end"] == 0
    wrong = dict(SMALL["condition_occurrence"][2]) | {"condition_start_datetime": "2098-01-01 10:00:00"}
    visit = dict(SMALL["visit_occurrence"][0]) | {"visit_end_date": "2099-12-31", "visit_end_datetime": None}
    tables = {**SMALL, "visit_occurrence": [visit]}
    tables["condition_occurrence"] = [*SMALL["condition_occurrence"], wrong]
    report = import_omop(str(write_csv(tables, tmp_path / "wrong")), tmp_path / "two")
    assert report.counts["open_end"] == 1


def test_sex_is_known_without_concepts_and_no_family_is_mixed(tmp_path: Path) -> None:
    persons = [
        {
            "person_id": i,
            "year_of_birth": 1950,
            "gender_concept_id": g,
            "race_concept_id": 8527,
            "ethnicity_concept_id": 38003563,
        }
        for i, g in enumerate([8507, 8532])
    ]
    events = [{"person_id": i, "condition_concept_id": 77, "condition_start_date": "2010-01-01"} for i in range(2)]
    tables: Tables = {"person": persons, "condition_occurrence": events}
    import_omop(str(write_csv(tables, tmp_path / "csv")), tmp_path / "meds")
    made = [r for p in (tmp_path / "meds" / "data").rglob("*.parquet") for r in pq.read_table(p).to_pylist()]
    static = {(r["subject_id"], r["code"]) for r in made if r["time"] is None}
    others = {(i, code) for i in range(2) for code in ("Race//8527", "Ethnicity//38003563")}
    assert static == {(0, "Gender//M"), (1, "Gender//F")} | others
    facts = {r["code"]: r["description"] for r in pq.read_table(tmp_path / "meds/metadata/codes.parquet").to_pylist()}
    assert facts["Gender//F"] == "FEMALE"


def test_check_repeats_what_the_import_warned_of(tmp_path: Path) -> None:
    rows = conditions()
    header = "person_id,condition_concept_id,condition_start_date,condition_start_datetime"
    cells = [row.split(",") for row in rows]
    clocks = [f"{day} 08:30:00" if i % 3 else f"{day} 00:00:00" for i, (_, _, day, _) in enumerate(cells)]
    timed = [",".join([*row[:3], clock]) for row, clock in zip(cells, clocks, strict=True)]
    tables = omop_tables([]) | {"condition_occurrence": lines(header, timed)}
    import_omop(str(write_tables(tables, tmp_path / "csv")), tmp_path / "meds")
    ehrseq("check", tmp_path / "meds", "--out", tmp_path / "check.json")
    warnings = json.loads((tmp_path / "check.json").read_text())["warnings"]
    assert any("import: 100 of 300 rows of condition_occurrence (33.3%) have a day and no clock" in w for w in warnings)


@pytest.mark.parametrize("unreadable", ["the dead", "every third person"])
def test_a_rule_that_acts_unequally_on_the_dead_is_a_warning(tmp_path: Path, unreadable: str) -> None:
    persons = range(120)
    bad = [person < 40 if unreadable == "the dead" else person % 3 == 0 for person in persons]
    rows = [f"{i},201826,2015-01-02" for i in persons] + [f"{i},201826,soon" for i in persons if bad[i]]
    tables = {
        "person": lines("person_id,year_of_birth", [f"{i},1950" for i in persons]),
        "condition_occurrence": lines("person_id,condition_concept_id,condition_start_date", rows),
        "death": lines("person_id,death_date", [f"{i},2016-03-03" for i in range(40)]),
    }
    report = import_omop(str(write_tables(tables, tmp_path / "csv")), tmp_path / "meds")
    assert report.people()["no_time"] == (40, 40 if unreadable == "the dead" else 14)
    assert (report.subjects, report.deaths) == (120, 40)
    said = [text for text in report.warnings() if "unequally" in text]
    assert ["on 40 of 40 people who died and on 0 of 80 others" in text for text in said] == (
        [True] if unreadable == "the dead" else []
    )
