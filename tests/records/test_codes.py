"""Task files: how conditions are written, what is refused, and that old files mean what they meant."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.attrition import attrition_lines
from ehrsequencing.records.check import check_data
from ehrsequencing.records.codes import CodeMatcher, split_condition
from ehrsequencing.records.prepare import prepare
from helpers.cohorts import a_task, study
from helpers.meds import Row, record, write_meds


def attrition_of(tmp: Path, rows: list[Row], **settings: Any) -> dict[str, Any]:
    data = write_meds(tmp / "data", rows, splits={row.subject: "train" for row in rows})
    prepare(data, tmp / "out", study=study(), tasks=[a_task(**settings)])
    return json.loads((tmp / "out" / "tasks" / "t" / "attrition.json").read_text())  # type: ignore[no-any-return]


def test_attrition_names_every_criterion_and_counts_indexes(tmp_path: Path) -> None:
    records_ = [
        "0 A, 9 IDX, 10 B, 11 IDX, 14 OUT",  # both indexes go through
        "0 A, 1 IDX, 9 IDX, 10 B, 14 OUT",  # the first has too little history
        "0 A, 9 IDX, 10 OUT, 11 IDX",  # the second comes after the outcome
        "0 B, 9 IDX, 10 B",  # no A
        "0 A, 1 OUT",  # no index
    ]
    rows = [row for subject, text in enumerate(records_) for row in record(subject, text)]
    rules = {"history": "5d", "must_have": [{"code": ["A", "re:A+"], "within": "2w"}], "must_not_have": "COMP"}
    found = attrition_of(tmp_path, rows, index={"code": "IDX", "which": "every"}, eligibility=rules)
    assert [(step["step"], step["subjects"], step["indexes"]) for step in found["steps"]] == [
        ("all subjects", 5, 7),
        ("with an index", 4, 7),
        ("with 5d of history before the index", 4, 6),
        ("with A or re:A+ within 14d before the index", 3, 5),
        ("without COMP up to the index", 3, 5),
        ("without an outcome or competing event at or before the index", 3, 4),
        ("followed up after the index", 3, 4),
        ("with a prediction time", 3, 4),
    ]
    assert found["ended_by_death"] == 0


def test_conditions_need_blanks_and_codes_keep_their_signs() -> None:
    assert split_condition("LAB//A1c (%) >= 6.5") == ("LAB//A1c (%)", ">=", 6.5)
    assert split_condition("re:LAB//.* < -1e3") == ("re:LAB//.*", "<", -1000.0)
    for plain in ("BMI>=30", "BMI >=30", "AGE > old", ">= 3", "LAB >= 6.5 %", "a = b"):
        assert split_condition(plain) is None
        assert CodeMatcher([plain])(plain)
    assert CodeMatcher(["re:BMI >= (30)"])("BMI >= 30")  # a code that looks like a condition
    matcher = CodeMatcher(["LAB//X > 1", "A"])
    assert [matcher(code) for code in ("LAB//X", "A", "LAB//X > 1")] == [True, True, False]
    with pytest.raises(EhrseqError, match="comes close: LAB//HbA1c; a condition on a number has blanks"):
        CodeMatcher(["LAB//HbA1c>=6.5"]).require(["LAB//HbA1c"], suggest=["LAB//HbA1c"], where="task t, outcome.x")


def test_under_without_a_match_names_the_hierarchy() -> None:
    flat = {"SNOMED//1//mg": ["SNOMED//1"], "LOINC//1": ["LOINC//2"]}
    with pytest.raises(EhrseqError, match=r"under: needs parent_codes in metadata/codes\.parquet"):
        CodeMatcher(["under:SNOMED//9"], parents=flat).require([*flat], suggest=[], where="task t, index.code")
    CodeMatcher(["under:SNOMED//1"], parents=flat).require([*flat], suggest=[], where="task t, index.code")


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"eligibility": {"min_age": "50y", "max_age": "50y"}}, "min_age must be below max_age"),
        ({"eligibility": {"must_have": [{"code": "A", "inside": "1d"}]}}, "unknown setting 'eligibility.must_have"),
        ({"eligibility": {"must_have": [{"code": "A", "count": 0}]}}, "count"),
        ({"eligibility": {"history": 30}}, "not a duration"),
        ({"index": {"first_visit": True, "which": "every"}}, "which and after belong to an index by code or file"),
        ({"index": {"age": "50y", "after": "48h"}}, "which and after belong to an index by code or file"),
        ({"index": {"code": "IDX", "file": "x.parquet"}}, "exactly one of code, first_visit, age, date, file"),
    ],
)
def test_a_task_that_says_too_much_is_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(EhrseqError, match=message):
        a_task(**settings_)


@pytest.mark.parametrize("where", ["censoring", "ignore"])
def test_codes_that_make_no_token_have_no_condition(where: str, tmp_path: Path) -> None:
    data = write_meds(tmp_path / "data", record(1, "0 LAB//X=3, 1 IDX, 2 OUT"), splits={1: "train"})
    task = a_task(censoring={"code": "LAB//X > 2"}) if where == "censoring" else a_task()
    config = study("visits.ignore=['LAB//X > 2']") if where == "ignore" else study()
    with pytest.raises(EhrseqError, match=r"not possible in censoring\.code and visits\.ignore"):
        prepare(data, tmp_path / "out", study=config, tasks=[task])


def test_a_code_that_must_be_there_must_exist(tmp_path: Path) -> None:
    data = write_meds(tmp_path / "data", record(1, "0 A, 1 IDX, 2 OUT"), splits={1: "train"})
    with pytest.raises(EhrseqError, match=r"eligibility\.must_have: no code of the data matches BBB"):
        prepare(data, tmp_path / "out", study=study(), tasks=[a_task(eligibility={"must_have": "BBB"})])
    prepare(data, tmp_path / "out", study=study(), tasks=[a_task(eligibility={"must_not_have": "BBB"})])


@pytest.mark.parametrize("start", [None, "JOINED"])
def test_nobody_enters_a_cohort_because_they_die(tmp_path: Path, start: str | None) -> None:
    """Two of three who left before the index die later: neither they nor the third enter, by marks or by periods."""
    joined = [row for s in range(6) for row in record(s, "0 JOINED, 1 A")]
    left = [row for s in range(3) for row in record(s, "2 LEFT" + (", 20 MEDS_DEATH" if s else ""))]
    rows = joined + left + [row for s in (3, 4) for row in record(s, "9 A, 30 LEFT")] + record(5, "9 A, 12 MEDS_DEATH")
    rules = {"code": "LEFT"} | ({"start": start} if start else {})
    dated = {"index": {"date": "2020-03-02"}, "outcome": {"death": "MEDS_DEATH"}, "censoring": rules}
    data = write_meds(tmp_path / "data", sorted(rows), splits={s: "train" for s in range(6)})
    found = check_data(data, study=study(), tasks=[a_task(**dated)]).tasks[0]
    assert found.attrition["events"] == {"censored": 2, "death": 1}
    assert [(step["step"], step["subjects"]) for step in found.attrition["steps"][1:3]] == [
        ("with an index", 6),
        ("observed at the index", 3),
    ]
    followed = found.as_json()["followed"]
    assert all(part in followed for part in ("3 people", "2 LEFT, 1 death, 0 the data's end", "0 of the 1 events"))
    assert found.attrition["followed"]["rows_unobserved"] == 0


def test_periods_that_touch_before_the_first_lone_end_began_before_the_record(tmp_path: Path) -> None:
    """On day 4: inside a period that ends on day 5 where the next begins, or outside the period of an instant."""
    rows = record(1, "0 A, 5 LEFT, 5 JOINED, 9 LEFT") + record(2, "0 A, 5 JOINED, 5 LEFT, 9 B")
    rows += record(3, "0 A, 5 LEFT, 5 JOINED, 7 JOINED, 9 LEFT")
    rules = {"index": {"date": "2020-03-02"}, "censoring": {"code": "LEFT", "start": "JOINED"}}
    data = write_meds(tmp_path / "data", rows, splits={1: "train", 2: "train", 3: "train"})
    prepare(data, tmp_path / "out", study=study(), tasks=[a_task(outcome={"b": "B"}, **rules)], allow_empty=True)
    cohort = pq.read_table(tmp_path / "out" / "tasks" / "t" / "cohort.parquet").to_pylist()
    assert {(row["subject_id"], row["duration_days"]) for row in cohort if row["kind"] == "query"} == {(1, 1.0)}


def test_check_names_the_start_where_people_come_back(tmp_path: Path) -> None:
    rows = record(1, "0 A, 2 LEFT, 6 A, 9 A") + record(2, "0 A, 9 A, 12 LEFT") + record(3, "0 A, 3 B, 9 MEDS_DEATH")
    data = write_meds(tmp_path / "data", rows, splits={1: "train", 2: "train", 3: "train"})
    dated = {"index": {"date": "2020-03-02"}, "outcome": {"death": "MEDS_DEATH"}}
    found = check_data(data, study=study(), tasks=[a_task(censoring={"code": "LEFT"}, **dated)]).tasks[0]
    assert found.attrition["followed"]["rows_unobserved"] == 1
    assert any("as in censoring: {code: LEFT, start: X}" in text for text in found.warnings)
    assert any("Nobody who died has LEFT, and the index is not itself a record" in text for text in found.warnings)
    assert "1  of those not observed at the index have rows other than a death" in str(
        attrition_lines(a_task(censoring={"code": "LEFT"}, **dated), found.attrition)
    )


def test_check_counts_people_without_the_code(tmp_path: Path) -> None:
    """By hand: subjects 0 to 2 of 5 have no period, and two of them live."""
    rows = [row for s in range(5) for row in record(s, "1 IDX, 5 A" + (", 7 MEDS_DEATH" if s == 0 else ""))]
    rows += [row for s in (3, 4) for row in record(s, "0 OBSERVATION_PERIOD_START, 9 OBSERVATION_PERIOD_END")]
    data = write_meds(tmp_path / "data", sorted(rows), splits={s: "train" for s in range(5)})
    task = a_task(outcome={"death": "MEDS_DEATH"}, censoring={"code": "OBSERVATION_PERIOD_*"})
    found = check_data(data, study=study(), tasks=[task]).tasks[0]
    counts = found.attrition["followed"]
    assert (counts["alive_without_code"], counts["died_without_code"], counts["with_index"]) == (2, 1, 5)
    assert (counts["code"], counts["other"], counts["event"]) == (2, 2, 1)
    assert any("people with an index are without OBSERVATION_PERIOD_*" in text for text in found.warnings)


def test_a_start_needs_a_code_and_must_be_in_the_data(tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match="start belongs to a code"):
        a_task(censoring={"start": "A", "dataset_end": True})
    data = write_meds(tmp_path / "data", record(1, "0 A, 1 IDX, 2 OUT, 3 CENS"), splits={1: "train"})
    task = a_task(censoring={"code": "CENS", "start": "AA"})
    with pytest.raises(EhrseqError, match=r"censoring\.start: no code of the data matches AA"):
        prepare(data, tmp_path / "out", study=study(), tasks=[task])
