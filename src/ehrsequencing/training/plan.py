"""What a study, a cohort and its records decide before anything is fitted; records are opened here, once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import (
    ModelConfig,
    ModelSettings,
    ModelShape,
    StudyConfig,
    TaskConfig,
    TrainingConfig,
    TransferConfig,
)
from ehrsequencing.core.arrays import Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.made_of import made_of
from ehrsequencing.predictors.fit import at_landmarks
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.records.outcomes import with_outcome_events
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.scales import grid_edges
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.training.run_folder import provenance

if TYPE_CHECKING:  # of networks, which a plan may lack
    from ehrsequencing.training.objectives import LossFunction
    from ehrsequencing.training.transfer import Pretrained, Transfer

# training subjects with the event of interest; with fewer chance decides the weights
FEWEST_EVENTS = 30
# settings that decide nothing of the model
SAVING = {"checkpoint_seconds", "device"}


@dataclass(frozen=True)
class Plan:
    """A training that is ready to begin. Make it with `of`.

    Attributes:
        prepared: The data.
        task: The question.
        config: Of the network.
        study: Every setting, those that cohort and data decide filled in: `training.blend` is True or False.
        train: Visits and prediction times of the training subjects, with their outcomes where the task has some.
        tuning: Of the tuning subjects.
        transfer: A model to start from, as the study uses it.
        is_member: Whether it is one network of an ensemble, whose teacher and reference are those of the whole.
        loss: What the network learns in the place of the likelihood; None: the likelihood.
        taught: (R, causes, bins) a teacher's hazards per day at the training rows, where they are fitted already.
    """

    prepared: Prepared
    task: TaskConfig
    config: ModelConfig
    study: StudyConfig
    train: TaskRecords
    tuning: TaskRecords
    transfer: "Transfer | None" = None
    is_member: bool = False
    loss: "LossFunction | None" = None
    taught: Floats32 | None = None

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        task_name: str,
        study: StudyConfig,
        *,
        init: "Pretrained | None" = None,
        as_given: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> "Plan":
        """Decide what the study leaves open, by the cohort (below) or by the model to start from.

        Args:
            prepared: The data.
            task_name: Which of its tasks.
            study: Settings.
            init: A model to start from.
            as_given: A network alone, by the study as it stands, without the cohort's defaults.
            say: Called with why there is no blend, where nothing was asked, and with what the records decide.

        Raises:
            EhrseqError: There is too little to train on, or a setting is impossible here.
        """
        task = prepared.task(task_name)
        train = prepared.outcome_records(task_name, "train")
        tuning = prepared.outcome_records(task_name, "tuning")
        if not as_given:
            study = study_for_cohort(study, task, train, transfers=init is not None)
        transfer = None
        if init is not None:
            from ehrsequencing.training.transfer import Transfer  # torch

            transfer = Transfer(init, study.transfer, prepared)
        _refuse_hopeless(train, tuning, task, where=f"task {task.name} in {prepared.folder}")
        training = study.training.model_copy(update={"blend": False})
        if not as_given:
            training = _with_blend(study, task, train, init, say)
        given = study.model if transfer is None else transfer.config(study.model)
        decided = {
            "task": task,
            "evaluation": study.evaluation,
            "model": given,
            "training": training,
            "transfer": study.transfer,
        }
        config = resolve_model(given, prepared, task, train, training)
        return cls(
            prepared,
            task,
            config,
            prepared.study.model_copy(update=decided),
            train,
            tuning,
            transfer,
        )

    @property
    def code_types(self) -> Ints | None:
        """(V,) type of each token, where the network has an embedding for it."""
        return self.prepared.vocabulary.code_types if self.config.code_types else None

    def fitting_data(self) -> FittingData:
        """What trees and Cox are fitted to."""
        return FittingData(
            self.task,
            self.prepared.vocabulary,
            self.train,
            self.tuning,
            self.config.edges_days,
            self.study.evaluation.seed,
            enough=self.prepared.study.vocabulary.min_subjects,
            trials=self.study.evaluation.tuning_trials or 1,
            recalibration=self.study.training.recalibration,
        )

    @property
    def made_of(self) -> dict[str, str]:
        """What decides the run beside its data; a resumed run must share it with its start."""
        evaluation, training = self.study.evaluation, self.study.training
        has_trees = training.blend or not training.network or training.distillation > 0
        return made_of(
            model=self.config.model_dump(mode="json"),
            training=training.model_dump(mode="json", exclude=SAVING),
            evaluation=evaluation.model_dump(mode="json"),
            init=None if self.transfer is None else self.transfer.fingerprint,
            length=training.epochs if training.schedule == "falling" else None,
            trees=[evaluation.seed, evaluation.tuning_trials] if has_trees else None,
            **({} if self.loss is None else {"loss": provenance(self.loss)}),
        )


def _with_blend(
    study: StudyConfig,
    task: TaskConfig,
    train: TaskRecords,
    init: "Pretrained | None",
    say: Callable[[str], None],
) -> TrainingConfig:
    """`training` with `blend` resolved: True or False.

    Raises:
        EhrseqError: What the study asks for is not possible here.
    """
    training, impossible = study.training, None  # why trees and Cox cannot answer at all
    if task.outcomes is not None:
        impossible = "trees and Cox answer for the task's causes only, and the task has outcomes"
    if study.model.head == "visit":
        impossible = "the visit head has no hazards per day"
    if training.distillation > 0 and impossible is not None:
        raise EhrseqError(
            impossible, where="training.distillation", fix="leave out training.distillation"
        )
    if not training.network:
        if init is not None or training.blend:
            impossible = "without a network nothing is blended with it, and nothing starts from one"
        if impossible is not None:
            raise EhrseqError(
                f"is not possible: {impossible}", where="training.network=false", fix="leave it out"
            )
        return training.model_copy(update={"blend": False})
    if training.blend is False:
        return training
    reason = impossible
    if reason is None and subjects_with_event(train.rows) < FEWEST_EVENTS:
        reason = f"fewer than {FEWEST_EVENTS} training subjects have the event of interest"
    if init is not None:
        reason = (
            "the model to start from may have seen the people on whom the weights of a blend are fitted, their later "
            "visits included"
        )
    if training.blend and reason is not None:
        raise EhrseqError(
            f"is not possible: {reason}",
            where="training.blend=true",
            fix="train the network alone with training.blend=false, or leave it out",
        )
    if reason is not None:
        say(f"training the network alone, without a blend: {reason}")
    return training.model_copy(update={"blend": reason is None})


def _refuse_hopeless(
    train: TaskRecords, tuning: TaskRecords, task: TaskConfig, *, where: str
) -> None:
    if int(np.sum(np.diff(train.rows.row_offsets) > 0)) < 2:
        raise EhrseqError(
            "fewer than two training subjects have a prediction time",
            where=where,
            fix="see ehrseq check",
        )
    if not np.any(train.rows.cause == 1):
        raise EhrseqError(
            f"no event of interest ({task.causes[0]}) in training",
            where=where,
            fix="check the task's outcome codes with ehrseq check",
        )
    if not at_landmarks(tuning.rows, task).any():
        raise EhrseqError(
            "no tuning subject is at risk at a landmark",
            where=where,
            fix="give the tuning split more subjects, or the task an earlier landmark",
        )


# ---- defaults --------------------------------------------------------------------------------------------------------


# Fewer training subjects with an event of interest than this get the settings of a small cohort. The number of events
# and not of subjects bounds what a survival model can learn (Harrell's events per variable). The rule was chosen on
# tuning splits of real patients (docs/lab-notes/trials.md); a setting that is given always wins.
FEW_EVENTS = 2_000
OF_FEW_EVENTS: Mapping[str, Mapping[str, Any]] = {
    "model": {
        "size": "small",
        "dropout": 0.3,
        "wide_head": True,
        "age_polynomial": True,
    },
}
# Few events and records that are mostly measurements: these stand side by side, and half of the loss comes from boosted
# visits and Cox, which find in them what so few events do not teach a network. Hiding codes is for measurements too:
# many tell the same. A record of codes loses with a code the pairs that it is part of. Which codes meet in a visit says
# nothing here, and the training has a length: a rate that falls to 0 needs no patience (docs/lab-notes/29).
OF_FEW_EVENTS_AND_NUMBERS: Mapping[str, Mapping[str, Any]] = {
    "model": {**OF_FEW_EVENTS["model"], "code_dropout": 0.3, "table_dim": 128},
    "training": {
        "distillation": 0.5,
        "masked_codes": 0.0,
        "schedule": "falling",
        "epochs": 16,
        "learning_rate": 2e-3,
    },
}
_ENOUGH_CODES = 1_000_000
Changes = Mapping[str, Mapping[str, Any]]  # section → setting → value


def resolve_model(
    model: ModelSettings,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    settings: TrainingConfig,
) -> ModelConfig:
    """The model with what the data decides: vocabulary, causes and the hazard's grid."""
    model.refuse_bidirectional()
    shape = shape_of_inputs(model, prepared).model_dump() | {
        "members": settings.members,
        "causes": len(task.causes),
    }
    if task.outcomes is not None and model.head == "visit":
        raise EhrseqError(
            "outcomes have hazards per day, and head=visit has none",
            where=f"task {task.name}, outcomes",
            fix="use head=horizon",
        )
    if task.outcomes is not None and settings.members > 1:
        raise EhrseqError(
            "every outcome is asked of one network",
            where="training.members",
            fix="leave it out, or train for a task without outcomes",
        )
    if model.head == "visit":
        if len(task.causes) > 1 or task.index.which == "every" or task.recurrent:
            raise EhrseqError(
                "head=visit takes one cause and one index per subject",
                where=f"task {task.name}",
                fix="use model.head=horizon",
            )
    else:
        shape["edges_days"] = training_edges(prepared, task, train.rows, bins=settings.grid_bins)
        # a query of measurements carries summaries of them, and does not need the last ones again
        shape["query_follows_visit"] = not are_measurements(train.timelines.values)
        shape["code_effects"] = shape["query_follows_visit"] and model.wide_head
        shape["outcomes"] = len(prepared.outcomes(task.name))
    return ModelConfig.of(model, ModelShape.model_validate(shape))


