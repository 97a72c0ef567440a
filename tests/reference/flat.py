"""Flat BEHRT once more: (B, L) tokens built slot by slot, explicit masks, `aggregate_visits` as a loop. An oracle."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ehrsequencing.config import ModelConfig
from helpers.strategies import Padded
from reference.blocks import (
    Parameters,
    age_bin,
    block,
    code_vectors,
    head,
    norm,
    sinusoid,
    static_vectors,
    table_vectors,
)

EMBEDDING = "encoder.embedding."


@dataclass(frozen=True)
class Token:
    """One slot of a subject's sequence: the c-th code slot of row v, or (c is None) the marker of a row."""

    v: int
    c: int | None
    visit_id: int  # real visits before its row
    position: int


def tokens_of(x: Padded, b: int) -> list[Token]:
    """All tokens of one subject, row after row; a marker in front of a query and in place of an empty visit."""
    tokens: list[Token] = []
    visit_id = position = 0
    for v in x.visit_mask[b].nonzero().flatten().tolist():
        slots: list[int | None] = list(x.code_mask[b, v].nonzero().flatten().tolist())
        is_query = bool(x.is_query[b, v])
        if is_query or not slots:
            slots = [None, *slots]
        tokens += [Token(v, c, visit_id, position + place) for place, c in enumerate(slots)]
        if not is_query:
            visit_id += 1
            position += len(slots)
    return tokens


def flat_logits(p: Parameters, config: ModelConfig, x: Padded) -> Tensor:
    """(B, V, causes, bins), or (B, V) for the `visit` head; anything in pads and (visit head) queries."""
    shape = x.visit_mask.shape
    e, static = code_vectors(p, config, x, EMBEDDING + "code"), static_vectors(p, x, EMBEDDING + "code")
    sequences = [tokens_of(x, b) for b in range(shape[0])]
    length = max([1, *map(len, sequences)])
    pad = p[EMBEDDING + "query"] * 0
    rows = []
    for b, tokens in enumerate(sequences):
        vectors = [token_vector(p, config, x, e, b, token) + static[b] for token in tokens]
        rows.append(torch.stack(vectors + [pad] * (length - len(tokens))))
    if not rows:
        nothing = torch.zeros(*shape, config.dim + config.table_dim)
        return head(p, config, nothing[..., : config.dim], nothing)
    inputs = norm(p, EMBEDDING + "norm", torch.stack(rows))  # (B, L, d)
    seen = torch.stack([token_mask(config, x, b, tokens, length) for b, tokens in enumerate(sequences)])
    h = inputs
    for layer in range(config.layers):
        h = block(p, f"encoder.layers.{layer}.", h, seen, config.heads)
    h = norm(p, "encoder.norm", h)
    z, wide = aggregate_visits(h, sequences, shape), aggregate_visits(inputs, sequences, shape)
    if config.table_dim:
        table = table_vectors(p, config, x)
        z, wide = z + table @ p["table.W_x.weight"].T, torch.cat([wide, table], -1)
    return head(p, config, z, wide)


def token_vector(p: Parameters, config: ModelConfig, x: Padded, e: Tensor, b: int, token: Token) -> Tensor:
    """(d,) code (or the marker's nothing, or a query's vector) + age + visit id + position."""
    vector = p[EMBEDDING + "query"] * 0
    if token.c is not None:
        vector = vector + e[b, token.v, token.c]
    elif x.is_query[b, token.v]:
        vector = vector + p[EMBEDDING + "query"]
    if config.age_bin_years:
        vector = vector + p[EMBEDDING + "age.table.weight"][age_bin(float(x.ages[b, token.v]), config.age_bin_years)]
    vector = vector + p[EMBEDDING + "visit.table.weight"][min(token.visit_id, min(config.max_visits, 512) - 1)]
    if config.position == "learned":
        row = min(token.position, min(config.max_tokens, 512) - 1)
        vector = vector + p[EMBEDDING + "position.table.weight"][row]
    if config.position == "sinusoidal":
        vector = vector + sinusoid(token.position, config.dim)
    return vector


def token_mask(config: ModelConfig, x: Padded, b: int, tokens: list[Token], length: int) -> Tensor:
    """(L, L) whether token i sees token j; a pad sees itself only."""
    rows = list(dict.fromkeys(token.v for token in tokens))
    sees = visible_rows(config, x, b, {v: sum(token.v == v for token in tokens) for v in rows})
    seen = torch.eye(length, dtype=torch.bool)
    for i, mine in enumerate(tokens):
        for j, other in enumerate(tokens):
            seen[i, j] = other.v in sees[mine.v]
    return seen


def visible_rows(config: ModelConfig, x: Padded, b: int, count: dict[int, int]) -> dict[int, set[int]]:
    """The rows that each row of a subject sees: itself, and whole real visits while they fit into `max_tokens`."""
    sees = {}
    for r in count:
        sees[r] = {r}
        ways = [[v for v in reversed(count) if v < r]]
        if config.attention == "bidirectional" and not x.is_query[b, r]:
            ways.append([v for v in count if v > r])
        for way in ways:
            used = count[r]
            for v in way:
                if x.is_query[b, v]:
                    continue
                used += count[v]
                if used > config.max_tokens:
                    break
                sees[r].add(v)
    return sees


def aggregate_visits(states: Tensor, sequences: list[list[Token]], shape: torch.Size) -> Tensor:
    """(B, L, d) → (B, V, d): the mean over each row's tokens; zero in pads."""
    rows = []
    for b, tokens in enumerate(sequences):
        for v in range(shape[1]):
            own = [i for i, token in enumerate(tokens) if token.v == v]
            rows.append(states[b, own].mean(0) if own else states[b, 0] * 0)
    return torch.stack(rows).view(*shape, -1) if rows else states.new_zeros(*shape, states.shape[-1])
