"""What is counted and kept of records: the keys of a prepared set's JSON files, and whether a rule acts unequally."""

from typing import Any, Generic, NotRequired, TypedDict, TypeVar

N = TypeVar("N")  # a count of people: an int, or int | str where it may be shared


class Step(TypedDict, Generic[N]):
    """How many are left after a step of the flow, and how many it leaves out."""

    step: str
    subjects: N
    excluded: N
    indexes: NotRequired[int]  # not of a draw, as the next two
    died: NotRequired[
        int
    ]  # of those who are left, people who are known to be dead; since 3.0, as the next
    outcomes: NotRequired[int]  # those with a code of the outcome, whenever it is


class RecordsBefore(TypedDict, Generic[N]):
    """Of the subjects with a prediction at a landmark, those whose first record comes later or never."""

    landmark_days: float
    subjects: N
    without_record_before: N
    first_record_later: N


class CohortCounts(TypedDict):
    """A task's cohort: all of it, or one split."""

    steps: list[Step[int]]
    prediction_times: int
    queries: int
    followed: dict[str, int]  # how the follow-up ends
    events: dict[str, int]  # `censored` or cause → subjects
    records_before: list[RecordsBefore[int]]


class Attrition(CohortCounts):
    """The content of `attrition.json`."""

    outcomes_that_end_the_record: int
    same_day: NotRequired[
        list[int]
    ]  # since 3.0: causes dated by the day of an index, after and before it
    ended_by_death: int
    follow_up: dict[str, int]  # of `count_ends` and `compare_end`
    other_spellings: dict[str, int]  # code → training subjects
    # since 3.0, where a death has no date: `people` whose follow-up ends at their last sign of life; and the risk of
    # the first cause by `horizon_days` if all are `censored` there, and if all `died`
    undated: NotRequired[dict[str, float]]
    splits: dict[str, CohortCounts]
    outcomes: NotRequired[dict[str, Any]]  # counts of `choose_outcomes`


class PeopleCounts(TypedDict, Generic[N]):
    """How many people there are, who has each code, and what their records are like: the content of `people.json`."""

    people: N  # rounded, as are those of codes
    codes: dict[str, tuple[int, int]]  # people with the code, and with a number of it
    measures: NotRequired[dict[str, list[float]]]  # name → 129 quantiles
    visits_a_year: NotRequired[float]
    risks: NotRequired[
        dict[str, list[float]]
    ]  # of a run: at which prediction times → 129 quantiles


Rounded = int | str | None  # a count as `shareable_count` gives it
TrainingPeople = PeopleCounts[int]  # of 11 people or more
# made-up records, column by column (subject, day, code, value): the content of `reference.json`; a run's has `risk` too
Reference = dict[str, list[Any]]

# below and above which a rule acts unequally: probability, difference of shares
_CHANCE, _FAR = 1e-6, 0.2


def unequal(touched: tuple[int, int], people: tuple[int, int]) -> bool:
    """Whether a rule touches another share of two groups, beyond chance (Fisher's exact test) and by a fifth or more.

    >>> unequal((45, 100), (60, 1000)), unequal((5, 1), (10, 10)), unequal((150, 1000), (300, 10000))
    (True, False, True)
    """
    shares = [some / max(n, 1) for some, n in zip(touched, people, strict=True)]
    if min(people) == 0 or abs(shares[0] - shares[1]) < _FAR:
        return False
    import numpy as np  # scipy has this test and takes half a second to load

    total = sum(touched)
    first = np.arange(max(0, total - people[1]), min(total, people[0]) + 1)  # in the first group
    log_factorial = np.cumsum(np.log(np.maximum(np.arange(sum(people) + 1), 1)))
    cells = np.array([first, people[0] - first, total - first, people[1] - total + first])
    log_chance = -log_factorial[cells].sum(axis=0)
    chance = np.exp(log_chance - log_chance.max())
    as_rare = log_chance <= log_chance[touched[0] - first[0]] + 1e-7
    return bool(chance[as_rare].sum() < _CHANCE * chance.sum())
