"""The hierarchical model of padded tensors: codes → visits → timeline → hazards (hierarchical, "Blueprint")."""

from torch import Tensor, nn

from ehrsequencing.nn.embeddings import CodeEmbedding, Plain, VisitTimeEmbedding, check_shapes
from ehrsequencing.nn.survival import SurvivalHead
from ehrsequencing.nn.timeline import TimelineEncoder
from ehrsequencing.nn.visit_encoders import AttnPoolingVisitEncoder


class HierarchicalBEHRTForSurvival(Plain):
    """The recommended starting point: attention pooling, a transformer over visits, index, age and gap.

    Args:
        n_codes: Number of token ids; 0 is the pad.
        d: Width.
        heads: Attention heads; they divide d.
        layers: Of the timeline.
        visit_encoder: A module that takes (B, V, C, d) and (B, V, C) and gives (B, V, d). None: attention pooling.
        causal: Whether a visit sees no later one; see `TimelineEncoder` for what leaks without.
        age_bin_size: Width of a bin of ages, in years.
        use_sinusoidal: Whether the visit's index has fixed waves instead of a learned table.
        max_visits: Rows of that table; later visits share the last.
        max_codes_per_visit: The same of a code's place in its visit.
        dropout: Of residual branches and of the head.

    Example:
        >>> import torch
        >>> model = HierarchicalBEHRTForSurvival(n_codes=100, d=16)
        >>> codes, code_mask = torch.randint(1, 100, (2, 3, 4)), torch.ones(2, 3, 4)
        >>> ages, time_deltas = torch.full((2, 3), 60.0), torch.zeros(2, 3)
        >>> model(codes, code_mask, ages, time_deltas, visit_mask=torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        n_codes: int,
        d: int,
        heads: int = 4,
        layers: int = 2,
        visit_encoder: nn.Module | None = None,
        causal: bool = True,
        age_bin_size: float = 5,
        use_sinusoidal: bool = False,
        max_visits: int = 512,
        max_codes_per_visit: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.code_embedding = CodeEmbedding(n_codes, d, max_codes_per_visit)
        self.visit_encoder = visit_encoder or AttnPoolingVisitEncoder(d)
        self.visit_time_embedding = VisitTimeEmbedding(d, max_visits, age_bin_size, use_sinusoidal)
        self.timeline = TimelineEncoder(d, heads, layers, causal, dropout)
        self.head = SurvivalHead(d, dropout)

    def forward(
        self,
        codes: Tensor,
        code_mask: Tensor,
        ages: Tensor,
        time_deltas: Tensor,
        visit_mask: Tensor,
        return_logits: bool = False,
    ) -> Tensor:
        """(B, V) hazards, 0 in pads; with `return_logits` what the sigmoid is taken of.

        Args:
            codes: (B, V, C) token ids.
            code_mask: (B, V, C) True or 1 = real.
            ages: (B, V) years.
            time_deltas: (B, V) days since the visit before.
            visit_mask: (B, V) True or 1 = real.
            return_logits: Logits instead of hazards.
        """
        check_shapes(codes.shape, "B, V, C", code_mask=code_mask)
        by_visit = {"ages": ages, "time_deltas": time_deltas, "visit_mask": visit_mask}
        check_shapes(codes.shape[:2], "B, V", **by_visit)
        real = visit_mask.bool()
        real_codes = code_mask.bool() & real.unsqueeze(-1)
        e = self.code_embedding(codes.masked_fill(~real_codes, 0))  # (B, V, C, d)
        u = self.visit_encoder(e, real_codes)  # (B, V, d)
        ages, time_deltas = (x.masked_fill(~real, 0) for x in (ages, time_deltas))
        x = self.visit_time_embedding(u, ages, time_deltas, real)  # (B, V, d)
        z = self.timeline(x, real)  # (B, V, d)
        out: Tensor = self.head(z, return_logits)  # (B, V)
        return out.masked_fill(~real, 0.0)
