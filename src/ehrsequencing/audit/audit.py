"""Runs all checks of `ehrseq audit` on a run and writes `audit.json`.

Reading order: `data` (what every check looks at), `source` (the original records), then the files with
checks, in the order of `CHECKS`. `docs/trust.md` says what they prove and what they cannot prove.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from ehrsequencing.audit import leading_codes, people, predictions, suspicion
from ehrsequencing.audit.data import AuditData, Check, Finding
from ehrsequencing.audit.suspicion import importance, sentence
from ehrsequencing.core.errors import refuse_unknown
from ehrsequencing.core.files import digest, write_shareable
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.version import __version__
from ehrsequencing.prediction.run import AUDIT, Run, add_to_run, require_room
from ehrsequencing.results.redaction import redact_audit
from ehrsequencing.results.result_types import SharedAudit

CHECKS: tuple[Check, ...] = (
    *predictions.CHECKS,
    *people.CHECKS,
    *suspicion.CHECKS,
    *leading_codes.CHECKS,
)


def audit(
    run_folder: Path,
    *,
    split: str = "held_out",
    subjects: int = 200,
    seed: int = 0,
    allow: Mapping[str, str] | None = None,
    prepared: Path | None = None,
    data: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> SharedAudit:
    """Make every check on a run and write its `audit.json`.

    Args:
        run_folder: A finished run.
        split: Whose subjects the model predicts for; labels and fits are checked in all splits.
        subjects: How many subjects of each split to draw.
        seed: Of the draw, and of all noise.
        allow: Codes that may say so much, and why: what is suspected of them alone passes, with the reason.
        prepared: The prepared set, where it is no longer where training found it.
        data: The MEDS records, where they are no longer where `prepare` found them.
        progress: Called with (steps done, steps, what comes next).

    Returns:
        What was written: `leaks`, `warnings`, `not_tested` (counts), and `checks`, each with its name, question,
        verdict (`passed`, `warning`, `leak`, `not_tested`), reason, what was tested, the measured number, its bound,
        and of suspicious codes how much they `matter` (C and NLL of a Cox model with and without them).

    Raises:
        EhrseqError: The run, its prepared set, or records that were named cannot be used.
    """
    run = Run(run_folder)
    require_room(run_folder, AUDIT)
    store = run.prepared(prepared)
    refuse_unknown("code of --allow", allow or {}, run.vocabulary.tokens)
    checks = list(CHECKS)
    if "init" in run.manifest:  # it started from another model
        checks.append(people.PRETRAINING)
    total = len(checks) + 1
    progress(0, total, "reading the records")
    facts = AuditData(run, store, split=split, subjects=subjects, seed=seed)
    facts.read_source(data)
    answers: list[dict[str, Any]] = []
    for number, check in enumerate(checks, start=1):
        progress(number, total, check.name)
        answers.append(_told(facts, check, allow or {}))
    progress(total, total, "done")
    result = redact_audit(
        {
            "fingerprint": run.fingerprint,
            "made_of": digest(
                made_of(
                    run=run.fingerprint,
                    split=split,
                    drawn=[subjects, seed],
                    allowed=sorted((allow or {}).items()),
                )
            ),
            "created": date.today().isoformat(),
            "version": __version__,
            "task": run.task.name,
            "split": split,
            "subjects": subjects,
            "seed": seed,
            "records": facts.why_no_source is None,
            "leaks": sum(a["verdict"] == "leak" for a in answers),
            "warnings": sum(a["verdict"] == "warning" for a in answers),
            "not_tested": sum(a["verdict"] == "not_tested" for a in answers),
            "checks": answers,
        }
    )
    add_to_run(run_folder, AUDIT, lambda path: write_shareable(path, result))
    return result.content


def _told(data: AuditData, check: Check, allow: Mapping[str, str]) -> dict[str, Any]:
    """The finding of a check as it is written, with what the suspicious codes matter."""
    if check.needs_records and data.why_no_source is not None:
        finding = Finding("not_tested", data.why_no_source)
    else:
        finding = check.make(data)
    reasons = [allow.get(data.vocabulary.tokens[token]) for token in finding.suspects]
    if reasons and None not in reasons:
        told = ", ".join(dict.fromkeys(filter(None, reasons)))
        finding = replace(finding, verdict="passed", reason=f"allowed ({told}): {finding.reason}")
    matter = importance(data, finding.suspects) if finding.suspects else None
    reason = f"{finding.reason}; {sentence(matter)}" if finding.suspects else finding.reason
    return {
        "name": check.name,
        "question": check.question,
        "verdict": finding.verdict,
        "reason": reason,
        "tested": finding.tested,
        "measured": finding.measured,
        "bound": finding.bound,
        "matter": matter,
    }
