"""The parts of the models by their names, as `ehrsequencing.nn`; and the discrete-time loss on padded visits.

Each part is made from a `ModelConfig` and takes packed rows and their `VisitBatch`. `models/hierarchical.py` shows how
they fit together.
"""

import torch
from torch import Tensor, nn

from ehrsequencing.batches.padded import as_mask
from ehrsequencing.models.behrt import BEHRTEmbedding
from ehrsequencing.models.embeddings import CodeEmbedding, VisitTimeEmbedding
from ehrsequencing.models.hazards import SurvivalHead, visit_nll
from ehrsequencing.models.transformer import TimelineEncoder
from ehrsequencing.models.visit_encoder import (
    AttnPoolingVisitEncoder,
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
    """Negative log-likelihood of one hazard per visit on padded visits: the mean over subjects of `visit_nll`.

        NLL_i = − Σ_{v < t} log(1 − h_v) − δ · log h_t        sums over the visits that the mask says are real

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
            event_times: (B,) t, the number of the subject's last visit at risk, from 0.
            event_indicators: (B,) δ: 1 = the event follows that visit, 0 = censored.
            sequence_mask: (B, V) `True` = a real visit.

        Raises:
            EhrseqError: Shapes disagree, or an event is on a visit that the mask leaves out.
        """
        n_subjects, n_visits = hazards.shape
        visit = torch.arange(n_visits, device=hazards.device)
        is_last = visit == event_times.unsqueeze(1)
        at_risk = as_mask(sequence_mask, "sequence_mask") & (visit <= event_times.unsqueeze(1))
        terms = visit_nll(
            torch.logit(hazards, eps=1e-7).flatten(),
            at_risk.flatten(),
            cause=(is_last * event_indicators.unsqueeze(1)).long().flatten(),
            subject_offsets=n_visits * torch.arange(n_subjects + 1, device=hazards.device),
        )
        return terms.sum() / max(n_subjects, 1)
