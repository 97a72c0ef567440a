"""The study: the sections of `prepare`, training, pretraining, evaluation and drift, and what holds them all."""

from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    model_validator,
)

from ehrsequencing.config.base import Days, Settings, TimeZone, as_list, check_date
from ehrsequencing.config.model import ModelSettings
from ehrsequencing.config.task import TaskConfig


class TrainingConfig(Settings):
    """How a model is fitted."""

    # passes over the training subjects at most; early stopping may end before
    epochs: int = Field(default=60, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**32)  # of the start, the batches and the dropout
    # train so many models with the seeds seed, seed + 1 …, and average their hazards
    members: int = Field(default=1, ge=1)
    # drawn at random; null: as many as visit_budget allows
    subjects_per_step: int | None = Field(default=48, ge=1)
    # most visits and queries in a batch, unless one subject has more
    visit_budget: int = Field(default=2048, ge=1)
    min_steps: int = Field(
        default=10, ge=1
    )  # per epoch; in small cohorts the budget shrinks to reach it
    # Learning rate of predicting a masked code of a visit from its other codes, relative to learning_rate; 0 = off.
    masked_codes: float = Field(default=0.3, ge=0)
    # step size of AdamW after the warm-up
    learning_rate: float = Field(default=5e-4, gt=0)
    # constant, until the patience ends the training; or falling in a line to 0 at the end of `epochs`
    schedule: Literal["constant", "falling"] = "constant"
    # steps in which the learning rate rises from near 0 to its value
    warmup_steps: int = Field(default=100, ge=0)
    weight_decay: float = Field(default=1.0, ge=0)  # decoupled (AdamW); weight matrices only
    # 32: float32; bf16: bfloat16 autocast, scores of attention in float32
    precision: Literal["32", "bf16"] = "32"
    # stop after so many epochs without a better tuning NLL, warm-up excluded
    patience: int = Field(default=3, ge=1)
    # shortest time between two checkpoints; 0: one after each step
    checkpoint_seconds: float = Field(default=15.0, ge=0)
    # strength of the final recalibration (prior SD of the correction); 0 = off
    recalibration: float = Field(default=0.05, ge=0)
    # Also fit boosted trees and a landmark Cox model, and answer with a convex mean of the three (of their log
    # cumulative hazards).
    blend: bool | None = None  # none: where a blend is possible
    # false: trees and Cox alone, in a fraction of the time
    network: bool = True
    # Share of the loss that comes from boosted visits and Cox, fitted out of fold, in place of the events; 0: none.
    distillation: float = Field(default=0.0, ge=0, lt=1)
    grid_bins: int = Field(default=20, ge=4, le=64)  # quantile bins of the horizon head
    # where the network is trained: cpu, cuda or cuda:1; null: on the GPU where there is one
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] | None = None


def _as_weights(value: object) -> object:
    """One name, or a list of names, as weights of 1."""
    names = [value] if isinstance(value, str) else value
    return dict.fromkeys(names, 1.0) if isinstance(names, list | tuple) else value


Objectives = Annotated[
    dict[Literal["masked_codes", "time_to_code"], Annotated[float, Field(gt=0)]],
    BeforeValidator(_as_weights),
    Field(min_length=1),
]


class PretrainingConfig(Settings):
    """What a model learns from records without labels (docs/pretraining.md)."""

    # Name → weight of its loss; a list means weights of 1.
    objectives: Objectives = Field(default={"masked_codes": 1.0, "time_to_code": 1.0})


class TransferConfig(Settings):
    """How `ehrseq train --init` uses the weights of another model (docs/pretraining.md)."""

    # full: all weights are trained. frozen: only the head, and what the other model never learned.
    mode: Literal["full", "frozen"] = "full"


class EvaluationConfig(Settings):
    """How a run is evaluated."""

    # fast: boosted visits, landmark Cox, age + sex, Aalen–Johansen
    baselines: Literal["fast", "none"] = "fast"
    bootstrap: int = Field(default=500, ge=0)  # resamples of subjects, for the intervals
    # of all that is drawn: resamples, subjects, baselines
    seed: int = Field(default=0, ge=0, lt=2**32)
    # at most so many, drawn at random: bounds memory and time; null: all
    subjects: int | None = Field(default=None, ge=50)
    decision_thresholds: tuple[
        Annotated[float, Field(gt=0, lt=1)], ...
    ] = ()  # empty: chosen from the predicted risks
    # Number of settings tried before these, for the report (null: not provided). The boosted baseline tries as many.
    tuning_trials: int | None = Field(default=None, ge=0)
    # YAML file with what only people know (TRIPOD+AI); examples/tripod.yaml is an empty one
    tripod: str | None = None


class DriftConfig(Settings):
    """From where on a difference between new people and training people is an alarm (docs/production.md)."""

    # difference of the shares of people with a code, or distance between two distributions; 1: never
    people: float = Field(default=0.3, gt=0, le=1)


# ---- `prepare`: visits, numbers, vocabulary, splits, and how a data set's files differ from MEDS ----
def _refuse_of_others(section: Any, name: str, **owners: str) -> None:
    """Refuse a setting that only another `by` would use: whoever gives it believes that it does something."""
    for setting, by in owners.items():
        if (
            by != section.by
            and getattr(section, setting) != type(section).model_fields[setting].default
        ):
            key = setting.removesuffix("_date")
            raise ValueError(f"{name}.{key} is for {name}.by={by}, and {name}.by is {section.by}")


