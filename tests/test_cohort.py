"""Cohorts in the prepared store against plain loops over raw rows: who, from when, which event, after how long.

Hand-counted records first (the oracle and the store must both agree with the hand), then tables drawn by Hypothesis
(the store must agree with the oracle, row by row); the oracle's rules are also broken one by one (they must differ).
"""

import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ehrsequencing.config import StudyConfig, TaskConfig, VisitsConfig, load_study, validated
from ehrsequencing.records.prepared import prepare
from meds_helpers import (
    CODES,
    DAY_US,
    HOUR_US,
    LABS,
    SPLITS,
    STARTS,
    YEAR_US,
    Row,
    data_sets,
    everything,
    load_arrays,
    record,
    scratch,
    stored_subjects,
    token_names,
    us,
    write_meds,
)
from reference.records import CohortRow, Records, Summary, Visit

EVERYTHING = 900  # the subject with all codes, long before the others
LAST = 901  # the subject with the data set's last event, on day 100

# task (index, outcome … as in a task file; outcome OUT and index IDX unless given), record, and its rows as
# (index day, prediction day, kind, days to the end, cause). Day 0 is 2020-02-27; visits by day; IGN ignored.
Q, V = "query", "visit"
HAND_COUNTED: list[tuple[str, dict[str, Any], str, list[tuple[float, float, str, float, int]]]] = [
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
        [(1, 1, Q, 99, 0), (1, 2, V, 98, 0)],
    ),
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
PARENTS = {"DX//1": ["MIDDLE"], "MIDDLE": ["ROOT", "OTHER"], "DX//2": ["OTHER"], "ROOT": []}


def study(*more: str) -> StudyConfig:
    return load_study(None, ["vocabulary.min_subjects=1", *more])


def a_task(name: str = "t", **settings_: Any) -> TaskConfig:
    given_ = {"name": name, "index": {"code": "IDX"}, "outcome": {"out": "OUT"}, "horizons": ["30d"], **settings_}
    return validated(TaskConfig, given_, where="test")


def moment(day: float) -> int:
    return STARTS[1] + round(day * DAY_US)


# ------------------------------------------------------------------------------------------------ reading what was made


def stored_cohort(store: Path, name: str) -> list[tuple[CohortRow, str]]:
    """Read the contract's own file, and check that its types are the contract's."""
    path = store / "tasks" / name / "cohort.parquet"
    types = {field.name: str(field.type).removeprefix("large_") for field in pq.read_schema(path)}
    assert types == {
        "subject_id": "int64",
        "index_time": "timestamp[us]",
        "prediction_time": "timestamp[us]",
        "kind": "string",
        "duration_days": "double",
        "cause": "int8",
        "split": "string",
    }
    table = pq.read_table(path)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    for name in ("index_time", "prediction_time"):
        columns[name] = table[name].cast("int64").to_pylist()
    *fields, splits = (columns[name] for name in types)
    return sorted((CohortRow(*row[:-1]), row[-1]) for row in zip(*fields, splits, strict=True))


def differences(store: Path, task: TaskConfig, records: Records, splits: dict[int, str]) -> list[str]:
    """Name what differs between a stored cohort and the oracle's."""
    stored = stored_cohort(store, task.name)
    expected = [(row, splits[row.subject]) for row in records.cohort(task)]
    return [
        *(f"{task.name}: not in the store: {row}" for row in expected if row not in stored),
        *(f"{task.name}: only in the store: {row}" for row in stored if row not in expected),
        *([f"{task.name}: rows twice"] if len(set(stored)) < len(stored) else []),
    ]


