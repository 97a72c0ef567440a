"""Attention masks and plans against plain loops, the window, the reach, and the importance of codes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models import attention
from helpers.attention_checks import (
    any_reach,
    check_codes_plan,
    check_reach,
    check_same_code_same_score,
    check_tokens_plan,
    check_visits_plan,
    check_weights,
    check_window,
    sightings,
)
from helpers.model_checks import FEW
from helpers.models import ENCODERS, make_model
from helpers.strategies import Records, Subject, Visit, pack, records, sample_records


@FEW
@given(records(), any_reach, st.booleans())
def test_visits_plan(subjects: Records, window: int, bidirectional: bool) -> None:
    check_visits_plan(subjects, window, bidirectional=bidirectional)


@FEW
@given(records(), any_reach, st.booleans())
def test_tokens_plan(subjects: Records, max_tokens: int, bidirectional: bool) -> None:
    check_tokens_plan(subjects, max_tokens, bidirectional=bidirectional)


@FEW
@given(st.lists(st.sampled_from([0, 1, 2, 3, 17, 40]), max_size=12))
def test_codes_plan(sizes: list[int]) -> None:
    check_codes_plan(sizes)


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


@pytest.mark.parametrize("window", [1, 2, 3, 5, 100])
def test_window(window: int) -> None:
    check_window(window=window)


@pytest.mark.parametrize("max_tokens", [1, 4, 7, 9, 100])
def test_reach(max_tokens: int) -> None:
    check_reach(max_tokens=max_tokens)


@FEW
@given(records(), st.sampled_from(["attention", "bottleneck"]))
def test_weights(subjects: Records, encoder: str) -> None:
    check_weights(make_model(visit_encoder=encoder), subjects)


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
