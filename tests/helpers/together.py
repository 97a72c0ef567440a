"""What one of two processes does in the tests of training together; `python -m helpers.together PREPARED OUT` runs it.

All of it happens in one pair of processes, since starting them takes longest: sums of gradients, whole trainings, a
training that two, one and two processes continue, and broken variants of the sums.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ehrsequencing.training.group import joined
from ehrsequencing.training.processes import ALONE, Processes
from safetensors.torch import save_file
from torch import Tensor

from ehrsequencing.cli.launch import environments
from ehrsequencing.config import load_study
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.signals import Stopped
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.checkpoint import ExponentialMovingAverage, TrainingState
from ehrsequencing.training.loop import Progress
from ehrsequencing.training.masked_codes import BesideHazards
from ehrsequencing.training.train import Trainer

TINY = (
    *("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=2", "training.min_steps=4"),
    *("model.dropout=0", "model.code_dropout=0", "model.history_dropout=0"),
    *(
        "training.checkpoint_steps=2",
        "training.checkpoint_seconds=0",
        "training.learning_rate=0.005",
        "training.warmup_steps=1",
    ),
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "default": (),
    "cut": ("training.visit_budget=8", "model.max_visits=2"),  # long records as parts: unlike numbers of batches
    "flat": ("model.architecture=flat",),
}


def trainer(prepared: Path, out: Path, processes: Processes, *settings: str) -> Trainer:
    return Trainer(
        Prepared(prepared), "simulated", out, study=load_study(None, [*TINY, *settings]), processes=processes
    )


def steps(one: Trainer) -> dict[str, Ints]:
    """Steps to look at: a drawn one, and one with fewer subjects than processes."""
    drawn = one.loader.shuffled(0, seed=0, visit_budget=400, most_subjects=24)[0]
    return {"drawn": drawn, "single": drawn[:1]}


def step_sums(one: Trainer, subjects: Ints) -> dict[str, Tensor]:
    """Gradients of both objectives, loss and number of prediction times of one step, over all processes."""
    state = TrainingState("")
    one._begin_step(state, total_steps=10)
    parts, rows = [], 0
    for step in one._batches([subjects]):
        parts.append(one._backward(step))
        rows += len(step.rows)
    loss, count = torch.stack(parts).sum(), torch.tensor(float(rows))
    if one.processes.several:
        loss, count = one.together.add_up(state, loss, rows, subjects, one._stop)
    found = {name: p.grad for name, p in one.model.named_parameters()}
    if one.masked_codes is not None:
        found |= {f"masked.{k}": gradient for k, gradient in enumerate(one.masked_codes.gradients)}
        one.masked_codes.gradients = [None] * len(one.masked_codes.gradients)
    kept = {name: gradient.clone() for name, gradient in found.items() if gradient is not None}
    return {**kept, "loss": loss.reshape(1), "rows": count.reshape(1)}


def mean_of_means(self: Processes, parameters: Any, gradients: Any, numbers: Tensor) -> Any:
    """Broken: what a mean over processes would give."""
    summed, numbers = TRUE_SUM(self, parameters, gradients, numbers)
    return [None if one is None else one / self.count for one in summed], numbers


def own_masks(self: Any, batches: Any, **given: Any) -> Any:
    """Broken: masks drawn by each process for itself."""
    return TRUE_MASKS(self, batches, **{**given, "seed": given["seed"] + given["rank"]})


def first_alone(self: ExponentialMovingAverage, step: int) -> None:
    """Broken: only process 0 averages its weights."""
    if os.environ["RANK"] == "0":
        TRUE_AVERAGE(self, step)


TRUE_SUM, TRUE_AVERAGE = Processes.add_up, ExponentialMovingAverage.update
TRUE_MASKS = BesideHazards.share_of_step


def stop_at(number: int) -> Callable[[Progress], None]:
    """Send this process SIGTERM at one step."""

    def tell(progress: Progress) -> None:
        if not progress.ended and (progress.epoch - 1) * progress.steps + progress.step == number:
            os.kill(os.getpid(), signal.SIGTERM)

    return tell


def main(prepared: Path, out: Path) -> None:
    torch.set_num_threads(1)
    with joined() as group:
        us = group.processes
        told: dict[str, Any] = {}
        for name, settings in VARIANTS.items():
            one = trainer(prepared, out / "nowhere", us, *settings)
            for step, subjects in steps(one).items():
                save_file(step_sums(one, subjects), out / f"sums {name} {step} {us.rank}.safetensors")
        one = trainer(prepared, out / "nowhere", us)
        told["shares"] = [
            int(one.loader.cost[us.share(subjects, one.loader.cost[subjects])].sum())
            for subjects in one.loader.shuffled(0, seed=0, visit_budget=one.budget, most_subjects=48)
        ]
        told["tuning"] = us.stretch(one.tuning.subjects, one.tuning.cost[one.tuning.subjects]).tolist()

        Processes.add_up = mean_of_means  # type: ignore[method-assign]
        save_file(step_sums(one, steps(one)["drawn"]), out / f"mean {us.rank}.safetensors")
        Processes.add_up = TRUE_SUM  # type: ignore[method-assign]
        BesideHazards.share_of_step = own_masks  # type: ignore[method-assign]
        save_file(step_sums(one, steps(one)["drawn"]), out / f"masks {us.rank}.safetensors")
        BesideHazards.share_of_step = TRUE_MASKS  # type: ignore[method-assign]

        trainer(prepared, out / "two", us).fit()
        trainer(prepared, out / "members", us, "training.members=2", "training.epochs=1").fit()
        told["resumed"] = resumed(prepared, out / "resumed", us)

        ExponentialMovingAverage.update = first_alone  # type: ignore[method-assign]
        try:
            trainer(prepared, out / "unsynchronised", us).fit()
        except EhrseqError as error:
            told["unsynchronised"] = error.what
        (out / f"told {us.rank}.json").write_text(json.dumps(told))


def resumed(prepared: Path, out: Path, us: Processes) -> list[str]:
    """Two processes until process 1 is told to stop, then one, then two to the end; who was stopped."""
    stopped = []
    try:  # process 1 shows no progress: it is stopped by its own signal, which it notes and tells
        one = trainer(prepared, out, us)
        tell = stop_at(3)
        if not us.is_first:
            update = one._update

            def noted(state: TrainingState) -> None:
                update(state)
                if state.global_step == 2:
                    tell(Progress(1, 2, 3, 9, 0.0, None, 0.0))

            one._update = noted  # type: ignore[method-assign]
        else:
            save = one._save

            def slow(folder: Path | None, state: TrainingState) -> None:
                time.sleep(2.0)
                save(folder, state)

            one._save = slow  # type: ignore[method-assign]
        one.fit()
    except Stopped:
        stopped.append("both")
        if list((out / "checkpoints").glob("step-*")):
            stopped.append("after it was saved")
    us.totals(0.0)
    if us.is_first:
        try:
            trainer(prepared, out, ALONE).fit(resume=True, on_progress=stop_at(5))
        except Stopped:
            stopped.append("alone")
    us.totals(0.0)
    trainer(prepared, out, us).fit(resume=True)
    return stopped


def run_two(*words: object, module: str = "helpers.together", seconds: float = 300) -> list[tuple[int, str]]:
    """Run a file of the helpers in two processes that know of each other; exit code and stderr of each."""
    command = [sys.executable, "-m", module, *map(str, words)]
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")]
    both = [
        subprocess.Popen(
            command, env={**os.environ, **variables, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
            stderr=subprocess.PIPE, text=True,
        )
        for variables in environments(2, 1)
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=seconds)[1] for process in both]
    finally:
        for process in both:
            process.kill()
    return [(process.returncode, text) for process, text in zip(both, told, strict=True)]


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
