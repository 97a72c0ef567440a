"""The engine's bench: the seeds' padded designs compute the packed models' numbers, and every row is measured."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.speed import engine as bench
from bench.speed._seeds import PaddedFlat, PaddedHierarchical, PaddedTokens, PaddedVisits, load_packed
from ehrsequencing import ModelConfig
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import build_model

SEEDS: dict[str, Any] = {
    "dim": 16,
    "heads": 2,
    "layers": 2,
    "dropout": 0.0,
    "history_dropout": 0.0,
    "head": "visit",
    "values": "none",
}
HIERARCHICAL: dict[str, Any] = {**SEEDS, "visit_mlp": False, "delta_bins": "linear", "rotary": False}


@pytest.fixture(params=["dense", "ragged truncated", "ragged"])
def drawn(request: pytest.FixtureRequest) -> PaddedVisits:
    small = bench.replace(bench.SHAPES[request.param], most_visits=12, most_codes=7)
    visits: PaddedVisits = bench.padded(small, 5, seed=0)
    return visits


def loaded(theirs: nn.Module, ours: SurvivalModel) -> None:
    """Weights that make every part count (the packed models start near zero), in both."""
    torch.manual_seed(1)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    load_packed(theirs, ours.state_dict())


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("places", [False, True])
def test_padded_hierarchical_is_the_packed_model(drawn: PaddedVisits, places: bool) -> None:
    config = ModelConfig.model_validate({**HIERARCHICAL, "vocab_size": bench.VOCABULARY, "code_position": places})
    ours, theirs, batch = build_model(config), PaddedHierarchical(config), bench.packed(drawn)
    loaded(theirs, ours)
    real = drawn.visit_mask
    torch.testing.assert_close(theirs(drawn)[real], batch.to_padded(ours(batch))[real], rtol=1e-5, atol=1e-5)
    assert float(ours(batch).detach().std()) > 0.01, "all alike: they would agree whatever is computed"
    torch.testing.assert_close(theirs.loss(drawn), ours.loss(batch), rtol=1e-5, atol=1e-5)
    expected = gradients(ours.loss(batch), ours)
    for name, gradient in gradients(theirs.loss(drawn), theirs).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_padded_flat_is_the_packed_flat_model(drawn: PaddedVisits, attention: str) -> None:
    settings = {**SEEDS, "vocab_size": bench.VOCABULARY, "architecture": "flat", "attention": attention}
    config = ModelConfig.model_validate(settings)
    ours, theirs, batch = build_model(config), PaddedFlat(config), bench.packed(drawn)
    loaded(theirs, ours)
    real, tokens = drawn.visit_mask, PaddedTokens.of(drawn)
    torch.testing.assert_close(theirs(tokens)[real], batch.to_padded(ours(batch))[real], rtol=1e-5, atol=1e-5)
    if attention == "causal":  # the packed model refuses to fit hazards that see the future
        torch.testing.assert_close(theirs.loss(tokens), ours.loss(batch), rtol=1e-5, atol=1e-5)


def test_a_wrong_reference_would_be_seen() -> None:
    drawn = bench.padded(bench.replace(bench.SHAPES["ragged"], most_visits=12, most_codes=7), 5, seed=0)
    config = ModelConfig.model_validate({**HIERARCHICAL, "vocab_size": bench.VOCABULARY})
    ours, theirs = build_model(config), PaddedHierarchical(config)
    loaded(theirs, ours)
    before = theirs(drawn)
    unmasked = bench.replace(drawn, code_mask=torch.ones_like(drawn.code_mask))
    assert not torch.allclose(theirs(unmasked), before, atol=1e-3)
    with pytest.raises(ValueError, match="not the weights"):
        load_packed(PaddedFlat(ModelConfig.model_validate({**SEEDS, "architecture": "flat"})), ours.state_dict())
