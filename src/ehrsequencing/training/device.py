"""The device that trains: which one, its precision, and the losses that wait there until they are read."""

import math
from typing import Literal

import torch
from torch import Tensor

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.training.checkpoints import TrainingState

READ_STEPS = 20  # steps between two looks at the losses on a GPU


def training_device(name: str | None = None) -> torch.device:
    """The device of that name; None: the GPU of this process where there is one, else the CPU.

    Raises:
        EhrseqError: There is no such GPU.
    """
    if name is not None:
        device = torch.device(name)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise EhrseqError(
                f"{name} is not there", where="training.device", fix="write cpu, or leave it out"
            )
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def autocast(device: torch.device, precision: Literal["32", "bf16"]) -> torch.autocast:
    """The precision in which a model computes (`training.precision`); its weights stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


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
