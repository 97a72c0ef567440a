"""Cohorts of drawn records and drawn tasks: the store against plain loops over the raw rows, row by row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import TaskConfig, load_study
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.events import STATIC, Events
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.visits import make_record
from helpers.cohorts import check_arrays, check_attrition, check_summaries, differences, study
from helpers.drawn_tasks import tasks
from helpers.meds import DAY_US, Row, data_sets, record, scratch, us, write_meds
from helpers.settings import examples
from reference.records import Records

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
