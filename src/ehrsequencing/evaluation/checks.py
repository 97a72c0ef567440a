"""What a reviewer asks before believing a number: who was in which split, what was known when, how much was fitted."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.predict import Run

_PREFIX = 16  # hexadecimal digits of a hash that are shown


def run_checks(
    run: Run, subject_ids: Mapping[str, NDArray[np.int64]], *, training_events: int | None, trials: int | None = None
) -> dict[str, Any]:
    """Content of `checks`.

    Args:
        run: The trained run.
        subject_ids: Ids of each split's subjects.
        training_events: Training subjects with the event of interest; None where the training data is gone.
        trials: How many settings were tried before these; what the run's own study tells, where it is None.
    """
    parameters = int(run.manifest["parameters"])
    members = run.study.training.members
    first_seed = run.study.training.seed
    audit = audit_summary(run.folder)
    return {
        "split_overlap": split_overlap(subject_ids),
        "time_zero": time_zero(run.task),
        "predictor_cutoff": predictor_cutoff(audit),
        "audit": audit,
        "events_per_parameter": None if training_events is None else training_events / parameters,
        "parameters": parameters,
        "tuning_trials": run.study.evaluation.tuning_trials if trials is None else trials,
        "seeds": list(range(first_seed, first_seed + members)),
        "members": members,
    }


def split_overlap(subject_ids: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
    """How many subjects are in more than one split, and a fingerprint of each split's subjects.

    The hash is the beginning of the SHA-256 of the sorted ids, each as eight bytes, little-endian.

    >>> split_overlap({"train": np.array([3, 1]), "held_out": np.array([2, 3])})["shared_subjects"]
    1
    """
    distinct = {split: np.unique(np.asarray(ids, dtype="<i8")) for split, ids in subject_ids.items()}
    _, times = np.unique(np.concatenate(list(distinct.values())), return_counts=True)
    hashes = {split: hashlib.sha256(ids.tobytes()).hexdigest()[:_PREFIX] for split, ids in distinct.items()}
    return {"shared_subjects": int((times > 1).sum()), "hash": hashes}


def audit_summary(run_folder: Path) -> dict[str, Any] | None:
    """What `ehrseq audit` found in this very run: how many checks passed, warned, failed or could not be made."""
    from ehrsequencing.evaluation.audit import saved_audit  # it writes its file through `evaluate`: not at the top

    audit = saved_audit(run_folder)
    if audit is None:
        return None
    verdicts = [check["verdict"] for check in audit["checks"]]
    return {
        "passed": verdicts.count("passed"), "failed": verdicts.count("leak"),
        "warnings": verdicts.count("warning"), "not_tested": verdicts.count("not_tested"), "date": audit["created"],
    }  # fmt: skip


def predictor_cutoff(audit: Mapping[str, Any] | None) -> str:
    """The rule about what a prediction may know, and whether it was tested on this run."""
    rule = "Every token at a prediction time is stamped at or before it, or carries no time at all."
    if audit is None:
        return f"{rule} Audited: no; ehrseq audit tests it on this run."
    if audit["failed"]:
        return f"{rule} Audited on {audit['date']}: {audit['failed']} of the checks found a LEAK."
    warned = f", {audit['warnings']} warned" if audit.get("warnings") else ""  # older audits do not count them
    return f"{rule} Audited on {audit['date']}: {audit['passed']} checks passed{warned}, no leak found."


def time_zero(task: TaskConfig) -> str:
    """From when a subject's clock runs, and at which moments risks are compared."""
    landmarks = [format_days(days) for days in task.landmarks if days]
    asked = "at it" if 0.0 in task.landmarks else ""
    later = f"{', '.join(landmarks)} after it" if landmarks else ""
    when = " and ".join(part for part in (asked, later) if part)
    clock = "durations and horizons count from the moment of prediction"
    if task.blanking:
        clock += f", given no event in the {format_days(task.blanking)} that follow it"
    return f"Time zero is {index_words(task)}. Models are compared {when}, among those still at risk; {clock}."


def question(task: TaskConfig) -> str:
    """The task as a sentence."""
    horizons = ", ".join(format_days(days) for days in task.horizons)
    competing = f", with {' and '.join(task.competing)} as competing event" if task.competing else ""
    who = f"Who will have {' or '.join(task.outcome)} within {horizons}"
    return f"{who}, asked from {index_words(task)} on and at every later visit{competing}?"


def index_words(task: TaskConfig) -> str:
    """The index in words: `the first ICU_ADMISSION`."""
    index = task.index
    if index.code is not None:
        start = f"{'each' if index.which == 'every' else 'the first'} {' or '.join(index.code)}"
        return f"{format_days(index.after)} after {start}" if index.after else start
    if index.first_visit:
        return "the first visit"
    return f"age {format_days(index.age)}" if index.age is not None else str(index.date)
