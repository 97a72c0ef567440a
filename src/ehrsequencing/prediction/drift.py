"""How new records differ from those that a run was trained on: numbers on another scale, and codes that are absent."""

from collections.abc import Sequence

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.survey import TokenRows

FEWEST_NUMBERS = 20  # of a code that is judged
MOST_OUTSIDE = 0.9  # share of a code's numbers
COMMON = 0.5  # share of the training people who have a code that should not be absent
MOST_NAMED = 5  # codes in one sentence


def differences(counts: TokenRows) -> list[str]:
    """How records differ from the training data, one sentence for each kind; empty where nothing stands out.

    Args:
        counts: Of the records, by the vocabulary of the run.
    """
    vocabulary, found = counts.vocabulary, []
    first, codes = vocabulary.n_unknown, vocabulary.codes
    own = slice(first, first + len(codes))
    rows, numbers = counts.by_number[own].sum(axis=1), counts.by_number[own, 1:].sum(axis=1)
    outside = counts.by_number[own, 2] / np.maximum(numbers, 1)
    # all numbers of a few people are one group, which has a mean and no percentiles
    flat = (vocabulary.knots[:, 0] == vocabulary.knots[:, -1]) & (vocabulary.sd != 1.0)
    has_range = ~np.append(flat, True)[vocabulary.scale[own]]
    unlike = has_range & (numbers >= FEWEST_NUMBERS) & (outside > MOST_OUTSIDE)
    if unlike.any():
        what = "nearly all numbers lie outside the 1st to 99th percentile of the training data"
        found.append(f"{what}: compare the units of {_named(codes, outside, unlike)}")
    # of fewer people even a common code may be absent by chance
    if len(vocabulary.share) and counts.subjects >= SMALLEST_COUNT:
        absent = (rows == 0) & (vocabulary.share >= COMMON)
        if absent.any():
            what = "nobody has a code that at least half of the training people had"
            found.append(f"{what}: compare the names of {_named(codes, vocabulary.share, absent)}")
    return found


def _named(codes: Sequence[str], share: Floats, chosen: Bools) -> str:
    """The chosen codes with their shares, the largest first."""
    order = sorted(np.flatnonzero(chosen).tolist(), key=lambda place: -share[place])
    named = ", ".join(f"{codes[place]} ({share[place]:.0%})" for place in order[:MOST_NAMED])
    return named if len(order) <= MOST_NAMED else f"{named} and {len(order) - MOST_NAMED} more"
