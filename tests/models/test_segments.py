"""What must not move the model's output, and what must."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models.ensemble import Ensemble
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from helpers.model_checks import (
    FEW,
    answers,
    any_model,
    check_causality,
    check_code_order,
    check_code_order_counts,
    check_composition,
    check_future_gradient,
    check_queries,
    check_query_sees_the_past,
    check_rows,
    every_model,
    outputs_and_gradients,
    plain,
    same,
)
from helpers.models import ENCODERS, MODELS, make_model
from helpers.strategies import NAN, Records, Subject, Visit, pack, pad, records, sample_records

SETS = [name for name in MODELS if not name.startswith("flat")]  # models whose visits are sets of codes


@FEW
@given(records(), st.sampled_from(SETS))
def test_order_of_codes(subjects: Records, kind: str) -> None:
    check_code_order(make_model(**MODELS[kind]), subjects)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_order_of_codes_counts_where_they_have_a_place(encoder: str) -> None:
    """An encoder that is linear in the codes sees two codes' places as one sum; the others see who stands where."""
    model = make_model(**ENCODERS[encoder], code_position=True)
    if encoder in {"mean", "sum", "scaled_sum"}:
        check_code_order(model, sample_records())
    else:
        check_code_order_counts(model)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_order_of_codes_counts_in_the_flat_model(position: str) -> None:
    check_code_order_counts(make_model(architecture="flat", position=position))
    check_code_order(make_model(architecture="flat", position="none"), sample_records())  # the places alone tell


VARIANTS: list[dict[str, object]] = [
    *MODELS.values(),
    {"head": "visit"},
    {"layers": 1},
    {"attention": "bidirectional"},
    {"max_visits": 1},
]


@FEW
@given(records(), st.sampled_from(VARIANTS))
def test_rows_alone(subjects: Records, settings: dict[str, object]) -> None:
    check_rows(make_model(**settings), subjects)


def test_rows_alone_of_an_ensemble() -> None:
    members = [make_model(seed=seed) for seed in range(2)]
    ensemble = Ensemble(members[0].config.model_copy(update={"members": 2})).double().eval()
    for own, member in zip(ensemble.members, members, strict=True):
        own.load_state_dict(member.state_dict())
    check_rows(ensemble, sample_records())


@FEW
@given(records(), any_model)
def test_batch_composition(subjects: Records, kind: str) -> None:
    check_composition(make_model(**MODELS[kind]), subjects)


LONG = [{}, {"max_visits": 37}, {"visit_encoder": "transformer"}]
LONG_FLAT = [{"architecture": "flat", "max_tokens": reach} for reach in (37, 400)]


@pytest.mark.parametrize("settings", [*LONG, *LONG_FLAT], ids=str)
def test_beside_a_very_long_subject(settings: dict[str, object]) -> None:
    check_composition(make_model(**settings).float(), sample_records(lengths=(4, 1100, 1, 9)), tolerance=1e-5)


@FEW
@given(records(), any_model)
def test_pads(subjects: Records, kind: str) -> None:
    """The seeds' padded contract: pads left, right and between, full of junk, change nothing."""
    model = make_model(**MODELS[kind])
    bare = plain(subjects)
    packed = pack(bare)
    expected, gradients = outputs_and_gradients(model, packed)
    for seed, junk in enumerate((0.0, NAN, 1e30, -1e30)):
        x = pad(bare, junk=junk, seed=seed)
        batch = VisitBatch.from_padded(
            x.codes,
            x.code_mask,
            x.ages,
            x.deltas,
            x.visit_mask,
            at_risk=x.at_risk,
            duration_days=x.duration_days,
            cause=x.cause,
        )
        batch = replace(batch, entry_days=packed.entry_days)
        if model.config.code_types:  # the padded contract has none
            batch = replace(batch, code_types=packed.code_types)
        logits = model(batch)
        same(logits, expected, 1e-12, f"logits beside {junk}")
        _, found = outputs_and_gradients(model, batch)
        for mine, other in zip(found, gradients, strict=True):
            same(mine, other, 1e-12, f"gradients beside {junk}")
        padded = batch.to_padded(logits)
        assert padded.shape[:2] == x.visit_mask.shape
        same(padded[x.visit_mask], expected, 1e-12, "to_padded")
        assert (padded[~x.visit_mask] == 0).all()


