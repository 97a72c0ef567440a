"""What a fourth stranger planted and no check found: each a kind, with a clean twin."""

import sys

import numpy as np
import pytest

from ehrsequencing.audit.audit import _told
from ehrsequencing.audit.data import Check, Finding
from ehrsequencing.audit.leading_codes import across
from helpers.meds import DAY_US, HOUR_US, Row
from helpers.planted_codes import audited, findings, hospital, with_splits

LOOKED_AT = {"telling_token", "event_after_code", "splits", "events_by_level", "filled_backwards", "static_codes"}


def verdicts(tmp_path, rows, splits=None):
    """Check → verdict, of those that did not pass."""
    given = with_splits(rows) if splits is None else (rows, splits)
    found = {name: one for name, one in findings(audited(tmp_path, *given)).items() if name in LOOKED_AT}
    return {name: one.verdict for name, one in found.items() if one.verdict in ("warning", "leak")}, found


@pytest.mark.parametrize("leaks", [True, False])
def test_batch_numbers_of_reviewed_charts_count_together(leaks, tmp_path) -> None:
    """Each batch has a handful of people; together they are those who died."""
    rows, died, index, _ = hospital(subjects=400)
    people = sorted(died) if leaks else sorted(index)[: len(died)]
    new = [Row(who, index[who], f"REVIEW//BATCH//{k // 6}") for k, who in enumerate(people)]
    said, found = verdicts(tmp_path, rows + new)
    assert ("telling_token" in said) == leaks
    if leaks:
        assert "REVIEW" in found["telling_token"].reason


@pytest.mark.parametrize("records", ["all", "none at one site"])
def test_a_site_that_records_no_events_is_found(records, tmp_path) -> None:
    rows, died, index, rng = hospital(subjects=500)
    site = {who: "north" if rng.random() < 0.35 else "south" for who in index}
    rows = rows + [Row(who, None, f"SITE//{name}") for who, name in site.items()]
    if records != "all":
        gone = {who for who in died if site[who] == "north"}
        last = {row.subject: row.time for row in rows if row.code == "MEDS_DEATH" and row.time}
        rows = [row for row in rows if not (row.subject in gone and row.code == "MEDS_DEATH")]
        rows += [Row(who, last[who], "END") for who in gone]
    said, found = verdicts(tmp_path, rows)
    assert said.get("events_by_level") == (None if records == "all" else "warning"), found["events_by_level"].reason


@pytest.mark.parametrize("filled", [None, "forwards", "backwards"])
def test_numbers_filled_in_from_later_are_found(filled, tmp_path) -> None:
    """Everybody has a number at the index; measured, the last one carried on, or the next one carried back."""
    rows, _, index, rng = hospital(subjects=400)
    for who, moment in index.items():
        before, after = np.round(rng.normal(80, 12, 2), 1)
        at = {"forwards": before, "backwards": after}.get(filled or "", np.round(rng.normal(80, 12), 1))
        rows.append(Row(who, moment - 20 * DAY_US, "LAB//WEIGHT", float(before)))
        rows.append(Row(who, moment, "LAB//WEIGHT", float(at)))
        for k in range(1, 5):
            rows.append(Row(who, moment + 20 * k * DAY_US, "LAB//WEIGHT", float(after)))
            after = np.round(rng.normal(80, 12), 1)
    said, found = verdicts(tmp_path, rows)
    assert said.get("filled_backwards") == ("leak" if filled == "backwards" else None), found["filled_backwards"].reason


def test_pairs_are_held_against_gaps_alike() -> None:
    equal = np.r_[np.ones(40, bool), np.zeros(40, bool), np.ones(20, bool)]
    gap = np.r_[np.zeros(40, int), np.ones(40, int), np.zeros(20, int)]
    crosses = np.r_[np.zeros(80, bool), np.ones(20, bool)]
    assert across(equal, crosses, gap) == (1.0, 1.0)  # so short a gap has equal numbers everywhere
    assert across(equal, crosses, np.r_[gap[:80], np.ones(20, int)]) == (1.0, 0.0)


@pytest.mark.parametrize("kind", ["copies", "other people"])
def test_copies_with_shifted_dates_and_lost_visits_are_found(kind, tmp_path) -> None:
    rows, _, index, rng = hospital(subjects=400)
    new, split = [], {}
    for k, who in enumerate(sorted(index)[:40]):
        copy, shift = 90_000_000 + k, int(rng.integers(-300, 300)) * DAY_US
        own = [row for row in rows if row.subject == who]
        days = sorted({row.time // DAY_US for row in own if row.time is not None})
        lost = {day for day in days[1:-1] if rng.random() < 0.25}
        for row in own:
            if row.time is None or row.time // DAY_US not in lost or row.code in ("MEDS_DEATH", "END", "INDEX"):
                moved = row.time if row.time is None or row.code == "MEDS_BIRTH" else row.time + shift
                if kind == "other people" and moved is not None:
                    moved += int(rng.integers(0, 12)) * HOUR_US
                new.append(row._replace(subject=copy, time=moved))
        split |= {who: "train", copy: "held_out"}
    every, splits = with_splits(rows + new)
    said, found = verdicts(tmp_path, every, splits | split)
    assert ("splits" in said) == (kind == "copies"), found["splits"].reason


@pytest.mark.parametrize("code", ["BILLING//FINAL", "ORDER//COMFORT CARE"])
def test_a_code_that_is_last_for_nearly_all_who_have_it_fails_unless_it_is_care_at_the_end(code, tmp_path) -> None:
    """Weeks before death, and at no other visit of anybody."""
    rows, died, _, _ = hospital(subjects=400)
    new = []
    for who, when in died.items():
        before = [row.time for row in rows if row.subject == who and row.time is not None and row.time < when]
        last = max((t for t in before), default=None)
        if last is not None and len(set(before)) > 2:
            new.append(Row(who, last, code))
    said, found = verdicts(tmp_path, rows + new)
    assert said.get("event_after_code") == ("leak" if code.startswith("BILLING") else "warning"), found[
        "event_after_code"
    ].reason


def test_a_code_that_may_say_so_much_passes_with_its_reason(tmp_path, monkeypatch) -> None:
    data = audited(tmp_path, *with_splits(hospital(subjects=100)[0]))
    token = len(data.vocabulary) - 1
    check = Check("one", "?", lambda _: Finding("leak", "it says all", suspects=(token,)))
    monkeypatch.setattr(sys.modules[_told.__module__], "importance", lambda data, suspects: None)
    name = data.vocabulary.tokens[token]
    assert _told(data, check, {})["verdict"] == "leak"
    allowed = _told(data, check, {name: "asked the ward"})
    assert (allowed["verdict"], allowed["reason"].split(":")[0]) == ("passed", "allowed (asked the ward)")


def test_visits_of_a_study_on_few_days_with_few_codes_are_no_copies(tmp_path) -> None:
    """Everybody is seen each year, within a week, for the same three measurements: chance makes visits equal."""
    rng, rows = np.random.default_rng(3), []
    for who in range(1, 401):
        rows.append(Row(who, 0, "INDEX"))
        for year in range(int(rng.integers(3, 6))):
            moment = (365 * year + int(rng.integers(0, 7))) * DAY_US
            found = ["LAB//A", "LAB//B" if rng.random() < 0.9 else "LAB//C"]
            rows += [Row(who, moment, code, float(rng.normal())) for code in found]
        rows.append(Row(who, moment + 100 * DAY_US, "MEDS_DEATH" if rng.random() < 0.3 else "END"))
    said, found = verdicts(tmp_path, rows)
    assert "splits" not in said, found["splits"].reason
