"""Scored files: the columns that name a row, rows by key, and what scoring looks like to a test."""

from collections.abc import Callable
from typing import Any

import pandas as pd

KEY = ["subject_id", "prediction_time", "cause", "horizon_days"]
Score = Callable[..., dict[str, Any]]  # a table and options of `score` → the result


def by_key(rows: list[dict[str, Any]], ours: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    names = ("model", "landmark_days", "cause", "horizon_days", "metric")
    return {tuple("ours" if row[n] == ours else row[n] for n in names): row for row in rows}


def first(table: pd.DataFrame, column: str) -> Any:
    return table[column].iloc[0]
