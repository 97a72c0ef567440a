"""Packed equals padded: logits, loss and every gradient, to 1e-10 in float64, for every configuration."""

import random
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from helpers.model_checks import check_equals_reference
from helpers.models import ENCODERS, REACHES, Settings, make_model
from helpers.settings import examples
from helpers.strategies import VOCAB, Records, Subject, Visit, pack, records, sample_records

TIMELINES: dict[str, Settings] = {
    "causal": {},
    "bidirectional": {"attention": "bidirectional"},
}
HEADS = ("horizon", "visit")
POSITIONS = ("learned", "sinusoidal", "none")
# What else a model may be made of: either architecture, and the hierarchical one alone.
COMMON: dict[str, tuple[object, ...]] = {
    "age_bin_years": (5.0, 0.0, 7.0),
    "values": ("polynomial", "interpolate", "none"),
    "wide_head": (False, True),
    "table_dim": (0, 5),
    "code_types": (False, True),
    "max_visits": (512, 3),
    "code_effects": (False, True),
}
HIERARCHICAL: dict[str, tuple[object, ...]] = {
    "visit_mlp": (True, False),
    "code_position": (False, True),
    "query_follows_visit": (False, True),
    "delta": ({}, {"delta_bins": "none"}, {"delta_bins": "linear"}),
}
Combination = tuple[str, str, str, str]  # encoder (or reach), timeline (or direction), head, position
COMBINATIONS: list[Combination] = [*product(ENCODERS, TIMELINES, HEADS, POSITIONS)]
FLAT_COMBINATIONS: list[Combination] = [
    *product((f"flat {reach}" for reach in REACHES), ("causal", "bidirectional"), HEADS, POSITIONS)
]


def variant(combination: Combination, rng: random.Random) -> Settings:
    """Settings of one combination; what it leaves open is drawn."""
    encoder, timeline, head, position = combination
    drawn = {name: rng.choice(choices) for name, choices in COMMON.items()}
    if encoder.startswith("flat"):
        own: Settings = {"architecture": "flat", "max_tokens": int(encoder.split()[1]), "attention": timeline}
    else:
        drawn |= {name: rng.choice(choices) for name, choices in HIERARCHICAL.items()}
        delta = drawn.pop("delta")
        assert isinstance(delta, dict)
        own = {**ENCODERS[encoder], **TIMELINES[timeline], **delta}
    return {**drawn, **own, "head": head, "position": position}


# ---- every combination -----------------------------------------------------------------------------------------------


def check_combination(combination: Combination, subjects: Records, *, seed: int) -> None:
    model = make_model(seed=seed, **variant(combination, random.Random(seed)))
    check_equals_reference(model, subjects, junk_seed=seed)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records(), st.sampled_from(COMBINATIONS), st.integers(0, 10_000))
def test_packed_equals_padded(subjects: Records, combination: Combination, seed: int) -> None:
    check_combination(combination, subjects, seed=seed)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records(), st.sampled_from(FLAT_COMBINATIONS), st.integers(0, 10_000))
def test_flat_packed_equals_padded(subjects: Records, combination: Combination, seed: int) -> None:
    check_combination(combination, subjects, seed=seed)


EVERY = [*COMBINATIONS, *FLAT_COMBINATIONS]


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, id=" ".join(one), marks=[pytest.mark.slow] * (n % 4 > 0)) for n, one in enumerate(EVERY)],
)
def test_packed_equals_padded_on_the_sample(seed: int) -> None:
    """The full product, each with one draw of the rest; a quarter of it in `make test`."""
    check_combination(EVERY[seed], sample_records(seed, lengths=(4, 0, 1, 5)), seed=seed)


@pytest.mark.parametrize("head", ["horizon", "visit"])
@pytest.mark.parametrize(("dim", "heads"), [(4, 1), (6, 3), (7, 1)])
def test_other_widths(dim: int, heads: int, head: str) -> None:
    for own in (
        {"visit_encoder": "bottleneck"},
        {"visit_encoder": "transformer"},
        {"architecture": "flat", "max_tokens": 9},
    ):
        model = make_model(**own, dim=dim, heads=heads, head=head, position="sinusoidal")
        check_equals_reference(model, sample_records(dim, lengths=(4, 0, 1, 5)))


