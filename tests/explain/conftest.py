"""Runs of three kinds on the simulated data (a network, an ensemble, a blend), trained once, and people to explain."""

from pathlib import Path

import pytest

from ehrsequencing.config import load_study
from ehrsequencing.explain import SubjectRecord, subject_records
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan
from helpers.blends import quick_parts
from helpers.settings import TINY


@pytest.fixture(scope="session")
def runs(sim_run: Path, sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run of each kind, by its name."""
    folder, store = tmp_path_factory.mktemp("kinds"), Prepared(sim_prepared)
    kinds = {
        "ensemble": ("training.members=2", "model.table_dim=8"),
        "blend": ("training.blend=true",),
    }
    with quick_parts():
        for name, settings in kinds.items():
            study = load_study(None, (*TINY, "training.epochs=1", "training.min_steps=2", *settings))
            fit(Plan.of(store, "simulated", study), folder / name)
    return {"network": Run(sim_run), **{name: Run(folder / name) for name in kinds}}


@pytest.fixture(scope="session")
def people(runs: dict[str, Run], sim_data: Path) -> list[SubjectRecord]:
    return list(subject_records(NewRecords(runs["network"], sim_data)))[:40]


@pytest.fixture(scope="session")
def record(people: list[SubjectRecord]) -> SubjectRecord:
    """Who is asked most often."""
    return max(people, key=lambda record: len(record.moments.prediction_us))
