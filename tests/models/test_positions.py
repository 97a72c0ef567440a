"""Rotary places: distances in days and visits, counted by hand, and what attention can see through them."""

import pytest
import torch
from hypothesis import given, strategies as st

from ehrsequencing import ModelConfig, VisitBatch
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.models.positions import rotation


def batch_of(
    gaps: list[float], *, queries: list[bool] | None = None, subject_offsets: list[int] | None = None
) -> VisitBatch:
    n = len(gaps)
    return VisitBatch(
        codes=torch.arange(n) % 3 + 2,
        visit_offsets=torch.arange(n + 1),
        subject_offsets=torch.tensor(subject_offsets or [0, n]),
        age_years=torch.full((n,), float("nan")),
        delta_days=torch.tensor(gaps, dtype=torch.float64),
        is_query=torch.tensor(queries or [False] * n),
    )


@given(st.lists(st.floats(0, 3000), min_size=2, max_size=6), st.floats(0, 20_000), st.integers(0, 2**31))
def test_products_depend_on_differences_alone(gaps: list[float], later: float, seed: int) -> None:
    """All rows moved by the same number of days: not one product of a query and a key changes."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, len(gaps), 16, generator=generator, dtype=torch.float64)

    def products(first_gap: float) -> torch.Tensor:
        turn = rotation(batch_of([first_gap, *gaps[1:]]), head_dim=16, dtype=torch.float64)
        return turn(q, heads=1) @ turn(k, heads=1).T

    torch.testing.assert_close(products(gaps[0]), products(gaps[0] + later), rtol=0, atol=1e-8)


@pytest.mark.parametrize("rotary", [True, False])
def test_attention_sees_the_distance_of_two_visits(rotary: bool) -> None:
    """Without any embedding of time, two records that differ in a gap differ to a rotary model only."""
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=6,
        dim=16,
        heads=2,
        layers=1,
        position="none",
        age_bin_years=0,
        delta_bins="none",
        rotary=rotary,
        edges_days=(30.0,),
    )
    model = build_model(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        near, far = (model(batch_of([0, gap, 10])) for gap in (5, 200))
    assert torch.equal(near[0], far[0])  # the first visit knows nothing of what follows
    assert torch.allclose(near[2], far[2], atol=1e-6) != rotary
