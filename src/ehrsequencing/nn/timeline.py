"""Module 4: visits in time → contextual visit states (hierarchical, "Stage B: Across-Visit Encoder")."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.nn.embeddings import (
    Plain,
    check_shapes,
    check_sizes,
    check_vectors,
    dropout_of,
)

LAYER_SCALE = 0.1  # start of the learned scale of each residual branch


class TransformerLayer(Plain):
    """Pre-LN block with a learned scale s per channel (LayerScale).

    x ← x + s1 · Attention(LN x)
    x ← x + s2 · W2 gelu(W1 LN x)
    """

    def __init__(self, d: int, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        check_sizes(d=d, heads=heads)
        if d % heads:
            raise ValueError(f"d={d} must be a multiple of heads={heads}")
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.W1, self.W2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.attention_scale = nn.Parameter(torch.full((d,), LAYER_SCALE))
        self.mlp_scale = nn.Parameter(torch.full((d,), LAYER_SCALE))
        self.dropout = dropout_of(dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """(B, L, d) → (B, L, d).

        Args:
            x: (B, L, d), finite in pads too.
            seen: (B, L, L), or (B, 1, L) where all rows see the same: True where row i may attend to row j. A row sees
                itself in any case, so that a pad has something to look at.
        """
        check_vectors(x, "x", self.out.in_features)
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, heads, L, d / heads) each
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=(seen | itself).unsqueeze(1))
        x = x + self.dropout(self.attention_scale * self.out(mixed.transpose(1, 2).flatten(2)))
        hidden = F.gelu(self.W1(self.mlp_norm(x)))
        return x + self.dropout(self.mlp_scale * self.W2(hidden))


class TimelineEncoder(Plain):
    """Transformer over a subject's visits.

    Causal by default: visit v attends to itself and to earlier visits, so that its hazard has not seen the future.
    `causal=False` is attention to the whole history and future, as for pretraining. A model of hazards that is
    trained so leaks: a hazard at a visit has seen that there are later visits, and scores better than the truth.

    Example:
        >>> TimelineEncoder(8)(torch.randn(2, 3, 8), torch.tensor([[1, 1, 1], [1, 0, 0]])).shape
        torch.Size([2, 3, 8])
    """

    def __init__(
        self, d: int, heads: int = 4, layers: int = 2, causal: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes(layers=layers)
        self.causal = causal
        self.layers = nn.ModuleList(TransformerLayer(d, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, u: Tensor, visit_mask: Tensor) -> Tensor:
        """(B, V, d) visits and (B, V) real ones → (B, V, d) states, zero in pads.

        Raises:
            ValueError: The shapes do not belong together.
        """
        check_shapes(u.shape[:-1], "B, V", visit_mask=visit_mask)
        real = visit_mask.bool()
        x = u.masked_fill(~real.unsqueeze(-1), 0.0)
        visit = torch.arange(u.shape[1], device=u.device)
        seen = real.unsqueeze(1).expand(-1, u.shape[1], -1)
        if self.causal:
            seen = seen & (visit <= visit.unsqueeze(1))
        for layer in self.layers:
            x = layer(x, seen)
        return self.norm(x).masked_fill(~real.unsqueeze(-1), 0.0)