def test_a_vocabulary_with_too_many_kinds_to_mark() -> None:
    """10,000 codes at 128 places: distinct kinds are found by sorting."""
    model = make_model(vocab_size=10_000, code_position=True, dim=4)
    check_equals_reference(model, sample_records(lengths=(4, 0, 1, 5)))


# ---- longer than the window, the reach or the tables -----------------------------------------------------------------


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_packed_equals_padded_beyond_many_windows(attention: str) -> None:
    model = make_model(attention=attention, max_visits=4, layers=1)
    check_equals_reference(model, sample_records(lengths=(23, 4, 5, 13)))


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_flat_packed_equals_padded_beyond_many_reaches(attention: str, max_tokens: int) -> None:
    model = make_model(architecture="flat", attention=attention, max_tokens=max_tokens, layers=1)
    check_equals_reference(model, sample_records(max_tokens, lengths=(23, 4, 0, 13)))


def test_a_visit_longer_than_the_reach_is_wholly_seen_by_itself() -> None:
    codes = tuple(1 + i % (VOCAB - 1) for i in range(20))
    long = Visit(codes, (None,) * 20, delta_days=3.0)
    short = Visit((3, 4), (None, None), delta_days=3.0)
    rows = (short, long, short, Visit(codes, (None,) * 20, is_query=True), short)
    for attention in ("causal", "bidirectional"):
        check_equals_reference(make_model(architecture="flat", max_tokens=6, attention=attention), [Subject(rows)])


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_beyond_the_trained_lengths(position: str) -> None:
    """Learned tables saturate at their last row; the sinusoid goes on."""
    subjects = [Subject(tuple(Visit((1 + i % 5,), (None,), delta_days=float(i)) for i in range(9)))]
    hierarchical = make_model(position=position, max_visits=3)
    flat = make_model(architecture="flat", position=position, max_visits=3, max_tokens=4)
    for model in (hierarchical, flat):
        check_equals_reference(model, subjects)


@pytest.mark.parametrize("architecture", ["hierarchical", "flat"])
def test_the_512th_row_is_the_last(architecture: str) -> None:
    rows = tuple(Visit((1 + i % 5,), (None,)) for i in range(530))
    model = make_model(architecture=architecture, layers=1, delta_bins="log", max_visits=2000)
    tables = {n: p for n, p in model.named_parameters() if n.endswith(("position.table.weight", "visit.table.weight"))}
    assert {len(table) for table in tables.values()} == {512}
    (logits,) = (model(pack([Subject(rows)])).sum(),)
    for name, gradient in zip(tables, torch.autograd.grad(logits, list(tables.values())), strict=True):
        assert (gradient.abs().sum(1) > 0).all(), name


def test_a_code_beyond_the_128th_place_saturates() -> None:
    codes = tuple(1 + i % (VOCAB - 1) for i in range(140))
    model = make_model(code_position=True, layers=1)
    check_equals_reference(model, [Subject((Visit(codes, (None,) * 140), Visit((2,), (None,))))])
    last = Visit((*codes[:130], codes[135], *codes[131:135], codes[130], *codes[136:]), (None,) * 140)
    swapped, straight = (model(pack([Subject((v,))])) for v in (last, Visit(codes, (None,) * 140)))
    torch.testing.assert_close(swapped, straight, rtol=1e-12, atol=1e-12)  # both beyond: the same place


def test_the_top_gap_bin_opens_at_its_day() -> None:
    """Linear bins: every gap of a year or more is in the last bin, and a shorter one is not."""
    model = make_model(delta_bins="linear")
    rows = tuple(Visit(delta_days=days) for days in (0.0, 363.5, 364.0, 364.5, 365.0, 372.0, 9000.0))
    check_equals_reference(model, [Subject(rows)])
