"""The audit of a run that started from another model: whom and what its weights saw before."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ehrsequencing.audit.pretraining_checks import excluded_codes, unseen_subjects
from ehrsequencing.pretraining.exclusion import excluded_targets
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.pretrained import subjects_digest


def audited(folder: Path, *, swapped: bool = False, **changed: Any) -> Any:
    """What the checks look at; `swapped` makes training subjects held-out ones."""
    prepared = Prepared(folder)
    records = {split: prepared.records("simulated", split) for split in ("train", "tuning", "held_out")}
    seen = {split: subjects_digest(records[split].timelines.subject_id) for split in ("train", "tuning")}
    if swapped:
        records |= {"train": records["held_out"], "held_out": records["train"]}
    init = {
        "prepared": str(folder), "data_path": prepared.manifest["data_path"], "subjects": seen, "objectives": {},
        "excluded_targets": excluded_targets(prepared, "simulated").names(prepared.vocabulary), **changed,
    }  # fmt: skip
    run = SimpleNamespace(manifest={"init": init})
    task = prepared.task("simulated")
    return SimpleNamespace(run=run, prepared=prepared, records=records, task=task, vocabulary=prepared.vocabulary)


def test_held_out_subjects_that_were_seen_before_are_a_leak(sim_prepared: Path) -> None:
    assert unseen_subjects(audited(sim_prepared)).verdict == "passed"
    assert unseen_subjects(audited(sim_prepared, swapped=True)).verdict == "leak"
    elsewhere = unseen_subjects(audited(sim_prepared, swapped=True, data_path="elsewhere"))
    assert elsewhere.verdict == "warning"  # ids of other data may be other people's
    assert "they may be other people" in elsewhere.reason
    gone = audited(sim_prepared, swapped=True, prepared="/nowhere")
    assert unseen_subjects(gone).verdict == "not_tested"
    assert unseen_subjects(audited(sim_prepared, subjects=None)).verdict == "not_tested"
    other = {"train": "0" * 16, "tuning": "0" * 16}
    assert unseen_subjects(audited(sim_prepared, subjects=other)).verdict == "not_tested"


def test_the_outcome_as_a_target_is_found(sim_prepared: Path) -> None:
    assert excluded_codes(audited(sim_prepared)).verdict == "passed"
    known: Any = audited(sim_prepared).run.manifest["init"]["excluded_targets"]
    assert known["outcome"] == ["DX//OUTCOME"]
    assert excluded_codes(audited(sim_prepared, excluded_targets={**known, "outcome": []})).verdict == "leak"
    asked_for = excluded_codes(audited(sim_prepared, excluded_targets=None))
    assert asked_for.verdict == "warning"
