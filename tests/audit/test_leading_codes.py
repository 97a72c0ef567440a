"""Planted leaks that records bring along: codes, numbers and copies that no stamp gives away. Each twin is clean."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ehrsequencing.audit.data import Finding
from ehrsequencing.audit.leading_codes import _compared, _Visits
from ehrsequencing.audit.people import excluded_codes, pretraining, unseen_subjects
from ehrsequencing.audit.suspicion import importance, sentence
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.terminal import audit_lines
from ehrsequencing.training.pretraining.targets import excluded_targets, names_of
from ehrsequencing.training.run_folder import subjects_digest
from helpers.audit import FIRST_ID, hospital_splits
from helpers.meds import DAY_US, HOUR_US, Row
from helpers.planted_codes import (
    CLEAN,
    EARLY,
    LAST,
    PLANTED,
    audited,
    codes_before_death,
    findings,
    hospital,
    some,
    visits_after,
)

LATER = {
    "region_whose_codes_tell_little_one_by_one",
    "held_out_people_copied_with_every_date_moved_a_little",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LATER else ()) for n in PLANTED])
def test_a_planted_leak_of_the_records_is_found(name: str, tmp_path: Path) -> None:
    make, expected = PLANTED[name]
    found = findings(audited(tmp_path, *make()))
    assert {check: f.verdict for check, f in found.items() if f.verdict not in ("passed", "not_tested")} == expected
    for check in expected:
        assert str(FIRST_ID)[:4] not in found[check].reason  # nobody's id


@pytest.mark.parametrize("name", CLEAN)
def test_its_clean_twin_raises_no_alarm(name: str, tmp_path: Path) -> None:
    assert {f.verdict for f in findings(audited(tmp_path, *CLEAN[name]())).values()} == {"passed"}


@pytest.mark.parametrize(("planted", "verdict"), [(EARLY, "leak"), (LAST, "warning"), (set(), "passed")])
def test_codes_just_before_death_are_found(planted: set[str], verdict: str, tmp_path: Path) -> None:
    """What everybody has at some visit, or at the end of the follow-up, is no finding."""
    data = audited(tmp_path, *codes_before_death(planted))
    found = findings(data)
    finding = found.pop("event_after_code")
    assert {data.vocabulary.tokens[k] for k in finding.suspects} == planted
    assert (finding.verdict, {one.verdict for one in found.values()}) == (verdict, {"passed"})
    assert finding.reason.count("before death") == len(planted)
    assert ("visits.ignore" in finding.reason) == bool(planted)


@pytest.mark.slow
def test_what_suspicious_codes_matter_is_said(tmp_path: Path) -> None:
    data = audited(tmp_path, *codes_before_death(LAST))
    suspects = tuple(data.vocabulary.index[code] for code in sorted(LAST))
    data.split = "train"
    matter = importance(data, suspects)
    assert matter["c"]["with"] > matter["c"]["without"] + 0.015
    assert matter["nll"]["with"] < matter["nll"]["without"] - 0.02
    assert f"C {matter['c']['without']:.2f}" in sentence(matter)
    same = importance(data, (data.vocabulary.index["DISCHARGE//HOME"],))
    assert abs(same["c"]["with"] - same["c"]["without"]) < 0.02
    data.records["held_out"] = data.records["held_out"].take(np.arange(10))
    data.split = "held_out"
    assert importance(data, suspects) is None
    assert "too few people" in sentence(None)


def test_a_code_that_is_sometimes_wrong_is_a_warning(tmp_path: Path) -> None:
    rows, died, index, rng = hospital()
    dying = some(died, 0.5, rng)
    visits = visits_after(rows, index, {})
    others = [who for who in sorted(set(index) - set(died)) if who in visits][: int(0.55 * len(dying))]
    rows += [Row(who, died[who] - 2 * HOUR_US, "COMFORT_CARE") for who in dying]
    rows += [Row(who, int(rng.choice(visits[who])), "COMFORT_CARE") for who in others]
    finding = findings(audited(tmp_path, rows, hospital_splits(rows)))["event_after_code"]
    assert finding.verdict == "warning"
    assert "'COMFORT_CARE' (6" in finding.reason


@pytest.mark.parametrize("people", [10, 11])
def test_a_code_is_found_and_named_from_eleven_people_on(people: int, tmp_path: Path) -> None:
    rows, died, _, _ = hospital()
    splits = hospital_splits(rows)
    some = [who for who in died if splits[who] == "train"][:people]
    rows += [Row(who, died[who] - 2 * HOUR_US, "DISCHARGE//DIED") for who in some]
    found = findings(audited(tmp_path, rows, splits))["event_after_code"]
    assert found.verdict == ("leak" if people == 11 else "passed")
    assert ("'DISCHARGE//DIED'" in found.reason) == (people == 11)


def test_an_event_that_soon_comes_to_nearly_everybody_is_no_finding(tmp_path: Path) -> None:
    """The codes of the index stand just before the event of most, and at the index of all."""
    rows, _, index, rng = hospital(subjects=200)
    rows += [Row(who, index[who] + 2 * DAY_US, "OUT") for who in some(index, 0.9, rng)]
    data = audited(tmp_path, rows, hospital_splits(rows), outcome={"out": "OUT"})
    assert findings(data)["event_after_code"].verdict == "passed"


def test_the_comparison_of_visits_by_hand() -> None:
    """Thirty people with a last visit and three others: token 0 in every last one, token 1 in a quarter of all."""
    subject = np.repeat(np.arange(30), 4)
    is_last = np.tile([False, False, False, True], 30)
    of_0, of_1 = np.flatnonzero(is_last), np.arange(120)[np.arange(120) % 4 == np.repeat(np.arange(30) % 4, 4)]
    zeros = np.zeros(120)
    visits = _Visits(subject, subject, is_last, zeros, subject, np.r_[of_0, of_1], np.r_[of_0 * 0, of_1 * 0 + 1])
    high, blind, chance = _compared(visits, is_last, ~is_last, subject, 2)
    assert chance[0] == pytest.approx(0.25**30)  # each last visit is one of four
    assert high.tolist() == [True, False]
    assert blind.tolist() == [False, True]  # token 1 is in seven last visits
    alone = _compared(visits, is_last, np.zeros(120, dtype=bool), subject, 2)
    assert alone[1].tolist() == [True, True]  # nobody to compare with


def test_a_warning_is_neither_a_pass_nor_a_leak_for_those_who_read_the_audit() -> None:
    checks = [
        {"name": "static_codes", "verdict": "warning", "reason": "'X' alone"},
        {"name": "splits", "verdict": "passed", "reason": "nobody is in two splits"},
    ]
    lines = audit_lines({"task": "t", "split": "held_out", "subjects": 5, "checks": checks, "not_tested": 0})
    assert any(line.startswith("  WARNING") and "static_codes" in line for line in lines)
    assert lines[-1] == "no leak found: 1 checks passed, 1 warned, 0 could not be made"


# ---- the audit of a run that started from another model: whom and what its weights saw before ------------------------


def with_source(
    folder: Path, *, swapped: bool = False, outcomes: tuple[str, ...] = (), before: Any = None, **changed: Any
) -> Any:
    """What the checks look at; `swapped` makes training subjects held-out ones, `before` is what the source's was."""
    prepared = Prepared(folder)
    records = {split: prepared.records("simulated", split) for split in ("train", "tuning", "held_out")}
    seen = {split: subjects_digest(records[split].timelines.subject_id) for split in ("train", "tuning")}
    if swapped:
        records |= {"train": records["held_out"], "held_out": records["train"]}
    init = {
        "prepared": str(folder),
        "data_path": prepared.manifest["data_path"],
        "subjects": seen,
        "objectives": {},
        "excluded_targets": names_of(excluded_targets(prepared, "simulated"), prepared.vocabulary),
        **changed,
    }
    init |= {} if before is None else {"init": before}
    run = SimpleNamespace(manifest={"init": init}, outcomes=list(outcomes))
    task = prepared.task("simulated")
    return SimpleNamespace(run=run, prepared=prepared, records=records, task=task, vocabulary=prepared.vocabulary)


