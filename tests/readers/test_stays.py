"""Deaths by day beside clocks of discharge, stated deaths, parts of a stay, bills; one id that is two people."""

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import ImportConfig
from ehrsequencing.readers.flat_table import import_csv
from ehrsequencing.readers.omop import import_omop
from ehrsequencing.readers.rows import Left, Role
from ehrsequencing.readers.synthea import import_synthea
from ehrsequencing.records.meds import MedsReader
from helpers.cleaning import DAY, PERSON, SECOND, Row, clean_rows, times_of_codes
from helpers.meds import meds_rows
from helpers.omop import write_csv

IN, OUT = dt.datetime(2015, 1, 2, 10), dt.datetime(2015, 1, 7, 14, 30)
LAST_DAY = dt.datetime(2015, 1, 7)
END_OF_DAY = LAST_DAY + DAY - SECOND
DEATH: Row = {"role": Role.DEATH, "time": LAST_DAY, "code": "MEDS_DEATH"}


def stay(start: dt.datetime = IN, end: dt.datetime | None = OUT, visit: int = 7, **more: Any) -> Row:
    return {"role": Role.VISIT, "time": start, "end": end, "code": "STAY", "encounter_id": visit, **more}


def part(start: dt.datetime, end: dt.datetime | None, code: str = "STAY", visit: int = 7) -> Row:
    return {"role": Role.SPAN, "time": start, "end": end, "code": code, "encounter_id": visit}


def event(time: dt.datetime, code: str = "X") -> Row:
    return {"role": Role.EVENT, "time": time, "code": code}


SHORT = dt.datetime(2015, 1, 7, 9)
AT_DISCHARGE: dict[str, list[Row]] = {
    "began on an earlier day": [stay()],
    "acute, of one day": [stay(SHORT, acute=True)],
    "ended by death": [stay(SHORT, left=Left.DIED)],
    "the latest of two": [stay(end=SHORT), stay(SHORT, visit=8, acute=True)],
    "its part ends with it": [stay(), part(IN + DAY, OUT, "ICU")],
    "an earlier row": [stay(), event(OUT - SECOND)],
    "named by a table": [{**stay(), "role": Role.NAMED_VISIT, "code": None}],
}
AT_NIGHT: dict[str, list[Row]] = {
    "went home": [stay(left=Left.ALIVE)],
    "went home, with a part": [stay(left=Left.ALIVE, acute=True), part(IN, OUT, "ICU")],
    "an office visit": [stay(SHORT)],
    "a later clock": [stay(), event(OUT + SECOND)],
    "a later visit": [stay(), stay(OUT + SECOND, None, 8)],
    "a visit that ends later": [stay(), stay(SHORT, OUT + SECOND, 8)],
    "a day as end": [stay(end=LAST_DAY)],
    "ended the day before": [stay(end=OUT - DAY)],
}


BY_DAY = {name: (rows, OUT) for name, rows in AT_DISCHARGE.items()}
BY_DAY |= {name: (rows, END_OF_DAY) for name, rows in AT_NIGHT.items()}


@pytest.mark.parametrize(("rows", "died"), BY_DAY.values(), ids=BY_DAY)
def test_a_death_by_day_stands_at_the_end_of_the_stay_or_of_the_day(rows: list[Row], died: dt.datetime) -> None:
    times, counts = times_of_codes(*rows, DEATH, event(LAST_DAY, "BY_DAY"))
    assert times["MEDS_DEATH"] == times["BY_DAY"] == [died]
    assert counts["death_at_discharge"] == (died == OUT)


def test_a_death_with_a_clock_is_believed() -> None:
    at_noon = LAST_DAY + DAY / 2
    times, counts = times_of_codes(stay(), {**DEATH, "time": at_noon}, event(LAST_DAY, "BY_DAY"), event(OUT))
    assert (times["MEDS_DEATH"], times["BY_DAY"], times["X"]) == ([at_noon], [at_noon], [OUT])
    assert not counts["death_at_discharge"]


def test_dates_on_the_day_of_birth_are_within_life() -> None:
    born = dt.datetime(2015, 1, 7, 11, 30)
    rows = [{**PERSON, "time": born}, stay(LAST_DAY, OUT), event(LAST_DAY), event(born - SECOND, "CLOCK")]
    made, _ = clean_rows([{"subject_id": 1, **row} for row in rows])
    times = {row["code"]: row["time"] for row in made.to_pylist()}
    assert times == {"MEDS_BIRTH": born, "STAY": born, "STAY//END": OUT, "X": END_OF_DAY, "CLOCK": born - SECOND}


