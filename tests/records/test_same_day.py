"""A cause dated by the day, on the day of an index with a clock: before it, after it, or nobody's first day counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.attrition import task_warnings
from ehrsequencing.records.events import SECOND_US
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.visits import is_dated
from helpers.cohorts import a_task, moment, study
from helpers.meds import DAY_US, Row, write_meds

MIDNIGHT = moment(0) // DAY_US * DAY_US
#: Of every ten people two have the outcome on the index's day, two a day later, and two by the clock within the day.
PEOPLE = 200


def rows_of(subject: int, *, last_second: bool) -> list[Row]:
    kind = subject % 10
    day = MIDNIGHT + subject // 10 * DAY_US
    index = day + 10 * 3600 * SECOND_US
    dated = DAY_US - SECOND_US if last_second else 0
    rows = [Row(subject, day - 3 * DAY_US, "A"), Row(subject, index, "IDX"), Row(subject, day + 40 * DAY_US, "A")]
    rows.append(Row(subject, day + dated, "TELLS" if kind < 2 else "NOTHING"))  # dated, too
    if kind < 2:
        rows.append(Row(subject, day + dated, "OUT"))
    elif kind < 4:
        rows.append(Row(subject, day + DAY_US + dated, "OUT"))
    elif kind < 6:
        rows.append(Row(subject, index + 3600 * SECOND_US, "OUT"))
    return sorted(rows, key=lambda row: row.time or 0)


@pytest.fixture(scope="module", params=[False, True], ids=["midnights", "last seconds"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    rows = [row for s in range(PEOPLE) for row in rows_of(s, last_second=request.param)]
    folder = tmp_path_factory.mktemp("same-day") / "data"
    return write_meds(folder, rows, splits=dict.fromkeys(range(PEOPLE), "train")), request.param


def task_of(rule: str | None) -> TaskConfig:
    return a_task(censoring={"dataset_end": True}, **({} if rule is None else {"same_day": rule}))


def prepared(data: Path, out: Path, rule: str | None) -> tuple[Prepared, dict[int, tuple[float, int]]]:
    """The set, and of each subject with an index the duration and the cause at it."""
    task = task_of(rule)
    prepare(data, out, study=study("vocabulary.min_subjects=1"), tasks=[task])
    store = Prepared(out)
    rows = store.rows("t", "train")
    at = rows.at_landmark(0.0)
    ids = store.timelines("train").subject_id[rows.subject[at]]
    found = zip(rows.duration_days[at].tolist(), rows.cause[at].tolist(), strict=True)
    return store, dict(zip(ids.tolist(), found, strict=True))


def kinds(found: dict[int, Any]) -> set[int]:
    return {subject % 10 for subject in found}


def test_by_default_the_stamps_decide_and_a_warning_counts_them(data: tuple[Path, bool], tmp_path: Path) -> None:
    folder, last_second = data
    store, found = prepared(folder, tmp_path / "out", None)
    assert kinds(found) == (set(range(10)) if last_second else set(range(2, 10)))
    counts = store.attrition("t")["same_day"]
    assert counts == ([40, 0] if last_second else [0, 40])
    (said,) = [text for text in task_warnings(task_of(None), store.attrition("t")) if "same_day" in text]
    assert said.startswith("40 of 120 outcomes")
    assert not [text for text in task_warnings(task_of("before"), store.attrition("t")) if "same_day" in text]


def test_before_makes_them_history(data: tuple[Path, bool], tmp_path: Path) -> None:
    _, found = prepared(data[0], tmp_path / "out", "before")
    assert kinds(found) == set(range(2, 10))
    assert all(cause == 1 for s, (_, cause) in found.items() if s % 10 in (2, 3, 4, 5))


def test_after_makes_them_outcomes_and_nothing_dated_that_day_is_known(data: tuple[Path, bool], tmp_path: Path) -> None:
    store, found = prepared(data[0], tmp_path / "out", "after")
    assert kinds(found) == set(range(10))
    assert all(0 < days < 1 and cause == 1 for s, (days, cause) in found.items() if s % 10 < 2)
    assert store.study.visits.dates == "last"
    records, token = store.records("t", "train"), store.vocabulary.tokens.index("TELLS")
    rows, lines = records.rows, records.timelines
    for row in np.flatnonzero(rows.at_landmark(0.0)):
        first = lines.subject_offsets[rows.subject[row]]
        visit = first + rows.visits_before[row]
        until = lines.visit_offsets[visit] + rows.unfinished_codes[row]
        assert token not in lines.codes[lines.visit_offsets[first] : until]


def test_exclude_drops_everybodys_first_day(data: tuple[Path, bool], tmp_path: Path) -> None:
    store, found = prepared(data[0], tmp_path / "out", "exclude")
    assert kinds(found) == {2, 3, 6, 7, 8, 9}  # those with an outcome that day, dated or not, had it before
    rows = store.rows("t", "train")
    assert (rows.index_us % DAY_US == DAY_US - 1).all()
    assert all(days > 0 and cause == 1 for s, (days, cause) in found.items() if s % 10 in (2, 3))


def test_tasks_that_disagree_on_dates_are_prepared_apart(data: tuple[Path, bool], tmp_path: Path) -> None:
    tasks = [task_of("after"), a_task("other")]
    with pytest.raises(EhrseqError, match="prepare tasks with and without it apart"):
        prepare(data[0], tmp_path / "out", study=study(), tasks=tasks)


def test_what_is_a_date() -> None:
    day = 20_000 * DAY_US
    assert is_dated(np.array([day, day + 1, day + DAY_US - SECOND_US, day - 1])).tolist() == [True, False, True, False]
