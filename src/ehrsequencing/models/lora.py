"""LoRA: low-rank updates of frozen matrices (Hu et al. 2021, arXiv 2106.09685). This file needs no other of ours.

    y = x Wᵀ + b + (x Aᵀ) Bᵀ        W, b frozen; A (rank, in) random, B (out, rank) zero at the start

So a model computes what it did until the first step. A matrix that holds q, k and v one above another gets an update
for each. `merge` adds B A to W, after which the model has its old shape, files and cost.

Example:
    >>> layer = nn.Sequential(nn.Linear(4, 4))
    >>> names = add_adapters(layer, {"0": 1}, rank=2)
    >>> [name for name, p in layer.named_parameters() if p.requires_grad]
    ['0.A', '0.B']
    >>> merge(layer)
    ['0']
    >>> [name for name, _ in layer.named_parameters()]
    ['0.weight', '0.bias']
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Linear layers of this package's blocks, by the last part of their names, and how many matrices each holds.
TARGETS = {"qkv": 3, "out": 1, "W1": 1, "W2": 1}


class LoRALinear(nn.Module):
    """A frozen linear layer with a low-rank update.

    Args:
        base: The layer; its weights no longer get gradients.
        rank: r, at most the layer's smaller side.
        parts: How many matrices of equal height the layer holds, one above another.
    """

    def __init__(self, base: nn.Linear, *, rank: int, parts: int = 1) -> None:
        super().__init__()
        if base.out_features % parts or not 1 <= rank <= min(
            base.in_features, base.out_features // parts
        ):
            raise ValueError(
                f"rank={rank} with {parts} parts does not fit a layer of {tuple(base.weight.shape)}"
            )
        self.base = base.requires_grad_(False)
        weight = base.weight
        self.A = nn.Parameter(
            torch.randn(parts, rank, base.in_features).to(weight) * base.in_features**-0.5
        )
        self.B = nn.Parameter(weight.new_zeros(parts, base.out_features // parts, rank))

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        parts, rank, width = self.A.shape
        low = F.linear(x, self.A.reshape(parts * rank, width)).view(*x.shape[:-1], parts, rank)
        update = torch.einsum("...pr,por->...po", low, self.B).flatten(-2)
        y: Tensor = self.base(x) + update
        return y

    @property
    def update(self) -> Tensor:
        """(out, in) what is added to the frozen matrix."""
        return (self.B @ self.A).flatten(0, 1)

    def merged(self) -> nn.Linear:
        """The layer with its update added; it can be trained again."""
        with torch.no_grad():
            self.base.weight += self.update
        return self.base.requires_grad_(True)


def targets_of(model: nn.Module, wanted: Mapping[str, int] = TARGETS) -> dict[str, int]:
    """Names of the linear layers to adapt, and how many matrices each holds: q, k, v, output, and feed-forward.

    Args:
        model: Any module.
        wanted: Last part of a name → number of matrices.
    """
    found = {}
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(module, nn.Linear) and last in wanted:
            found[name] = wanted[last]
    return found


def add_adapters(model: nn.Module, targets: Mapping[str, int], *, rank: int) -> list[str]:
    """Freeze a model, and give the named linear layers adapters; the names of these layers.

    Raises:
        ValueError: A name is no linear layer, or the rank does not fit.
    """
    model.requires_grad_(False)
    for name, parts in targets.items():
        _replace(model, name, LoRALinear(_linear(model, name), rank=rank, parts=parts))
    return list(targets)


def most_rank(model: nn.Module, name: str, parts: int = 1) -> int:
    """The largest rank that an adapter of a linear layer can have: the smaller side of one of its matrices."""
    layer = _linear(model, name)
    return min(layer.in_features, layer.out_features // parts)


def merge(model: nn.Module) -> list[str]:
    """Add every adapter's update to its matrix and remove the adapters; the names of these layers."""
    found = [
        (name, module) for name, module in model.named_modules() if isinstance(module, LoRALinear)
    ]
    for name, module in found:
        _replace(model, name, module.merged())
    return [name for name, _ in found]


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise ValueError(f"{name} is no linear layer")
    return layer


def _replace(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
