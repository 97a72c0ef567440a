"""Writes the report: after `ehrseq evaluate` and external validation, again after `ehrseq audit`, and on request.

Goes in: a run, and the results of an evaluation or an audit. Come out: the pages, in the folder that they belong to.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_bytes, write_json
from ehrsequencing.core.outputs import altered, read_manifest
from ehrsequencing.evaluation.context import audit_summary, predictor_cutoff, read_tripod
from ehrsequencing.evaluation.outcome_table import Progress, evaluate_outcomes
from ehrsequencing.evaluation.repeated_splits import add_splits
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.prediction.run import Run, add_to_run, require_room, saved_audit
from ehrsequencing.reporting.outcomes import outcome_lines, render_outcomes
from ehrsequencing.reporting.report import ANSWER, PAGES, pages, write_report

OUTCOME_NUMBERS, OUTCOME_PAGE = "outcome-metrics.json", "outcomes.html"


def report_evaluation(run: Path, metrics: dict[str, Any]) -> None:
    """Write the report of an evaluation, with the repeated splits and the audit that the run has."""
    audit = saved_audit(run)
    metrics = add_splits(run, metrics) | {"audit": audit}
    _add_pages(run, metrics)


def report_outcomes(
    folder: Path,
    *,
    split: str,
    prepared: Path | None,
    settings: EvaluationConfig,
    progress: Progress,
) -> list[str]:
    """Evaluate every outcome of a run, and write its numbers and its page; both may be shared.

    Returns:
        Lines for the terminal; none where the run has no outcomes.
    """
    run = Run(folder)
    if not run.outcomes:
        return []
    result = evaluate_outcomes(
        run, run.prepared(prepared), split=split, settings=settings, progress=progress
    )
    page = render_outcomes(result, title=run.task.name).encode()
    add_to_run(folder, OUTCOME_NUMBERS, lambda path: write_json(path, result))
    add_to_run(folder, OUTCOME_PAGE, lambda path: write_bytes(path, page))
    return [*outcome_lines(result), f"every outcome: {folder / OUTCOME_PAGE}"]


def report_external(run: Path, metrics: dict[str, Any], folder: Path) -> None:
    """Write the report of an external validation to its own folder."""
    write_report(metrics | {"audit": saved_audit(run)}, folder)


def report_score(metrics: dict[str, Any], folder: Path) -> None:
    """Write the report of scored predictions to their folder."""
    write_report(metrics, folder)


def report_audit(run: Path, audit: dict[str, Any]) -> str:
    """Write the report of a run again, from its metrics and a new audit.

    Returns:
        A line that says so, or a warning if the metrics (of an earlier version, for example) cannot be drawn. Empty
        for a run without a report, or whose metrics or report somebody has edited: nothing is written.
    """
    manifest, metrics = read_manifest(run, what="a finished run", verify=False), read_result(run)
    if metrics is None or ANSWER not in set(manifest["files"]) - set(altered(run, manifest)):
        return ""
    try:
        drawn = pages(_with_audit(run, metrics, audit))
    except Exception as error:
        return (
            f"warning: {run / ANSWER} does not show this audit; run ehrseq evaluate again ({error})"
        )
    _add_drawn(run, drawn)
    return f"report: {run / ANSWER}"


def redraw(run: Path, *, tripod: Path | None = None) -> Path:
    """Draw the report of a run again from what its evaluation and its audit found.

    Args:
        run: A run that has been evaluated.
        tripod: Answers of people (`evaluation.tripod`) instead of those that the evaluation knew.

    Returns:
        The file of the answer.

    Raises:
        EhrseqError: The run has no results, or somebody has edited them or the pages.
    """
    metrics = read_result(run)
    if metrics is None:
        fix = f"run ehrseq evaluate {run}"
        raise EhrseqError(
            "has no results of an evaluation, or they have been edited", where=str(run), fix=fix
        )
    if tripod is not None:
        metrics = metrics | {"tripod": read_tripod(tripod)}
    audit = saved_audit(run)
    _add_pages(run, metrics if audit is None else _with_audit(run, metrics, audit))
    return run / ANSWER


def _with_audit(run: Path, metrics: Mapping[str, Any], audit: dict[str, Any]) -> dict[str, Any]:
    summary = audit_summary(run)
    checks = (metrics.get("checks") or {}) | {
        "audit": summary,
        "predictor_cutoff": predictor_cutoff(summary),
    }
    return {**metrics, "audit": audit, "checks": checks}


def _add_pages(run: Path, metrics: Mapping[str, Any]) -> None:
    require_room(run, *PAGES)
    _add_drawn(run, pages(metrics))


def _add_drawn(run: Path, drawn: Mapping[str, str]) -> None:
    for name, page in drawn.items():
        text = page.encode()
        add_to_run(run, name, lambda path, text=text: write_bytes(path, text))  # type: ignore[misc]