def check_arrays(store: Path, task: TaskConfig, records: Records) -> None:
    """Compare the arrays that training reads with the oracle: labels, and what a query knows about time."""
    cohort = records.cohort(task)
    for split in SPLITS:
        subjects = load_arrays(store / "visits" / split)["subject_id"].tolist()
        arrays = load_arrays(store / "tasks" / task.name / split)
        offsets = arrays["row_offsets"]
        assert len(offsets) == len(subjects) + 1
        assert offsets[-1] == len(arrays["prediction_us"])
        for n, subject in enumerate(subjects):
            expected = [row for row in cohort if row.subject == subject]
            at = slice(offsets[n], offsets[n + 1])
            visits = [records.visits_before(subject, row.prediction_us) for row in expected]
            for name, want in {
                "prediction_us": [row.prediction_us for row in expected],
                "index_us": [row.index_us for row in expected],
                "is_query": [row.kind == "query" for row in expected],
                "duration_days": [row.duration_days for row in expected],
                "cause": [row.cause for row in expected],
                "visits_before": [len(before) for before in visits],
            }.items():
                assert arrays[name][at].tolist() == want, (task.name, subject, name)
            assert np.all(arrays["entry_days"][at] == np.float32(task.blanking))
            birth = records.birth(subject)
            for got_age, got_gap, row, before in zip(
                arrays["age_years"][at], arrays["delta_days"][at], expected, visits, strict=True
            ):
                if row.kind == "visit":
                    continue  # a visit has its own age and gap, with the visits
                age = np.nan if birth is None else (row.prediction_us - birth) / YEAR_US
                gap = (row.prediction_us - before[-1].end) / DAY_US if before else 0.0
                np.testing.assert_array_equal(got_age, np.float32(age if not age > 120 else np.nan))
                np.testing.assert_array_equal(got_gap, np.float32(gap))


def check_attrition(store: Path, task: TaskConfig, records: Records) -> None:
    """Compare the counts of `attrition.json`, step by step."""
    attrition = json.loads((store / "tasks" / task.name / "attrition.json").read_text(encoding="utf-8"))
    *steps, prediction_times, queries = records.flow(task)
    assert [step["subjects"] for step in attrition["steps"]] == steps
    assert [step["excluded"] for step in attrition["steps"]] == [0, *(a - b for a, b in itertools.pairwise(steps))]
    assert (attrition["prediction_times"], attrition["queries"]) == (prediction_times, queries)
    firsts = {row.subject: row.cause for row in reversed(records.cohort(task))}  # the cause at each subject's first row
    events = {name: list(firsts.values()).count(n) for n, name in enumerate(("censored", *task.causes))}
    assert attrition["events"] == events


FIELDS = ("LAST", "FIRST", "MEAN", "MIN", "MAX", "SINCE", "COUNT")


def check_summaries(store: Path, task: TaskConfig, records: Records, splits: dict[int, str]) -> None:
    """Compare what queries carry: the tokens exactly, their standardised values through the code's training values."""
    names = token_names(store)
    training: dict[str, list[float]] = {}
    for subject in records.records:
        for _, row in records.tokens(subject):
            if row.value is not None and splits[subject] == "train":
                training.setdefault(row.code, []).append(row.value)
    scales: dict[str, list[tuple[float, float, float]]] = {}  # raw number, rank, standardised value
    for split in SPLITS:
        arrays = load_arrays(store / "tasks" / task.name / split)
        subjects = load_arrays(store / "visits" / split)["subject_id"].tolist()
        asked = [row for row in records.cohort(task) if row.subject in subjects]
        asked.sort(key=lambda row: subjects.index(row.subject))
        assert len(arrays["carry_offsets"]) == len(asked) + 1
        for query, (first, last) in zip(asked, itertools.pairwise(arrays["carry_offsets"].tolist()), strict=True):
            carried = [names[code] for code in arrays["carry_codes"][first:last]]
            stored = dict(zip(carried, arrays["carry_values"][first:last].tolist(), strict=True))
            assert len(stored) == len(carried), "a token twice"
            expected: dict[str, float] = {}
            if query.kind == "query":
                for code, summary in records.summaries(query.subject, query.prediction_us).items():
                    expected |= {f"{field}//{code}": number for field, number in zip(FIELDS, summary, strict=True)}
            assert sorted(stored) == sorted(expected), (task.name, query)
            for token, number in expected.items():
                field, code = token.split("//", 1)
                if field in ("SINCE", "COUNT"):
                    scales.setdefault(token, []).append((number, *stored[token]))
                    continue
                z = np.clip((number - np.mean(training[code])) / np.std(training[code]), -4, 4)
                np.testing.assert_allclose(stored[token][1], z, rtol=1e-4, atol=1e-5, err_msg=f"{token} {query}")
                if field != "MEAN":  # which may fall beside a tie of ranks by rounding
                    scales.setdefault(code, []).append((number, *stored[token]))
    for scale, triples in scales.items():  # one rising function of the raw number
        raw, rank, z = np.array(sorted(triples)).T
        for stored_number in (rank, z):
            assert np.all(np.isfinite(stored_number)), scale
            assert np.all(np.diff(stored_number) >= -1e-6), scale
            assert np.all((np.diff(raw) > 0) | (np.diff(stored_number) <= 1e-6)), scale


