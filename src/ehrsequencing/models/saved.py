"""The two files of a saved model: its configuration, and its weights. Reads JSON and safetensors, never a pickle."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ehrsequencing.config import BadText, ModelConfig, parse_json, validated
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_bytes

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
Model = TypeVar("Model", bound=nn.Module)


def write_model(folder: Path, config: ModelConfig, state: Mapping[str, Tensor]) -> None:
    """Write both files, each in one rename."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_bytes(folder / WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}))
    write_bytes(folder / CONFIG_FILE, (config.model_dump_json(indent=2) + "\n").encode())


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a saved model."""
    path = folder / CONFIG_FILE
    return validated(ModelConfig, _read_json(path), where=str(path))


def read_weights(folder: Path, config: ModelConfig, build: Callable[[ModelConfig], Model]) -> Model:
    """The model of a configuration with the weights of a folder; errors as of `SurvivalModel.from_pretrained`."""
    weights = _read_tensors(folder / WEIGHTS_FILE)
    where, fix = str(folder / WEIGHTS_FILE), "save the model again"
    if config.layers * config.members > len(weights):  # before anything of that size is built
        raise EhrseqError(
            "holds fewer tensors than the configuration has layers", where=where, fix=fix
        )
    try:
        with torch.device("meta"):  # shapes only: a hostile configuration allocates nothing
            model = build(config)
    except (
        OverflowError,
        RuntimeError,
        TypeError,
    ) as error:  # what torch raises for a size that is too big
        raise EhrseqError(
            "describes no possible model", where=str(folder / CONFIG_FILE), fix=fix
        ) from error
    columns = config.table_columns or config.vocab_size
    for name, tensor in model.state_dict().items():
        if name not in weights:
            raise EhrseqError(f"has no tensor {name}", where=where, fix=fix)
        found = weights[name]
        kinds = (torch.float32, torch.float64) if tensor.is_floating_point() else (tensor.dtype,)
        if found.shape != tensor.shape or found.dtype not in kinds:
            kind = "float" if tensor.is_floating_point() else str(tensor.dtype)
            raise EhrseqError(
                f"{name}: expected {kind} of shape {tuple(tensor.shape)}, got {found.dtype} {tuple(found.shape)}",
                where=where,
                fix=fix,
            )
        if not tensor.is_floating_point() and bool((found >= columns).any()):
            raise EhrseqError(f"{name}: a column outside the table", where=where, fix=fix)
        if not bool(found.isfinite().all()):
            raise EhrseqError(f"{name}: not every weight is finite", where=where, fix=fix)
    unknown = sorted(set(weights) - set(model.state_dict()))
    if unknown:
        raise EhrseqError(f"holds an unknown tensor {unknown[0]!r}", where=where, fix=fix)
    model.load_state_dict(weights, assign=True)
    return model


def _read_json(path: Path) -> dict[str, object]:
    try:
        data = parse_json(path.read_bytes())
    except OSError as error:
        raise EhrseqError(
            "cannot be read", where=str(path), fix=error.strerror or "check the path"
        ) from error
    except BadText as error:
        raise EhrseqError(error.what, where=str(path), fix="save the model again") from error
    if not isinstance(data, dict):
        raise EhrseqError(
            "must hold a mapping of settings", where=str(path), fix="save the model again"
        )
    return data


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            # cloned into memory of its own: aligned, so that sums round as before, and safe if the file is replaced
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except OSError as error:
        raise EhrseqError(
            "cannot be read", where=str(path), fix=error.strerror or "check the path"
        ) from error
    except SafetensorError as error:
        raise EhrseqError(
            "is not a safetensors file", where=str(path), fix="save the model again"
        ) from error
