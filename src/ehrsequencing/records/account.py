"""What is counted and kept of records, as types: the keys of a prepared set's JSON files."""

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


class Undated(TypedDict):
    """What deaths without a date may mean for the risk of a task's first cause."""

    people: int  # with a prediction time, whose follow-up ends at their last sign of life
    horizon_days: float
    censored: float  # the risk by then, if all are censored there
    died: float  # if all died there


class CohortCounts(TypedDict):
    """A task's cohort: all of it, or one split."""

    steps: list[Step[int]]
    prediction_times: int
    queries: int
    followed: dict[str, int]  # how the follow-up ends
    events: dict[str, int]  # `censored` or cause → subjects
    records_before: list[RecordsBefore[int]]


class OutcomeCounts(TypedDict):
    """How many codes are outcomes, too rare for one, or births, deaths, causes and ends of follow-up."""

    kept: int
    rare: int
    ends: int
    unmatched: list[str]  # patterns that match no code


class Attrition(CohortCounts):
    """The content of `attrition.json`."""

    outcomes_that_end_the_record: int
    same_day: NotRequired[
        list[int]
    ]  # since 3.0: causes dated by the day of an index, after and before it
    ended_by_death: int
    follow_up: dict[str, int]  # of `count_ends` and `compare_end`
    other_spellings: dict[str, int]  # code → training subjects
    undated: NotRequired[Undated]  # since 3.0, where there is such a person
    splits: dict[str, CohortCounts]
    outcomes: NotRequired[OutcomeCounts]


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