# --------------------------------------------------------------------------------------------------------- hand-counted


@cache
def hand_made() -> tuple[list[Row], list[TaskConfig], dict[int, str]]:
    """All hand-counted records as one data set, and all their tasks (equal ones once), to be prepared together."""
    rows = everything(EVERYTHING, codes=CODES, labs=LABS, start=us("1950-05-05"))
    rows += record(LAST, "0 A, 100 A")
    for subject, (_, _, text, _) in enumerate(HAND_COUNTED):
        rows += record(subject, text)
    tasks = [hand_task(subject) for subject in range(len(HAND_COUNTED))]
    splits = {subject: SPLITS[subject % 3] for subject in sorted({row.subject for row in rows})}
    return rows, list({task.name: task for task in tasks}.values()), splits


def hand_task(subject: int) -> TaskConfig:
    """Make the task of a hand-counted record, with the name of the first record that has the same."""
    settings_ = [case[1] for case in HAND_COUNTED]
    return a_task(f"task{settings_.index(settings_[subject])}", **settings_[subject])


HAND_VISITS = VisitsConfig(ignore=("IGN",))


@pytest.fixture(scope="module")
def hand_store() -> Iterator[Path]:
    rows, tasks, splits = hand_made()
    with scratch() as folder:
        data = write_meds(Path(folder) / "data", rows, splits=splits, shards=3, parents=PARENTS)
        prepare(data, Path(folder) / "out", study=study("visits.ignore=[IGN]"), tasks=tasks)
        yield Path(folder) / "out"


@cache
def true_records() -> Records:
    return hand_records(Records)


def hand_records(kind: type[Records]) -> Records:
    rows, tasks, _ = hand_made()
    return kind(rows, tasks, HAND_VISITS, parents=PARENTS)


def hand_count(subject: int) -> list[CohortRow]:
    rows = HAND_COUNTED[subject][3]
    return [CohortRow(subject, moment(i), moment(p), kind, days, cause) for i, p, kind, days, cause in rows]


@pytest.mark.parametrize("subject", range(len(HAND_COUNTED)), ids=[case[0] for case in HAND_COUNTED])
def test_oracle_agrees_with_hand_counts(subject: int) -> None:
    assert [row for row in true_records().cohort(hand_task(subject)) if row.subject == subject] == hand_count(subject)


@pytest.mark.parametrize("subject", range(len(HAND_COUNTED)), ids=[case[0] for case in HAND_COUNTED])
def test_store_agrees_with_hand_counts(subject: int, hand_store: Path) -> None:
    stored = [row for row, _ in stored_cohort(hand_store, hand_task(subject).name) if row.subject == subject]
    assert stored == hand_count(subject)


def test_every_task_agrees_on_every_record(hand_store: Path) -> None:
    _, tasks, splits = hand_made()
    records = true_records()
    for task in tasks:
        assert differences(hand_store, task, records, splits) == []
        check_arrays(hand_store, task, records)


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
    np.testing.assert_array_equal(gaps, [1.0, 0.25, 2.0])
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
    rows, tasks, splits = hand_made()
    few = [tasks[0], *(task for task in tasks if task.index.which == "every")]
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
    source = Path(__file__).parents[2] / "shared" / "data" / name / "data"
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


