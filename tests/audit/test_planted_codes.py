"""Planted leaks that records bring along: codes and copies that no stamp gives away. Each is found; its twin is not.

The outcome is death, which makes no token, so that codes of its last hours are seen. Only the checks on codes and
copies are made here: the others never look at what a code says.
"""

from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.audit.leading_codes import _Counts
from ehrsequencing.evaluation.context import predictor_cutoff
from ehrsequencing.reporting.terminal import audit_lines
from helpers.audit import FIRST_ID, hospital_splits
from helpers.meds import DAY_US, HOUR_US, Row
from helpers.planted_codes import (
    CLEAN,
    PLANTED,
    discharge_code_two_hours_before_death,
    findings,
    hospital,
    some,
    with_flag,
)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_leak_of_the_records_is_found(name: str, tmp_path: Path) -> None:
    make, expected = PLANTED[name]
    found = findings(tmp_path, *make())
    assert {check: f.verdict for check, f in found.items() if f.verdict not in ("passed", "not_tested")} == expected
    for check in expected:
        assert str(FIRST_ID)[:4] not in found[check].reason  # nobody's id


@pytest.mark.parametrize("name", CLEAN)
def test_its_clean_twin_raises_no_alarm(name: str, tmp_path: Path) -> None:
    assert {f.verdict for f in findings(tmp_path, *CLEAN[name]()).values()} == {"passed"}


def test_a_finding_names_the_code_how_often_and_what_to_do(tmp_path: Path) -> None:
    found = findings(tmp_path, *discharge_code_two_hours_before_death())
    for check in ("event_after_code", "code_before_event"):
        reason = found[check].reason
        assert "'DISCHARGE//DIED'" in reason
        assert "100%" in reason
        assert "times the base rate" in reason
        assert "visits.ignore" in reason
    assert "'REGISTRY'" in findings(tmp_path / "flag", *with_flag(0.85, 0.02))["static_codes"].reason


def test_a_code_of_ten_people_is_found_and_not_named(tmp_path: Path) -> None:
    rows, died, _, _ = hospital()
    splits = hospital_splits(rows)
    ten = [who for who in died if splits[who] == "train"][:10]
    rows += [Row(who, died[who] - 2 * HOUR_US, "DISCHARGE//DIED") for who in ten]
    found = findings(tmp_path, rows, splits)["event_after_code"]
    assert found.verdict == "leak"
    assert "DIED" not in found.reason
    assert "too few people to be named" in found.reason


def test_an_event_that_soon_comes_to_nearly_everybody_is_no_finding(tmp_path: Path) -> None:
    """How often an event follows a code says something only beside how often it follows anything."""
    rows, _, index, rng = hospital(subjects=200)
    rows += [Row(who, index[who] + 2 * DAY_US, "OUT") for who in some(index, 0.9, rng)]
    found = findings(tmp_path, rows, hospital_splits(rows), outcome={"out": "OUT"})
    assert found["event_after_code"].verdict == "passed"
    assert found["event_after_code"].measured is not None
    assert found["event_after_code"].measured > 0.9


def test_a_rate_must_be_far_above_the_base_rate_and_beyond_chance() -> None:
    at_risk, events = np.array([4000.0, 4000.0, 10.0, 10.0]), np.array([2400.0, 3200.0, 8.0, 10.0])
    counts = _Counts(at_risk, events, at_risk.astype(int), base=0.5)
    assert counts.rate.tolist() == [0.6, 0.8, 0.8, 1.0]
    # 60 % is no chance, but little more than half; 8 of 10 are chance (P = .055), and 10 of 10 if 100 codes are asked
    assert counts.beyond_base(1).tolist() == [False, True, False, True]
    assert counts.beyond_base(100).tolist() == [False, True, False, False]


def test_a_warning_is_neither_a_pass_nor_a_leak_for_those_who_read_the_audit() -> None:
    checks = [
        {"name": "static_codes", "verdict": "warning", "reason": "'X' alone"},
        {"name": "splits", "verdict": "passed", "reason": "every subject is in one split, once"},
    ]
    lines = audit_lines({"task": "t", "split": "held_out", "subjects": 5, "checks": checks, "not_tested": 0})
    assert any(line.startswith("  WARNING") and "static_codes" in line for line in lines)
    assert lines[-1] == "no leak found: 1 checks passed, 1 warned, 0 could not be made"
    told = predictor_cutoff({"failed": 0, "passed": 1, "warnings": 1, "date": "2024-01-01"})
    assert told.endswith("1 checks passed, 1 warned, no leak found.")
