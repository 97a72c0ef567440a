"""What is fitted beside the weights: on training subjects alone, and the recalibration on tuning subjects."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.hazards import expected_nll
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors import blend as room
from ehrsequencing.predictors.blend import fit_stack, folds_of
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import LandmarkCox
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan
from helpers.audit import TINY as HOSPITAL_TINY, hospital_rows, hospital_splits, make_set
from helpers.meds import DAY_US
from helpers.settings import TINY
from helpers.training import NetworkTrainer as Trainer

ROWS = hospital_rows(subjects=150, seed=7)
SPLITS = hospital_splits(ROWS)


def fitted(folder: Path, changed: str | None) -> dict[str, Any]:
    """Everything fitted beside the weights, where the records of one split were changed."""
    rows = []
    for row in ROWS:
        if SPLITS[row.subject] == changed and row.value is not None:
            row = row._replace(value=3 * row.value + 1)
        if SPLITS[row.subject] == changed and row.code == "DX//RELAPSE":
            row = row._replace(time=row.time + 40 * DAY_US)
        if SPLITS[row.subject] != changed or row.code != "DX//0":
            rows.append(row)
    store = Prepared(make_set(folder, rows, splits=SPLITS))
    study = load_study(None, [*HOSPITAL_TINY, "training.epochs=2"])
    Trainer(store, "hospital", folder / "run", study=study).fit()
    run = Run(folder / "run")
    return {
        "vocabulary": run.manifest["vocabulary"],
        "grid": run.predictor.edges_days,
        "recalibration": run.manifest["recalibration"],
    }


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return fitted(tmp_path_factory.mktemp("honest"), None)


def test_nothing_comes_from_held_out_people(honest: dict[str, Any], tmp_path: Path) -> None:
    assert fitted(tmp_path, "held_out") == honest


def test_the_recalibration_alone_comes_from_tuning_people(honest: dict[str, Any], tmp_path: Path) -> None:
    found = fitted(tmp_path, "tuning")
    assert found.pop("recalibration") != honest["recalibration"]
    assert found == {name: honest[name] for name in ("vocabulary", "grid")}


def test_all_of_it_comes_from_training_people(honest: dict[str, Any], tmp_path: Path) -> None:
    found = fitted(tmp_path, "train")
    assert found["vocabulary"] != honest["vocabulary"]
    assert not np.array_equal(found["grid"], honest["grid"])
    assert found["recalibration"] != honest["recalibration"]


# ---- distillation: a teacher that never saw the subject, and a loss that is what its formula says --------------------


SETTINGS = (*TINY, "training.epochs=1", "training.distillation=.4")
pytestmark = pytest.mark.usefixtures("quick_training")


@pytest.fixture(scope="module")
def study() -> StudyConfig:
    return load_study(None, SETTINGS)


@pytest.fixture(scope="module")
def trainer(prepared: Prepared, study: StudyConfig) -> Trainer:
    made = Trainer(prepared, "simulated", Path("unused"), study=study)
    made.objective.taught = fit_stack(made.plan.fitting_data()).out_of_fold
    return made


def test_a_row_is_taught_by_models_that_have_not_seen_its_subject(prepared: Prepared, trainer: Trainer) -> None:
    """As trees and Cox fitted by hand to other folds; the mutants, models that saw everybody, say something else."""
    train, tuning = (prepared.records("simulated", split) for split in ("train", "tuning"))
    fold = folds_of(np.diff(train.rows.row_offsets), folds=room.FOLDS, seed=0)[1]
    asked, rows = train.take(fold), np.flatnonzero(np.isin(train.rows.subject, fold))
    whole = FittingData(trainer.task, prepared.vocabulary, train, tuning, trainer.config.edges_days)

    def data(subjects: np.ndarray) -> FittingData:  # with the features of everybody, which no outcome has a part in
        others = np.setdiff1d(everybody, subjects)
        return replace(whole, train=train.take(subjects), made=whole.features.without(train, others))

    def by_hand(trees: np.ndarray, cox: np.ndarray) -> np.ndarray:
        models = BoostedVisits.fit(data(trees)), LandmarkCox(data(cox))
        return sum(model.all_hazards(asked) for model in models) / 2

    everybody = np.arange(len(train.timelines))
    others = np.setdiff1d(everybody, fold)
    taught = trainer.objective.taught
    assert taught is not None
    np.testing.assert_allclose(taught[rows], by_hand(others, others), rtol=1e-6)
    for trees, cox in ((everybody, others), (others, everybody)):
        assert np.abs(np.log(by_hand(trees, cox) / taught[rows])).max() > 0.003


def test_an_outcome_never_reaches_its_own_subject_through_the_teacher(
    prepared: Prepared, study: StudyConfig, trainer: Trainer
) -> None:
    train = prepared.records("simulated", "train")
    subject = int(train.rows.subject[np.flatnonzero(train.rows.cause == 1)[0]])
    mine = train.rows.subject == subject
    cause = np.array(train.rows.cause)
    cause[mine] = 0
    changed = TaskRecords(train.timelines, replace(train.rows, cause=cause), train.outcomes)
    found = fit_stack(replace(trainer.plan.fitting_data(), train=changed)).out_of_fold
    np.testing.assert_array_equal(found[mine], trainer.objective.taught[mine])  # type: ignore[index]
    assert (found[~mine] != trainer.objective.taught[~mine]).any()  # type: ignore[index]  # others learn from it


def test_the_loss_is_the_mixture_that_its_formula_says(trainer: Trainer) -> None:
    """By a plain loop over rows, causes and bins, with the observed events and the teacher's expected ones."""
    rows, taught = trainer.train_rows, trainer.objective.taught
    step = next(trainer.loader.in_order(visit_budget=200))
    trainer.model.eval()
    with torch.no_grad():
        loss = float(trainer.objective.loss(step))
        logits = trainer.model(step.batch)[torch.from_numpy(step.positions)].double().numpy()
    edges = [0.0, *trainer.config.edges_days, np.inf]
    total = 0.0
    for own, row in zip(logits, step.rows, strict=True):
        entry, stop = float(rows.entry_days[row]), float(rows.duration_days[row])
        for e, of_cause in enumerate(own):
            for k, (low, high) in enumerate(pairwise(edges)):
                days = max(0.0, min(stop, high) - max(entry, low))
                is_event = rows.cause[row] == e + 1 and low < stop <= high
                count = 0.6 * is_event + 0.4 * days * float(taught[row, e, k])  # type: ignore[index]
                total += np.exp(of_cause[k]) * days - count * of_cause[k]
    assert loss == pytest.approx(total / trainer.objective.divisor, rel=1e-4)
    plain = float(trainer.model.loss(step.batch, divisor=trainer.objective.divisor).detach())
    assert abs(loss - plain) > 1e-3  # the mutant: a teacher that is not heard


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), shift=st.floats(-2, 2).filter(lambda x: abs(x) > 1e-3))
def test_nothing_fits_a_teacher_better_than_its_own_hazards(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    hazards = torch.from_numpy(np.exp(rng.normal(-4, 1, (5, 2, 3))))
    times = torch.from_numpy(rng.uniform(1, 90, 5))
    own = expected_nll(hazards.log(), [10.0, 40.0], hazards=hazards, duration_days=times)
    other = expected_nll(hazards.log() + shift, [10.0, 40.0], hazards=hazards, duration_days=times)
    assert (other > own).all()


@pytest.mark.slow
def test_members_share_one_teacher(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits, own = [], LandmarkCox.__init__

    def counted(self: LandmarkCox, data: FittingData) -> None:
        fits.append(1)
        own(self, data)

    monkeypatch.setattr(LandmarkCox, "__init__", counted)
    members = load_study(None, [*SETTINGS, "training.members=2"])
    fit(Plan.of(prepared, "simulated", members), tmp_path / "run")
    assert len(fits) == room.FOLDS + 1  # of the folds, and of all
    assert Run(tmp_path / "run").study.training.distillation == 0.4


def test_another_teacher_is_another_training(prepared: Prepared, study: StudyConfig, tmp_path: Path) -> None:
    """The seed of the evaluation is that of the teacher's trees; without a teacher it changes nothing."""

    def fingerprint(*settings: str) -> str:
        changed = load_study(None, [*SETTINGS, *settings])
        return Trainer(prepared, "simulated", tmp_path / "run", study=changed).fingerprint

    alone, other = "training.distillation=0", "evaluation.seed=7"
    assert fingerprint(other) != fingerprint()
    assert fingerprint(alone, other) == fingerprint(alone)


def test_what_sees_the_future_is_refused_before_anything_is_fitted(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoostedVisits, "fit", None)
    blind = load_study(None, [*SETTINGS, "model.attention=bidirectional"])
    with pytest.raises(EhrseqError, match="would have seen the visits after it"):
        Plan.of(prepared, "simulated", blind)


def test_what_cannot_be_taught(prepared: Prepared, study: StudyConfig, tmp_path: Path) -> None:
    visit = load_study(None, [*SETTINGS, "model.head=visit"])
    with pytest.raises(EhrseqError, match="no hazards per day"):
        Plan.of(prepared, "simulated", visit)
    with pytest.raises(EhrseqError, match="nobody to learn from"):
        Trainer(prepared, "simulated", tmp_path / "run", study=study).train(tmp_path / "run")
