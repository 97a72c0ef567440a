"""True contributions of codes, from the record alone, are what the simulator's own state says."""

import numpy as np
import pytest

from bench.truth._contributions import Contributions, pair_of
from ehrsequencing.simulate import SimulationConfig


def test_a_single_pair_adds_its_own_term() -> None:
    config = SimulationConfig(pair_effect=2.0)
    truth = Contributions(config)
    none = [np.full(2, np.nan)]
    for other, sign in (("RX//B07", 1.0), ("RX//B08", -1.0)):
        (pair,) = truth.of([["DX//A07", other]], none, [0.0])
        assert pair.log_hazard == pytest.approx(2.0 * sign - np.log(np.cosh(2.0)))
    assert pair_of(["DX//A07", "DX//N0001"]) is None
