"""One step of several processes: the sums of their gradients, and whether one of them was told to stop."""

from typing import Any

import torch
from torch import Tensor

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import TrainingConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.training.checkpoint import TrainingState
from ehrsequencing.training.draws import hash_seed
from ehrsequencing.training.feed import READ_STEPS
from ehrsequencing.training.masked_codes import BesideHazards
from ehrsequencing.training.processes import Processes


class Together:
    """Adds up what the processes found in a step.

    Args:
        processes: Those that train together.
        fabric: Of this process; it knows the precision.
        model: Of this process; its batches of the step have gone backward.
        loader: Of the training split.
        masked_codes: The second objective; its loss compares the visits of a whole step, so that it is computed here.
        visits_per_step: What the second objective is divided by.
        settings: Of the training.

    Attributes:
        all_leave: Whether one of the processes was told to stop, so that all leave after this step.
    """

    def __init__(
        self,
        processes: Processes,
        fabric: Any,
        *,
        model: SurvivalModel,
        loader: SubjectLoader,
        masked_codes: BesideHazards | None,
        visits_per_step: float,
        settings: TrainingConfig,
    ) -> None:
        self.processes, self.fabric, self.model, self.loader = processes, fabric, model, loader
        self.masked_codes, self.settings, self.visits_per_step = (
            masked_codes,
            settings,
            visits_per_step,
        )
        self.all_leave = False

    def add_up(
        self, state: TrainingState, loss: Tensor, rows: int, subjects: Ints, stop: Stop
    ) -> tuple[Tensor, Tensor]:
        """Replace the gradients by their sums over all processes; returns the sums of loss and prediction times.

        Args:
            state: Before the step.
            loss: Of this process.
            rows: Prediction times of this process.
            subjects: Of the whole step.
            stop: Whether this process was told to stop.
        """
        learned: list[Tensor] = [
            parameter for parameter in self.model.parameters() if parameter.requires_grad
        ]
        parameters, gradients = list(learned), [parameter.grad for parameter in learned]
        if self.masked_codes is not None:
            self._masked_codes(state, subjects)
            parameters += self.masked_codes.parameters
            gradients += self.masked_codes.gradients
        numbers = torch.stack(
            [loss.float(), loss.new_tensor(float(rows)), loss.new_tensor(float(stop.asked))]
        )
        gradients, numbers = self.processes.add_up(parameters, gradients, numbers)
        for parameter, gradient in zip(learned, gradients, strict=False):
            parameter.grad = gradient
        if self.masked_codes is not None:
            self.masked_codes.gradients = gradients[len(learned) :]
        if (
            loss.device.type != "cuda" or state.global_step % READ_STEPS == 0
        ):  # a look waits for the GPU
            self.all_leave = float(numbers[2]) > 0
            stop.join(self.all_leave)
        return numbers[0], numbers[1]

    def _masked_codes(self, state: TrainingState, subjects: Ints) -> None:
        """Gradients of this process's share of the masked codes of a whole step."""
        assert self.masked_codes is not None
        for masked in self.masked_codes.share_of_step(
            (
                step.batch
                for step in self.loader.steps(subjects, visit_budget=self.settings.visit_budget)
            ),
            seed=hash_seed(self.settings.seed, state.global_step),
            rank=self.processes.rank,
            count=self.processes.count,
        ):
            with self.fabric.autocast():
                loss = self.masked_codes.loss_of(masked) / self.visits_per_step
            self.masked_codes.backward(loss)
