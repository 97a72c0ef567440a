"""The hierarchical model once more: slow, plain, padded, from the seeds' formulas. The oracle of the packed one.

Every function takes dense (B, V, C) tensors with masks and the model's parameters by name. Nothing is shared with the
package but those parameters and the configuration: bins, windows and likelihoods are spelled out in Python loops.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.config import ModelConfig
from helpers.strategies import Padded
from reference.blocks import (
    Parameters,
    age_bin,
    block,
    code_vectors,
    gap_bin,
    head,
    linear,
    norm,
    sinusoid,
    static_vectors,
    table_vectors,
)


def reference_logits(p: Parameters, config: ModelConfig, x: Padded) -> Tensor:
    """(B, V, causes, bins), or (B, V) for the `visit` head; NaN-free, anything in pads and (visit head) queries."""
    e, code_mask = code_vectors(p, config, x), x.code_mask & x.visit_mask.unsqueeze(-1)
    u = visit_vectors(p, config, e, code_mask)
    if config.visit_mlp:
        u = u + visit_mlp(p, u) * code_mask.any(-1, keepdim=True)
    if config.query_follows_visit:
        u = u + last_visits(u, x)
    u = u + static_vectors(p, x).unsqueeze(1)
    inputs = u + time_signals(p, config, x)
    h = inputs[..., :0]
    if config.table_dim:
        h = table_vectors(p, config, x)
        inputs = inputs + h @ p["table.W_x.weight"].T
    z = transformer_timeline(p, config, inputs, visible(config, x), rotary_angles(config, x))
    return head(p, config, z, torch.cat([inputs, h], -1))


# ---- module 2: a visit's codes → one vector --------------------------------------------------------------------------


def visit_vectors(p: Parameters, config: ModelConfig, e: Tensor, mask: Tensor) -> Tensor:
    """(B, V, C, d) and (B, V, C) → (B, V, d); zero for an empty visit."""
    if config.visit_encoder in ("attention", "bottleneck"):
        return attention_pooling(p, config, e, mask)
    if config.visit_encoder == "transformer":
        return mini_transformer(p, config, e, mask)
    kept, count = e * mask.unsqueeze(-1), mask.sum(2, keepdim=True).clamp(min=1).to(e.dtype)
    if config.visit_encoder == "max":
        below_all = e.new_full((*e.shape[:2], 1, config.dim), -1e300)  # an empty visit has a largest vector too
        candidates = torch.cat([e.masked_fill(~mask.unsqueeze(-1), float("-inf")), below_all], 2)
        return candidates.amax(2) * mask.any(2, keepdim=True)
    divisor = {"mean": count, "sum": torch.ones_like(count), "scaled_sum": count.sqrt()}[config.visit_encoder]
    return kept.sum(2) / divisor


def attention_pooling(p: Parameters, config: ModelConfig, e: Tensor, mask: Tensor) -> Tensor:
    """The seeds' `AttnPoolingVisitEncoder.forward`, line by line, with either scorer."""
    scores = code_scores(p, config, e)
    scores = scores.masked_fill(~mask.bool(), float("-inf"))
    all_pad = ~mask.bool().any(dim=-1, keepdim=True)
    scores = scores.masked_fill(all_pad.expand_as(scores), 0.0)
    alpha = torch.softmax(scores, dim=-1)
    alpha = alpha * mask.to(e.dtype)
    return (alpha.unsqueeze(-1) * e).sum(dim=2)


