"""Episodes of care, deaths without a date or in doubt: what a task makes of them, from MEDS rows by hand."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.attrition import task_warnings
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.cohorts import a_task
from helpers.meds import record, write_meds

STAY: dict[str, Any] = {
    "index": {"code": "V//END", "which": "every"},
    "outcome": {"again": "V"},
    "recurrent": True,
    "competing": {"death": "MEDS_DEATH"},
    "censoring": {"dataset_end": True},
    "horizons": ["30d"],
}
LEFT: dict[str, Any] = {
    **STAY,
    "index": {"code": "V"},
    "outcome": {"death": "MEDS_DEATH"},
    "competing": {"home": "V//END"},
    "recurrent": False,
}
DEATH: dict[str, Any] = {
    "index": {"first_visit": True},
    "outcome": {"death": "MEDS_DEATH"},
    "censoring": {"dataset_end": True},
    "horizons": ["1y"],
}


def events_of(folder: Path, rules: dict[str, Any], *texts: str) -> dict[str, int]:
    """How the first prediction time of each subject ends, on records of hand-written texts."""
    rows = [row for number, text in enumerate(texts, start=1) for row in record(number, text)]
    data = write_meds(folder / "data", rows, splits=dict.fromkeys(range(1, len(texts) + 1), "train"))
    task = a_task(**{"landmarks": ["0d"], **rules})
    prepare(data, folder / "set", study=load_study(None, ["vocabulary.min_subjects=1"]), tasks=[task])
    found = Prepared(folder / "set").attrition("t")
    (folder / "said.txt").write_text("\n".join(task_warnings(task, found)))
    return dict(found["events"])


LAST = "0 LAB, 900 LAB"
HOME = "0 V, 5 V//END, 900 LAB"
MOVE = "0 V, 4 V//END, 4 STAY_MOVED//V, 4.1 V, 4.1 STAY_CONTINUED//V, 9 V//END"
EPISODES = {
    "a move is no readmission": (STAY, [MOVE, LAST], {"censored": 1, "again": 0, "death": 0}),
    "without episodes it is one": ({**STAY, "episodes": False}, [MOVE, LAST], {"censored": 0, "again": 1, "death": 0}),
    "a stay weeks later is one": (STAY, [f"{MOVE}, 30 V, 33 V//END", LAST], {"censored": 0, "again": 1, "death": 0}),
    "a move is no discharge": (LEFT, [f"{MOVE}, 9 MEDS_DEATH", LAST], {"censored": 0, "death": 1, "home": 0}),
    "still there": (LEFT, ["0 V, 6 STAY_OPEN//V, 800 MEDS_DEATH", HOME], {"censored": 1, "death": 0, "home": 1}),
    "moved away": (
        LEFT,
        ["0 V, 6 V//END, 6 STAY_TRANSFERRED//V, 800 MEDS_DEATH", LAST],
        {"censored": 1, "death": 0, "home": 0},
    ),
    "moved away as a cause": (
        {**LEFT, "competing": {"home": "V//END", "away": "STAY_TRANSFERRED//*"}},
        ["0 V, 6 V//END, 6 STAY_TRANSFERRED//V", LAST],
        {"censored": 0, "death": 0, "home": 0, "away": 1},
    ),
    "codes that say it themselves": (
        {**LEFT, "competing": {"home": "DISCHARGE*"}},
        ["0 V, 6 DISCHARGE//STILL_PATIENT", "0 V, 6 DISCHARGE//ACUTE_HOSPITAL", "0 V, 6 DISCHARGE//REHAB", LAST],
        {"censored": 2, "death": 0, "home": 1},
    ),
    "not confirmed": (
        {**DEATH, "outcome": {"heart": "DX//I50*"}},
        ["0 LAB, 5 DX//I50.1//provisional", "0 LAB, 5 DX//I50.1", LAST],
        {"censored": 2, "heart": 1},
    ),
}


@pytest.mark.parametrize(("rules", "texts", "events"), EPISODES.values(), ids=EPISODES)
def test_what_a_task_counts(tmp_path: Path, rules: dict[str, Any], texts: list[str], events: dict[str, int]) -> None:
    assert events_of(tmp_path, rules, *texts) == events


def test_marks_of_stays_make_no_token(tmp_path: Path) -> None:
    events_of(tmp_path, STAY, MOVE, LAST)
    assert not any(code.startswith("STAY_") for code in Prepared(tmp_path / "set").vocabulary.codes)


UNDATED = ["- MEDS_DEATH, 0 LAB, 100 LAB"] * 2
ALIVE = ["0 LAB, 900 LAB"] * 3


@pytest.mark.parametrize(
    ("say", "events"),
    [
        ({"undated": "at_last_sign"}, {"censored": 3, "death": 3}),
        ({"undated": "censor"}, {"censored": 5, "death": 1}),
    ],
)
def test_nobody_known_to_be_dead_is_followed_as_alive(
    tmp_path: Path, say: dict[str, str], events: dict[str, int]
) -> None:
    texts = [*UNDATED, "0 LAB, 50 MEDS_DEATH", *ALIVE]
    assert events_of(tmp_path, {**DEATH, "deaths": say}, *texts) == events
    days = sorted(Prepared(tmp_path / "set").rows("t", "train").duration_days.tolist())
    assert days[-3:] == [900, 900, 900]
    assert 100 in days
    assert "known to be dead without a date" in (tmp_path / "said.txt").read_text()


def test_many_deaths_without_a_date_are_refused_unless_the_task_says(tmp_path: Path) -> None:
    with pytest.raises(
        EhrseqError, match=r"0\.500 if all died at their last sign of life, 0\.167 if all are censored there \(2 people"
    ):
        events_of(tmp_path, DEATH, *UNDATED, "0 LAB, 50 MEDS_DEATH", *ALIVE)
    few = ["- MEDS_DEATH, 0 LAB, 100 LAB", *["0 LAB, 50 MEDS_DEATH"] * 30, *ALIVE]
    assert events_of(tmp_path / "few", DEATH, *few) == {"censored": 3, "death": 31}


@pytest.mark.parametrize("day", ["308", "-57"], ids=["31 December", "1 January"])
def test_a_filled_date_of_death_yields_to_a_stay_that_ended_by_it(tmp_path: Path, day: str) -> None:
    text = f"0 ADMISSION, 7.5 DISCHARGE//DIED, {day} MEDS_DEATH"
    events_of(tmp_path, DEATH, text, *ALIVE)
    assert 7.5 in Prepared(tmp_path / "set").rows("t", "train").duration_days.tolist()


def test_a_rule_that_acts_unequally_is_a_warning(tmp_path: Path) -> None:
    alive, dead = ["0 LAB, 20 IN, 900 LAB"] * 60, ["0 LAB, 20 LAB, 50 MEDS_DEATH"] * 40
    rules = {**DEATH, "index": {"code": ["IN", "LAB"]}, "eligibility": {"must_not_have": [{"code": "OLD"}]}}
    old = [f"- OLD, {text}" for text in dead]
    events_of(tmp_path, rules, *alive, *dead[:20], *old[:20])
    said = (tmp_path / "said.txt").read_text()
    assert "leaves out 20 of 40 people with death and 0 of 60 without" in said
    events_of(tmp_path / "equal", rules, *alive, *dead)
    assert "unequally" not in (tmp_path / "equal/said.txt").read_text()


OUTLIVED = "0 LAB, 10.6 MEDS_DEATH, 40.4 VISIT, 80.4 VISIT, 200.4 VISIT"


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        (OUTLIVED, 0),
        (OUTLIVED.replace("200.4 VISIT", "300.4 BILL"), 1),
        (OUTLIVED.replace(", 80.4 VISIT, 200.4 VISIT", ", 60.4 VISIT"), 1),
        (OUTLIVED.replace("10.6 MEDS_DEATH", "10.6 MEDS_DEATH, 10.6 DISCHARGE//DIED"), 1),
        (OUTLIVED.replace(".4", ""), 1),
    ],
    ids=["seen twice", "a bill", "soon", "another source", "dates"],
)
def test_a_life_after_a_death_makes_it_doubtful(tmp_path: Path, text: str, dead: int) -> None:
    assert events_of(tmp_path, DEATH, text, *ALIVE)["death"] == dead
    listed = tmp_path / "set" / "doubtful_deaths.parquet"
    assert listed.is_file() == (not dead)
    if not dead:
        assert pq.read_table(listed)["subject_id"].to_pylist() == [1]
        kept = {**DEATH, "deaths": {"doubtful": "keep"}}
        assert events_of(tmp_path / "kept", kept, text, *ALIVE)["death"] == 1


def test_an_end_of_follow_up_after_a_death_is_no_missing_one(tmp_path: Path) -> None:
    rules = {**DEATH, "censoring": {"code": "EXIT"}}
    events = events_of(tmp_path, rules, *["0 LAB, 50 MEDS_DEATH, 400 EXIT"] * 3, *["0 LAB, 400 EXIT"] * 3)
    assert events == {"censored": 3, "death": 3}
    assert "without EXIT" not in (tmp_path / "said.txt").read_text()
