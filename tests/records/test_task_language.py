"""What tasks can say beyond index, outcome and censoring: values, eligibility, outcomes that recur; and old tasks.

Hand-counted records, with the oracle and the store.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.config import TaskConfig, load_study
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.visits import make_record
from helpers.cohorts import Case, HandMade, Q, V, check_arrays, check_attrition, differences
from helpers.drawn_tasks import tasks
from helpers.meds import DAY_US, Row, record, us
from reference.records import Records


def must(*codes: Any, **more: Any) -> dict[str, Any]:
    return {"eligibility": {"must_have": list(codes), **more}}


def must_not(*codes: Any) -> dict[str, Any]:
    return {"eligibility": {"must_not_have": list(codes)}}


AGAIN = {"recurrent": True}
CASES: list[Case] = [
    # ---- by value
    ("value", {"outcome": {"high": "LAB//X >= 6.5"}}, "1 IDX, 2 LAB//X=6.4, 3 LAB//X, 4 LAB//X=6.5, 5 LAB//X=9",
     [(1, 1, Q, 3, 1), (1, 2, V, 2, 1), (1, 3, V, 1, 1)]),
    ("value as stored", {"outcome": {"high": "LAB//X >= 6.1"}}, "1 IDX, 2 LAB//X=6.1, 4 A", [(1, 1, Q, 1, 1)]),
    ("not above itself", {"outcome": {"high": "LAB//X > 6.1"}}, "1 IDX, 2 LAB//X=6.1, 4 A",
     [(1, 1, Q, 3, 0), (1, 2, V, 2, 0)]),
    ("below", {"outcome": {"low": "LAB//X < -1"}}, "1 IDX, 2 LAB//X=-1, 3 LAB//X=-1.5",
     [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("at most", {"outcome": {"low": "LAB//X <= 0"}}, "1 IDX, 2 LAB//X=0.5, 3 LAB//X=0",
     [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("equal", {"outcome": {"it": "LAB//X = 2"}}, "1 IDX, 2 LAB//X=3, 3 LAB//X=2", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("value of any code", {"outcome": {"h": "LAB//* > 5"}}, "1 IDX, 2 LAB//Y=6, 3 LAB//X=7", [(1, 1, Q, 1, 1)]),
    ("value by regex", {"outcome": {"h": "re:LAB//[XZ] > 5"}}, "1 IDX, 2 LAB//Y=6, 3 LAB//X=7",
     [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("value by descent", {"outcome": {"h": "under:LABS > 5"}}, "1 IDX, 2 LAB//X=6, 3 LAB//Y=7",
     [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("value or code", {"outcome": {"h": ["LAB//X > 5", "OUT"]}}, "1 IDX, 2 LAB//X=5, 3 OUT, 4 LAB//X=6",
     [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("index by value", {"index": {"code": "LAB//X >= 3"}}, "0 LAB//X=2, 1 LAB//X=3, 2 A, 3 OUT",
     [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    # ---- must have
    ("had it", must("A"), "0 A, 1 IDX, 2 B, 3 OUT", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("had it at the index", must("A"), "1 IDX, 1 A, 2 B, 3 OUT", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("has it later", must("A"), "1 IDX, 1.25 A, 2 B, 3 OUT", []),
    ("one of a list", must(["A", "B"]), "0 B, 1 IDX, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("each of two", must("A", "B"), "0 A, 0 B, 1 IDX, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("one of two", must("A", "B"), "0 B, 1 IDX, 3 OUT", []),
    ("just within", must({"code": "A", "within": "2d"}), "0 A, 2 IDX, 3 OUT", [(2, 2, Q, 1, 1)]),
    ("just too early", must({"code": "A", "within": "2d"}), "0 A, 2.25 IDX, 3 OUT", []),
    ("twice within", must({"code": "A", "within": "2d", "count": 2}), "0 A, 1 A, 2 IDX, 3 OUT", [(2, 2, Q, 1, 1)]),
    ("once only", must({"code": "A", "within": "2d", "count": 2}), "-1 A, 1 A, 2 IDX, 3 OUT", []),
    ("by value", must("LAB//X > 5"), "0 LAB//X=5, 1 IDX, 3 OUT", []),
    ("by value, high", must("LAB//X > 5"), "0 LAB//X=6, 1 IDX, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("by descent", must("under:ROOT"), "0 DX//1, 1 IDX, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("without a time", must("SEX//F"), "- SEX//F, 1 IDX, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("without a time, within", must({"code": "SEX//F", "within": "9y"}), "- SEX//F, 1 IDX, 3 OUT", []),
    # ---- must not have
    ("never had it", must_not("A"), "1 IDX, 2 A, 3 OUT", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("had it, alas", must_not("A"), "0 A, 1 IDX, 2 B, 3 OUT", []),
    ("had it long ago", must_not({"code": "A", "within": "1d"}), "0 A, 2 IDX, 3 OUT", [(2, 2, Q, 1, 1)]),
    ("had it just now", must_not({"code": "A", "within": "2d"}), "0 A, 2 IDX, 3 OUT", []),
    ("neither of two", must_not("A", "B"), "0 B, 2 IDX, 3 OUT", []),
    # ---- history and age
    ("history", {"eligibility": {"history": "2d"}}, "0 A, 2 IDX, 3 OUT", [(2, 2, Q, 1, 1)]),
    ("history too short", {"eligibility": {"history": "2d"}}, "0 A, 1.75 IDX, 3 OUT", []),
    ("birth is no history", {"eligibility": {"history": "2d"}}, "-9 MEDS_BIRTH, 0 A, 1 IDX, 3 OUT", []),
    ("ignored codes are history", {"eligibility": {"history": "2d"}}, "-1 IGN, 0 A, 1 IDX, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("just fifty", {"eligibility": {"min_age": "50y"}}, "-18261.5 MEDS_BIRTH, 1 IDX, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("almost fifty", {"eligibility": {"min_age": "50y"}}, "-18261.25 MEDS_BIRTH, 1 IDX, 3 OUT", []),
    ("no longer younger", {"eligibility": {"max_age": "50y"}}, "-18261.5 MEDS_BIRTH, 1 IDX, 3 OUT", []),
    ("still younger", {"eligibility": {"max_age": "50y"}}, "-18261.25 MEDS_BIRTH, 1 IDX, 3 OUT", [(1, 1, Q, 2, 1)]),
    ("unknown age", {"eligibility": {"max_age": "50y"}}, "1 IDX, 3 OUT", []),
    ("impossible age", {"eligibility": {"min_age": "50y"}}, "-43900 MEDS_BIRTH, 1 IDX, 3 OUT", []),
    ("not yet born", {"index": {"date": "2020-02-28"}, "eligibility": {"max_age": "50y"}}, "2 MEDS_BIRTH, 3 A, 4 OUT",
     []),
    # ---- with the index rule
    ("no other index instead", must("A"), "1 IDX, 2 A, 3 IDX, 4 B, 5 OUT", []),
    ("every eligible index", {"index": {"code": "IDX", "which": "every"}, **must("A")},
     "1 IDX, 2 A, 3 IDX, 4 B, 5 OUT", [(3, 3, Q, 2, 1), (3, 4, V, 1, 1)]),
    ("eligible once only", {"index": {"code": "IDX", "which": "every"}, **must_not("A")},
     "1 IDX, 2 A, 3 IDX, 4 B, 5 OUT", [(1, 1, Q, 4, 1), (1, 2, V, 3, 1), (1, 3, V, 2, 1), (1, 4, V, 1, 1)]),
    ("judged after `after`", {"index": {"code": "IDX", "after": "48h"}, **must("A")}, "1 IDX, 2 A, 4 B, 5 OUT",
     [(3, 3, Q, 2, 1), (3, 4, V, 1, 1)]),
    # ---- outcomes that recur
    ("again", AGAIN, "1 IDX, 2 OUT, 3 A, 4 OUT, 5 A",
     [(1, 1, Q, 1, 1), (1, 2, V, 2, 1), (1, 3, V, 1, 1), (1, 4, V, 1, 0)]),
    ("again, had it before", AGAIN, "0 OUT, 1 IDX, 2 A, 3 OUT", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("again, at the index", AGAIN, "1 OUT, 1 IDX, 2 A, 3 OUT", [(1, 1, Q, 2, 1), (1, 2, V, 1, 1)]),
    ("again, within a visit", AGAIN, "1 IDX, 3 A, 3.25 OUT, 3.5 B, 5 OUT", [(1, 1, Q, 2.25, 1), (1, 3.5, V, 1.5, 1)]),
    ("again, until the competing event", {**AGAIN, "competing": {"c": "COMP"}}, "1 IDX, 2 OUT, 3 COMP, 4 OUT, 5 A",
     [(1, 1, Q, 1, 1), (1, 2, V, 1, 2)]),
    ("again, competing before", {**AGAIN, "competing": {"c": "COMP"}}, "0 COMP, 1 IDX, 2 A, 3 OUT", []),
    ("again, at the competing event", {**AGAIN, "competing": {"c": "COMP"}}, "1 IDX, 3 OUT, 3 COMP",
     [(1, 1, Q, 2, 1)]),
    ("again, censored", {**AGAIN, "censoring": {"code": "CENS"}}, "1 IDX, 2 OUT, 3 CENS, 4 OUT",
     [(1, 1, Q, 1, 1), (1, 2, V, 1, 0)]),
    ("again, with blanking", {**AGAIN, "blanking": "36h"}, "1 IDX, 2 OUT, 4 A, 6 OUT, 9 A",
     [(1, 2, V, 4, 1), (1, 4, V, 2, 1), (1, 6, V, 3, 0)]),
    ("again, another cause", {**AGAIN, "outcome": {"a": "OUT", "b": "OUT2"}}, "1 IDX, 2 OUT2, 3 OUT, 3 OUT2, 4 A",
     [(1, 1, Q, 1, 2), (1, 2, V, 1, 1), (1, 3, V, 1, 0)]),
    ("again, at landmarks", {**AGAIN, "landmarks": ["0d", "2d", "4d"]}, "1 IDX, 2.5 OUT, 3.5 OUT, 6 A",
     [(1, 1, Q, 1.5, 1), (1, 2.5, V, 1, 1), (1, 3, Q, 0.5, 1), (1, 3.5, V, 2.5, 0), (1, 5, Q, 1, 0)]),
]  # fmt: skip
HAND = HandMade(CASES)


@pytest.mark.parametrize("subject", range(len(CASES)), ids=[case[0] for case in CASES])
def test_the_oracle_agrees_with_hand_counts(subject: int) -> None:
    """And the store with the oracle, on every record: the next test."""
    found = HAND.truth.cohort(HAND.task(subject))
    assert [row for row in found if row.subject == subject] == HAND.count(subject)


def test_every_task_agrees_on_every_record(hand_store: Path) -> None:
    for task in HAND.tasks:
        assert differences(hand_store, task, HAND.truth, HAND.splits) == []
        check_arrays(hand_store, task, HAND.truth)
        check_attrition(hand_store, task, HAND.truth)


# ---- nothing of the future -------------------------------------------------------------------------------------------


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


def _events(rows: list[Row]) -> Any:
    from ehrsequencing.records.events import STATIC, Events

    codes = sorted({row.code for row in rows})
    return Events(
        subject_id=np.array([row.subject for row in rows], dtype=np.int64),
        time_us=np.array([STATIC if row.time is None else row.time for row in rows], dtype=np.int64),
        code=np.array([codes.index(row.code) for row in rows], dtype=np.int32),
        codes=tuple(codes),
        value=np.array([np.nan if row.value is None else row.value for row in rows], dtype=np.float32),
    )
