"""Training a blend: every part once for each fold of subjects, the weights out of fold, then every part on all.

A finished fold is kept in the run's `checkpoints`, and an interrupted one goes on where its network stopped, so that a
run that was killed ends with the same bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ehrsequencing.baselines.base import FittingData, HazardBaseline
from ehrsequencing.baselines.blend.blend import (
    ARRAYS_FILE,
    BLEND_FILE,
    PARTS,
    Blend,
    in_parts,
    network_hazards,
)
from ehrsequencing.baselines.blend.weights import (
    BlendRows,
    Points,
    blended_hazards,
    fit_weights,
)
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json_lines, remove_folder, write_bytes
from ehrsequencing.core.outputs import HISTORY, RUN, read_manifest
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.build import load_model
from ehrsequencing.records.hazards import horizon_nll
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.device import ALONE, Processes
from ehrsequencing.training.loop import Progress
from ehrsequencing.training.resolve import study_for_cohort
from ehrsequencing.training.run_folder import Pretrained, RunFolder
from ehrsequencing.training.train import Trainer

MOST_ROWS = 100_000  # prediction times that the weights are fitted to; above, subjects spread evenly over all
Show = Callable[[Progress], None]


def trainer_of(
    prepared: Prepared,
    task_name: str,
    out: Path,
    *,
    study: StudyConfig,
    init: Pretrained | None = None,
    processes: Processes = ALONE,
) -> "Trainer | BlendTrainer":
    """What trains a study: a network, with `training.blend` a blend.

    What the study leaves open follows from the cohort (`training/resolve.py`), or from the model to start from.

    Raises:
        EhrseqError: A blend is to start from another model.
    """
    study = study_for_cohort(study, prepared, task_name, transfers=init is not None)
    if not study.training.blend:
        return Trainer(prepared, task_name, out, study=study, init=init, processes=processes)
    if init is not None:
        what = (
            "a blend cannot start from another model: its weights are fitted on subjects whom no part has seen, "
            "and that model may have seen them, their later visits included"
        )
        fix = "leave out --init, or train the network alone with training.blend=false"
        raise EhrseqError(what, where="training.blend=true with --init", fix=fix)
    return BlendTrainer(prepared, task_name, out, study=study, processes=processes)


def folds_of(rows_of_subject: Ints, *, folds: int, seed: int) -> list[Ints]:
    """Subjects with prediction times, in so many folds of about equal size, at random.

    >>> [len(fold) for fold in folds_of(np.array([1, 0, 2, 1, 1, 3]), folds=2, seed=0)]
    [3, 2]
    """
    subjects = np.flatnonzero(rows_of_subject)
    order = np.random.default_rng([seed, folds, len(subjects)]).permutation(subjects)
    return [np.sort(order[number::folds]) for number in range(folds)]


class BlendTrainer:
    """Trains a network, boosted visits and a landmark Cox model, and the weights of their blend.

    Args:
        prepared: The data.
        task_name: Which of its tasks.
        out: Folder of the run.
        study: Settings; `training.blend_folds`, and of `evaluation` the seed and the trials of the boosting.
        processes: Must be this one alone.

    Raises:
        EhrseqError: The head is `visit`, a fold leaves too little to train on, or there are several processes.
    """

    def __init__(
        self,
        prepared: Prepared,
        task_name: str,
        out: Path,
        *,
        study: StudyConfig,
        processes: Processes = ALONE,
    ) -> None:
        if processes.several:
            fix = "start it without torchrun, or train the network alone"
            raise EhrseqError("runs in one process only", where="training.blend", fix=fix)
        if study.model.head == "visit":
            fix = "use model.head=horizon, or leave out training.blend"
            raise EhrseqError(
                "the visit head has no hazards per day to blend", where="training.blend", fix=fix
            )
        if prepared.task(task_name).outcomes is not None:
            what, fix = "a blend answers for the task's causes only", "leave out training.blend"
            raise EhrseqError(what, where=f"task {task_name}, outcomes", fix=fix)
        self.prepared, self.out, self.given = prepared, out, study
        self.network = Trainer(prepared, task_name, out, study=study)
        self.task, self.settings = self.network.task, study.training
        self.study = self.network.study.model_copy(update={"training": study.training})
        self.network.study = self.study
        self.records = {split: prepared.records(task_name, split) for split in ("train", "tuning")}
        self.edges = self.network.config.edges_days
        counts = np.diff(self.records["train"].rows.row_offsets)
        self.folds = folds_of(counts, folds=self.settings.blend_folds, seed=self.settings.seed)

    @property
    def started_from(self) -> None:
        """What the networks took from another model: nothing."""
        return None

    @property
    def fingerprint(self) -> str:
        """Digest of what a resumed run must share with its start."""
        settings = self.study.evaluation
        folds = len(self.folds)
        return digest(
            [self.network.fingerprint, "blend", folds, settings.seed, settings.tuning_trials]
        )

    def fit(self, *, resume: bool = False, on_progress: Show | None = None) -> None:
        """Train everything and write the run."""
        folder = RunFolder(self.out, self.prepared, self.task.name, self.fingerprint)
        with folder.held(resume=resume) as is_finished:
            if not is_finished:
                self._fit(folder.checkpoints, on_progress)

    def _fit(self, checkpoints: Path, on_progress: Show | None) -> None:
        found = [
            self._out_of_fold(checkpoints, number, fold, on_progress)
            for number, fold in enumerate(self.folds)
        ]
        rows = self._rows({key: np.concatenate([one[key] for one in found]) for key in found[0]})
        weights = fit_weights(rows, n_causes=len(self.task.causes), seed=self.settings.seed)
        whole = checkpoints / "network"
        model = self._train_network(whole, len(self.folds), None, on_progress)
        boosted, cox = self._fit_others(self.records["train"])
        blend = Blend(boosted, cox, weights, self.edges)
        self.out.mkdir(parents=True, exist_ok=True)
        blend.save(self.out)
        manifest = read_manifest(whole, what=RUN.what)
        facts = {key: manifest[key] for key in _OF_NETWORK if key in manifest}
        of_blend = {
            "parts": list(PARTS),
            "folds": len(self.folds),
            "tuning_nll": self._tuning_nll(model, blend),
        }
        facts |= {"fingerprint": self.fingerprint, "blend": of_blend}
        history = read_json_lines(whole / HISTORY)
        self.network.write_run(model, history, facts, more=(BLEND_FILE, ARRAYS_FILE))

    def _out_of_fold(
        self, checkpoints: Path, number: int, fold: Ints, on_progress: Show | None
    ) -> dict[str, NDArray[Any]]:
        """What parts that never saw a fold say of its subjects: from its file, or fitted now."""
        path = checkpoints / f"fold-{number + 1}.safetensors"
        mark = digest([self.fingerprint, number])
        found = _read(path, mark)
        if found is None:
            network = checkpoints / f"fold-{number + 1}"
            model = self._train_network(network, number, fold, on_progress)
            train = self.records["train"]
            others = self._fit_others(
                train.take(np.setdiff1d(np.arange(len(train.timelines)), fold))
            )
            step = max(1, -(-len(train) // MOST_ROWS))
            found = self._points(model, others, train.take(fold[::step]))
            write_bytes(path, save({**found, "mark": np.frombuffer(mark.encode(), dtype=np.uint8)}))
            remove_folder(network)
        found["subject"] = found["subject"] * len(self.folds) + number  # no two folds share one
        return found

    def _rows(self, found: dict[str, NDArray[Any]]) -> BlendRows:
        at_duration, at_entry = (
            Points(*(found[f"{name}.{column}"] for column in _OF_POINTS)) for name in _TIMES
        )
        return BlendRows(
            found["duration_days"],
            found["entry_days"],
            found["cause"],
            found["subject"],
            at_duration,
            at_entry,
            self.edges,
        )

    def _points(
        self, model: SurvivalModel, others: Sequence[HazardBaseline], records: TaskRecords
    ) -> dict[str, NDArray[Any]]:
        """What the likelihood needs of the parts' hazards at the prediction times of some subjects."""
        points: dict[str, list[Points]] = {name: [] for name in _TIMES}
        for part, hazards in self._hazards(model, others, records):
            times = (part.rows.duration_days, part.rows.entry_days)
            for name, days in zip(_TIMES, times, strict=True):
                points[name].append(Points.at(hazards, self.edges, np.asarray(days)))
        rows = records.rows
        out: dict[str, NDArray[Any]] = {
            "subject": rows.subject,
            "cause": rows.cause.astype(np.int64),
            "duration_days": np.array(rows.duration_days),
            "entry_days": np.array(rows.entry_days),
        }
        for name, found in points.items():
            for column in _OF_POINTS:
                out[f"{name}.{column}"] = np.concatenate([getattr(one, column) for one in found])
        return out

    def _hazards(
        self, model: SurvivalModel, others: Sequence[HazardBaseline], records: TaskRecords
    ) -> Iterator[tuple[TaskRecords, list[Floats]]]:
        """Some subjects at a time, and the hazards (r, causes, bins) per day of each part at their prediction times."""
        types = self.prepared.vocabulary.code_types if self.network.config.code_types else None
        for _, part in in_parts(records):
            every = np.arange(len(part))
            network = network_hazards(model, part, code_types=types)
            yield part, [network, *(other.hazards(part, every) for other in others)]

    def _tuning_nll(self, model: SurvivalModel, blend: Blend) -> dict[str, float]:
        """Mean NLL of all tuning prediction times: of the blend, then of each part alone."""
        total = np.zeros(1 + len(PARTS))
        for part, each in self._hazards(model, (blend.boosted, blend.cox), self.records["tuning"]):
            rows = part.rows
            blended = blended_hazards(each, blend.weights.value, self.edges)
            for k, hazards in enumerate([blended, *each]):
                total[k] += horizon_nll(
                    hazards,
                    self.edges,
                    duration_days=np.asarray(rows.duration_days),
                    cause=rows.cause,
                    entry_days=rows.entry_days,
                ).sum()
        mean = total / max(len(self.records["tuning"]), 1)
        return dict(zip(("blend", *PARTS), mean.tolist(), strict=True))

    def _train_network(
        self, folder: Path, number: int, fold: Ints | None, on_progress: Show | None
    ) -> SurvivalModel:
        trainer = Trainer(self.prepared, self.task.name, folder, study=self.given, leave_out=fold)
        members = self.settings.members

        def show(progress: Progress) -> None:
            if on_progress is not None:
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


_TIMES = ("at_duration", "at_entry")
_OF_POINTS = ("lower", "upper", "rate")
# facts of its manifest that the run keeps
_OF_NETWORK = ("best_epoch", "tuning_nll", "recalibration", "members")


def _read(path: Path, mark: str) -> dict[str, NDArray[Any]] | None:
    """The arrays of a finished fold; None where there are none of this very run."""
    try:
        found: dict[str, NDArray[Any]] = load_file(path)
    except (OSError, SafetensorError):
        return None
    return found if found.pop("mark", np.zeros(0, np.uint8)).tobytes() == mark.encode() else None
