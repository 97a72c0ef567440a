"""Shows that a training step never waits for the device: `meta` tensors stand in for a GPU and hold no numbers."""

import contextlib
import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models.base import SurvivalModel


class Waits(AssertionError):
    """Something waits for the device."""


class _NoBlockingOperator(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        named, aten = kwargs if isinstance(kwargs, dict) else {}, torch.ops.aten
        tensors = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
        if func is aten._to_copy.default:
            blocks = str(named.get("device")) == "meta" and not tensors[0].is_meta and not named.get("non_blocking")
        elif func is aten.copy_.default:
            blocks = len({x.device for x in tensors}) > 1 and not (len(args) > 2 and args[2])
        elif func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
            blocks = any(isinstance(x, Tensor) and x.is_meta and x.dtype == torch.bool for x in tree_leaves(args[1]))
        else:
            blocks = False
        if blocks:
            raise Waits(str(func))
        return func(*args, **named)


class _NoNumbersFromPython(TorchFunctionMode):
    def __torch_function__(
        self, func: object, types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        named = kwargs if isinstance(kwargs, dict) else {}
        if func in (torch.tensor, torch.as_tensor) and str(named.get("device")) == "meta":
            raise Waits(str(func))
        return func(*args, **named)


@contextlib.contextmanager
def nobody_waits() -> Iterator[None]:
    """Fails where work on a device would be waited for, beyond what `meta` tensors refuse themselves.

    Those refuse to be read, counted or picked by a condition. Left are copies from memory that is not page-locked
    (told by `non_blocking`), numbers brought from Python to the device, and masks as indices.
    """
    with _NoBlockingOperator(), _NoNumbersFromPython():
        yield


@contextlib.contextmanager
def far_away(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device that holds no numbers, in the place of a GPU. (Autocast does not know it: models are rounded whole.)"""
    patch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())
    yield


def step(model: SurvivalModel, batch: VisitBatch) -> None:
    """Forward, loss and backward, in training."""
    model.train()
    model.loss(batch, divisor=64.0).backward()
    model.loss(batch).backward()


def check_no_wait(model: SurvivalModel, batch: VisitBatch, patch: pytest.MonkeyPatch, *, run=step) -> None:
    model = copy.deepcopy(model).to("meta", torch.float32)
    with far_away(patch):
        run(model, batch.to("meta", non_blocking=True))  # constants are copied once
        with nobody_waits():
            run(model, batch.to("meta", non_blocking=True))
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
