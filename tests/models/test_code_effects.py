"""Additive effects of codes: what one record adds, by hand, and what must not move them."""

import itertools
import math

import pytest
import torch

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models.code_effects import STEP, CodeEffects, running_sums


def two_subjects(**others: torch.Tensor) -> VisitBatch:
    """A visit with code 3, a query after 90 days, a visit 180 days after the first with code 3; another's code 3."""
    return VisitBatch(
        codes=torch.tensor([3, 5, 3, 3]),
        visit_offsets=torch.tensor([0, 1, 2, 3, 4]),
        subject_offsets=torch.tensor([0, 3, 4]),
        age_years=torch.full((4,), 50.0),
        delta_days=torch.tensor([0.0, 90.0, 180.0, 0.0]),
        is_query=torch.tensor([False, True, False, False]),
        values=torch.tensor([[0.0, 2.0], [0.0, 9.0], [0.0, 0.5], [0.0, -1.0]]),
        **others,
    )


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        ("ever", [1.0, 1.0, 1.0, 1.0]),
        ("log2 of how often", [0.0, 0.0, 1.0, 0.0]),
        ("last number", [2.0, 2.0, 0.5, -1.0]),
        ("recent", [1.0, 2**-0.5, 1.5, 1.0]),
    ],
)
def test_each_fact_by_hand(fact: str, expected: list[float]) -> None:
    config = ModelConfig(vocab_size=9, size="small", edges_days=(10.0, 30.0))
    effects = CodeEffects(config)
    number = ["ever", "log2 of how often", "last number", "recent"].index(fact)
    with torch.no_grad():
        effects.effect.view(9, 4, 1, 3)[3, number, 0, 0] = 1 / STEP  # the constant curve
    logits = effects.over_time(effects(two_subjects()))
    assert logits.shape == (4, 1, 3)
    torch.testing.assert_close(logits, torch.tensor(expected).view(4, 1, 1).expand(4, 1, 3))


def test_numbers_of_a_visit_are_a_set() -> None:
    """Code 3 twice in a visit, with a number each, and once without: their mean, in whatever order."""
    effects = CodeEffects(ModelConfig(vocab_size=9, size="small", edges_days=(10.0, 30.0)))
    with torch.no_grad():
        effects.effect.view(9, 4, 1, 3)[3, 2, 0, 0] = 1 / STEP
    for numbers in itertools.permutations([2.0, 5.0, math.nan]):
        batch = VisitBatch(
            codes=torch.full((4,), 3),
            visit_offsets=torch.tensor([0, 1, 4]),
            subject_offsets=torch.tensor([0, 2]),
            age_years=torch.full((2,), 50.0),
            delta_days=torch.tensor([0.0, 9.0]),
            is_query=torch.tensor([False, False]),
            values=torch.tensor([[one, one] for one in (-1.0, *numbers)]),
        )
        found = effects.over_time(effects(batch))[:, 0, 0]
        torch.testing.assert_close(found, torch.tensor([-1.0, 3.5]))


def test_what_a_query_holds_is_no_record() -> None:
    effects = CodeEffects(ModelConfig(vocab_size=9, size="small"))
    with torch.no_grad():
        effects.effect[5] = 1.0  # the query's own code
    assert not effects(two_subjects()).any()


def test_sums_of_a_long_record_are_those_of_a_loop() -> None:
    """The doubled sums reach over a record that is no power of two long."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([37, 0, 1, 5])
    n = int(counts.sum())
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    batch = VisitBatch(
        codes=torch.zeros(0, dtype=torch.int64),
        visit_offsets=torch.zeros(n + 1, dtype=torch.int64),
        subject_offsets=offsets,
        age_years=torch.full((n,), 50.0),
        delta_days=200 * torch.rand(n, generator=generator),
        is_query=torch.rand(n, generator=generator) < 0.3,
    )
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    found = running_sums(x, batch, torch.tensor([math.inf, 180.0], dtype=torch.float64))
    expected = torch.zeros_like(x)
    for start, stop in itertools.pairwise(offsets):
        now, days = 0.0, []
        for row in range(int(start), int(stop)):
            days.append(now + float(batch.delta_days[row]))
            now = now if batch.is_query[row] else days[-1]
            for place, day in enumerate(days):
                share = torch.tensor([1.0, 2.0 ** (-(days[-1] - day) / 180)], dtype=torch.float64)
                expected[row] += x[int(start) + place] * share
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
