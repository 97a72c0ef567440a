"""Boosted visits: every prediction time, as many trials as they are told; trees as arrays; cuts of many people each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor

from ehrsequencing.config import TaskConfig
from ehrsequencing.predictors import boosted
from ehrsequencing.predictors.boosted import BoostedVisits, Trees
from ehrsequencing.predictors.features import feature_cuts, feature_range
from ehrsequencing.predictors.history import has_people
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from helpers.baselines import given_to, with_rows


@pytest.mark.slow
def test_a_trial_without_code_pairs_sees_none_and_is_chosen_by_tuning_likelihood(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = given_to(task, prepared, train, tuning)
    every = boosted.TRIALS
    assert [trial["pairs"] for trial in every[:2]] == [True, False]
    widths: list[int] = []
    fit_one = HistGradientBoostingRegressor.fit

    def spy(self: Any, x: Any, *args: Any, **held: Any) -> Any:
        widths.append(x.shape[1])
        return fit_one(self, x, *args, **held)

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", spy)
    nll = []
    for trials in (every[:1], every[1:2], every[:2]):
        monkeypatch.setattr(boosted, "TRIALS", trials)
        model = BoostedVisits.fit(replace(made, trials=2))
        nll.append(float(model.nll(tuning).mean()))
    of_pairs = int(np.sum(model.used >= len(model.columns) - 2 * len(model.columns.pairs)))
    assert of_pairs > 5
    causes, whole = len(task.causes), len(model.used) + 1
    assert widths == [whole] * causes + [whole - of_pairs] * causes + [whole, whole - of_pairs] * causes
    assert nll[2] <= min(nll[:2]) + 1e-9
    names = [model.columns.names[column] for column in model.used[: len(model.used) - of_pairs]]
    assert not any(" + " in name for name in names)


def test_boosting_does_without_ages_and_without_a_second_visit(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords
) -> None:
    """Columns that nobody has: the trees' binning fails on them."""
    ageless = [
        with_rows(
            split,
            age_years=np.full(len(split), np.nan, np.float32),
            visits_before=np.minimum(split.rows.visits_before, 1),
        )
        for split in (train, tuning)
    ]
    model = BoostedVisits.fit(given_to(task, prepared, *ageless))
    assert len(model.cuts[0]) == len(model.cuts[3]) == 0  # ages, days between visits
    assert np.isfinite(model.nll(ageless[1])).all()


def fitted_trees(leaves: int = 8, seed: int = 0) -> tuple[HistGradientBoostingRegressor, np.ndarray]:
    """Poisson trees on binned features, a fifth of them unknown."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 64, (1500, 6)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    rate = np.exp(0.03 * np.nan_to_num(x[:, 0], nan=40) - 0.5 * np.isnan(x[:, 3]))
    model = HistGradientBoostingRegressor(
        loss="poisson", max_iter=30, max_leaf_nodes=leaves, max_bins=64, early_stopping=False, random_state=seed
    )
    return model.fit(x, rng.poisson(rate), sample_weight=rng.uniform(0.5, 2, len(x))), x


@pytest.mark.parametrize("leaves", [2, 8, 31])
def test_trees_answer_as_scikit_learn_does(leaves: int) -> None:
    model, x = fitted_trees(leaves)
    other = np.concatenate([x, x[::-1] + np.float32(0.5), np.full((3, 6), np.nan, np.float32)])
    trees = Trees.from_sklearn(model, np.arange(6))
    np.testing.assert_allclose(trees.predict(other), model.predict(other), rtol=1e-12)
    for number, staged in enumerate(model.staged_predict(x[:200]), start=1):
        np.testing.assert_allclose(
            Trees.from_sklearn(model, np.arange(6), trees=number).predict(x[:200]), staged, rtol=1e-12
        )
    assert len(np.unique(trees.predict(other))) > 5  # rows are told apart


Cuts = Callable[..., np.ndarray]


def drawn(seed: int, kind: str, people: int) -> tuple[np.ndarray, np.ndarray]:
    """A feature of rows that belong to people, very unevenly."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(people), rng.geometric(0.2, people))
    n = len(owner)
    values = {
        "counts": rng.poisson(1.5, n),
        "days": rng.exponential(20.0, n).round(1),
        "ranks": rng.normal(size=n),
        "of a person": rng.normal(size=people)[owner],
        "hardly": np.where(owner < people - 3, 0.0, owner),
    }[kind].astype(np.float32)
    values[rng.random(n) < rng.choice([0.0, 0.01, 0.5])] = np.nan
    return values, owner


