"""The optimiser: AdamW, which weights decay and how much, and the learning rate of each step."""

import math
from collections.abc import Callable

import torch
from torch import nn

from ehrsequencing.config import TrainingConfig


def make_optimizer(
    model: nn.Module,
    settings: TrainingConfig,
    *,
    steps_per_epoch: float = 1.0,
    depth: Callable[[str], int] | None = None,
) -> torch.optim.AdamW:
    """Weight decay on matrices of linear layers only, not on embeddings, norms, scales and biases.

    AdamW's weights are a moving average of its updates over 1/(learning rate · decay) steps. More subjects make more
    steps an epoch; the effective memory should stay constant in epochs (Wang & Aitchison 2024, How to set
    AdamW's weight decay as you scale model and dataset size). So beyond `decay_steps` an epoch, decay falls in
    proportion.

    Args:
        model: Whose parameters are learned.
        settings: Learning rate and decay.
        steps_per_epoch: How many steps an epoch has.
        depth: Depth of a parameter by its name. Each depth then has groups of its own, which hold it as `depth`.
    """
    decay = settings.weight_decay * min(1.0, (settings.decay_steps or math.inf) / steps_per_epoch)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    linear = {
        id(p)
        for m in layers
        for name, p in m.named_parameters(recurse=False)
        if name.startswith("weight")
    }
    learned = [
        (0 if depth is None else depth(name), p)
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    groups = [
        {
            "params": [p for d, p in learned if d == here and (id(p) in linear) == decays],
            "depth": here,
            "weight_decay": decay if decays else 0.0,
        }
        for here in sorted({d for d, _ in learned})
        for decays in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def learning_rate(settings: TrainingConfig, step: int, total_steps: int) -> float:
    """Linear warm-up, then constant, or a cosine down to zero at the last step."""
    warm = min(1.0, (step + 1) / max(settings.warmup_steps, 1))
    if settings.schedule == "constant":
        return settings.learning_rate * warm
    done = min(
        1.0, max(0, step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
    )
    return settings.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * done))
