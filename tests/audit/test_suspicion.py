"""Leaks that somebody would plant who had not read the checks, in real records; and no alarm on clean ones."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.audit.audit import _told
from ehrsequencing.audit.data import AuditData, Check, Finding
from ehrsequencing.audit.leading_codes import across
from ehrsequencing.config import load_study, load_task
from ehrsequencing.records.prepare import prepare
from ehrsequencing.simulate import SimulationConfig, simulate
from helpers.meds import DAY_US, HOUR_US, Row
from helpers.planted_codes import LOOKS, audited, findings, hospital, visits_after, with_splits
from helpers.planted_in_real import LEAKS, TASKS, VISITS, alarms, audit_data, prepared, read

#: Which check finds which leak.
FOUND = {
    "year_of_last_contact": "leaving",
    "charts_of_those_who_died_were_reviewed": "telling_token",
    "date_until_which_somebody_is_insured": "leaving",
    "ascites_ever": "immortal_time",
    "age_at_death": "static_codes",
    "rows_of_the_last_year_are_missing": "row_density",
    "disposition_at_admission": "telling_token",
    "hospice_referral_dated_back": "telling_token",
}
TAKEN = {"rows_of_the_last_year_are_missing"}  # these records are those that are left
HONEST = "event_after_code"  # in NAFLD cardiac arrest stands before death: known beforehand, and a warning for good


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAKS)
def test_a_strangers_leak_is_found(name: str, real_data: Path, tmp_path: Path) -> None:
    source, make = LEAKS[name]
    records = read(real_data, source)
    rows = make(records) if name in TAKEN else records.rows + make(records)
    found = alarms(audit_data(prepared(tmp_path, source, records, rows)))
    assert FOUND[name] in found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pbc2", "physionet2012"])
def test_the_same_records_without_a_leak_raise_no_alarm(name: str, real_data: Path, tmp_path: Path) -> None:
    study = load_study(None, list(VISITS.get(name, ())))
    prepare(real_data / f"{name}_meds", tmp_path / "set", study=study, tasks=[load_task(TASKS / f"{name}.yaml")])
    assert alarms(audit_data(tmp_path / "set")) == {}


REAL = ("pbc2", "physionet2012", "nafld", "mimic4_demo", "delphi_sim", "delphi_heart", "delphi_diabetes")
WORLDS: dict[str, dict[str, Any]] = {
    "default": {},
    "sick come more often": {"visit_rate_spread": 1, "frailty_spread": 1},
    "the sick drop out": {"drop_out_per_year": 0.3, "drop_out_effect": 1.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REAL, *WORLDS])
def test_no_alarm_on_twenty_draws_of_ten_clean_sets(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Six in ten of the training and tuning people, drawn twenty times."""
    settings: tuple[str, ...] = ()
    if name in WORLDS:
        config = SimulationConfig(truth_futures=4, **WORLDS[name])
        simulate(tmp_path / "data", subjects=1500, seed=11, config=config)
        data, task = tmp_path / "data", load_task(tmp_path / "data" / "task.yaml")
    else:
        folder = "delphi_sim" if name.startswith("delphi") else name
        data = request.getfixturevalue("real_data") / f"{folder}_meds"
        task, settings = load_task(TASKS / f"{name}.yaml"), VISITS.get(name, ())
    prepare(data, tmp_path / "set", study=load_study(None, list(settings)), tasks=[task])
    found = [set(alarms(audit_data(tmp_path / "set", seed=seed, share=0.6))) - {HONEST} for seed in range(20)]
    assert found == [set()] * 20


# ---- one check at a time, on an invented hospital --------------------------------------------------------------------


def verdicts_of(data: AuditData) -> dict[str, str]:
    return {name: one.verdict for name, one in findings(data).items() if one.verdict in ("warning", "leak")}


def followed() -> tuple[list[Row], dict[int, int], dict[int, int], np.random.Generator]:
    """The hospital with ends of follow-up for everybody, and their moments."""
    rows, died, index, rng = hospital(subjects=400)
    ends = {row.subject: row.time for row in rows if row.code == "END" and row.time}
    return rows, index, ends | died, rng


