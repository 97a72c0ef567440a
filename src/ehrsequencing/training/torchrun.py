"""Several processes that train one model, started by `torchrun --nproc-per-node=2 -m ehrsequencing train …`.

All hold the same weights. Each computes the gradients of its share of a step's subjects, one `all_reduce` adds them up,
and all take the same step. The loss is a sum over prediction times divided by a constant, so that the sum of the
processes' gradients is the gradient of one process. torch's `DistributedDataParallel` averages instead, and needs the
same number of backward passes in every process; here one may have no subject of a step.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ehrsequencing.core.arrays import Floats32
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.training.processes import Processes

WAIT = timedelta(hours=4)  # for one another: process 0 alone recalibrates and writes


class ProcessesOfTorchrun(Processes):
    """This process among several."""

    def totals(self, *numbers: float) -> list[float]:
        """See `Processes`."""
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        summed = torch.tensor(numbers, dtype=torch.float64, device=device)
        _all_reduce(summed)
        return [float(number) for number in summed.tolist()]

    def from_first(self, array: Floats32 | None, shape: tuple[int, ...]) -> Floats32 | None:
        """See `Processes`."""
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        message = torch.zeros(shape) if array is None else torch.from_numpy(array)
        message = message.to(device)
        _all_reduce(message)  # zeros in all but the first
        return np.asarray(message.cpu().numpy())

    def sum_gradients(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], numbers: Tensor
    ) -> tuple[list[Tensor | None], Tensor]:
        """See `Processes`."""
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


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Join the processes that torchrun has started, as its environment variables say.

    Raises:
        EhrseqError: There are fewer GPUs than processes on this machine, or the others cannot be reached.
    """
    count = int(os.environ["WORLD_SIZE"])
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
        yield ProcessesOfTorchrun(int(os.environ["RANK"]), count)
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
