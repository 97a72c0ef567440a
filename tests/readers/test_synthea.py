"""Synthea → MEDS: exports of several ages, every rule counted, all the way to a prepared set; and the rules."""

import gzip
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.readers.meds_writer import FLUSH_ROWS
from ehrsequencing.readers.rows import Role
from ehrsequencing.readers.synthea import import_synthea, subject_ids
from ehrsequencing.records.events import DAY_US, PERIOD_END, PERIOD_START, SECOND_US
from helpers.cleaning import clean_rows
from helpers.meds import meds_rows, written
from helpers.synthea import NEW, write_tables

OLD_HEADERS = {"Id": "ID", "START": "DATE", "ENCOUNTERCLASS": "CLASS", "STOP": "UNTIL"}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def number(name: str) -> int:
    return int(subject_ids(pa.chunked_array([[name]]))[0].as_py())


def test_rows_counted_by_hand(tmp_path: Path) -> None:
    report = import_synthea(write_tables(NEW, tmp_path / "csv"), tmp_path / "meds")
    rows = meds_rows(tmp_path / "meds")
    assert [row[1:] for row in rows if row[0] == number("anna")] == [
        (None, "ETHNICITY//hispanic", None, None, None),
        (None, "GENDER//F", None, None, None),
        (None, "RACE//white", None, None, None),
        (at("1950-03-01"), "MEDS_BIRTH", None, None, None),
        (at("2010-02-01 08:00"), "ENCOUNTER//ambulatory", None, None, "e1"),
        (at("2010-02-01 08:00"), "SNOMED//185345009", None, None, "e1"),
        (at("2010-02-01 08:05"), "LOINC//4548-4//%", 7.25, None, "e1"),
        (at("2010-02-01 08:05"), "LOINC//55555-5//12345", None, "12345", "e1"),
        (at("2010-02-01 08:05"), "LOINC//72166-2//Never smoker", None, "Never smoker", "e1"),
        (at("2010-02-01 08:15"), "ENCOUNTER//ambulatory//END", None, None, "e1"),
        (at("2010-02-01 08:15"), "SNOMED//44054006", None, None, "e1"),
        (at("2010-05-01 23:59:59"), "SNOMED//44054006", None, None, None),
    ]
    assert [row[1:] for row in rows if row[0] == number("ben")] == [
        (None, "GENDER//M", None, None, None),
        (None, "RACE//black", None, None, None),
        (at("1960-05-05"), "MEDS_BIRTH", None, None, None),
        (at("2011-02-01 08:00"), "ENCOUNTER//inpatient", None, None, "e2"),
        (at("2011-02-01 08:00"), "SNOMED//185347001", None, None, "e2"),
        (at("2011-02-01 09:00"), "RxNorm//314076", None, None, "e2"),
        (at("2011-02-01 09:00"), "STAY_OPEN//ENCOUNTER//inpatient", None, None, "e2"),
        (at("2012-07-01 23:59:59"), "MEDS_DEATH", None, None, None),
    ]
    assert {name: n for name, n in report.counts.items() if n} == {
        "dangling_encounter": 1,
        "date_only": 3,  # two conditions and a death
        "end_before_start": 1,
        "malformed_line": 1,
        "no_time": 1,
        "open_stay": 1,
        "unknown_person": 1,
    }
    facts = {r["code"]: r for r in pq.read_table(tmp_path / "meds" / "metadata" / "codes.parquet").to_pylist()}
    assert facts["LOINC//4548-4//%"]["parent_codes"] == ["LOINC//4548-4"]
    assert facts["LOINC//4548-4"]["description"] == "HbA1c"
    assert facts["ENCOUNTER//ambulatory//END"]["parent_codes"] == ["ENCOUNTER//ambulatory"]


