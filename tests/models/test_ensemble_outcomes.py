"""Outcomes of an ensemble: the likelihood of the mean hazards against a dense reference, states, and what fails."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ehrsequencing.config import ModelConfig
from ehrsequencing.models.ensemble import Ensemble, MeanOutcomes
from ehrsequencing.models.outcomes import OutcomeHead, OutcomeLabels
from reference.outcomes import dense_outcomes_nll

EDGES, CODES, MEMBERS, DIM = (5.0, 30.0, 100.0), 5, 3, 8


def ensemble(seed: int) -> Ensemble:
    """Members that differ, with outcomes."""
    torch.manual_seed(seed)
    model = (
        Ensemble(
            ModelConfig(
                vocab_size=9,
                dim=DIM,
                heads=2,
                layers=1,
                members=MEMBERS,
                outcomes=CODES,
                edges_days=EDGES,
                causes=2,
                wide_head=True,
            )
        )
        .double()
        .eval()
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        for member in model.members:
            head = member.outcomes
            assert isinstance(head, OutcomeHead)
            head.bias.sub_(4.0)
    return model


def random_rows(seed: int, rows: int = 6) -> tuple[Tensor, Tensor, Tensor, dict[tuple[int, int], float]]:
    """States (N, M d), entries, stops, and listed pairs: an event, also at an edge, or not at risk."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, MEMBERS * DIM, generator=g, dtype=torch.float64)
    stop = torch.rand(rows, generator=g, dtype=torch.float64) * 150 + 6
    entry = 3.0 * (torch.rand(rows, generator=g) < 0.5).double()
    listed = {}
    for n in range(rows):
        for c in range(CODES):
            kind, where = torch.rand(2, generator=g).tolist()
            if kind < 0.6:
                at = float(entry[n] + (stop[n] - entry[n]) * min(1.0, 0.01 + 1.2 * where))
                listed[n, c] = 0.0 if kind < 0.2 else 5.0 if kind < 0.3 else at
    return z, entry, stop, listed


def labels_of(listed: dict[tuple[int, int], float]) -> OutcomeLabels:
    pairs = sorted(listed)
    rows, codes = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    return OutcomeLabels(rows, codes, torch.tensor([listed[pair] for pair in pairs], dtype=torch.float64))


def mean_of_likelihoods(mean: MeanOutcomes, z: Tensor, **about: Tensor | OutcomeLabels) -> Tensor:
    """Broken: the members' mean NLL is not the NLL of their mean."""
    heads = [member.outcomes for member in mean.members]
    nll = [head.nll(own, **about) for head, own in zip(heads, z.chunk(MEMBERS, 1), strict=True)]
    return torch.stack(nll).mean(0)


def agree(nll: Callable[..., Tensor], seed: int) -> None:
    model = ensemble(seed)
    z, entry, stop, listed = random_rows(seed)
    assert model.outcomes is not None
    with torch.no_grad():
        found = nll(model.outcomes, z, stop_days=stop, entry_days=entry, labels=labels_of(listed))
        heads = [member.outcomes for member in model.members]
        hazards = [head.log_hazards(own).exp() for head, own in zip(heads, z.chunk(MEMBERS, 1), strict=True)]
    expected = dense_outcomes_nll(torch.stack(hazards).mean(0).log(), EDGES, stop.tolist(), entry.tolist(), listed)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_likelihood_is_that_of_the_mean_hazards(seed: int) -> None:
    agree(MeanOutcomes.nll, seed)


def test_the_mean_of_the_likelihoods_would_be_seen() -> None:
    with pytest.raises(AssertionError):
        agree(mean_of_likelihoods, 3)
