"""Runs all checks of `ehrseq audit` on a run and writes `audit.json`.

Reading order: `data` (what every check looks at), `source` (the original records), `copies` (subjects with another past
or future), then the files with checks, in the order of `CHECKS`. `docs/trust.md` says what the checks prove and what
they cannot prove.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from ehrsequencing.audit import (
    copies,
    fit_checks,
    input_checks,
    label_checks,
    leading_codes,
    model_checks,
    pretraining_checks,
    shuffled,
    single_people,
    suspicion,
)
from ehrsequencing.audit.data import AuditData, Check
from ehrsequencing.core.disclosure import shareable_count
from ehrsequencing.core.files import write_json
from ehrsequencing.core.version import __version__
from ehrsequencing.prediction.run import AUDIT, Run, add_to_run, require_room

CHECKS: tuple[Check, ...] = (
    *model_checks.CHECKS,
    *copies.CHECKS,
    *input_checks.CHECKS,
    *label_checks.CHECKS,
    *single_people.DUPLICATE_CHECKS,
    *fit_checks.CHECKS,
    *single_people.CHECKS,
    *suspicion.CHECKS,
    *leading_codes.CHECKS,
)


def audit(
    run_folder: Path,
    *,
    split: str = "held_out",
    subjects: int = 200,
    seed: int = 0,
    shuffled_labels: bool = False,
    prepared: Path | None = None,
    data: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> dict[str, Any]:
    """Make every check on a run and write its `audit.json`.

    Args:
        run_folder: A finished run.
        split: Whose subjects the model predicts for; labels and fits are checked in all splits.
        subjects: How many subjects of each split to draw.
        seed: Of the draw, and of all noise.
        shuffled_labels: Whether to train a small model on shuffled labels, too.
        prepared: The prepared set, where it is no longer where training found it.
        data: The MEDS records, where they are no longer where `prepare` found them.
        progress: Called with (steps done, steps, what comes next).

    Returns:
        What was written: `leaks`, `warnings`, `not_tested` (counts), and `checks`, each with its name, question,
        verdict (`passed`, `warning`, `leak`, `not_tested`), reason, what was tested, the measured number and its bound.

    Raises:
        EhrseqError: The run, its prepared set, or records that were named cannot be used.
    """
    run = Run(run_folder)
    require_room(run_folder, AUDIT)
    store = run.prepared(prepared)
    checks = [
        *CHECKS,
        *(label_checks.OUTCOME_CHECKS if run.outcomes else ()),
        *([shuffled.CHECK] if shuffled_labels else ()),
    ]
    if "init" in run.manifest:  # it started from another model
        checks += pretraining_checks.CHECKS
    total = len(checks) + 1
    progress(0, total, "reading the records")
    facts = AuditData(run, store, split=split, subjects=subjects, seed=seed)
    facts.read_source(data)
    answers = []
    for number, check in enumerate(checks, start=1):
        progress(number, total, check.name)
        started = time.monotonic()
        finding = check.make(facts)
        seconds = round(time.monotonic() - started, 2)
        tested = {what: shareable_count(count) for what, count in finding.tested.items()}
        named = {"name": check.name, "question": check.question}
        answers.append({**named, **asdict(finding), "tested": tested, "seconds": seconds})
    progress(total, total, "done")
    result = {
        "fingerprint": run.fingerprint,
        "created": date.today().isoformat(),
        "version": __version__,
        "task": run.task.name,
        "split": split,
        "subjects": subjects,
        "seed": seed,
        "records": facts.source is not None,
        "leaks": sum(a["verdict"] == "leak" for a in answers),
        "warnings": sum(a["verdict"] == "warning" for a in answers),
        "not_tested": sum(a["verdict"] == "not_tested" for a in answers),
        "checks": answers,
    }
    add_to_run(run_folder, AUDIT, lambda path: write_json(path, result))
    return result
