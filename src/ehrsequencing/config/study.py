"""Settings of training and evaluation, presets, and the study that holds every section."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ehrsequencing.config.base import Settings
from ehrsequencing.config.model import ModelConfig
from ehrsequencing.config.records import DataConfig, SplitsConfig, ValuesConfig, VisitsConfig, VocabularyConfig
from ehrsequencing.config.task import TaskConfig


class TrainingConfig(Settings):
    """How a model is fitted."""

    epochs: int = Field(60, ge=1)
    seed: int = Field(0, ge=0, lt=2**32)
    members: int = Field(1, ge=1)  # models with the seeds seed, seed + 1 …; their mean hazard is the run's
    bootstrap: bool = False  # a member learns from as many subjects, drawn with replacement by its seed
    subjects_per_step: int | None = Field(48, ge=1)  # randomly drawn; null: as many as the budget holds
    visit_budget: int = Field(2048, ge=1)  # most visits (and queries) in a step, unless one subject has more
    min_steps: int = Field(10, ge=1)  # per epoch: small cohorts get a smaller budget
    masked_codes: float = Field(0.3, ge=0)  # pace of guessing a visit's code from its others, of learning_rate; 0 = off
    learning_rate: float = Field(5e-4, gt=0)
    warmup_steps: int = Field(100, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = Field(1.0, ge=0)  # decoupled, of matrices only
    decay_steps: int | None = Field(300, ge=1)  # in an epoch of more steps each decays less, in proportion; null: never
    clip_norm: float = Field(1.0, gt=0)
    ema: float = Field(0.9999, ge=0, lt=1)  # decay of the averaged weights; 0 = no averaging
    ema_warmup: int = Field(4, ge=2)  # at step t it is at most (1 + t) / (ema_warmup + t): about the run's last quarter
    precision: Literal["32", "bf16"] = "32"
    patience: int = Field(6, ge=1)  # epochs after the warm-up without a better tuning NLL before the early stop
    early_stop: Literal["visits", "landmarks"] = "visits"  # tuning NLL at every prediction time, or at landmarks alone
    min_gain: float = Field(0.0, ge=0)  # a tuning NLL is better if it is lower by more than that
    checkpoint_steps: int = Field(200, ge=1)  # steps between checkpoints inside an epoch, and one after each epoch,
    checkpoint_seconds: float = Field(15.0, ge=0)  # ... but never sooner than so long after the one before
    recalibration: float = Field(0.05, ge=0)  # at the end; prior sd of how far log-hazards are off; 0 = none
    grid_bins: int = Field(20, ge=4, le=64)  # quantile edges of the horizon head (SCIENCE.md: 16-24)


class EvaluationConfig(Settings):
    """How a run is judged."""

    baselines: Literal["fast", "all", "none"] = "fast"  # all: also LSTM and flat BEHRT, trained as the run was
    # The strongest of them is the one that the tuning subjects find most likely, chosen anew for every data set.
    censoring: Literal["kaplan-meier", "cox"] = "kaplan-meier"  # cox: where censoring depends on the record
    bootstrap: int = Field(500, ge=0)  # resamples of subjects
    seed: int = Field(0, ge=0, lt=2**32)
    trajectories: int | None = Field(None, ge=0)  # curves of single people in the report; null: 4 if simulated, else 0
    decision_thresholds: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()  # none: spread over the predicted risks
    subgroups: tuple[Literal["sex", "age", "static"], ...] = ("sex", "age", "static")
    # Settings tried before these, as people report them (None: NOT PROVIDED); the boosted baseline tries as many.
    tuning_trials: int | None = Field(None, ge=0)
    recalibrate: bool = False  # per-cause recalibration on the tuning split, reported before and after


# Cohort presets (docs/models.md), the first two chosen on tuning splits (docs/benchmarks.md), the last after published
# tuning notes. What a study sets itself wins. Large cohorts have none: the defaults were measured on them.
_AS_MEASURED = {  # for docs/benchmarks.md
    "subjects_per_step": None, "masked_codes": 0.0, "ema": 0.99, "ema_warmup": 10, "early_stop": "landmarks",
    "decay_steps": None, "recalibration": 0.0,
}  # fmt: skip
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "small_cohort": {  # fewer than 5,000 subjects: little to learn, and no places to learn by heart
        "model": {
            "size": "small", "position": "sinusoidal", "rotary": False, "dropout": 0.3, "code_dropout": 0.3,
            "age_polynomial": True, "wide_head": True, "history_dropout": 0.0,
        },
        "training": {"weight_decay": 1.0, "visit_budget": 2048, **_AS_MEASURED},
    },
    "medium_cohort": {  # 5,000 to 20,000 subjects: a small model that forgets readily
        "model": {"size": "small", "rotary": False, "dropout": 0.2, "history_dropout": 0.0, "wide_head": True},
        "training": {"weight_decay": 1.0, "learning_rate": 1e-3, "visit_budget": 512, **_AS_MEASURED},
    },
    "domain_shift": {  # another institution: fixed places, and ages and visit numbers kept as they were
        "model": {"position": "sinusoidal", "frozen": ("age", "visit")},
    },
}  # fmt: skip
REMOVED_PRESETS = {
    "large_cohort": "it was never measured; the defaults were, with 20,000 to 100,000 subjects; leave preset out",
}


class StudyConfig(Settings):
    """Everything a study needs, in one file. A preset fills in what the sections leave open."""

    preset: Literal["small_cohort", "medium_cohort", "domain_shift"] | None = None
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
        name = str(data.get("preset")) if isinstance(data, dict) else None
        if name in REMOVED_PRESETS:
            raise ValueError(f"preset={name} was removed: {REMOVED_PRESETS[name]}")
        preset = PRESETS.get(str(name))
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
        facts, rest = data.get("data", {}), {k: v for k, v in data.items() if k != "dialect"}
        inner = (facts.get("dialect") or {}) if isinstance(facts, dict) else None
        if not isinstance(inner, dict) or not isinstance(data["dialect"], dict):
            raise ValueError("dialect and data must hold settings")
        return {**rest, "data": {**facts, "dialect": {**inner, **data["dialect"]}}}

    @model_validator(mode="before")
    @classmethod
    def _without_empty_sections(cls, data: Any) -> Any:
        """A section with nothing in it (`visits:` and no more) is one that was left out."""
        if not isinstance(data, dict):
            return data
        return {name: section for name, section in data.items() if section is not None}
