"""Module 5: the state of a visit → its hazards. Formulas of the hazards are in `hazards.py`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.segments import dropout

SMALLEST_HAZARD = 1e-8  # per day; where the head's bias starts in a bin without events


class SurvivalHead(nn.Module):
    """MLP hazard head: `W2·gelu(W1·LN(z))`, on logits.

    `horizon`: (N, causes, bins) log-hazards per day. `visit`: (N,) logits of the hazard of the interval after v.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.shape = () if config.head == "visit" else (config.causes, config.bins)
        self.norm = nn.LayerNorm(config.dim)
        self.W1 = nn.Linear(config.dim, config.dim)
        self.dropout = config.dropout
        self.W2 = nn.Linear(config.dim, config.causes * config.bins)
        nn.init.normal_(self.W2.weight, std=0.1 * config.dim**-0.5)  # starts near its bias
        nn.init.zeros_(self.W2.bias)

    def forward(self, z: Tensor) -> Tensor:
        """(N, d) → (N, causes, bins) or, for the `visit` head, (N,)."""
        hidden = dropout(F.gelu(self.W1(self.norm(z))), self.dropout, training=self.training)
        logits: Tensor = self.W2(hidden)
        return logits.view(z.shape[0], *self.shape)

    def set_bias(self, hazards: Tensor) -> None:
        """Start at the training cohort's own hazards.

        Args:
            hazards: `horizon`: (causes, bins) events per day at risk, floored at 1e-8. `visit`: one probability (any
                shape of one element).

        Raises:
            EhrseqError: The shape is not the head's, or a number is negative or not finite.
        """
        if hazards.numel() != self.W2.bias.numel() or (self.shape and hazards.shape != self.shape):
            raise EhrseqError(
                f"expected shape {self.shape or (1,)}, got {tuple(hazards.shape)}",
                where="SurvivalHead.set_bias(hazards)",
            )
        if not bool((hazards.isfinite() & (hazards >= 0)).all()):
            raise EhrseqError(
                "hazards must be finite and not negative", where="SurvivalHead.set_bias(hazards)"
            )
        flat = hazards.double().flatten()
        bias = (
            flat.clamp(min=SMALLEST_HAZARD).log()
            if self.shape
            else torch.logit(flat, eps=SMALLEST_HAZARD)
        )
        with torch.no_grad():
            self.W2.bias.copy_(bias)

    def recalibrate(self, intercept: Tensor, slope: Tensor) -> None:
        """From now on `η' = intercept + slope · η`, both (causes, bins); errors as of `SurvivalModel.recalibrate`."""
        for name, values in {"intercept": intercept, "slope": slope}.items():
            if not self.shape or values.shape != self.shape or not bool(values.isfinite().all()):
                what = f"expected finite numbers of shape {self.shape}, got {tuple(values.shape)}"
                raise EhrseqError(
                    what if self.shape else "the visit head has no hazards per day", where=name
                )
        with torch.no_grad():
            self.W2.weight.mul_(slope.reshape(-1, 1))
            self.W2.bias.mul_(slope.flatten()).add_(intercept.flatten())
