"""Ensembles, and the model of a configuration or of a folder."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.base import SurvivalModel, read_config, read_weights
from ehrsequencing.models.behrt import BEHRTForSurvival
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival

ARCHITECTURES: dict[str, type[SurvivalModel]] = {
    one.architecture: one for one in (HierarchicalBEHRTForSurvival, BEHRTForSurvival)
}


class Ensemble(SurvivalModel):
    """`config.members` models of one shape; their hazards are averaged in every bin.

        λ_{e,k} = (1/M) Σ_m λ^m_{e,k}

    The mean is again a piecewise-constant hazard (for the `visit` head, a probability), so that likelihood, risk,
    audit and the two files of a saved model are those of any other model. Members run one after another.

    Attributes:
        members: The models; `members[m]` is what training with the seed `seed + m` alone gives.

    Example:
        >>> model = Ensemble(ModelConfig(vocab_size=10, size="small", members=2))
        >>> mask = torch.ones(2, 3, 4, dtype=torch.bool)
        >>> batch = VisitBatch.from_padded(
        ...     torch.randint(1, 10, (2, 3, 4)), mask, torch.full((2, 3), 60.0), torch.zeros(2, 3), mask.any(-1)
        ... )
        >>> hazards = [member(batch).exp() for member in model.eval().members]
        >>> torch.testing.assert_close(model(batch).exp(), (hazards[0] + hazards[1]) / 2)
    """

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)  # not the base's check: an ensemble may have either architecture
        if config.members < 2:
            raise EhrseqError(
                "an ensemble of one",
                where="ModelConfig.members",
                fix="name at least 2 members, or build a single model",
            )
        if config.outcomes:
            raise EhrseqError(
                "every outcome is asked of one network",
                where="ModelConfig.members",
                fix="leave out training.members",
            )
        self.config = config
        single = config.model_copy(update={"members": 1})
        self.members = nn.ModuleList(
            ARCHITECTURES[config.architecture](single) for _ in range(config.members)
        )
        self.outcomes = None

    def forward(self, batch: VisitBatch) -> Tensor:
        """Logits of the mean hazard: (N, causes, bins) log-hazards per day, or (N,) for the `visit` head."""
        return self._mean([member(batch) for member in self.members])

    def logits_at(self, batch: VisitBatch, rows: Tensor) -> Tensor:
        """Logits of the mean hazard of some rows (R,)."""
        return self._mean(
            [cast(SurvivalModel, member).logits_at(batch, rows) for member in self.members]
        )

    def code_attention(self, batch: VisitBatch) -> Tensor:
        """See `SurvivalModel`."""
        members = [cast(SurvivalModel, member).code_attention(batch) for member in self.members]
        return torch.stack(members).mean(0)

    def states(self, batch: VisitBatch) -> tuple[Tensor, Tensor]:
        """The members' states beside one another, (N, M d) each."""
        x, z = zip(
            *(cast(SurvivalModel, member).states(batch) for member in self.members), strict=True
        )
        return torch.cat(x, 1), torch.cat(z, 1)

    def hazard_logits(self, z: Tensor, *, wide: Tensor | None) -> Tensor:
        """Logits of the mean hazard from the members' states (N, M d)."""
        count = len(self.members)
        x = [None] * count if wide is None else wide.chunk(count, 1)
        return self._mean(
            [
                cast(SurvivalModel, member).hazard_logits(own, wide=inputs)
                for member, own, inputs in zip(self.members, z.chunk(count, 1), x, strict=True)
            ]
        )

    def _mean(self, logits: Sequence[Tensor]) -> Tensor:
        return mean_hazard_logits(
            torch.stack(list(logits)), is_probability=self.config.head == "visit"
        )


def mean_hazard_logits(logits: Tensor, *, is_probability: bool = False) -> Tensor:
    """The logits whose hazard is the mean of the members' hazards.

        log-hazards:    log (1/M) Σ_m exp(η_m)
        probabilities:  logit (1/M) Σ_m σ(η_m) = log Σ_m σ(η_m) − log Σ_m σ(−η_m)

    Both in log space: logits of ±100 neither overflow nor vanish.

    Args:
        logits: (M, ...) one for each member.
        is_probability: Whether η is the logit of a probability (the `visit` head) and not a log-hazard.

    Returns:
        (...) in at least float32.

    Example:
        >>> mean_hazard_logits(torch.tensor([0.01, 0.03]).log()).exp()
        tensor(0.0200)
        >>> mean_hazard_logits(torch.logit(torch.tensor([0.1, 0.3])), is_probability=True).sigmoid()
        tensor(0.2000)
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if is_probability:
        return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)
    return logits.logsumexp(0) - math.log(len(logits))


# ---- the class of a configuration ------------------------------------------------------------------------------------


def build_model(config: ModelConfig) -> SurvivalModel:
    """A new model of the configured architecture, or an ensemble of them."""
    kind = ARCHITECTURES[config.architecture] if config.members == 1 else Ensemble
    return kind(config)


def load_model(path: str | Path) -> SurvivalModel:
    """The model in a folder, in evaluation mode; errors as `SurvivalModel.from_pretrained`."""
    return read_weights(Path(path), read_config(Path(path)), build_model).eval()
