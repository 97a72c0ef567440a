"""What records without labels are worth: trainings that know the labels of some subjects only, and their difference."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ehrsequencing.baselines.blend.train import BlendTrainer, trainer_of
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.training.resolve import subjects_with_event
from ehrsequencing.training.run_folder import Pretrained
from ehrsequencing.training.train import Trainer

LEAST_TUNING = 30  # tuning subjects that decide the early stop, however few labels there are


@dataclass(frozen=True)
class FewLabels:
    """One task of a prepared set in which only n training subjects have labels.

    The subjects are drawn at random, in an order that n does not change: whoever is among 50 is among 200. The same
    share of the tuning subjects has labels, `LEAST_TUNING` at least. All held-out subjects have theirs.

    Attributes:
        prepared: The set.
        task: Name of the task.
        n: Labelled training subjects; None for all.
        seed: Of the draw.
    """

    prepared: Prepared
    task: str
    n: int | None
    seed: int

    def subjects(self, split: str) -> Ints:
        """Numbers of the subjects of `train` or `tuning` with labels, rising."""
        order = np.random.default_rng([self.seed, len(self._asked(split))]).permutation(
            self._asked(split)
        )
        if self.n is None:
            return np.sort(order)
        share = self.n / len(self._asked("train"))
        size = self.n if split == "train" else max(LEAST_TUNING, round(share * len(order)))
        return np.sort(order[:size])

    def _asked(self, split: str) -> Ints:
        """Subjects with a prediction time."""
        return np.unique(self.prepared.records(self.task, split).rows.subject)

    @cached_property
    def events(self) -> int:
        """Labelled training subjects with the event of interest."""
        return subjects_with_event(self.labelled.rows(self.task, "train"))

    @cached_property
    def labelled(self) -> Prepared:
        """The set as a model sees it: everybody's visits, and the prediction times of those with labels."""
        return self.prepared if self.n is None else _Labelled(self)

    def trainer(
        self, out: Path, *, study: StudyConfig, init: Pretrained | None = None
    ) -> Trainer | BlendTrainer:
        """What `ehrseq train` would train with these labels: a network or a blend, new or from another model."""
        return trainer_of(self.labelled, self.task, out, study=study, init=init)

    def held_out_nll(self, run: Path) -> Floats:
        """(R,) negative log-likelihood of every held-out prediction time."""
        return Run(run).answers.nll(self.prepared.records(self.task, "held_out"))


class _Labelled(Prepared):
    """A prepared set without the prediction times of subjects whose labels are not known."""

    def __init__(self, few: FewLabels) -> None:
        super().__init__(few.prepared.folder, verify=False)
        self._few = few

    def rows(self, task: str, split: str) -> TaskRows:
        rows = super().rows(task, split)
        if task != self._few.task or split == "held_out":
            return rows
        own = np.isin(np.arange(len(rows.row_offsets) - 1), self._few.subjects(split))
        counts = np.diff(rows.row_offsets) * own
        return rows.select(np.flatnonzero(own[rows.subject]), np.r_[0, np.cumsum(counts)])

    def identity(self, task: str) -> dict[str, str]:
        return super().identity(task) | {"labelled": f"{self._few.n} of seed {self._few.seed}"}


def paired_gain(base: Floats, other: Floats, subject: Ints) -> tuple[float, float]:
    """Mean of `base − other` over prediction times, and its standard error over subjects.

    Args:
        base: (R,) likelihoods of the model to compare with.
        other: (R,) those of another model; a positive gain means that they are lower.
        subject: (R,) whose prediction time it is.

    Example:
        >>> mean, error = paired_gain(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]), np.array([0, 0, 1]))
        >>> round(mean, 3), round(error, 3)
        (1.0, 0.667)
    """
    difference = base - other
    mean, (_, owner) = float(difference.mean()), np.unique(subject, return_inverse=True)
    residual = np.bincount(owner, weights=difference - mean)
    count = len(residual)
    error = float(np.sqrt(count / max(count - 1, 1) * np.square(residual).sum())) / len(difference)
    return mean, error