def unseen(data: Any) -> Finding:
    return unseen_subjects(data, data.run.manifest["init"])


def codes(data: Any) -> Finding:
    return excluded_codes(data, data.run.manifest["init"])


def test_held_out_subjects_that_were_seen_before_are_a_leak(sim_prepared: Path) -> None:
    assert unseen(with_source(sim_prepared)).verdict == "passed"
    assert unseen(with_source(sim_prepared, swapped=True)).verdict == "leak"
    elsewhere = unseen(with_source(sim_prepared, swapped=True, data_path="elsewhere"))
    assert elsewhere.verdict == "warning"  # ids of other data may be other people's
    assert "they may be other people" in elsewhere.reason
    assert unseen(with_source(sim_prepared, swapped=True, prepared="/nowhere")).verdict == "not_tested"
    assert unseen(with_source(sim_prepared, subjects=None)).verdict == "not_tested"
    other = {"train": "0" * 16, "tuning": "0" * 16}
    assert unseen(with_source(sim_prepared, subjects=other)).verdict == "not_tested"


def test_the_outcome_as_a_target_is_found(sim_prepared: Path) -> None:
    assert codes(with_source(sim_prepared)).verdict == "passed"
    known: Any = with_source(sim_prepared).run.manifest["init"]["excluded_targets"]
    assert known["outcome"] == ["DX//OUTCOME"]
    assert codes(with_source(sim_prepared, excluded_targets={**known, "outcome": []})).verdict == "leak"
    assert codes(with_source(sim_prepared, excluded_targets=None)).verdict == "warning"  # nothing was to be excluded


