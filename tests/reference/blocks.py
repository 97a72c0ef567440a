"""What both references are built from: dense layers, bins, code vectors. Plain tensors, parameters by name."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.config import ModelConfig
from helpers.strategies import Padded

Parameters = Mapping[str, Tensor]
GAPS_DAYS = [0, 1 / 24, 2 / 24, 4 / 24, 8 / 24, 12 / 24, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3652.5]


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def norm(p: Parameters, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def block(p: Parameters, name: str, x: Tensor, seen: Tensor, heads: int, *, angles: Tensor | None = None) -> Tensor:
    """One pre-LN transformer layer over the last axis but one: (..., L, d) under `seen` (..., L, L), plain softmax.

    With `angles` (..., L, pairs), queries and keys are turned as complex numbers.
    """
    q, k, v = linear(p, name + "qkv", norm(p, name + "attention_norm", x)).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(-2, -3) for t in (q, k, v))  # (..., heads, L, d/heads)
    if angles is not None:
        q, k = (turned(t, angles.unsqueeze(-3)) for t in (q, k))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~seen.unsqueeze(-3), float("-inf")).softmax(-1)
    mixed = (weights @ v).transpose(-2, -3).flatten(-2)
    x = x + p[name + "attention_scale"] * linear(p, name + "out", mixed)
    hidden = F.gelu(linear(p, name + "W1", norm(p, name + "mlp_norm", x)))
    return x + p[name + "mlp_scale"] * linear(p, name + "W2", hidden)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Dimension j and dimension pairs + j are one complex number, multiplied by exp(i·angle)."""
    pairs = angles.shape[-1]
    number = torch.complex(x[..., :pairs], x[..., pairs : 2 * pairs]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([number.real, number.imag, x[..., 2 * pairs :]], -1)


def head(p: Parameters, config: ModelConfig, z: Tensor, wide: Tensor) -> Tensor:
    """States (..., d) and the wide head's input (..., d) → logits (..., causes, bins), or (...) for `visit`."""
    hidden = F.gelu(linear(p, "head.W1", norm(p, "head.norm", z)))
    logits = linear(p, "head.W2", hidden)
    if config.wide_head:
        logits = logits + wide @ p["wide_head.weight"].T
    if config.head == "visit":
        return logits.squeeze(-1)
    logits = logits.unflatten(-1, (config.causes, config.bins))
    place = torch.linspace(0, 1, config.bins, dtype=z.dtype) if config.bins > 1 else torch.zeros(1, dtype=z.dtype)
    for j, curve in enumerate((torch.ones_like(place), 1 - 2 * place, torch.exp(-6 * place))):
        effect = hidden @ p["head.W2.curves"][:, j].T
        if config.wide_head:
            effect = effect + wide @ p["wide_head.curves"][:, j].T
        logits = logits + effect.unsqueeze(-1) * curve
    return logits


def code_effects(p: Parameters, config: ModelConfig, x: Padded) -> Tensor:
    """(B, V, causes, bins) what each code's history adds to the log hazards, row by row and record by record."""
    effect = p["code_effects.effect"].view(config.vocab_size, 4, config.causes, 3)
    subjects, visits, places = x.codes.shape
    sums = effect.new_zeros(subjects, visits, config.causes, 3)
    for s in range(subjects):
        days, now = [], 0.0
        for v in range(visits):
            if not x.visit_mask[s, v]:
                days.append(math.nan)
                continue
            days.append(now + float(x.deltas[s, v]))
            if not x.is_query[s, v]:
                now = days[v]
            records: dict[int, list[float]] = {}  # days of each code
            last: dict[int, tuple[int, list[float]]] = {}  # its last visit, and the numbers there
            for earlier in range(v + 1):
                if not x.visit_mask[s, earlier] or x.is_query[s, earlier]:
                    continue
                for c in range(places):
                    if x.code_mask[s, earlier, c]:
                        code, number = int(x.codes[s, earlier, c]), float(x.values[s, earlier, c, 1])
                        records.setdefault(code, []).append(days[earlier])
                        if last.get(code, (-1,))[0] != earlier:
                            last[code] = earlier, []
                        last[code][1].extend([] if math.isnan(number) else [number])
            for code, known in records.items():
                recent = sum(2.0 ** (-(days[v] - day) / 180) for day in known)
                numbers = last[code][1] or [0.0]
                facts = effect.new_tensor([1.0, math.log2(len(known)), sum(numbers) / len(numbers), recent])
                sums[s, v] += 5 * (effect[code] * facts.view(4, 1, 1)).sum(0)
    place = [k / max(config.bins - 1, 1) for k in range(config.bins)]
    curves = effect.new_tensor([[1.0, 1 - 2 * at, math.exp(-6 * at)] for at in place])
    return sums @ curves.T


def table_vectors(p: Parameters, config: ModelConfig, x: Padded) -> Tensor:
    """(B, V, width) h of the table branch: every number adds V0 + r·V1 + (r² − 1)·V2 + z·V3; 0 without numbers."""
    real = x.code_mask & x.visit_mask.unsqueeze(-1)
    known = (real & ~x.values[..., 0].isnan()).unsqueeze(-1)
    r, z = x.values.masked_fill(~known, 0.0).unsqueeze(-2).unbind(-1)  # (B, V, C, 1) each
    vectors = p["table.vectors.weight"].view(config.vocab_size, 4, config.table_dim)
    v0, v1, v2, v3 = vectors[x.codes.masked_fill(~real, 0)].unbind(-2)
    total = ((v0 + r * v1 + (r**2 - 1) * v2 + z * v3) * known).sum(2)
    return F.gelu(linear(p, "table.W1", norm(p, "table.norm", total))) * known.any(2)


def code_vectors(p: Parameters, config: ModelConfig, x: Padded, name: str = "code_embedding") -> Tensor:
    """(B, V, C, d): E_c, and for a code with a number r·V1 + (r² − 1)·V2 + z·V3, or the line between two knots.

    Then, where the configuration says so, the place within the visit and the type. Junk in pads.
    """
    real = x.code_mask & x.visit_mask.unsqueeze(-1)
    codes = x.codes.masked_fill(~real, 0)
    e = p[f"{name}.table.weight"][codes]
    if config.values != "none":
        e = e + number_vectors(p, config, x, name, codes)
    if config.code_position:
        rank = real.long().cumsum(-1) - 1
        e = e + p[f"{name}.position_table.weight"][rank.clamp(0, 127)]
    if config.code_types:
        e = e + p[f"{name}.type_table.weight"][x.types.masked_fill(~real, 0)]
    return e


def number_vectors(p: Parameters, config: ModelConfig, x: Padded, name: str, codes: Tensor) -> Tensor:
    """(B, V, C, d) what each code's number adds; 0 without one."""
    real = x.code_mask & x.visit_mask.unsqueeze(-1)
    has_number = (real & ~x.values[..., 0].isnan()).unsqueeze(-1)
    r, z = x.values.masked_fill(~has_number, 0.0).unsqueeze(-2).unbind(-1)  # (B, V, C, 1) each
    terms = 3 if config.values == "polynomial" else config.value_bins
    table = p[f"{name}.value_table.weight"].view(config.vocab_size, terms, config.dim)[codes]
    if config.values == "polynomial":
        r, z = r.unsqueeze(-1), z.unsqueeze(-1)
        added = (torch.cat([r, r**2 - 1, z], -2) * table).sum(-2)
    else:
        at = ((r / math.sqrt(12) + 0.5) * (terms - 1)).clamp(0, terms - 1)  # (B, V, C, 1)
        hats = (1 - (at - torch.arange(terms)).abs()).clamp(min=0)  # linear interpolation as a sum of hats
        added = (hats.unsqueeze(-1) * table).sum(-2)
    return added * has_number


def static_vectors(p: Parameters, x: Padded, name: str = "code_embedding") -> Tensor:
    """(B, d) mean identity of each subject's codes without a time."""
    table = p[f"{name}.table.weight"]
    means = [table[list(codes)].mean(0) if codes else table[0] * 0 for codes in x.static]
    return torch.stack(means) if means else table[:0]


def sinusoid(place: int, dim: int) -> Tensor:
    """(d,) sin and cos of `place` at wavelengths 2π … 20000π by turns, scaled to norm 1 (if d is even)."""
    angles = [place / 10_000 ** (2 * j / dim) for j in range((dim + 1) // 2)]
    waves = [wave for angle in angles for wave in (math.sin(angle), math.cos(angle))]
    return torch.tensor(waves[:dim], dtype=torch.float64) * math.sqrt(2 / dim)


def age_bin(age_years: float, bin_years: float) -> int:
    top = math.ceil(120 / bin_years)
    return top + 1 if math.isnan(age_years) else min(int(age_years // bin_years), top)


def gap_bin(config: ModelConfig, delta_days: float, *, is_first: bool) -> int:
    """Log-spaced bins behind an own one for the first visit; or weeks, the last open from a year on."""
    if config.delta_bins == "log":
        return 0 if is_first else 1 + max(i for i, gap in enumerate(GAPS_DAYS) if delta_days >= gap)
    return 53 if delta_days >= 365 else int(delta_days // 7)
