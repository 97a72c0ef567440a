"""Tiny runs to train, stop, kill, resume and compare."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.fit import fit
from ehrsequencing.training.loop import Progress, ShowProgress
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.processes import ALONE, Processes
from ehrsequencing.training.run_folder import fingerprint_of
from ehrsequencing.training.train import Trainer
from ehrsequencing.training.transfer import Pretrained

TINY = (
    *(
        "model.dim=16",
        "model.heads=2",
        "model.layers=1",
        "training.epochs=3",
        "training.min_steps=6",
        "training.blend=false",
    ),
    "training.checkpoint_seconds=0",
    # As given, not as the size of the cohort decides (training/plan.py): Trainer and the command train the same.
    *("model.dropout=0", "model.code_dropout=0", "model.wide_head=false", "model.age_polynomial=false"),
    *("model.table_dim=0", "training.distillation=0"),
)


class NetworkTrainer(Trainer):
    """A network alone, by the study as it stands, and the run that it becomes."""

    def __init__(
        self,
        prepared: Prepared,
        task_name: str,
        out: Path,
        *,
        study: StudyConfig,
        init: Pretrained | None = None,
        processes: Processes = ALONE,
    ) -> None:
        super().__init__(Plan.of(prepared, task_name, study, init=init, as_given=True), processes)
        self.prepared = prepared
        self.out, self.task, self.study = out, self.plan.task, self.plan.study
        self.train_rows, self.tuning_rows = self.plan.train.rows, self.plan.tuning.rows
        self.transfer = self.plan.transfer
        self.fingerprint = fingerprint_of(prepared.identity(task_name), self.plan.made_of)

    def fit(self, *, resume: bool = False, on_progress: ShowProgress = lambda _: None) -> None:
        """Train it, and write the run."""
        fit(self.plan, self.out, resume=resume, trainer=self, processes=self.processes, on_progress=on_progress)


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def losses(run: Path) -> list[tuple[float, float]]:
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [(row["train_nll"], row["tuning_nll"]) for row in rows]


def train(prepared: Path, out: Path, *settings: str, resume: bool = False) -> None:
    NetworkTrainer(Prepared(prepared), "simulated", out, study=load_study(None, [*TINY, *settings])).fit(resume=resume)


class Interrupted(Exception):
    """Stops a training run from its progress callback."""


def raise_at(stop_at: int) -> Callable[[Progress], None]:
    """Return a progress callback that raises `Interrupted` at the nth step."""
    calls = count(1)

    def stop(progress: Progress) -> None:
        if not progress.ended and next(calls) == stop_at:
            raise Interrupted

    return stop
