"""Cohorts in the prepared store against plain loops: what the test files about tasks share."""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from hypothesis import strategies as st

from ehrsequencing.config import StudyConfig, TaskConfig, VisitsConfig, load_study, validated
from ehrsequencing.records.prepare import prepare
from helpers.meds import (
    CODES,
    DAY_US,
    LABS,
    SPLITS,
    STARTS,
    YEAR_US,
    Row,
    everything,
    load_arrays,
    record,
    scratch,
    token_names,
    us,
    write_meds,
)
from reference.records import CohortRow, Records

EVERYTHING = 900  # the subject with all codes, long before the others
LAST = 901  # the subject with the data set's last event, on day 100
PARENTS = {"DX//1": ["MIDDLE"], "MIDDLE": ["ROOT", "OTHER"], "DX//2": ["OTHER"], "ROOT": [], "LAB//Y": ["LABS"]}

# What it is about; task (index, outcome … as in a task file; outcome OUT and index IDX unless given); record; its rows
# as (index day, prediction day, kind, days to the end, cause). Day 0 is 2020-02-27; visits by day; IGN ignored.
Case = tuple[str, dict[str, Any], str, list[tuple[float, float, str, float, int]]]
Q, V = "query", "visit"


def study(*more: str) -> StudyConfig:
    return load_study(None, ["vocabulary.min_subjects=1", *more])


def a_task(name: str = "t", **settings_: Any) -> TaskConfig:
    given_ = {"name": name, "index": {"code": "IDX"}, "outcome": {"out": "OUT"}, "horizons": ["30d"], **settings_}
    return validated(TaskConfig, given_, where="test")


def moment(day: float) -> int:
    return STARTS[1] + round(day * DAY_US)


@dataclass(frozen=True)
class HandMade:
    """Hand-counted records as one data set, and all their tasks (equal ones once), to be prepared together."""

    cases: Sequence[Case]

    @cached_property
    def rows(self) -> list[Row]:
        rows = everything(EVERYTHING, codes=CODES, labs=LABS, start=us("1950-05-05")) + record(LAST, "0 A, 100 A")
        return rows + [row for subject, case in enumerate(self.cases) for row in record(subject, case[2])]

    @cached_property
    def tasks(self) -> list[TaskConfig]:
        return list({task.name: task for task in map(self.task, range(len(self.cases)))}.values())

    @cached_property
    def splits(self) -> dict[int, str]:
        return {subject: SPLITS[subject % 3] for subject in sorted({row.subject for row in self.rows})}

    def task(self, subject: int) -> TaskConfig:
        """Make the task of a record, with the name of the first record that has the same."""
        settings_ = [case[1] for case in self.cases]
        return a_task(f"task{settings_.index(settings_[subject])}", **settings_[subject])

    def records(self, kind: type[Records] = Records) -> Records:
        return kind(self.rows, self.tasks, VisitsConfig(ignore=("IGN",)), parents=PARENTS)

    @cached_property
    def truth(self) -> Records:
        return self.records()

    def count(self, subject: int) -> list[CohortRow]:
        """What was counted by hand."""
        rows = self.cases[subject][3]
        return [CohortRow(subject, moment(i), moment(p), kind, days, cause) for i, p, kind, days, cause in rows]

    @contextmanager
    def prepared(self) -> Iterator[Path]:
        with scratch() as folder:
            data = write_meds(Path(folder) / "data", self.rows, splits=self.splits, shards=3, parents=PARENTS)
            prepare(data, Path(folder) / "out", study=study("visits.ignore=[IGN]"), tasks=self.tasks, allow_empty=True)
            yield Path(folder) / "out"


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
    """Compare the arrays that training reads with the oracle: labels, and what a query knows of time and its visit."""
    cohort, names = records.cohort(task), token_names(store)
    for split in SPLITS:
        visits_of = load_arrays(store / "visits" / split)
        subjects = visits_of["subject_id"].tolist()
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
            for row, codes, before in zip(expected, arrays["unfinished_codes"][at], visits, strict=True):
                want_codes = [code for code, _ in records.unfinished(subject, row.prediction_us)]
                assert codes == (len(want_codes) if row.kind == "query" else 0), (task.name, subject, row)
                first = visits_of["visit_offsets"][visits_of["subject_offsets"][n] + len(before)]
                got = [names[token] for token in visits_of["codes"][first : first + codes]]
                assert all(code in want_codes for code in got if not code.startswith("[UNK")), (task.name, subject, row)
            assert np.all(arrays["entry_days"][at] == task.blanking)
            birth = records.birth(subject)
            for got_age, got_gap, row in zip(arrays["age_years"][at], arrays["delta_days"][at], expected, strict=True):
                if row.kind == "visit":
                    continue  # a visit has its own age and gap, with the visits
                age = np.nan if birth is None else (row.prediction_us - birth) / YEAR_US
                known = records.last_known(subject, row.prediction_us)
                gap = 0.0 if known is None else (row.prediction_us - known) / DAY_US
                np.testing.assert_array_equal(got_age, np.float32(np.nan if age > 120 or age < 0 else age))
                np.testing.assert_array_equal(got_gap, np.float32(gap))


def check_attrition(store: Path, task: TaskConfig, records: Records) -> None:
    """Compare the counts of `attrition.json`, step by step."""
    attrition = json.loads((store / "tasks" / task.name / "attrition.json").read_text(encoding="utf-8"))
    flow, rows = records.flow(task), records.cohort(task)
    assert [(step["subjects"], step["indexes"]) for step in attrition["steps"]] == flow
    lost = [before[0] - after[0] for before, after in itertools.pairwise(flow)]
    assert [step["excluded"] for step in attrition["steps"]] == [0, *lost]
    assert attrition["prediction_times"] == len(rows)
    assert attrition["queries"] == sum(row.kind == "query" for row in rows)
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
