"""Several processes that train one model, started by `torchrun --nproc-per-node=2 -m ehrsequencing train …`.

All hold the same weights. Each computes the gradients of its share of a step's subjects, one `all_reduce` adds them up,
and all take the same step. The loss is a sum over prediction times divided by a constant, so that the sum of the
processes' gradients is the gradient of one process. torch's `DistributedDataParallel` averages instead, and needs the
same number of backward passes in every process; here a long record is cut into parts.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ehrsequencing.core.arrays import Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.training.run_folder import TrainingState

WAIT = timedelta(hours=4)  # for one another: process 0 alone recalibrates and writes


@dataclass(frozen=True)
class Processes:
    """This process among those that train one model.

    Attributes:
        rank: Number of this process; process 0 alone prints, writes and saves.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    def share(self, subjects: Ints) -> Ints:
        """This process's part (m,) of some subjects (n,), in their order.

        >>> import numpy as np
        >>> Processes(rank=1, count=2).share(np.array([4, 7, 1])).tolist()
        [7]
        """
        return subjects[self.rank :: self.count]

    def totals(self, *numbers: float) -> list[float]:
        """Sums over the processes, in float64; no process goes on before all have called it."""
        if not self.several:
            return list(numbers)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        summed = torch.tensor(numbers, dtype=torch.float64, device=device)
        _all_reduce(summed)
        return [float(number) for number in summed.tolist()]

    def from_first(self, array: Floats32 | None, shape: tuple[int, ...]) -> Floats32 | None:
        """The array of process 0 in all of them; the others give None."""
        if not self.several:
            return array
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        message = torch.zeros(shape) if array is None else torch.from_numpy(array)
        message = message.to(device)
        _all_reduce(message)  # zeros in all but the first
        return np.asarray(message.cpu().numpy())

    def sum_gradients(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], numbers: Tensor
    ) -> tuple[list[Tensor | None], Tensor]:
        """Sums over the processes of gradients and of further numbers, in one message.

        Args:
            parameters: Of the model, in the same order in every process.
            gradients: One for each; None where this process's batches do not depend on the parameter.
            numbers: (n,) floats.

        Returns:
            The gradients' sums, None where no process has one (the optimiser then leaves the parameter alone); and
            the sums of the numbers.
        """
        if not self.several:
            return list(gradients), numbers
        dtype = parameters[0].dtype  # of all of them
        known = [float(gradient is not None) for gradient in gradients]
        flat = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]
        has = torch.tensor(known, dtype=dtype, device=numbers.device)
        message = torch.cat([numbers.to(dtype), has, *(one.reshape(-1) for one in flat)])
        _all_reduce(message)
        sizes = [len(numbers), len(known), *(parameter.numel() for parameter in parameters)]
        numbers, has, *sums = torch.split(message, sizes)
        has_gradient = has.tolist() if None in gradients else known
        summed = [
            total.view_as(parameter) if any_has else None
            for parameter, total, any_has in zip(parameters, sums, has_gradient, strict=True)
        ]
        return summed, numbers


ALONE = Processes()


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Join the processes that torchrun has started, as its environment variables say; else this one is alone.

    Raises:
        EhrseqError: There are fewer GPUs than processes on this machine, or the others cannot be reached.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    gpus, local_rank = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    if gpus and local_rank >= gpus:
        raise EhrseqError(
            f"{os.environ['LOCAL_WORLD_SIZE']} processes on a machine with {gpus} GPU(s)",
            where="torchrun --nproc-per-node",
            fix="start one process for each GPU, or hide the GPUs with CUDA_VISIBLE_DEVICES=",
        )
    if gpus:
        torch.cuda.set_device(local_rank)
    try:
        dist.init_process_group("nccl" if gpus else "gloo", timeout=WAIT)
    except RuntimeError as error:
        raise EhrseqError(
            f"not all of the {count} processes could be reached",
            where="torchrun",
            fix="see docs/scale.md",
        ) from error
    try:
        yield Processes(int(os.environ["RANK"]), count)
    finally:
        dist.destroy_process_group()


def _all_reduce(message: Tensor) -> None:
    """Replace a tensor by its sum over the processes."""
    try:
        dist.all_reduce(message)
    except RuntimeError as error:
        raise EhrseqError(
            "another process has ended",
            where="ehrseq train",
            fix="find its message above (memory?), then repeat the command with --resume",
        ) from error


# ---- the device ------------------------------------------------------------------------------------------------------


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
