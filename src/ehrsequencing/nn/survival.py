"""Modules 5 and 6: states → hazards, and the discrete-time likelihood (hierarchical, "Survival Head and Loss")."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.nn.embeddings import (
    Plain,
    as_floats,
    check_shapes,
    check_sizes,
    check_vectors,
    dropout_of,
)


class SurvivalHead(Plain):
    """Module 5: `h_v = σ(W2 gelu(W1 LN(z_v)))`, the probability of the event before the next visit, given none so far.

    Example:
        >>> SurvivalHead(8)(torch.randn(2, 3, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(self, d: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_sizes(d=d)
        self.norm, self.W1, self.W2 = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, 1)
        self.dropout = dropout_of(dropout)

    def forward(self, z: Tensor, return_logits: bool = False) -> Tensor:
        """(B, V, d) → (B, V) hazards; with `return_logits` what the sigmoid is taken of."""
        check_vectors(z, "z", self.W1.in_features)
        logits: Tensor = self.W2(self.dropout(F.gelu(self.W1(self.norm(z))))).squeeze(-1)
        return logits if return_logits else logits.sigmoid()


class DiscreteTimeSurvivalLoss(Plain):
    """Module 6: negative log-likelihood of one hazard a visit; the mean over subjects.

        NLL_i = − Σ_{v < t} log(1 − h_v) − δ · log h_t        sums over the visits that the mask says are real

    t is the number, from 0, of the visit that the event follows (δ = 1). With δ = 0 it is the visit after the last
    fully observed interval, so that it may also be the number of all visits. A hazard that its floating-point type
    rounds to 0 or 1 counts as the nearest number between them, and keeps a gradient.

    Example:
        >>> loss = DiscreteTimeSurvivalLoss()
        >>> hazards, mask = torch.full((1, 3), 0.5), torch.ones(1, 3, dtype=torch.bool)
        >>> loss(hazards, torch.tensor([2]), torch.tensor([1]), mask)  # three times log 2
        tensor(2.0794)
    """

    packed = "HierarchicalBEHRTForSurvival"

    def __init__(self, from_logits: bool = False) -> None:
        super().__init__()
        self.from_logits = from_logits

    def forward(
        self,
        hazards: Tensor,
        event_times: Tensor,
        event_indicators: Tensor,
        sequence_mask: Tensor,
    ) -> Tensor:
        """The loss, a scalar in at least float32.

        Args:
            hazards: (B, V) h, or its logits with `from_logits`; anything in pads, NaN too.
            event_times: (B,) t.
            event_indicators: (B,) δ: 1 = event, 0 = censored.
            sequence_mask: (B, V) True or 1 = a real visit; `visit_mask` of the hierarchical model.

        Raises:
            ValueError: Shapes disagree, an indicator or the mask is neither 0 nor 1, a hazard is no probability, or an
                event is on a visit that is not there.
        """
        hazards, n_subjects = as_floats(hazards), len(hazards)
        of_subjects = {"event_times": event_times, "event_indicators": event_indicators}
        check_shapes(hazards.shape[:1], "B", **of_subjects)
        check_shapes(hazards.shape, "B, V", sequence_mask=sequence_mask)
        for name, x in (("event_indicators", event_indicators), ("sequence_mask", sequence_mask)):
            if not bool(((x == 0) | (x == 1)).all()):
                raise ValueError(f"{name} must be 0 or 1")
        if not bool((event_times == event_times.long()).all()):
            raise ValueError("event_times must be whole numbers of visits, from 0")
        visit = torch.arange(hazards.shape[1], device=hazards.device)
        t, real = event_times.unsqueeze(1), sequence_mask.bool()
        has_event = event_indicators.bool()
        is_event = real & (visit == t) & has_event.unsqueeze(1)
        if bool(((has_event & ~is_event.any(1)) | (event_times < 0)).any()):
            raise ValueError(
                "an event is on a visit that is not there: event_times counts visits from 0"
            )
        is_used = is_event | (real & (visit < t))
        # before any arithmetic: a NaN in a pad would reach the gradient through a product with 0
        safe = torch.where(is_used, hazards, 0.0 if self.from_logits else 0.5)
        if not self.from_logits and bool(((safe < 0) | (safe > 1)).any()):
            raise ValueError("hazards must be from 0 to 1; for logits set from_logits=True")
        safe = safe.to(torch.promote_types(hazards.dtype, torch.float32))
        if self.from_logits:
            terms = F.softplus(torch.where(is_event, -safe, safe))
        else:
            limits = torch.finfo(hazards.dtype)
            inside = safe.clamp(limits.tiny, 1 - limits.eps)
            h = safe + (inside - safe).detach()
            terms = torch.where(is_event, -h.log(), -torch.log1p(-h))
        return terms.masked_fill(~is_used, 0.0).sum() / max(n_subjects, 1)
