"""The end of follow-up against the records: each doubt where it is due, with its counts, and silence elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.config import TaskConfig, load_study, load_task
from ehrsequencing.records.check import check_data
from ehrsequencing.records.follow_up import compare_end
from ehrsequencing.records.survey import DayCounts
from helpers.meds import DAY_US, Row, record, us, write_meds

START = us("2010-01-01")
TASK: dict[str, Any] = {
    "name": "t",
    "index": {"code": "A"},
    "outcome": {"event": ["X"]},
    "competing": {"death": ["MEDS_DEATH"]},
    "horizons": ["30d"],
}
DOUBTS = {
    "today": "days after today",
    "last": "is on the day of their last event",
    "long": "more than two years after",
    "deaths": "Deaths are recorded for",
    "lost": "nothing follows",
    "read": "lose it when their records are read",
}


def doubts(folder: Path, texts: list[str], **changes: Any) -> dict[str, str]:
    """Which doubts `check` has of a task, by name, with what it says."""
    rows = [row for who, text in enumerate(texts) for row in record(who, text, start=START)]
    task = TaskConfig.model_validate(TASK | changes)
    (found,) = check_data(write_meds(folder / "meds", rows), study=load_study(), tasks=[task]).tasks
    return {name: said for name, part in DOUBTS.items() for said in found.warnings if part in said}


def days_of(days: dict[int, tuple[int, int, int]]) -> DayCounts:
    """Day → rows, deaths among them, and people whose last row it is."""
    rows, deaths, leaving = (np.array(column) for column in zip(*days.values(), strict=True))
    day = np.array([*days])
    return DayCounts(day, rows, 0 * rows, deaths, leaving, int(day[-1]) * DAY_US, 0, 0)


def test_rows_after_today_are_counted_unless_most_people_have_them() -> None:
    days = days_of({0: (90, 0, 60), 10: (20, 1, 5), 40: (7, 0, 6)})
    before = compare_end(days, 40 * DAY_US, today="1970-01-11")
    assert before == {
        "beyond_today": 0,
        "days_after_today": 30,
        "rows_after_today": 7,
        "subjects_after_today": 6,
        "deaths_alone": -30,
    }
    never = compare_end(days, 40 * DAY_US, today="1970-02-10")
    assert (never["days_after_today"], never["rows_after_today"]) == (0, 0)
    shifted = compare_end(days_of({0: (9, 0, 5), 40: (9, 0, 6)}), 40 * DAY_US, today="1970-01-11")
    assert (shifted["beyond_today"], shifted["days_after_today"], shifted["rows_after_today"]) == (1, 0, 0)


def test_deaths_alone_end_with_the_date_that_a_task_states() -> None:
    days = days_of({-900: (3, 0, 1), -400: (9, 1, 0), 500: (2, 2, 2)})
    assert compare_end(days, 500 * DAY_US, today="2020-01-01")["deaths_alone"] == 900
    assert compare_end(days, 500 * DAY_US, stated="1969-12-27", today="2020-01-01")["deaths_alone"] == 395
    future = compare_end(days, 500 * DAY_US, stated="2020-03-01", today="2020-01-01")
    assert future["days_after_today"] == 60
    none = days_of({-900: (3, 0, 1), -400: (9, 0, 0)})
    assert compare_end(none, -400 * DAY_US)["deaths_alone"] == -500


@pytest.mark.parametrize("ahead", [40, 4000])
def test_a_row_that_is_still_to_come_is_said_in_check(tmp_path: Path, ahead: int) -> None:
    now = int(np.datetime64("today").astype(np.int64)) - START // DAY_US
    texts = [f"{now - 900 + who} A, {now - 100 - who} X" for who in range(30)]
    end = {"censoring": {"dataset_end": True}}
    assert "today" not in doubts(tmp_path / "past", texts, **end)
    texts[:8] = [f"{text}, {now + ahead - who} B" for who, text in enumerate(texts[:8])]
    said = doubts(tmp_path / "future", texts, **end)["today"]
    assert "rows of <11 subjects" in said
    assert "data.extracted=" in said
    date = {"censoring": {"date": "2990-01-01"}}
    assert "censoring.date lies" in doubts(tmp_path / "date", texts, **date)["today"]


@pytest.mark.parametrize("code", ["END", "OBSERVATION_PERIOD_END"])
@pytest.mark.parametrize(("same", "is_said"), [(10, True), (9, False)])
def test_an_end_on_the_day_of_the_last_other_row(tmp_path: Path, code: str, same: int, is_said: bool) -> None:
    """At another second of that day, or 25 hours later; whoever has the event does not count, and a birth is no row."""
    texts = [f"-9000 MEDS_BIRTH, 0 A, 9.2 B, {9.7 if who < same else 10.3} {code}" for who in range(20)]
    texts += [f"0 A, 9 X, 9.5 {code}"] * 5
    said = doubts(tmp_path, texts, censoring={"code": code})
    assert ("last" in said) == is_said
    if is_said:
        assert said["last"].startswith(f"For <11 of 20 subjects without the event, {code} is on the day")


@pytest.mark.parametrize("rule", [{"dataset_end": True}, {"date": "2014-01-01"}, {"age": "30y"}])
@pytest.mark.parametrize(("stays", "is_said"), [(10, True), (11, False)])
def test_an_end_by_design_years_after_the_last_row(
    tmp_path: Path, rule: dict[str, Any], stays: int, is_said: bool
) -> None:
    """10 or 9 of 20 people have their last row three years before the end, the others half a year before it."""
    texts = [f"-9500 MEDS_BIRTH, 0 A, {1280 if who < stays else 360} B" for who in range(20)]
    texts += ["-9500 MEDS_BIRTH, 0 A, 20 X"] * 30
    said = doubts(tmp_path, [*texts, "1461 A"], censoring=rule)
    assert ("long" in said) == is_said
    if is_said:
        assert said["long"].startswith("For <11 of 20 subjects")


REGISTRY = ["0 A, 300 B", "0 A, 310 X", "0 A, 20 B, 900 MEDS_DEATH"] * 5


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ({"censoring": {"dataset_end": True}}, True),
        ({"censoring": {"date": "2012-01-01"}}, True),
        ({"censoring": {"date": "2010-12-31"}}, False),  # with the other rows
        ({"censoring": {"code": "B"}}, False),
        ({"censoring": {"dataset_end": True}, "competing": {}, "outcome": {"death": ["MEDS_DEATH"]}}, False),
        ({"censoring": {"dataset_end": True}, "outcome": {"any": ["X", "MEDS_DEATH"]}, "competing": {}}, True),
    ],
)
def test_a_registry_of_deaths_that_outlives_the_records(tmp_path: Path, changes: dict[str, Any], is_said: bool) -> None:
    assert ("deaths" in doubts(tmp_path / "1", REGISTRY, **changes)) == is_said
    # a registry of outcomes that goes on as long, or marks of follow-up, are rows as well
    for code in ("X", "END_OF_FOLLOWUP"):
        whole = [*REGISTRY, f"0 A, 20 B, 890 {code}"]
        assert "deaths" not in doubts(tmp_path / code, whole, **changes)


@pytest.mark.parametrize("which", ["first", "every"])
def test_nothing_that_follows_an_index_where_no_end_is_named(tmp_path: Path, which: str) -> None:
    texts = ["0 A, 5 B, 30 A, 35 X, 70 A"] * 30 + ["0 A"] * 5
    changes: dict[str, Any] = {"index": {"code": "A", "which": which}, "recurrent": True}
    said = doubts(tmp_path / "none", texts, **changes)["lost"]
    assert f"nothing follows {'35 of 95' if which == 'every' else '<11 of 35'} indexes" in said
    assert "lost" not in doubts(tmp_path / "end", texts, censoring={"dataset_end": True}, **changes)
    assert "lost" not in doubts(tmp_path / "one", ["0 A, 5 X"] * 100 + ["0 A"], **changes | {"index": {"code": "A"}})


def test_marks_of_follow_up_are_no_last_event(tmp_path: Path) -> None:
    """A period that ends with the death does not hide that deaths are their people's last event."""
    rows: list[Row] = []
    for who in range(20):
        rows += record(
            who, f"0 A, 9 B, {'20 OBSERVATION_PERIOD_END, 20 MEDS_DEATH' if who < 8 else '30 B'}", start=START
        )
    task = TaskConfig.model_validate(TASK | {"outcome": {"death": ["MEDS_DEATH"]}, "competing": {}})
    (found,) = check_data(write_meds(tmp_path, rows), study=load_study(), tasks=[task]).tasks
    assert found.attrition["outcomes_that_end_the_record"] == 8


NONE_DUE = {
    "nafld_meds": "nafld.yaml",
    "pbc2_meds": "pbc2.yaml",
    "physionet2012_meds": "physionet2012.yaml",
    "delphi_sim_meds": "delphi_sim.yaml",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in NONE_DUE])
def test_no_doubt_of_the_shared_sets(real_data: Path, name: str) -> None:
    task = load_task(Path(__file__).parents[2] / "examples" / "tasks" / NONE_DUE[name])
    (found,) = check_data(real_data / name, study=load_study(), tasks=[task]).tasks
    assert not [said for said in found.warnings for part in DOUBTS.values() if part in said]


def test_outcomes_that_reading_drops_are_a_warning(tmp_path: Path) -> None:
    """Of 40 people with the outcome 11 have it a day after their death only; of another 40 it is 0."""
    good = ["0 A, 9 X, 30 B"] * 40
    lost = ["0 A, 8 MEDS_DEATH, 9 X"] * 11
    assert "of 50 people with a code of event lose it" in doubts(tmp_path / "some", good + lost)["read"]
    assert "read" not in doubts(tmp_path / "none", good + ["0 A, 9 MEDS_DEATH, 12 B"] * 11)