def test_an_earlier_import_is_put_right_when_it_is_read(tmp_path: Path) -> None:
    """Its dates are at the ends of their days, and starts of visits at midnight."""
    born, died = dt.datetime(2015, 1, 1, 8), dt.datetime(2015, 1, 7, 14)
    rows = [
        (dt.datetime(2015, 1, 1), "VISIT"),
        (born, "MEDS_BIRTH"),
        (died, "MEDS_DEATH"),
        (died + SECOND, "LATE"),
        (END_OF_DAY, "BY_DAY"),
        (END_OF_DAY + DAY, "NEXT_DAY"),
    ]
    table = pa.table(
        {
            "subject_id": [1] * 6,
            "time": pa.array([at for at, _ in rows], pa.timestamp("us")),
            "code": [code for _, code in rows],
            "numeric_value": pa.nulls(6, pa.float32()),
        }
    )
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data/0.parquet")
    reader = MedsReader(tmp_path)
    (events,) = reader
    codes = [events.codes[code] for code in events.code.tolist()]
    assert codes == ["VISIT", "MEDS_BIRTH", "MEDS_DEATH", "BY_DAY"]
    assert events.time_us[0] == events.time_us[1]
    assert events.time_us[2] == events.time_us[3]
    assert (reader.fixes["life_day"], reader.fixes["after_death"], reader.fixes["before_birth"]) == (2, 2, 0)


STATED: dict[str, tuple[list[Row], list[dt.datetime]]] = {
    "no other death": ([stay(left=Left.DIED)], [OUT]),
    "a recorded death": ([stay(left=Left.DIED), {**DEATH, "time": OUT + 9 * DAY}], [OUT + 9 * DAY]),
    "a later visit": ([stay(left=Left.DIED), stay(OUT + DAY, OUT + DAY, 8)], []),
    "the last of two": ([stay(left=Left.DIED), stay(OUT, OUT + DAY, 8, left=Left.DIED)], [OUT + DAY]),
    "parts say it, too": ([stay(left=Left.DIED), {**part(IN, OUT - DAY, "ICU"), "left": Left.DIED}], [OUT]),
    "by day": ([stay(end=LAST_DAY, left=Left.DIED)], [END_OF_DAY]),
    "no end": ([stay(end=None, left=Left.DIED)], []),
}


@pytest.mark.parametrize(("rows", "died"), STATED.values(), ids=STATED)
def test_a_stay_that_ended_by_death_is_one(rows: list[Row], died: list[dt.datetime]) -> None:
    times, counts = times_of_codes(*rows, event(IN - DAY))
    assert times.get("MEDS_DEATH", []) == died
    assert counts["stated_death"] == (died in ([OUT], [OUT + DAY], [END_OF_DAY]))
    assert not counts["two_deaths"]


def test_parts_of_a_stay() -> None:
    nested = [part(IN + DAY, OUT, "ICU"), part(IN + 2 * DAY, OUT - DAY, "ICU"), part(IN + 3 * DAY, OUT, "ICU")]
    rows = [stay(), part(IN, IN + DAY), part(IN + DAY, OUT), part(IN, IN + DAY / 2, "ER"), *nested, nested[0]]
    alone = [part(IN, OUT, "STAY", 99), part(OUT + DAY, OUT + 2 * DAY, "ICU")]
    times, counts = times_of_codes(*rows, *alone)
    assert times["STAY"] == [IN, IN]  # a part of no visit is a whole
    assert times["STAY//PART//END"] == [IN + DAY, OUT]
    assert times["ER"] == [IN]
    assert times["ICU"] == [IN + DAY, OUT + DAY]
    assert times["ICU//PART"] == [IN + 2 * DAY, IN + 3 * DAY]
    assert counts["part"] == 4
    assert counts["duplicates"] == 2


BILLS: list[tuple[Row, dt.datetime, dt.datetime]] = [
    (stay(), IN, OUT),
    (stay(), LAST_DAY - DAY, OUT),
    (stay(), OUT + DAY / 4, OUT + DAY / 4),  # a later date is kept
    (stay(end=IN + DAY), IN, IN),
    (stay(end=None), IN, IN),
]


