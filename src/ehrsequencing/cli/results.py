"""What commands tell at their end: which epoch a training kept and why, and the main results of an evaluation."""

from pathlib import Path
from typing import Any

from ehrsequencing.core.files import read_json, read_json_lines
from ehrsequencing.core.outputs import HISTORY, RUN, read_manifest
from ehrsequencing.evaluation.results import SHARED
from ehrsequencing.prediction.run import Run


def kept_epochs(run: Path) -> tuple[list[str], dict[str, Any]]:
    """Which epoch a finished run kept and why, one line per model; and the same as facts for `--json`."""
    manifest, training = read_manifest(run, what=RUN.what, verify=False), Run(run).study.training
    history, members = read_json_lines(run / HISTORY), manifest.get("members")
    lines, facts = [], []
    for number, member in enumerate(members or [manifest], start=1):
        rows = [row for row in history if row.get("member", 1) == number]
        kept = next((row for row in rows if row["epoch"] == member.get("best_epoch")), None)
        if kept is None:
            continue
        who = f"model {number}: " if members else ""
        stopped = (
            f"training stopped early, after {training.patience} epochs without a gain"
            if len(rows) < training.epochs
            else f"training ran all {training.epochs} epochs"
        )
        lines.append(
            f"{who}kept epoch {kept['epoch']} of {len(rows)}, whose tuning NLL is lowest ({kept['tuning_nll']:.4f}); "
            f"{stopped}"
        )
        facts.append(
            {"epoch": kept["epoch"], "epochs": len(rows), "tuning_nll": kept["tuning_nll"]}
        )
    told = {
        "kept": facts,
        "tuning_nll": manifest.get("tuning_nll"),
        "parameters": manifest.get("parameters"),
    }
    if parts := manifest.get("blend", {}).get("tuning_nll"):
        whole, *alone = parts.items()
        lines.append(
            f"tuning NLL of the {whole[0]}: {whole[1]:.4f} ({', '.join(f'{k} {v:.4f}' for k, v in alone)})"
        )
        told["blend_tuning_nll"] = parts
    return lines, told


def main_results(folder: Path) -> dict[str, Any]:
    """The cause of interest as rows for `--json`, from `metrics.json`: for real people it holds what may be shared."""
    metrics = read_json(folder / SHARED)
    cause = metrics["causes"][0]
    kept = ("model", "metric", "landmark_days", "horizon_days", "value", "low", "high", "reason")
    rows = [
        {key: row.get(key) for key in kept} for row in metrics["metrics"] if row["cause"] == cause
    ]
    named = {"cause": cause, "strongest": metrics.get("strongest")}
    return {**named, "metrics": rows, "warnings": metrics.get("warnings", [])}
