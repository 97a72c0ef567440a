"""Module 2: the codes of a visit → one vector (hierarchical, "Aggregation Options"; attention pooling, all of it).

All of them take `e` (B, V, C, d) and `mask` (B, V, C), True or 1 = real, give (B, V, d), and read nothing of what pads
hold. A visit without a code gives the zero vector.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ehrsequencing.nn.embeddings import Plain, check_shapes, check_sizes, check_vectors
from ehrsequencing.nn.timeline import TransformerLayer


def real_codes(e: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors with zero in pads, and the mask as bool.

    Raises:
        ValueError: The shapes do not belong together.
    """
    check_shapes(e.shape[:-1], "B, V, C", mask=mask)
    mask = mask.bool()
    return e.masked_fill(~mask.unsqueeze(-1), 0.0), mask


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """(…, n, d) under (…, n) → (…, d): the mean of what is real; zero where nothing is."""
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    return (x * mask.unsqueeze(-1)).sum(-2) / count


class MeanPoolingVisitEncoder(Plain):
    """Option A: `u_v = mean of e_{v,c} over its real codes`. All codes contribute equally.

    Example:
        >>> MeanPoolingVisitEncoder()(torch.ones(1, 1, 3, 2), torch.tensor([[[1, 1, 0]]]))
        tensor([[[1., 1.]]])
    """

    def forward(self, e: Tensor, mask: Tensor) -> Tensor:
        """(B, V, C, d) and (B, V, C) → (B, V, d)."""
        return masked_mean(*real_codes(e, mask))


class AttnPoolingVisitEncoder(Plain):
    """Option B, attention pooling: each code is scored alone, and the scores become weights within the visit.

        u_v = Σ_c α_{v,c} e_{v,c},    α_v = softmax over the real codes of score(e_{v,c})
        score(e) = q · tanh(W e + b)                    scorer="query": one learned query, shared by all visits
        score(e) = W2 tanh(W1 e + b1) + b2              scorer="bottleneck": d → d/2 → 1

    Codes do not see each other, so that the order of a visit's codes does not matter. α sums to 1 over a visit's codes.
    It is learned importance, and neither a cause nor attention between codes.

    Example:
        >>> encoder, mask = AttnPoolingVisitEncoder(8), torch.tensor([[[1, 1, 0, 0]]])
        >>> u, alpha = encoder(torch.randn(1, 1, 4, 8), mask, return_weights=True)
        >>> u.shape, alpha.shape, bool((alpha.sum(-1) - 1).abs() < 1e-6)
        (torch.Size([1, 1, 8]), torch.Size([1, 1, 4]), True)
    """

    def __init__(self, d: int, scorer: Literal["query", "bottleneck"] = "query") -> None:
        super().__init__()
        check_sizes(d=d)
        if scorer not in ("query", "bottleneck"):
            raise ValueError(f"scorer must be 'query' or 'bottleneck', got {scorer!r}")
        self.d, self.scorer = d, scorer
        if scorer == "query":
            self.W = nn.Linear(d, d)
            self.q = nn.Parameter(torch.randn(d))
        else:
            self.W1 = nn.Linear(d, d // 2)
            self.W2 = nn.Linear(d // 2, 1)

    def score(self, e: Tensor) -> Tensor:
        """(B, V, C, d) → (B, V, C): one number a code, from its own vector alone."""
        if self.scorer == "query":
            return (self.q * torch.tanh(self.W(e))).sum(-1)
        return self.W2(torch.tanh(self.W1(e))).squeeze(-1)

    def forward(
        self, e: Tensor, mask: Tensor, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, V, C, d) and (B, V, C) → (B, V, d); with `return_weights` also α (B, V, C), 0 in pads."""
        check_vectors(e, "e", self.d)
        e, mask = real_codes(e, mask)
        scores = self.score(e).masked_fill(~mask, float("-inf"))
        # softmax over nothing but −∞ is NaN: an empty visit gets equal scores, and then no weights
        scores = scores.masked_fill(~mask.any(-1, keepdim=True), 0.0)
        alpha = scores.softmax(-1) * mask
        u = (alpha.unsqueeze(-1) * e).sum(2)
        return (u, alpha) if return_weights else u


class TransformerVisitEncoder(Plain):
    """Option C, a small transformer: the codes of a visit see each other in full, then comes their masked mean.

    Example:
        >>> TransformerVisitEncoder(8)(torch.randn(2, 3, 4, 8), torch.ones(2, 3, 4)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, d: int, heads: int = 4, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        check_sizes(layers=layers)
        self.layers = nn.ModuleList(TransformerLayer(d, heads, dropout) for _ in range(layers))

    def forward(self, e: Tensor, mask: Tensor) -> Tensor:
        """(B, V, C, d) and (B, V, C) → (B, V, d)."""
        e, mask = real_codes(e, mask)
        x, real = e.flatten(0, 1), mask.flatten(0, 1)  # each visit is a sequence: (B·V, C, d)
        for layer in self.layers:
            x = layer(x, real.unsqueeze(1))
        return masked_mean(x, real).view(*mask.shape[:2], -1)
