"""Batches on their way to a device."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from ehrsequencing.batches.loader import Step

Item = TypeVar("Item")


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
