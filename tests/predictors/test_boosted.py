"""Boosted visits: every prediction time, as many trials as they are told; trees as arrays; cuts of many people each."""

from collections.abc import Callable
from dataclasses import replace

import lightgbm
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import TaskConfig
from ehrsequencing.core import arrays
from ehrsequencing.predictors import boosted, fitting_data as features
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.fitting_data import UNKNOWN, feature_cuts, feature_range
from ehrsequencing.predictors.history import has_people, history_features
from ehrsequencing.predictors.trees import Trees
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from helpers.baselines import given_to, with_rows
from helpers.settings import examples


@pytest.mark.slow
def test_trials_with_and_without_code_pairs_are_chosen_by_tuning_likelihood(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = given_to(task, prepared, train, tuning)
    every = boosted.TRIALS
    assert [trial["pairs"] for trial in every[:2]] == [True, False]
    monkeypatch.setattr(boosted, "EVENTS_TO_TRY", 1)
    nll = []
    for trials in (every[:1], every[1:2], every[:2]):
        monkeypatch.setattr(boosted, "TRIALS", trials)
        model = BoostedVisits.fit(replace(made, trials=2))
        nll.append(float(model.nll(tuning).mean()))
    assert nll[0] != nll[1]
    assert nll[2] <= min(nll[:2]) + 1e-9


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


def fitted_trees(leaves: int = 8, seed: int = 0) -> tuple[lightgbm.Booster, np.ndarray]:
    """Poisson trees on binned features, a fifth of them unknown, but for the last one, which is known everywhere."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 64, (1500, 6)).astype(np.float32)
    x[:, :5][rng.random((1500, 5)) < 0.2] = np.nan
    rate = np.exp(0.03 * np.nan_to_num(x[:, 0], nan=40) - 0.5 * np.isnan(x[:, 3]) + 0.02 * x[:, 5])
    settings = boosted._ALWAYS | {"num_leaves": leaves, "min_data_in_leaf": 20, "seed": seed}
    data = lightgbm.Dataset(x, rng.poisson(rate), weight=rng.uniform(0.5, 2, len(x)), init_score=np.zeros(len(x)))
    return lightgbm.train(settings, data, 30), x


@pytest.mark.parametrize("leaves", [2, 8, 31])
def test_trees_answer_as_lightgbm_does(leaves: int) -> None:
    booster, x = fitted_trees(leaves)
    other = np.concatenate([x, x[::-1, [1, 2, 3, 4, 0, 5]], np.full((3, 6), np.nan, np.float32)])
    other[-3:, 5] = 7.0
    bins = np.where(np.isnan(other), UNKNOWN, other).astype(np.uint8)
    for number in (1, 2, 17, 30):
        trees = Trees.from_lightgbm(booster, np.arange(6), start=0.25, trees=number)
        theirs = np.exp(0.25) * booster.predict(other, num_iteration=number)
        np.testing.assert_allclose(trees.predict(bins), theirs, rtol=1e-12)
    assert len(np.unique(trees.predict(bins))) > 5
    # what no training row lacked goes where more rows went
    nodes = np.flatnonzero((trees.feature[0] == 5) & (trees.left[0] != np.arange(trees.feature.shape[1])))
    for node in nodes:
        below = [np.sum(x[:, 5] <= trees.threshold[0, node]), np.sum(x[:, 5] > trees.threshold[0, node])]
        assert node != 0 or trees.missing_left[0, node] == (below[0] >= below[1])


def test_boosting_stops_where_the_watched_rows_like_it_best() -> None:
    """Watched rows without any relation to the features want no tree."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 8, (4000, 2)).astype(np.uint8)
    part = rng.integers(0, 2, 4000)
    expected = rng.uniform(0.1, 0.3, 4000)
    event = rng.random(4000) < expected * np.exp(0.3 * (x[:, 0] - 3.5))

    def counts(bins: np.ndarray, some: slice) -> boosted.Counts:
        design = boosted.PeriodBins(bins, np.arange(4000)[some], part[some])
        return boosted.Counts(design, event[some], expected[some])

    fitted, others = counts(x, slice(0, 2000)), counts(x, slice(2000, 4000))
    against = counts(7 - x, slice(2000, 4000))
    trial = boosted.TRIALS[0] | {"feature_fraction": 1.0}
    few, nothing = boosted.boosting(fitted, against, np.arange(3), trial, seed=0)
    many, loss = boosted.boosting(fitted, others, np.arange(3), trial, seed=0)
    assert len(few.feature) == 0
    assert len(many.feature) > 5
    assert loss < nothing

    def poisson(trees: Trees) -> float:
        mu = trees.predict(columns_of(others.design)) * others.expected
        return float((mu - others.event * np.log(mu / others.expected)).sum() / others.expected.sum())

    assert poisson(many) == pytest.approx(loss, rel=1e-5)
    assert poisson(few) == pytest.approx(nothing, rel=1e-5)


def columns_of(design: boosted.PeriodBins) -> np.ndarray:
    return np.column_stack([design.bins[design.row], design.part.astype(np.uint8)])


def many_periods(n: int = 6000) -> tuple[boosted.PeriodBins, np.ndarray, np.ndarray]:
    """Periods, two for each row of bins, some unknown; what is expected in them; and events."""
    rng = np.random.default_rng(1)
    bins = rng.integers(0, 8, (n // 2, 4)).astype(np.uint8)
    bins[rng.random(bins.shape) < 0.1] = UNKNOWN
    row, part = np.repeat(np.arange(n // 2), 2), np.tile([0, 1], n // 2)
    expected = rng.uniform(0.1, 0.3, n)
    event = rng.random(n) < expected * np.exp(0.3 * (bins[row, 0] % 8 - 3.5) + 0.5 * part)
    return boosted.PeriodBins(bins, row, part), expected, event


def test_rows_that_come_in_parts_are_stored_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    design, expected, event = many_periods()
    settings = boosted._ALWAYS | {"num_leaves": 8, "seed": 0}
    texts = []
    for most in (10**6, 2500):  # cells; the sample holds every bin
        monkeypatch.setattr(boosted, "MOST_SAMPLED", most)
        again = boosted.PeriodBins(design.bins, design.row, design.part)
        data = boosted.Counts(again, event, expected).dataset(np.arange(5), settings, 0.1)
        assert data.num_data() == len(design)
        texts.append(lightgbm.train(settings, data, 10).model_to_string())
    assert texts[0] == texts[1]


def test_trees_that_look_at_a_draw_each_expect_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw does not move the mean, and costs little likelihood; a draw of events alone would move it."""
    design, expected, event = many_periods(12_000)
    watched, others = slice(0, 6000), slice(6000, 12_000)
    start, n = np.log(event[others].sum() / expected[others].sum()), expected[watched].sum()
    without = np.exp(start) - event[watched].sum() * start / n
    gains = []
    for most in (10**6, 7500):
        monkeypatch.setattr(boosted, "MOST_GROWN", most)
        fitted, tuning = (
            boosted.Counts(
                boosted.PeriodBins(design.bins, design.row[some], design.part[some]), event[some], expected[some]
            )
            for some in (others, watched)
        )
        trial = boosted.TRIALS[0] | {"learning_rate": 0.1, "feature_fraction": 1.0}
        trees, loss = boosted.boosting(fitted, tuning, np.arange(5), trial, seed=0)
        mu = trees.predict(columns_of(fitted.design)) * fitted.expected
        assert mu.sum() == pytest.approx(event[others].sum(), rel=0.03)
        gains.append(without - loss)
    assert len(trees.feature) > 5
    assert gains[1] > 0.8 * gains[0] > 0


def test_features_made_in_parts_are_those_of_all_rows(
    prepared: Prepared, task: TaskConfig, train: TaskRecords, tuning: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts come from a draw; bins and covariates are those of every row under these cuts."""
    made = given_to(task, prepared, train, tuning)
    monkeypatch.setattr(features, "MOST_CUT_CELLS", 20_000)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 37)
    parts = replace(made, made=None).features
    history = history_features(train, chosen=parts.rows, columns=parts.columns)
    assert len(parts.rows) == len(train)
    np.testing.assert_array_equal(parts.bins, features.binned(history, parts.cuts))
    np.testing.assert_array_equal(parts.x, parts.design(history[parts.linear]))


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
@settings(max_examples=examples(240), deadline=None)
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