@pytest.mark.parametrize(("visit", "written", "known"), BILLS)
def test_a_bill_is_known_at_the_end_of_a_long_stay(visit: Row, written: dt.datetime, known: dt.datetime) -> None:
    times, counts = times_of_codes(visit, {**event(written), "role": Role.BILLED, "encounter_id": 7})
    assert times["X"] == [known]
    assert counts["billed"] == (known == OUT)


# ---- OMOP --------------------------------------------------------------------------------------


def visit(number: int, person: int, concept: int = 9201, start: str = "02 10:00:00", **more: Any) -> Row:
    end = "2015-01-07 14:30:00"
    return {
        "visit_occurrence_id": number,
        "person_id": person,
        "visit_concept_id": concept,
        "visit_start_date": f"2015-01-{start[:2]}",
        "visit_start_datetime": f"2015-01-{start}",
        "visit_end_date": end[:10],
        "visit_end_datetime": end,
        "discharged_to_concept_id": None,
        "discharge_to_source_value": None,
        **more,
    }


def persons(n: int) -> list[Row]:
    return [{"person_id": i, "gender_concept_id": 8507, "year_of_birth": 1950} for i in range(1, n + 1)]


def times_of(meds: Path, code: str) -> dict[int, list[dt.datetime]]:
    found: dict[int, list[dt.datetime]] = {}
    for row in meds_rows(meds):
        if row[2] == code:
            found.setdefault(row[0], []).append(row[1])
    return found


def test_omop_discharges(tmp_path: Path) -> None:
    """Classes and ways of leaving are read by concept, by number and by word, without a vocabulary."""
    visits = [
        visit(1, 1),
        visit(2, 2, discharged_to_concept_id=8536),
        visit(3, 3, 9202, "07 10:00:00"),
        visit(4, 4, 9203, "07 10:00:00"),
        visit(5, 5, discharge_to_source_value="EXPIRED"),
        visit(6, 6, discharged_to_concept_id=4216643),
        visit(7, 7, 32037, "07 10:00:00"),
    ]
    deaths = [{"person_id": i, "death_date": "2015-01-07", "death_datetime": None} for i in (1, 2, 3, 4, 7)]
    tables = {"person": persons(7), "visit_occurrence": visits, "death": deaths}
    report = import_omop(str(write_csv(tables, tmp_path / "x")), tmp_path / "meds")
    assert times_of(tmp_path / "meds", "MEDS_DEATH") == {
        1: [OUT],
        2: [END_OF_DAY],
        3: [END_OF_DAY],
        4: [OUT],
        5: [OUT],
        6: [OUT],
        7: [OUT],
    }
    assert (report.counts["death_at_discharge"], report.counts["stated_death"]) == (3, 2)


@pytest.mark.parametrize("known", ["latest", "earliest"])
def test_omop_conditions_are_known_when_they_were_written(known: Any, tmp_path: Path) -> None:
    kinds = {1: 32817, 2: 32821, 3: 38000184, 4: 32853, 5: 44786629, 6: 32840}
    conditions = [
        {
            "person_id": 1,
            "condition_concept_id": i,
            "condition_start_date": "2015-01-03",
            "condition_start_datetime": "2015-01-03 09:00:00",
            "condition_type_concept_id": kind,
            "visit_occurrence_id": 1,
        }
        for i, kind in kinds.items()
    ]
    onset = {**conditions[0], "condition_concept_id": 7, "condition_start_date": "2010-05-01"}
    undated = {**onset, "condition_concept_id": 8, "condition_start_date": None}
    rows = [*conditions, *({**row, "condition_start_datetime": None} for row in (onset, undated))]
    tables = {"person": persons(1), "visit_occurrence": [visit(1, 1)], "condition_occurrence": rows}
    report = import_omop(str(write_csv(tables, tmp_path / "x")), tmp_path / "meds", settings=ImportConfig(known=known))
    found = {i: times_of(tmp_path / "meds", f"OMOP//{i}").get(1) for i in range(1, 9)}
    then, day = dt.datetime(2015, 1, 3, 9), dt.datetime(2010, 5, 1, 23, 59, 59)
    early = {**{i: [then] for i in range(1, 7)}, 7: [day], 8: None}
    assert found == (early if known == "earliest" else {**early, **{i: [OUT] for i in (2, 3, 4, 5, 7)}})
    assert report.counts["billed"] == (4 if known == "latest" else 0)


