"""Marks of missing values, units, and times in which an outcome cannot have happened."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ehrsequencing.config import TaskConfig, load_study
from ehrsequencing.records.check import check_data
from ehrsequencing.records.follow_up import silent_times
from ehrsequencing.records.scales import canonical_unit, repeated_far_away
from helpers.cohorts import a_task
from helpers.meds import Row, us, write_meds

NORMAL = np.round(np.random.default_rng(0).lognormal(1, 0.4, 400), 1)


@given(st.sampled_from([999.0, 9999.0, -1.0, -99.0]), st.integers(2, 200))
def test_a_mark_among_values_is_found_and_alone(mark: float, n: int) -> None:
    assert repeated_far_away(np.r_[NORMAL, [mark] * n]) == [mark]


@pytest.mark.parametrize(
    "value",
    [
        NORMAL,
        np.maximum(NORMAL, 2.0),  # a limit of detection
        np.minimum(NORMAL, 3.0),  # a cap of what is reported
        np.r_[NORMAL, 9999.0],  # once: an error of typing
        np.r_[NORMAL - 3, [-1.0] * 50],  # a value like others
        np.array([1.0, 2.0, 250.0, 250.0]),  # too few to know a range
    ],
    ids=["plain", "limit", "cap", "once", "negative", "few"],
)
def test_no_mark_is_found_where_there_is_none(value: Any) -> None:
    assert repeated_far_away(value) == []


def rows() -> list[Row]:
    out = []
    for s in range(60):
        for day in range(6):
            mark = 9999.0 if (s + day) % 3 == 0 else 1.0 + (s * 7 + day) % 13 / 10
            time = us("2015-01-01") + (s + 100 * day) * 86_400_000_000
            out += [Row(s, time, "LAB//TSH//mIU/L" if s % 2 else "LAB//TSH//uIU/mL", mark)]
    return out


def test_check_names_marks_and_units_and_settings_settle_them(tmp_path: Path) -> None:
    data = write_meds(tmp_path / "data", rows(), splits=dict.fromkeys(range(60), "train"))
    told = " ".join(check_data(data, study=load_study(None), tasks=[]).facts["warnings"])
    assert "LAB//TSH//mIU/L: 9999 (33% of its numbers)" in told
    assert "LAB//TSH in uIU/mL 50%, mIU/L 50% (some are equal)" in told or "mIU/L 50%, uIU/mL 50%" in told
    settled = check_data(data, study=load_study(None, ["values.missing=[9999]", "values.units=join"]), tasks=[])
    assert settled.facts["warnings"] == []
    assert settled.fixes["missing_value"] == 120
    assert settled.facts["codes"]["all"] == 1


def test_only_known_spellings_are_joined() -> None:
    assert canonical_unit("LOINC//777-3//K/uL") == canonical_unit("LOINC//777-3//10*9/L")
    assert canonical_unit("LOINC//2160-0//mg/dL") != canonical_unit("LOINC//2160-0//umol/L")
    assert canonical_unit("ICD10CM//I50.1") == "ICD10CM//I50.1"


def followed(first: float, last: float) -> tuple[Any, Any, Any]:
    """People who begin over six years, at a constant rate of an event that can happen between two days only."""
    rng = np.random.default_rng(4)
    start, days = rng.uniform(0, 2190, 600), np.full(600, 730.0)
    when = rng.exponential(1500, 600)
    happens = (when < days) & (start + when > first) & (start + when < last)
    return start, np.where(happens, when, days), happens


@pytest.mark.parametrize(
    ("first", "last", "sides"), [(0, 9e9, []), (1200, 9e9, [True]), (0, 1500, [False]), (1200, 1900, [True, False])]
)
def test_a_time_without_events_is_silent_if_many_are_expected(first: float, last: float, sides: list[bool]) -> None:
    assert [one.before for one in silent_times(*followed(first, last))] == sides


def test_one_origin_of_all_is_no_calendar() -> None:
    _, days, happens = followed(0, 9e9)
    late = happens & (days > 300)
    assert silent_times(np.zeros(600), days, late) == []


def test_check_names_the_codes_that_end_there(tmp_path: Path) -> None:
    start, days, happens = followed(1200, 9e9)
    told: list[Row] = []
    for s in range(600):
        begin = us("2010-01-01") + int(start[s]) * 86_400_000_000
        told += [
            Row(s, begin, "IDX"),
            Row(s, begin + int(days[s]) * 86_400_000_000 + 1, "ICD10//I50" if happens[s] else "B"),
        ]
        told += [Row(s, begin + 1, "ICD9//428")] if start[s] < 1200 else []
    data = write_meds(tmp_path / "data", told, splits=dict.fromkeys(range(600), "train"))
    task: TaskConfig = a_task(outcome={"heart": "ICD10//I50"}, censoring={"dataset_end": True}, horizons=["1y"])
    said = [
        text for text in check_data(data, study=load_study(None), tasks=[task]).tasks[0].warnings if "begins" in text
    ]
    assert len(said) == 1
    assert "The outcome heart begins in 2013-04" in said[0]
    assert said[0].endswith("Codes that end there: ICD9//428.")
