"""Figures and tables of real people hold nothing of fewer than 11 of them; a simulation is shown as it is."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ehrsequencing as eh
from ehrsequencing.api import curves
from ehrsequencing.api.evaluation import EvaluationResult

people = st.integers(30, 400)


def drawn(n: int, seed: int, groups: int, *, simulated: bool) -> tuple[curves.Incidence, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    own = rng.uniform(0.02, 0.6, n)
    duration, cause = rng.exponential(400 / (0.2 + own)), rng.integers(0, 3, n)
    days = curves.grid(730.5, simulated=simulated)
    risk = np.stack([own[:, None] * days / 730.5, 0.1 * own[:, None] * days / 730.5], axis=1)
    found = curves.incidence(duration, cause, risk, days, of=1, groups=groups, horizon_days=730.5, simulated=simulated)
    return found, {"duration": duration, "cause": cause, "risk": own}


@settings(max_examples=40)
@given(n=people, seed=st.integers(0, 50), groups=st.integers(1, 6))
def test_no_group_of_real_people_is_small(n: int, seed: int, groups: int) -> None:
    found, rows = drawn(n, seed, groups, simulated=False)
    order = np.argsort(rows["risk"], kind="stable")
    event = (rows["cause"] == 1) & (rows["duration"] <= 730.5)
    for part, group in zip(np.array_split(order, max(len(found.groups), 1)), found.groups, strict=False):
        assert min(event[part].sum(), (~event[part]).sum()) >= 11
        assert all(text == "<11" or int(text.replace(",", "")) % 5 == 0 for text in group.at_risk)
        had = rows["duration"][part][rows["cause"][part] == 1]
        events = [int((had <= day).sum()) for day in group.days]
        assert all(n == 0 or min(n, len(part) - n) >= 11 for n in events)
    assert len(found.days) <= 25


def test_a_simulation_is_drawn_exactly_and_agrees_with_another_library() -> None:
    lifelines = pytest.importorskip("lifelines")
    found, rows = drawn(200, 1, 2, simulated=True)
    low = np.argsort(rows["risk"], kind="stable")[:100]
    theirs = lifelines.AalenJohansenFitter(calculate_variance=False)
    theirs.fit(rows["duration"][low], rows["cause"][low], event_of_interest=1)
    expected = np.asarray(theirs.cumulative_density_.iloc[:, 0])
    place = np.searchsorted(np.asarray(theirs.cumulative_density_.index), found.days, side="right") - 1
    place = place[: len(found.groups[0].days)]
    np.testing.assert_allclose(found.groups[0].observed, expected[place], atol=1e-9)
    assert found.groups[0].at_risk[0] == "100"


def test_an_evaluation_of_real_people_tells_no_more_than_the_report(here: Path) -> None:
    """The example's result, taken for one of real people: 61 subjects, of whom few die."""
    run = eh.load("runs/hf")
    exact = run.evaluation
    real = EvaluationResult({**exact.result, "data": {**exact.result["data"], "simulated": False}}, run.folder, run=run)
    told = {str(count) for count in real.metrics.events.dropna()}
    assert "<11" in told
    assert not told & {str(n) for n in range(1, 11)}
    few = real.metrics[real.metrics.events.astype(str) == "<11"]
    assert few.value.isna().all()
    assert [text.get_text() for text in real.plot_incidence("1y", cause="death").texts] == ["too few events to show"]
