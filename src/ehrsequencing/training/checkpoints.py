"""Checkpoints of a training: where it stands, and its tensors; written at intervals and at signals, and read again."""

import sys
from collections.abc import Mapping
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


def save_checkpoint(
    folder: Path,
    state: TrainingState,
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
) -> None:
    """Write a checkpoint under `folder`, then remove the one before.

    Args:
        folder: Of the checkpoints.
        state: Where the run stands.
        models: By the beginning of their tensors' names.
        optimizers: Likewise; of these the moments are kept.
    """
    tensors: dict[str, Tensor] = {}
    for prefix, module in models.items():
        tensors |= {f"{prefix}.{key}": value for key, value in module.state_dict().items()}
    for prefix, optimizer in optimizers.items():
        for number, moments in optimizer.state_dict()["state"].items():
            for key, value in moments.items():
                tensors[f"{prefix}.{number}.{key}"] = torch.as_tensor(value)
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


def load_checkpoint(
    folder: Path, models: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]
) -> TrainingState | None:
    """Put the tensors of the newest checkpoint back, and return its state; None where there is none.

    Args:
        folder: As of `save_checkpoint`.
        models: As there.
        optimizers: As there.

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
        tensors = load_file(newest / "state.safetensors")
    except (EhrseqError, SafetensorError) as error:
        raise EhrseqError(
            f"is damaged: {error}", where=str(newest), fix="start again in an empty folder"
        ) from error
    for prefix, module in models.items():
        module.load_state_dict(_under(prefix, tensors))
    for prefix, optimizer in optimizers.items():
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _under(prefix, tensors).items():
            number, key = name.split(".")
            moments.setdefault(int(number), {})[key] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return state


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}.")
    }
