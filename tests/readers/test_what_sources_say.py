"""What a source says of the end of a stay and of a death: by hand, through the cleaning rules alone."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.readers.fhir import import_fhir
from ehrsequencing.readers.omop import import_omop
from ehrsequencing.readers.rows import Left, Role
from helpers.cleaning import DAY, Row, times_of_codes
from helpers.fhir import of, refer, write_ndjson
from helpers.meds import meds_rows
from helpers.omop import write_csv

HOUR = dt.timedelta(hours=1)
IN, OUT = dt.datetime(2015, 1, 2, 10), dt.datetime(2015, 1, 6, 11)


def stay(start: dt.datetime = IN, end: dt.datetime | None = OUT, visit: int = 7, **more: Any) -> Row:
    row = {"role": Role.VISIT, "time": start, "end": end, "code": "V", "encounter_id": visit}
    return row | {"inpatient": True, "acute": True, "site": "a"} | more


def seen(time: dt.datetime, visit: int | None = None) -> Row:
    return {"role": Role.EVENT, "time": time, "code": "LAB", "encounter_id": visit}


def death(time: dt.datetime | None, end: dt.datetime | None = None) -> Row:
    return {"role": Role.DEATH, "time": time, "end": end, "code": "MEDS_DEATH"}


MOVED, STILL, HOME = {"left": Left.MOVED}, {"left": Left.STILL}, {"left": Left.ALIVE}
NEXT = {"visit": 8, "site": "b"}
STAYS: dict[str, tuple[list[Row], dict[str, list[dt.datetime]]]] = {
    "still there": ([stay(**STILL)], {"STAY_OPEN//V": [OUT]}),
    "still there, with a planned end": ([stay(end=None, **STILL), seen(IN + DAY, 7)], {"STAY_OPEN//V": [IN + DAY]}),
    "no end at all": ([stay(end=None)], {"STAY_OPEN//V": [IN]}),
    "no end of a visit to a doctor": ([stay(end=None, inpatient=False)], {}),
    "an interim bill, and the next": (
        [stay(**STILL), stay(OUT + DAY, OUT + 9 * DAY, 8)],
        {"STAY_CONTINUED//V": [OUT + DAY], "V//END": [OUT + 9 * DAY]},
    ),
    "an interim bill, and another site": (
        [stay(**STILL), stay(OUT + DAY, OUT + 9 * DAY, **NEXT)],
        {"STAY_OPEN//V": [OUT], "V//END": [OUT + 9 * DAY]},
    ),
    "an interim bill, and a stay days later": (
        [stay(**STILL), stay(OUT + 4 * DAY, OUT + 9 * DAY, 8)],
        {"STAY_OPEN//V": [OUT], "V//END": [OUT + 9 * DAY]},
    ),
    "a move": (
        [stay(**MOVED), stay(OUT + HOUR, OUT + 9 * DAY, **NEXT)],
        {"STAY_MOVED//V": [OUT], "STAY_CONTINUED//V": [OUT + HOUR], "V//END": [OUT, OUT + 9 * DAY]},
    ),
    "a move by dates": (
        [stay(end=dt.datetime(2015, 1, 6), **MOVED), stay(dt.datetime(2015, 1, 7), OUT + 9 * DAY, **NEXT)],
        {
            "STAY_MOVED//V": [dt.datetime(2015, 1, 6, 23, 59, 59)],
            "STAY_CONTINUED//V": [dt.datetime(2015, 1, 7)],
            "V//END": [dt.datetime(2015, 1, 6, 23, 59, 59), OUT + 9 * DAY],
        },
    ),
    "a move, and nobody sees them again": ([stay(**MOVED)], {"STAY_TRANSFERRED//V": [OUT], "V//END": [OUT]}),
    "a move to the same site": (
        [stay(**MOVED), stay(OUT + HOUR, OUT + DAY, 8)],
        {"STAY_TRANSFERRED//V": [OUT], "V//END": [OUT, OUT + DAY]},
    ),
    "a move, and a stay two days later": (
        [stay(**MOVED), stay(OUT + 2 * DAY, OUT + 3 * DAY, **NEXT)],
        {"STAY_TRANSFERRED//V": [OUT], "V//END": [OUT, OUT + 3 * DAY]},
    ),
    "home, and elsewhere an hour later": (
        [stay(**HOME), stay(OUT + HOUR, OUT + DAY, **NEXT)],
        {"V//END": [OUT, OUT + DAY]},
    ),
    "to rehabilitation": (
        [stay(**HOME), stay(OUT + HOUR, OUT + DAY, **NEXT, inpatient=False)],
        {"V//END": [OUT, OUT + DAY]},
    ),
}


@pytest.mark.parametrize(("rows", "marks"), STAYS.values(), ids=STAYS)
def test_an_end_of_a_stay_is_what_its_source_says(rows: list[Row], marks: dict[str, list[dt.datetime]]) -> None:
    times, counts = times_of_codes(*rows)
    assert {code: at for code, at in times.items() if code.startswith(("STAY_", "V//END"))} == marks or not marks
    assert not (not marks and any(code.startswith("STAY_") for code in times))
    assert len(times["V"]) == len([row for row in rows if row["role"] == Role.VISIT]), "stays stay as they are"
    assert counts["short_gap"] == (rows == STAYS["home, and elsewhere an hour later"][0])


MARCH = dt.datetime(2015, 3, 9, 16)
YEAR = (dt.datetime(2015, 1, 1), dt.datetime(2015, 12, 31))
DIED = {"left": Left.DIED}
END_OF_YEAR = dt.datetime(2015, 12, 31, 23, 59, 59)
DEATHS: dict[str, tuple[list[Row], list[dt.datetime | None]]] = {
    "no date": ([seen(IN), death(None)], [None]),
    "no date, and a date": ([seen(IN), death(None), death(OUT)], [OUT]),
    "the year, and the stay that ended by it": ([stay(end=MARCH, **DIED), death(*YEAR)], [MARCH]),
    "a filled date, and the stay": ([stay(end=MARCH, **DIED), death(YEAR[0])], [MARCH]),
    "a date, and another stay": (
        [stay(end=MARCH, **DIED), death(dt.datetime(2015, 2, 3))],
        [dt.datetime(2015, 2, 3, 23, 59, 59)],
    ),
    "the year alone": ([seen(IN), death(*YEAR)], [END_OF_YEAR]),
    "the month, and a day of it": (
        [seen(IN), death(dt.datetime(2015, 3, 1), dt.datetime(2015, 3, 31)), death(MARCH)],
        [MARCH],
    ),
}


@pytest.mark.parametrize(("rows", "times"), DEATHS.values(), ids=DEATHS)
def test_the_more_precise_death_counts(rows: list[Row], times: list[dt.datetime | None]) -> None:
    assert times_of_codes(*rows)[0]["MEDS_DEATH"] == times


def test_a_death_of_a_year_is_not_after_the_draw_and_not_before_the_last_sign(tmp_path: Path) -> None:
    born = {"birthDate": "1950", "gender": "male"}
    people = [of("Patient", id=name, deceasedDateTime="2018" if name == "b" else None, **born) for name in "ab"]
    stays = [
        of(
            "Encounter",
            id=name,
            subject=refer("Patient", name),
            class_={"code": "IMP"},
            period={"start": "2018-01-01T10:00:00Z", "end": f"2018-01-0{day}T12:00:00Z"},
        )
        for name, day in (("a", 3), ("b", 5))
    ]
    write_ndjson([*people, *stays], tmp_path / "x")
    import_fhir(str(tmp_path / "x"), tmp_path / "meds")
    assert [row[1] for row in meds_rows(tmp_path / "meds") if row[2] == "MEDS_DEATH"] == [dt.datetime(2018, 1, 5, 12)]


def test_a_table_of_deaths_that_all_gave_way_is_not_lost(tmp_path: Path) -> None:
    """Each date of the registry is a filled one, and the stays say when."""
    stays = [
        {"person_id": who, "visit_occurrence_id": who, "visit_concept_id": 9201, "discharge_to_concept_id": 4216643}
        | {
            "visit_start_date": "2015-03-02",
            "visit_end_date": "2015-03-09",
            "visit_end_datetime": "2015-03-09 16:00:00",
        }
        for who in (1, 2)
    ]
    people = [{"person_id": who, "year_of_birth": 1950} for who in (1, 2)]
    deaths = [{"person_id": 1, "death_date": "2015-01-01"}, {"person_id": 2, "death_date": "2015-12-31"}]
    source = write_csv({"person": people, "visit_occurrence": stays, "death": deaths}, tmp_path / "csv")
    report = import_omop(str(source), tmp_path / "meds")
    assert [row[1] for row in meds_rows(tmp_path / "meds") if row[2] == "MEDS_DEATH"] == [
        dt.datetime(2015, 3, 9, 16)
    ] * 2
    assert report.counts["vague_death"] == 2


def test_deaths_that_contradict_one_another_are_counted() -> None:
    times, counts = times_of_codes(seen(IN), death(*YEAR), death(dt.datetime(2013, 5, 4, 3)))
    assert counts["death_conflict"] == 1
    assert times["MEDS_DEATH"] == [dt.datetime(2013, 5, 4, 3)]


@pytest.mark.parametrize(("last", "unclosed"), [("2015-01-20", 0), ("2015-03-20", 1)])
def test_a_stay_that_nobody_closed_is_counted_apart(tmp_path: Path, last: str, unclosed: int) -> None:
    """In progress since 2 January, with a row on the 3rd; the draw is the last day of anybody."""
    patients = [of("Patient", id=name, birthDate="1950", gender="male") for name in "ab"]
    inside = of(
        "Encounter",
        id="s",
        subject=refer("Patient", "a"),
        class_={"code": "IMP"},
        status="in-progress",
        period={"start": "2015-01-02T10:00:00Z", "end": "2015-02-01T10:00:00Z"},
    )
    seen = [
        of("Condition", subject=refer("Patient", name), recordedDate=day, code={"coding": [{"code": "x"}]})
        for name, day in (("a", "2015-01-03T10:00:00Z"), ("b", f"{last}T10:00:00Z"))
    ]
    seen[0]["encounter"] = refer("Encounter", "s")
    write_ndjson([*patients, inside, *seen], tmp_path / "fhir" / "all.ndjson")
    report = import_fhir(tmp_path / "fhir", tmp_path / "meds")
    assert (report.counts["open_stay"], report.counts["unclosed_stay"]) == (1, unclosed)
    assert [row[1].day for row in meds_rows(tmp_path / "meds") if row[2].startswith("STAY_OPEN")] == [3]


def test_certainty_in_words_of_an_omop_source_counts_where_there_is_no_concept(tmp_path: Path) -> None:
    said = {1: (0, "V"), 2: (32899, "confirmed"), 3: (0, "Ruled out"), 4: (0, "G"), 5: (32902, "suspected")}
    rows = [
        {
            "person_id": 1,
            "condition_concept_id": concept,
            "condition_start_date": "2015-01-03",
            "condition_status_concept_id": status,
            "condition_status_source_value": word,
        }
        for concept, (status, word) in said.items()
    ]
    source = write_csv(
        {"person": [{"person_id": 1, "year_of_birth": 1950}], "condition_occurrence": rows}, tmp_path / "c"
    )
    report = import_omop(str(source), tmp_path / "meds")
    codes = {row[2] for row in meds_rows(tmp_path / "meds")} - {"MEDS_BIRTH"}
    assert codes == {"OMOP//1//provisional", "OMOP//2//provisional", "OMOP//4", "OMOP//5"}
    assert (report.counts["provisional"], report.counts["not_done"]) == (2, 1)
