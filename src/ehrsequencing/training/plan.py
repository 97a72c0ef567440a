"""What a study, a cohort and its records decide before anything is fitted; records are opened here, once."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ehrsequencing.config import ModelConfig, StudyConfig, TaskConfig, TrainingConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.made_of import made_of
from ehrsequencing.predictors.fit import at_landmarks
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.hazards_objective import LossFunction, provenance
from ehrsequencing.training.resolve import resolve_model, study_for_cohort, subjects_with_event
from ehrsequencing.training.run_folder import fingerprint_of
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
    """

    prepared: Prepared
    task: TaskConfig
    config: ModelConfig
    study: StudyConfig
    train: TaskRecords
    tuning: TaskRecords
    transfer: Transfer | None = None
    is_member: bool = False
    loss: LossFunction | None = None

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        task_name: str,
        study: StudyConfig,
        *,
        init: Pretrained | None = None,
        as_given: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> "Plan":
        """Decide what the study leaves open, by the cohort (`resolve.py`) or by the model to start from.

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
        transfer = None if init is None else Transfer(init, study.transfer, prepared)
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
    def settings(self) -> TrainingConfig:
        """Of the training."""
        return self.study.training

    @property
    def fits_stack(self) -> bool:
        """Whether trees and Cox are fitted: as parts of the answer, or for the network to learn from."""
        training = self.settings
        teaches = training.distillation > 0 and training.network and not self.is_member
        return training.blend is True or not training.network or teaches

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of hazards at the training rows: (R, causes, bins)."""
        return len(self.train), self.config.causes, self.config.bins

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
            recalibration=self.settings.recalibration,
        )

    def member(self, number: int) -> "Plan":
        """The plan of one network of an ensemble, of which there are `training.members`, from 0."""
        update = {"seed": self.settings.seed + number, "members": 1, "blend": False}
        study = self.study.model_copy(update={"training": self.settings.model_copy(update=update)})
        config = self.config.model_copy(update={"members": 1})
        return replace(self, study=study, config=config, is_member=True)

    @property
    def made_of(self) -> dict[str, str]:
        """What decides the run beside its data; a resumed run must share it with its start."""
        evaluation, training = self.study.evaluation, self.settings
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

    @property
    def fingerprint(self) -> str:
        """Digest of what the run is made of: data, task and settings."""
        return fingerprint_of(self.prepared.identity(self.task.name), self.made_of)


def why_alone(
    study: StudyConfig, task: TaskConfig, train: TaskRecords, *, init: Pretrained | None
) -> str | None:
    """Why trees and Cox cannot be part of the answer beside a network; None where they can."""
    if init is not None:
        return (
            "the model to start from may have seen the people on whom the weights of a blend are fitted, their later "
            "visits included"
        )
    if reason := _without_trees(study, task):
        return reason
    if subjects_with_event(train.rows) < FEWEST_EVENTS:
        return f"fewer than {FEWEST_EVENTS} training subjects have the event of interest"
    return None


def _without_trees(study: StudyConfig, task: TaskConfig) -> str | None:
    """Why trees and Cox cannot answer the question at all."""
    if study.model.head == "visit":
        return "the visit head has no hazards per day"
    if task.outcomes is not None:
        return "trees and Cox answer for the task's causes only, and the task has outcomes"
    return None


def _with_blend(
    study: StudyConfig,
    task: TaskConfig,
    train: TaskRecords,
    init: Pretrained | None,
    say: Callable[[str], None],
) -> TrainingConfig:
    """`training` with `blend` resolved: True or False.

    Raises:
        EhrseqError: What the study asks for is not possible here.
    """
    training, impossible = study.training, _without_trees(study, task)
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
    reason = why_alone(study, task, train, init=init)
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