def test_names_and_numbers_of_patients_stay_behind(tmp_path: Path) -> None:
    import_synthea(write_tables(NEW, tmp_path / "csv"), tmp_path / "meds")
    ids = pq.read_table(tmp_path / "meds" / "metadata" / "subject_ids.parquet").to_pylist()
    assert {row["source_id"]: row["subject_id"] for row in ids} == {name: number(name) for name in ("anna", "ben")}
    assert not any(b"SECRET" in path.read_bytes() for path in (tmp_path / "meds").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("change", "end"),
    [
        (lambda text: gzip.compress(text.encode()), "csv.gz"),
        (lambda text: gzip.compress(text.encode()), "CSV.GZ"),
        (lambda text: text.replace("\n", "\r\n").encode(), "csv"),
        (lambda text: b"\xef\xbb\xbf" + text.encode(), "CSV"),
        (lambda text: text.partition("\n")[0].lower().encode() + b"\n" + text.partition("\n")[2].encode(), "csv"),
    ],
    ids=["gz", "upper-case ending", "CRLF", "byte order mark", "lower-case header"],
)
def test_the_same_bytes_from_every_kind_of_file(tmp_path: Path, change: Callable[[str], bytes], end: str) -> None:
    tables = NEW | {"conditions": NEW["conditions"].replace("\nso", " so")}  # its line break would become CRLF, too
    import_synthea(write_tables(tables, tmp_path / "plain"), tmp_path / "one")
    import_synthea(write_tables(tables, tmp_path / "other", change=change, end=end), tmp_path / "two")
    assert written(tmp_path / "one") == written(tmp_path / "two")


def test_old_headers_and_missing_tables(tmp_path: Path) -> None:
    old = {}
    for name in ("patients", "encounters", "conditions"):
        header, _, lines = NEW[name].partition("\n")
        old[name] = ",".join(OLD_HEADERS.get(word, word) for word in header.split(",")) + "\n" + lines
    report = import_synthea(write_tables(old, tmp_path / "csv"), tmp_path / "meds")
    assert "observations" in report.missing
    codes = [row[2] for row in meds_rows(tmp_path / "meds")]
    assert codes.count("ENCOUNTER//unknown") == 2
    assert not any(code.endswith("//END") for code in codes)
    # Without an end, an encounter lasts for the rest of its day.
    assert (at("2010-02-01 23:59:59"), "SNOMED//44054006") in {row[1:3] for row in meds_rows(tmp_path / "meds")}


def test_small_spills_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FLUSH_ROWS > 1
    import_synthea(write_tables(NEW, tmp_path / "csv"), tmp_path / "one")
    monkeypatch.setattr("ehrsequencing.readers.meds_writer.FLUSH_ROWS", 1)  # every block spilled, every bucket a shard
    report = import_synthea(tmp_path / "csv", tmp_path / "two")
    assert report.shards == 2
    assert sorted(meds_rows(tmp_path / "one"), key=repr) == sorted(meds_rows(tmp_path / "two"), key=repr)


@pytest.mark.parametrize(("name", "subjects"), [("synthea_csv_unmc", 111), ("synthea_csv_ohdsi27", 27)])
def test_real_exports_lose_nothing(real_data: Path, tmp_path: Path, name: str, subjects: int) -> None:
    report = import_synthea(real_data / name, tmp_path / "meds")
    for table in report.tables.values():
        assert table.rows_in == table.kept + table.dropped.get("duplicates", 0)
    assert report.subjects == subjects


# The rules, on rows that Hypothesis draws

START_US = 14_610 * DAY_US  # 2010-01-01
CODES = ("A", "B")


ROLES = (Role.EVENT, *(role for role in Role if role is not Role.STATIC))


def moment(day: int, hour: int = 0) -> int:
    return START_US + day * DAY_US + hour * 3_600 * SECOND_US


