"""The codes that move the risk: one figure and one table of mean effects.

In: `codes` of `metrics.json`. Out: text, and a figure in percentage points.
"""

from collections.abc import Mapping
from typing import Any

from ehrsequencing.reporting import figures
from ehrsequencing.reporting.chart import Estimate
from ehrsequencing.reporting.wording import duration, percent, with_interval

MOST_NAMED = 3  # codes of each sign in the sentence of the short page
LEAST_NAMED = 0.0005  # smaller effects would be printed there as none


def codes(m: Mapping[str, Any]) -> dict[str, Any] | None:
    """Rows, a figure, and the codes to name in a sentence; None where nothing was explained."""
    found = m.get("codes")
    if not found or not found["codes"]:
        return None
    rows, estimates = list[tuple[str, str, str, str]](), list[tuple[str, list[Estimate]]]()
    for row in found["codes"]:
        value, low, high = (
            None if row[name] is None else 100 * row[name] for name in ("effect", "low", "high")
        )
        rows.append(
            (
                row["code"],
                row["description"] or "",
                _share(row["share"]),
                with_interval(value, low, high, "+.2f"),
            )
        )
        estimates.append(
            (figures.shorten(row["code"], 20), [Estimate(0, row["code"], value, low, high)])
        )
    by = f"{found['cause']} by {duration(found['horizon_days'])}"
    drawn = figures.forest(
        estimates,
        title=f"Effect of codes on the risk of {by}",
        label="change in risk, percentage points",
        reference=0.0,
        floor=-100.0,
        form="+.2f",
    )
    sure = [
        row
        for row in found["codes"]
        if row["low"] is not None and (row["low"] > 0 or row["high"] < 0)
    ]
    clear = [row for row in sure if abs(row["effect"]) >= LEAST_NAMED]
    return {
        "question": by,
        "subjects": found["subjects"],
        "risk": percent(found["risk"]),
        "rows": rows,
        "figure": drawn,
        "raise": _named([row for row in clear if row["effect"] > 0]),
        "lower": _named([row for row in clear if row["effect"] < 0]),
    }


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _named(rows: list[Mapping[str, Any]]) -> list[str]:
    """Codes in words, with their effects."""
    return [
        f"{row['description'] or row['code']} ({100 * row['effect']:+.1f})"
        for row in rows[:MOST_NAMED]
    ]