def test_omop_details_are_parts(tmp_path: Path) -> None:
    details = [
        {
            "person_id": 1,
            "visit_detail_concept_id": concept,
            "visit_occurrence_id": 1,
            "visit_detail_start_date": "2015-01-03",
            "visit_detail_start_datetime": f"2015-01-03 {hour}:00:00",
            "visit_detail_end_date": "2015-01-04",
            "visit_detail_end_datetime": "2015-01-04 10:00:00",
        }
        for concept, hour in ((9201, 10), (8870, 11), (32037, 12))
    ]
    tables = {"person": persons(1), "visit_occurrence": [visit(1, 1)], "visit_detail": details}
    import_omop(str(write_csv(tables, tmp_path / "x")), tmp_path / "meds")
    codes = Counter(row[2].removeprefix("OMOP//") for row in meds_rows(tmp_path / "meds") if row[1] is not None)
    kinds = ("9201", "9201//PART", "8870", "32037")
    expected = {f"{kind}{end}" for kind in kinds for end in ("", "//END")}
    assert codes == dict.fromkeys({*expected, "MEDS_BIRTH"}, 1)
    table = pq.read_table(tmp_path / "meds/metadata/codes.parquet").to_pylist()
    parents = {row["code"]: row["parent_codes"] for row in table}
    assert parents["OMOP//9201//PART"] is None  # or under:OMOP//9201 would count it as a stay
    assert parents["OMOP//9201//PART//END"] == ["OMOP//9201//PART"]


@pytest.mark.parametrize("table", ["measurement", "procedure_occurrence", "death"])
def test_a_moment_far_from_its_own_date_loses(table: str, tmp_path: Path) -> None:
    stem, concept = {
        "measurement": ("measurement", "measurement_concept_id"),
        "procedure_occurrence": ("procedure", "procedure_concept_id"),
        "death": ("death", "cause_concept_id"),
    }[table]
    moments = ["1970-01-01 09:30:00", "2015-01-07 09:30:00", "2015-01-08 00:30:00", "2015-01-09 00:00:01"]
    rows = [
        {"person_id": i, concept: 5, f"{stem}_date": "2015-01-07", f"{stem}_datetime": moment}
        for i, moment in enumerate(moments, 1)
    ]
    tables = {
        "person": persons(4),
        "visit_occurrence": [
            visit(i, i, 9202, "02 10:00:00", visit_end_datetime=None, visit_end_date="2015-01-02") for i in range(1, 5)
        ],
        table: rows,
    }
    report = import_omop(str(write_csv(tables, tmp_path / "x")), tmp_path / "meds")
    found = times_of(tmp_path / "meds", "MEDS_DEATH" if table == "death" else "OMOP//5")
    read = [dt.datetime.fromisoformat(moment) for moment in moments[1:3]]
    assert [found[i] for i in range(1, 5)] == [[time] for time in (END_OF_DAY, *read, END_OF_DAY)]
    assert (report.counts["far_day"], report.counts["near_day"]) == (2, 1)
    warned = f"2 of 4 values in column {stem}_datetime of {table} lie days away from the date of their row"
    assert any(line.startswith(warned) for line in report.warnings())


BIRTHS = {  # year, month, day, birth_datetime → birth
    (1950, 3, 1, "1900-01-01 00:00:00"): "1950-03-01",
    (1950, 3, 1, "1950-03-01 04:00:00"): "1950-03-01T04:00",
    (1950, 3, 1, "1950-02-28 23:00:00"): "1950-02-28T23:00",
    (1950, None, None, "1950-07-09 04:00:00"): "1950-07-09T04:00",
    (1950, None, None, "1949-12-31 23:00:00"): "1949-12-31T23:00",
    (1950, None, None, "1900-07-09 00:00:00"): "1950-01-01",
    (None, None, None, "1949-07-09 00:00:00"): "1949-07-09",
}


def test_births_against_their_parts(tmp_path: Path) -> None:
    parts = ("year_of_birth", "month_of_birth", "day_of_birth", "birth_datetime")
    rows = [{"person_id": i, **dict(zip(parts, given, strict=True))} for i, given in enumerate(BIRTHS, 1)]
    tables = {"person": rows, "visit_occurrence": [visit(i, i) for i in range(1, len(rows) + 1)]}
    import_omop(str(write_csv(tables, tmp_path / "x")), tmp_path / "meds")
    born = times_of(tmp_path / "meds", "MEDS_BIRTH")
    assert [born[i][0] for i in sorted(born)] == [dt.datetime.fromisoformat(text) for text in BIRTHS.values()]


