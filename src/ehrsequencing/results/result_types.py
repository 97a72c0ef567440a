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


#: A row of numbers at a place: `landmark_days`, `cause`, `horizon_days`, and in most `n` people who could be followed
#: until the horizon, and the `events` among them.
#: Of `subgroups`: a `level` of a `group`; `oe`, `auc`, `brier` (an `Interval`, or None), and in most
#: `oe_difference` … to the largest level; `hidden` and `reason` where people are few.
#: Of `smooth_calibration`: the `model`'s `predicted` risks, `observed` there with a band (`low`, `high`), and a
#: `histogram` (`edges`, `shares`, `n`).
#: Of `decision`, what acting from each threshold means: `model`, `thresholds`, people `above` and `events_above` (empty
#: where they may not be told), `net_benefit` with its band, `treat_all`, and `evaluation.curves.OPERATING_COLUMNS`.
#: Of `incidence`: `days`, `tick_days`, and `groups` from low risk to high.
PlaceRow = dict[str, Any]

#: A single person under a letter (`label`): `risk_horizon_days` of the risk that is followed over time; `outcome` in
#: words, and the `event` (`day`; `cause`, None where it ended without one); `times_days` of prediction times since
#: the index, their `kind`, and `now`, the number of the one that is shown in full; `curves`, cause → prediction time
#: → risk by each of `horizons_days`; `visits` (`day`, `codes`) and `descriptions` of codes. Of a run also whole
#: curves, `curve_days`, `curve_at` and `full`; `moves` (`day`, `before`, `after`, `parts` that add up to it); of an
#: ensemble a `band`.
Trajectory = dict[str, Any]

Verdict = Literal["passed", "warning", "leak", "not_tested"]

#: The content of `audit.json`: `fingerprint`, `made_of`, `created`, `version`, `task`, `split`, `seed`; `subjects`
#: drawn of each split; whether the original `records` were there; counts of `leaks`, `warnings`, `not_tested`;
#: `checks`.
SharedAudit = dict[str, Any]

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
    subgroups: list[PlaceRow]
    smooth_calibration: list[PlaceRow]
    decision: list[PlaceRow]
    incidence: list[PlaceRow]
    # since 3.0: O/E by part of the future and tenth of risk
    ratios: NotRequired[list[dict[str, Any]]]
    trajectories: list[Trajectory]
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
)

Exact = Result[int]
Shared = Result[int | str]


def place_of(row: Mapping[str, Any]) -> tuple[float | None, str, float | None]:
    """Landmark, cause and horizon of a row."""
    return row["landmark_days"], row["cause"], row["horizon_days"]


# ---- manifests of runs; `core.outputs` writes and checks them ----

#: What a manifest tells of a run beside its `files` (name → SHA-256), of which the `required` ones must stay as they
#: are: `prepared`, `excluded` codes, digests of its `vocabulary` and its `fingerprint`; where there are some,
#: `recalibration` (cause → level, stretch, trend), `simulated`, `parameters`, `seconds` of each stage, `members` of
#: an ensemble, the model that it started from (`init`), its own `loss`, that it was `trained` outside, and what
#: `ehrseq update` chose (`update`).
RunManifest = dict[str, Any]

#: A model that a run started from (`folder`, `prepared`, `data_path`, `subjects` by split as digests, `objectives`,
#: `excluded_targets`, `vocabulary`), how (`transfer`), the `overlap` of codes by way (`codes`, their `share`), and
#: what that one started from in its turn (`init`).
Origin = dict[str, Any]
