"""`ehrseq demo --pretrain`: what records without labels are worth when 1,000 subjects have labels."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.baselines.blend.train import BlendTrainer, trainer_of
from ehrsequencing.cli.console import training_bar
from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.files import write_json
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.reporting.pretraining import pretraining_lines
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.resolve import subjects_with_event
from ehrsequencing.training.run_folder import Pretrained
from ehrsequencing.training.train import Trainer

LEAST_TUNING = 30  # tuning subjects that decide the early stop, however few labels there are
LABELLED = 1_000  # training subjects with labels; all of the demo's records are pretrained on
RESULT = "pretraining-gain.json"
_MODEL = ("model.size=small", "model.dim=32", "model.layers=1")
_PRETRAINING = (
    *_MODEL,
    "training.learning_rate=2e-3",
    "training.epochs=20",
)
# Both trainings have the same settings, so that only the start differs: what is given is no default of few events.
_SAME = (
    "model.dropout=0",
    "model.code_dropout=0",
    "model.wide_head=false",
    "model.age_polynomial=false",
)
_TRAINING = (*_MODEL, *_SAME, "training.learning_rate=1e-3", "training.warmup_steps=20")


def run_pretraining_demo(
    prepared: Prepared, out: Path, *, task: str, seed: int, say: Callable[[str], Any]
) -> dict[str, Any]:
    """Pretrain on all records, train with few labels with and without it, and compare on held-out subjects.

    Args:
        prepared: The demo's set.
        out: The demo's folder.
        task: Its task.
        seed: Of labels and trainings.
        say: Prints a line.

    Returns:
        The mean NLL of both runs, the gain with its interval, and how many labels there were.
    """
    folders = {name: out / name for name in ("pretrained", "few-labels", "few-labels-pretrained")}
    labels = FewLabels(prepared, task, min(LABELLED, prepared.manifest["subjects"] // 4), seed)
    own = f"training.seed={seed}"
    say("pretraining on the records of all training patients, without their labels")
    asked = load_study(None, [*_PRETRAINING, own])
    pretrainer = Pretrainer(prepared, folders["pretrained"], study=asked, task_name=task)
    with training_bar("pretraining", "tuning loss") as show:
        for line in pretraining_lines(
            pretrainer.fit(resume=folders["pretrained"].is_dir(), on_progress=show)
        ):
            say(line)
    study = load_study(None, [*_TRAINING, own])
    starts = {"few-labels": None, "few-labels-pretrained": Pretrained(folders["pretrained"])}
    for name, init in starts.items():
        say(
            f"training with the labels of {labels.n:,} patients, {'from scratch' if init is None else 'pretrained'}"
        )
        trainer = labels.trainer(folders[name], study=study, init=init)
        with training_bar() as show:
            trainer.fit(resume=folders[name].is_dir(), on_progress=show)
    scratch, pretrained = (labels.held_out_nll(folders[name]) for name in starts)
    rows = prepared.records(task, "held_out").rows
    gain, error = paired_gain(scratch, pretrained, rows.subject)
    found = {
        "labelled": labels.n,
        "labelled_with_event": labels.events,
        "held_out_prediction_times": len(rows),
        "nll": {"from scratch": float(scratch.mean()), "pretrained": float(pretrained.mean())},
        "gain": gain,
        "low": gain - 1.96 * error,
        "high": gain + 1.96 * error,
    }
    write_json(out / RESULT, found)
    for line in gain_lines(found):
        say(line)
    return found


def gain_lines(found: dict[str, Any]) -> list[str]:
    """The difference, as lines for a terminal.

    >>> gain_lines({"labelled": 9, "labelled_with_event": 3, "nll": {"from scratch": 2.5, "pretrained": 2.4},
    ...             "gain": 0.1, "low": -0.1, "high": 0.3})[-1]
    'This does not show that pretraining helps here: the interval holds 0.'
    """
    nll = found["nll"]
    verdict = (
        "Pretraining helps here: the interval is above 0."
        if found["low"] > 0
        else "Pretraining does harm here: the interval is below 0."
        if found["high"] < 0
        else "This does not show that pretraining helps here: the interval holds 0."
    )
    return [
        "",
        f"{found['labelled']:,} labelled patients, {found['labelled_with_event']} of them with the event",
        f"NLL on held-out patients: {nll['from scratch']:.4f} from scratch, {nll['pretrained']:.4f} pretrained",
        f"gain {found['gain']:+.4f} ({found['low']:+.4f} to {found['high']:+.4f}), 95 % interval, one simulation",
        verdict,
    ]


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