def code_scores(p: Parameters, config: ModelConfig, e: Tensor) -> Tensor:
    """(..., d) → (...): `q·tanh(W e + b)`, or the bottleneck `W2 tanh(W1 e + b1) + b2`."""
    name = "visit_encoder.pooling."
    if config.visit_encoder == "bottleneck":
        assert p[name + "W1.weight"].shape == (config.dim // 2, config.dim)
        return linear(p, name + "W2", torch.tanh(linear(p, name + "W1", e))).squeeze(-1)
    return (p[name + "q"] * torch.tanh(linear(p, name + "W", e))).sum(-1)


def mini_transformer(p: Parameters, config: ModelConfig, e: Tensor, mask: Tensor) -> Tensor:
    """Full attention among one visit's codes, visit by visit as a batch; then the mean."""
    itself = torch.eye(e.shape[2], dtype=torch.bool)
    seen = mask.unsqueeze(2) | itself  # (B, V, C, C); a pad sees itself too, or its softmax would be NaN
    x = block(p, "visit_encoder.pooling.layers.0.", e, seen, config.heads)
    return (x * mask.unsqueeze(-1)).sum(2) / mask.sum(2, keepdim=True).clamp(min=1)


def visit_mlp(p: Parameters, u: Tensor) -> Tensor:
    name = "visit_encoder.mlp."
    return linear(p, name + "W2", F.gelu(linear(p, name + "W1", norm(p, name + "norm", u))))


def last_visits(u: Tensor, x: Padded) -> Tensor:
    """(B, V, d) at a query the vector of the last visit before it; zero elsewhere."""
    rows = []
    for b in range(len(x.visit_mask)):
        last = u.new_zeros(u.shape[-1])
        for v in range(x.visit_mask.shape[1]):
            is_query = bool(x.is_query[b, v])
            rows.append(last if x.visit_mask[b, v] and is_query else last * 0)
            if x.visit_mask[b, v] and not is_query:
                last = u[b, v]
    return torch.stack(rows).view_as(u) if rows else u * 0


# ---- module 3: when --------------------------------------------------------------------------------------------------


def time_signals(p: Parameters, config: ModelConfig, x: Padded) -> Tensor:
    """(B, V, d): index + age + gap + query vector, slot by slot; zero in pads."""
    name = "visit_time_embedding."
    rows = []
    for b in range(len(x.visit_mask)):
        before = 0
        for v in range(x.visit_mask.shape[1]):
            row = p[name + "query"] * 0
            if x.visit_mask[b, v]:
                row = row + p[name + "query"] * float(x.is_query[b, v])
                if config.position == "learned":
                    row = row + p[name + "position.table.weight"][min(before, min(config.max_visits, 512) - 1)]
                if config.position == "sinusoidal":
                    row = row + sinusoid(before, config.dim)
                if config.age_bin_years:
                    row = row + p[name + "age.table.weight"][age_bin(float(x.ages[b, v]), config.age_bin_years)]
                if config.delta_bins != "none":
                    bin_ = gap_bin(config, float(x.deltas[b, v]), is_first=before == 0)
                    row = row + p[name + "delta.table.weight"][bin_]
                before += not x.is_query[b, v]
            rows.append(row)
    return torch.stack(rows).view(*x.visit_mask.shape, -1) if rows else torch.zeros(*x.visit_mask.shape, config.dim)


# ---- module 4: visits in time ----------------------------------------------------------------------------------------


def visible(config: ModelConfig, x: Padded) -> Tensor:
    """(B, V, V) whether slot i sees slot j; a pad sees itself only."""
    seen = torch.zeros(*x.visit_mask.shape, x.visit_mask.shape[1], dtype=torch.bool)
    for b in range(len(seen)):
        for i in range(seen.shape[1]):
            seen[b, i, i] = True
            if not x.visit_mask[b, i]:
                continue
            real = [j for j in range(seen.shape[1]) if x.visit_mask[b, j] and not x.is_query[b, j]]
            past, future = [j for j in real if j < i], [j for j in real if j > i]
            others = config.max_visits - 1  # beside itself
            seen[b, i, past[len(past) - min(others, len(past)) :]] = True
            if config.attention == "bidirectional" and not x.is_query[b, i]:
                seen[b, i, future[:others]] = True
    return seen


def rotary_angles(config: ModelConfig, x: Padded) -> Tensor | None:
    """(B, V, pairs): 2π · place / period, slot by slot; days first (60 d to 7305 d), then visits (6 to 200)."""
    if not config.rotary:
        return None
    pairs = config.dim // config.heads // 2
    of_days = pairs - pairs // 2
    angles = torch.zeros(*x.visit_mask.shape, pairs, dtype=torch.float64)
    for b in range(len(x.visit_mask)):
        before, days = 0, 0.0
        for v in x.visit_mask[b].nonzero().flatten().tolist():
            here = days + round(float(x.deltas[b, v]) * 2**20) / 2**20
            for j in range(pairs):
                nth, count = (j, of_days) if j < of_days else (j - of_days, pairs - of_days)
                low, high = (60.0, 7305.0) if j < of_days else (6.0, 200.0)
                period = low * (high / low) ** (nth / (count - 1)) if count > 1 else low
                angles[b, v, j] = 2 * math.pi * (here if j < of_days else before) / period
            if not x.is_query[b, v]:
                before, days = before + 1, here
    return angles.to(x.deltas.dtype)


def transformer_timeline(p: Parameters, config: ModelConfig, x: Tensor, seen: Tensor, angles: Tensor | None) -> Tensor:
    for layer in range(config.layers):
        x = block(p, f"timeline.layers.{layer}.", x, seen, config.heads, angles=angles)
    return norm(p, "timeline.norm", x)
