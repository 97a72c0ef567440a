"""Attention masks and plans against plain loops, and the importance of codes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models import attention
from ehrsequencing.models.attention import AttentionPlan
from ehrsequencing.models.base import SurvivalModel
from helpers.model_checks import FEW
from helpers.models import ENCODERS, make_model
from helpers.strategies import Records, Subject, Visit, pack, pad, records, sample_records
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


@FEW
@given(records(), any_reach, st.booleans())
def test_visits_plan(subjects: Records, window: int, bidirectional: bool) -> None:
    direction = "bidirectional" if bidirectional else "causal"
    config = make_model(max_visits=window, attention=direction).config
    batch, x = pack(subjects), pad(subjects)
    each = [seen[real][:, real] for seen, real in zip(visible(config, x), x.visit_mask, strict=True)]
    plan = attention.time_plan(batch, window=window, bidirectional=bidirectional)
    expected = block_diagonal([m for m in each if len(m)])
    assert torch.equal(sightings(plan, batch.n_visits), expected)


@FEW
@given(records(), any_reach, st.booleans())
def test_tokens_plan(subjects: Records, max_tokens: int, bidirectional: bool) -> None:
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


@FEW
@given(st.lists(st.sampled_from([0, 1, 2, 3, 17, 40]), max_size=12))
def test_codes_plan(sizes: list[int]) -> None:
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    expected = block_diagonal([torch.ones(size, size) for size in sizes if size])
    assert torch.equal(sightings(attention.codes_plan(offsets), sum(sizes)), expected)


@FEW
@given(records(), any_reach)
def test_rows_alone_see_what_they_see_among_all(subjects: Records, window: int) -> None:
    batch = pack(subjects)
    whole = sightings(attention.time_plan(batch, window=window), batch.n_visits)
    rows = torch.arange(batch.n_visits).flip(0)[::2]
    q = torch.randn(batch.n_visits, 4, dtype=torch.float64)
    alone = attention.rows_plan(batch, rows, window=window).attend(q[rows], q, q, heads=2)
    weights = (q.view(-1, 2, 2).transpose(0, 1) @ q.view(-1, 2, 2).permute(1, 2, 0) / 2**0.5)[:, rows]
    seen = weights.masked_fill(whole[rows] == 0, float("-inf")).softmax(2)
    expected = (seen @ q.view(-1, 2, 2).transpose(0, 1)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(alone, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("rows", ["visits", "tokens"])
def test_cost_is_linear_in_the_length_of_a_subject(rows: str, bidirectional: bool) -> None:
    scores = []
    for visits in (10_000, 20_000):
        batch = pack([Subject((Visit(),) * visits)])
        if rows == "visits":
            plan = attention.time_plan(batch, window=512, bidirectional=bidirectional)
        else:
            one_each = torch.arange(visits + 1)
            plan = attention.time_plan(batch, window=512, bidirectional=bidirectional, offsets=one_each)
        scores.append(sum(b.groups * b.query_length * b.key_length for b in plan.blocks))
        assert scores[-1] < visits * 512 * 3
        assert all(b.mask is None or b.mask.numel() < visits * 512 * 3 for b in plan.blocks)
    assert scores[1] < 2.2 * scores[0]


@FEW
@given(records(), st.sampled_from(["attention", "bottleneck"]))
def test_weights(subjects: Records, encoder: str) -> None:
    """α is positive, sums to 1 over every visit with codes, and depends on the code alone up to that sum."""
    model, batch = make_model(visit_encoder=encoder), pack(subjects)
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


@pytest.mark.parametrize("encoder", ["attention", "bottleneck"])
def test_the_same_code_has_the_same_score_in_any_slot(encoder: str) -> None:
    check_same_code_same_score(make_model(visit_encoder=encoder))
    with pytest.raises(AssertionError):
        check_same_code_same_score(make_model(visit_encoder=encoder, code_position=True))


@pytest.mark.parametrize("settings", [*ENCODERS.values(), {"architecture": "flat"}], ids=str)
def test_code_types_are_asked_for(settings: dict[str, object]) -> None:
    model, batch = make_model(**settings, code_types=True), pack(sample_records())
    with pytest.raises(EhrseqError, match="code_types"):
        model(replace(batch, code_types=None))
    assert batch.code_types is not None
    with pytest.raises(EhrseqError, match="types outside the model's 4"):
        model(replace(batch, code_types=batch.code_types + 4))