@FEW
@given(records(), st.sampled_from([name for name in MODELS if not MODELS[name].get("code_types")]))
def test_the_flat_contract_says_what_the_padded_one_says(subjects: Records, kind: str) -> None:
    """`from_flat` and `from_padded` give the same hazards where both can say the same: visits with codes, no gaps."""
    model = make_model(**MODELS[kind])
    said = [Subject(tuple(replace(v, delta_days=0.0) for v in s.visits if v.codes)) for s in plain(subjects)]
    x = pad(said)
    padded = VisitBatch.from_padded(x.codes, x.code_mask, x.ages, x.deltas, x.visit_mask)
    rng, length = random.Random(7), 3 + max(sum(len(v.codes) for v in s.visits) for s in said)
    codes, ids = (torch.full((len(said), length), 999) for _ in range(2))
    ages, mask = torch.full((len(said), length), NAN).double(), torch.zeros(len(said), length, dtype=torch.bool)
    for b, subject in enumerate(said):
        tokens = [(code, v, visit.age_years) for v, visit in enumerate(subject.visits) for code in visit.codes]
        for place, (code, v, age) in zip(sorted(rng.sample(range(length), len(tokens))), tokens, strict=True):
            codes[b, place], ids[b, place], ages[b, place], mask[b, place] = code, v, age, True
    flat = VisitBatch.from_flat(codes, ages, ids, mask)
    assert flat.padded_shape == padded.padded_shape
    same(flat.to_padded(model(flat)), padded.to_padded(model(padded)), 1e-12, "from_flat and from_padded")


@FEW
@given(records(max_subjects=2), any_model)
def test_causality(subjects: Records, kind: str) -> None:
    check_causality(make_model(**MODELS[kind]), subjects)


@pytest.mark.parametrize("kind", [*SETS, "flat", "flat sinusoidal"])
def test_gradient_to_the_future_is_exactly_zero(kind: str) -> None:
    settings = {**MODELS[kind], "max_visits": 512}
    check_future_gradient(make_model(**settings))
    check_future_gradient(make_model(**{**settings, "values": "none"}).float())


@FEW
@given(records(max_subjects=2), any_model)
def test_queries(subjects: Records, kind: str) -> None:
    check_queries(make_model(**MODELS[kind]), subjects)


@pytest.mark.parametrize("settings", [{"max_visits": 3}, {"architecture": "flat", "max_tokens": 9}], ids=str)
def test_queries_beside_bidirectional_attention(settings: dict[str, object]) -> None:
    check_queries(make_model(**settings, attention="bidirectional"), sample_records(lengths=(6, 0, 1)))


@pytest.mark.parametrize("settings", [{}, {"architecture": "flat"}], ids=str)
def test_a_query_sees_the_past(settings: dict[str, object]) -> None:
    check_query_sees_the_past(make_model(**settings))
    check_query_sees_the_past(make_model(**settings, attention="bidirectional"))


@FEW
@given(records(), any_model)
def test_empty(subjects: Records, kind: str) -> None:
    """An empty visit is the zero vector without a gradient; nothing is NaN; empty subjects change nothing."""
    model = make_model(**MODELS[kind])
    batch = pack(subjects)
    if isinstance(model, HierarchicalBEHRTForSurvival):
        u = model.visit_encoder(model.code_embedding(batch), batch)
        empty = batch.codes_per_visit == 0
        assert (u[empty] == 0).all()
        gradients = torch.autograd.grad(
            u[empty].sum(), tuple(model.parameters()), allow_unused=True, materialize_grads=True
        )
        assert all((g == 0).all() for g in gradients)
    logits, gradients = outputs_and_gradients(model, batch)
    assert logits.isfinite().all()
    assert all(g.isfinite().all() for g in gradients)
    with_empty = [s for subject in subjects for s in (Subject((), subject.static), subject, Subject())]
    for mine, other in zip(answers(model, with_empty)[1::3], answers(model, subjects), strict=True):
        same(mine, other, 1e-11, "empty subjects")


NEXT_TO_NOTHING: list[Records] = [[], [Subject()], [Subject((Visit(),))], [Subject((Visit(is_query=True),))]]


@every_model
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_next_to_nothing(kind: str, attention: str) -> None:
    model = make_model(**{**MODELS[kind], "attention": attention})
    for subjects in NEXT_TO_NOTHING:
        logits = model(pack(subjects))
        assert len(logits) == sum(len(s.visits) for s in subjects)
        assert logits.isfinite().all()
        logits.sum().backward()
        if attention == "causal":
            assert model.loss(pack(subjects)).isfinite()
