"""`ehrseq check`: facts counted by hand, fixes as `prepare` counts them, every refusal at its place, fair warnings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

from ehrsequencing.config import StudyConfig, TaskConfig, load_study
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.records.check import _concordance, _population, check_data, needed_events
from ehrsequencing.records.follow_up import silent_times
from ehrsequencing.records.scales import canonical_unit, repeated_far_away
from helpers.cohorts import a_task
from helpers.command_line import ehrseq
from helpers.meds import DAY_US, Row, record, us, write_meds

START = us("2020-01-01")
TASK: dict[str, Any] = {
    "name": "t",
    "index": {"code": "A"},
    "outcome": {"death": ["MEDS_DEATH"]},
    "competing": {"transplant": ["TX"]},
    "censoring": {"code": "END"},
    "horizons": ["10d", "30d", "1y"],
}


def task_of(**changes: Any) -> TaskConfig:
    return TaskConfig.model_validate(TASK | changes)


def write(folder: Path, *texts: str, held_out: Sequence[str] = (), **options: Any) -> Path:
    """Training subjects with these records, and held-out ones."""
    rows = [row for s, text in enumerate([*texts, *held_out]) for row in record(s, text, start=START)]
    splits = {s: "train" if s < len(texts) else "held_out" for s in range(len(texts) + len(held_out))}
    return write_meds(folder, rows, splits=splits, **options)


def checked(data: Path, *settings: str, task: TaskConfig | None = None) -> dict[str, Any]:
    """What `check_data` finds, as JSON holds it."""
    found = check_data(data, study=load_study(None, settings), tasks=[task] if task else [])
    read_back: dict[str, Any] = json.loads(json.dumps(found.as_json(), allow_nan=False))
    return read_back


@pytest.mark.parametrize(("rare", "share"), [(36, 0.25), (108, 0.1), (109, 12 / 121)])
def test_a_vocabulary_that_knows_few_rows_is_told(tmp_path: Path, rare: int, share: float) -> None:
    """12 rows with a common code beside rows with codes of one subject; birth, death and held-out rows do not count."""
    rows = [row for who in range(12) for row in record(who, "-8000 MEDS_BIRTH, 0 A, 900 MEDS_DEATH", start=START)]
    rows += [Row(k % 12, START + k * DAY_US, f"TEXT//{k}") for k in range(rare)]
    rows += [Row(20, START + k, f"MORE//{k}") for k in range(50)]
    splits = {who: "train" if who < 12 else "held_out" for who in (*range(12), 20)}
    data, out = write_meds(tmp_path / "meds", rows, splits=splits, shards=2), tmp_path / "set"
    found = checked(data)
    assert found["codes"]["known_training_rows"] == pytest.approx(share)
    prepared, seen = ehrseq("prepare", data, "--out", out), ehrseq("check", data)
    assert prepared.exit_code == seen.exit_code == 0
    assert read_json(out / MANIFEST)["known_training_rows"] == pytest.approx(share)
    told = "warning: Only 9.9% of the training subjects' rows have a token"
    for text in (prepared.output, seen.output):
        assert (told in text) == (share < 0.1)
        assert ("vocabulary.min_subjects=11" in text) == (share < 0.1)
        assert "TEXT//" not in text
    assert len(found["warnings"]) == (share < 0.1)
    assert "warning" not in ehrseq("prepare", data, "--out", tmp_path / "1", "vocabulary.min_subjects=1").stdout


def test_facts_counted_by_hand(tmp_path: Path) -> None:
    data = write(
        tmp_path,
        "- SEX//F, -8000 MEDS_BIRTH, 0 A, 0.1 A, 0.2 LAB=1, 0.3 LAB=2, 40 B",  # two visits: {A, LAB}, {B}
        "0 A, 1 LAB",  # two visits
        "5 B",  # one visit
    )
    found = checked(data, "vocabulary.min_subjects=2")
    assert found["subjects"] == {"all": 3, "train": 3, "tuning": 0, "held_out": 0, "without_birth": 2}
    assert found["rows"] == {"all": 10, "static": 1, "with_number": 2, "shards": 1}
    codes = {"all": 5, "tokens": 3, "known_training_rows": 8 / 9, "min_subjects": 2}  # no birth, a rare sex
    assert found["codes"] == codes  # A, LAB and B have two subjects
    assert found["years"] == [2020, 2020]
    assert found["visits"] == {"all": 5, "over_30_days": 0, "per_subject": 1.67, "codes_per_visit": 1.2}
    assert found["fixes"] == found["tasks"] == []


def test_events_within_each_horizon_counted_by_hand(tmp_path: Path) -> None:
    data = write(
        tmp_path,
        "0 A, 3 B, 10 MEDS_DEATH, 400 END",  # dies on day 10: within all horizons
        "0 A, 3 B, 11 MEDS_DEATH, 400 END",  # after 10 days, within 30
        "0 A, 20 TX, 400 END",
        "0 A, 30 END",  # followed for 30 days exactly: known there, not at a year
        "0 A, 29 END",
        "0 A, 365.25 END",
        "0 A, 12 B, 400 MEDS_DEATH, 500 END",  # after a year: no event within it, but known
    )
    (found,) = checked(data, task=task_of())["tasks"]
    assert found["events_within"] == {
        "death": {"10d": 1, "30d": 2, "1y": 2},
        "transplant": {"10d": 0, "30d": 1, "1y": 1},
    }
    assert found["known_at"] == {"10d": 7, "30d": 6, "1y": 5}
    text = repr(check_data(data, study=StudyConfig(), tasks=[task_of()]))
    assert [line.split() for line in text.splitlines()[-4:]] == [
        ["subjects", "with", "an", "event", "within", "10d", "30d", "1y"],
        ["death", "1", "2", "2"],
        ["transplant", "0", "1", "1"],
        ["state", "known", "7", "6", "5"],
    ]


def warnings_of(data: Path, **changes: Any) -> str:
    return " ".join(checked(data, task=task_of(**changes))["tasks"][0]["warnings"])


def test_warnings_come_where_they_are_due_and_only_there(tmp_path: Path) -> None:
    ended, seen_later = ["0 A, 3 MEDS_DEATH, 400 END"], ["0 A, 400 END"]
    trained = [*ended * 100, *["0 A, 3 TX"] * 10, *seen_later * 20]
    assert warnings_of(write(tmp_path / "good", *trained, held_out=ended * 11 + seen_later * 39)) == ""
    for name, held_out in (("no_event", ended * 10 + seen_later * 40), ("nobody", ended * 11 + seen_later * 38)):
        told = warnings_of(write(tmp_path / name, *trained, held_out=held_out))
        assert told.startswith("Fewer than 50 subjects are held out, or fewer than 11 of them had the event")
    few = write(tmp_path / "few", *["0 A, 3 MEDS_DEATH, 400 END"] * 99, "0 A, 3 TX", *["0 A, 400 END"] * 20)
    assert "Fewer than 100 training subjects" in warnings_of(few)
    texts = ["0 A, 3 MEDS_DEATH, 400 END"] * 100 + ["0 A, 400 END"] * 20
    seen = write(tmp_path / "seen", *texts, "-4 TX, 0 A, 400 END", "0 TX, 0 A, 400 END", "0 A, 5 TX")
    assert "2 subjects have an outcome or competing code at or before their index" in warnings_of(seen)
    assert "horizon" not in warnings_of(seen)


def test_follow_up_shorter_than_a_horizon_is_a_warning_for_that_horizon(tmp_path: Path) -> None:
    data = write(tmp_path, *["0 A, 20 END"] * 95, *["0 A, 3 TX"] * 4, "0 A, 3 MEDS_DEATH")
    text = warnings_of(data)
    assert "horizon 10d" not in text
    assert "shorter than the horizon 30d: what happened by then is known of 5 of 100 subjects" in text
    assert "shorter than the horizon 1y" in text


# ---- How many events a study needs: against published numbers, and against simulated studies of that size ----


def test_observed_over_expected_needs_what_riley_says() -> None:
    # Riley et al. (2021), criterion 1: n = (1 − φ) / (φ SE²), SE = 0.2 / 1.96
    for incidence in (0.018, 0.2, 0.5):
        assert needed_events(incidence)["O/E ± 0.2"] == np.ceil((1 - incidence) * (1.96 / 0.2) ** 2)


def population(incidence: float, c: float) -> tuple[float, float]:
    """Mean and sd of a normal linear predictor with this incidence and C, pair by pair."""
    normal = norm.ppf((np.arange(400) + 0.5) / 400)

    def mean_of(sd: float) -> float:
        return float(brentq(lambda m: expit(m + sd * normal).mean() - incidence, -60, 60))

    def c_of(sd: float) -> float:
        risk = expit(mean_of(sd) + sd * normal)
        pairs = risk[:, None] * (1 - risk)
        wins = (risk[:, None] > risk) + 0.5 * (risk[:, None] == risk)
        return float((pairs * wins).sum() / pairs.sum())

    sd = float(brentq(lambda sd: c_of(sd) - c, 0.01, 20))
    return mean_of(sd), sd


def test_the_population_has_the_stated_c() -> None:
    for incidence, c in ((0.02, 0.9), (0.2, 0.75), (0.5, 0.95)):
        mean, spread = population(incidence, c)
        lp = mean + spread * np.random.default_rng(0).normal(size=400_000)
        event = np.random.default_rng(1).random(len(lp)) < expit(lp)
        rank = np.argsort(np.argsort(lp)) + 1.0
        auc = (rank[event].sum() - event.sum() * (event.sum() + 1) / 2) / (event.sum() * (~event).sum())
        assert auc == pytest.approx(c, abs=0.005)
        ours = _population(incidence, spread)
        assert ours[0] == pytest.approx(mean, abs=0.02)
        assert _concordance(ours[2]) == pytest.approx(c, abs=0.002)
        assert spread != pytest.approx(np.sqrt(2) * norm.ppf(c), rel=0.02)  # the sd that two normal groups would have


def test_more_discrimination_needs_fewer_people_to_train() -> None:
    # Riley et al. (2020): n = p / ((S − 1) ln(1 − R² / S)); with R² = 0.288 and 24 parameters 623 people
    assert np.ceil(24 / ((0.9 - 1) * np.log(1 - 0.288 / 0.9))) == 623
    parameters = [needed_events(0.174, c)["ten parameters"] for c in (0.65, 0.75, 0.85, 0.95)]
    assert parameters == sorted(parameters, reverse=True)


# ---- Marks of missing values, units, and times in which an outcome cannot have happened ----


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
