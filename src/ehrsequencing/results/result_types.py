"""What the result of an evaluation holds: the keys of `metrics.json`, as types.

`Exact` has every count. `Shared` is what `results.redaction` leaves of it: a count is rounded, or the text `<11`.
"""

from collections.abc import Mapping
from typing import Any, Generic, Literal, NotRequired, TypedDict

from ehrsequencing.records.account import N, RecordsBefore, Step


class Horizon(TypedDict):
    """A horizon after a landmark."""

    landmark_days: float | None  # after the index; None: all prediction times together
    horizon_days: float


class Place(Horizon):
    """What a curve is of."""

    cause: str


class Declared(Place):
    """The comparison that the task declared: it alone gets a verdict."""

    rival: str
    metric: str


class DropoutPart(TypedDict):
    """Drop-out given the history: its rate ratio per sd of the log hazard, and whether all weights go by it."""

    events: int  # people who left
    ratio: float
    low: float
    high: float
    gain: float  # in log-likelihood, of people whom the model had not seen
    by_history: bool


class Interval(TypedDict):
    """A number with its 95 % interval; None: undefined, or of too few people."""

    value: float | None
    low: float | None
    high: float | None
    reason: str | None  # why there is no interval


class MetricRow(Interval, Generic[N]):
    """A metric of a model; in `differences` ours less that of the model."""

    model: str
    landmark_days: float | None
    cause: str
    horizon_days: float | None  # None: all horizons together
    metric: str
    subjects: N
    events: N
    hidden: NotRequired[bool]


class Cell(Place, Generic[N]):
    """The people at a place who could be followed until a horizon, and those of them with the event."""

    n: N
    events: N


class SubgroupRow(Cell[N], Generic[N]):
    """Metrics of a level of a group of people; most have `oe_difference` … to its largest level."""

    group: str
    level: str
    oe: Interval | None
    auc: Interval | None
    brier: Interval | None
    hidden: NotRequired[bool]
    reason: NotRequired[str]


class Histogram(TypedDict):
    """How common each risk is."""

    edges: list[float]
    shares: list[float | None]
    n: NotRequired[list[int]]  # of an exact result


class SmoothRow(Cell[N], Generic[N]):
    """A smooth calibration curve with its band."""

    model: str
    predicted: list[float]
    observed: list[float]
    low: list[float | None]
    high: list[float | None]
    histogram: Histogram


class DecisionRow(Cell[N], Generic[N]):
    """A decision curve: what acting from each threshold means, with `OPERATING_COLUMNS` beside these."""

    model: str
    thresholds: list[float]
    above: list[int]  # people; empty where they may not be told
    events_above: list[int]
    net_benefit: list[float | None]
    low: list[float | None] | None
    high: list[float | None] | None
    treat_all: list[float | None]


class RiskGroup(TypedDict, Generic[N]):
    """Incidence in a group of people with similar risks, at each of `days`."""

    n: N
    predicted: list[float]
    observed: list[float | None]
    low: list[float | None]
    high: list[float | None]
    events: NotRequired[list[int]]  # of an exact result
    at_risk: list[N]  # at each of `tick_days`


class IncidenceRow(Place, Generic[N]):
    """Incidence by risk group, from low to high."""

    days: list[float]
    tick_days: list[float]
    groups: list[RiskGroup[N]]
    everyone: RiskGroup[N]


class AtRisk(TypedDict, Generic[N]):
    """How many are at risk at a landmark."""

    landmark_days: float | None
    subjects: N
    evaluated: list[N]  # by each horizon
    events: dict[str, list[N]]  # cause → by each horizon


class SmallestG(Horizon):
    """The smallest chance of being followed so long."""

    g: float | None
    thin: bool


class DataSize(TypedDict, Generic[N]):
    """The data set, and how large each split is."""

    name: str
    simulated: bool
    subjects: dict[str, N]
    visits: dict[str, N]
    prediction_times: dict[str, N]


class FollowUp(TypedDict):
    """Median follow-up at a landmark with its 95 % interval, by the reverse Kaplan–Meier method."""

    landmark_days: float | None
    median_days: float | None
    low: float | None
    high: float | None
    reason: str | None


