"""Batches made ahead in another thread, and losses read late, as on a GPU."""

import threading
from collections.abc import Iterator

import pytest
import torch

from ehrsequencing.batches.loader import prefetched
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.training.checkpoints import TrainingState
from ehrsequencing.training.loop import Losses


def test_an_error_in_the_other_thread_arrives_and_leaves_no_thread() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise EhrseqError("is broken", where="here", fix="fix it")

    before = threading.active_count()
    with pytest.raises(EhrseqError, match="is broken"):
        list(prefetched(items()))
    for stream in (prefetched(iter(range(9))), prefetched(iter(range(9)))):
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator
    assert threading.active_count() == before


@pytest.mark.parametrize("every", [1, 4])
def test_losses_add_up_whenever_they_are_read(every: int) -> None:
    state, losses = TrainingState(), Losses(torch.device("cpu"), scale=3.0, where="run")
    losses.every = every
    values = torch.rand(10)
    for number, value in enumerate(values, start=1):
        state.global_step = number
        losses.add(state, value, rows=2)
        assert state.row_count == 2 * (number - number % every)
    losses.read(state)
    expected = 0.0
    for value in values:
        expected += value.item() * 3.0
    assert (state.loss_sum, state.row_count) == (expected, 20)
    losses.read(state)
    assert state.row_count == 20


@pytest.mark.parametrize("every", [1, 4])
def test_a_loss_that_is_not_finite_is_named_by_its_step(every: int) -> None:
    state, losses = TrainingState(), Losses(torch.device("cpu"), scale=3.0, where="run")
    losses.every = every

    def count_to(last: int) -> None:
        for number in range(1, last + 1):
            state.global_step = number
            losses.add(state, torch.tensor(float("nan") if number >= 6 else 1.0), rows=1)

    with pytest.raises(EhrseqError, match="not finite at step 6"):
        count_to(8)
