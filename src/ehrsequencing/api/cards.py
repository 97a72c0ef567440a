"""Cards for a notebook, and the numbers on them."""

import html
from collections.abc import Sequence
from typing import Any

from ehrsequencing.config import format_days
from ehrsequencing.evaluation.comparison import OURS


def card(title: str, facts: dict[str, str]) -> str:
    """A small table for a notebook; works in light and dark themes."""
    cell = "style='text-align:left;padding:2px 12px 2px 0;vertical-align:top'"
    rows = "".join(
        f"<tr><th {cell} scope='row'>{html.escape(name)}</th><td {cell}>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return (
        "<div style='border:1px solid #8886;border-radius:6px;padding:8px 14px;display:inline-block'>"
        f"<b>{html.escape(title)}</b><table style='margin:4px 0 0'>{rows}</table></div>"
    )


def main_horizon(horizons_days: Sequence[float]) -> float:
    """The horizon that a card tells of: the middle one."""
    return float(horizons_days[len(horizons_days) // 2])


def main_c(told: dict[str, Any]) -> str:
    """C of the first cause by the main horizon at the first landmark, with its interval."""
    cause, horizon = told["causes"][0], main_horizon(told["horizons_days"])
    landmark, ours = told["landmarks_days"][0], (told.get("models") or [OURS])[0]
    for row in told["metrics"]:
        place = (
            row["model"],
            row["metric"],
            row["cause"],
            row["horizon_days"],
            row["landmark_days"],
        )
        if place == (ours, "c", cause, horizon, landmark) and row["value"] is not None:
            limits = "" if row["low"] is None else f" ({row['low']:.2f} to {row['high']:.2f})"
            return f"{row['value']:.2f}{limits} for {cause} by {format_days(horizon)}"
    return f"undefined for {cause} by {format_days(horizon)}"
