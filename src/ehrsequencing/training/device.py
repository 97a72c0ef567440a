"""Where a training computes: the device and the precision. Batches and losses travel without a wait for the GPU."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ehrsequencing.batches.loader import Step
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.training.checkpoint import TrainingState

READ_STEPS = 20  # steps between two looks at the losses on a GPU
Item = TypeVar("Item")


def training_device() -> torch.device:
    """The GPU of this process where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def autocast(device: torch.device, precision: Literal["32", "bf16"]) -> torch.autocast:
    """The precision in which a model computes (`training.precision`); its weights stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def on_device(steps: Iterator[Step], device: torch.device) -> Iterator[Step]:
    """The same steps on a device. On a GPU, one thread packs and pins the next one while this one is worked on."""
    if device.type != "cuda":
        for step in steps:
            yield replace(step, batch=step.batch.to(device))
        return
    for step in prefetched(replace(step, batch=step.batch.pin_memory()) for step in steps):
        yield replace(step, batch=step.batch.to(device, non_blocking=True))


def prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order, each made in a second thread while the one before is in use.

    >>> list(prefetched(iter("abc")))
    ['a', 'b', 'c']
    """
    nothing = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="collate") as thread:
        coming = thread.submit(next, items, nothing)
        while (item := coming.result()) is not nothing:
            coming = thread.submit(next, items, nothing)
            yield item  # type: ignore[misc]  # it is not `nothing`


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
                fix = "lower training.learning_rate or use training.precision=32"
                raise EhrseqError(
                    f"the loss is not finite at step {number}", where=self.where, fix=fix
                )
            state.loss_sum += value * self.scale
            state.row_count += int(rows)
