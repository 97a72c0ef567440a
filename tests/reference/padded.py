"""The hierarchical model once more: slow, plain, padded, from the seeds' formulas. The oracle of the packed one.

Every function takes dense (B, V, C) tensors with masks and the model's parameters by name. Nothing is shared with the
package but those parameters and the configuration: bins, windows and likelihoods are spelled out in Python loops.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.config import ModelConfig
from strategies import Padded

Parameters = Mapping[str, Tensor]
GAPS_DAYS = [0, 1 / 24, 2 / 24, 4 / 24, 8 / 24, 12 / 24, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3652.5]


def reference_logits(p: Parameters, config: ModelConfig, x: Padded) -> Tensor:
    """(B, V, causes, bins), or (B, V) for the `visit` head; NaN-free, anything in pads and (visit head) queries."""
    e, code_mask = code_vectors(p, config, x), x.code_mask & x.visit_mask.unsqueeze(-1)
    if config.visit_encoder == "attention":
        u = attention_pooling(p, e, code_mask)
    else:
        u = (e * code_mask.unsqueeze(-1)).sum(2) / code_mask.sum(2, keepdim=True).clamp(min=1)
    if config.visit_mlp:
        u = u + visit_mlp(p, u) * code_mask.any(-1, keepdim=True)
    table = p["code_embedding.table.weight"]
    static = [table[list(codes)].mean(0) if codes else table[0] * 0 for codes in x.static]
    u = u + torch.stack(static).unsqueeze(1)
    inputs = u + time_signals(p, config, x)
    z = timeline(p, config, inputs, visible(config, x))
    logits = linear(p, "head.W2", F.gelu(linear(p, "head.W1", norm(p, "head.norm", z))))
    if config.wide_head:
        logits = logits + inputs @ p["wide_head.weight"].T
    return logits.squeeze(-1) if config.head == "visit" else logits.unflatten(-1, (config.causes, config.bins))


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def norm(p: Parameters, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def code_vectors(p: Parameters, config: ModelConfig, x: Padded) -> Tensor:
    """(B, V, C, d): E_c, and for a code with a number r·V1 + (r² − 1)·V2 + z·V3, or the line between two knots."""
    codes = x.codes.masked_fill(~(x.code_mask & x.visit_mask.unsqueeze(-1)), 0)
    e = p["code_embedding.table.weight"][codes]
    if config.values == "none":
        return e
    has_number = (x.code_mask & x.visit_mask.unsqueeze(-1) & ~x.values[..., 0].isnan()).unsqueeze(-1)
    r, z = x.values.masked_fill(~has_number, 0.0).unsqueeze(-2).unbind(-1)  # (B, V, C, 1) each
    terms = 3 if config.values == "polynomial" else config.value_bins
    table = p["code_embedding.value_table.weight"].view(config.vocab_size, terms, config.dim)[codes]
    if config.values == "polynomial":
        r, z = r.unsqueeze(-1), z.unsqueeze(-1)
        added = (torch.cat([r, r**2 - 1, z], -2) * table).sum(-2)
    else:
        at = ((r / math.sqrt(12) + 0.5) * (terms - 1)).clamp(0, terms - 1)  # (B, V, C, 1)
        hats = (1 - (at - torch.arange(terms)).abs()).clamp(min=0)  # linear interpolation as a sum of hats
        added = (hats.unsqueeze(-1) * table).sum(-2)
    return e + added * has_number


def attention_pooling(p: Parameters, e: Tensor, mask: Tensor) -> Tensor:
    """The seeds' `AttnPoolingVisitEncoder.forward`, line by line."""
    scores = (p["visit_encoder.pooling.q"] * torch.tanh(linear(p, "visit_encoder.pooling.W", e))).sum(-1)
    scores = scores.masked_fill(~mask.bool(), float("-inf"))
    all_pad = ~mask.bool().any(dim=-1, keepdim=True)
    scores = scores.masked_fill(all_pad.expand_as(scores), 0.0)
    alpha = torch.softmax(scores, dim=-1)
    alpha = alpha * mask.to(e.dtype)
    return (alpha.unsqueeze(-1) * e).sum(dim=2)


def visit_mlp(p: Parameters, u: Tensor) -> Tensor:
    name = "visit_encoder.mlp."
    return linear(p, name + "W2", F.gelu(linear(p, name + "W1", norm(p, name + "norm", u))))


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
                    row = row + p[name + "index_table.weight"][min(before, min(config.max_visits, 512) - 1)]
                if config.age_bin_years:
                    row = row + p[name + "age_table.weight"][age_bin(float(x.ages[b, v]), config.age_bin_years)]
                if config.delta_bins == "log":
                    bin_ = max(i for i, gap in enumerate(GAPS_DAYS) if float(x.deltas[b, v]) >= gap) + 1
                    row = row + p[name + "gap_table.weight"][bin_ if before else 0]
                before += not x.is_query[b, v]
            rows.append(row)
    return torch.stack(rows).view(*x.visit_mask.shape, -1) if rows else torch.zeros(*x.visit_mask.shape, config.dim)


def age_bin(age: float, years: float) -> int:
    top = math.ceil(120 / years)
    return top + 1 if math.isnan(age) else min(int(age // years), top)


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


def timeline(p: Parameters, config: ModelConfig, x: Tensor, seen: Tensor) -> Tensor:
    """Pre-LN transformer with explicit masks and a plain softmax."""
    for layer in range(config.layers):
        name = f"timeline.layers.{layer}."
        q, k, v = linear(p, name + "qkv", norm(p, name + "attention_norm", x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (config.heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(config.dim / config.heads)
        weights = scores.masked_fill(~seen.unsqueeze(1), float("-inf")).softmax(-1)
        x = x + p[name + "attention_scale"] * linear(p, name + "out", (weights @ v).transpose(1, 2).flatten(2))
        hidden = F.gelu(linear(p, name + "W1", norm(p, name + "mlp_norm", x)))
        x = x + p[name + "mlp_scale"] * linear(p, name + "W2", hidden)
    return norm(p, "timeline.norm", x)


def reference_nll(config: ModelConfig, logits: Tensor, x: Padded) -> list[Tensor]:
    """The likelihood's terms, one a labelled prediction time, in row-major order of the slots."""
    terms = []
    for b in range(len(x.visit_mask)):
        labelled = [v for v in range(x.visit_mask.shape[1]) if x.visit_mask[b, v] and x.at_risk[b, v]]
        if config.head == "visit":
            labelled = [v for v in labelled if not x.is_query[b, v]]
            for v in labelled:
                hazard = torch.sigmoid(logits[b, v])
                event = v == labelled[-1] and x.cause[b, v] > 0
                counts = v != labelled[-1] or event
                terms.append(-torch.log(hazard if event else 1 - hazard) if counts else 0 * hazard)
        else:
            for v in labelled:
                entry, stop = float(x.entry_days[b, v]), float(x.duration_days[b, v])
                terms.append(horizon_term(logits[b, v], config.edges_days, entry, stop, int(x.cause[b, v])))
    return terms


def horizon_term(logits: Tensor, edges_days: tuple[float, ...], entry: float, stop: float, cause: int) -> Tensor:
    """(E, K) log-hazards and one label → NLL, bin by bin."""
    edges = [0.0, *edges_days, math.inf]
    nll = logits.sum() * 0
    for k in range(len(edges) - 1):
        days = max(0.0, min(stop, edges[k + 1]) - max(entry, edges[k]))
        nll = nll + logits[:, k].exp().sum() * days
        if cause and edges[k] <= stop < edges[k + 1]:
            nll = nll - logits[cause - 1, k]
    return nll
