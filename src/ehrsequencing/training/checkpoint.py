"""Checkpoints: the whole state of a training run in safetensors and JSON, either complete or absent.

A checkpoint is a folder `checkpoints/step-00000123` with `state.safetensors`, `state.json` and a manifest of hashes,
written under a temporary name and renamed.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Optimizer

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    entries,
    read_json,
    remove_folder,
    write_bytes,
    write_json,
)
from ehrsequencing.core.outputs import CHECKPOINT, complete_folder, read_manifest, write_manifest
from ehrsequencing.core.signals import Stop, Stopped, noted_signals


@dataclass
class TrainingState:
    """Where a run stands, apart from its tensors."""

    epoch: int = 0  # epochs finished
    step: int = 0  # steps finished in the current epoch
    global_step: int = 0
    loss_sum: float = 0.0  # of the current epoch: summed NLL
    row_count: int = 0  # of the current epoch: prediction times
    best_nll: float = sys.float_info.max  # JSON has no infinity
    best_epoch: int = 0
    stale_epochs: int = 0  # since the best one
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


class ExponentialMovingAverage:
    """Averaged weights: `average ← decay · average + (1 − decay) · weight` after every step.

    The decay warms up as (1 + t) / (warmup + t): then what came before a share f of the run has about
    f^(warmup − 1) of the average, however long the run; with the default of 4 the last quarter has more than half.
    `decay` is the most it becomes: .9999 is reached after 30,000 steps.
    """

    def __init__(self, model: nn.Module, averaged: nn.Module, *, decay: float, warmup: int) -> None:
        self.decay, self.warmup = decay, warmup
        self._source: list[Tensor] = list(model.parameters())
        self._target: list[Tensor] = list(averaged.parameters())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average in the weights after step number `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (self.warmup + step)) if self.decay else 0.0
        torch._foreach_lerp_(self._target, self._source, 1.0 - decay)


def save_checkpoint(folder: Path, state: TrainingState, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint under `folder`, then remove the one before."""
    name = f"step-{state.global_step:08d}-{state.epoch:05d}"
    if (folder / name).exists():  # it was damaged, and the run went on from the one before
        remove_folder(folder / name)
    with complete_folder(folder / name, CHECKPOINT) as temporary:
        on_disk = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        write_bytes(temporary / "state.safetensors", save(on_disk))
        write_json(temporary / "state.json", asdict(state))
        write_manifest(temporary, CHECKPOINT.facts)
    for old in _checkpoints(folder)[:-1]:
        remove_folder(old)


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the oldest first."""
    return sorted(path for path in entries(folder) if path.name.startswith("step-"))


@contextmanager
def saved_at_signals(save: Callable[[], None]) -> Iterator[Stop]:
    """Save a checkpoint when a signal ends the block at one of the moments that it asks about (`leave_if_asked`).

    Args:
        save: Writes the checkpoint.

    Raises:
        Stopped: After that. A second signal raises `KeyboardInterrupt` at once, and nothing is saved.
    """
    with noted_signals() as stop:
        try:
            yield stop
            stop.leave_if_asked()
        except Stopped:
            save()
            raise


def load_checkpoint(folder: Path) -> tuple[TrainingState, dict[str, Tensor]] | None:
    """The newest checkpoint, or None where there is none.

    Raises:
        EhrseqError: It is damaged.
    """
    if not folder.is_dir():
        return None
    # an empty folder is a checkpoint whose first write was interrupted
    found = [path for path in _checkpoints(folder) if entries(path)]
    if not found:
        return None
    newest = found[-1]
    try:
        read_manifest(newest, what=CHECKPOINT.what)
        state = TrainingState(**read_json(newest / "state.json"))
        return state, load_file(newest / "state.safetensors")
    except (EhrseqError, SafetensorError) as error:
        fix = "start again in an empty folder"
        raise EhrseqError(f"is damaged: {error}", where=str(newest), fix=fix) from error


def pack_tensors(
    models: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]
) -> dict[str, Tensor]:
    """Every tensor of a run under one flat set of names: the named models' weights and optimisers' moments."""
    out: dict[str, Tensor] = {}
    for prefix, module in models.items():
        out |= {f"{prefix}.{name}": value for name, value in module.state_dict().items()}
    for prefix, optimizer in optimizers.items():
        for number, moments in optimizer.state_dict()["state"].items():
            out |= {
                f"{prefix}.{number}.{name}": torch.as_tensor(value)
                for name, value in moments.items()
            }
    return out


def unpack_tensors(
    tensors: Mapping[str, Tensor],
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
) -> None:
    """Put back what `pack_tensors` took."""
    for prefix, module in models.items():
        module.load_state_dict(_under(prefix, tensors))
    for prefix, optimizer in optimizers.items():
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _under(prefix, tensors).items():
            number, key = name.split(".")
            moments.setdefault(int(number), {})[key] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}.")
    }
