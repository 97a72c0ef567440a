"""Settings: frozen, typed, and an unknown key is an error. A study file holds them all; a `RUN` records its own.

Every setting can be given in a YAML file (`--config study.yaml`) or as `section.key=value` on the command line.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from zoneinfo import ZoneInfo

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from ehrsequencing.errors import EhrseqError

DAYS_PER_YEAR = 365.25
_UNIT_DAYS = {"min": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "y": DAYS_PER_YEAR}


def parse_days(text: object) -> float:
    """Turn a duration such as `48h`, `30d`, `2w` or `1y` into days (`1y` = 365.25 d).

    >>> parse_days("48h"), parse_days("1y")
    (2.0, 365.25)
    """
    if isinstance(text, float):  # already days: what a recorded configuration holds
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(min|h|d|w|y)\s*", str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number and a unit (min, h, d, w, y), as in 30d")
    return float(match[1]) * _UNIT_DAYS[match[2]]


def format_days(days: float) -> str:
    """Write days as a person would: `1y`, `90d`, `48h`.

    >>> format_days(365.25), format_days(90.0), format_days(0.25)
    ('1y', '90d', '6h')
    """
    if days >= DAYS_PER_YEAR and (days / DAYS_PER_YEAR) % 0.5 == 0:
        return f"{days / DAYS_PER_YEAR:g}y"
    return f"{days * 24:g}h" if 0 < days < 1 else f"{days:g}d"


Days = Annotated[float, BeforeValidator(parse_days)]


class Settings(BaseModel):
    """Base of every section: immutable, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


SettingsT = TypeVar("SettingsT", bound=BaseModel)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


CodeList = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]


class VisitsConfig(Settings):
    """How events are grouped into visits (SCIENCE.md §1)."""

    by: Literal["day", "window", "gap", "encounter"] = "day"
    window: Days = 1 / 24  # by=window: length of the window, aligned to midnight
    gap: Days = 1.0  # by=gap: a new visit after so long without an event
    column: str = "hadm_id"  # by=encounter: the column that names the encounter
    ignore: tuple[str, ...] = ()  # code patterns that make no token, no visit and no visit end


class ValuesConfig(Settings):
    """What a code's number becomes."""

    mode: Literal["polynomial", "interpolate", "bins", "none"] = "polynomial"
    bins: int = Field(5, ge=2, le=50)
    carry: bool = True  # queries carry summaries of the past per numeric code


def _from_switch(value: object) -> object:
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value  # YAML's on and off


class VocabularyConfig(Settings):
    """Which codes get a token of their own."""

    min_subjects: int = Field(5, ge=1)  # training subjects that must have the code
    # Rare codes by the ontology (`parent_codes`): on = replaced by their nearest frequent ancestor; ancestors = every
    # code also brings its frequent ancestors along.
    rollup: Annotated[Literal["off", "on", "ancestors"], BeforeValidator(_from_switch)] = "off"


class SplitsConfig(Settings):
    """Who trains, tunes and is held out. `file` falls back to the folders of shards, and without them to `hash`."""

    by: Literal["file", "hash", "date", "site"] = "file"
    train: float = Field(0.70, gt=0, lt=1)
    tuning: float = Field(0.15, gt=0, lt=1)
    seed: int = 0
    from_date: str | None = None  # by=date, also written `from`: whose index falls on it or later is held out
    column: str | None = None  # by=site: column of the data that names the site of each row
    held_out_sites: Annotated[tuple[str, ...], BeforeValidator(_as_list)] | None = None  # by=site

    @model_validator(mode="before")
    @classmethod
    def _accept_from(cls, data: Any) -> Any:
        if isinstance(data, dict) and "from" in data:
            return {**{key: value for key, value in data.items() if key != "from"}, "from_date": data["from"]}
        return data

    @model_validator(mode="after")
    def _complete(self) -> "SplitsConfig":
        if self.by == "date" and self.from_date is None:
            raise ValueError("splits.by=date needs splits.from, as in splits.from=2015-01-01")
        if self.by == "site" and not (self.column and self.held_out_sites):
            raise ValueError("splits.by=site needs splits.column and splits.held_out_sites, as in [north]")
        _check_date(self.from_date)
        return self


