"""`ehrseq train`: a network for one task of a prepared set, or several of them as one run (`training.members`)."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Bools, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json_lines
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import HISTORY, RUN, read_manifest
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import Ensemble, build_model, load_model
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.models.outcomes import OutcomeHead
from ehrsequencing.records.hazards import cohort_hazards
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.hazards_objective import HazardsObjective
from ehrsequencing.training.loop import Progress, ShowProgress, Training, show_nothing
from ehrsequencing.training.masked_codes import BesideHazards
from ehrsequencing.training.processes import ALONE, Processes, training_device
from ehrsequencing.training.recalibration import recalibrate_head
from ehrsequencing.training.resolve import resolve_model, starting_outcome_hazards
from ehrsequencing.training.run_folder import RunFolder, fingerprint_of, write_run_files
from ehrsequencing.training.transfer import Pretrained, Transfer

SAVING = {"checkpoint_steps", "checkpoint_seconds"}  # settings that decide nothing of the model


class Teacher(Protocol):
    """What a network may learn from beside the events themselves (`training.distillation`)."""

    def __call__(self, train: TaskRecords, edges_days: tuple[float, ...]) -> Floats32:
        """(R, causes, bins) hazards per day at all rows of some training subjects, none from its own subject."""
        ...


class Trainer:
    """Fits one model, or `training.members` of them, to one task of a prepared set.

    Args:
        prepared: The data.
        task_name: Which of its tasks.
        out: Folder of the run.
        study: Settings; `model` and `training` are used. With `training.blend` this is the network of the blend.
        leave_out: Training subjects (numbers) whom no weight is fitted to: a fold of the blend. The vocabulary, the
            scales of numbers and the grid are those of all.
        init: A model to start from, used as `study.transfer` says.
        teacher: With `training.distillation` what it learns from, beside the events (`baselines/teacher.py`).
        processes: Those that train together; each has a trainer with the same arguments, and process 0 writes.
    """

    def __init__(
        self,
        prepared: Prepared,
        task_name: str,
        out: Path,
        *,
        study: StudyConfig,
        leave_out: Ints | None = None,
        init: Pretrained | None = None,
        teacher: Teacher | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.prepared, self.task, self.out = prepared, prepared.task(task_name), out
        self.leave_out, self.teacher, self.processes = leave_out, teacher, processes
        self.settings = study.training.model_copy(update={"blend": False})
        self.transfer = None if init is None else Transfer(init, study.transfer, prepared)

        train = prepared.outcome_records(task_name, "train")
        tuning = prepared.outcome_records(task_name, "tuning")
        self.train_rows, self.tuning_rows = train.rows, tuning.rows
        self._refuse_hopeless()
        model = study.model if self.transfer is None else self.transfer.config(study.model)
        self.config = resolve_model(model, prepared, self.task, self.train_rows, self.settings)
        made_with = {
            "task": self.task,
            "evaluation": study.evaluation,
            "model": self.config,
            "training": self.settings,
            "transfer": study.transfer,
        }
        self.study = prepared.study.model_copy(update=made_with)

        # whom it learns from
        types = prepared.vocabulary.code_types if self.config.code_types else None
        self.loader = SubjectLoader.of_model(self.config, train, code_types=types)
        self.tuning = SubjectLoader.of_model(self.config, tuning, code_types=types)
        if leave_out is not None:
            kept = np.setdiff1d(np.arange(len(train.timelines)), leave_out)
            self.train_rows = train.rows.take(kept)
            self._refuse_hopeless()
            self.loader.subjects = np.setdiff1d(self.loader.subjects, leave_out)
        if self.settings.bootstrap:
            self.loader.subjects = bootstrap_sample(self.loader.subjects, seed=self.settings.seed)
        visits = int(self.loader.cost[self.loader.subjects].sum())
        self.budget = max(1, min(self.settings.visit_budget, visits // self.settings.min_steps))
        share_of_epoch = min(1.0, self.budget / max(visits, 1))  # of a full step
        if self.settings.subjects_per_step is not None:
            subjects = self.settings.subjects_per_step / len(self.loader)
            share_of_epoch = min(share_of_epoch, subjects)

        # the model at its start
        torch.manual_seed(self.settings.seed)
        self.model = build_model(self.config.model_copy(update={"members": 1}))
        if self.config.head == "horizon":
            rows = self.train_rows
            hazards = cohort_hazards(
                self.config.edges_days,
                rows.entry_days,
                rows.duration_days,
                rows.cause,
                n_causes=self.config.causes,
            )
            self.model.head.set_bias(torch.from_numpy(hazards))
        if self.model.table is not None:
            vocabulary = prepared.vocabulary
            self.model.table.set_columns(vocabulary.value_columns, vocabulary.base)
        self.started_from = None if self.transfer is None else self.transfer.start(self.model)
        if isinstance(self.model.outcomes, OutcomeHead):
            self.model.outcomes.set_bias(starting_outcome_hazards(self.config, train))
        self.model.to(training_device())

        # at which tuning prediction times the early stop looks
        decisive = np.ones(len(self.tuning_rows), dtype=np.bool_)
        if self.settings.early_stop == "landmarks" and self.config.head == "horizon":
            decisive = self._landmark_rows()

        # what it learns; losses are divided by what is expected in a full step, never by what this one has
        self.objective = HazardsObjective(
            self.model,
            self.tuning,
            decisive,
            divisor=max(1.0, share_of_epoch * len(self.train_rows)),
            settings=self.settings,
            processes=processes,
        )
        self.beside: BesideHazards | None = None
        trains_codes = self.transfer is None or self.transfer.trains_codes
        if (
            self.settings.masked_codes > 0
            and trains_codes
            and isinstance(self.model, HierarchicalBEHRTForSurvival)
        ):
            n_visits = int(self.loader.n_visits[self.loader.subjects].sum())
            divisor = max(1.0, share_of_epoch * n_visits)
            self.beside = BesideHazards(self.model, self.settings, divisor=divisor)
        self.training = Training(
            self.model,
            self.objective,
            self.loader,
            self.settings,
            visit_budget=self.budget,
            steps_per_epoch=1 / share_of_epoch,
            beside=self.beside,
            processes=processes,
        )

    def _refuse_hopeless(self) -> None:
        where = f"task {self.task.name} in {self.prepared.folder}"
        if int(np.sum(np.diff(self.train_rows.row_offsets) > 0)) < 2:
            what = "fewer than two training subjects have a prediction time"
            raise EhrseqError(what, where=where, fix="see ehrseq check")
        if not np.any(self.train_rows.cause == 1):
            what = f"no event of interest ({self.task.causes[0]}) in training"
            fix = "check the task's outcome codes with ehrseq check"
            raise EhrseqError(what, where=where, fix=fix)
        if not self._landmark_rows().any():
            fix = "give the tuning split more subjects, or the task an earlier landmark"
            raise EhrseqError("no tuning subject is at risk at a landmark", where=where, fix=fix)

    def _landmark_rows(self) -> Bools:
        at_landmark = [self.tuning_rows.at_landmark(days) for days in self.task.landmarks]
        return np.asarray(np.any(at_landmark, axis=0))

    @property
    def made_of(self) -> dict[str, str]:
        """What decides the run beside its data; a resumed run must share it with its start."""
        evaluation = self.study.evaluation
        left_out = None if self.leave_out is None else self.leave_out.tolist()
        return made_of(
            model=self.config.model_dump(mode="json"),
            training=self.settings.model_dump(mode="json", exclude={*SAVING, "blend_folds"}),
            evaluation=evaluation.model_dump(mode="json"),
            init=None if self.transfer is None else self.transfer.fingerprint,
            left_out=left_out,
            seed_of_trees=evaluation.seed if self.settings.distillation > 0 else None,
        )

    @property
    def fingerprint(self) -> str:
        """Digest of what the run is made of: data, task and settings."""
        return fingerprint_of(self.prepared.identity(self.task.name), self.made_of)

    def fit(self, *, resume: bool = False, on_progress: ShowProgress = show_nothing) -> None:
        """Train to the early stop and write the run; with several processes, in all of them, and process 0 writes.

        Args:
            resume: Go on with an interrupted run; a finished one stays as it is.
            on_progress: Told after each step and epoch.

        Raises:
            EhrseqError: The folder holds something else, or the training fails.
        """
        folder = RunFolder(self.out, self.prepared, self.task.name, self.made_of)
        held = folder.held(resume=resume) if self.processes.is_first else nullcontext(False)
        with held as is_finished:
            # all processes wait for process 0 here, and learn what it found
            if self.processes.totals(float(is_finished)) == [0.0]:
                if self.settings.members > 1:
                    fit_members(self, on_progress)
                else:
                    self._fit_one(folder.checkpoints, resume=resume, on_progress=on_progress)

    def _fit_one(self, checkpoints: Path, *, resume: bool, on_progress: ShowProgress) -> None:
        """Train, recalibrate the best weights on the tuning split, and write the run."""
        if self.settings.distillation > 0:
            self.objective.taught = self._taught_hazards()
        state = self.training.run(
            self.out,
            checkpoints,
            resume=resume,
            on_progress=on_progress,
        )
        if not self.processes.is_first:
            return
        best: Any = self.training.best
        facts: dict[str, Any] = {"best_epoch": state.best_epoch, "tuning_nll": state.best_nll}
        if self.settings.recalibration > 0 and self.config.head == "horizon":
            facts |= self.recalibrate(best)
        self.write_run(best.cpu(), state.history, facts)

    def _taught_hazards(self) -> Floats32:
        """The teacher's hazards at the training rows; NaN at those of subjects that are left out."""
        if self.teacher is None:
            fix = "train with ehrseq train or eh.fit, or set training.distillation=0"
            raise EhrseqError("nobody to learn from", where="training.distillation", fix=fix)
        train = self.prepared.records(self.task.name, "train")
        subjects = np.arange(len(train.timelines))
        if self.leave_out is not None:
            subjects = np.setdiff1d(subjects, self.leave_out)
        shape = len(train), self.config.causes, self.config.bins
        taught = np.full(shape, np.nan, dtype=np.float32)
        rows = np.flatnonzero(np.isin(train.rows.subject, subjects))
        taught[rows] = self.teacher(train.take(subjects), self.config.edges_days)
        return taught

    def recalibrate(self, model: SurvivalModel) -> dict[str, Any]:
        """Recalibrate a model on the tuning split; the fitted numbers, and the tuning NLL after it."""
        fitted = recalibrate_head(
            model,
            self.tuning,
            prior_sd=self.settings.recalibration,
            visit_budget=4 * self.settings.visit_budget,
            device=self.training.device,
        )
        nll = self.objective.tuning_nll(model)
        return {"tuning_nll": nll, "recalibration": fitted.as_json(self.task.causes)}

    def write_run(
        self,
        model: SurvivalModel,
        history: list[dict[str, Any]],
        facts: dict[str, Any],
        *,
        more: tuple[str, ...] = (),
    ) -> None:
        """Write everything that prediction needs; the manifest comes last.

        Args:
            model: The trained model.
            history: One row an epoch.
            facts: For the manifest.
            more: Files that are there already, and that prediction needs too.
        """
        if self.transfer is not None:
            model.requires_grad_(True)
            facts = {**facts, "init": self.started_from}
        own = {"fingerprint": self.fingerprint, "made_of": self.made_of}
        facts = {"seed": self.settings.seed, **own, **facts}
        write_run_files(self.out, self.prepared, self.study, model, history, facts, more=more)


