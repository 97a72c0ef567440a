"""Fixtures of the tests of clusters."""

from pathlib import Path

import pytest

from ehrsequencing.records.prepare import prepare
from helpers.meds import write_meds
from helpers.shards import PARENTS, STUDY, TASK, rows_of
from helpers.storage import everything


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records in four shards, for clusters to prepare."""
    return write_meds(tmp_path_factory.mktemp("sharded") / "data", rows_of(60), shards=4, parents=PARENTS)


@pytest.fixture(scope="session")
def of_one_process(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """File → its bytes, of what one process makes of `sharded`."""
    out = tmp_path_factory.mktemp("one") / "set"
    prepare(sharded, out, study=STUDY, tasks=[TASK], processes=1)
    return everything(out)
