"""The competing-risk forest: it recovers a known truth, keeps causes apart, and its answers agree with each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sksurv.nonparametric import nelson_aalen_estimator

from ehrsequencing.baselines import fit as baselines
from ehrsequencing.baselines import forest as module
from ehrsequencing.baselines.base import FittingData
from ehrsequencing.baselines.fit import AgeAndSex, fit_baselines, what_is_missing
from ehrsequencing.baselines.forest import CompetingForest
from ehrsequencing.config import TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.hazards import event_bin, exposure
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from helpers.baselines import EDGES

DAYS = np.array([90.0, 365.25, 730.5, 1500.0])


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TREES", 15)
        patch.setattr(module, "MOST_ROWS", 500)
        patch.setattr(module, "LEAVES", (20, 80))
        yield


@pytest.fixture(scope="module")
def data(sim_prepared: Path) -> FittingData:
    """Event times drawn from a known truth: the number of visits so far decides death, nothing decides the rest."""
    prepared = Prepared(sim_prepared)
    task: TaskConfig = prepared.task("simulated")
    train, tuning = (
        redrawn(prepared.records("simulated", split), seed) for seed, split in enumerate(("train", "tuning"))
    )
    return FittingData(task, prepared.vocabulary, train, tuning, EDGES, 0)


def true_hazards(records: TaskRecords) -> np.ndarray:
    """(r, 2) per day: twelve times as high after the median number of visits."""
    many = records.rows.visits_before >= 12
    return np.stack([np.where(many, 1 / 300, 1 / 3600), np.full(len(records), 1 / 1500)], axis=1)


def redrawn(records: TaskRecords, seed: int) -> TaskRecords:
    rng, hazards = np.random.default_rng(seed), true_hazards(records)
    total = hazards.sum(axis=1)
    event, left = rng.exponential(1 / total), rng.uniform(100, 3000, len(records))
    cause = np.where(event < left, 1 + (rng.random(len(records)) > hazards[:, 0] / total), 0).astype(np.int8)
    return replace(records, rows=replace(records.rows, duration_days=np.minimum(event, left), cause=cause))


@pytest.fixture(scope="module")
def forest(data: FittingData) -> CompetingForest:
    return CompetingForest(data)


def test_it_recovers_a_known_truth_better_than_age_and_sex(data: FittingData, forest: CompetingForest) -> None:
    new, chosen = data.tuning, np.arange(len(data.tuning))
    hazards = true_hazards(new)
    total = hazards.sum(axis=1)[:, None]
    truth = hazards[:, :1] / total * -np.expm1(-total * DAYS)

    def error(model: Any, cause: int = 0) -> float:
        return float(np.sqrt(np.mean((model.risk(new, chosen, DAYS)[:, cause] - truth) ** 2)))

    simple = AgeAndSex(data)
    assert error(forest) < 0.75 * error(simple)
    assert forest.nll(new, chosen).mean() < simple.nll(new, chosen).mean() - 0.08
    assert error(forest, cause=1) > 2 * error(forest)  # the oracle can fail: the other cause is another curve


def test_incidences_rise_and_their_sum_stays_below_one(data: FittingData, forest: CompetingForest) -> None:
    chosen = np.arange(0, len(data.train), 3)
    days = np.array([1.0, 30.0, 31.0, 400.0, 2000.0, 50_000.0])
    risk = forest.risk(data.train, chosen, days)
    assert risk.shape == (len(chosen), 2, 6)
    assert (np.diff(risk, axis=2) >= 0).all()
    assert ((risk >= 0) & (risk.sum(axis=1, keepdims=True) <= 1 + 1e-12)).all()
    survival = np.exp(-(exposure(EDGES, np.zeros(6), days) @ forest.hazards(data.train, chosen).sum(axis=1).T)).T
    np.testing.assert_allclose(1 - risk.sum(axis=1), survival, atol=1e-12)


def test_the_cohorts_increments_are_nelson_aalen_of_each_cause(data: FittingData, forest: CompetingForest) -> None:
    rows = data.train.rows
    at = event_bin(EDGES, rows.duration_days[forest.fitted])
    for e in range(2):
        times, summed = nelson_aalen_estimator(rows.cause[forest.fitted] == e + 1, at + 1.0)
        np.testing.assert_allclose(np.cumsum(forest.cohort[e])[times.astype(int) - 1], summed, rtol=1e-12)


def test_no_hazard_is_zero_where_a_leaf_had_no_event(data: FittingData, forest: CompetingForest) -> None:
    none = np.zeros((1, 2, len(EDGES) + 1))
    factor = forest._factor(none, forest.part_of)[0]
    for e in range(2):
        np.testing.assert_allclose(factor[e], 0.5 / (forest.events[e] + 0.5))
    same = forest._factor(forest.cohort[None], np.arange(len(EDGES) + 1))
    np.testing.assert_allclose(same, 1.0)  # the cohort's own increments change nothing


def test_settings_are_chosen_by_tuning_likelihood_within_the_budget(
    data: FittingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[tuple[int, int]] = []
    grow = CompetingForest._grow

    def spy(self: CompetingForest, features: Any, at: Any, own: Any, leaf: int) -> Any:
        grown.append((len(features), leaf))
        return grow(self, features, at, own, leaf)

    monkeypatch.setattr(CompetingForest, "_grow", spy)
    monkeypatch.setattr(module, "TREES", 3)
    chosen = CompetingForest(data)
    assert grown == [(500, 20)] * 2 + [(500, 80)] * 2
    assert chosen.trials == 2 * len(module.TIME_PARTS)
    own = chosen.nll(data.tuning, np.arange(len(data.tuning))).mean()
    for leaf in (20, 80):
        for parts in (1, 3):
            monkeypatch.setattr(module, "LEAVES", (leaf,))
            monkeypatch.setattr(module, "TIME_PARTS", (parts,))
            other = CompetingForest(data)
            assert other.chosen == (leaf, parts)
            assert own <= other.nll(data.tuning, np.arange(len(data.tuning))).mean() + 1e-12


def test_a_cause_without_events_and_nobody_to_tune_by(data: FittingData) -> None:
    causes = np.asarray(data.train.rows.cause)
    one_cause = replace(data.train.rows, cause=np.where(causes == 2, 0, causes).astype(np.int8))
    nobody = data.tuning.take(np.arange(0))
    model = CompetingForest(replace(data, train=replace(data.train, rows=one_cause), tuning=nobody))
    risk = model.risk(data.train, np.arange(20), DAYS)
    assert (risk[:, 1] < 1e-2).all()
    assert np.isfinite(model.nll(data.train, np.arange(20))).all()
    assert model.risk(data.train, np.arange(0), DAYS).shape == (0, 2, 4)


def test_without_its_library_all_goes_on_and_says_so(data: FittingData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "has_forest", lambda: False)
    note = what_is_missing("all")
    assert note is not None
    assert 'not installed (in a clone of the repository: pip install -e ".[forest]")' in note
    assert what_is_missing("fast") is what_is_missing("forest") is None
    with pytest.raises(EhrseqError, match=r'pip install -e "\.\[forest\]"'):
        fit_baselines("forest", data)


def test_forest_comes_with_the_fast_baselines(data: FittingData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TREES", 2)
    quick = partial(AgeAndSex, data)
    for name in ("BoostedVisits", "LandmarkCox"):
        slow = getattr(baselines, name)
        fake = {"name": slow.name, "__new__": lambda *_: quick(), "fit": staticmethod(lambda *_, **__: quick())}
        monkeypatch.setattr(baselines, name, type(name, (), fake))
    fitted = fit_baselines("forest", data)
    names = sorted(one.model.name for one in fitted)
    assert names == ["Aalen–Johansen", *["age + sex"] * 3, "competing-risk forest"]
    assert fitted[0].model.name == "competing-risk forest"  # the truth is in the history, so that it is the strongest
    assert math.isfinite(fitted[0].tuning_nll)
