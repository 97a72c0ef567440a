"""Cohorts in the prepared store against plain loops over raw rows: who, from when, which event, after how long.

Hand-counted records: the oracle and the store must both agree with the hand. `test_drawn_cohorts.py` compares them on
drawn tables.
"""

from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.records.prepare import prepare
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
)
from helpers.hand_counted import BEYOND, HAND_COUNTED
from helpers.meds import CODES, LABS, SPLITS, everything, load_arrays, record, stored_subjects, us, write_meds
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


@pytest.mark.parametrize("setting", ["values.carry=false", "values.mode=none"])
def test_nothing_is_carried_when_it_is_switched_off(setting: str, tmp_path: Path) -> None:
    rows = everything(EVERYTHING, codes=CODES, labs=LABS, start=us("1950-05-05"))
    data = write_meds(tmp_path / "data", rows, splits={EVERYTHING: "train"})
    prepare(data, tmp_path / "out", study=study(setting), tasks=[a_task(index={"code": "LAB//Y"})])
    arrays = load_arrays(tmp_path / "out" / "tasks" / "t" / "train")
    assert arrays["is_query"].any()
    assert len(arrays["carry_codes"]) == 0


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
