"""The rows of `metrics.json` as a frame, and the number that a line about a run names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ehrsequencing.config import format_days

_COLUMNS = (
    "model",
    "landmark_days",
    "cause",
    "horizon_days",
    "metric",
    "value",
    "low",
    "high",
    "subjects",
    "events",
    "reason",
)
_ORDER = (
    "landmark",
    "cause",
    "horizon",
    "horizon_days",
    "metric",
    "value",
    "low",
    "high",
    "subjects",
    "events",
    "reason",
)


def long_table(rows: Sequence[Mapping[str, Any]], first: str) -> pd.DataFrame:
    """Long rows of `metrics.json` as a frame; `first` is what the column of models is called."""
    table = pd.DataFrame([dict(row) for row in rows], columns=list(_COLUMNS))
    everywhere = {"landmark": "all prediction times", "horizon": "all horizons"}
    for key, text in everywhere.items():
        days = table[f"{key}_days"]
        table[key] = [text if pd.isna(day) else format_days(day) for day in days]
    numbers = ["horizon_days", "value", "low", "high"]
    table[numbers] = table[numbers].astype(np.float64)
    for key in ("subjects", "events"):
        if any(isinstance(count, str) for count in table[key]):
            table[key] = [None if pd.isna(count) else str(count) for count in table[key]]
    table = table.rename(columns={"model": first})
    return table[[first, *_ORDER]]


def main_c(result: dict[str, Any]) -> str:
    """C of the first cause at the main landmark and horizon, with its interval."""
    cause, (landmark, horizon) = result["causes"][0], result["main"].values()
    place = (result["models"][0], "c", cause, horizon, landmark)
    keys = ("model", "metric", "cause", "horizon_days", "landmark_days")
    row = next((row for row in result["metrics"] if place == tuple(row[key] for key in keys)), None)
    if row is None or row["value"] is None:
        return f"undefined for {cause} by {format_days(horizon)}"
    limits = "" if row["low"] is None else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['value']:.2f}{limits} for {cause} by {format_days(horizon)}"
