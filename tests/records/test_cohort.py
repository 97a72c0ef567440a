"""Cohorts in the prepared store against plain loops over raw rows: who, from when, which event, after how long.

Hand-counted records: the oracle and the store must both agree with the hand. Below they are compared on
drawn tables.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.attrition import task_warnings
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.events import SECOND_US, STATIC, Events
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.visits import make_record
from helpers.cohorts import (
    EVERYTHING,
    HandMade,
    a_task,
    check_arrays,
    check_attrition,
    check_summaries,
    differences,
    moment,
    stored_cohort,
    study,
    tasks,
)
from helpers.hand_counted import BEYOND, HAND_COUNTED
from helpers.meds import (
    CODES,
    DAY_US,
    LABS,
    SPLITS,
    Row,
    data_sets,
    everything,
    load_arrays,
    record,
    scratch,
    stored_subjects,
    us,
    write_meds,
)
from helpers.settings import examples
from reference.records import Records, Summary

HANDS = HandMade(HAND_COUNTED), HandMade(BEYOND)


@pytest.mark.parametrize(
    ("hand", "subject"), [pytest.param(hand, n, id=case[0]) for hand in HANDS for n, case in enumerate(hand.cases)]
)
def test_the_oracle_agrees_with_hand_counts(hand: HandMade, subject: int) -> None:
    """And the store with the oracle, on every record: the next test."""
    found = hand.truth.cohort(hand.task(subject))
    assert [row for row in found if row.subject == subject] == hand.count(subject)


@pytest.mark.parametrize("hand", HANDS, ids=["index, outcome and censoring", "beyond them"])
def test_every_task_agrees_on_every_record(hand: HandMade) -> None:
    with hand.prepared() as store:
        for task in hand.tasks:
            assert differences(store, task, hand.truth, hand.splits) == []
            check_arrays(store, task, hand.truth)
            check_attrition(store, task, hand.truth)


def test_index_landmark_and_age_at_a_query_are_counted_by_hand(tmp_path: Path) -> None:
    rows = record(1, "-3652.5 MEDS_BIRTH, 0 LAB//X=3, 1 IDX, 1.5 LAB//X=1, 2 LAB//X=8, 2 LAB//X=6, 9 OUT")
    rows += everything(EVERYTHING, codes=CODES, labs=LABS, start=us("1950-05-05"))
    data = write_meds(tmp_path / "data", rows, splits={1: "tuning", EVERYTHING: "train"})
    task = a_task(landmarks=["0d", "18h", "3d"])
    prepare(data, tmp_path / "out", study=study(), tasks=[task])
    arrays = load_arrays(tmp_path / "out" / "tasks" / "t" / "tuning")
    assert arrays["prediction_us"].tolist() == [moment(p) for p in (1, 1.5, 1.75, 2, 4)]
    assert arrays["is_query"].tolist() == [True, False, True, False, True]
    assert arrays["visits_before"].tolist() == [1, 2, 2, 3, 3]  # day 1's visit ends at day 1.5
    ages, gaps = arrays["age_years"][[0, 2, 4]], arrays["delta_days"][[0, 2, 4]]
    np.testing.assert_allclose(ages, [10 + days / 365.25 for days in (1, 1.75, 4)], rtol=1e-7)
    np.testing.assert_array_equal(gaps, [0.0, 0.25, 2.0])  # at day 1 the day's visit has begun, with IDX
    assert arrays["unfinished_codes"].tolist() == [1, 0, 0, 0, 0]
    records = Records(rows, [task])
    assert records.summaries(1, moment(1)) == {"LAB//X": Summary(3, 3, 3, 3, 3, since_days=1, number=1)}
    assert records.summaries(1, moment(4)) == {"LAB//X": Summary(6, 3, 4.5, 1, 8, since_days=2, number=4)}
    check_summaries(tmp_path / "out", task, records, {1: "tuning", EVERYTHING: "train"})


def test_subjects_without_a_split_file_are_split_by_their_id(tmp_path: Path) -> None:
    records_ = ["0 A, 1 IDX, 2 A, 3 OUT", "1 IDX, 4 A, 9 A", "0 A", "1 IDX, 1.5 B, 2 MEDS_DEATH"]
    rows = [row for subject in range(400) for row in record(subject * 7, records_[subject % 4])]
    some = [row for row in rows if row.subject % 3 or row.subject < 700]
    found = []
    for n, (part, shards) in enumerate([(rows, 1), (rows, 3), (some, 2)]):
        data = write_meds(tmp_path / f"data{n}", part, shards=shards)
        prepare(data, tmp_path / f"out{n}", study=study(), tasks=[a_task()])
        stored = stored_cohort(tmp_path / f"out{n}", "t")
        assert [row for row, _ in stored] == Records(part, [a_task()]).cohort(a_task())
        subjects = stored_subjects(tmp_path / f"out{n}")
        assert all(subjects[row.subject].split == split for row, split in stored)
        found.append({subject: each.split for subject, each in subjects.items()})
    assert found[0] == found[1]
    assert found[2].items() <= found[0].items()
    shares = [list(found[0].values()).count(split) / 400 for split in SPLITS]
    np.testing.assert_allclose(shares, (0.70, 0.15, 0.15), atol=0.06)  # three standard errors are .05 to .07


# ---- Cohorts of drawn records and drawn tasks: the store against plain loops over the raw rows, row by row ----


DataSet = tuple[list[Row], dict[int, str]]
DRAWN: dict[str, Any] = {
    "data": data_sets(),
    "some": st.tuples(tasks("one"), tasks("two"), tasks("three")),
    "cut": st.sampled_from(["visits.by=day", "visits.by=window", "visits.by=gap"]),
    "ignore": st.sampled_from(["[]", "[IGN]", "['DX//*', IDX]"]),
    "shards": st.integers(1, 3),
}


def check_drawn(data: DataSet, some: tuple[TaskConfig, ...], cut: str, ignore: str, shards: int) -> None:
    rows, splits = [row._replace(encounter=None) for row in data[0]], data[1]
    config = study(cut, f"visits.ignore={ignore}")
    records = Records(rows, some, config.visits)
    with scratch() as folder:
        source = write_meds(Path(folder) / "data", rows, splits=splits, shards=shards, sort=False)
        store = Path(folder) / "out"
        prepare(source, store, study=config, tasks=some, allow_empty=True)
        for task in some:
            assert differences(store, task, records, splits) == []
            check_arrays(store, task, records)
            check_attrition(store, task, records)
            check_summaries(store, task, records, splits)


@settings(max_examples=examples(60), deadline=None)
@given(**DRAWN)
def test_cohorts_are_those_of_plain_loops(data: DataSet, some: Any, cut: str, ignore: str, shards: int) -> None:
    check_drawn(data, some, cut, ignore, shards)


@given(task=tasks("t"), days=st.lists(st.integers(0, 9), min_size=2, max_size=6), cut=st.integers(1, 9))
def test_who_is_asked_at_a_moment_does_not_depend_on_what_comes_later(
    task: TaskConfig, days: Sequence[int], cut: int
) -> None:
    """Eligibility and index of a prediction time are the same for the record as it stood at that time."""
    codes = ["A", "IDX", "LAB//X=3", "OUT", "B", "COMP"]
    text = ", ".join(f"{day} {codes[(day + n) % len(codes)]}" for n, day in enumerate(sorted(days)))
    rows = [*record(1, f"-18270 MEDS_BIRTH, {text}"), *record(1, f"{cut} B")]

    def asked(rows: list[Row]) -> set[tuple[int, int]]:
        rows = sorted(rows, key=lambda row: row.time or 0)
        found = Records(rows)
        assert found.records
        events = _events(rows)
        made = make_record(events, excluded=CodeMatcher(["MEDS*"]), settings=load_study().visits)
        cohort = CohortBuilder(task).build(made, dataset_end_us=2**60, labelled=False)
        pairs = zip(cohort.rows.prediction_us.tolist(), cohort.rows.index_us.tolist(), strict=True)
        return {pair for pair in pairs if pair[0] <= now}

    now = us("2020-02-27") + cut * DAY_US
    later = asked(rows)
    before = asked([row for row in rows if row.time is not None and row.time <= now])
    assert later == before


def _events(rows: list[Row]) -> Events:
    codes = sorted({row.code for row in rows})
    return Events(
        subject_id=np.array([row.subject for row in rows], dtype=np.int64),
        time_us=np.array([STATIC if row.time is None else row.time for row in rows], dtype=np.int64),
        code=np.array([codes.index(row.code) for row in rows], dtype=np.int32),
        codes=tuple(codes),
        value=np.array([np.nan if row.value is None else row.value for row in rows], dtype=np.float32),
    )


# ---- a cause dated by the day, on the day of an index with a clock ----


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
