"""Checks of who sees whom in attention, against plain loops."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from ehrsequencing.models import attention
from ehrsequencing.models.attention import AttentionPlan
from ehrsequencing.models.base import SurvivalModel
from helpers.model_checks import answers, noise
from helpers.models import make_model
from helpers.strategies import Records, Subject, Visit, pack, pad
from reference.flat import visible_rows
from reference.padded import code_scores, visible

any_reach = st.sampled_from([1, 2, 3, 4, 9, 512])


def sightings(plan: AttentionPlan, n_rows: int) -> Tensor:
    """(rows, rows) how often the slot that answers for row i sees row j."""
    seen = torch.zeros(n_rows, n_rows, dtype=torch.int64)
    at_query = at_key = 0
    owner = {int(slot): row for row, slot in enumerate(plan.answer_slot)}
    for block in plan.blocks:
        shape = (block.groups, 1, block.query_length, block.key_length)
        mask = torch.ones(shape, dtype=torch.bool) if block.mask is None else block.mask.expand(shape)
        if block.causal:
            mask = mask.tril()
        for g in range(block.groups):
            keys = plan.key_rows[at_key + g * block.key_length :][: block.key_length]
            for place in range(block.query_length):
                slot = at_query + g * block.query_length + place
                if slot in owner:
                    assert int(plan.query_rows[slot]) == owner[slot]
                    seen[owner[slot]] += torch.zeros(n_rows, dtype=torch.int64).index_add(
                        0, keys, mask[g, 0, place].long()
                    )
        at_query += block.groups * block.query_length
        at_key += block.groups * block.key_length
    assert (at_query, at_key) == (len(plan.query_rows), len(plan.key_rows))
    return seen


def block_diagonal(parts: list[Tensor]) -> Tensor:
    return torch.block_diag(*[part.long() for part in parts]) if parts else torch.zeros(0, 0, dtype=torch.int64)


def check_visits_plan(subjects: Records, window: int, *, bidirectional: bool) -> None:
    direction = "bidirectional" if bidirectional else "causal"
    config = make_model(max_visits=window, attention=direction).config
    batch, x = pack(subjects), pad(subjects)
    each = [seen[real][:, real] for seen, real in zip(visible(config, x), x.visit_mask, strict=True)]
    plan = attention.time_plan(batch, window=window, bidirectional=bidirectional)
    expected = block_diagonal([m for m in each if len(m)])
    assert torch.equal(sightings(plan, batch.n_visits), expected)


def check_tokens_plan(subjects: Records, max_tokens: int, *, bidirectional: bool) -> None:
    direction = "bidirectional" if bidirectional else "causal"
    config = make_model(architecture="flat", max_tokens=max_tokens, attention=direction).config
    batch, x = pack(subjects), pad(subjects)
    tokens = [[max(len(v.codes) + v.is_query, 1) for v in subject.visits] for subject in subjects]
    each = []
    for b, counts in enumerate(tokens):
        sees = visible_rows(config, x, b, dict(enumerate(counts)))
        row_of_token = [row for row, count in enumerate(counts) for _ in range(count)]
        each.append(torch.tensor([[j in sees[i] for j in row_of_token] for i in row_of_token], dtype=torch.bool))
    offsets = torch.tensor([0, *(count for counts in tokens for count in counts)]).cumsum(0)
    plan = attention.time_plan(batch, window=max_tokens, bidirectional=bidirectional, offsets=offsets)
    expected = block_diagonal([m for m in each if len(m)])
    assert torch.equal(sightings(plan, int(offsets[-1])), expected)


def check_codes_plan(sizes: list[int]) -> None:
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    expected = block_diagonal([torch.ones(size, size) for size in sizes if size])
    assert torch.equal(sightings(attention.codes_plan(offsets), sum(sizes)), expected)


def moved_rows(model: SurvivalModel, rows: list[Visit], i: int, altered: Visit) -> list[bool]:
    """Which rows' logits change when row i does."""
    (expected,), (found,) = (answers(model, [Subject(tuple(r))]) for r in (rows, [*rows[:i], altered, *rows[i + 1 :]]))
    return ((found - expected).abs().flatten(1).amax(1) > 1e-9).tolist()


