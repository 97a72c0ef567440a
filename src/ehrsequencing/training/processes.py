"""The processes that train one model: this one alone; `torchrun.py` has those that torchrun has started."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ehrsequencing.core.arrays import Floats32, Ints

if TYPE_CHECKING:
    from torch import Tensor


class Processes:
    """This process among those that train one model; here it is the only one.

    Args:
        rank: Number of this process.
        count: How many there are.

    Attributes:
        is_first: Whether this is process 0, which alone prints, writes and saves.
        several: Whether there are others.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self.is_first, self.several = rank == 0, count > 1

    def share(self, subjects: Ints) -> Ints:
        """This process's part (m,) of some subjects (n,), in their order.

        >>> import numpy as np
        >>> Processes(rank=1, count=2).share(np.array([4, 7, 1])).tolist()
        [7]
        """
        return subjects[self.rank :: self.count]

    def totals(self, *numbers: float) -> list[float]:
        """Sums over the processes, in float64; no process goes on before all have called it."""
        return list(numbers)

    def from_first(self, array: Floats32 | None, shape: tuple[int, ...]) -> Floats32 | None:
        """The array of process 0 in all of them; the others give None."""
        return array

    def sum_gradients(
        self,
        parameters: Sequence["Tensor"],
        gradients: Sequence["Tensor | None"],
        numbers: "Tensor",
    ) -> tuple[list["Tensor | None"], "Tensor"]:
        """Sums over the processes of gradients and of further numbers, in one message.

        Args:
            parameters: Of the model, in the same order in every process.
            gradients: One for each; None where this process's batches do not depend on the parameter.
            numbers: (n,) floats.

        Returns:
            The gradients' sums, None where no process has one (the optimiser then leaves the parameter alone); and
            the sums of the numbers.
        """
        return list(gradients), numbers


ALONE = Processes()
