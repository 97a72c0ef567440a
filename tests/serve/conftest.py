"""A server of the small run of `tests/conftest.py`, for all tests of this room."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.prediction.run import Run
from ehrsequencing.serve.predictor import Predictor
from helpers.serve import Client, running, subject_rows


@pytest.fixture(scope="module")
def sim_rows(sim_data: Path) -> dict[int, list[dict[str, Any]]]:
    return subject_rows(sim_data)


@pytest.fixture(scope="module")
def client(sim_run: Path, sim_data: Path) -> Iterator[Client]:
    with running(Predictor(Run(sim_run), sim_data)) as found:
        yield found
