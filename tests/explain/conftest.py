"""Runs of three kinds on the simulated data: a network, an ensemble, a blend; trained once."""

from functools import partial
from pathlib import Path

import pytest

from ehrsequencing.baselines import boosted, history, landmark_cox
from ehrsequencing.blend.train import trainer_of
from ehrsequencing.config import load_study
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.run import Run

SETTINGS = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "training.min_steps=4")


@pytest.fixture(scope="session")
def runs(sim_run: Path, sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run of each kind, by its name."""
    folder, store = tmp_path_factory.mktemp("kinds"), Prepared(sim_prepared)
    quick = {"learning_rate": 0.3, "max_iter": 8, "n_iter_no_change": 3}
    with pytest.MonkeyPatch.context() as patch:
        for room in (boosted, landmark_cox):
            patch.setattr(room, "fit_feature_spec", partial(history.fit_feature_spec, max_codes=12))
        patch.setattr(boosted, "MOST_PAIRS", 4)
        patch.setattr(boosted, "TRIALS", tuple(trial | quick for trial in boosted.TRIALS))
        kinds = {"ensemble": ("training.members=2",), "blend": ("training.blend=true", "training.blend_folds=2")}
        for name, settings in kinds.items():
            study = load_study(None, (*SETTINGS, *settings))
            trainer_of(store, "simulated", folder / name, study=study).fit()
    return {"network": Run(sim_run), **{name: Run(folder / name) for name in kinds}}