@pytest.mark.parametrize("early", [False, True])
def test_a_year_of_last_contact_tells_when_people_leave(early: bool, tmp_path: Path) -> None:
    rows, index, ends, _ = followed()
    years = {who: (end - index[who]) // (365 * DAY_US) for who, end in ends.items()}
    new = [Row(who, index[who] if early else None, f"SEEN//{year}") for who, year in years.items()]
    assert verdicts_of(audited(tmp_path, *with_splits(rows + new))).get("leaving") == "warning"


def test_a_flag_of_something_later_is_immortal_time(tmp_path: Path) -> None:
    rows, index, ends, rng = followed()
    visits = visits_after(rows, index, ends)
    treated = {who: int(rng.choice(visits[who])) for who in index if who in visits and rng.random() < 0.4}
    new = [Row(who, when, "DRUG//X") for who, when in treated.items()]
    assert "immortal_time" not in verdicts_of(audited(tmp_path / "timed", *with_splits(rows + new)))
    new += [Row(who, None, "EVER//X") for who in treated]
    assert verdicts_of(audited(tmp_path / "ever", *with_splits(rows + new)))["immortal_time"] == "warning"


@pytest.mark.parametrize("kind", ["fewer", "more"])
def test_rows_that_grow_rarer_or_denser_before_death_are_found(kind: str, tmp_path: Path) -> None:
    rows, died, _, rng = hospital(subjects=400)
    last = {who: when - 400 * DAY_US for who, when in died.items()}
    if kind == "fewer":
        gone = {r for r in rows if r.code.startswith(("DX//", "LAB//")) and (r.time or 0) >= last.get(r.subject, 2**62)}
        rows = [r for r in rows if r not in gone]
    else:
        rows += [
            Row(who, int(when - rng.integers(2, 80) * DAY_US), "NOTE") for who, when in died.items() for _ in range(30)
        ]
    found = findings(audited(tmp_path, *with_splits(rows)))["row_density"]
    assert (found.verdict, found.reason.split()[0]) == ("warning", kind)
    assert "row_density" in LOOKS


def test_a_count_of_old_rows_and_a_number_far_ahead_are_warnings(tmp_path: Path) -> None:
    """Most of those who died have eight old results more, and a score of it lies far ahead of all other numbers."""
    rows, died, index, rng = hospital(subjects=400)
    reviewed = [who for who in index if rng.random() < (0.97 if who in died else 0.03)]
    new = [Row(who, index[who] - day * DAY_US, "LAB//0", 1.0) for who in reviewed for day in range(30, 110, 10)]
    found = findings(audited(tmp_path / "old", *with_splits(rows + new)))["telling_token"]
    assert found.verdict == "warning"
    assert "at the first prediction time" in found.reason
    score = [Row(who, index[who], "SCORE", float(rng.normal() + 2.6 * (who in died))) for who in index]
    found = findings(audited(tmp_path / "score", *with_splits(rows + score)))["telling_token"]
    assert found.verdict == "warning"
    assert "'SCORE' alone" in found.reason


@pytest.mark.parametrize("kind", ["diagnosis", "source", "unit", "absent", "honest"])
def test_an_input_that_changes_the_odds_tenfold_at_first_is_a_warning(kind: str, tmp_path: Path) -> None:
    """Of six in ten who die: a diagnosis dated back, other names or another unit of their numbers, or none of them."""
    rows, died, index, rng = hospital(subjects=600)
    share = {"diagnosis": 0.05, "source": 0.05, "unit": 0.05, "absent": 0.05, "honest": 0.3}[kind]
    marked = {who for who in index if rng.random() < (0.6 if who in died else share)}
    rows += [Row(who, index[who], "LAB//AT_INDEX", float(rng.normal(40, 4))) for who in index]
    new = [Row(who, index[who], "DX//CHRONIC") for who in marked if kind in ("diagnosis", "honest")]
    is_moved = [row.code == "LAB//AT_INDEX" and row.subject in marked for row in rows]
    for row, moved in zip(rows, is_moved, strict=True):
        if not moved or kind in ("diagnosis", "honest"):
            new.append(row)
        elif kind != "absent":
            of_kind = {"code": "LAB//ARCHIVED"} if kind == "source" else {"value": 10 * (row.value or 0)}
            new.append(row._replace(**of_kind))
    found = findings(audited(tmp_path, *with_splits(new)))["telling_token"]
    assert (found.verdict, "changes the odds of" in found.reason) == (
        ("passed", False) if kind == "honest" else ("warning", True)
    )
    assert (found.measured or 0) > 10 or kind == "honest"


# ---- what a fourth stranger planted and no check found: each a kind, with a clean twin -------------------------------


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
