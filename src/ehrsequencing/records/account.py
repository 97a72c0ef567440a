"""What is counted and kept of records, as types: the keys of a prepared set's JSON files."""

from typing import Any, Generic, NotRequired, TypedDict, TypeVar

N = TypeVar("N")  # a count of people: an int, or int | str where it may be shared


class Step(TypedDict, Generic[N]):
    """How many are left after a step of the flow, and how many it leaves out."""

    step: str
    subjects: N
    excluded: N
    indexes: NotRequired[int]  # not of a draw


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
    splits: dict[str, CohortCounts]
    outcomes: NotRequired[OutcomeCounts]


class PeopleCounts(TypedDict, Generic[N]):
    """How many people there are, and who has each code; rounded."""

    people: N
    codes: dict[str, tuple[int, int]]  # people with the code, and with a number of it


class PeopleMeasures(PeopleCounts[N], Generic[N]):
    """The content of a prepared set's `people.json`: what its training people's records are like."""

    measures: dict[str, list[float]]  # name → 129 quantiles
    visits_a_year: float
    rates: dict[str, tuple[float, float]]  # code → mean and SD of its rows a visit


class PeopleRisks(PeopleMeasures[N], Generic[N]):
    """The content of a run's `people.json`."""

    risks: dict[str, list[float]]  # at which prediction times → 129 quantiles


Rounded = int | str | None  # a count as `shareable_count` gives it
TrainingPeople = PeopleRisks[int]  # of 11 people or more


class ReferenceColumns(TypedDict):
    """Made-up records, column by column: the content of a prepared set's `reference.json`."""

    subject: list[int]
    day: list[int]
    code: list[str]
    value: list[float]


class Reference(ReferenceColumns):
    """The content of a run's `reference.json`."""

    risk: list[list[list[float]]]  # (visits, causes, horizons)


# ---- manifests, which `core.outputs` writes and checks ----


class Manifest(TypedDict):
    """What every manifest has."""

    kind: str
    files: dict[str, str]  # name → SHA-256
    required: NotRequired[list[str]]  # files that must stay as they are; all, where it is missing


# how the records were imported: `known`, and `time_zone` where the source had none
Imported = TypedDict("Imported", {"import": NotRequired[dict[str, Any]]})


class PreparedManifest(Manifest, Imported):
    """Of a prepared set."""

    data: str  # what the data set calls itself
    data_path: str
    simulated: bool
    subjects: int
    dataset_end_us: int
    late_rows: dict[str, Any] | None  # as of `records.meds.LateRows`
    made_of: dict[str, str]  # digests
    excluded: list[str]  # patterns of codes
    vocabulary: str  # a digest
    tasks: list[str]
    known_training_rows: float
    fixes: dict[str, int]
