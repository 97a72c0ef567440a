"""`bench real`: means over the same cells, the strongest by tuning subjects, and trials without held-out numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.accuracy import real as bench
from bench.truth._contributions import Contributions, pair_of
from ehrsequencing.simulate import SimulationConfig

OURS, COX, TREES = "ehrsequencing", "landmark Cox", "boosted visits"


def row(
    model: str,
    metric: str,
    value: float | None,
    horizon: float | None = 365.25,
    landmark: float | None = 0.0,
    cause: str = "death",
) -> dict[str, Any]:
    place = {"landmark_days": landmark, "cause": cause, "horizon_days": horizon}
    return {"model": model, "metric": metric, "value": value, **place}


def split(seed: int, *, ours: float, cox: float, trees: float) -> dict[str, Any]:
    """A split's rows in which Cox has the lowest tuning NLL, and the trees the lowest on held-out subjects."""
    rows = []
    for model, value in ((OURS, ours), (COX, cox), (TREES, trees)):
        rows += [row(model, "nll", 2 - value, None), row(model, "nll", 99.0, None, landmark=None)]
        rows += [row(model, "c", value), row(model, "c", value + 0.1, 730.5), row(model, "c", 0.1, cause="transplant")]
        rows += [row(model, "oe", 1.2), row(model, "oe", 1.0, 730.5)]
    rows += [row("Aalen–Johansen", "oe", 1.5), row("Aalen–Johansen", "oe", 1.5, 730.5)]
    rows += [
        row(OURS, "c", 0.9, landmark=365.25),
        row(COX, "c", None, landmark=365.25),
        row(TREES, "c", 0.9, landmark=365.25),
    ]
    return {
        "seed": seed,
        "train_subjects": 80,
        "held_out_subjects": 20,
        "metrics": rows,
        "tuning_nll": {OURS: 1.5, TREES: 1.4, COX: 1.3},
    }


SPLITS = [split(20_000, ours=0.7, cox=0.6, trees=0.8), split(20_001, ours=0.8, cox=0.75, trees=0.85)]


def test_a_cell_counts_where_every_model_has_it_and_only_of_the_outcome() -> None:
    found = bench.values_of(SPLITS[0])
    assert found[OURS, "c"] == pytest.approx((0.7 + 0.8) / 2)  # not the landmark at which Cox is undefined
    assert found[COX, "c"] == pytest.approx(0.65)
    assert found[OURS, "nll"] == pytest.approx(1.3)  # at landmarks only
    assert bench.values_of(SPLITS[0], 730.5)[OURS, "oe"] == 1.0
    assert (OURS, "nll") not in bench.values_of(SPLITS[0], 730.5)


def test_a_difference_is_better_by_the_direction_of_its_metric() -> None:
    assert bench.verdict("nll", (-0.1, -0.2, -0.05)) == bench.verdict("c", (0.1, 0.05, 0.2)) == "better"
    assert bench.verdict("nll", (0.1, 0.05, 0.2)) == bench.verdict("ipa", (-0.1, -0.2, -0.05)) == "worse"


# ---- true contributions of codes, from the record alone, are what the simulator's own state says ---------------------


def test_a_single_pair_adds_its_own_term() -> None:
    config = SimulationConfig(pair_effect=2.0)
    truth = Contributions(config)
    none = [np.full(2, np.nan)]
    for other, sign in (("RX//B07", 1.0), ("RX//B08", -1.0)):
        (pair,) = truth.of([["DX//A07", other]], none, [0.0])
        assert pair.log_hazard == pytest.approx(2.0 * sign - np.log(np.cosh(2.0)))
    assert pair_of(["DX//A07", "DX//N0001"]) is None
