"""How new records differ from those that a run was trained on: numbers on another scale, and codes that are absent."""

from collections.abc import Sequence

import numpy as np

from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.survey import TokenRows

FEWEST_NUMBERS = 20  # of a code that is judged
MOST_OUTSIDE = 0.9  # share of a code's numbers
COMMON = 0.5  # share of the training people who have a code that should not be absent
MOST_NAMED = 5  # codes in one sentence


def differences(counts: TokenRows, outcomes: Sequence[CodeMatcher] = ()) -> list[str]:
    """How records differ from the training data, one sentence for each kind; empty where nothing stands out.

    Args:
        counts: Of the records, by the vocabulary of the run.
        outcomes: Codes that people who are asked about need not have.
    """
    vocabulary, codes = counts.vocabulary, counts.vocabulary.codes
    own = slice(vocabulary.n_unknown, vocabulary.n_unknown + len(codes))
    without, inside, outside = counts.by_number[own].T
    numbers = inside + outside
    share_outside = outside / np.maximum(numbers, 1)
    # codes whose numbers, of a few people, are one group: it has a mean and no percentiles
    is_group = (vocabulary.knots[:, 0] == vocabulary.knots[:, -1]) & (vocabulary.sd != 1.0)
    has_range = ~np.append(is_group, True)[vocabulary.scale[own]]
    is_unlike = has_range & (numbers >= FEWEST_NUMBERS) & (share_outside > MOST_OUTSIDE)
    share = vocabulary.share if len(vocabulary.share) else np.zeros(len(codes))
    expected = ~np.array([any(one(code) for one in outcomes) for code in codes], dtype=bool)
    # only common codes among enough people: with fewer, even a common code may be absent by chance
    is_judged = expected & (share >= COMMON) & (counts.subjects >= SMALLEST_COUNT)
    is_absent = is_judged & (without + numbers == 0)
    kinds = (
        (
            "nearly all numbers lie outside the 1st to 99th percentile of the training data: compare the"
            " units of",
            is_unlike,
            share_outside,
        ),
        (
            "nobody has a code that at least half of the training people had: compare the names of",
            is_absent,
            share,
        ),
    )
    sentences = []
    for what, is_named, of_code in kinds:
        order = sorted(np.flatnonzero(is_named).tolist(), key=(-of_code).__getitem__)
        named = ", ".join(f"{codes[k]} ({of_code[k]:.0%})" for k in order[:MOST_NAMED])
        others = f" and {len(order) - MOST_NAMED} more" if len(order) > MOST_NAMED else ""
        if named:
            sentences.append(f"{what} {named}{others}")
    return sentences