def people_of_bins(values: np.ndarray, owner: np.ndarray, cuts: np.ndarray) -> list[int]:
    """Plain loops: how many people have a value between two cuts, for each bin; and how many lack the feature."""
    bins: list[set[int]] = [set() for _ in range(len(cuts) + 1)]
    for value, who in zip(values.tolist(), owner.tolist(), strict=True):
        if value == value:
            bins[sum(cut < value for cut in cuts)].add(who)
    lacking = {who for value, who in zip(values.tolist(), owner.tolist(), strict=True) if value != value}
    return [len(lacking) if k == 0 and cuts[0] == -np.inf else len(found) for k, found in enumerate(bins)]


def is_safe(cuts_of: Cuts, values: np.ndarray, owner: np.ndarray, enough: int) -> bool:
    """Whether every bin has enough people, and no cut is anybody's value or lies halfway between two values."""
    cuts = cuts_of(values, owner, most=16, enough=enough)
    distinct = np.unique(values[~np.isnan(values)]).astype(np.float64)
    finite = cuts[np.isfinite(cuts)]
    halfway = {float(np.float32(v)) for v in (distinct[1:] + distinct[:-1]) / 2} if len(distinct) > 20 else set()
    rare = {v for v in distinct.tolist() if len(set(owner[values == v].tolist())) < enough}
    told = [cut for cut in finite.tolist() if cut in rare or cut in halfway]
    return len(cuts) <= 16 and (not len(cuts) or min(people_of_bins(values, owner, cuts)) >= enough) and not told


def plain_quantiles(values: np.ndarray, owner: np.ndarray, *, most: int, enough: int) -> np.ndarray:
    """The broken one: what was stored at first."""
    known = values[~np.isnan(values)]
    return np.unique(np.quantile(known, np.linspace(0, 1, most)[1:-1]).astype(np.float32)).astype(np.float64)


KINDS = ("counts", "days", "ranks", "of a person", "hardly")


@given(st.integers(0, 10**6), st.sampled_from(KINDS), st.integers(1, 90), st.sampled_from([2, 5, 11]))
@settings(max_examples=60, deadline=None)
def test_no_bin_and_no_cut_tells_of_few_people(seed: int, kind: str, people: int, enough: int) -> None:
    values, owner = drawn(seed, kind, people)
    assert is_safe(feature_cuts, values, owner, enough)
    found = feature_range(values, owner, enough=enough)
    known = ~np.isnan(values)
    assert (found is None) == (len(set(owner[known].tolist())) < enough)
    if found is not None:
        assert values[known].min() <= found[0] + 1e-6
        assert list(found) == sorted(found)
        assert found[2] <= values[known].max() + 1e-6
    assert has_people(owner, enough) == (people >= enough)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_quantiles_tell_of_few_people(kind: str) -> None:
    """The test above sees them."""
    assert not all(is_safe(plain_quantiles, *drawn(seed, kind, 60), 5) for seed in range(5))


def test_cuts_keep_what_many_people_share() -> None:
    """Shared counts are cut between any two of them, and a feature that people lack below all."""
    owner = np.arange(600)
    values = np.repeat([0, 1, 2, 7], 150).astype(np.float32)
    np.testing.assert_allclose(feature_cuts(values, owner, most=64, enough=5), [0.5, 1.5, 4.5], atol=1e-6)
    values[::10] = np.nan
    np.testing.assert_allclose(feature_cuts(values, owner, most=64, enough=5), [-np.inf, 0.5, 1.5, 4.5], atol=1e-6)
    spread = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    cuts = feature_cuts(spread, np.arange(5000), most=64, enough=5)
    expected = np.quantile(spread, np.linspace(0, 1, 64)[1:-1])
    assert len(cuts) == len(expected)
    np.testing.assert_allclose(cuts, expected, atol=0.05)
