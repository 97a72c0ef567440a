"""The simulated set for all baselines, and an autouse fixture that makes them quick."""

from functools import partial

import pytest

from ehrsequencing.config import TaskConfig
from ehrsequencing.predictors import boosted, fitting_data as features
from ehrsequencing.predictors.history import fit_feature_spec
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords

QUICK = ("test_boosted", "test_cox")


@pytest.fixture(scope="module")
def task(prepared: Prepared) -> TaskConfig:
    return prepared.task("simulated")


@pytest.fixture(scope="module")
def train(prepared: Prepared) -> TaskRecords:
    return prepared.records("simulated", "train")


@pytest.fixture(scope="module")
def tuning(prepared: Prepared) -> TaskRecords:
    return prepared.records("simulated", "tuning")


@pytest.fixture(autouse=True)
def _fast_boosting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few codes and pairs, few trees and larger steps: what is tested here does not depend on them."""
    if request.path.stem not in QUICK:
        return
    monkeypatch.setattr(features, "fit_feature_spec", partial(fit_feature_spec, max_codes=20))
    quick = {"learning_rate": 0.3}
    monkeypatch.setattr(boosted, "MOST_TREES", 12)
    monkeypatch.setattr(boosted, "PATIENCE", 3)
    monkeypatch.setattr(features, "MOST_PAIRS", 5)
    monkeypatch.setattr(boosted, "UNWATCHED_TREES", 5)
    monkeypatch.setattr(boosted, "TRIALS", tuple(trial | quick for trial in boosted.TRIALS))
