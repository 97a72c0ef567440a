"""The parts of the models by their names, as `ehrsequencing.nn`; and the discrete-time loss on padded visits.

Each part is made from a `ModelConfig` and takes packed rows and their `VisitBatch`. `models/hierarchical.py` shows how
they fit together.
"""

import torch
from torch import Tensor, nn

from ehrsequencing.batches.padded import as_mask
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.behrt import BEHRTEmbedding
from ehrsequencing.models.embeddings import CodeEmbedding, VisitTimeEmbedding
from ehrsequencing.models.hazards import SurvivalHead
from ehrsequencing.models.transformer import TimelineEncoder
from ehrsequencing.models.visit_encoder import AttnPoolingVisitEncoder
from ehrsequencing.models.visit_encoder_variants import (
    MeanPoolingVisitEncoder,
    TransformerVisitEncoder,
)

__all__ = [
    "AttnPoolingVisitEncoder",
    "BEHRTEmbedding",
    "CodeEmbedding",
    "DiscreteTimeSurvivalLoss",
    "MeanPoolingVisitEncoder",
    "SurvivalHead",
    "TimelineEncoder",
    "TransformerVisitEncoder",
    "VisitTimeEmbedding",
]


class DiscreteTimeSurvivalLoss(nn.Module):
    """Negative log-likelihood of one hazard per visit on padded visits: the mean over subjects, as of `visit_nll`.

        NLL_i = − Σ_{v < t} log(1 − h_v) − δ · log h_t        sums over the visits that the mask says are real

    A hazard that its floating-point type rounds to 0 or 1 counts as the nearest number between them, and keeps a
    gradient.

    Example:
        >>> loss = DiscreteTimeSurvivalLoss()
        >>> hazards, mask = torch.full((1, 3), 0.5), torch.ones(1, 3, dtype=torch.bool)
        >>> loss(hazards, torch.tensor([2]), torch.tensor([1]), mask)  # three times log 2
        tensor(2.0794)
    """

    def forward(
        self,
        hazards: Tensor,
        event_times: Tensor,
        event_indicators: Tensor,
        sequence_mask: Tensor,
    ) -> Tensor:
        """The loss, a scalar.

        Args:
            hazards: (B, V) h, between 0 and 1, as `batch.to_padded(model(batch).sigmoid())`; anything in pads.
            event_times: (B,) t, the number of the subject's last visit at risk, from 0. Where δ = 0 it may lie beyond
                the real visits: then the subject survived the interval of each of them.
            event_indicators: (B,) δ: 1 = the event follows that visit, 0 = censored.
            sequence_mask: (B, V) `True` = a real visit.

        Raises:
            EhrseqError: Shapes disagree, an indicator is neither 0 nor 1, or an event is on no real visit.
        """
        n_subjects, n_visits = hazards.shape
        shapes = [one.shape for one in (sequence_mask, event_times, event_indicators)]
        if shapes != [(n_subjects, n_visits), (n_subjects,), (n_subjects,)]:
            raise EhrseqError(
                "expected hazards and mask (B, V), times and indicators (B,)",
                where="DiscreteTimeSurvivalLoss",
                fix="correct their shapes",
            )
        is_real = as_mask(sequence_mask, "sequence_mask")
        has_event = as_mask(event_indicators, "event_indicators")
        visit, last = torch.arange(n_visits, device=hazards.device), event_times.unsqueeze(1)
        is_event = is_real & has_event.unsqueeze(1) & (visit == last)
        if bool((has_event & ~is_event.any(1)).any()):
            raise EhrseqError(
                "an event is on a visit that the subject does not have",
                where="event_times",
                fix="count visits from 0, and name one that sequence_mask says is real",
            )
        is_used = is_event | (is_real & (visit < last))
        # before any arithmetic: a NaN in a pad would reach the gradient through a product with 0
        safe = torch.where(is_used, hazards, 0.5).to(
            torch.promote_types(hazards.dtype, torch.float32)
        )
        limits = torch.finfo(hazards.dtype)
        bounded = safe + (safe.clamp(limits.tiny, 1 - limits.eps) - safe).detach()
        terms = torch.where(is_event, -bounded.log(), -torch.log1p(-bounded))
        return terms.masked_fill(~is_used, 0.0).sum() / max(n_subjects, 1)