def training_edges(
    prepared: Prepared, task: TaskConfig, rows: TaskRows | None = None, *, bins: int
) -> tuple[float, ...]:
    """The inner edges of the hazard's bins that the durations of the training rows give."""
    rows = prepared.rows(task.name, "train") if rows is None else rows
    duration, cause, subject = rows.duration_days, rows.cause, rows.subject
    if task.outcomes is not None:
        duration, cause, subject = with_outcome_events(prepared.outcome_records(task.name, "train"))
    return grid_edges(
        duration,
        cause,
        horizons_days=task.horizons,
        bins=bins,
        subject=subject,
        enough=prepared.study.vocabulary.min_subjects,  # the edges go with the model
    )


def shape_of_inputs(model: ModelSettings, prepared: Prepared) -> ModelShape:
    """What a prepared set decides without a task: vocabulary, values and types of codes."""
    vocabulary, values = prepared.vocabulary, prepared.study.values
    return ModelShape(
        vocab_size=len(vocabulary),
        values="none" if values.mode == "bins" else values.mode,
        value_bins=values.bins,
        table_columns=max(1, int(vocabulary.value_columns.max()) + 1) if model.table_dim else 0,
        n_code_types=int(vocabulary.code_types.max()) + 1 if model.code_types else 1,
    )


