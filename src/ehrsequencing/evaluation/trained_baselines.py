"""The baseline flat BEHRT, the other architecture of ours, trained with the run's settings; parts of a blend."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from ehrsequencing.baselines.base import Baseline
from ehrsequencing.baselines.blend.blend import RunAnswers
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.baselines.fit import Fitted
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.baselines.teacher import teacher_of
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import MANIFEST, RUN, complete_folder, is_json_of
from ehrsequencing.evaluation.comparison import NETWORK
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.training.resolve import subjects_with_event
from ehrsequencing.training.train import Trainer

FLAT = "flat BEHRT"
FOLDER = "baselines"  # of a run


class TrainedBaseline:
    """A trained run as a baseline: another architecture, trained as the run was, or the network of a blend.

    Args:
        name: `flat BEHRT`, or what a blend's network is called.
        answers: What it says of records.
    """

    def __init__(self, name: str, answers: RunAnswers) -> None:
        self.name, self.answers = name, answers

    def risk(
        self, records: TaskRecords, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        part, place = self._part(records, chosen)
        risk = self.answers.risk(part, horizons_days=horizons_days, start_days=start_days)
        return risk[place].astype(np.float64)

    def nll(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `Baseline`."""
        part, place = self._part(records, chosen)
        return self.answers.nll(part)[place]

    @staticmethod
    def _part(records: TaskRecords, chosen: Ints) -> tuple[TaskRecords, Ints]:
        """The subjects of the chosen rows with all their rows, and where the chosen ones are among these."""
        subjects, owner = np.unique(records.rows.subject[chosen], return_inverse=True)
        part = records.take(subjects)
        # Row number r of a subject stands `shift` places earlier among the chosen subjects' rows.
        shift = records.rows.row_offsets[subjects] - part.rows.row_offsets[:-1]
        return part, chosen - shift[owner]


def train_baseline(
    *, prepared: Prepared, task_name: str, study: StudyConfig, run_folder: Path
) -> TrainedBaseline:
    """Train flat BEHRT with the run's settings into `RUN/baselines`, or take the one that stands there.

    It is trained under a temporary name beside its own and renamed when complete, so that an interruption leaves
    nothing that looks finished.

    Args:
        prepared: What the run was trained on.
        task_name: Its task.
        study: The run's settings.
        run_folder: The run.

    Raises:
        EhrseqError: Training fails, or a folder of somebody else's is in the way.
    """
    folder = run_folder / FOLDER / "flat-behrt"
    flat = {"architecture": "flat", "history_dropout": 0.0}
    wanted = study.model_copy(update={"model": study.model.model_copy(update=flat)})
    made, there = Trainer(prepared, task_name, folder, study=wanted), folder / MANIFEST
    if not is_json_of(there, RUN) or read_json(there).get("fingerprint") != made.fingerprint:
        with complete_folder(folder, RUN, overwrite=True) as temporary:
            teacher = teacher_of(
                prepared, task_name, wanted
            )  # what ours learns from, its rival does too
            Trainer(prepared, task_name, temporary, study=wanted, teacher=teacher).fit()
            shutil.rmtree(temporary / "checkpoints", ignore_errors=True)
    return TrainedBaseline(FLAT, Run(folder).answers)


def rivals_of(run: Run | None, prepared: Prepared) -> dict[str, Callable[[], Baseline]] | None:
    """How to get flat BEHRT, unless the run is one; None where there is no run to train it as."""
    if run is None:
        return None
    if run.study.model.architecture == "flat":
        return {}
    train = partial(train_baseline, task_name=run.task.name, study=run.study)
    return {FLAT: partial(train, prepared=prepared, run_folder=run.folder)}


def parts_alone(run: Run | None, fitted: Sequence[Fitted]) -> list[Baseline]:
    """The parts of a blend as models of their own, as far as they are not among the baselines; of others nothing."""
    if run is None or run.blend is None:
        return []
    there = {one.model.name for one in fitted}
    parts: list[Baseline] = [run.blend.boosted, run.blend.cox]
    network = TrainedBaseline(NETWORK, replace(run.answers, blend=None))
    return [network, *(part for part in parts if part.name not in there)]


def likelihood_of_parts(
    run: Run | None, fitted: Sequence[Fitted], tuning: TaskRecords
) -> dict[str, float]:
    """Part of a blend → mean NLL of all tuning prediction times, the best first; nothing where the run is no blend.

    A part that is among the fitted baselines has the NLL of that baseline, whose hazards are recalibrated.
    """
    if run is None or run.blend is None or not len(tuning):
        return {}
    every = np.arange(len(tuning))
    found = {part.name: float(part.nll(tuning, every).mean()) for part in parts_alone(run, fitted)}
    kept = (BoostedVisits.name, LandmarkCox.name)
    found |= {one.model.name: one.tuning_nll for one in fitted if one.model.name in kept}
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def known_baselines(run: Run | None, *, seed: int, trials: int | None) -> dict[str, Baseline]:
    """The trees of a blend, where they were fitted as the baseline would be.

    Args:
        run: The run that is evaluated, if it is one.
        seed: Of the baselines.
        trials: Of the boosting.
    """
    if run is None or run.blend is None:
        return {}
    made = run.study.evaluation
    is_same = (made.seed, made.tuning_trials or 1) == (seed, trials or 1)
    return {BoostedVisits.name: run.blend.boosted} if is_same else {}


# ---- fewer labels to train on ----------------------------------------------------------------------------------------


LEAST_TUNING = 30  # tuning subjects that decide the early stop, however few labels there are


class FewLabels(Prepared):
    """A prepared set in which only n training subjects have labels: everybody's visits, and their prediction times.

    The subjects are drawn at random, in an order that n does not change: whoever is among 50 is among 200. The same
    share of the tuning subjects has labels, `LEAST_TUNING` at least. All held-out subjects have theirs.

    Args:
        prepared: The set.
        task: Name of the task.
        n: Labelled training subjects; None for all.
        seed: Of the draw.
    """

    def __init__(self, prepared: Prepared, task: str, n: int | None, seed: int) -> None:
        super().__init__(prepared.folder, verify=False)
        self.labelled_task, self.n, self.seed = task, n, seed

    def subjects(self, split: str) -> Ints:
        """Numbers of the subjects of `train` or `tuning` with labels, rising."""
        able = self._with_prediction_time(split)
        order = np.random.default_rng([self.seed, len(able)]).permutation(able)
        if self.n is None:
            return np.sort(order)
        share = self.n / len(self._with_prediction_time("train"))
        size = self.n if split == "train" else max(LEAST_TUNING, round(share * len(order)))
        return np.sort(order[:size])

    def _with_prediction_time(self, split: str) -> Ints:
        return np.unique(super().rows(self.labelled_task, split).subject)

    @cached_property
    def events(self) -> int:
        """Labelled training subjects with the event of interest."""
        return subjects_with_event(self.rows(self.labelled_task, "train"))

    def rows(self, task: str, split: str) -> TaskRows:
        """The prediction times of those with labels."""
        rows = super().rows(task, split)
        if task != self.labelled_task or split == "held_out" or self.n is None:
            return rows
        own = np.isin(np.arange(len(rows.row_offsets) - 1), self.subjects(split))
        counts = np.diff(rows.row_offsets) * own
        return rows.select(np.flatnonzero(own[rows.subject]), np.r_[0, np.cumsum(counts)])

    def identity(self, task: str) -> dict[str, str]:
        """That of the set, and whose labels are known."""
        found = super().identity(task)
        return found if self.n is None else {**found, "labelled": f"{self.n} of seed {self.seed}"}
