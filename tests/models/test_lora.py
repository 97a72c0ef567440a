"""LoRA: only adapters learn, a step changes the answers, and merging keeps them."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ehrsequencing.config import ModelConfig
from ehrsequencing.models import lora
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.models.transformer import TransformerLayer
from ehrsequencing.models.visit_encoder import VisitMLP
from helpers.strategies import VOCAB, pack, sample_records

ARCHITECTURES: list[dict[str, Any]] = [{"architecture": "hierarchical"}, {"architecture": "flat"}]
BATCH = pack(sample_records())


def adapted(chosen: dict[str, Any], *, rank: int = 2) -> tuple[SurvivalModel, SurvivalModel]:
    """A random model, and a copy of it with adapters."""
    torch.manual_seed(1)
    sizes = {"vocab_size": VOCAB, "dim": 8, "heads": 2, "layers": 2, "dropout": 0.0, "history_dropout": 0.0}
    plain = build_model(ModelConfig.model_validate({**sizes, **chosen})).double().eval()
    model = copy.deepcopy(plain)
    targets: dict[str, int] = {}
    for block, module in model.named_modules():
        if isinstance(module, TransformerLayer | VisitMLP):
            targets |= {f"{block}.{name}": parts for name, parts in lora.targets_of(module).items()}
    lora.add_adapters(model, targets, rank=rank)
    return plain, model


def answers(model: nn.Module) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(BATCH)
    return logits


def step(model: nn.Module) -> None:
    """Two steps: the first one moves B alone, since B is zero at the start and A's gradient with it."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(BATCH).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("chosen", ARCHITECTURES)
def test_gradients_flow_to_adapters_only(chosen: dict[str, Any]) -> None:
    plain, model = adapted(chosen)
    assert torch.equal(answers(plain), answers(model))  # nothing changed yet
    step(model)
    moved = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    assert moved == {name for name, _ in model.named_parameters() if name.endswith((".A", ".B"))}
    kinds = {name.split(".")[-2] for name in moved}
    assert kinds == {"qkv", "out", "W1", "W2"}
    frozen = {name.replace(".base.", "."): p for name, p in model.named_parameters() if name not in moved}
    assert all(torch.equal(p, dict(plain.named_parameters())[name]) for name, p in frozen.items())
    assert float((answers(plain) - answers(model)).abs().max()) > 1e-4  # a LoRA that changes nothing is none


@pytest.mark.parametrize("chosen", ARCHITECTURES)
def test_merged_models_answer_alike(chosen: dict[str, Any]) -> None:
    plain, model = adapted(chosen)
    step(model)
    expected = answers(model)
    names = lora.merge(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(answers(model), expected, rtol=0, atol=1e-6)
    assert all(p.requires_grad for name in names for p in model.get_submodule(name).parameters())


def test_q_k_and_v_have_updates_of_their_own() -> None:
    torch.manual_seed(0)
    layer = lora.LoRALinear(nn.Linear(6, 18).double(), rank=2, parts=3)
    with torch.no_grad():
        layer.B.normal_()
    x = torch.randn(5, 6, dtype=torch.float64)
    parts = [x @ layer.A[p].T @ layer.B[p].T for p in range(3)]  # the formula, matrix by matrix
    torch.testing.assert_close(layer(x), layer.base(x) + torch.cat(parts, 1))
    assert [int(torch.linalg.matrix_rank(part)) for part in layer.update.chunk(3)] == [2, 2, 2]


def test_adapters_that_do_not_fit_are_refused() -> None:
    other = build_model(ModelConfig(vocab_size=VOCAB, dim=16, heads=2, layers=2))
    with pytest.raises(ValueError, match="no linear layer"):
        lora.add_adapters(other, {"head.norm": 1}, rank=2)
    with pytest.raises(ValueError, match="does not fit a layer"):
        lora.LoRALinear(nn.Linear(4, 4), rank=5)
