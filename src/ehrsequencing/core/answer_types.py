"""Answers as types: a list of risks, drift, parts of an evaluation, every outcome, pretraining, effects in a cohort."""

from typing import Generic, NotRequired, TypedDict

from ehrsequencing.core.record_types import N


class DriftSummary(TypedDict):
    """What `ehrseq drift` says."""

    verdict: str
    alarm: bool
    passes: bool  # whether everything was compared, without an alarm
    cut: bool
    people: int | str | None
    differences: list[dict[str, str | float | None]]  # fields of `prediction.drift.Difference`
    quantiles: dict[str, dict[str, list[float]]]  # what is measured → `training` and `here`
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


class ListSummary(TypedDict):
    """The JSON beside a file of risks, for its owner."""

    kind: str
    format: int
    list: str | None  # SHA-256 of the file of risks; None where there is no list
    question: str
    at: str
    prediction_times: dict[str, int]  # kind of prediction time → how many
    threshold: float | None
    threshold_from: str
    above: dict[str, int]  # the threshold: `prediction_times`, `people`
    made_by: dict[str, str]
    highest: list[HighRisk]
    drift: DriftSummary


# ---- parts of `metrics.json` that some evaluations have ----


class NewCode(TypedDict, Generic[N]):
    """A code that the run does not know, and who has it."""

    code: str
    subjects: N


class ExternalPart(TypedDict, Generic[N]):
    """What an external validation says of its people."""

    data: str
    subjects: N
    unknown_token_rate: float | None
    training_unknown_token_rate: float | None
    new_codes: list[NewCode[N]]
    unmatched: list[str]
    drift: DriftSummary
    seen_in_training: N | None
    people: str  # a digest


class FittedCause(TypedDict):
    """A recalibration of a cause."""

    intercept: float
    slope: float
    events: int | str | None


Calibrations = dict[str, dict[str, list[float | None]]]  # cause → metric → by each horizon


class RecalibrationPart(TypedDict):
    """Calibration at one landmark, as trained and recalibrated."""

    fitted_on: str
    landmark_days: float | None
    horizons_days: list[float]
    before: Calibrations
    after: Calibrations
    fitted: dict[str, FittedCause]


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


# ---- explanations ----


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
