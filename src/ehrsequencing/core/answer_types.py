"""Answers about people as types: a list of risks and its page, drift, every outcome, an explanation, an explorer."""

from typing import NotRequired, TypedDict


class Quantiles(TypedDict):
    """Nine quantiles of what is measured of a person."""

    training: list[float]
    here: list[float]


class DriftSummary(TypedDict):
    """What `ehrseq drift` says."""

    verdict: str
    alarm: bool
    cut: bool
    people: int | str | None
    differences: list[dict[str, str | float | None]]  # fields of `prediction.drift.Difference`
    quantiles: dict[str, Quantiles]
    notes: list[str]


class Raising(TypedDict):
    """A code, and what it adds to a risk."""

    code: str
    adds: float


class HighRisk(TypedDict):
    """A person of the highest risks."""

    subject_id: int
    prediction_time: str
    risk: float
    raised_by: list[Raising]


class Above(TypedDict):
    """How many lie above a threshold."""

    prediction_times: int
    people: int


class ListSummary(TypedDict):
    """The JSON beside a file of risks, for its owner."""

    kind: str
    format: int
    question: str
    at: str
    prediction_times: dict[str, int]  # kind of prediction time → how many
    threshold: float | None
    threshold_from: str
    above: Above
    made_by: dict[str, str]
    highest: list[HighRisk]
    drift: DriftSummary


# ---- every outcome ----


class Estimated(TypedDict):
    """A number with its interval, and of how many people it is."""

    value: float | None
    low: float | None
    high: float | None
    events: int | str
    subjects: int | str


class OutcomeNumbers(TypedDict):
    """AUC, C and O/E of an outcome."""

    auc: Estimated
    c: Estimated
    oe: Estimated


class OutcomeRow(OutcomeNumbers):
    """An outcome with enough events."""

    code: str
    events: int


class PooledOutcomes(TypedDict):
    """Outcomes with few events, together; none: their number alone."""

    outcomes: int
    events: NotRequired[int | str]
    auc: NotRequired[Estimated]
    oe: NotRequired[Estimated]


class OutcomeSummary(TypedDict):
    """How many outcomes are as good as they can be."""

    outcomes: int
    median_auc: float | None
    oe_within_10_percent: float | None
    oe_within_10_percent_if_true: float | None
    oe_intervals_that_hold_1: float | None


class OutcomeTable(TypedDict):
    """The content of `outcome-metrics.json`."""

    task: str
    split: str
    outcomes: list[OutcomeRow]
    pooled: PooledOutcomes
    fewest_events: int
    subjects: int
    horizons_days: list[float]
    resamples: int
    strata: list[str]
    summary: NotRequired[OutcomeSummary]


# ---- pretraining ----


class Gain(TypedDict):
    """How much more than frequencies a model has of a measure, with its interval."""

    value: float | None
    low: float | None
    high: float | None


class ObjectiveResults(TypedDict):
    """What the best weights do at one exercise."""

    weight: float
    measures: dict[str, float]
    counts: dict[str, int | str | None]
    gains: dict[str, Gain]


class PretrainingResults(TypedDict):
    """The content of `pretraining.json`."""

    kind: str
    format: int
    task: str | None
    subjects: int
    tuning_subjects: int
    targets: int
    left_out: int
    best_epoch: int
    tuning_loss: float
    seconds: float
    objectives: dict[str, ObjectiveResults]


# ---- explanations and the explorer ----


class EffectRow(TypedDict, total=False):
    """A row of an explanation: the columns of `explain.tables.COLUMNS`; what is left out is null."""

    kind: str
    code: str | None
    with_code: str | None
    visit: int | None
    time: int | None  # microseconds
    rows: int
    change_in_risk: float
    change_in_log_hazard: float
    interaction: float | None
    interaction_in_log_hazard: float | None
    attention: float | None


class CohortEffectRow(TypedDict):
    """A code of a cohort: the columns of `explain.cohort.COHORT_COLUMNS`."""

    code: str
    against: str | None
    carriers: str
    change_in_risk: float
    low: NotRequired[float]  # with resamples
    high: NotRequired[float]
    change_in_log_hazard: float
    raised: float


class ShownCode(TypedDict):
    """A code of an explorer."""

    name: str
    words: str
    unit: str
    lane: str
    known: bool


class Packed(TypedDict):
    """What a reader needs to take packed arrays apart."""

    size: int  # bytes before compression
    arrays: list[tuple[str, str, int, str]]  # name, type, length, coding


class About(TypedDict):
    """What the page of an explorer knows beside its arrays."""

    title: str
    question: str
    causes: list[str]
    horizons_days: list[float]
    main: int  # place of the main horizon
    start_days: float
    curve_days: list[float]
    moments: list[str]
    patients: int
    codes: list[ShownCode]
    together: list[tuple[int, int]]
    sexes: list[str]
    smallest: int
    fewest: int
    oldest: float
    not_known: int
    edits: str | None
    audit: str
    note: str
    made: str
    blocks: NotRequired[dict[str, Packed]]