# ------------------------------------------------------------------------------------------------------ broken oracles


class PredictsAtTheEvent(Records):
    def exposed(self, moment: int, end: int, blanking: int) -> bool:
        return end >= moment + blanking


class BlanksExactlyNot(Records):
    def exposed(self, moment: int, end: int, blanking: int) -> bool:
        return end > moment and end >= moment + blanking


class CensorsFirst(Records):
    def event_counts(self, event: int, censored: int) -> bool:
        return event < censored


class CompetingFirst(Records):
    def precedence(self, cause: int) -> int:
        return -cause


class KeepsPrevalent(Records):
    def prevalent(self, event: int, index: int) -> bool:
        return False


class KeepsPrevalentAtTheIndex(Records):
    def prevalent(self, event: int, index: int) -> bool:
        return event < index


class TakesTheLastIndex(Records):
    def chosen(self, times: list[int], which: str) -> list[int]:
        return times[-1:] if which == "first" else times


class TakesEveryIndex(Records):
    def chosen(self, times: list[int], which: str) -> list[int]:
        return times


class ReplacesAnExcludedIndex(Records):
    def chosen(self, times: list[int], which: str) -> list[int]:
        return times

    def valid_indexes(self, subject: int, task: TaskConfig) -> list[int]:
        return super().chosen(super().valid_indexes(subject, task), task.index.which)


class StartsAtTheFirstVisitsStart(Records):
    def first_visit_moment(self, visit: Visit) -> int:
        return visit.start


class PredictsAtVisitStarts(Records):
    def visit_moment(self, visit: Visit) -> int:
        return visit.start if visit.start > visit.end - HOUR_US * 12 else visit.end


class LeavesVisitsUnderWayOut(Records):
    def visit_counts(self, visit: Visit, index: int) -> bool:
        return visit.start > index


class LetsVisitsWin(Records):
    def add_query(self, moments: dict[int, str], moment: int) -> None:
        moments.setdefault(moment, "query")


class AsksNoLandmark(Records):
    def moments(self, subject: int, task: TaskConfig, valid: list[int]) -> dict[int, str]:
        return super().moments(subject, task.model_copy(update={"landmarks": ()}), valid)


class BelongsToTheFirstIndex(Records):
    def owner(self, valid: list[int], moment: int) -> int:
        return min(valid)


class CutsAtTheNextIndex(Records):
    def censoring(self, subject: int, task: TaskConfig, index: int) -> int | None:
        ends = [other for other in self.indexes(subject, task) if other > index]
        return min(filter(None, [super().censoring(subject, task, index), *ends]), default=None)


class CensorsAfterTheIndexOnly(Records):
    def censors(self, time: int, index: int) -> bool:
        return time > index


class CensorsBeforeTheIndexToo(Records):
    def censors(self, time: int, index: int) -> bool:
        return True


class EndsWithTheOwnRecord(Records):
    def dataset_end(self, subject: int) -> int:
        return max(time for time, _ in self.timed(subject))


class EndsWithTheLastToken(Records):
    def last_event(self, subject: int) -> int | None:
        return max((time for time, _ in self.tokens(subject)), default=None)


class CensorsByNoCode(Records):
    def censoring(self, subject: int, task: TaskConfig, index: int) -> int | None:
        settings_ = task.censoring.model_copy(update={"code": None})
        return super().censoring(subject, task.model_copy(update={"censoring": settings_}), index)


class KeepsRowsAfterDeath(Records):
    def after_death(self, time: int, deaths: list[int]) -> bool:
        return False


class DropsTheDeathsOwnMoment(Records):
    def mended(self, rows: list[Row]) -> list[Row]:
        deaths = {row.time for row in rows if row.code == "MEDS_DEATH"}
        return [row for row in super().mended(rows) if row.time not in deaths or row.code == "MEDS_DEATH"]


class CensoringMakesVisits(Records):
    def silent(self, code: str) -> bool:
        return code != "CENS" and super().silent(code)


