"""What a blend stores of history features, names, cuts and ranges, and how many training subjects are behind each."""

import numpy as np

from ehrsequencing.baselines.blend.blend import Blend, in_parts
from ehrsequencing.baselines.history import history_features
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.records.timelines import TaskRecords

# features that are above 0 where somebody has the code, by the start of their names
_NAMED = (
    "count ",
    "static ",
)


def of_few_people(blend: Blend, train: TaskRecords, needed: int) -> tuple[int, int]:
    """How many stored names and numbers are those of too few training subjects, and how many there are.

    Each of these needs enough subjects: a name of a code or a pair of codes (who have it); a number that is somebody's
    value (who share it); a bin between two cuts (whose values lie there); a mark of absence (who lack the feature).

    Args:
        blend: Of the audited run.
        train: Visits and prediction times of the training subjects.
        needed: Subjects.
    """
    boosted, design = blend.boosted, blend.cox.design
    people: dict[
        tuple[str, int], Ints
    ] = {}  # subjects behind each thing, added up over pieces of the records
    for _, part in in_parts(train):
        subject, every = part.rows.subject, np.arange(len(part))
        for kind, columns in (("boosted", boosted.columns), ("cox", design.columns)):
            history = history_features(part, boosted.vocabulary, chosen=every, columns=columns)
            for f, name in enumerate(columns.names):
                if name.startswith(_NAMED):
                    _add(people, (f"{kind} name", f), _distinct(subject, history[:, f] > 0))
            if kind == "boosted":
                for f in boosted.used.tolist():
                    cuts, known = boosted.cuts[f], ~np.isnan(history[:, f])
                    lowest = 1 if np.isneginf(cuts[0]) else 0
                    value, who = history[known, f].astype(np.float64), subject[known]
                    bins = np.searchsorted(cuts, value) - lowest
                    _add(people, ("bin", f), _in_each(bins, who, len(cuts) + 1 - lowest))
                    _add(people, ("cut", f), _holders(cuts, value, who))
                    if lowest:
                        _add(people, ("lacking", f), _distinct(subject, ~known))
                continue
            values = design.logarithms(history)
            for u, f in enumerate(design.used.tolist()):
                numbers = np.array([design.low[u], design.fill[u], design.high[u]])
                _add(people, ("range", f), _holders(numbers, values[:, f], subject))
            for f in design.marked:
                unknown = np.isnan(history[:, f])
                _add(
                    people,
                    ("mark", f),
                    np.r_[_distinct(subject, unknown), _distinct(subject, ~unknown)],
                )
    few = sum(
        int(((n < needed) & ((n > 0) | (kind not in ("cut", "range")))).sum())
        for (kind, _), n in people.items()
    )
    return few, sum(map(len, people.values()))


def _add(people: dict[tuple[str, int], Ints], key: tuple[str, int], more: Ints) -> None:
    people[key] = people[key] + more if key in people else more


def _distinct(subject: Ints, chosen: Bools) -> Ints:
    return np.array([len(np.unique(subject[chosen]))])


def _in_each(group: Ints, subject: Ints, groups: int) -> Ints:
    """(groups,) distinct subjects of the rows of each group."""
    size = int(subject.max(initial=0)) + 1
    return np.bincount(np.unique(group * size + subject) // size, minlength=groups)


def _holders(numbers: Floats, values: Floats, subject: Ints) -> Ints:
    """(n,) how many subjects have each number as a value; numbers rise."""
    at = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
    same = numbers[at] == values
    held = _in_each(at[same], subject[same], len(numbers))
    return held[np.searchsorted(numbers, numbers)]  # equal numbers have the same holders
