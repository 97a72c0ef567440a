"""The formulas of piecewise hazards exist twice, in torch and in NumPy: both give the same numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from ehrsequencing.metrics import hazards as numpy_room
from ehrsequencing.models import hazards as torch_room

Floats = NDArray[np.float64]
DAYS = st.floats(0.01, 5000.0)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@dataclass(frozen=True)
class Case:
    """Labelled prediction times with their hazards; half of the times lie exactly on an edge."""

    log_hazards: Floats  # (R, E, K)
    edges: tuple[float, ...]
    entry: Floats
    duration: Floats
    cause: NDArray[np.int64]
    horizons: Floats
    start: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    edges = tuple(sorted(draw(st.sets(DAYS, max_size=4))))
    rng, rows, causes = np.random.default_rng(draw(st.integers(0, 10_000))), draw(st.integers(1, 5)), 2
    times = st.one_of(DAYS, st.sampled_from(edges or (1.0,)))
    pairs = [sorted((draw(times), draw(times))) for _ in range(rows)]
    return Case(
        log_hazards=rng.normal(-6, 3, (rows, causes, len(edges) + 1)),
        edges=edges,
        entry=np.array([draw(st.sampled_from((0.0, low))) if low < high else 0.0 for low, high in pairs]),
        duration=np.array([high for _, high in pairs]),
        cause=np.array([draw(st.integers(0, causes)) for _ in range(rows)]),
        horizons=np.array(draw(st.lists(times, min_size=1, max_size=4))),
        start=draw(st.one_of(st.just(0.0), times)),
    )


SMALL = Case(
    log_hazards=np.log([[[0.01, 0.02, 0.001], [0.003, 0.03, 0.01]]] * 2),
    edges=(10.0, 30.0),
    entry=np.array([5.0, 0.0]),
    duration=np.array([30.0, 100.0]),
    cause=np.array([2, 1]),
    horizons=np.array([10.0, 40.0]),
    start=7.0,
)


def check_exposure(x: Case) -> None:
    ours = numpy_room.exposure(x.edges, x.entry, x.duration)
    theirs = torch_room.exposure(x.edges, torch.from_numpy(x.entry), torch.from_numpy(x.duration))
    np.testing.assert_allclose(ours, theirs.numpy(), **EXACT)
    np.testing.assert_allclose(ours.sum(axis=1), x.duration - x.entry, **EXACT)


def check_likelihood(x: Case) -> None:
    labels = {"duration_days": x.duration, "cause": x.cause, "entry_days": x.entry}
    ours = numpy_room.horizon_nll(np.exp(x.log_hazards), x.edges, **labels)
    logits = torch.from_numpy(x.log_hazards)
    theirs = torch_room.horizon_nll(logits, x.edges, **{k: torch.from_numpy(v) for k, v in labels.items()})
    np.testing.assert_allclose(ours, theirs.numpy(), **EXACT)


def check_incidence(x: Case) -> None:
    ours = numpy_room.cumulative_incidence(np.exp(x.log_hazards), x.edges, x.horizons, start_days=x.start)
    logits = torch.from_numpy(x.log_hazards)
    theirs = torch_room.cumulative_incidence(logits, x.edges, horizons_days=x.horizons.tolist(), start_days=x.start)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, atol=1e-10)  # e^-H of H up to thousands
    assert np.all(ours[:, :, x.horizons <= x.start] == 0)


CHECKS: dict[str, Callable[[Case], None]] = {
    "exposure": check_exposure,
    "likelihood": check_likelihood,
    "incidence": check_incidence,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_twins_agree(check: Callable[[Case], None]) -> None:
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
