"""Rows of measurements → Markdown tables."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bench.measure import quartiles

Row = dict[str, Any]


def median_first(values: Sequence[float]) -> list[float]:
    """Median, lower and upper quartile."""
    low, middle, high = quartiles(values)
    return [middle, low, high]


def say(row: Row) -> None:
    """Progress on stderr, in a line."""
    shown = {key: value for key, value in row.items() if key not in ("turns", "shape", "torch")}
    print(json.dumps(shown, default=float), file=sys.stderr, flush=True)


def spread(values: Sequence[float] | None) -> str:
    """Median and quartiles: `12.3 [11.9, 12.8]`."""
    if values is None:
        return "-"
    digits = [f"{value:,.0f}" if values[0] >= 100 else f"{value:.3g}" for value in values]
    return f"{digits[0]} [{digits[1]}, {digits[2]}]"


def show(title: str, columns: dict[str, Callable[[Row], str]], rows: Sequence[Row]) -> None:
    """Print a Markdown table; a failed row says why in its last cell."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        if "failed" in row:
            cells = [
                row["data"],
                row["contender"],
                *["-"] * (len(columns) - 3),
                f"did not run: {row['failed']}",
            ]
        else:
            cells = [cell(row) for cell in columns.values()]
        print(f"| {' | '.join(cells)} |")


def show_prepare(rows: Sequence[Row]) -> None:
    show(
        "Preprocessing: MEDS → what training reads",
        {
            "data": lambda r: r["data"],
            "by": lambda r: r["contender"],
            "events": lambda r: f"{r['events']:,}",
            "events per CPU-second": lambda r: f"{r['events_per_cpu_second']:,.0f}",
            "per further event": lambda r: (
                f"{r['further_events_per_cpu_second']:,.0f}"
                if "further_events_per_cpu_second" in r
                else "-"
            ),
            "CPU s": lambda r: f"{r['cpu_seconds']:.1f}",
            "wall s": lambda r: f"{r['seconds']:.1f}",
            "peak MiB": lambda r: f"{r['peak_mib']:.0f}",
        },
        rows,
    )


def show_turns(title: str, rows: Sequence[Row], extra: dict[str, Callable[[Row], str]]) -> None:
    show(
        title,
        {
            "data": lambda r: r["data"],
            "by": lambda r: r["contender"],
            "batch": lambda r: str(r["batch"]),
            **extra,
            "subjects per second": lambda r: spread(r["subjects_per_second"]),
            "ours ÷ theirs": lambda r: spread(r.get("ours_times_faster")),
            "the same per CPU-second": lambda r: spread(r.get("ours_times_faster_cpu")),
            "peak MiB above start": lambda r: f"{r['peak_mib']:.0f}",
        },
        rows,
    )
