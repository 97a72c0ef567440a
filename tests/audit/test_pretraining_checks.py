"""The audit of a run that started from another model: whom and what its weights saw before."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ehrsequencing.audit.data import Finding
from ehrsequencing.audit.pretraining import excluded_codes, pretraining, unseen_subjects
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.pretraining.targets import excluded_targets, names_of
from ehrsequencing.training.run_folder import subjects_digest


def audited(
    folder: Path, *, swapped: bool = False, outcomes: tuple[str, ...] = (), before: Any = None, **changed: Any
) -> Any:
    """What the checks look at; `swapped` makes training subjects held-out ones, `before` is what the source's was."""
    prepared = Prepared(folder)
    records = {split: prepared.records("simulated", split) for split in ("train", "tuning", "held_out")}
    seen = {split: subjects_digest(records[split].timelines.subject_id) for split in ("train", "tuning")}
    if swapped:
        records |= {"train": records["held_out"], "held_out": records["train"]}
    init = {
        "prepared": str(folder), "data_path": prepared.manifest["data_path"], "subjects": seen, "objectives": {},
        "excluded_targets": names_of(excluded_targets(prepared, "simulated"), prepared.vocabulary), **changed,
    }  # fmt: skip
    init |= {} if before is None else {"init": before}
    run = SimpleNamespace(manifest={"init": init}, outcomes=list(outcomes))
    task = prepared.task("simulated")
    return SimpleNamespace(run=run, prepared=prepared, records=records, task=task, vocabulary=prepared.vocabulary)


def unseen(data: Any) -> Finding:
    return unseen_subjects(data, data.run.manifest["init"])


def codes(data: Any) -> Finding:
    return excluded_codes(data, data.run.manifest["init"])


def test_held_out_subjects_that_were_seen_before_are_a_leak(sim_prepared: Path) -> None:
    assert unseen(audited(sim_prepared)).verdict == "passed"
    assert unseen(audited(sim_prepared, swapped=True)).verdict == "leak"
    elsewhere = unseen(audited(sim_prepared, swapped=True, data_path="elsewhere"))
    assert elsewhere.verdict == "warning"  # ids of other data may be other people's
    assert "they may be other people" in elsewhere.reason
    assert unseen(audited(sim_prepared, swapped=True, prepared="/nowhere")).verdict == "not_tested"
    assert unseen(audited(sim_prepared, subjects=None)).verdict == "not_tested"
    other = {"train": "0" * 16, "tuning": "0" * 16}
    assert unseen(audited(sim_prepared, subjects=other)).verdict == "not_tested"


def test_the_outcome_as_a_target_is_found(sim_prepared: Path) -> None:
    assert codes(audited(sim_prepared)).verdict == "passed"
    known: Any = audited(sim_prepared).run.manifest["init"]["excluded_targets"]
    assert known["outcome"] == ["DX//OUTCOME"]
    assert codes(audited(sim_prepared, excluded_targets={**known, "outcome": []})).verdict == "leak"
    assert codes(audited(sim_prepared, excluded_targets=None)).verdict == "warning"  # nothing was to be excluded


def test_outcomes_of_the_run_as_targets_are_a_warning(sim_prepared: Path) -> None:
    known: Any = audited(sim_prepared).run.manifest["init"]["excluded_targets"]
    many = ("DX//A00", "DX//A01")
    for excluded in (known, {**known, "outcomes": ["DX//A00"]}):
        found = codes(audited(sim_prepared, outcomes=many, excluded_targets=excluded))
        assert found.verdict == "warning"
        assert found.reason.startswith("the run's 2 outcomes were targets of the pretraining")
    every = audited(sim_prepared, outcomes=many, excluded_targets={**known, "outcomes": list(many)})
    assert codes(every).verdict == "passed"
    assert "the run's 2 outcomes" in codes(audited(sim_prepared, outcomes=many, excluded_targets=None)).reason


def test_every_model_of_a_chain_is_looked_at(sim_prepared: Path) -> None:
    clean: Any = audited(sim_prepared).run.manifest["init"]
    run = {key: value for key, value in clean.items() if key not in ("objectives", "excluded_targets")}

    def through_a_run(source: Any) -> Any:
        """A run that started from a run, which started from `source`."""
        found = audited(sim_prepared, before=source)
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
    swapped = audited(sim_prepared, swapped=True)
    digests = {split: subjects_digest(swapped.records[split].timelines.subject_id) for split in ("train", "tuning")}
    nearest = {**clean, "subjects": digests, "init": clean}  # saw the right people, its source saw our held-out ones
    swapped.run.manifest["init"] = nearest
    assert pretraining(swapped).verdict == "leak"
