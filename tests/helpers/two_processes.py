"""What two processes do in the tests of `torchrun`; it runs `-m helpers.two_processes PREPARED OUT`.

All of it happens in one pair of processes, since starting them takes longest: sums of gradients, a broken sum, and a
training that two, one and two processes continue.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ehrsequencing.config import load_study
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.signals import Stopped
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.checkpoints import TrainingState
from ehrsequencing.training.loop import Progress
from ehrsequencing.training.processes import ALONE, Processes
from ehrsequencing.training.torchrun import ProcessesOfTorchrun, joined_processes
from helpers.training import NetworkTrainer as Trainer

TINY = (
    *("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=2", "training.min_steps=4"),
    *("model.dropout=0", "model.code_dropout=0", "model.history_dropout=0", "training.masked_codes=0"),
    "training.checkpoint_seconds=0",
    *("training.learning_rate=0.005", "training.warmup_steps=1"),
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "default": (),
    "cut": ("training.visit_budget=8", "model.max_visits=2"),  # long records as parts: unlike numbers of batches
}


def trainer(prepared: Path, out: Path, processes: Processes, *settings: str) -> Trainer:
    study = load_study(None, [*TINY, *settings])
    return Trainer(Prepared(prepared), "simulated", out, study=study, processes=processes)


def steps(one: Trainer) -> dict[str, Ints]:
    """Steps to look at: a drawn one, and one with fewer subjects than processes."""
    drawn = one.loader.shuffled(0, seed=0, visit_budget=400, most_subjects=24)[0]
    return {"drawn": drawn, "single": drawn[:1]}


def step_sums(one: Trainer, subjects: Ints) -> dict[str, Tensor]:
    """Gradients, loss and number of prediction times of one step, over all processes."""
    step = one.loader.collate(one.processes.share(subjects))
    loss, count = one.training.set_gradients(TrainingState(), step), torch.tensor(float(len(step.rows)))
    if one.processes.several:
        loss, count = one.training.sum_over_processes(loss, count)
    gradients = {name: p.grad.clone() for name, p in one.model.named_parameters() if p.grad is not None}
    return {**gradients, "loss": loss.reshape(1), "rows": count.reshape(1)}


def mean_of_means(self: Processes, parameters: Any, gradients: Any, numbers: Tensor) -> Any:
    """Broken: what a mean over processes would give."""
    summed, numbers = TRUE_SUM(self, parameters, gradients, numbers)
    return [None if one is None else one / self.count for one in summed], numbers


TRUE_SUM = ProcessesOfTorchrun.sum_gradients


def stop_at(number: int) -> Callable[[Progress], None]:
    """Send this process SIGTERM at one step."""

    def stop(progress: Progress) -> None:
        if not progress.ended and (progress.epoch - 1) * progress.steps + progress.step == number:
            os.kill(os.getpid(), signal.SIGTERM)

    return stop


def end_at(number: int) -> Callable[[Progress], None]:
    """End the training of all processes at one step."""

    def end(progress: Progress) -> None:
        if progress.step == number:
            raise Stopped(signal.SIGTERM)

    return end


def main(prepared: Path, out: Path) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # AdamW makes whole steps of rounding: in float32 these would be 1e-8
    with joined_processes() as us:
        for name, settings in VARIANTS.items():
            one = trainer(prepared, out / "nowhere", us, *settings)
            for step, subjects in steps(one).items():
                save_file(step_sums(one, subjects), out / f"sums {name} {step} {us.rank}.safetensors")
        one = trainer(prepared, out / "nowhere", us)
        ProcessesOfTorchrun.sum_gradients = mean_of_means  # type: ignore[method-assign]
        save_file(step_sums(one, steps(one)["drawn"]), out / f"mean {us.rank}.safetensors")
        ProcessesOfTorchrun.sum_gradients = TRUE_SUM  # type: ignore[method-assign]

        stopped = resumed(prepared, out / "resumed", us)
        (out / f"stopped {us.rank}.json").write_text(json.dumps(stopped))


def resumed(prepared: Path, out: Path, us: Processes) -> list[str]:
    """Two processes, then one, then two to the end; who was stopped."""
    stopped = []
    try:
        trainer(prepared, out, us).fit(on_progress=end_at(3))
    except Stopped:
        stopped.append("both")
    us.totals(0.0)
    if us.is_first:
        try:
            trainer(prepared, out, ALONE).fit(resume=True, on_progress=stop_at(5))
        except Stopped:
            stopped.append("alone")
    us.totals(0.0)
    trainer(prepared, out, us).fit(resume=True)
    return stopped


def torchrun(*words: object) -> subprocess.Popen[str]:
    """Start two processes of a module with its arguments."""
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [*command, *map(str, words)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
