"""Effects over time: smooth where the data say nothing else, and any shape where they do."""

import math

import pytest
import torch
from torch import Tensor

from ehrsequencing.config import ModelConfig, TrainingConfig
from ehrsequencing.models.hazards import HazardsOverTime, SurvivalHead
from ehrsequencing.training.loop import make_optimizer

BINS = 20
PLACE = torch.arange(BINS) / (BINS - 1)
HIGH = math.log(3.0)
# log hazard ratio of the second of two groups, bin by bin
WORLDS = {
    "by the clock": 2.4 * (torch.arange(BINS) % 2) - 1.2,
    "an operation: harm, then gain": torch.where(PLACE < 0.1, math.log(4.0), -math.log(2.0)),
    "a late effect": torch.where(PLACE < 0.6, 0.0, HIGH),
    "a cure": torch.where(PLACE < 0.5, 0.0, -math.log(50.0)),
}


def lost(ratio: Tensor, *, free: bool = True) -> float:
    """NLL above the truth after a training on infinitely many people of both groups."""
    torch.manual_seed(0)
    true = (math.log(0.1) + torch.stack([-ratio / 2, ratio / 2])).exp()  # (groups, bins), a day in each bin
    alive = torch.cat([torch.ones(2, 1), torch.exp(-true.cumsum(1))], 1)
    days = (alive[:, :-1] - alive[:, 1:]) / true
    edges = tuple(float(k) for k in range(1, BINS))
    head, z = SurvivalHead(ModelConfig(vocab_size=2, size="small", edges_days=edges)), torch.randn(2, 64)
    head.set_bias(((true * days).sum(0) / days.sum(0)).unsqueeze(0))
    assert isinstance(head.W2, HazardsOverTime)
    head.W2.weight.requires_grad_(free)
    optimizer = make_optimizer(head, TrainingConfig())

    def nll(log_hazard: Tensor) -> Tensor:
        return ((log_hazard.exp() - true * log_hazard) * days).sum(1).mean()

    for _ in range(600):
        optimizer.zero_grad()
        nll(head(z)[:, 0]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(nll(head(z)[:, 0]) - nll(true.log()))


@pytest.mark.parametrize("world", WORLDS)
def test_free_bins_find_what_no_curve_can_be(world: str) -> None:
    assert lost(WORLDS[world]) <= 0.002
    assert lost(WORLDS[world], free=False) > 0.004  # the mutant: three curves alone


def test_what_one_bin_says_moves_all_bins_until_they_object() -> None:
    """One step on an event in one bin; free bins alone would leave the others where they are."""
    for curves in (True, False):
        layer = HazardsOverTime(4, 1, BINS)
        layer.curves.requires_grad_(curves)
        optimizer = make_optimizer(layer, TrainingConfig())
        layer(torch.ones(1, 4))[0, BINS // 2].neg().backward()
        optimizer.step()
        moved = layer.effects().detach().abs().sum(1) > 1e-6
        assert int(moved.sum()) == (BINS if curves else 1)


def test_a_stretched_layer_has_the_same_answers_times_the_slope() -> None:
    layer, slope = HazardsOverTime(6, 2, 5), torch.rand(2, 5)
    for weights in layer.parameters():
        torch.nn.init.normal_(weights)
    x = torch.randn(7, 6)
    wanted = (layer(x) - layer.bias) * slope.flatten() + layer.bias
    layer.stretch(slope)
    torch.testing.assert_close(layer(x), wanted)
    assert not layer.curves.any()  # no curve of time is left that a slope of each bin could bend
