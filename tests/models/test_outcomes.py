"""The likelihood of every outcome against a dense reference, its gradients, its memory, and risks against theirs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from torch import Tensor

from ehrsequencing.metrics import hazards as numpy_room
from ehrsequencing.models import hazards as torch_room, outcomes
from ehrsequencing.models.hazards import cumulative_incidence
from ehrsequencing.models.outcomes import OutcomeHead, OutcomeLabels, onset_risk, outcomes_nll, starting_rates


def dense_outcomes_nll(
    log_hazards: Tensor,
    edges_days: Sequence[float],
    stop_days: Sequence[float],
    entry_days: Sequence[float],
    listed: dict[tuple[int, int], float],
) -> Tensor:
    """(N,) from (N, C, K) log-hazards; `listed` has the event time of a pair (row, code), 0 where it has no risk."""
    edges = [0.0, *edges_days, math.inf]
    terms = []
    for n in range(len(log_hazards)):
        nll = log_hazards[n].sum() * 0
        for c in range(log_hazards.shape[1]):
            stop = listed.get((n, c), stop_days[n])
            for k in range(len(edges) - 1):
                days = max(0.0, min(stop, edges[k + 1]) - max(entry_days[n], edges[k]))
                nll = nll + log_hazards[n, c, k].exp() * days
                if (n, c) in listed and edges[k] < stop <= edges[k + 1]:
                    nll = nll - log_hazards[n, c, k]
        terms.append(nll)
    return torch.stack(terms)


# ---- the tests ------------------------------------------------------------------------------------------------------

EDGES = (5.0, 30.0, 100.0)


@dataclass
class Case:
    """Random rows and codes: events (some at an edge), pairs without risk, blanking, rows without follow-up."""

    factors: Tensor
    vectors: Tensor
    bias: Tensor
    stop: Tensor
    entry: Tensor
    listed: dict[tuple[int, int], float]

    @property
    def labels(self) -> OutcomeLabels:
        pairs = sorted(self.listed)
        return OutcomeLabels(
            torch.tensor([n for n, _ in pairs], dtype=torch.int64),
            torch.tensor([c for _, c in pairs], dtype=torch.int64),
            torch.tensor([self.listed[pair] for pair in pairs], dtype=torch.float64),
        )

    @property
    def leaves(self) -> list[Tensor]:
        return [self.factors, self.vectors, self.bias]

    def sparse(self) -> Tensor:
        return self.nll(*self.leaves)

    def nll(self, factors: Tensor, vectors: Tensor, bias: Tensor) -> Tensor:
        return outcomes_nll(
            factors, vectors, bias, edges_days=EDGES, stop_days=self.stop, entry_days=self.entry, labels=self.labels
        )

    def dense(self) -> Tensor:
        eta = torch.einsum("nkr,cr->nck", self.factors, self.vectors) + self.bias
        return dense_outcomes_nll(eta, EDGES, self.stop.tolist(), self.entry.tolist(), self.listed)


def random_case(seed: int, *, rows: int = 7, codes: int = 5, rank: int = 3) -> Case:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def chance() -> float:
        return float(torch.rand(1, generator=g))

    stop = torch.rand(rows, generator=g, dtype=torch.float64) * 150 + 6
    entry = torch.tensor([3.0 if chance() < 0.5 else 0.0 for _ in range(rows)], dtype=torch.float64)
    stop[0], entry[0] = 0.0, 0.0
    listed = {}
    for n in range(1, rows):
        for c in range(codes):
            at = float(entry[n] + (stop[n] - entry[n]) * min(1.0, 0.01 + 1.2 * chance()))
            event = 5.0 if chance() < 0.2 else at  # 5 is an edge
            if chance() < 0.6:
                listed[n, c] = event if chance() < 0.6 else 0.0
    case = Case(
        normal(rows, len(EDGES) + 1, rank), normal(codes, rank), normal(codes, len(EDGES) + 1) - 4, stop, entry, listed
    )
    for leaf in case.leaves:
        leaf.requires_grad_()
    return case


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 41, 10**6]))
def test_likelihood_is_the_dense_one(seed: int, block: int) -> None:
    """Values and gradients, rows weighted by their own numbers or alike, blocks of one cell, some cells, or all."""
    case = random_case(seed)
    weight = torch.randn(len(case.stop), dtype=torch.float64) if seed % 2 else torch.full((len(case.stop),), 0.7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "BLOCK_ELEMENTS", block)
        sparse = case.sparse()
        found = torch.autograd.grad((sparse * weight).sum(), case.leaves)
    dense = case.dense()
    torch.testing.assert_close(sparse, dense, rtol=1e-10, atol=1e-10)
    expected = torch.autograd.grad((dense * weight).sum(), case.leaves)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_absurd_hazards_keep_finite_gradients() -> None:
    """Above e^20 a day the exponential is its tangent, in the value and in the gradient alike."""
    case = random_case(1)
    with torch.no_grad():
        case.bias += 60
    nll = case.sparse()
    step = 1e-6
    found = torch.autograd.grad(nll.sum(), case.leaves)
    with torch.no_grad():
        case.bias += step
        numeric = (case.sparse() - nll) / step
    assert all(bool(gradient.isfinite().all()) for gradient in found)
    torch.testing.assert_close(found[2].sum(), numeric.sum(), rtol=1e-5, atol=0)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_onset_risk_is_the_incidence_of_each_code_alone_against_death(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    own, death = (torch.randn(4, e, 4, generator=g, dtype=torch.float64) - 5 for e in (6, 2))
    found = onset_risk(own, death, EDGES, horizons_days=[3.0, 30.0, 400.0])
    for c in range(6):
        both = torch.cat([own[:, c : c + 1], death], 1)
        expected = cumulative_incidence(both, EDGES, horizons_days=[3.0, 30.0, 400.0])[:, 0]
        torch.testing.assert_close(found[:, c], expected, rtol=1e-10, atol=1e-12)


def test_head_starts_at_the_training_rates() -> None:
    """Many events: the code's own rates. No event at all: the shape of all codes, at the code's own level."""
    exposed = torch.tensor([[1e6, 4e6], [1e6, 4e6], [1e6, 4e6]])
    events = torch.tensor([[1e5, 2e5], [4e5, 8e5], [0.0, 0.0]])
    rates = starting_rates(events, exposed)
    torch.testing.assert_close(rates[:2], (events / exposed)[:2].double(), rtol=1e-3, atol=0)
    torch.testing.assert_close(rates[2, 0] / rates[2, 1], torch.tensor(2.0, dtype=torch.float64), rtol=0.01, atol=0)
    head = OutcomeHead(8, outcomes=3, rank=4, edges_days=(10.0,))
    head.set_bias(rates)
    with torch.no_grad():
        head.vectors.weight.zero_()
        torch.testing.assert_close(head.log_hazards(torch.randn(2, 8))[1].exp(), rates.float())


# ---- the formulas of piecewise hazards exist twice, in torch and in NumPy --------------------------------------------


Floats = NDArray[np.float64]
DAYS = st.floats(0.01, 5000.0)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@dataclass(frozen=True)
class Labelled:
    """Labelled prediction times with their hazards; half of the times lie exactly on an edge."""

    log_hazards: Floats  # (R, E, K)
    edges: tuple[float, ...]
    entry: Floats
    duration: Floats
    cause: NDArray[np.int64]
    horizons: Floats
    start: float


@st.composite
def cases(draw: st.DrawFn) -> Labelled:
    edges = tuple(sorted(draw(st.sets(DAYS, max_size=4))))
    rng, rows, causes = np.random.default_rng(draw(st.integers(0, 10_000))), draw(st.integers(1, 5)), 2
    times = st.one_of(DAYS, st.sampled_from(edges or (1.0,)))
    pairs = [sorted((draw(times), draw(times))) for _ in range(rows)]
    return Labelled(
        log_hazards=rng.normal(-6, 3, (rows, causes, len(edges) + 1)),
        edges=edges,
        entry=np.array([draw(st.sampled_from((0.0, low))) if low < high else 0.0 for low, high in pairs]),
        duration=np.array([high for _, high in pairs]),
        cause=np.array([draw(st.integers(0, causes)) for _ in range(rows)]),
        horizons=np.array(draw(st.lists(times, min_size=1, max_size=4))),
        start=draw(st.one_of(st.just(0.0), times)),
    )


SMALL = Labelled(
    log_hazards=np.log([[[0.01, 0.02, 0.001], [0.003, 0.03, 0.01]]] * 2),
    edges=(10.0, 30.0),
    entry=np.array([5.0, 0.0]),
    duration=np.array([30.0, 100.0]),
    cause=np.array([2, 1]),
    horizons=np.array([10.0, 40.0]),
    start=7.0,
)


def check_exposure(x: Labelled) -> None:
    ours = numpy_room.exposure(x.edges, x.entry, x.duration)
    theirs = torch_room.exposure(x.edges, torch.from_numpy(x.entry), torch.from_numpy(x.duration))
    np.testing.assert_allclose(ours, theirs.numpy(), **EXACT)
    np.testing.assert_allclose(ours.sum(axis=1), x.duration - x.entry, **EXACT)


def check_likelihood(x: Labelled) -> None:
    labels = {"duration_days": x.duration, "cause": x.cause, "entry_days": x.entry}
    ours = numpy_room.horizon_nll(np.exp(x.log_hazards), x.edges, **labels)
    logits = torch.from_numpy(x.log_hazards)
    theirs = torch_room.horizon_nll(logits, x.edges, **{k: torch.from_numpy(v) for k, v in labels.items()})
    np.testing.assert_allclose(ours, theirs.numpy(), **EXACT)


def check_incidence(x: Labelled) -> None:
    ours = numpy_room.cumulative_incidence(np.exp(x.log_hazards), x.edges, x.horizons, start_days=x.start)
    logits = torch.from_numpy(x.log_hazards)
    theirs = torch_room.cumulative_incidence(logits, x.edges, horizons_days=x.horizons.tolist(), start_days=x.start)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, atol=1e-10)  # e^-H of H up to thousands
    assert np.all(ours[:, :, x.horizons <= x.start] == 0)


CHECKS: dict[str, Callable[[Labelled], None]] = {
    "exposure": check_exposure,
    "likelihood": check_likelihood,
    "incidence": check_incidence,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_twins_agree(check: Callable[[Labelled], None]) -> None:
    given(cases())(check)()


exposure = numpy_room.exposure
MUTANTS: dict[str, tuple[str, Callable[..., object]]] = {
    "the start is ignored": ("exposure", lambda edges, start, stop: exposure(edges, 0 * start, stop)),
    "the last bin is closed": ("exposure", lambda edges, start, stop: exposure((*edges, 50.0), start, stop)[:, :-1]),
    "an edge belongs to the bin above": ("event_bin", lambda edges, days: np.searchsorted(edges, days, side="right")),
}
CAUGHT = [
    ("the start is ignored", "exposure"),
    ("the start is ignored", "likelihood"),
    ("the start is ignored", "incidence"),
    ("the last bin is closed", "exposure"),
    ("the last bin is closed", "likelihood"),
    ("an edge belongs to the bin above", "likelihood"),
]


@pytest.mark.parametrize(("broken", "check"), CAUGHT)
def test_a_broken_twin_is_caught(broken: str, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CHECKS[check](SMALL)
    monkeypatch.setattr(numpy_room, *MUTANTS[broken])
    with pytest.raises(AssertionError):
        CHECKS[check](SMALL)
