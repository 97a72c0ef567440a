"""Cohorts of drawn records and drawn tasks: the store against plain loops over the raw rows, row by row."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ehrsequencing.config import TaskConfig
from ehrsequencing.records.prepared import prepare
from helpers.cohorts import a_task, check_arrays, check_attrition, check_summaries, differences, study
from helpers.meds import Row, data_sets, scratch, write_meds
from reference.records import Records


@st.composite
def eligibility(draw: st.DrawFn) -> dict[str, Any]:
    """Draw criteria that many of the drawn records fulfil."""
    spans = st.sampled_from(["20min", "12h", "1d", "2d", "3d"])
    code = st.sampled_from(["A", "B", "SEX//F", "LAB//X > 0", "DX//*", "OUT", ["A", "IDX"], "MEDS_BIRTH"])
    window = st.fixed_dictionaries({"code": code}, optional={"within": spans, "count": st.integers(1, 2)})
    codes = st.lists(code | window, max_size=2)
    rules: dict[str, st.SearchStrategy[Any]] = {
        "history": spans, "min_age": st.just("50y"), "max_age": st.sampled_from(["50.01y", "51y"]),
        "must_have": codes, "must_not_have": codes,
    }  # fmt: skip
    return draw(st.fixed_dictionaries({}, optional=rules))


@st.composite
def tasks(draw: st.DrawFn, name: str) -> TaskConfig:
    """Draw a task over `helpers.meds.CODES`: any index, causes, censoring, landmarks and blanking."""
    dates = st.sampled_from(
        ["1969-12-31", "1970-01-01", "1970-01-02 06:00", "2020-02-29", "2020-03-01 12:00", "2020-03-03"]
    )
    steps = ["0d", "20min", "12h", "1d", "36h", "3d"]
    after = st.sampled_from(steps)
    codes = st.sampled_from(["IDX", "IDX", ["IDX", "DX//*"], "LAB//X", ["re:A|B"], "re:LAB//. = 2.5"])
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
            {"outcome": {"out": "OUT"}, "recurrent": True},
            {"outcome": {"a": ["OUT", "IDX"], "b": "OUT2"}, "competing": {"c": ["COMP", "OUT"]}, "recurrent": True},
            {"outcome": {"high": "LAB//* >= 2.5"}, "competing": {"low": ["LAB//X < 0", "DX//*"]}},
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
        eligibility=draw(st.none() | eligibility()),
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
