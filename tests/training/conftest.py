"""What the tests of this folder share."""

from pathlib import Path

import pytest

from helpers.long_records import train


@pytest.fixture(scope="module")
def cut_run(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cut") / "run"
    batches = train(sim_prepared, out)
    assert max(batches) > 2
    return out
