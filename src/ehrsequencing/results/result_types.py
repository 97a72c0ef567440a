"""What the files that leave hold, as types: `metrics.json`, `audit.json`, the manifest of a run.

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


class SmoothRow(Cell[N], Generic[N]):
    """A smooth calibration curve with its band."""

    model: str
    predicted: list[float]
    observed: list[float]
    low: list[float | None]
    high: list[float | None]
    histogram: dict[str, Any]


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


class IncidenceRow(Place, Generic[N]):
    """Incidence by risk group, from low to high."""

    days: list[float]
    tick_days: list[float]
    groups: list[dict[str, Any]]
    everyone: dict[str, Any]


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


# ---- parts that some evaluations have ----


# ---- the audit for leaks ----

Verdict = Literal["passed", "warning", "leak", "not_tested"]


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
    checks: list[dict[str, Any]]


SharedAudit = Audit[int | str]


#: Of a training: `epoch`, `train_nll`, `tuning_nll`, `best`, `seconds` …; in a result `steps` may be hidden.
EpochRow = dict[str, Any]


class Result(TypedDict, Generic[N]):
    """The content of `metrics.json`."""

    run: str
    weights: str | None  # a digest
    history: list[EpochRow]
    recalibrated_in_training: bool
    title: str
    split: str
    created: str
    versions: dict[str, str]
    task: dict[str, Any]
    question: str
    data: dict[str, Any]  # `name`, `simulated`; split → `subjects`, `visits`, `prediction_times`
    causes: list[str]
    horizons_days: list[float]
    landmarks_days: list[float]
    attrition: list[Step[N]]
    events: dict[str, dict[str, N]]  # split → cause or `censored` → people
    records_before: list[RecordsBefore[N]]
    config: dict[str, Any]
    inputs: dict[str, Any]
    audit: SharedAudit | None
    external: dict[str, Any] | None  # what a validation on other data says of its people
    repeated_splits: dict[str, Any] | None  # `splits`, `seeds`, and means in `rows`, `differences`
    score: dict[str, Any] | None
    main: Horizon  # of every headline
    table1: dict[str, Any] | None  # `columns` (splits), and `rows`: a name, its cells
    models: list[str]  # ours, the baselines with the strongest first, others, the truth
    # since 3.0: rate `ratio` of leaving per sd of its log hazard, and whether weights go `by_history`; None: few leave
    dropout: NotRequired[dict[str, Any] | None]
    # since 3.0: weighted without the history, where `metrics` go by it
    marginal: NotRequired[list[MetricRow[N]]]
    # since 3.0: the one comparison with a verdict; None: the task names no horizon
    declared: NotRequired[dict[str, Any] | None]
    # since 3.0: `oe` is by `hazards`, or by `risks` where a model has no hazards
    estimators: NotRequired[dict[str, Any]]
    strongest: str | None
    baselines: list[dict[str, Any]]  # `model`, `tuning_nll`
    metrics: list[MetricRow[N]]
    differences: list[MetricRow[N]]
    at_risk: list[
        dict[str, Any]
    ]  # of each landmark; `evaluated`, and cause → `events`, by each horizon
    follow_up: list[dict[str, Any]]  # median of each landmark, by the reverse Kaplan–Meier method
    smallest_g: list[dict[str, Any]]  # the smallest chance `g` of being followed so long
    subgroups: list[SubgroupRow[N]]
    smooth_calibration: list[SmoothRow[N]]
    decision: list[DecisionRow[N]]
    incidence: list[IncidenceRow[N]]
    trajectories: list[Trajectory]
    codes: dict[str, Any] | None  # mean effects of codes; without any, `reason` says why
    checks: dict[str, Any]  # what a reviewer asks, as far as it is known
    tripod: dict[str, str]
    oracle: dict[str, Any] | None  # a simulation's truth, as `evaluation.oracle` explains
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


# ---- manifests of runs; `core.outputs` writes and checks them ----

# What every manifest has, and how the records were imported; `required` files must stay as they are, all without it.
Manifest = TypedDict(
    "Manifest",
    {
        "kind": str,
        "files": dict[str, str],  # name → SHA-256
        "required": NotRequired[list[str]],
        "import": NotRequired[dict[str, Any]],
    },
)


class Origin(TypedDict, total=False):
    """A model that a run started from, and what that one started from in its turn."""

    folder: str
    prepared: str
    data_path: str
    subjects: dict[str, str]  # split → a digest
    objectives: dict[str, float]
    excluded_targets: dict[str, list[str]] | None
    vocabulary: str  # a digest
    transfer: dict[str, str]  # settings
    overlap: dict[str, dict[str, Any]]  # way → how many `codes` were found, and their `share`
    init: "Origin"


class RunManifest(Manifest):
    """Of a run; a shared model lacks what would tell of its place."""

    prepared: str
    excluded: list[str]
    vocabulary: str  # a digest
    fingerprint: str
    recalibration: NotRequired[dict[str, Any]]  # cause → level, stretch, trend, of the network
    simulated: NotRequired[bool]
    parameters: NotRequired[int]
    seconds: NotRequired[dict[str, float]]  # of each stage
    members: NotRequired[list[dict[str, Any]]]  # of an ensemble: what training noted of each
    init: NotRequired[Origin]
    loss: NotRequired[dict[str, str]]  # name and hash of the source, where one's own was declared
    trained: NotRequired[str]  # `outside`: with one's own loop
    update: NotRequired[dict[str, Any]]  # what `ehrseq update` chose: causes beside its own keys