class VisitsConfig(Settings):
    """How events are grouped into visits."""

    # what makes a visit: a calendar day, a window of fixed length, events without a gap, or an encounter of the data
    by: Literal["day", "window", "gap", "encounter"] = "day"
    window: Days = Field(
        default=1 / 24, gt=0
    )  # by=window: length of the window, aligned to midnight
    gap: Days = Field(default=1.0, gt=0)  # by=gap: so long without an event starts a new visit
    column: str = "hadm_id"  # by=encounter: the column that names the encounter
    ignore: tuple[str, ...] = ()  # code patterns that make no token, no visit and no visit end
    # last: what is dated by the day (00:00:00) stands at its end; a task with same_day: after sets it
    dates: Literal["as_given", "last"] = "as_given"

    @model_validator(mode="after")
    def _of_one_rule(self) -> "VisitsConfig":
        _refuse_of_others(self, "visits", window="window", gap="gap", column="encounter")
        return self


class ValuesConfig(Settings):
    """How numeric values become model inputs."""

    # polynomial and interpolate add to the code's vector; bins: a token such as LAB//Na//Q3; none: numbers are not used
    mode: Literal["polynomial", "interpolate", "bins", "none"] = "polynomial"
    bins: int = Field(default=5, ge=2, le=50)  # mode=bins: number of quantile bins of each code
    # numbers that mean that there is none, such as 9999, whatever the code
    missing: tuple[float, ...] = ()
    # join: a unit's spellings (K/uL, 10*9/L) are one code
    units: Literal["as_written", "join"] = "as_written"
    carry: bool = True  # queries carry summaries of past values of each numeric code


class VocabularyConfig(Settings):
    """Which codes get their own token."""

    # a code needs so many training subjects to get its own token
    min_subjects: int = Field(default=11, ge=1)


class SplitsConfig(Settings):
    """How subjects are split. `file` falls back to the folders of shards, then to `hash`."""

    # the data set's own splits, a hash of the subject id, the day of the index, or the site
    by: Literal["file", "hash", "date", "site"] = "file"
    # share of subjects to train on; by=date and by=site: train and tuning divide those who are not held out
    train: float = Field(default=0.70, gt=0, lt=1)
    # share of subjects for early stopping and recalibration; by=hash: the rest is held out
    tuning: float = Field(default=0.15, gt=0, lt=1)
    seed: int = 0  # of the hash: other seeds give independent splits
    # by=date, also written `from`: whose index falls on it or later is held out
    from_date: str | None = Field(None, validation_alias=AliasChoices("from", "from_date"))
    column: str | None = None  # by=site: column of the data that names the site of each row
    held_out_sites: Annotated[tuple[str, ...], BeforeValidator(as_list)] | None = None  # by=site

    @model_validator(mode="after")
    def _complete(self) -> "SplitsConfig":
        if self.by == "date" and self.from_date is None:
            raise ValueError("splits.by=date needs splits.from, as in splits.from=2015-01-01")
        if self.by == "site" and not (self.column and self.held_out_sites):
            raise ValueError(
                "splits.by=site needs splits.column and splits.held_out_sites, as in [north]"
            )
        check_date(self.from_date)
        _refuse_of_others(self, "splits", from_date="date", column="site", held_out_sites="site")
        if self.by == "hash" and self.train + self.tuning >= 1:
            raise ValueError(
                "splits.train and splits.tuning leave nobody to hold out; let their sum be below 1"
            )
        return self


class DataConfig(Settings):
    """Facts about the data set that are not in its files."""

    extracted: str | None = None  # ISO date of extraction: later events are refused
    time_zone: TimeZone | None = None  # clock of the hospital, for times with a zone: Europe/Berlin


class StudyConfig(Settings):
    """Everything a study needs, in one file."""

    data: DataConfig = DataConfig()
    visits: VisitsConfig = VisitsConfig()
    values: ValuesConfig = ValuesConfig()
    vocabulary: VocabularyConfig = VocabularyConfig()
    splits: SplitsConfig = SplitsConfig()
    task: TaskConfig | None = None
    model: ModelSettings = ModelSettings()
    training: TrainingConfig = TrainingConfig()
    pretraining: PretrainingConfig = PretrainingConfig()
    transfer: TransferConfig = TransferConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    drift: DriftConfig = DriftConfig()

    @model_validator(mode="before")
    @classmethod
    def _without_empty_sections(cls, data: Any) -> Any:
        """An empty section (`visits:` alone) counts as left out; `dialect:` of 2.0 is a part of `data`."""
        if not isinstance(data, dict):
            return data
        given = {
            name: section
            for name, section in data.items()
            if section is not None or name not in cls.model_fields
        }
        if "dialect" in given:
            facts, dialect = given.get("data", {}), given.pop("dialect")
            if not isinstance(facts, dict) or not isinstance(dialect, dict):
                raise ValueError("dialect and data must hold settings")
            given["data"] = {**facts, **dialect}
        return given
