"""Observed over expected events, as they may leave: of counts that are shown, so that no ratio tells a count.

`redaction.py` is the door; `disclosure.py` has the rules.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import nearest, rounded, stands_for
from ehrsequencing.core.files import Shareable
from ehrsequencing.results.result_types import place_of

Row = Mapping[str, Any]
Cells = Mapping[tuple[Any, Any, Any], tuple[int, int]]


def by_shown_events(row: Row, cells: Cells) -> Row:
    """A row whose O/E counts the events that are shown, so that the ratio tells no more of them than their count.

    Its limits are those of the least and of the largest count that are shown so: a verdict is no effect of rounding.
    """
    events = row.get("events") or (cells.get(place_of(row), (0,))[0] if cells else 0)
    if not events:
        return row
    least, most = stands_for(events)
    by = {"value": nearest(events) / events, "low": least / events, "high": most / events}
    if row.get("metric") == "oe":
        return each_moved(row, by, operator.mul)
    return {**row, "oe": each_moved(row["oe"], by, operator.mul)} if row.get("oe") else row


def each_moved(
    row: Row, by: Mapping[str, float], move: Callable[[float, float], float]
) -> dict[str, Any]:
    """An estimate and its limits, each moved by a number of its own."""
    return {
        **row,
        **{name: move(row[name], to) for name, to in by.items() if row.get(name) is not None},
    }


# ---- what `ehrseq monitor` says every night ----

# Two nights must not differ by 1 to 10 people. So events are shown in steps, and everything that follows from them
# (expected events, O − E, O/E, the evidence) is that of the day on which the step was reached.
STEP = 15


def redact_night(
    facts: dict[str, Any], days: Ints, observed: Floats, expected: Floats, evidence: Floats
) -> Shareable[dict[str, Any]]:
    """Add the counts of one stream to facts that tell nothing of single people.

    Args:
        facts: The verdict, and numbers that need no outcome.
        days: (D,) since 1970.
        observed: (D,) events of each day.
        expected: (D,) what hazards add up to.
        evidence: (D,) the e-process in logarithms.

    Example:
        >>> days, rates = np.arange(40), np.full(40, 0.9)
        >>> shown = redact_night({}, days, np.ones(40), rates, np.zeros(40))
        >>> [shown[name] for name in ("observed", "expected", "oe", "as_of")]
        [30, 27.0, 1.11, '1970-01-30']
    """
    total = np.cumsum(observed)
    steps = int(total[-1]) // STEP * STEP if len(total) else 0
    if not steps:
        return Shareable({**rounded(facts), "observed": f"<{STEP}", "expected": None, "oe": None})
    place = int(np.argmax(total >= steps))
    shown = float(f"{expected[: place + 1].sum():.3g}")
    return Shareable(
        {
            **rounded(facts),
            "observed": steps,
            "expected": shown,
            "difference": round(steps - shown, 1),
            "oe": round(steps / max(shown, 1e-9), 2),
            "evidence": float(f"{np.exp(min(evidence[place], 300.0)):.2g}"),
            "as_of": str(np.datetime64(int(days[place]), "D")),
        }
    )
