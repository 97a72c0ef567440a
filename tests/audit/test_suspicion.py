"""Leaks that somebody would plant who had not read the checks, in real records; and no alarm on clean ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.audit.data import AuditData
from ehrsequencing.config import load_study, load_task
from ehrsequencing.records.prepare import prepare
from ehrsequencing.simulate import SimulationConfig, simulate
from helpers.meds import DAY_US, Row
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