# ---- tables ------------------------------------------------------------------------------------

STAY_ROWS = """id,stay,in,out,died,home,dx,since
1,1,2015-01-02 10:00,2015-01-07 14:30,2015-01-07,,E11,2012-03-01
2,2,2015-01-02 10:00,2015-01-07 14:30,2015-01-07,HOME,E11,2012-03-01
3,3,2015-01-02 10:00,2015-01-07 14:30,,,E11,2012-03-01
"""
AS_STAY = "encounter: {id: stay, start: in, end: out}\n"
AS_EVENTS = "  - {code: DISCHARGE, time: out}\n"


@pytest.mark.parametrize("stay_is", ["named", "events", "both, one left for home"])
def test_deaths_of_a_table_by_day(stay_is: str, tmp_path: Path) -> None:
    home = "  - {code: DISCHARGE, code_from: home, time: out}\n"
    events = {"named": "", "events": AS_EVENTS}.get(stay_is, home)
    encounter = "" if stay_is == "events" else AS_STAY
    (tmp_path / "map.yaml").write_text(
        f"subject: id\ntime: in\ndeath: died\n{encounter}events:\n  - {{code: ADMISSION, time: in}}\n{events}"
    )
    (tmp_path / "t.csv").write_text(STAY_ROWS)
    import_csv(tmp_path / "t.csv", tmp_path / "meds", settings=ImportConfig(map=tmp_path / "map.yaml"))
    left = END_OF_DAY if stay_is.startswith("both") else OUT
    assert times_of(tmp_path / "meds", "MEDS_DEATH") == {1: [OUT], 2: [left]}


@pytest.mark.parametrize("known", ["latest", "earliest"])
def test_a_diagnosis_of_a_table_that_began_before_its_stay(known: Any, tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text(
        f"subject: id\n{AS_STAY}events:\n  - {{code: ICD10, code_from: dx, time: since}}\n  - {{code: IN, time: in}}\n"
    )
    (tmp_path / "t.csv").write_text(STAY_ROWS)
    settings = ImportConfig(map=tmp_path / "map.yaml", known=known)
    import_csv(tmp_path / "t.csv", tmp_path / "meds", settings=settings)
    time = OUT if known == "latest" else dt.datetime(2012, 3, 1, 23, 59, 59)
    assert times_of(tmp_path / "meds", "ICD10//E11") == {i: [time] for i in range(1, 4)}
    assert times_of(tmp_path / "meds", "IN") == {i: [IN] for i in range(1, 4)}


def test_two_people_of_one_id_are_counted(tmp_path: Path) -> None:
    rows = ["1,1930-03-01,F", "1,1975-03-01,M", "2,1930-03-01,F", "2,1930-11-01,F", "3,1950-01-01,F", "3,1950-01-01,U"]
    rows += ["4,1950-01-01,m", "4,1950-01-01,f"]
    (tmp_path / "t.csv").write_text("id,born,what,t\n" + "".join(f"{row},2015-01-05 10:00\n" for row in rows))
    (tmp_path / "map.yaml").write_text(
        "subject: id\ntime: t\nbirth: born\nstatic: {what: SEX}\nevents:\n  - {code: A}\n"
    )
    report = import_csv(tmp_path / "t.csv", tmp_path / "meds", settings=ImportConfig(map=tmp_path / "map.yaml"))
    assert (report.counts["births_apart"], report.counts["two_sexes"]) == (1, 2)
    assert [line for line in report.warnings() if "two people" in line] == [
        "1 ids have births more than a year apart: each may be two people",
        "2 ids have both sexes: each may be two people",
    ]


def test_synthea_stays_and_diagnoses(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "patients.csv").write_text("Id,BIRTHDATE,DEATHDATE,GENDER\na,1950-01-01,2015-01-07,F\n")
    (folder / "encounters.csv").write_text(
        "Id,START,STOP,PATIENT,ENCOUNTERCLASS,CODE\ne,2015-01-07T10:00:00Z,2015-01-07T14:30:00Z,a,emergency,1\n"
    )
    (folder / "conditions.csv").write_text("START,STOP,PATIENT,ENCOUNTER,CODE\n2010-01-01,,a,e,2\n")
    import_synthea(str(folder), tmp_path / "meds")
    ((died,),) = times_of(tmp_path / "meds", "MEDS_DEATH").values()
    ((known,),) = times_of(tmp_path / "meds", "SNOMED//2").values()
    assert died == known == OUT
