"""The discrete-time loss on padded visits: against the packed loss, at extremes, and with labels that cannot be."""

import math

import pytest
import torch

from ehrsequencing.models.hazards import visit_nll
from ehrsequencing.nn import DiscreteTimeSurvivalLoss

LOSS, NAN = DiscreteTimeSurvivalLoss(), float("nan")
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.bool)


def test_it_is_the_packed_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    last, event = torch.tensor([2, 0, 0]), torch.tensor([1, 1, 0])
    visit = torch.arange(3)
    at_risk = (MASK & (visit <= last[:, None])).flatten()
    cause = ((visit == last[:, None]) * event[:, None]).flatten()
    packed = visit_nll(logits.flatten(), at_risk, cause=cause, subject_offsets=torch.tensor([0, 3, 6, 9]))
    torch.testing.assert_close(LOSS(logits.sigmoid(), last, event, MASK), packed.sum() / 3)


def test_the_gradient_is_that_of_the_loss() -> None:
    hazards = torch.tensor([[0.2, 0.5, 0.9], [0.1, 0.3, 0.4]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 7]), torch.tensor([1, 0]), MASK[:2]
    assert torch.autograd.gradcheck(lambda h: LOSS(h, *labels), (hazards,))


@pytest.mark.parametrize("beyond", [1, 2, 3, 50])
def test_who_is_censored_at_a_padded_visit_survived_every_real_one(beyond: int) -> None:
    hazards = torch.tensor([[0.5, 0.9, 0.9]])
    loss = LOSS(hazards, torch.tensor([beyond]), torch.tensor([0]), MASK[2:])
    assert float(loss) == pytest.approx(math.log(2))
    assert float(LOSS(hazards, torch.tensor([0]), torch.tensor([0]), MASK[2:])) == 0


@pytest.mark.parametrize("at", [-1, 2, 3, 9])
def test_an_event_that_is_on_no_real_visit_is_refused(at: int) -> None:
    hazards = torch.full((2, 3), 0.5)
    with pytest.raises(ValueError, match="an event is on a visit that is not there"):
        LOSS(hazards, torch.tensor([1, at]), torch.tensor([0, 1]), MASK[:2])


def test_pads_may_be_nan() -> None:
    hazards = torch.tensor([[0.2, 0.5, 0.9], [0.1, 0.3, NAN]], requires_grad=True)
    LOSS(hazards, torch.tensor([1, 5]), torch.tensor([1, 0]), MASK[:2]).backward()
    assert hazards.grad is not None
    expected = torch.tensor([[1 / 0.8, -1 / 0.5, 0], [1 / 0.9, 1 / 0.7, 0]]) / 2
    torch.testing.assert_close(hazards.grad, expected)


@pytest.mark.parametrize("hazard", [0.0, 1e-30, 1e-9, 1 - 1e-9, 1.0])
@pytest.mark.parametrize("event", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_an_extreme_hazard_still_learns(hazard: float, event: int, dtype: torch.dtype) -> None:
    h = torch.full((1, 3), hazard, dtype=dtype, requires_grad=True)
    loss = LOSS(h, torch.tensor([2 if event else 3]), torch.tensor([event]), MASK[:1])
    loss.backward()
    assert h.grad is not None
    assert bool(loss.isfinite())
    assert bool(h.grad.isfinite().all())
    assert bool((h.grad[0, :2] > 0).all())  # a smaller hazard fits survival better
    assert bool((h.grad[0, 2] < 0) == bool(event))


def test_a_tiny_hazard_moves_its_logit() -> None:
    logit = torch.full((1, 3), math.log(1e-9), requires_grad=True)
    LOSS(logit.sigmoid(), torch.tensor([2]), torch.tensor([1]), MASK[:1]).backward()
    assert logit.grad is not None
    assert float(logit.grad[0, 2]) == pytest.approx(-1, abs=1e-5)


def test_other_shapes_and_labels_are_refused() -> None:
    hazards, one = torch.full((1, 3), 0.5), torch.tensor([1])
    for last, event, mask in ((one[:, None], one, MASK[:1]), (one, one, MASK), (torch.ones(2), one, MASK[:1])):
        with pytest.raises(ValueError, match="must have the shape"):
            LOSS(hazards, last, event, mask)
    with pytest.raises(ValueError, match="0 or 1"):
        LOSS(hazards, one, torch.tensor([2]), MASK[:1])
