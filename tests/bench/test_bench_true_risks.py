"""`_true_risks.py`: errors of risks and hazards, and the share of each mechanism, where the truth is known."""

from typing import Any

import numpy as np
import pytest

from bench.truth import _true_risks as true_risks
from ehrsequencing.evaluation.oracle import Truth, bin_hazards

EDGES = np.array([0.0, 30.0, 90.0, 365.25, 1000.0])
CAUSES = ("outcome", "death")


def world(rows: int = 600, seed: int = 0) -> Truth:
    """Two causes; the outcome's hazard is moved by three mechanisms, one of which never varies."""
    rng = np.random.default_rng(seed)
    mechanisms = {"pair": rng.choice([-1.0, 1.0], rows), "age": rng.normal(0, 0.5, rows), "off": np.zeros(rows)}
    outcome = 0.0005 * np.exp(sum(mechanisms.values()))
    hazards = np.stack([np.repeat(outcome[:, None], 4, 1), np.full((rows, 4), 0.0002)], axis=1)
    return Truth(EDGES, hazards, mechanisms)


def without(truth: Truth, mechanism: str, *, keep: float) -> Truth:
    """A model that knows only a part of one mechanism."""
    hazards = truth.hazards.copy()
    hazards[:, 0] *= np.exp((keep - 1) * truth.mechanisms[mechanism])[:, None]
    return Truth(truth.edges_days, hazards, truth.mechanisms)


def early(truth: Truth) -> np.ndarray:
    return truth.risk(np.array([true_risks.EARLY_DAYS]))[:, 0, 0]


@pytest.mark.parametrize("mechanism", ["pair", "age"])
@pytest.mark.parametrize("keep", [0.0, 0.4, 1.0, 1.3])
def test_the_share_of_a_mechanism_is_what_a_model_knows_of_it(mechanism: str, keep: float) -> None:
    truth = world()
    found = true_risks.mechanism_shares(
        early(without(truth, mechanism, keep=keep)), early(truth), truth, np.arange(600)
    )
    shares = {row["mechanism"]: row["share"] for row in found}
    assert set(shares) == {"pair", "age"}  # what never varies cannot be learned
    other = ({"pair", "age"} - {mechanism}).pop()
    assert shares[mechanism] == pytest.approx(keep, abs=0.01)
    assert shares[other] == pytest.approx(1.0, abs=0.01)


def test_errors_of_risks() -> None:
    truth = world()
    horizons = np.array([90.0, 365.25])
    true = truth.risk(horizons)
    asked: Any = {"causes": CAUSES, "horizons_days": horizons, "subject": np.arange(len(true))}
    exact = true_risks.risk_errors(true, true, **asked)
    assert [row["rmse"] for row in exact] == [0.0] * 4
    assert [row["slope"] for row in exact] == pytest.approx([1.0] * 4)
    half = true_risks.risk_errors(0.1 + true / 2, true, **asked)[1]
    assert (half["cause"], half["horizon_days"]) == ("outcome", 365.25)
    assert half["slope"] == pytest.approx(2.0)
    assert half["slope_reversed"] == pytest.approx(0.5)
    assert half["rmse"] == pytest.approx(float(np.sqrt(np.mean((0.1 - true[:, 0, 1] / 2) ** 2))))
    true[3] = np.nan  # a row without a truth does not count
    assert true_risks.risk_errors(truth.risk(horizons), true, **asked)[0]["rmse"] == 0.0
    constant = true_risks.risk_errors(true * 0 + 0.2, true, **asked)[0]
    assert constant["slope"] is None
    assert constant["slope_se"] is None


def test_errors_of_hazards() -> None:
    truth = world()
    exact = true_risks.hazard_rmse_per_year(bin_hazards(truth.risk(EDGES[1:]), EDGES), truth, causes=CAUSES)
    assert exact == pytest.approx({"outcome": 0.0, "death": 0.0}, abs=1e-9)
    shifted = Truth(EDGES, truth.hazards + np.array([0.0, 0.001])[:, None], truth.mechanisms)
    found = true_risks.hazard_rmse_per_year(bin_hazards(shifted.risk(EDGES[1:]), EDGES), truth, causes=CAUSES)
    assert found == pytest.approx({"outcome": 0.0, "death": 0.36525}, abs=1e-9)
