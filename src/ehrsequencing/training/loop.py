"""The training loop, from top to bottom: random subjects, AdamW, averaged weights, an early stop, checkpoints.

Every training goes through `Training.run`: hazards of a task (`train.py`) and pretraining (`pretraining/pretrain.py`).
They differ in the module, in the objective and in the subjects, which are passed in.

A run depends only on its data, settings and seed: each step seeds its dropout from its own number, and each epoch its
order of subjects, so that an interrupted run continues to the same bits.
"""

import copy
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ehrsequencing.batches.loader import Step, SubjectLoader, on_device
from ehrsequencing.config import TrainingConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.signals import Stop, Stopped, keep_freed_memory, noted_signals
from ehrsequencing.models.code_effects import CodeEffects
from ehrsequencing.models.hazards import HazardsOverTime
from ehrsequencing.results.result_types import EpochRow
from ehrsequencing.training.checkpoints import (
    TrainingState,
    load_checkpoint,
    save_checkpoint,
)
from ehrsequencing.training.objectives import CLIP_NORM, BesideHazards, autocast
from ehrsequencing.training.processes import ALONE, Processes
from ehrsequencing.training.run_folder import write_history

FREE_BINS_DECAY = 100.0  # weight decay of an effect's free bins, relative to that of other matrices
CODE_EFFECTS_DECAY = 10.0  # the same of the additive effects of codes
READ_STEPS = 20  # steps between two looks at the losses on a GPU
DECAY_STEPS = 300  # above so many steps an epoch, weight decay falls in proportion


class Objective(Protocol):
    """What a training learns: the loss of a batch, and the loss on the tuning split that decides when to stop.

    Attributes:
        word: What its loss is called in the history: `train_{word}`, `tuning_{word}`.
        divisor: What the loss of a batch is divided by: a constant, never the size of this batch.
        of_rows: Whether the loss of a batch is a sum over its prediction times; else it is one term.
    """

    word: str
    divisor: float
    of_rows: bool

    def loss(self, step: Step) -> Tensor:
        """The loss of one batch, summed over its terms, over `divisor`."""
        ...

    def tuning_losses(self, module: nn.Module, stop: Stop) -> dict[str, float]:
        """Losses on the tuning split, for the history; `tuning_{word}` decides. It asks `stop` after each batch."""
        ...


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: (
        float | None
    )  # mean training loss of the epoch so far; None: no loss has come back from the device
    tuning_nll: float | None  # of the last epoch that has ended
    member: int = 1
    members: int = 1
    ended: bool = False  # the epoch has ended, and the tuning loss is its own
    best: bool = False  # it is the best epoch so far


ShowProgress = Callable[[Progress], None]