def test_outcomes_of_the_run_as_targets_are_a_warning(sim_prepared: Path) -> None:
    known: Any = with_source(sim_prepared).run.manifest["init"]["excluded_targets"]
    many = ("DX//A00", "DX//A01")
    for excluded in (known, {**known, "outcomes": ["DX//A00"]}):
        found = codes(with_source(sim_prepared, outcomes=many, excluded_targets=excluded))
        assert found.verdict == "warning"
        assert found.reason.startswith("the run's 2 outcomes were targets of the pretraining")
    every = with_source(sim_prepared, outcomes=many, excluded_targets={**known, "outcomes": list(many)})
    assert codes(every).verdict == "passed"
    assert "the run's 2 outcomes" in codes(with_source(sim_prepared, outcomes=many, excluded_targets=None)).reason


def test_every_model_of_a_chain_is_looked_at(sim_prepared: Path) -> None:
    clean: Any = with_source(sim_prepared).run.manifest["init"]
    run = {key: value for key, value in clean.items() if key not in ("objectives", "excluded_targets")}

    def through_a_run(source: Any) -> Any:
        """A run that started from a run, which started from `source`."""
        found = with_source(sim_prepared, before=source)
        for key in ("objectives", "excluded_targets"):
            del found.run.manifest["init"][key]
        return found

    assert pretraining(through_a_run(clean)).verdict == "passed"
    assert pretraining(through_a_run({**run, "init": clean})).verdict == "passed"
    assert pretraining(through_a_run(run)).verdict == "passed"
    bad = pretraining(through_a_run({**run, "init": {**clean, "excluded_targets": None}}))
    assert bad.verdict == "warning"
    assert bad.reason.endswith("(model 3 that the run goes back to)")
    assert pretraining(through_a_run({**clean, "subjects": None})).verdict == "not_tested"
    swapped = with_source(sim_prepared, swapped=True)
    digests = {split: subjects_digest(swapped.records[split].timelines.subject_id) for split in ("train", "tuning")}
    nearest = {**clean, "subjects": digests, "init": clean}  # saw the right people, its source saw our held-out ones
    swapped.run.manifest["init"] = nearest
    assert pretraining(swapped).verdict == "leak"
