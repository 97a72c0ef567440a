"""Trees as arrays answer as scikit-learn's own do."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from ehrsequencing.baselines.boosted import Trees


def boosted(leaves: int = 8, seed: int = 0) -> tuple[HistGradientBoostingRegressor, np.ndarray]:
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
    model, x = boosted(leaves)
    other = np.concatenate([x, x[::-1] + np.float32(0.5), np.full((3, 6), np.nan, np.float32)])
    trees = Trees.from_sklearn(model, np.arange(6))
    np.testing.assert_allclose(trees.predict(other), model.predict(other), rtol=1e-12)
    for number, staged in enumerate(model.staged_predict(x[:200]), start=1):
        np.testing.assert_allclose(
            Trees.from_sklearn(model, np.arange(6), trees=number).predict(x[:200]), staged, rtol=1e-12
        )
    assert len(np.unique(trees.predict(other))) > 5  # rows are told apart


def test_no_tree_at_all_is_the_start() -> None:
    model, x = boosted()
    none = Trees.from_sklearn(model, np.arange(6), trees=0)
    np.testing.assert_allclose(none.predict(x), np.exp(model._baseline_prediction.ravel()[0]), rtol=1e-12)


def test_features_may_stand_in_other_columns() -> None:
    model, x = boosted()
    columns = np.array([7, 3, 4, 5, 6, 2])
    wide = np.zeros((len(x), 8), np.float32)
    wide[:, columns] = x
    trees, moved = (Trees.from_sklearn(model, given) for given in (np.arange(6), columns))
    np.testing.assert_array_equal(moved.predict(wide), trees.predict(x))
