"""Training a blend: every part once for each fold of subjects, the weights out of fold, then every part on all.

The networks are runs in the run's `checkpoints`: a finished one is kept, and an interrupted one goes on where it
stopped, so that a run that was killed ends with the same bytes.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json_lines
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import HISTORY, RUN, read_manifest
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import load_model
from ehrsequencing.predictors.blend import ARRAYS_FILE, BLEND_FILE, PARTS, Blend, parts_hazards
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.landmark_cox import LandmarkCox
from ehrsequencing.predictors.network import network
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.predictors.weights import BlendRows, fit_weights, points_at
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.loop import Progress, ShowProgress, show_nothing
from ehrsequencing.training.processes import ALONE, Processes
from ehrsequencing.training.resolve import study_for_cohort, subjects_with_event
from ehrsequencing.training.run_folder import RunFolder, fingerprint_of
from ehrsequencing.training.teacher import folds_of, teacher_of
from ehrsequencing.training.train import Trainer
from ehrsequencing.training.transfer import Pretrained

# training subjects with the event of interest; with fewer chance decides the weights
FEWEST_EVENTS = 30
MOST_ROWS = 100_000  # prediction times that the weights are fitted to; above, subjects spread evenly over all


def trainer_of(
    prepared: Prepared,
    task_name: str,
    out: Path,
    *,
    study: StudyConfig,
    init: Pretrained | None = None,
    processes: Processes = ALONE,
    say: Callable[[str], None] = lambda _: None,
) -> "Trainer | BlendTrainer":
    """What trains a study: a blend where one is possible and not declined, else a network, beside its teacher.

    What the study leaves open follows from the cohort (`training/resolve.py`), or from the model to start from.

    Args:
        prepared: The data.
        task_name: Which of its tasks.
        out: Folder of the run.
        study: Settings.
        init: A model to start from.
        processes: Those that train together.
        say: Called with what is trained, where nothing was asked: a blend, or why none is possible.

    Raises:
        EhrseqError: `training.blend=true`, and no blend is possible.
    """
    study = study_for_cohort(study, prepared, task_name, transfers=init is not None)
    is_wanted = study.training.blend
    reason = why_alone(study, prepared, task_name, init=init, processes=processes)
    if is_wanted and reason is not None:
        fix = "train the network alone with training.blend=false, or leave it out"
        raise EhrseqError(f"is not possible: {reason}", where="training.blend=true", fix=fix)
    if is_wanted is None and reason is not None:
        say(f"training the network alone, without a blend: {reason}")
    is_blend = reason is None and is_wanted is not False
    training = study.training.model_copy(update={"blend": is_blend})
    study = study.model_copy(update={"training": training})
    if is_blend:
        if is_wanted is None:
            networks = study.training.blend_folds + 1
            say(f"training {networks} networks, for a blend; training.blend=false trains one")
        return BlendTrainer(prepared, task_name, out, study=study)
    teacher = teacher_of(prepared, task_name, study)
    return Trainer(
        prepared, task_name, out, study=study, init=init, teacher=teacher, processes=processes
    )


def why_alone(
    study: StudyConfig,
    prepared: Prepared,
    task_name: str,
    *,
    init: Pretrained | None,
    processes: Processes,
) -> str | None:
    """Why a network cannot be part of a blend; None where it can."""
    if init is not None:
        return (
            "the model to start from may have seen the people on whom the weights of a blend are fitted, their later "
            "visits included"
        )
    if processes.several:
        return "several processes train it"
    if study.model.head == "visit":
        return "the visit head has no hazards per day"
    if prepared.task(task_name).outcomes is not None:
        return "a blend answers for the task's causes only, and the task has outcomes"
    events = subjects_with_event(prepared.records(task_name, "train").rows)
    if events < FEWEST_EVENTS:
        return f"fewer than {FEWEST_EVENTS} training subjects have the event of interest"
    return None


class BlendTrainer:
    """Trains a network, boosted visits and a landmark Cox model, and the weights of their blend.

    Args:
        prepared: The data.
        task_name: Which of its tasks.
        out: Folder of the run.
        study: Settings; `training.blend_folds`, and of `evaluation` the seed and the trials of the boosting.
    """

    def __init__(
        self,
        prepared: Prepared,
        task_name: str,
        out: Path,
        *,
        study: StudyConfig,
    ) -> None:
        self.prepared, self.out, self.given = prepared, out, study
        self.teacher = teacher_of(prepared, task_name, study)
        self.network = Trainer(prepared, task_name, out, study=study)
        self.task, self.settings = self.network.task, study.training
        self.started_from = None  # no part starts from another model
        self.study = self.network.study.model_copy(update={"training": study.training})
        self.network.study = self.study
        self.records = {split: prepared.records(task_name, split) for split in ("train", "tuning")}
        self.edges = self.network.config.edges_days
        counts = np.diff(self.records["train"].rows.row_offsets)
        self.folds = folds_of(counts, folds=self.settings.blend_folds, seed=self.settings.seed)

    @property
    def made_of(self) -> dict[str, str]:
        """What decides the run beside its data; a resumed run must share it with its start."""
        evaluation = self.study.evaluation
        blend = {"blend": True, "blend_folds": len(self.folds)}
        trees = [evaluation.seed, evaluation.tuning_trials]
        return self.network.made_of | made_of(training=blend, seed_of_trees=trees)

    def fit(self, *, resume: bool = False, on_progress: ShowProgress = show_nothing) -> None:
        """Train everything and write the run.

        Raises:
            EhrseqError: A fold leaves too little to train on.
        """
        folder = RunFolder(self.out, self.prepared, self.task.name, self.made_of)
        with folder.held(resume=resume) as is_finished:
            if not is_finished:
                self._fit(folder.checkpoints, on_progress)

    def _fit(self, checkpoints: Path, on_progress: ShowProgress) -> None:
        found = [
            self._out_of_fold(checkpoints, number, fold, on_progress)
            for number, fold in enumerate(self.folds)
        ]
        rows = BlendRows.joined(found)
        weights = fit_weights(rows, n_causes=len(self.task.causes), seed=self.settings.seed)
        whole = checkpoints / "network"
        model = self._train_network(whole, len(self.folds), None, on_progress)
        blend = Blend([self._network(model), *self._fit_others(self.records["train"])], weights)
        self.out.mkdir(parents=True, exist_ok=True)
        blend.save(self.out)
        manifest = read_manifest(whole, what=RUN.what)
        kept = ("best_epoch", "tuning_nll", "recalibration", "members")
        facts = {key: manifest[key] for key in kept if key in manifest}
        identity = self.prepared.identity(self.task.name)
        facts["made_of"] = self.made_of
        facts["fingerprint"] = fingerprint_of(identity, self.made_of)
        facts["blend"] = {
            "parts": list(PARTS),
            "folds": len(self.folds),
            "tuning_nll": self._tuning_nll(blend),
        }
        history = read_json_lines(whole / HISTORY)
        self.network.write_run(model, history, facts, more=(BLEND_FILE, ARRAYS_FILE))

    def _out_of_fold(
        self, checkpoints: Path, number: int, fold: Ints, on_progress: ShowProgress
    ) -> BlendRows:
        """What parts that never saw a fold say of its subjects."""
        model = self._train_network(checkpoints / f"fold-{number + 1}", number, fold, on_progress)
        train = self.records["train"]
        rest = np.setdiff1d(np.arange(len(train.timelines)), fold)
        others = self._fit_others(train.take(rest))
        step = max(1, -(-len(train) // MOST_ROWS))
        asked = fold[::step]
        out_of_fold, found = train.take(asked), []
        for chosen, hazards in parts_hazards([self._network(model), *others], out_of_fold):
            rows = out_of_fold.rows
            duration, entry = (
                np.array(rows.duration_days[chosen]),
                np.array(rows.entry_days[chosen]),
            )
            found.append(
                BlendRows(
                    duration,
                    entry,
                    rows.cause[chosen].astype(np.int64),
                    asked[rows.subject[chosen]],
                    points_at(hazards, self.edges, duration),
                    points_at(hazards, self.edges, entry),
                    self.edges,
                )
            )
        return BlendRows.joined(found)

    def _network(self, model: SurvivalModel) -> Predictor:
        types = self.prepared.vocabulary.code_types if self.network.config.code_types else None
        return network(model, types)

    def _tuning_nll(self, blend: Blend) -> dict[str, float]:
        """Mean NLL of all tuning prediction times: of the blend, then of each part alone."""
        tuning = self.records["tuning"]
        each = {one.name: one.nll(tuning) for one in (blend, *blend.parts)}
        return {name: float(nll.sum()) / max(len(tuning), 1) for name, nll in each.items()}

    def _train_network(
        self, folder: Path, number: int, fold: Ints | None, on_progress: ShowProgress
    ) -> SurvivalModel:
        trainer = Trainer(
            self.prepared,
            self.task.name,
            folder,
            study=self.given,
            leave_out=fold,
            teacher=self.teacher,
        )
        members = self.settings.members

        def show(progress: Progress) -> None:
            done = number * members + progress.member
            on_progress(replace(progress, member=done, members=members * (len(self.folds) + 1)))

        trainer.fit(resume=True, on_progress=show)
        return load_model(folder)

    def _fit_others(self, train: TaskRecords) -> tuple[BoostedVisits, LandmarkCox]:
        settings = self.study.evaluation
        data = FittingData(
            self.task,
            self.prepared.vocabulary,
            train,
            self.records["tuning"],
            self.edges,
            settings.seed,
            enough=self.prepared.study.vocabulary.min_subjects,
        )
        return BoostedVisits.fit(data, trials=settings.tuning_trials or 1), LandmarkCox(data)