def fit_members(whole: Trainer, on_progress: ShowProgress = show_nothing) -> None:
    """Fit `training.members` models with the seeds seed, seed + 1 …, and write them as one run.

    Each is a plain training in `checkpoints/member-…`. A finished member is kept, an interrupted one goes on.
    """
    count = whole.settings.members
    history: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    ensemble = Ensemble(whole.config)
    for number, model in enumerate(ensemble.members):
        seed = whole.settings.seed + number
        settings = whole.settings.model_copy(update={"seed": seed, "members": 1})
        config = whole.config.model_copy(update={"members": 1})
        member = Trainer(
            whole.prepared,
            whole.task.name,
            whole.out / "checkpoints" / f"member-{number + 1:03d}",
            study=whole.study.model_copy(update={"training": settings, "model": config}),
            leave_out=whole.leave_out,
            init=None if whole.transfer is None else whole.transfer.source,
            teacher=whole.teacher,
            processes=whole.processes,
        )

        def show(progress: Progress, number: int = number) -> None:
            on_progress(replace(progress, member=number + 1, members=count))

        member.fit(resume=True, on_progress=show)
        if not whole.processes.is_first:
            continue
        model.load_state_dict(load_model(member.out).state_dict())
        for row in read_json_lines(member.out / HISTORY):
            history.append({"member": number + 1, **row})
        manifest = read_manifest(member.out, what=RUN.what)
        kept = ("seed", "best_epoch", "tuning_nll", "recalibration")
        facts.append({key: manifest[key] for key in kept if key in manifest})
    if whole.processes.is_first:
        nll = whole.objective.tuning_nll(ensemble.to(whole.training.device))
        results = {"members": facts, "tuning_nll": nll}
        whole.write_run(ensemble.cpu(), history, results)


def bootstrap_sample(subjects: Ints, *, seed: int) -> Ints:
    """As many subjects, drawn with replacement: some twice or more, about a third of them not at all."""
    rng = np.random.default_rng([seed, len(subjects)])
    sample: Ints = rng.choice(subjects, len(subjects))
    return sample
