"""Writes `report.html`: after `ehrseq evaluate`, after external validation, and again after `ehrseq audit`.

Goes in: a run, and the results of an evaluation or an audit. Comes out: the page, in the folder that it belongs to.
"""

from pathlib import Path
from typing import Any

from ehrsequencing.evaluation.context import audit_summary, predictor_cutoff
from ehrsequencing.evaluation.repeated_splits import add_splits
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.reporting.report import render, write_report
from ehrsequencing.run import add_to_run, saved_audit
from ehrsequencing.storage import altered, read_manifest, write_bytes

REPORT = "report.html"


def report_evaluation(run: Path, metrics: dict[str, Any]) -> None:
    """Write the report of an evaluation, with the repeated splits and the audit that the run has."""
    metrics = add_splits(run, metrics) | {"audit": saved_audit(run)}
    add_to_run(run, REPORT, lambda path: write_report(metrics, path))


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