NameList = Annotated[tuple[str, ...], BeforeValidator(_as_list)]  # codes; one that ends with * is a prefix


class DialectConfig(Settings):
    """How a data set's files differ from MEDS 0.4: names of columns, other names of codes, a time zone."""

    subject_id: str = "subject_id"  # the column that holds it
    time: str = "time"
    code: str = "code"
    numeric_value: str = "numeric_value"
    birth: NameList = ("MEDS_BIRTH//*", "BIRTH", "DATE_OF_BIRTH", "DOB", "SNOMED/184099003")  # also MEDS_BIRTH itself
    death: NameList = ("MEDS_DEATH//*", "DEATH", "DATE_OF_DEATH", "DOD", "SNOMED/419620001")  # also MEDS_DEATH itself
    time_zone: str | None = None  # clock of the hospital, for times with a zone: Europe/Berlin

    @model_validator(mode="after")
    def _consistent(self) -> "DialectConfig":
        columns = (self.subject_id, self.time, self.code, self.numeric_value)
        if len(set(columns)) < len(columns):
            raise ValueError("two parts of a row have the same column")
        if set(self.birth) & set(self.death):
            raise ValueError("a code cannot mean both birth and death")
        if self.time_zone is not None:
            try:
                ZoneInfo(self.time_zone)
            except (KeyError, ValueError, OSError) as error:
                raise ValueError(f"{self.time_zone!r} is no time zone such as Europe/Berlin or UTC") from error
        return self


