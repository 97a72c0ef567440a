"""How many subjects and events an interval or a comparison needs, and how small a count may be shown.

With very few subjects all resamples agree: a C of 1.000 gets the interval 1.000 to 1.000. Such an interval claims a
certainty that is not there, and it shows how few the events are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Bools

FEWEST_EVENTS, FEWEST_SUBJECTS = 10, 50
SMALLEST_COUNT = 11  # people behind a count or a code that is named: fewer may point at a person
#: Reasons why a row has no interval.
TOO_FEW, BIASED = "too few events", "biased under resampling"


def too_few(events: ArrayLike, subjects: ArrayLike) -> Bools:
    """Whether there are too few to compare: under 10 subjects with the event, or under 50 subjects.

    >>> too_few([9, 10, 200], [500, 50, 49]).tolist()
    [True, False, True]
    """
    return (np.asarray(events) < FEWEST_EVENTS) | (np.asarray(subjects) < FEWEST_SUBJECTS)


def shareable_count(count: int | None) -> int | str | None:
    """A count that takes part in no sum, for a file that people may share.

    >>> shareable_count(0), shareable_count(10), shareable_count(1100)
    (0, '<11', 1100)
    """
    return f"<{SMALLEST_COUNT}" if count is not None and 0 < count < SMALLEST_COUNT else count


def judged_by_splits(counts: Sequence[float], share: float) -> float:
    """How many of the cohort at least one of several random splits holds out, from what each holds out on average.

    A split holds out a share p of the cohort, and so p of those counted: the cohort has mean(counts) / p of them, and
    J splits miss each with the chance (1 − p)^J.

    Args:
        counts: A number a split: its held-out subjects, or those of them with the event.
        share: Held-out share p of all subjects.

    Example:
        Four splits with five events each of a fifth of the cohort: 25 events, of which 1 − .8⁴ = 59 % are held out.

        >>> round(judged_by_splits([5, 5, 5, 5], 0.2), 2)
        14.76
    """
    if not counts or not 0 < share <= 1:
        return math.nan
    return float(np.mean(counts)) / share * (1.0 - (1.0 - share) ** len(counts))
