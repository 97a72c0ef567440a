"""Subgroups and rates of the inputs, by plain loops and by hand."""

from dataclasses import replace

import numpy as np
import pytest

from ehrsequencing.config import load_study
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.context import input_rates
from ehrsequencing.evaluation.subgroups import NOT_RECORDED, groups_of_rows, subgroup_rows
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary
from helpers.evaluation import split
from helpers.metric_table import metric_table


def tiny_timelines(static: list[list[str]], vocabulary: Vocabulary) -> Timelines:
    codes = [vocabulary.index.get(code, 1) for own in static for code in own]
    n, none = len(static), np.zeros(0, dtype=np.int64)
    return Timelines(
        subject_id=np.arange(n), birth_us=np.zeros(n, np.int64), subject_offsets=np.zeros(n + 1, np.int64),
        start_us=none, end_us=none, age_years=none.astype(np.float32), delta_days=none.astype(np.float32),
        visit_offsets=np.zeros(1, np.int64), codes=none.astype(np.int32), values=np.zeros((0, 2), np.float32),
        static_codes=np.array(codes, dtype=np.int32),
        static_offsets=np.cumsum([0, *(len(own) for own in static)]).astype(np.int64),
    )  # fmt: skip


def tiny_rows(ages: list[float]) -> TaskRows:
    n = len(ages)
    zeros = np.zeros(n, dtype=np.int64)
    return TaskRows(
        row_offsets=np.arange(n + 1), prediction_us=zeros, index_us=zeros, is_query=np.ones(n, bool),
        visits_before=zeros.astype(np.int32), age_years=np.array(ages, np.float32),
        delta_days=zeros.astype(np.float32), unfinished_codes=zeros.astype(np.int32), duration_days=np.ones(n),
        entry_days=zeros.astype(np.float32), cause=zeros.astype(np.int8),
        carry_offsets=np.zeros(n + 1, np.int64), carry_codes=np.zeros(0, np.int32),
        carry_values=np.zeros((0, 2), np.float32),
    )  # fmt: skip


def test_groups_by_hand() -> None:
    codes = ("GENDER//F", "GENDER//M", "RACE//A", "RACE//B", "SMOKER", "TRIAL", "[D]Chest pain")
    none = np.zeros(0)
    vocabulary = Vocabulary(
        (), codes, np.zeros(len(codes), bool), none.reshape(0, 129), none, none, load_study(None, []).values
    )
    timelines = tiny_timelines(
        [["GENDER//F", "RACE//A", "TRIAL"], ["GENDER//M", "SMOKER", "TRIAL", "[D]Chest pain"],
         ["GENDER//F", "RACE//B", "TRIAL", "[D]Chest pain"],
         ["GENDER//F", "RACE//A", "RACE//B", "SMOKER", "[UNK]", "TRIAL"]],
        vocabulary,
    )  # fmt: skip
    records, every = TaskRecords(timelines, tiny_rows([42.0, 49.9, 50.0, np.nan])), np.arange(4)
    groups = groups_of_rows(records, vocabulary, chosen=every, kinds=["sex", "age", "static"])
    assert {name: levels.tolist() for name, levels in groups.items()} == {
        "age": ["40-49", "40-49", "50-59", "unknown"],
        "sex": ["F", "M", "F", "F"],
        "RACE": ["A", NOT_RECORDED, "B", "A"],
        "SMOKER": ["no", "yes", "no", "yes"],
        "[D]Chest pain": ["no", "yes", "yes", "no"],
    }  # TRIAL, which everybody is in, is no group
    some = groups_of_rows(records, vocabulary, chosen=np.array([3, 0, 0]), kinds=["static"])
    assert {name: levels.tolist() for name, levels in some.items()} == {"SMOKER": ["yes", "no", "no"]}
    assert list(groups_of_rows(records, vocabulary, chosen=every, kinds=["sex"])) == ["sex"]


def test_a_subgroup_is_judged_by_its_own_rows() -> None:
    rng = np.random.default_rng(0)
    n, horizons = 600, np.array([30.0, 60.0])
    group = np.where(np.arange(n) % 3 == 0, "a", "b")
    duration = np.ceil(rng.exponential(np.where(group == "a", 40, 90)))
    cause = rng.integers(0, 3, n)
    risk = rng.uniform(0.01, 0.45, (n, 2, 2)).cumsum(axis=2)
    risk /= np.maximum(risk.sum(axis=1, keepdims=True), 1.0)
    scope = Comparison(0.0, np.arange(n), duration, cause, horizons, {"m": risk}, draw_subjects(n, 50, 0))
    rows = subgroup_rows(scope, {"kind": group}, ["x", "y"], model="m")
    assert len(rows) == 2 * 2 * 2
    whole = metric_table(duration, cause, risk, horizons)
    for row in rows:
        inside = group == row["level"]
        e, h = ["x", "y"].index(row["cause"]), horizons.tolist().index(row["horizon_days"])
        table = metric_table(duration[inside], cause[inside], risk[inside], horizons)
        assert row["n"] == inside.sum()
        assert row["events"] == int(((cause == e + 1) & (duration <= horizons[h]) & inside).sum())
        for name in ("auc", "brier", "oe"):
            assert row[name]["value"] == pytest.approx(table[name][e, h])
            assert row[name]["value"] != pytest.approx(whole[name][e, h])
            assert row[name]["low"] <= row[name]["value"] <= row[name]["high"]


def test_input_rates_are_those_of_plain_loops(prepared: Prepared) -> None:
    timelines, rows = split(prepared, "tuning").timelines, split(prepared, "tuning").rows
    codes = np.array(timelines.codes)
    codes[::17] = 1  # some are unknown
    timelines = replace(timelines, codes=codes)
    records = TaskRecords(timelines, rows)
    unknown = numeric = tokens = visits = subjects = 0
    for s in range(len(timelines)):
        own = slice(rows.row_offsets[s], rows.row_offsets[s + 1])
        if own.start == own.stop:
            continue
        subjects += 1
        first = timelines.subject_offsets[s]
        for v in range(first, first + rows.visits_before[own.stop - 1]):
            visits += 1
            for k in range(timelines.visit_offsets[v], timelines.visit_offsets[v + 1]):
                tokens += 1
                unknown += codes[k] < prepared.vocabulary.n_unknown
                numeric += not np.isnan(timelines.values[k, 0])
    expected = {
        "subjects": subjects, "prediction_times": len(rows), "unknown_token_rate": unknown / tokens,
        "numeric_value_rate": numeric / tokens, "codes_per_visit": tokens / visits,
        "visits_per_subject": visits / subjects, "unknown_age_rate": float(np.isnan(rows.age_years).mean()),
        "no_visit_before_rate": float((np.asarray(rows.visits_before) == 0).mean()),
    }  # fmt: skip
    assert input_rates(records, prepared.vocabulary) == pytest.approx(expected)
    assert 0 < expected["unknown_token_rate"] < 0.2
