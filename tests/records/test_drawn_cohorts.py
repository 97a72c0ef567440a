"""Cohorts of drawn records and drawn tasks: the store against plain loops over the raw rows, row by row."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ehrsequencing.config import TaskConfig
from ehrsequencing.records.prepare import prepare
from helpers.cohorts import check_arrays, check_attrition, check_summaries, differences, study
from helpers.drawn_tasks import tasks
from helpers.meds import Row, data_sets, scratch, write_meds
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


@settings(max_examples=15, deadline=None)
@given(**DRAWN)
def test_cohorts_are_those_of_plain_loops(data: DataSet, some: Any, cut: str, ignore: str, shards: int) -> None:
    check_drawn(data, some, cut, ignore, shards)