# ---- defaults for small cohorts


def study_for_cohort(
    study: StudyConfig, task: TaskConfig, train: TaskRecords, *, transfers: bool = False
) -> StudyConfig:
    """The study with the defaults for the cohort that it is trained on.

    Args:
        study: Settings; what was given in a file or on the command line counts as set.
        task: The question.
        train: Its training split, which decides.
        transfers: Whether training starts from another model, which decides instead.

    Raises:
        EhrseqError: A setting of the transfer is given without a model to start from.
    """
    if transfers:
        return study
    if study.transfer != (nothing := TransferConfig()):
        given = study.transfer.model_dump()
        name = next(n for n, value in nothing.model_dump().items() if given[n] != value)
        raise EhrseqError(
            "needs a model to start from",
            where=f"transfer.{name}",
            fix="name the model with --init, or leave the setting out",
        )
    if subjects_with_event(train.rows) >= FEW_EVENTS:
        return study
    has_hazards_of_trees = study.model.head == "horizon" and task.outcomes is None
    if has_hazards_of_trees and are_measurements(train.timelines.values):
        return with_defaults(study, OF_FEW_EVENTS_AND_NUMBERS)
    return with_defaults(study, OF_FEW_EVENTS)


def subjects_with_event(rows: TaskRows) -> int:
    """Subjects with the event of interest after one of their prediction times."""
    return len(np.unique(np.asarray(rows.subject)[np.asarray(rows.cause) == 1]))


def are_measurements(values: NDArray[np.floating]) -> bool:
    """Whether half of a split's codes or more carry a number, by its first million.

    Args:
        values: (codes, 2) the numbers of a split's codes; NaN where a code has none.

    >>> are_measurements(np.array([[0.5, 0.1], [np.nan, np.nan]])), are_measurements(np.full((3, 2), np.nan))
    (True, False)
    """
    numbers = np.isfinite(values[:_ENOUGH_CODES, 0])
    return bool(2 * numbers.sum() >= max(len(numbers), 1))


def with_defaults(study: StudyConfig, changes: Changes) -> StudyConfig:
    """The study with other defaults: a setting that was given stays.

    >>> given = StudyConfig.model_validate({"model": {"dropout": 0.1}})
    >>> changed = with_defaults(given, {"model": {"dropout": 0.3, "wide_head": True}})
    >>> changed.model.dropout, changed.model.wide_head
    (0.1, True)
    """
    sections = {}
    for section, values in changes.items():
        old = getattr(study, section)
        given = {name: getattr(old, name) for name in old.model_fields_set}
        sections[section] = type(old).model_validate({**values, **given})
    return study.model_copy(update=sections)
