"""Writes `report.html`: after `ehrseq evaluate`, after external validation, and again after `ehrseq audit`.

Goes in: a run, and the results of an evaluation or an audit. Comes out: the page, in the folder that it belongs to.
"""

from pathlib import Path
from typing import Any

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.evaluation.context import audit_summary, predictor_cutoff
from ehrsequencing.evaluation.outcome_table import Progress, evaluate_outcomes
from ehrsequencing.evaluation.repeated_splits import add_splits
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.reporting.outcomes import outcome_lines, render_outcomes
from ehrsequencing.reporting.report import render, write_report
from ehrsequencing.run import Run, add_to_run, saved_audit
from ehrsequencing.storage import altered, read_manifest, write_bytes, write_json

REPORT = "report.html"
OUTCOME_NUMBERS, OUTCOME_PAGE = "outcome-metrics.json", "outcomes.html"


def report_evaluation(run: Path, metrics: dict[str, Any]) -> None:
    """Write the report of an evaluation, with the repeated splits and the audit that the run has."""
    metrics = add_splits(run, metrics) | {"audit": saved_audit(run)}
    add_to_run(run, REPORT, lambda path: write_report(metrics, path))


def report_outcomes(
    folder: Path, *, split: str, prepared: Path | None, settings: EvaluationConfig, progress: Progress
) -> list[str]:
    """Evaluate every outcome of a run, and write its numbers and its page; both may be shared.

    Returns:
        Lines for the terminal; none where the run has no outcomes.
    """
    run = Run(folder)
    if not run.outcomes:
        return []
    result = evaluate_outcomes(run, run.prepared(prepared), split=split, settings=settings, progress=progress)
    page = render_outcomes(result, title=run.task.name).encode()
    add_to_run(folder, OUTCOME_NUMBERS, lambda path: write_json(path, result))
    add_to_run(folder, OUTCOME_PAGE, lambda path: write_bytes(path, page))
    return [*outcome_lines(result), f"every outcome: {folder / OUTCOME_PAGE}"]


def report_external(run: Path, metrics: dict[str, Any], folder: Path) -> None:
    """Write the report of an external validation to its own folder."""
    write_report(metrics | {"audit": saved_audit(run)}, folder / REPORT)


def report_score(metrics: dict[str, Any], folder: Path) -> None:
    """Write the report of scored predictions to their folder."""
    write_report(metrics, folder / REPORT)


def report_audit(run: Path, audit: dict[str, Any]) -> str:
    """Write the report of a run again, from its metrics and a new audit.

    Returns:
        A line that says so, or a warning if the metrics (of an earlier version, for example) cannot be drawn. Empty
        for a run without a report, or whose metrics or report somebody has edited: nothing is written.
    """
    manifest, metrics = read_manifest(run, what="a finished run", verify=False), read_result(run)
    if metrics is None or REPORT not in set(manifest["files"]) - set(altered(run, manifest)):
        return ""
    summary = audit_summary(run)
    checks = (metrics.get("checks") or {}) | {"audit": summary, "predictor_cutoff": predictor_cutoff(summary)}
    try:
        page = render(metrics | {"audit": audit, "checks": checks}).encode()
    except Exception as error:
        return f"warning: {run / REPORT} does not show this audit; run ehrseq evaluate again ({error})"
    add_to_run(run, REPORT, lambda path: write_bytes(path, page))
    return f"report: {run / REPORT}"
