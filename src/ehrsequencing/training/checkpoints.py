"""Checkpoints of a training: where it stands, and its tensors; written at intervals and at signals, and read again."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Optimizer

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import entries, read_json, remove_folder, write_bytes, write_json
from ehrsequencing.core.outputs import CHECKPOINT, complete_folder, read_manifest, write_manifest
from ehrsequencing.core.signals import Stop, Stopped, noted_signals
from ehrsequencing.results.result_types import EpochRow


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
    history: list[EpochRow] = field(default_factory=list)


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
    written = [path for path in _checkpoints(folder) if entries(path)]
    if not written:
        return None
    newest = written[-1]
    try:
        read_manifest(newest, what=CHECKPOINT.what)
        state = TrainingState(**read_json(newest / "state.json"))
        return state, load_file(newest / "state.safetensors")
    except (EhrseqError, SafetensorError) as error:
        raise EhrseqError(
            f"is damaged: {error}", where=str(newest), fix="start again in an empty folder"
        ) from error


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
