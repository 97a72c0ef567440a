"""An explorer of the small simulated run, and its page."""

from pathlib import Path

import pytest

from ehrsequencing.explorer import ExplorerSettings, page
from ehrsequencing.explorer.codes import Explorer, collect
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run


@pytest.fixture(scope="session")
def explorer(sim_run: Path, sim_data: Path) -> Explorer:
    """Thirty patients, with every single removal at every prediction time."""
    return collect(NewRecords(Run(sim_run), sim_data), ExplorerSettings(subjects=30, fewest=3))


@pytest.fixture(scope="session")
def explorer_page(explorer: Explorer) -> str:
    return page(explorer)
