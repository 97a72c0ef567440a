"""Hypothesis strategies that draw tasks: index, causes, censoring, landmarks, blanking, eligibility."""

from typing import Any

from hypothesis import strategies as st

from ehrsequencing.config import TaskConfig
from helpers.cohorts import a_task


@st.composite
def eligibility(draw: st.DrawFn) -> dict[str, Any]:
    """Draw criteria that many of the drawn records fulfil."""
    spans = st.sampled_from(["20min", "12h", "1d", "2d", "3d"])
    code = st.sampled_from(["A", "B", "SEX//F", "LAB//X > 0", "DX//*", "OUT", ["A", "IDX"], "MEDS_BIRTH"])
    window = st.fixed_dictionaries({"code": code}, optional={"within": spans, "count": st.integers(1, 2)})
    codes = st.lists(code | window, max_size=2)
    rules: dict[str, st.SearchStrategy[Any]] = {
        "history": spans,
        "min_age": st.just("50y"),
        "max_age": st.sampled_from(["50.01y", "51y"]),
        "must_have": codes,
        "must_not_have": codes,
    }
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
        st.fixed_dictionaries({"age": st.sampled_from(["49y", "50y", "51y"])}, optional={"code": st.just("CENS")}),
        st.just({"dataset_end": True, "code": "CENS"}),
        st.fixed_dictionaries(
            {"code": st.sampled_from(["CENS", ["CENS", "DX//2"], ["CENS", "B"]]), "start": st.sampled_from(["B", "A"])},
            optional={"dataset_end": st.booleans()},
        ),
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
