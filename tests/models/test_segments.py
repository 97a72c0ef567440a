"""What must not move the model's output, and what must."""

import pytest
from hypothesis import given, strategies as st

from ehrsequencing.models.ensemble import Ensemble
from helpers.model_checks import (
    FEW,
    any_model,
    check_causality,
    check_code_order,
    check_code_order_counts,
    check_composition,
    check_empty,
    check_flat_contract,
    check_future_gradient,
    check_pads,
    check_prefix,
    check_queries,
    check_query_sees_the_past,
    check_rows,
    every_model,
)
from helpers.models import ENCODERS, MODELS, make_model
from helpers.strategies import Records, Subject, Visit, pack, records, sample_records

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
    check_pads(make_model(**MODELS[kind]), subjects)


@FEW
@given(records(), st.sampled_from([name for name in MODELS if not MODELS[name].get("code_types")]))
def test_the_flat_contract_says_what_the_padded_one_says(subjects: Records, kind: str) -> None:
    check_flat_contract(make_model(**MODELS[kind]), subjects)


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
def test_prefix(subjects: Records, kind: str) -> None:
    check_prefix(make_model(**MODELS[kind]), subjects)


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
    check_empty(make_model(**MODELS[kind]), subjects)


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
