"""Cohorts in the prepared store against plain loops over raw rows: who, from when, which event, after how long.

Hand-counted records: the oracle and the store must both agree with the hand. `test_cohort_drawn.py` compares them on
drawn tables, `test_cohort_mutants.py` breaks the oracle's rules one by one, `test_task_language.py` adds what tasks can
say beyond index, outcome and censoring.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ehrsequencing.records.prepared import prepare
from helpers.cohorts import (
    EVERYTHING,
    Case,
    HandMade,
    Q,
    V,
    a_task,
    check_arrays,
    check_attrition,
    check_summaries,
    differences,
    moment,
    stored_cohort,
    study,
)
from helpers.meds import CODES, LABS, SPLITS, Row, everything, load_arrays, record, stored_subjects, us, write_meds
from reference.records import Records, Summary

HAND_COUNTED: list[Case] = [
    ("plain", {}, "0 A, 1 IDX, 2.5 A, 2.75 B, 4 OUT, 5 A", [(1, 1, Q, 3, 1), (1, 2.75, V, 1.25, 1)]),
    ("event ends its visit", {}, "1 IDX, 3 A, 3.25 OUT", [(1, 1, Q, 2.25, 1)]),
    ("event within a visit", {}, "1 IDX, 3 A, 3.25 OUT, 3.5 B", [(1, 1, Q, 2.25, 1)]),
    ("event at a visit's only moment", {}, "1 IDX, 3 A, 3 OUT, 4 B", [(1, 1, Q, 2, 1)]),
    ("index within a visit", {}, "1 A, 1.25 IDX, 1.5 A, 4 OUT", [(1.25, 1.25, Q, 2.75, 1), (1.25, 1.5, V, 2.5, 1)]),
    ("record's end censors", {}, "1 IDX, 2 A, 3 A", [(1, 1, Q, 2, 0), (1, 2, V, 1, 0)]),
    ("record's end, ignored code", {}, "1 IDX, 2 A, 3 IGN", [(1, 1, Q, 2, 0), (1, 2, V, 1, 0)]),
    ("record's end, death", {}, "1 IDX, 2 A, 3 MEDS_DEATH, 4 OUT", [(1, 1, Q, 2, 0), (1, 2, V, 1, 0)]),
    (
        "death is no visit end",
        {"censoring": {"dataset_end": True}},
        "1 IDX, 2 A, 2.5 MEDS_DEATH",
        [(1, 1, Q, 1.5, 0), (1, 2, V, 0.5, 0)],
    ),
    (
        "death at the index, by a date",
        {"index": {"date": "2020-02-28"}, "censoring": {"dataset_end": True}},
        "0 A, 1 MEDS_DEATH",
        [],
    ),
    ("death before the date", {"censoring": {"date": "2020-03-09"}}, "1 IDX, 3 MEDS_DEATH", [(1, 1, Q, 2, 0)]),
    ("event at death", {"competing": {"c": "MEDS_DEATH"}}, "1 IDX, 3 MEDS_DEATH, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("index is all there is", {}, "1 IDX", []),
    ("index at the record's end", {}, "0 A, 1 IDX, 1 A", []),
    ("no index", {}, "0 A, 1 OUT", []),
    ("no event left", {}, "-9 MEDS_BIRTH, - A", []),
    (
        "only a birth",
        {"index": {"age": "50y"}, "censoring": {"dataset_end": True}},
        "-18263 MEDS_BIRTH",
        [(-0.5, -0.5, Q, 100.5, 0)],
    ),
    ("event twice", {}, "1 IDX, 2 OUT, 3 A, 4 OUT", [(1, 1, Q, 1, 1)]),
    ("same row twice", {}, "1 IDX, 1 IDX, 2 A, 2 A, 3 OUT", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("prevalent", {}, "0 OUT, 1 IDX, 2 A, 3 OUT", []),
    ("prevalent at the index", {}, "1 IDX, 1 OUT, 2 A, 3 OUT", []),
    ("prevalent competing cause", {"competing": {"c": "COMP"}}, "0 COMP, 1 IDX, 2 A, 3 OUT", []),
    (
        "death at midnight",
        {"outcome": {"death": "MEDS_DEATH"}},
        "1 IDX, 2.5 A, 3 MEDS_DEATH, 3.5 B",
        [(1, 1, Q, 2, 1), (1, 2.5, V, 0.5, 1)],
    ),
    (
        "death at the midnight of a visit",
        {"outcome": {"death": "MEDS_DEATH"}},
        "1 IDX, 2 A, 3 A, 3 MEDS_DEATH, 3.5 B, 3.6 OUT",
        [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)],
    ),
    (
        "death at the index's midnight",
        {"outcome": {"death": "MEDS_DEATH"}, "censoring": {"dataset_end": True}},
        "0.5 A, 1 MEDS_DEATH, 1 IDX, 1.5 A",
        [],
    ),
    (
        "causes at one instant",
        {"outcome": {"a": "OUT", "b": "OUT2"}, "competing": {"c": "COMP"}, "censoring": {"code": "CENS"}},
        "1 IDX, 3 CENS, 3 COMP, 3 OUT2, 3 A",
        [(1, 1, Q, 2, 2)],
    ),
    (
        "two outcomes at one instant",
        {"outcome": {"b": "OUT2", "a": "OUT"}, "competing": {"c": "COMP"}},
        "1 IDX, 2 A, 3 OUT, 3 OUT2",
        [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)],
    ),
    (
        "competing first",
        {"competing": {"c": ["COMP", "MEDS_DEATH"]}},
        "1 IDX, 2 COMP, 3 OUT, 4 MEDS_DEATH",
        [(1, 1, Q, 1, 2)],
    ),
    ("event after censoring", {"censoring": {"code": "CENS"}}, "1 IDX, 2 CENS, 3 OUT", [(1, 1, Q, 1, 0)]),
    ("event at censoring", {"censoring": {"code": "CENS"}}, "1 IDX, 2 CENS, 2 OUT", [(1, 1, Q, 1, 1)]),
    (
        "censoring before the index",
        {"censoring": {"code": "CENS"}},
        "0 CENS, 1 IDX, 2 A, 3 A",
        [(1, 1, Q, 2, 0), (1, 2, V, 1, 0)],
    ),
    ("censoring at the index", {"censoring": {"code": "CENS"}}, "1 CENS, 1 IDX, 2 A, 3 OUT", []),
    ("and no other index instead", {"censoring": {"code": "CENS"}}, "1 CENS, 1 IDX, 2 IDX, 3 A, 4 CENS", []),
    ("censoring in a visit", {"censoring": {"code": "CENS"}}, "1 IDX, 2 A, 2.5 CENS, 2.75 A", [(1, 1, Q, 1.5, 0)]),
    (
        "censoring makes no visit end",
        {"censoring": {"code": "CENS"}},
        "1 IDX, 2 A, 2.5 CENS",
        [(1, 1, Q, 1.5, 0), (1, 2, V, 0.5, 0)],
    ),
    (
        "date after the event",
        {"censoring": {"date": "2020-03-02"}},
        "1 IDX, 2 A, 3 OUT",
        [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)],
    ),
    ("date of the event", {"censoring": {"date": "2020-03-02"}}, "1 IDX, 4 OUT", [(1, 1, Q, 3, 1)]),
    ("date before the event", {"censoring": {"date": "2020-03-01 12:00"}}, "1 IDX, 3.5 A, 4 OUT", [(1, 1, Q, 2.5, 0)]),
    ("date of the index", {"censoring": {"date": "2020-02-28"}}, "1 IDX, 2 OUT", []),
    ("data set's end", {"censoring": {"dataset_end": True}}, "1 IDX, 2 A", [(1, 1, Q, 99, 0), (1, 2, V, 98, 0)]),
    (
        "first visit",
        {"index": {"first_visit": True}},
        "0 A, 0.5 B, 1 A, 2 OUT",
        [(0.5, 0.5, Q, 1.5, 1), (0.5, 1, V, 1, 1)],
    ),
    (
        "first visit, silent codes before",
        {"index": {"first_visit": True}, "censoring": {"code": "CENS"}},
        "0 IGN, 0.25 CENS, 1 A, 1.5 IGN, 2 OUT",
        [(1, 1, Q, 1, 1)],
    ),
    ("event in the first visit", {"index": {"first_visit": True}}, "0 A, 0.5 OUT, 0.75 B, 1 A, 2 OUT", []),
    (
        "age",
        {"index": {"age": "50y"}},
        "-18261 MEDS_BIRTH, 1 A, 2 A, 3 OUT",
        [(1.5, 1.5, Q, 1.5, 1), (1.5, 2, V, 1, 1)],
    ),
    ("age, no birth", {"index": {"age": "50y"}}, "1 A, 2 A, 3 OUT", []),
    (
        "age before the first visit",
        {"index": {"age": "1y"}},
        "-365.25 MEDS_BIRTH, 2 A, 3 OUT",
        [(0, 0, Q, 3, 1), (0, 2, V, 1, 1)],
    ),
    (
        "date before the first visit",
        {"index": {"date": "2020-02-27"}},
        "2 A, 3 OUT",
        [(0, 0, Q, 3, 1), (0, 2, V, 1, 1)],
    ),
    ("date after the record", {"index": {"date": "2020-02-28"}}, "0 A", []),
    (
        "after",
        {"index": {"code": "IDX", "after": "48h"}},
        "0.25 IDX, 1 A, 4 A, 5 OUT",
        [(2.25, 2.25, Q, 2.75, 1), (2.25, 4, V, 1, 1)],
    ),
    ("event before `after` is over", {"index": {"code": "IDX", "after": "48h"}}, "1 IDX, 2 OUT, 4 A, 5 OUT", []),
    ("event as `after` is over", {"index": {"code": "IDX", "after": "48h"}}, "1 IDX, 3 OUT, 4 A, 5 OUT", []),
    ("visit as `after` is over", {"index": {"code": "IDX", "after": "48h"}}, "1 IDX, 3 A, 5 OUT", [(3, 3, Q, 2, 1)]),
    ("first of two", {}, "1 IDX, 2 IDX, 3 OUT", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    (
        "every",
        {"index": {"code": "IDX", "which": "every"}},
        "1 IDX, 2 A, 3 IDX, 4 A, 5 OUT",
        [(1, 1, Q, 4, 1), (1, 2, V, 3, 1), (3, 3, Q, 2, 1), (3, 4, V, 1, 1)],
    ),
    (
        "every, event between",
        {"index": {"code": "IDX", "which": "every"}},
        "1 IDX, 2 OUT, 3 IDX, 4 A, 5 OUT",
        [(1, 1, Q, 1, 1)],
    ),
    (
        "every, landmark past the next index",
        {"index": {"code": "IDX", "which": "every"}, "landmarks": ["0d", "3d"]},
        "1 IDX, 2 IDX, 9 OUT",
        [(1, 1, Q, 8, 1), (2, 2, Q, 7, 1), (2, 4, Q, 5, 1), (2, 5, Q, 4, 1)],
    ),
    (
        "every, censored in between",
        {"index": {"code": "IDX", "which": "every"}, "censoring": {"code": "CENS"}},
        "1 IDX, 2 CENS, 3 A, 4 IDX, 5 A, 6 CENS, 7 OUT",
        [(1, 1, Q, 1, 0), (4, 4, Q, 2, 0), (4, 5, V, 1, 0)],
    ),
    (
        "every, censored at the second",
        {"index": {"code": "IDX", "which": "every"}, "censoring": {"code": "CENS"}},
        "1 IDX, 2 A, 3 CENS, 3 IDX, 4 A, 6 IDX, 7 OUT",
        [(1, 1, Q, 2, 0), (1, 2, V, 1, 0), (6, 6, Q, 1, 1)],
    ),
    (
        "landmarks",
        {"landmarks": ["0d", "36h", "2d", "7d", "8d"]},
        "1 IDX, 3 A, 8 OUT",
        [(1, 1, Q, 7, 1), (1, 2.5, Q, 5.5, 1), (1, 3, Q, 5, 1)],
    ),
    ("landmark at censoring", {"landmarks": ["2d"]}, "1 IDX, 3 A", [(1, 1, Q, 2, 0)]),
    ("blanking", {"blanking": "2d"}, "1 IDX, 3.75 A, 4 A, 5 A, 6 OUT", [(1, 1, Q, 5, 1), (1, 3.75, V, 2.25, 1)]),
    ("blanking, just not", {"blanking": "36h"}, "1 IDX, 4 A, 6 OUT", [(1, 1, Q, 5, 1), (1, 4, V, 2, 1)]),
    ("blanking eats all", {"blanking": "36h"}, "1 IDX, 2 A, 2.5 A", []),
    ("patterns", {"outcome": {"dx": "DX//*"}}, "1 IDX, 2 A, 3 DX//2", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    (
        "pattern list",
        {"outcome": {"dx": ["OUT2", "re:DX//[12]"]}},
        "1 IDX, 2 A, 3 DX//2, 4 OUT2",
        [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)],
    ),
    (
        "descent",
        {"outcome": {"dx": "under:ROOT"}},
        "1 IDX, 2 A, 3 DX//2, 4 DX//1",
        [(1, 1, Q, 3, 1), (1, 2, V, 2, 1), (1, 3, V, 1, 1)],
    ),
]
HAND = HandMade(HAND_COUNTED)


@pytest.fixture(scope="module")
def hand_store() -> Iterator[Path]:
    with HAND.prepared() as store:
        yield store


@pytest.mark.parametrize("subject", range(len(HAND_COUNTED)), ids=[case[0] for case in HAND_COUNTED])
def test_oracle_agrees_with_hand_counts(subject: int) -> None:
    assert [row for row in HAND.truth.cohort(HAND.task(subject)) if row.subject == subject] == HAND.count(subject)


@pytest.mark.parametrize("subject", range(len(HAND_COUNTED)), ids=[case[0] for case in HAND_COUNTED])
def test_store_agrees_with_hand_counts(subject: int, hand_store: Path) -> None:
    stored = [row for row, _ in stored_cohort(hand_store, HAND.task(subject).name) if row.subject == subject]
    assert stored == HAND.count(subject)


def test_every_task_agrees_on_every_record(hand_store: Path) -> None:
    for task in HAND.tasks:
        assert differences(hand_store, task, HAND.truth, HAND.splits) == []
        check_arrays(hand_store, task, HAND.truth)


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


@pytest.mark.parametrize("setting", ["values.carry=false", "values.mode=none"])
def test_nothing_is_carried_when_it_is_switched_off(setting: str, tmp_path: Path) -> None:
    rows = everything(EVERYTHING, codes=CODES, labs=LABS, start=us("1950-05-05"))
    data = write_meds(tmp_path / "data", rows, splits={EVERYTHING: "train"})
    prepare(data, tmp_path / "out", study=study(setting), tasks=[a_task(index={"code": "LAB//Y"})])
    arrays = load_arrays(tmp_path / "out" / "tasks" / "t" / "train")
    assert arrays["is_query"].any()
    assert len(arrays["carry_codes"]) == 0


def test_the_cohort_is_the_same_however_rows_and_shards_lie(tmp_path: Path) -> None:
    rows, splits = HAND.rows, HAND.splits
    few = [HAND.tasks[0], *(task for task in HAND.tasks if task.index.which == "every")]
    orders = [(1, rows), (3, rows), (2, sorted(rows, key=lambda row: -row.subject))]
    made = []
    for n, (shards, order) in enumerate(orders):
        data = write_meds(tmp_path / f"data{n}", order, splits=splits, shards=shards, sort=False)
        prepare(data, tmp_path / f"out{n}", study=study(), tasks=few)
        folders = [tmp_path / f"out{n}" / "tasks" / task.name for task in few]
        made.append([pq.read_table(folder / "cohort.parquet") for folder in folders])
        made[-1] += [load_arrays(folder / split)[name] for folder in folders for split in SPLITS for name in ARRAYS]
    for table in made[0][: len(few)]:
        keys = list(zip(*(table[name].to_pylist() for name in ("split", "subject_id", "prediction_time")), strict=True))
        assert sorted(keys, key=lambda key: (SPLITS.index(key[0]), key[1:])) == keys
    for other in made[1:]:
        assert all(
            np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in zip(made[0], other, strict=True)
        )


ARRAYS = ("row_offsets", "prediction_us", "index_us", "is_query", "visits_before", "duration_days", "cause")


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


# ----------------------------------------------------------------------------------------------------------- real data

REAL: dict[str, tuple[dict[str, Any], list[str], int]] = {  # task, settings, subjects of each shard
    "pbc2_meds": (
        {
            "outcome": {"death": "MEDS_DEATH"},
            "competing": {"tx": "TRANSPLANT*"},
            "index": {"first_visit": True},
            "landmarks": ["0d", "1y", "3y", "5y"],
        },
        [],
        40,
    ),
    "nafld_meds": (
        {"index": {"code": "INDEX"}, "outcome": {"death": "MEDS_DEATH"}, "censoring": {"code": "END_OF_FOLLOWUP"}},
        [],
        60,
    ),
    "physionet2012_meds": (
        {"index": {"code": "ICU_ADMISSION", "after": "48h"}, "outcome": {"death": "MEDS_DEATH"}},
        ["visits.by=window", "visits.window=1h"],
        15,
    ),
    "mimic4_demo_meds": (
        {
            "index": {"code": "HOSPITAL_DISCHARGE*", "which": "every"},
            "outcome": {"death": "MEDS_DEATH"},
            "censoring": {"dataset_end": True},
            "blanking": "1d",
        },
        [],
        4,
    ),
}


QUICK = ["pbc2_meds", "nafld_meds", "physionet2012_meds"]


@pytest.mark.parametrize("name", [*QUICK, pytest.param("mimic4_demo_meds", marks=pytest.mark.slow)])
def test_real_cohorts_are_those_of_plain_loops(name: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "shared" / "data" / name / "data"
    if not source.exists():
        pytest.skip(f"{source} is absent")
    settings_, overrides, number = REAL[name]
    rows, splits = [], {}
    for path in sorted(source.rglob("*.parquet")):
        columns = pq.read_table(path, columns=["subject_id", "time", "code", "numeric_value"]).to_pydict()
        times = pq.read_table(path, columns=["time"])["time"].cast("int64").to_pylist()
        chosen = set(list(dict.fromkeys(columns["subject_id"]))[:number])
        for subject, time, code, value in zip(
            columns["subject_id"], times, columns["code"], columns["numeric_value"], strict=True
        ):
            if subject in chosen:
                rows.append(Row(subject, time, code, value))
                splits[subject] = path.parent.name
    data = write_meds(tmp_path / "data", rows, splits=splits, shards=2)
    task = a_task(**settings_)
    config = study(*overrides)
    prepare(data, tmp_path / "out", study=config, tasks=[task])
    records = Records(rows, [task], config.visits)
    assert len(records.cohort(task)) > 40
    assert differences(tmp_path / "out", task, records, splits) == []
    check_arrays(tmp_path / "out", task, records)
    check_attrition(tmp_path / "out", task, records)
