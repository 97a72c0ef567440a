"""The planted-leak suite: pipelines with one thing broken, each found by the check that is there for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ehrsequencing.records.vocabulary_fit as fit_room
from ehrsequencing.audit.audit import CHECKS
from ehrsequencing.records.scales import Scale
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from helpers.audit import FIRST_ID, assemble, hospital_rows, leaks, make_set, verdicts
from helpers.meds import Row
from helpers.planted import PLANTED, planted
from helpers.planted_codes import PLANTED as PLANTED_CODES


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("hospital"), hospital_rows())


# ---- what tells of single people -------------------------------------------------------------------------------------


@planted("single_people")
def quantiles_that_are_single_values(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """The scales that were stored until 2026: the lowest, the highest, and every other number is somebody's."""

    def plain(value: Any, owner: Any, *, enough: int) -> Scale | None:
        if len(value) < enough:
            return None
        return Scale(np.quantile(value, np.linspace(0, 1, 129)), float(value.mean()), float(value.std() or 1.0))

    patch.setattr(fit_room, "fit_scale", plain)  # also when the audit fits again
    return assemble(make_set(tmp, hospital_rows(subjects=120)), tmp / "run")


@planted("single_people")
def type_of_one_held_out_person(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """An unknown token for every type of codes that anybody has, as there was one until 2026."""
    finish = VocabularyFit.finish

    def all_types(self: VocabularyFit) -> Any:
        return replace(finish(self), kinds=tuple(sorted(set(self.kinds) - {""})))

    patch.setattr(VocabularyFit, "finish", all_types)
    rows = hospital_rows(subjects=120)
    return assemble(make_set(tmp, [*rows, Row(FIRST_ID + 4, rows[-1].time, "JANE-DOE//1")]), tmp / "run")


# ---- inputs that know too much ---------------------------------------------------------------------------------------


@planted("telling_token")
def target_encoded_token(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """A risk score, computed by somebody who knew the outcomes, is in the records from the index on."""
    rows = hospital_rows()
    ends = {row.subject: row.time for row in rows if row.code == "END"}
    relapses = [row for row in rows if row.code == "DX//RELAPSE"]
    high = {row.subject for row in relapses if row.time <= ends.get(row.subject, row.time)}
    rows += [
        Row(row.subject, row.time, "SCORE//HIGH" if row.subject in high else "SCORE//LOW")
        for row in rows
        if row.code == "INDEX" and row.time
    ]
    return assemble(make_set(tmp, rows), tmp / "run")


@planted("telling_token")
def death_flag_in_the_records(honest: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """A static code that somebody filled in at the end of the study."""
    rows = hospital_rows(subjects=400)
    dead = {row.subject for row in rows if row.code == "MEDS_DEATH"}
    ends = {row.subject: row.time for row in rows if row.code in ("END", "DX//RELAPSE")}
    dead -= set(ends)
    rows += [Row(subject, None, "VITAL//DECEASED") for subject in sorted(dead)]
    return assemble(make_set(tmp, rows), tmp / "run")


@pytest.mark.parametrize("name", PLANTED)
def test_planted_leak_is_found_by_the_right_check(
    name: str, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, found_by = PLANTED[name]
    run = make(honest, tmp_path, monkeypatch)
    assert leaks(run, only=found_by) == found_by


def test_every_check_finds_something() -> None:
    """A check that no planted leak sets off could be empty."""
    found = [found_by for _, found_by in PLANTED.values()] + [set(found_by) for _, found_by in PLANTED_CODES.values()]
    elsewhere = {"event_after_code", "immortal_time", "row_density", "events_by_level", "filled_backwards"}
    assert {check.name for check in CHECKS} == set().union(*found) | elsewhere


def test_a_run_holds_no_code_of_a_few_people(tmp_path: Path) -> None:
    """Canaries: codes, types and static codes of training and held-out people."""
    rows, people = hospital_rows(subjects=60), [FIRST_ID, FIRST_ID + 1, FIRST_ID + 4]
    rows += [Row(who, rows[-1].time, f"CANARY-{who}//1") for who in people]
    rows += [Row(who, rows[-1].time, f"DX//CANARY-{who}", 7.5) for who in people] * 9
    rows += [Row(FIRST_ID + 4, None, "[CANARY]")]
    run = assemble(make_set(tmp_path, rows), tmp_path / "run")
    assert verdicts(run)["single_people"] == "passed"
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not [path.name for path in files if b"CANARY" in path.read_bytes()]


@pytest.mark.parametrize("architecture", ["hierarchical", pytest.param("flat", marks=pytest.mark.slow)])
def test_the_honest_hospital_passes_every_check(architecture: str, honest: Path, tmp_path: Path) -> None:
    run = assemble(honest, tmp_path / "run", f"model.architecture={architecture}")
    assert set(verdicts(run).values()) == {"passed"}
    assert str(FIRST_ID)[:5] not in (run / "audit.json").read_text()  # nobody's id
