"""The metric table as text, for the end of a command."""

from collections.abc import Mapping
from typing import Any

from ehrsequencing.config import format_days

COLUMNS = ("c", "auc", "ipa", "brier", "oe")


def metric_lines(metrics: Mapping[str, Any]) -> list[str]:
    """One line per landmark, cause, horizon and model, each metric with its interval.

    Args:
        metrics: Content of `metrics.json`.
    """
    found = {
        (m["landmark_days"], m["cause"], m["horizon_days"], m["model"], m["metric"]): m for m in metrics["metrics"]
    }
    places = dict.fromkeys(key[:3] for key in found if key[2] is not None)
    lines = []
    for landmark, cause, horizon in places:
        lines += [
            f"{cause} within {format_days(horizon)}, {_place(landmark)}",
            f"  {'':18}" + "".join(f"{c:^21}" for c in COLUMNS),
        ]
        for model in metrics["models"]:
            cells = [_cell(found.get((landmark, cause, horizon, model, column))) for column in COLUMNS]
            lines.append(f"  {model:18}" + "".join(f"{cell:^21}" for cell in cells))
    for m in metrics["metrics"]:
        if m["metric"] == "nll":
            lines.append(f"NLL of {m['model']}, {_place(m['landmark_days'])}: {m['value']:.4f}")
    return lines


def _place(landmark_days: float | None) -> str:
    return "all prediction times" if landmark_days is None else f"{format_days(landmark_days)} after the index"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return "undefined"
    interval = f" ({row['low']:.3f}–{row['high']:.3f})" if row["low"] is not None and row["high"] is not None else ""
    return f"{row['value']:.3f}{interval}"
