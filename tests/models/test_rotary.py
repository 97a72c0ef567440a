"""Rotary places: distances in days and visits, counted by hand, and what attention can see through them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing import ModelConfig, VisitBatch
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.models.positions import days_since_first, rotation


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


def test_days_are_counted_by_hand() -> None:
    """Subject 1: visits at 0, 10, a query 5 days later, a visit at 40. No visits. Subject 3 begins anew, at a query."""
    batch = batch_of(
        [0, 10, 5, 30, 0, 7], queries=[False, False, True, False, True, False], subject_offsets=[0, 4, 4, 6]
    )
    assert days_since_first(batch).tolist() == [0, 10, 15, 40, 0, 7]


def test_each_half_of_the_pairs_has_its_own_clock() -> None:
    """Width 9: two pairs of days (60 and 7305), two of visits (6 and 200), and one dimension that never turns."""
    batch = batch_of([0, 60, 15])
    turn = rotation(batch, head_dim=9, dtype=torch.float64)
    expected = torch.tensor([[0.0, 0, 0, 0], [1, 60 / 7305, 1 / 6, 1 / 200], [1.25, 75 / 7305, 2 / 6, 2 / 200]])
    angles = 2 * torch.pi * expected.double()
    torch.testing.assert_close(turn.cos[:, 0], angles.cos())
    torch.testing.assert_close(turn.sin[:, 0], angles.sin())
    x = torch.randn(3, 18, dtype=torch.float64)
    turned = turn(x, heads=2)
    torch.testing.assert_close(turned[:, [8, 17]], x[:, [8, 17]])
    torch.testing.assert_close(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=1), x.norm(dim=1))  # turning changes no length
    a, b = x[1, 2], x[1, 6]  # the third pair of the first head, at the second visit
    torch.testing.assert_close(turned[1, 2], a * angles[1, 2].cos() - b * angles[1, 2].sin())


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
        vocab_size=6, dim=16, heads=2, layers=1, position="none", age_bin_years=0, delta_bins="none", rotary=rotary,
        edges_days=(30.0,),
    )  # fmt: skip
    model = build_model(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        near, far = (model(batch_of([0, gap, 10])) for gap in (5, 200))
    assert torch.equal(near[0], far[0])  # the first visit knows nothing of what follows
    assert torch.allclose(near[2], far[2], atol=1e-6) != rotary
