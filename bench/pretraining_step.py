"""What a pretraining step costs beside a supervised one: `python bench/pretraining_step.py PREPARED [--steps 30]`.

CPU time of a step at one thread (forward, backward, clipping, optimiser, averaged weights; batches are made before),
so that a busy machine does not matter. Both see whole records of the same number of subjects; the supervised step is
`ehrseq train` with its defaults, masked codes included, and without them. The kinds take turns.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ehrsequencing.config import load_study
from ehrsequencing.config.parts import objective
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.checkpoint import TrainingState
from ehrsequencing.training.loop import Trainer
from ehrsequencing.training.optimizer import clip_gradients
from ehrsequencing.training.pretraining.loop import Pretrainer


def supervised(prepared: Prepared, out: Path, settings: list[str]) -> list[Callable[[], None]]:
    """Steps of a training."""
    trainer = Trainer(prepared, prepared.only_task(), out, study=load_study(None, settings))
    state = TrainingState("")
    subjects = trainer.loader.shuffled(0, seed=0, visit_budget=2048, most_subjects=48)
    steps = list(trainer._batches(subjects))

    def run(number: int) -> None:
        trainer._begin_step(state, total_steps=100)
        trainer._backward(steps[number])
        trainer._update(state)

    return [lambda number=number: run(number) for number in range(len(steps))]  # type: ignore[misc]


def pretraining(prepared: Prepared, out: Path, settings: list[str]) -> list[Callable[[], None]]:
    """Steps of a pretraining."""
    trainer = Pretrainer(prepared, out, study=load_study(None, settings))
    state = TrainingState("")
    subjects = trainer.loader.shuffled(0, seed=0, visit_budget=2048, most_subjects=48)
    steps = list(trainer._batches(subjects))

    def run(number: int) -> None:
        trainer._begin_step(state, total_steps=100)
        trainer._backward(steps[number])
        clip_gradients(trainer.optimizer, 1.0)
        trainer.optimizer.step()
        state.global_step += 1
        trainer.ema.update(state.global_step)

    return [lambda number=number: run(number) for number in range(len(steps))]  # type: ignore[misc]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", type=Path)
    parser.add_argument("settings", nargs="*", help="as model.size=small")
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    prepared = Prepared(asked.prepared, verify=False)
    with tempfile.TemporaryDirectory() as folder:
        out, settings = Path(folder) / "run", asked.settings
        kinds = {
            "supervised": supervised(prepared, out, [*settings, "training.masked_codes=0"]),
            "supervised, with masked codes": supervised(prepared, out, settings),
        }
        names = sorted(objective.parts)
        kinds |= {
            n: pretraining(prepared, out, [*settings, f"pretraining.objectives=[{n}]"])
            for n in names
        }
        kinds["all objectives"] = pretraining(
            prepared, out, [*settings, f"pretraining.objectives=[{', '.join(names)}]"]
        )
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for number in range(asked.steps):
            for name, steps in kinds.items():
                started = time.process_time()
                steps[number % len(steps)]()
                seconds[name].append(time.process_time() - started)
    base = np.median(seconds["supervised"][2:])
    for name, taken in seconds.items():
        print(
            f"{name:<32} {1000 * np.median(taken[2:]):7.1f} ms   {np.median(taken[2:]) / base:5.2f} supervised steps"
        )


if __name__ == "__main__":
    main()