def check_window(*, window: int = 3, visits: int = 12) -> None:
    """In one layer, row v sees itself and the `window - 1` real visits before it: no more and no fewer."""
    rng = random.Random(5)
    model = make_model(max_visits=window, layers=1, position="none")
    rows: list[Visit] = []
    for i in range(visits):
        rows += [noise(rng), noise(rng, is_query=True)] if i % 3 == 1 else [noise(rng)]
    for i, row in enumerate(rows):
        if row.is_query:
            continue
        moved = moved_rows(model, rows, i, noise(rng))
        for v, other in enumerate(rows):
            between = sum(not r.is_query for r in rows[i + 1 : v]) + (not other.is_query)
            seen = v == i or (v > i and (between if not other.is_query else between + 1) <= window - 1)
            assert moved[v] == seen, f"row {v} and visit {i}"


def check_reach(*, max_tokens: int = 7, visits: int = 12) -> None:
    """In one layer, a row sees itself and whole real visits back while all their tokens fit into `max_tokens`."""
    rng = random.Random(9)
    model = make_model(architecture="flat", max_tokens=max_tokens, layers=1)
    rows: list[Visit] = []
    for i in range(visits):
        rows += [noise(rng), noise(rng, is_query=True)] if i % 3 == 1 else [noise(rng)]
    rows[4] = replace(rows[4], codes=(), numbers=())
    tokens = [max(len(row.codes) + row.is_query, 1) for row in rows]
    for i, row in enumerate(rows):
        if row.is_query:
            continue
        other = noise(rng)  # with as many codes as before: the reach of others stays
        codes = tuple(1 + code % 11 for code in row.codes)
        moved = moved_rows(model, rows, i, replace(other, codes=codes, numbers=row.numbers))
        for v in range(len(rows)):
            needed = tokens[v] + sum(tokens[u] for u in range(i, v) if not rows[u].is_query)
            assert moved[v] == (v == i or (v > i and needed <= max_tokens)), f"row {v} and visit {i}"


def check_weights(model: SurvivalModel, subjects: Records) -> None:
    """α is positive, sums to 1 over every visit with codes, and depends on the code alone up to that sum."""
    batch = pack(subjects)
    e = model.code_embedding(batch)
    pooling = model.visit_encoder.pooling
    u, alpha = pooling(e, batch), pooling.weights(e, batch)
    assert alpha.shape == (batch.n_codes,)
    assert (alpha > 0).all()
    sums = torch.zeros(batch.n_visits, dtype=alpha.dtype).index_add(0, batch.visit_of_code, alpha)
    torch.testing.assert_close(sums, (batch.codes_per_visit > 0).to(alpha.dtype), rtol=1e-12, atol=1e-12)
    weighted = torch.zeros_like(u).index_add(0, batch.visit_of_code, alpha.unsqueeze(1) * e.expand())
    torch.testing.assert_close(u, weighted, rtol=1e-12, atol=1e-12)
    scores = code_scores(dict(model.named_parameters()), model.config, e.expand())
    for n in range(batch.n_visits):
        own = slice(int(batch.visit_offsets[n]), int(batch.visit_offsets[n + 1]))
        torch.testing.assert_close(alpha[own], scores[own].softmax(0), rtol=1e-11, atol=1e-12)


def check_same_code_same_score(model: SurvivalModel) -> None:
    """Content-based: what one code weighs beside another is the same in any slot and in any company."""
    companies = [(3, 5), (5, 3), (7, 3, 5), (5, 9, 3, 2), (3, 3, 8, 5), (2, 2, 2, 5, 3)]
    batch = pack([Subject(tuple(Visit(codes, (None,) * len(codes)) for codes in companies))])
    alpha = model.visit_encoder.pooling.weights(model.code_embedding(batch), batch)
    weights = alpha.detach().split([len(codes) for codes in companies])
    odds = [float(w[codes.index(3)] / w[codes.index(5)]) for w, codes in zip(weights, companies, strict=True)]
    assert odds == pytest.approx([odds[0]] * len(odds), rel=1e-12)
    assert abs(odds[0] - 1) > 0.01  # and codes do differ