class DataConfig(Settings):
    """Facts about the data set that its files do not tell."""

    extracted: str | None = None  # ISO date of extraction: later events are refused
    dialect: DialectConfig | None = None  # written as the section `dialect:` of a study file; None: MEDS as it is

    @model_serializer(mode="wrap")
    def _without_empty_dialect(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What an older version recorded, and its digest, stay as they were.
        return {name: value for name, value in dump(self).items() if name != "dialect" or value is not None}


def _check_date(text: str | None) -> None:
    if text is not None and re.fullmatch(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?", text) is None:
        raise ValueError(f"{text!r} is not an ISO date such as 2015-01-01")


class IndexConfig(Settings):
    """Time zero: exactly one of `code`, `first_visit`, `age`, `date`, `file`."""

    code: CodeList | None = None
    which: Literal["first", "every"] = "first"
    after: Days = 0.0
    first_visit: bool = False
    age: Days | None = None
    date: str | None = None
    file: str | None = None  # index times from elsewhere: MEDS labels, an ACES result, or an OHDSI cohort table
    cohort_id: int | None = None  # which cohort_definition_id of an OHDSI cohort table

    @model_validator(mode="after")
    def _one_kind(self) -> "IndexConfig":
        given = [self.code, self.first_visit or None, self.age, self.date, self.file]
        if sum(one is not None for one in given) != 1:
            raise ValueError("give exactly one of code, first_visit, age, date, file")
        if self.code is None and self.file is None and self.which != "first":
            raise ValueError("which belongs to an index by code or file")
        if self.cohort_id is not None and self.file is None:
            raise ValueError("cohort_id belongs to an index by file")
        _check_date(self.date)
        return self


class CensoringConfig(Settings):
    """End of follow-up: one of `code`, `date`, `dataset_end`; none means the subject's last event."""

    code: CodeList | None = None
    date: str | None = None
    dataset_end: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> "CensoringConfig":
        if sum([self.code is not None, self.date is not None, self.dataset_end]) > 1:
            raise ValueError("give at most one of code, date, dataset_end")
        _check_date(self.date)
        return self


class HistoryCode(Settings):
    """Codes that an index must, or must not, have in the time before it (its own instant included)."""

    code: CodeList
    within: Days | None = None  # before the index; none = ever, codes without a time included
    count: int = Field(1, ge=1)  # so many events at least


def _as_history(value: object) -> object:
    """A code, or a list of codes and mappings, as a list of mappings."""
    items = [value] if isinstance(value, str | dict) else value
    if not isinstance(items, list | tuple):
        return items
    return [{"code": item} if isinstance(item, str | list) else item for item in items]


HistoryCodes = Annotated[tuple[HistoryCode, ...], BeforeValidator(_as_history)]


class EligibilityConfig(Settings):
    """Who may enter, judged at each index by what is known there; an index that fails is no index."""

    history: Days = 0.0  # least time from the record's first event (birth apart) to the index
    min_age: Days | None = None  # at the index; unknown age is not eligible
    max_age: Days | None = None  # younger than this
    must_have: HistoryCodes = ()  # each of them
    must_not_have: HistoryCodes = ()  # none of them

    @model_validator(mode="after")
    def _rising(self) -> "EligibilityConfig":
        if self.min_age is not None and self.max_age is not None and self.min_age >= self.max_age:
            raise ValueError("min_age must be below max_age")
        return self


class TaskConfig(Settings):
    """A question: for whom, from when, which event, with which competing causes (ARCHITECTURE.md, task file)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    index: IndexConfig
    outcome: dict[str, CodeList] = Field(min_length=1)  # the cause of interest first
    competing: dict[str, CodeList] = {}
    censoring: CensoringConfig = CensoringConfig()
    horizons: tuple[Days, ...] = Field(min_length=1)
    landmarks: tuple[Days, ...] = Field((0.0,), min_length=1)  # times since the index at which models are compared
    blanking: Days = 0.0
    eligibility: EligibilityConfig | None = None
    recurrent: bool = False  # outcomes recur: labels tell the next one after each prediction time

    @model_validator(mode="after")
    def _consistent(self) -> "TaskConfig":
        if set(self.outcome) & set(self.competing):
            raise ValueError("a cause cannot be both outcome and competing")
        if min(self.horizons) <= 0 or list(self.horizons) != sorted(set(self.horizons)):
            raise ValueError("horizons must be positive and rising")
        if min(self.landmarks, default=0.0) < 0 or list(self.landmarks) != sorted(set(self.landmarks)):
            raise ValueError("landmarks must be rising and not negative")
        return self

    @property
    def causes(self) -> tuple[str, ...]:
        """Names of all causes; cause k of the labels is `causes[k - 1]`."""
        return (*self.outcome, *self.competing)

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Code patterns of each cause, in order."""
        return {**self.outcome, **self.competing}


class ModelConfig(Settings):
    """A model's whole shape (docs/models.md). `size` sets `dim`, `layers` and `heads`; what else is given wins."""

    size: Literal["small", "medium", "large"] | None = None  # d64 2 layers | d128 4 layers | d256 6 layers
    vocab_size: int = Field(2, ge=2)  # token ids, 0 = [PAD]; `train` fills it in
    architecture: Literal["hierarchical", "flat"] = "hierarchical"
    dim: int = Field(128, ge=4)  # width d of every vector
    heads: int = Field(4, ge=1)
    layers: int = Field(4, ge=1)  # of the timeline, or of the flat encoder
    dropout: float = Field(0.1, ge=0, lt=1)  # residual and feed-forward; never on attention weights
    code_dropout: float = Field(0.0, ge=0, lt=1)  # of whole codes of a visit (not static ones), in training
    history_dropout: float = Field(0.0, ge=0, lt=1)  # of whole visits (flat: codes) as values of attention over time
    visit_encoder: Literal["attention", "mean", "transformer", "sum", "scaled_sum", "max"] = "attention"
    visit_mlp: bool = True  # residual MLP after the pooling; off = the seeds' encoder
    scorer: Literal["query", "bottleneck"] = "query"  # of attention pooling: q·tanh(W e + b) | W2 tanh(W1 e + b1) + b2
    visit_layers: int = Field(1, ge=1)  # of the mini-transformer
    visit_pool: Literal["mean", "cls"] = "mean"  # of the mini-transformer
    timeline: Literal["transformer", "lstm"] = "transformer"
    wide_head: bool = False  # zero-initialised linear head on the timeline's input
    attention: Literal["causal", "bidirectional"] = "causal"
    head: Literal["horizon", "visit"] = "horizon"
    causes: int = Field(1, ge=1)
    edges_days: tuple[float, ...] = ()  # inner edges of the hazard's bins; the last bin is open
    position: Literal["learned", "sinusoidal", "none"] = "learned"  # of the visit index; flat: of the token
    rotary: bool = True  # attention between visits knows the days and visits between them; not of lstm and flat
    code_position: bool = False  # a code's place within its visit
    code_types: bool = False  # an embedding of the code's kind (its MEDS prefix)
    n_code_types: int = Field(1, ge=1)  # `train` fills it in
    age_bin_years: float = Field(5.0, ge=0)  # 0 = no age embedding
    age_polynomial: bool = False  # beside the bins, a cubic in age: what is lost inside a bin
    delta_bins: Literal["log", "linear", "none"] = "log"
    delta_bin_days: float = Field(7.0, gt=0)  # delta_bins=linear: the seeds' 7 d bins up to 365 d; or 30 d up to 5 y
    delta_top_days: float = Field(365.0, gt=0)
    max_visits: int = Field(512, ge=1)  # sliding window: a visit and the max_visits - 1 before it
    max_tokens: int = Field(2048, ge=1)  # flat: whole visits back, up to so many tokens
    values: Literal["polynomial", "interpolate", "none"] = "polynomial"
    value_bins: int = Field(5, ge=2)  # knots of `interpolate`
    frozen: tuple[Literal["age", "visit"], ...] = ()  # embeddings that training leaves as they are
    members: int = Field(1, ge=1)  # of an ensemble (models/ensemble.py); `train` fills it in from training.members

    @model_validator(mode="before")
    @classmethod
    def _expand_size(cls, data: Any) -> Any:
        sizes = {"small": (64, 4, 2), "medium": (128, 4, 4), "large": (256, 8, 6)}
        if isinstance(data, dict) and data.get("size") in sizes:
            dim, heads, layers = sizes[data["size"]]
            data = {"dim": dim, "heads": heads, "layers": layers, **data}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> "ModelConfig":
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must be a multiple of heads={self.heads}")
        if self.head == "visit" and (self.causes != 1 or self.edges_days):
            raise ValueError("head=visit gives one hazard per visit: causes must be 1 and edges_days empty")
        if not all(a < b < float("inf") for a, b in zip((0.0, *self.edges_days), self.edges_days, strict=False)):
            raise ValueError("edges_days must be positive, finite and rising")
        if self.timeline == "lstm" and self.attention == "bidirectional":
            raise ValueError("timeline=lstm reads forward only: attention must be causal")
        if self.timeline == "lstm" and self.history_dropout:
            raise ValueError(f"history_dropout={self.history_dropout} belongs to timeline=transformer")
        self._refuse_idle()
        return self

    def _refuse_idle(self) -> None:
        """A setting that the chosen parts do not have is a misunderstanding, not a wish."""
        homes = {
            "architecture=hierarchical": (self.architecture == "hierarchical", _HIERARCHICAL_ONLY),
            "architecture=flat": (self.architecture == "flat", ("max_tokens",)),
            "visit_encoder=attention": (self.visit_encoder == "attention", ("scorer",)),
            "visit_encoder=transformer": (self.visit_encoder == "transformer", ("visit_layers", "visit_pool")),
            "code_types=true": (self.code_types, ("n_code_types",)),
            "age_bin_years above 0": (self.age_bin_years > 0, ("age_polynomial",)),
            "delta_bins=linear": (self.delta_bins == "linear", ("delta_bin_days", "delta_top_days")),
        }
        for home, (is_there, names) in homes.items():
            for name in names:
                if not is_there and getattr(self, name) != ModelConfig.model_fields[name].default:
                    raise ValueError(f"{name}={getattr(self, name)} belongs to {home}")

    @property
    def bins(self) -> int:
        """Number of hazard bins K: one more than the inner edges, since the last bin is open."""
        return len(self.edges_days) + 1


# Settings of the two-level model alone: flat BEHRT has no visit encoder, no timeline and no time-gap embedding.
_HIERARCHICAL_ONLY = ("visit_encoder", "visit_mlp", "scorer", "timeline", "code_position", "delta_bins")


class TrainingConfig(Settings):
    """How a model is fitted."""

    epochs: int = Field(60, ge=1)
    seed: int = 0
    members: int = Field(1, ge=1)  # models with the seeds seed, seed + 1 …; their mean hazard is the run's
    bootstrap: bool = False  # a member learns from as many subjects, drawn with replacement by its seed
    subjects_per_step: int | None = Field(48, ge=1)  # randomly drawn; null: as many as the budget holds
    visit_budget: int = Field(2048, ge=1)  # most visits (and queries) in a step, unless one subject has more
    min_steps: int = Field(10, ge=1)  # per epoch: small cohorts get a smaller budget
    masked_codes: float = Field(0.3, ge=0)  # weight of guessing a visit's code from the others; 0 = off; not of flat
    learning_rate: float = Field(5e-4, gt=0)
    warmup_steps: int = Field(100, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = Field(1.0, ge=0)  # decoupled, of matrices only
    clip_norm: float = Field(1.0, gt=0)
    ema: float = Field(0.998, ge=0, lt=1)  # decay of the averaged weights, warmed up; 0 = off
    precision: Literal["32", "bf16"] = "32"
    patience: int = Field(6, ge=1)  # epochs after the warm-up without a better tuning NLL before the early stop
    checkpoint_steps: int = Field(200, ge=1)  # steps between checkpoints inside an epoch, and one after each epoch,
    checkpoint_seconds: float = Field(15.0, ge=0)  # ... but never sooner than so long after the one before
    grid_bins: int = Field(20, ge=4, le=64)  # quantile edges of the horizon head (SCIENCE.md: 16-24)


class EvaluationConfig(Settings):
    """How a run is judged."""

    baselines: Literal["fast", "all", "none"] = "fast"  # all: also LSTM and flat BEHRT, trained as the run was
    censoring: Literal["kaplan-meier", "cox"] = "kaplan-meier"  # cox: where censoring depends on the record
    bootstrap: int = Field(500, ge=0)  # resamples of subjects
    seed: int = 0
    trajectories: int = Field(4, ge=0)  # de-identified example curves in the report
    decision_thresholds: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()  # none: spread over the predicted risks
    subgroups: tuple[Literal["sex", "age", "static"], ...] = ("sex", "age", "static")
    tuning_trials: int | None = Field(None, ge=0)  # settings tried before these, told by people; None: NOT PROVIDED
    recalibrate: bool = False  # per-cause recalibration on the tuning split, reported before and after


# Cohort presets (docs/models.md), the first two chosen on tuning splits (docs/benchmarks.md), the others after the
# tuning notes of the embeddings seed. What a study sets itself wins.
_AS_MEASURED = {"subjects_per_step": None, "masked_codes": 0.0, "ema": 0.99}  # for docs/benchmarks.md
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "small_cohort": {  # fewer than 5,000 subjects: little to learn, and no places to learn by heart
        "model": {
            "size": "small", "position": "sinusoidal", "rotary": False, "dropout": 0.3, "code_dropout": 0.3,
            "age_polynomial": True, "wide_head": True,
        },
        "training": {"weight_decay": 1.0, "visit_budget": 2048, **_AS_MEASURED},
    },
    "medium_cohort": {  # 5,000 to 20,000 subjects: a small model that forgets readily
        "model": {"size": "small", "rotary": False, "dropout": 0.2, "wide_head": True},
        "training": {"weight_decay": 1.0, "learning_rate": 1e-3, "visit_budget": 512, **_AS_MEASURED},
    },
    "large_cohort": {  # more than 20,000 subjects: learned places and width pay off
        "model": {"size": "large", "position": "learned", "dropout": 0.1},
        "training": {"subjects_per_step": None, "visit_budget": 4096, "weight_decay": 0.1},
    },
    "domain_shift": {  # another institution: fixed places, and ages and visit numbers kept as they were
        "model": {"position": "sinusoidal", "frozen": ("age", "visit")},
    },
}  # fmt: skip


class StudyConfig(Settings):
    """Everything a study needs, in one file. A preset fills in what the sections leave open."""

    preset: Literal["small_cohort", "medium_cohort", "large_cohort", "domain_shift"] | None = None
    data: DataConfig = DataConfig()
    visits: VisitsConfig = VisitsConfig()
    values: ValuesConfig = ValuesConfig()
    vocabulary: VocabularyConfig = VocabularyConfig()
    splits: SplitsConfig = SplitsConfig()
    task: TaskConfig | None = None
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, data: Any) -> Any:
        preset = PRESETS.get(str(data.get("preset"))) if isinstance(data, dict) else None
        for section, defaults in (preset or {}).items():
            given = data.get(section, {})
            if isinstance(given, dict):
                data = {**data, section: {**defaults, **given}}
        return data

    @model_validator(mode="before")
    @classmethod
    def _file_dialect(cls, data: Any) -> Any:
        """`dialect:` is a section of its own to write, and part of `data` to read: whoever reads records needs both."""
        if not isinstance(data, dict) or "dialect" not in data:
            return data
        facts, rest = data.get("data") or {}, {k: v for k, v in data.items() if k != "dialect"}
        if not isinstance(facts, dict) or not isinstance(data["dialect"], dict):
            raise ValueError("dialect and data must hold settings")
        return {**rest, "data": {**facts, "dialect": {**(facts.get("dialect") or {}), **data["dialect"]}}}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping; dates stay text, so that they validate like any other setting."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_TextDates)
    except OSError as error:
        raise EhrseqError("cannot be read", where=str(path), mend=error.strerror or "check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f"{path}, line {line + 1}" if line is not None else str(path)
        raise EhrseqError("is not valid YAML", where=where, mend="see the examples in examples/tasks") from error
    if not isinstance(data, dict):
        raise EhrseqError("must hold a mapping of settings", where=str(path), mend="see examples/tasks")
    return data


class _TextDates(yaml.SafeLoader):
    """Safe YAML in which `2015-01-01` stays a string."""


_TextDates.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_task(path: Path) -> TaskConfig:
    """Read a task file; the path of its `index.file` is relative to the task file's folder."""
    return _located(validated(TaskConfig, read_yaml(path), where=str(path)), path)


def _located(task: TaskConfig, path: Path) -> TaskConfig:
    """The task with an absolute `index.file`, so that it means the same file wherever the task is kept."""
    if task.index.file is None:
        return task
    index = task.index.model_copy(update={"file": str((path.parent / task.index.file).resolve())})
    return task.model_copy(update={"index": index})


def load_study(path: Path | None = None, overrides: Iterable[str] = ()) -> StudyConfig:
    """Settings from an optional study file, then `section.key=value` overrides."""
    where = str(path) if path is not None else "settings"
    study = validated(StudyConfig, read_settings(path, overrides), where=where)
    if path is None or study.task is None:
        return study
    return study.model_copy(update={"task": _located(study.task, path)})


def read_settings(path: Path | None, overrides: Iterable[str]) -> dict[str, Any]:
    """A YAML file's mapping with `key=value` overrides, `a.b=value` reaching into section `a`."""
    data: dict[str, Any] = read_yaml(path) if path is not None else {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise EhrseqError("is not a setting", where=repr(text), mend="write section.key=value, as in model.dim=64")
        *parents, key = name.strip().split(".")
        node = data
        for part in parents:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise EhrseqError("is not a section", where=repr(part), mend="write section.key=value")
        try:
            node[key] = yaml.load(value, Loader=_TextDates)
        except yaml.YAMLError as error:
            raise EhrseqError("is not a YAML value", where=repr(text), mend="quote it") from error
    return data


def validated(kind: type[SettingsT], data: Mapping[str, Any], *, where: str) -> SettingsT:
    """Validate, and turn pydantic's report into one line that names the setting and the mend."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(_siblings(kind, first["loc"]))
            raise EhrseqError(f"unknown setting {name!r}", where=where, mend=f"known here: {known}") from error
        text = first["msg"].removeprefix("Value error, ")
        raise EhrseqError(f"{name}: {text}" if name else text, where=where, mend="correct this setting") from error


def _siblings(kind: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Names that would have been valid where an unknown one was given."""
    for part in loc[:-1]:
        field = kind.model_fields.get(str(part))
        inner = [a for a in (getattr(field.annotation, "__args__", ()) or (field.annotation,))] if field else []
        models = [a for a in inner if isinstance(a, type) and issubclass(a, BaseModel)]
        if models:
            kind = models[0]
    return list(kind.model_fields)
