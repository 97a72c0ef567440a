"""Several processes that work together: which one this is, how work is divided, how numbers are added up or sent.

All processes hold the same weights. Each computes the gradients of its share of a step's subjects, the gradients are
added up over the processes, and then all take the same step. The loss is a sum over prediction times divided by a
constant, so that the sum of the processes' gradients is the gradient of one process: no mean is ever averaged.

Fabric moves batches and chooses the precision of each process, as for one. Its DDP strategy is not used: it averages
where we need sums, sees only losses that go through `forward`, and needs the same number of backward passes in every
process. Ours differ, since a long record is cut into parts and the second objective has gradients of its own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError

DRIFT = 1e-4  # largest difference between the weights of two processes; rounding on unlike machines stays far below


class LostContact(EhrseqError):
    """Another process of the group has ended."""


@dataclass(frozen=True)
class Processes:
    """This process among those that work together.

    Attributes:
        rank: Number of this process; process 0 alone prints, writes and saves.
        count: How many there are.
        local_rank: Its number on this machine, and that of its GPU.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    @property
    def devices(self) -> Any:
        """What Fabric takes as `devices`: one, on a GPU that of this process."""
        return [self.local_rank] if self.several and torch.cuda.is_available() else 1

    # ---- dividing work -----------------------------------------------------------------------------------------------

    def share(self, subjects: Ints, cost: Ints) -> Ints:
        """This process's part of the subjects of one step, in their order; the costs of the parts are about equal.

        Args:
            subjects: (n,) drawn together.
            cost: (n,) visits and queries of each.
        """
        return subjects[balanced(cost, self.count) == self.rank] if self.several else subjects

    def stretch(self, subjects: Ints, cost: Ints) -> Ints:
        """This process's part of many subjects: neighbours in the store; arguments as of `share`."""
        if not self.several or not len(subjects):
            return subjects
        done = np.cumsum(cost, dtype=np.float64)
        mine: Bools = (
            np.minimum((done - cost / 2) * self.count // max(done[-1], 1), self.count - 1)
            == self.rank
        )
        return subjects[mine]

    # ---- adding up ---------------------------------------------------------------------------------------------------

    def totals(self, *numbers: float) -> list[float]:
        """Sums over the processes, in float64."""
        if not self.several:
            return list(numbers)
        summed = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        _call(dist.all_reduce, summed)
        return [float(one) for one in summed.tolist()]

    def add_up(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], numbers: Tensor
    ) -> tuple[list[Tensor | None], Tensor]:
        """Sums over the processes of gradients and of further numbers, in one message.

        Args:
            parameters: Of the model, in the same order in every process.
            gradients: One for each; None where this process's batches do not depend on the parameter.
            numbers: (n,) float32.

        Returns:
            The gradients' sums, None where no process has one (the optimiser then leaves the parameter alone); and
            the sums of the numbers.
        """
        if not self.several:
            return list(gradients), numbers
        missing = [place for place, one in enumerate(gradients) if one is None]
        known = torch.ones(len(gradients), device=numbers.device)
        known[missing] = 0.0
        flat = [
            parameter.new_zeros(parameter.numel()) if one is None else one.reshape(-1)
            for parameter, one in zip(parameters, gradients, strict=True)
        ]
        message = torch.cat([numbers.float(), known, *(one.float() for one in flat)])
        _call(dist.all_reduce, message)
        start = len(numbers) + len(known)
        parts = torch.split(message[start:], [parameter.numel() for parameter in parameters])
        pairs = zip(parameters, parts, strict=True)
        summed: list[Tensor | None] = [
            part.view_as(parameter).to(parameter.dtype) for parameter, part in pairs
        ]
        if missing:  # a look at these numbers would wait for a GPU
            known = message[len(numbers) : start].cpu()
            for place in missing:
                summed[place] = summed[place] if known[place] else None
        return summed, message[: len(numbers)]

    # ---- what process 0 knows ----------------------------------------------------------------------------------------

    def tell(self, value: Any = None) -> Any:
        """The value that process 0 has, in every process; it must fit into JSON."""
        if not self.several:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        size = torch.tensor([len(text)], device=self._device)
        _call(dist.broadcast, size, src=0)
        letters = torch.zeros(int(size), dtype=torch.uint8, device=self._device)
        if self.is_first:
            letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        _call(dist.broadcast, letters, src=0)
        return json.loads(bytes(letters.tolist()))

    def tell_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that process 0 has, in every process, on the CPU."""
        if not self.several:
            return dict(tensors)
        shapes = {
            name: (list(one.shape), str(one.dtype).removeprefix("torch."))
            for name, one in tensors.items()
        }
        found = {}
        for name, (shape, kind) in self.tell(shapes).items():
            own = tensors[name] if self.is_first else torch.zeros(shape, dtype=getattr(torch, kind))
            sent = own.detach().to(self._device).contiguous()
            _call(dist.broadcast, sent, src=0)
            found[name] = sent.cpu()
        return found

    # ---- arrays for process 0 ----------------------------------------------------------------------------------------

    def send(self, arrays: Sequence[NDArray[Any]]) -> "Sending":
        """Send arrays of numbers to process 0, which must ask for them with `receive`, message by message."""
        facts = json.dumps([[one.dtype.str, list(one.shape)] for one in arrays]).encode()
        content = b"".join([facts, *(np.ascontiguousarray(one).tobytes() for one in arrays)])
        sizes = torch.tensor([len(facts), len(content)])
        letters = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return Sending([(one, _call(dist.isend, one, dst=0)) for one in (sizes, letters)])

    def receive(self, source: int) -> list[NDArray[Any]]:
        """The arrays of the next message that another process has sent to this one, process 0."""
        sizes = torch.zeros(2, dtype=torch.int64)
        _call(dist.recv, sizes, src=source)
        facts, everything = sizes.tolist()
        letters = torch.zeros(everything, dtype=torch.uint8)
        _call(dist.recv, letters, src=source)
        content, place = letters.numpy(), facts
        found = list[NDArray[Any]]()
        for kind, shape in json.loads(content[:facts].tobytes()):
            size = np.dtype(kind).itemsize * int(np.prod(shape, dtype=np.int64))
            found.append(
                np.frombuffer(content[place : place + size].tobytes(), dtype=kind).reshape(shape)
            )
            place += size
        return found

    @torch.no_grad()
    def keep_same(self, tensors: Sequence[Tensor]) -> None:
        """Give all processes the weights of process 0, from which only rounding may have parted theirs.

        Raises:
            EhrseqError: They differ by more than rounding, so that they were not trained together.
        """
        if not self.several or not tensors:
            return
        own = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
        first = own.clone()
        _call(dist.broadcast, first, src=0)
        gap = (own - first).abs().max().reshape(1)
        _call(dist.all_reduce, gap, op=dist.ReduceOp.MAX)
        if not float(gap) <= DRIFT:
            fix = "use the same versions of ehrsequencing and torch on all machines, and report it"
            raise EhrseqError(
                "the processes no longer hold the same weights", where="ehrseq train", fix=fix
            )
        for tensor, part in zip(
            tensors, torch.split(first, [tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(part.view_as(tensor))

    @property
    def _device(self) -> torch.device:
        """Where messages lie: NCCL sends from GPUs only."""
        return (
            torch.device("cuda", self.local_rank)
            if dist.get_backend() == "nccl"
            else torch.device("cpu")
        )


@dataclass(frozen=True)
class Sending:
    """A message on its way; it must be kept until `wait` has returned."""

    parts: list[tuple[Tensor, Any]]

    def wait(self) -> None:
        """Return when process 0 has it.

        Raises:
            LostContact: Process 0 has ended.
        """
        for content, work in self.parts:
            _call(lambda _, work=work: work.wait(), content)


ALONE = Processes()


def balanced(cost: Ints, count: int) -> Ints:
    """Divide items into shares of about equal cost: the largest first, each to the share that has the least so far.

    Args:
        cost: (n,) of each item.
        count: How many shares.

    Returns:
        (n,) the share of each item.

    >>> balanced(np.array([5, 1, 9, 4]), 2).tolist()
    [1, 0, 0, 1]
    """
    share, load = np.zeros(len(cost), dtype=np.int64), np.zeros(count)
    for item in np.argsort(-cost, kind="stable").tolist():
        share[item] = int(np.argmin(load))
        load[share[item]] += cost[item]
    return share


def _call(talk: Callable[..., Any], tensor: Tensor, **options: Any) -> Any:
    """Talk to the other processes.

    Raises:
        LostContact: One of them has ended.
    """
    try:
        return talk(tensor, **options)
    except RuntimeError as error:
        fix = "find its message above or in its machine's log (memory?), then repeat the command; training: --resume"
        raise LostContact(
            "another process of this command has ended", where="ehrseq", fix=fix
        ) from error