class Training:
    """One training of one module.

    Args:
        module: What is trained, on its device.
        objective: What it learns.
        loader: Whom it learns from.
        settings: Steps, learning rate, averaging, early stop, checkpoints.
        beside: A second objective, which has an optimiser of its own.
        processes: Those that train together: each has such a training of the same module, and process 0 writes.

    Attributes:
        averaged: The averaged weights of the last step.
        best: The averaged weights of the best epoch.
    """

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        loader: SubjectLoader,
        settings: TrainingConfig,
        *,
        beside: BesideHazards | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.module, self.objective, self.loader = module, objective, loader
        self.settings, self.beside, self.processes = settings, beside, processes
        self.visit_budget, share_of_epoch = full_step(loader, settings)
        self.length = settings.epochs / share_of_epoch
        self.device = next(module.parameters()).device
        self.averaged, self.best = copy.deepcopy(module), copy.deepcopy(module)
        self.optimizer = make_optimizer(module, settings, steps_per_epoch=1 / share_of_epoch)
        # what a checkpoint holds
        self.modules = {"module": module, "averaged": self.averaged, "best": self.best}
        self.optimizers: dict[str, torch.optim.Optimizer] = {"optimizer": self.optimizer}
        if beside is not None:
            self.modules["beside"] = beside.objective
            self.optimizers["beside_optimizer"] = beside.optimizer
        self.checkpoints: Path | None = None
        self.save_at = time.monotonic() + settings.checkpoint_seconds

    def run(
        self,
        out: Path,
        checkpoints: Path,
        *,
        resume: bool = False,
        on_progress: ShowProgress = lambda _: None,
    ) -> TrainingState:
        """Train until the epochs or the patience are over; then `best` has the best weights.

        Args:
            out: Folder of the run, for its history.
            checkpoints: Folder of its checkpoints.
            resume: Go on from the newest checkpoint, if there is one.
            on_progress: Told after each step and epoch.

        Raises:
            EhrseqError: A loss is not finite, or the checkpoint is damaged.
            Stopped: A signal has come; a checkpoint was saved.
        """
        keep_freed_memory()  # steps ask for the same blocks again and again
        state = None
        if resume:
            state = load_checkpoint(checkpoints, self.modules, self.optimizers)
        state = state or TrainingState()
        state.finished = self.is_over(state)  # epochs and patience may have changed
        self.processes.totals(0.0)  # all have read the checkpoint before process 0 writes another
        self.checkpoints = checkpoints if self.processes.is_first else None
        # Several processes end at once at a signal: one of them would wait for the others' gradients.
        with nullcontext(Stop()) if self.processes.several else noted_signals() as stop:
            try:
                while not state.finished:
                    self._run_epoch(state, out, stop, on_progress)
                stop.leave_if_asked()
            except Stopped:
                if not self.processes.several:
                    self.save(state)
                raise
        return state

    def _run_epoch(
        self, state: TrainingState, out: Path, stop: Stop, on_progress: ShowProgress
    ) -> None:
        """One epoch, or what is left of it: its steps, and its averaged weights, kept if they are the best so far."""
        started, word = time.monotonic(), self.objective.word
        steps = self.loader.shuffled(
            state.epoch,
            seed=self.settings.seed,
            visit_budget=self.visit_budget,
            most_subjects=self.settings.subjects_per_step,
        )
        self._train_epoch(state, steps, str(out), stop, on_progress)
        losses = self.objective.tuning_losses(self.averaged, stop)
        decisive = losses[f"tuning_{word}"]
        is_best = decisive < state.best_nll
        if is_best:
            state.best_nll, state.best_epoch = decisive, state.epoch + 1
            state.stale_epochs = 0
            self.best.load_state_dict(self.averaged.state_dict())
        elif state.global_step > self.settings.warmup_steps:
            state.stale_epochs += 1  # before, the averaged weights are hardly trained
        row: EpochRow = {
            "epoch": state.epoch + 1,
            "steps": state.step,
            f"train_{word}": state.loss_sum / max(state.row_count, 1),
            **losses,
            "best": is_best,
            "seconds": round(time.monotonic() - started, 2),
        }
        state.history.append(row)
        state.epoch, state.step = state.epoch + 1, 0
        state.loss_sum, state.row_count = 0.0, 0
        state.finished = self.is_over(state)
        if not state.finished and time.monotonic() >= self.save_at:
            self.save(state)  # else the run itself is about to be written
        if self.processes.is_first:
            write_history(out, state.history)
        counts = state.epoch, self.settings.epochs, len(steps), len(steps)
        mean = row[f"train_{word}"]
        on_progress(Progress(*counts, mean, decisive, ended=True, best=is_best))

    def _train_epoch(
        self,
        state: TrainingState,
        steps: list[Ints],
        where: str,
        stop: Stop,
        on_progress: ShowProgress,
    ) -> None:
        """The steps of an epoch that are left."""
        losses = Losses(self.device, scale=self.objective.divisor, where=where)
        last = state.history[-1][f"tuning_{self.objective.word}"] if state.history else None
        learned = [p for group in self.optimizer.param_groups for p in group["params"]]
        # of several processes each has a share of a step, which may be an empty batch
        shares = map(self.processes.share, steps[state.step :])
        for batch in on_device(map(self.loader.collate, shares), self.device):
            self.begin_step(state)
            loss = self.add_gradients(batch)
            count = torch.tensor(len(batch.rows) if self.objective.of_rows else 1)
            if self.processes.several:
                loss, count = self.sum_over_processes(loss, count)
            nn.utils.clip_grad_norm_(learned, CLIP_NORM)
            self.optimizer.step()
            if self.beside is not None:
                self.beside.step(learning_rate(self.settings, state.global_step, self.length))
            state.global_step += 1
            average(self.averaged, self.module, step=state.global_step)
            losses.add(state, loss, count)
            state.step += 1
            if state.step < len(steps) and time.monotonic() >= self.save_at:
                losses.read(state)
                self.save(state)
            mean = state.loss_sum / state.row_count if state.row_count else None
            counts = state.epoch + 1, self.settings.epochs, state.step, len(steps)
            on_progress(Progress(*counts, mean, last))
            stop.leave_if_asked(partial(losses.read, state))
        losses.read(state)

    # ---- one step ----------------------------------------------------------------------------------------------------

    def begin_step(self, state: TrainingState) -> None:
        """Seed the step's dropout and masks by its number alone, and of several processes by the rank."""
        self.module.train()
        torch.manual_seed(step_seed(self.settings.seed, state.global_step, self.processes.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, state.global_step, self.length)
        self.optimizer.zero_grad(set_to_none=True)

    def add_gradients(self, batch: Step) -> Tensor:
        """Add the gradients of one batch; returns its loss."""
        if not batch.batch.n_subjects:
            return torch.zeros((), device=self.device)
        with autocast(self.device, self.settings.precision):
            loss = self.objective.loss(batch)
        if loss.requires_grad:  # else the batch has no target
            loss.backward()  # type: ignore[no-untyped-call]
        if self.beside is not None:
            with autocast(self.device, self.settings.precision):
                loss_beside = self.beside.loss(batch.batch)
            self.beside.backward(loss_beside)
        return loss.detach()

    def sum_over_processes(self, loss: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Replace the gradients by their sums over the processes; the sums of losses and of their terms."""
        learned = [p for p in self.module.parameters() if p.requires_grad]
        parameters: list[Tensor] = [*learned]
        gradients = [p.grad for p in learned]
        if self.beside is not None:
            parameters += self.beside.parameters
            gradients += self.beside.gradients
        numbers = torch.stack([loss, count.to(loss.device).to(loss.dtype)])
        gradients, numbers = self.processes.sum_gradients(parameters, gradients, numbers)
        for parameter, gradient in zip(learned, gradients, strict=False):
            parameter.grad = gradient
        if self.beside is not None:
            self.beside.gradients = gradients[len(learned) :]
        return numbers[0], numbers[1]

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def is_over(self, state: TrainingState) -> bool:
        """Whether the epochs or the patience are used up."""
        is_stale = state.stale_epochs >= self.settings.patience and state.step == 0
        return state.epoch >= self.settings.epochs or is_stale

    def save(self, state: TrainingState) -> None:
        """Save a checkpoint, in process 0."""
        if self.checkpoints is not None:
            save_checkpoint(self.checkpoints, state, self.modules, self.optimizers)
        self.save_at = time.monotonic() + self.settings.checkpoint_seconds


def full_step(loader: SubjectLoader, settings: TrainingConfig) -> tuple[int, float]:
    """Most visits in a step, and which share of an epoch a full step is; in small cohorts steps are smaller."""
    visits = int(loader.cost[loader.subjects].sum())
    budget = max(1, min(settings.visit_budget, visits // settings.min_steps))
    share = min(1.0, budget / max(visits, 1))
    if settings.subjects_per_step is not None:
        share = min(share, settings.subjects_per_step / len(loader))
    return budget, share


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """A well-mixed seed for one step, and one process."""
    numbers = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


EMA_WARMUP, MOST_EMA = 4, 0.9999


@torch.no_grad()
def average(averaged: nn.Module, module: nn.Module, *, step: int) -> None:
    """Average in the weights after step number `step`, from 1: `average ← decay · average + (1 − decay) · weight`.

    The decay warms up as (1 + t) / (w + t), w = 4: then what came before a share f of the run has about f^(w − 1) of
    the average, however long the run, and the last quarter has more than half. The most it becomes is .9999, after
    30,000 steps.
    """
    decay = min(MOST_EMA, (1 + step) / (EMA_WARMUP + step))
    target, source = list[Tensor](averaged.parameters()), list[Tensor](module.parameters())
    torch._foreach_lerp_(target, source, 1.0 - decay)


def make_optimizer(
    model: nn.Module, settings: TrainingConfig, *, steps_per_epoch: float = 1.0
) -> torch.optim.AdamW:
    """Weight decay on matrices of linear layers only, not on embeddings, norms, scales and biases.

    The free bins of an effect have a stronger one: what no curve of time can say must pay for it. So have the additive
    effects of codes.

    AdamW's weights are a moving average of its updates over 1/(learning rate · decay) steps. More subjects make more
    steps an epoch; the effective memory should stay constant in epochs (Wang & Aitchison 2024, How to set
    AdamW's weight decay as you scale model and dataset size). So beyond `DECAY_STEPS` an epoch, decay falls in
    proportion.
    """
    decay = settings.weight_decay * min(1.0, DECAY_STEPS / steps_per_epoch)
    of_time = [layer for layer in model.modules() if isinstance(layer, HazardsOverTime)]
    decays = {id(layer.weight): decay for layer in model.modules() if isinstance(layer, nn.Linear)}
    decays |= {id(layer.curves): decay for layer in of_time}
    decays |= {id(layer.weight): FREE_BINS_DECAY * decay for layer in of_time}
    of_codes = [layer for layer in model.modules() if isinstance(layer, CodeEffects)]
    decays |= {id(layer.effect): CODE_EFFECTS_DECAY * decay for layer in of_codes}
    learned = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learned if decays.get(id(p), 0.0) == one], "weight_decay": one}
        for one in sorted({decays.get(id(p), 0.0) for p in learned})
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def learning_rate(settings: TrainingConfig, step: int, length: float) -> float:
    """Linear warm-up, then constant, or falling in a line to 0.

    Args:
        settings: Of the training.
        step: Number of the step, from 0.
        length: Steps of all epochs; of a falling rate a tenth of them at most is warm-up.
    """
    warmup, left = settings.warmup_steps, 1.0
    if settings.schedule == "falling":
        warmup, left = min(warmup, int(length / 10)), max(1 - step / max(length, 1.0), 0.0)
    return settings.learning_rate * min(1.0, (step + 1) / max(warmup, 1)) * left


# ---- the device ---


class Losses:
    """Losses of steps, kept on the device until they are read.

    Args:
        device: Of the losses. On the CPU every one is read at once.
        scale: What a loss was divided by.
        where: Named in an error.
    """

    def __init__(self, device: torch.device, *, scale: float, where: str) -> None:
        self.every = READ_STEPS if device.type == "cuda" else 1
        self.scale, self.where = scale, where
        self._waiting: list[tuple[int, Tensor, int | Tensor]] = []

    def add(self, state: TrainingState, loss: Tensor, rows: int | Tensor) -> None:
        """The loss of the step that was just finished, and of how many prediction times it is."""
        self._waiting.append((state.global_step, loss, rows))
        if len(self._waiting) >= self.every:
            self.read(state)

    def read(self, state: TrainingState) -> None:
        """Add the waiting losses to the state, with one wait for the device.

        Raises:
            EhrseqError: A loss is not finite.
        """
        if not self._waiting:
            return
        values = torch.stack([loss for _, loss, _ in self._waiting]).tolist()
        waiting, self._waiting = self._waiting, []
        for (number, _, rows), value in zip(waiting, values, strict=True):
            if not math.isfinite(value):
                raise EhrseqError(
                    f"the loss is not finite at step {number}",
                    where=self.where,
                    fix="lower training.learning_rate or use training.precision=32",
                )
            state.loss_sum += value * self.scale
            state.row_count += int(rows)