class Table1(TypedDict):
    """The subjects of each split at a landmark."""

    landmark_days: float
    columns: list[str]
    rows: list[list[str | list[str]]]  # a name, and the cells of the columns


class Checks(TypedDict):
    """What a reviewer asks of a model, as far as it is known."""

    time_zero: str
    predictor_cutoff: str
    parameters: int | None
    tuning_trials: int | None
    seeds: list[int]
    members: int | None
    trained: str


class Trajectory(TypedDict):
    """A single person under a letter: risks at every prediction time, what was recorded, and what happened."""

    label: str
    risk_horizon_days: float  # of the risk that is followed over time
    outcome: str
    event: dict[str, Any]  # `day`, and `cause`: None where it ended without an event
    times_days: list[float]  # prediction times since the index
    now: int  # number of the one that is shown in full
    kind: list[str]  # `visit` or `query`
    curves: dict[str, list[list[float]]]  # cause → prediction time → risk by each horizon
    horizons_days: list[float]
    visits: list[dict[str, Any]]  # `day` since the index, `codes`
    descriptions: dict[str, str]
    curve_days: NotRequired[list[float]]  # these four of a run; a file of predictions has none
    curve_at: NotRequired[list[int]]  # prediction times whose whole curve is in `full`
    full: NotRequired[dict[str, list[list[float]]]]
    moves: NotRequired[list[dict[str, Any]]]  # `day`, `before`, `after`, `parts` that add up to it
    band: NotRequired[dict[str, dict[str, list[float]]]]  # of an ensemble


class ExcessRow(TypedDict):
    """What the model's hazards cost above the true ones, in nats a prediction time, chance of events removed."""

    kind: str  # visit or query
    from_days: float
    until_days: float
    prediction_times: int
    value: float


class Oracle(TypedDict):
    """The truth of a simulation; of a run also its NLL beside the truth's, as `evaluation.oracle` explains."""

    name: str
    nll_model: NotRequired[float]
    nll_oracle: NotRequired[float]
    nll_difference: NotRequired[float]
    nll_difference_se: NotRequired[float]
    beats_oracle_z: NotRequired[float]
    nll_z: NotRequired[float]
    foresight_z: NotRequired[float]
    prediction_times: NotRequired[int]
    excess: NotRequired[list[ExcessRow]]


# ---- parts that some evaluations have ----


class ExternalPart(TypedDict, Generic[N]):
    """What an external validation says of its people."""

    data: str
    subjects: N
    unknown_token_rate: float | None
    training_unknown_token_rate: float | None
    new_codes: list[dict[str, Any]]  # `code`, and how many `subjects` have it
    unmatched: list[str]
    drift: dict[str, Any]
    seen_in_training: N | None
    people: str  # a digest


class RepeatedRow(TypedDict, Generic[N]):
    """A metric over random splits; in `differences` ours less that of the model."""

    model: str
    landmark_days: float | None
    cause: str
    horizon_days: float | None
    metric: str
    events: N | None
    subjects: N | None
    mean: float | None
    median: float | None
    low: float | None
    high: float | None
    values: list[float | None]
    reason: str | None
    hidden: NotRequired[bool]
    wins: NotRequired[int]  # splits in which ours is better
    of: NotRequired[int]


class RepeatedSplits(TypedDict, Generic[N]):
    """Means over random splits."""

    splits: int
    seeds: list[int]
    train_subjects: NotRequired[list[int]]  # of an exact result
    held_out_subjects: NotRequired[list[int]]
    rows: list[RepeatedRow[N]]
    differences: list[RepeatedRow[N]]


# ---- the audit for leaks ----

Verdict = Literal["passed", "warning", "leak", "not_tested"]


class AuditCheck(TypedDict, Generic[N]):
    """The answer of one check, as of `audit.data.Finding`."""

    name: str
    question: str
    verdict: Verdict
    reason: str
    tested: dict[str, N]  # how many subjects, rows … were looked at
    measured: float | None
    bound: float | None
    matter: dict[str, dict[str, float]] | None  # C and NLL with suspicious codes and without them


