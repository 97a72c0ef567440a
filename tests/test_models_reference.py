"""Packed equals padded: logits, loss and every gradient, to 1e-10 in float64, for every configuration."""

from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ehrsequencing.config import ModelConfig
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from reference.padded import reference_logits, reference_nll
from strategies import VOCAB, Records, pack, pad, records, sample_records

VARIANTS = {
    "visit_encoder": ("attention", "mean"),
    "visit_mlp": (True, False),
    "attention": ("causal", "bidirectional"),
    "head": ("horizon", "visit"),
    "position": ("learned", "none"),
    "age_bin_years": (5.0, 0.0),
    "delta_bins": ("log", "none"),
    "values": ("polynomial", "interpolate", "none"),
    "wide_head": (False, True),
    "max_visits": (512, 3),
}
EVERY_VARIANT = [dict(zip(VARIANTS, values, strict=True)) for values in product(*VARIANTS.values())]


def make_model(*, seed: int = 0, **settings: object) -> HierarchicalBEHRTForSurvival:
    """A small float64 model in evaluation mode; all weights are random, for a zero could hide an error."""
    horizon = settings.get("head", "horizon") == "horizon"
    grid = {"causes": 2, "edges_days": (10.0, 30.0, 365.25)} if horizon else {}
    config = ModelConfig.model_validate({"vocab_size": VOCAB, "dim": 8, "heads": 2, "layers": 2, **grid, **settings})
    model = HierarchicalBEHRTForSurvival(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
            if "norm.weight" in name or name.endswith("_scale"):
                parameter.add_(1.0)
        model.code_embedding.table.weight[0] = 0.0
    return model


def check_equals_reference(
    model: HierarchicalBEHRTForSurvival, subjects: Records, *, tolerance: float = 1e-10, junk_seed: int | None = 1
) -> None:
    """Logits, loss and gradients against the padded twin, whose pads hold NaN in random places."""
    visit_labels = model.config.head == "visit"
    batch = pack(subjects, visit_labels=visit_labels)
    padded = pad(subjects, seed=junk_seed, visit_labels=visit_labels)
    parameters = dict(model.named_parameters())
    expected = reference_logits(parameters, model.config, padded)
    counted = ~batch.is_query if visit_labels else torch.ones_like(batch.is_query)
    logits = model(batch)
    torch.testing.assert_close(logits[counted], expected[padded.visit_mask][counted], rtol=tolerance, atol=tolerance)
    if visit_labels:
        assert logits[batch.is_query].isnan().all()
    if model.config.attention == "bidirectional":  # no likelihood: compare gradients of an arbitrary function
        ours, theirs = logits[counted].sin().sum(), expected[padded.visit_mask][counted].sin().sum()
    else:
        ours = model.nll(batch).sum()
        theirs = sum(reference_nll(model.config, expected, padded), start=expected.sum() * 0)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    names, tensors = zip(*parameters.items(), strict=True)
    mine, others = (torch.autograd.grad(f, tensors, allow_unused=True, materialize_grads=True) for f in (ours, theirs))
    scale = max(1.0, *(float(gradient.abs().max()) for gradient in others))  # some sum to 0 from terms of this size
    for name, gradient, other in zip(names, mine, others, strict=True):
        if name == "code_embedding.table.weight":
            other[0] = 0.0  # [PAD] is not learned
        error = float((gradient - other).abs().max())
        assert error <= tolerance * scale, f"{name}: {error} beside {scale}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(subjects=records(), variant=st.sampled_from(EVERY_VARIANT), seed=st.integers(0, 3))
def test_packed_equals_padded(subjects: Records, variant: dict[str, object], seed: int) -> None:
    if variant["head"] == "visit":
        variant = {**variant, "causes": 1}
    check_equals_reference(make_model(seed=seed, **variant), subjects, junk_seed=seed)


@pytest.mark.parametrize("head", VARIANTS["head"])
@pytest.mark.parametrize("values", VARIANTS["values"])
@pytest.mark.parametrize("encoder", VARIANTS["visit_encoder"])
@pytest.mark.parametrize("max_visits", [1, 2, 3, 512])
def test_packed_equals_padded_on_the_sample(head: str, values: str, encoder: str, max_visits: int) -> None:
    model = make_model(head=head, values=values, visit_encoder=encoder, max_visits=max_visits, wide_head=True)
    check_equals_reference(model, sample_records(seed=max_visits))


@pytest.mark.parametrize("attention", VARIANTS["attention"])
def test_packed_equals_padded_beyond_many_windows(attention: str) -> None:
    model = make_model(attention=attention, max_visits=4, layers=1)
    check_equals_reference(model, sample_records(lengths=(23, 4, 5, 13)))


@pytest.mark.slow
@pytest.mark.parametrize("encoder", VARIANTS["visit_encoder"])
@pytest.mark.parametrize("values", VARIANTS["values"])
def test_packed_equals_padded_in_every_variant(encoder: str, values: str) -> None:
    for seed, variant in enumerate(EVERY_VARIANT):
        if variant["visit_encoder"] == encoder and variant["values"] == values:
            check_equals_reference(make_model(seed=seed, **variant), sample_records(seed, lengths=(4, 0, 1, 5)))
