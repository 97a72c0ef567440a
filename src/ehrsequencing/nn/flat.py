"""Flat BEHRT of padded tensors: all codes of a subject in one sequence → hazards a visit (embeddings, "Data Flow")."""

import torch
from torch import Tensor, nn

from ehrsequencing.nn.embeddings import (
    BEHRTEmbedding,
    Plain,
    check_indexes,
    check_shapes,
    check_sizes,
)
from ehrsequencing.nn.survival import SurvivalHead
from ehrsequencing.nn.timeline import TransformerLayer


class BEHRTForSurvival(Plain):
    """Flat BEHRT with a hazard after each visit.

    Causal at visit level by default: a code sees all codes of its own visit and of earlier ones. `causal=False` is
    the attention of BERT, in which every code sees every other. A hazard at a visit has then seen the visits after it:
    trained on when events happen it scores better than the truth, and with new patients, whose future is not
    there, it fails. Use it for pretraining, or for the last visit alone.

    Example:
        >>> model = BEHRTForSurvival(n_codes=100, d=16)
        >>> codes, ages = torch.randint(1, 100, (2, 6)), torch.full((2, 6), 60.0)
        >>> visit_ids = torch.tensor([[0, 0, 0, 1, 1, 2]] * 2)
        >>> model(codes, ages, visit_ids, torch.ones(2, 6)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        n_codes: int,
        d: int,
        heads: int = 4,
        layers: int = 2,
        causal: bool = True,
        age_bin_size: float = 5,
        use_sinusoidal: bool = False,
        max_visits: int = 512,
        max_length: int = 512,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(layers=layers)
        self.embedding = BEHRTEmbedding(
            n_codes, d, age_bin_size, use_sinusoidal, max_visits, max_length, dropout
        )
        self.causal = causal
        self.layers = nn.ModuleList(TransformerLayer(d, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = SurvivalHead(d, dropout)

    def forward(
        self,
        codes: Tensor,
        ages: Tensor,
        visit_ids: Tensor,
        mask: Tensor,
        return_logits: bool = False,
    ) -> Tensor:
        """(B, V) hazards, 0 for numbers of visits that a subject has no code of; V is the largest number plus one.

        Args:
            codes: (B, L) token ids, visit after visit.
            ages: (B, L) age in years at each code.
            visit_ids: (B, L) number of each code's visit, from 0.
            mask: (B, L) True or 1 = real.
            return_logits: Logits instead of hazards.

        Raises:
            ValueError: Shapes disagree, or codes or visit_ids are no whole numbers.
        """
        check_shapes(codes.shape, "B, L", ages=ages, visit_ids=visit_ids, mask=mask)
        real = mask.bool()
        codes, ages, visit_ids = (x.masked_fill(~real, 0) for x in (codes, ages, visit_ids))
        x = self.embedding(codes, ages, visit_ids)  # (B, L, d)
        seen = real.unsqueeze(1).expand(-1, codes.shape[1], -1)
        if self.causal:
            seen = seen & (visit_ids.unsqueeze(1) <= visit_ids.unsqueeze(2))
        for layer in self.layers:
            x = layer(x, seen)
        u = self.aggregate_visits(self.norm(x), visit_ids, real)  # (B, V, d)
        is_there = self.aggregate_visits(real.unsqueeze(-1).to(u.dtype), visit_ids, real) > 0
        out: Tensor = self.head(u, return_logits)  # (B, V)
        return out.masked_fill(~is_there.squeeze(-1), 0.0)

    @staticmethod
    def aggregate_visits(
        code_embeddings: Tensor, visit_ids: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """The aggregated visit embedding: the mean of a visit's contextual codes, (B, L, d) → (B, V, d).

        Args:
            code_embeddings: (B, L, d).
            visit_ids: (B, L) from 0; V is the largest plus one.
            mask: (B, L) True or 1 = real; None: all.

        Returns:
            (B, V, d), zero for a visit without a code.

        Example:
            >>> states = torch.tensor([[[1.0], [3.0], [5.0]]])
            >>> BEHRTForSurvival.aggregate_visits(states, torch.tensor([[0, 0, 1]])).tolist()
            [[[2.0], [5.0]]]
        """
        real = torch.ones_like(visit_ids, dtype=torch.bool) if mask is None else mask.bool()
        check_shapes(code_embeddings.shape[:-1], "B, L", visit_ids=visit_ids, mask=real)
        ids = visit_ids.masked_fill(~real, 0)
        check_indexes(ids, "visit_ids")
        n_visits = int(ids.max()) + 1 if ids.numel() else 0
        states = code_embeddings.masked_fill(~real.unsqueeze(-1), 0.0)
        total = states.new_zeros(len(ids), n_visits, states.shape[-1])
        total = total.scatter_add(1, ids.unsqueeze(-1).expand_as(states), states)
        count = states.new_zeros(len(ids), n_visits).scatter_add(1, ids, real.to(states.dtype))
        return total / count.clamp(min=1).unsqueeze(-1)
