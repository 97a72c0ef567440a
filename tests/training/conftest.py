"""The simulated set."""

from pathlib import Path

import pytest

from ehrsequencing.records.prepared import Prepared


@pytest.fixture(scope="module")
def prepared(sim_prepared: Path) -> Prepared:
    return Prepared(sim_prepared)
