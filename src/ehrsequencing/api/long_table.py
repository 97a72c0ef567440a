"""The rows of `metrics.json` as a frame, and the number that a line about a run names."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from ehrsequencing.config import format_days
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.text import day_of
from ehrsequencing.results.result_types import MetricRow, Shared, place_of

Row = TypeVar("Row", bound=Mapping[str, Any])
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


def long_table(rows: Sequence[MetricRow[int | str]], first: str) -> pd.DataFrame:
    """Long rows of `metrics.json` as a frame; `first` is what the column of models is called."""
    table = pd.DataFrame([dict(row) for row in rows], columns=[*MetricRow.__annotations__])
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


def main_c(result: Shared) -> str:
    """C of the first cause at the main landmark and horizon, with its interval."""
    cause, horizon = result["causes"][0], result["main"]["horizon_days"]
    place = (result["models"][0], result["main"]["landmark_days"], cause, horizon, "c")
    rows = (
        row for row in result["metrics"] if (row["model"], *place_of(row), row["metric"]) == place
    )
    row = next(rows, None)
    if row is None or row["value"] is None:
        why = row and row["reason"]
        return f"{why or 'undefined'} for {cause} by {format_days(horizon)}"
    limits = "" if row["low"] is None else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['value']:.2f}{limits} for {cause} by {format_days(horizon)}"


def known_day(what: str, given: str | float, known: Sequence[float]) -> float:
    """A landmark or horizon in days, which must be one that was evaluated."""
    days = day_of(given, where=what)
    if not any(abs(days - one) < 1e-9 for one in known):
        raise EhrseqError(
            f"{format_days(days)} was not evaluated",
            where=what,
            fix=f"use one of {', '.join(map(format_days, known))}",
        )
    return days


def rows_at(rows: Sequence[Row], *, landmark: float, cause: str, horizon: float) -> list[Row]:
    """The rows of one landmark, cause and horizon."""
    return [row for row in rows if place_of(row) == (landmark, cause, horizon)]
