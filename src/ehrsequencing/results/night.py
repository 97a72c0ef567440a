"""Redact what `ehrseq monitor` says, for the line of JSON and the metrics that leave the host every night.

Two nights must not differ by 1 to 10 people. So events are shown in steps of 15, and everything that follows from them
(expected events, O − E, O/E, the evidence) is that of the day on which the step was reached.
"""

from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import rounded
from ehrsequencing.core.files import Shareable

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