class IgnoredCodesMakeVisits(Records):
    def silent(self, code: str) -> bool:
        return code != "IGN" and super().silent(code)


class DeathMakesVisits(Records):
    def silent(self, code: str) -> bool:
        return code != "MEDS_DEATH" and super().silent(code)


class OutcomesMakeNoVisits(Records):
    def silent(self, code: str) -> bool:
        return code == "OUT" or super().silent(code)


class MatchesPrefixesExactly(Records):
    def matches(self, code: str, patterns: Any) -> bool:
        return super().matches(code, [pattern.removesuffix("*") for pattern in patterns])


class ClimbsOneStep(Records):
    def descends(self, code: str, ancestor: str) -> bool:
        return ancestor in self.parents.get(code, ())


MUTANTS = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Records) and kind is not Records
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[kind.__name__ for kind in MUTANTS])
def test_a_broken_rule_is_seen(mutant: type[Records], hand_store: Path) -> None:
    _, tasks, splits = hand_made()
    records = hand_records(mutant)
    assert any(differences(hand_store, task, records, splits) for task in tasks)


# --------------------------------------------------------------------------------------------------------- drawn tables


@st.composite
def tasks(draw: st.DrawFn, name: str) -> TaskConfig:
    """Draw a task over `meds_helpers.CODES`: any index, causes, censoring, landmarks and blanking."""
    dates = st.sampled_from(
        ["1969-12-31", "1970-01-01", "1970-01-02 06:00", "2020-02-29", "2020-03-01 12:00", "2020-03-03"]
    )
    steps = ["0d", "20min", "12h", "1d", "36h", "3d"]
    after = st.sampled_from(steps)
    codes = st.sampled_from(["IDX", "IDX", ["IDX", "DX//*"], "LAB//X", ["re:A|B"]])
    index = st.one_of(
        st.fixed_dictionaries({"code": codes, "which": st.sampled_from(["first", "every"]), "after": after}),
        st.fixed_dictionaries({"code": codes, "which": st.just("every")}),
        st.just({"first_visit": True}),
        st.just({"age": "50y"}),
        st.fixed_dictionaries({"date": dates}),
    )
    causes: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        [
            {"outcome": {"out": "OUT"}},
            {"outcome": {"out": "OUT"}, "competing": {"death": "MEDS_DEATH"}},
            {"outcome": {"a": "OUT2", "b": ["OUT", "DX//1"]}, "competing": {"c": "COMP", "death": "MEDS_DEATH"}},
            {"outcome": {"death": "MEDS_DEATH"}, "competing": {"c": ["COMP", "OUT*"]}},
            {"outcome": {"again": "IDX"}},
        ]
    )
    censoring: st.SearchStrategy[dict[str, Any]] = st.one_of(
        st.just({}),
        st.just({"code": "CENS"}),
        st.just({"code": ["CENS", "DX//2"]}),
        st.fixed_dictionaries({"date": dates}),
        st.just({"dataset_end": True}),
    )
    landmarks = draw(st.lists(after, unique=True, min_size=1, max_size=3))
    return a_task(
        name,
        index=draw(index),
        **draw(causes),
        censoring=draw(censoring),
        landmarks=sorted(landmarks, key=steps.index),
        blanking=draw(st.sampled_from(["0d", "0d", "20min", "12h", "1d"])),
    )


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
        prepare(source, store, study=config, tasks=some)
        for task in some:
            assert differences(store, task, records, splits) == []
            check_arrays(store, task, records)
            check_attrition(store, task, records)
            check_summaries(store, task, records, splits)


@settings(max_examples=40, deadline=None)
@given(**DRAWN)
def test_cohorts_are_those_of_plain_loops(data: DataSet, some: Any, cut: str, ignore: str, shards: int) -> None:
    check_drawn(data, some, cut, ignore, shards)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(**DRAWN)
def test_cohorts_are_those_of_plain_loops_at_length(
    data: DataSet, some: Any, cut: str, ignore: str, shards: int
) -> None:
    check_drawn(data, some, cut, ignore, shards)
