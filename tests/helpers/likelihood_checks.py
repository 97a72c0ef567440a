"""Checks of likelihoods and risks, by enumeration, integration and definition."""

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ehrsequencing.models.hazards import cumulative_incidence, horizon_nll, visit_nll

EDGES = (10.0, 30.0, 365.25)


def log_hazards(seed: int, *, rows: int = 1, causes: int = 2, bins: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, causes, bins, generator=generator, dtype=torch.float64) * 1.5 - 5


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def subject_nll(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
    """(S,) the visit head's NLL of each subject."""
    terms = visit_nll(logits, at_risk, cause=cause, subject_offsets=subject_offsets)
    return torch.segment_reduce(terms, "sum", offsets=subject_offsets)


def check_visit_enumerated(seed: int) -> None:
    """Every possible history of one subject: the probabilities are those of the formula and sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    visits = 5
    logits = torch.randn(visits, generator=generator, dtype=torch.float64) * 2
    hazards = [1 / (1 + math.exp(-float(x))) for x in logits]
    offsets = torch.tensor([0, visits])
    total = 0.0
    for last in range(visits):
        at_risk = torch.arange(visits) <= last
        survived = math.prod(1 - h for h in hazards[:last])
        for event in (0, 1):
            cause = torch.zeros(visits, dtype=torch.int64)
            cause[last] = event
            nll = float(subject_nll(logits, at_risk, cause=cause, subject_offsets=offsets))
            expected = survived * (hazards[last] if event else 1.0)
            assert abs(nll + math.log(expected)) < 1e-8, (last, event)
            total += expected if event else 0.0
    total += survived * (1 - hazards[-1])
    assert abs(total - 1) < 1e-12


def check_horizon_integrates(seed: int, start: float, stop: float) -> None:
    """Every possible outcome: ∫ exp(−NLL) over event times, plus survival, is 1; per cause it is the incidence."""
    logits = log_hazards(seed)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    cuts = sorted({start, stop, *(edge for edge in EDGES if start < edge < stop)})
    pieces = max(1, int(4 * float(logits.exp().sum(1).max()) * (stop - start)))
    times, lengths = [], []
    for low, high in pairwise(cuts):
        for a, b in pairwise(np.linspace(low, high, pieces + 1)):
            times += [*(a + (b - a) * (nodes + 1) / 2)]
            lengths += [*(weights * (b - a) / 2)]
    duration = column(*times)
    everywhere = logits.expand(len(times), -1, -1)
    entry = torch.full_like(duration, start)
    incidence = cumulative_incidence(logits, EDGES, horizons_days=[stop], start_days=start)[0, :, 0]
    for cause in (1, 2):
        nll = horizon_nll(
            everywhere, EDGES, duration_days=duration, cause=torch.full((len(times),), cause), entry_days=entry
        )
        assert abs(float(((-nll).exp() * column(*lengths)).sum()) - float(incidence[cause - 1])) < 1e-8, cause
    censored = horizon_nll(logits, EDGES, duration_days=column(stop), cause=torch.tensor([0]), entry_days=column(start))
    assert abs(float(incidence.sum() + (-censored).exp()) - 1) < 1e-12


def survival(logits: Tensor, days: float) -> Tensor:
    edges = [0.0, *EDGES, math.inf]
    overlap = column(*(max(0.0, min(days, high) - low) for low, high in pairwise(edges)))
    return (-(logits.exp().sum(1) * overlap).sum(1)).exp()


def check_risk(seed: int) -> None:
    """S + Σ F = 1, S never rises, F never falls, and conditioning is the quotient of its definition."""
    logits = log_hazards(seed, rows=6)
    horizons = [1.0, 10.0, 20.0, 30.0, 100.0, 365.25, 3000.0]
    risk = cumulative_incidence(logits, EDGES, horizons_days=horizons)
    assert risk.shape == (6, 2, 7)
    assert (risk >= 0).all()
    assert (risk.diff(dim=2) >= 0).all()
    for h, days in enumerate(horizons):
        torch.testing.assert_close(risk[:, :, h].sum(1) + survival(logits, days), torch.ones(6).double())
    start = 15.0
    at_start = cumulative_incidence(logits, EDGES, horizons_days=[start])
    given_start = cumulative_incidence(logits, EDGES, horizons_days=horizons, start_days=start)
    # Compared as F(t | s) · S(s): dividing by a tiny S(s) would blow up the rounding of the difference.
    gained = given_start * survival(logits, start).view(-1, 1, 1)
    torch.testing.assert_close(gained, (risk - at_start).clamp(min=0), rtol=1e-9, atol=1e-13)
    assert (given_start[:, :, :2] == 0).all()  # horizons before the start
    starts = column(0.0, 1.0, 15.0, 15.0, 31.0, 400.0)
    each = cumulative_incidence(logits, EDGES, horizons_days=horizons, start_days=starts)
    for n in range(6):
        alone = cumulative_incidence(logits[n : n + 1], EDGES, horizons_days=horizons, start_days=float(starts[n]))
        torch.testing.assert_close(each[n : n + 1], alone, rtol=1e-12, atol=0)


def check_extremes(size: float, dtype: torch.dtype) -> None:
    """Finite losses, and gradients that point the right way wherever the loss is not already at its floor."""
    for sign in (-1.0, 1.0):
        eta = torch.full((2,), sign * size, dtype=dtype, requires_grad=True)
        for event in (0, 1):
            nll = subject_nll(
                eta,
                torch.ones(2, dtype=torch.bool),
                cause=torch.tensor([0, event]),
                subject_offsets=torch.tensor([0, 2]),
            )
            (gradient,) = torch.autograd.grad(nll.sum(), eta)
            assert nll.dtype == torch.float32
            assert nll.isfinite().all()
            assert gradient.isfinite().all()
            assert gradient[0] > 0 if sign > 0 else gradient[0] >= 0  # survival wants the hazard down
            assert (gradient[1] < 0 if sign < 0 else gradient[1] <= 0) if event else gradient[1] == 0
        logits = torch.full((3, 2, 4), sign * size, dtype=dtype, requires_grad=True)
        labels = {"duration_days": torch.tensor([50.0, 50.0, 400.0]), "cause": torch.tensor([0, 1, 2])}
        nll = horizon_nll(logits, EDGES, **labels)
        (gradient,) = torch.autograd.grad(nll.sum(), logits)
        assert nll.isfinite().all()
        assert gradient.isfinite().all()
        assert (gradient[0] >= 0).all()
        if sign > 0:  # every exposed bin of every cause wants down, the event's own bin too
            assert (gradient[0, :, :3] > 0).all()
            assert gradient[1, 0, 2] > 0
        else:  # no exposure counts, the event wants its own bin up
            assert gradient[1, 0, 2] < 0
            assert gradient[2, 1, 3] < 0
        risk = cumulative_incidence(logits, EDGES, horizons_days=[5.0, 365.0, 4000.0])
        assert risk.isfinite().all()
        assert ((risk >= 0) & (risk <= 1)).all()
        (gradient,) = torch.autograd.grad(risk.sum(), logits)
        assert gradient.isfinite().all()


def check_late_hazard_is_kept_apart(late: float) -> None:
    """A huge hazard in a late bin must not wipe out the survival of the bins before it."""
    logits = torch.log(column(0.05, 1e-9, 1e-9, 1e-9)).view(1, 1, 4).clone()
    logits[0, 0, 3] = late
    risk = cumulative_incidence(logits, EDGES, horizons_days=[10.0, 1000.0])
    torch.testing.assert_close(risk[0, 0], column(1 - math.exp(-0.5), 1.0), rtol=1e-7, atol=0)
    logits = torch.full((1, 2, 4), -100.0, dtype=torch.float64)
    assert (cumulative_incidence(logits, EDGES, horizons_days=[1000.0]) > 0).all()  # tiny, not zero