class Audit(TypedDict, Generic[N]):
    """The content of `audit.json`."""

    fingerprint: str
    made_of: str
    created: str
    version: str
    task: str
    split: str
    subjects: int  # drawn of each split
    seed: int
    records: bool  # whether the original ones were there
    leaks: int
    warnings: int
    not_tested: int
    checks: list[AuditCheck[N]]


SharedAudit = Audit[int | str]


#: Of a training: `epoch`, `train_nll`, `tuning_nll`, `best`, `seconds` …; in a result `steps` may be hidden.
EpochRow = dict[str, Any]


class Training(TypedDict):
    """What only a run has; of another predictor its name."""

    run: str
    weights: str | None  # a digest
    history: list[EpochRow]
    recalibrated_in_training: bool


class Frame(Training, Generic[N]):
    """Task, data, flow and training: what a report opens and closes with."""

    title: str
    split: str
    created: str
    versions: dict[str, str]
    task: dict[str, Any]
    question: str
    data: DataSize[N]
    causes: list[str]
    horizons_days: list[float]
    landmarks_days: list[float]
    attrition: list[Step[N]]
    events: dict[str, dict[str, N]]  # split → cause or `censored` → people
    records_before: list[RecordsBefore[N]]
    config: dict[str, Any]
    inputs: dict[str, Any]
    audit: SharedAudit | None
    external: ExternalPart[N] | None
    repeated_splits: RepeatedSplits[N] | None
    score: dict[str, Any] | None


class Result(Frame[N], Generic[N]):
    """The content of `metrics.json`."""

    main: Horizon  # of every headline
    table1: Table1 | None
    models: list[str]  # ours, the baselines with the strongest first, others, the truth
    dropout: NotRequired[DropoutPart | None]  # since 3.0; None: too few leave
    marginal: NotRequired[
        list[MetricRow[N]]
    ]  # weighted without the history, where `metrics` go by it
    declared: NotRequired[Declared | None]  # since 3.0; None: the task names no horizon
    estimators: NotRequired[
        dict[str, Any]
    ]  # since 3.0; `oe`: by `hazards`, or by `risks` where a model has no hazards
    strongest: str | None
    baselines: list[dict[str, Any]]  # `model`, `tuning_nll`
    metrics: list[MetricRow[N]]
    differences: list[MetricRow[N]]
    at_risk: list[AtRisk[N]]
    follow_up: list[FollowUp]
    smallest_g: list[SmallestG]
    subgroups: list[SubgroupRow[N]]
    smooth_calibration: list[SmoothRow[N]]
    decision: list[DecisionRow[N]]
    incidence: list[IncidenceRow[N]]
    trajectories: list[Trajectory]
    codes: dict[str, Any] | None  # mean effects of codes; without any, `reason` says why
    checks: Checks
    tripod: dict[str, str]
    oracle: Oracle | None
    blend: dict[str, Any] | None  # which models share the answer, and how
    warnings: list[str]
    made_of: str | None  # a digest


# keys of numbers that `redaction` rounds or hides, wherever they stand
CHECKS = (
    "time_zero",
    "predictor_cutoff",
    "parameters",
    "tuning_trials",
    "seeds",
    "members",
    "trained",
)
COUNTS = (  # of people, in the rows of a result
    "subjects",
    "evaluated",
    "events",
    "n",
    "at_risk",
    "seen_in_training",
    "new_codes",
    "without_record_before",
    "first_record_later",
)
RATES = (  # of a split's inputs
    "prediction_times",
    "unknown_token_rate",
    "unknown_age_rate",
    "no_visit_before_rate",
    "codes_per_visit",
    "visits_per_subject",
    "numeric_value_rate",
)

Exact = Result[int]
Shared = Result[int | str]


def place_of(row: Mapping[str, Any]) -> tuple[float | None, str, float | None]:
    """Landmark, cause and horizon of a row."""
    return row["landmark_days"], row["cause"], row["horizon_days"]
