"""A model whose hazards are shifted and stretched, cause by cause."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ehrsequencing.batch import VisitBatch
from ehrsequencing.errors import EhrseqError
from ehrsequencing.models.base import SurvivalModel


class Recalibrated(SurvivalModel):
    """`log λ'_e = a_e + b_e · log λ_e` for each cause e, in every bin.

    Recalibrated hazards are hazards again: survival and all cumulative incidences still sum to one, which shifting
    each risk on its own would not give.

    Args:
        model: With the `horizon` head.
        intercept: a, one a cause.
        slope: b, one a cause.

    Raises:
        EhrseqError: The model has the `visit` head.

    Example:
        >>> from ehrsequencing.config import ModelConfig
        >>> from ehrsequencing.models.build import build_model
        >>> model = build_model(ModelConfig(vocab_size=10, size="small", causes=2)).eval()
        >>> mask = torch.ones(1, 1, 2, dtype=torch.bool)
        >>> batch = VisitBatch.from_padded(mask.long(), mask, torch.full((1, 1), 60.0), torch.zeros(1, 1), mask.any(-1))
        >>> double = Recalibrated(model, [0.0, torch.tensor(2.0).log().item()], [1.0, 1.0])
        >>> (double(batch) - model(batch)).exp().flatten()
        tensor([1., 2.], grad_fn=...)
    """

    intercept: Tensor
    slope: Tensor

    def __init__(self, model: SurvivalModel, intercept: Sequence[float], slope: Sequence[float]) -> None:
        nn.Module.__init__(self)  # not the base's check: whatever is inside has passed it
        if model.config.head == "visit":
            fix = "use a model with head=horizon"
            raise EhrseqError("the visit head has no hazards per day", where="ModelConfig.head=visit", fix=fix)
        self.config, self.model = model.config, model
        for name, values in (("intercept", intercept), ("slope", slope)):
            self.register_buffer(name, torch.tensor(list(values), dtype=torch.float32).view(model.config.causes, 1))
        self.train(model.training)

    def forward(self, batch: VisitBatch) -> Tensor:
        """(N, causes, bins) log-hazards per day."""
        logits: Tensor = self.model(batch)
        return self.intercept + self.slope * logits