@st.composite
def drawn_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of up to three subjects within a month, many of them at midnight, with few encounters to fall into."""
    clocks = st.sampled_from([0, 0, 7, 15])
    moments = st.builds(lambda day, hour: moment(day, hour), st.integers(0, 30), clocks)
    rows: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 25))):
        role = draw(st.sampled_from(ROLES))
        ends = role in (Role.VISIT, Role.SPAN, Role.OBSERVED, Role.REPORTED, Role.NAMED_VISIT)
        fixed = {
            Role.DEATH: "MEDS_DEATH",
            Role.PERSON: "MEDS_BIRTH",
            Role.NAMED_VISIT: None,
            Role.OBSERVED: PERIOD_START,
        }
        code = fixed[role] if role in fixed else draw(st.sampled_from(CODES))
        rows.append(
            {
                "subject_id": draw(st.integers(1, 3)),
                "role": int(role),
                "time": draw(moments) - (20_000 * DAY_US if role is Role.PERSON else 0),
                "end": draw(st.none() | moments) if ends else None,
                "code": code,
                "encounter_id": draw(st.sampled_from([None, 1, 2]))
                if role not in (Role.VISIT, Role.NAMED_VISIT)
                else draw(st.integers(1, 2)),
            }
        )
    return rows


@given(drawn_rows(), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_order_of_rows_never_matters(rows: list[dict[str, Any]], random: Any) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    (made, counts), (again, others) = clean_rows(rows), clean_rows(shuffled)
    assert made.equals(again)
    assert counts == others


@pytest.mark.parametrize("role", [Role.PERSON, Role.DEATH, Role.OBSERVED])
def test_rows_that_differ_in_their_encounter_only_are_one(role: Role) -> None:
    person = {"subject_id": 1, "role": int(Role.PERSON), "code": "MEDS_BIRTH", "time": moment(-20_000)}
    event = {"subject_id": 1, "role": int(Role.EVENT), "code": "A", "time": moment(3, 7)}
    tied = {"subject_id": 1, "role": int(role), "code": "MEDS_BIRTH", "time": moment(-20_000), "end": moment(2)}
    rows = [event, person, tied | {"encounter_id": None}, tied | {"encounter_id": 1}, tied | {"encounter_id": 2}]
    made = [clean_rows(some)[0] for some in (rows, rows[::-1])]
    assert made[0].equals(made[1])
    assert made[0]["encounter_id"].null_count == len(made[0])


@given(drawn_rows())
@settings(max_examples=30)
def test_subjects_are_cleaned_one_by_one(rows: list[dict[str, Any]]) -> None:
    alone = [clean_rows([r for r in rows if r["subject_id"] == s])[0] for s in (1, 2, 3)]
    assert clean_rows(rows)[0].equals(pa.concat_tables(alone).combine_chunks())


@given(drawn_rows())
@settings(max_examples=50)
def test_dates_never_come_early(rows: list[dict[str, Any]]) -> None:
    """An event keeps its clock; a bare date lies on its day, not before the end of the visit or of the day."""
    made = clean_rows([r for r in rows if r["role"] in (Role.EVENT, Role.PERSON)])[0].to_pylist()
    got = {
        (r["subject_id"], r["code"], round((r["time"] - datetime(1970, 1, 1)) / timedelta(microseconds=1)))
        for r in made
    }
    persons = {r["subject_id"] for r in rows if r["role"] == Role.PERSON}
    for row in rows:
        if row["role"] == Role.EVENT and row["subject_id"] in persons:
            bare = row["time"] % DAY_US == 0
            expected = row["time"] + (DAY_US - SECOND_US if bare else 0)
            assert (row["subject_id"], row["code"], expected) in got


@given(drawn_rows())
@settings(max_examples=50)
def test_observation_periods_against_days(rows: list[dict[str, Any]]) -> None:
    """Periods of whole days: merged starts and ends are the edges of the set of days covered."""
    periods = [r | {"time": r["time"] // DAY_US * DAY_US} for r in rows if r["role"] == Role.OBSERVED]
    periods = [r | {"end": None if r["end"] is None else r["end"] // DAY_US * DAY_US} for r in periods]
    persons = [{"subject_id": s, "role": int(Role.PERSON), "code": "MEDS_BIRTH"} for s in (1, 2, 3)]
    covered = np.zeros((4, 40), dtype=bool)
    for r in periods:
        first = (r["time"] - START_US) // DAY_US
        last = first if r["end"] is None or r["end"] < r["time"] else (r["end"] - START_US) // DAY_US
        covered[r["subject_id"], first : last + 1] = True
    expected = set()
    for s, day in zip(*np.nonzero(covered), strict=True):
        if day == 0 or not covered[s, day - 1]:
            expected.add((s, START_US + day * DAY_US, PERIOD_START))
        if not covered[s, day + 1]:
            expected.add((s, START_US + (day + 1) * DAY_US - SECOND_US, PERIOD_END))
    made = clean_rows([*persons, *periods])[0]
    got = set(
        zip(
            made["subject_id"].to_pylist(),
            made["time"].cast(pa.int64()).to_pylist(),
            made["code"].to_pylist(),
            strict=True,
        )
    )
    assert got == expected
