"""Boosted regression trees as plain arrays: taken from scikit-learn, kept without a pickle, answered by NumPy."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError

_CHUNK_ROWS = 1024  # rows that walk through all trees together: what fits the cache


@dataclass(frozen=True)
class Trees:
    """T trees of at most n nodes; the answer to a row is the exponential of a sum.

        f(x) = exp(start + Σ_t value_t(leaf of x in tree t))

    At an inner node a row goes left where its feature is at most the threshold, or unknown and `missing_left`. A leaf
    is its own left and right, and children have higher numbers than their parent.

    Attributes:
        start: () the sum before the first tree.
        feature: (T, n) column that a node looks at.
        threshold: (T, n) float64.
        missing_left: (T, n) where rows without the feature go.
        left: (T, n) number of the left child.
        right: (T, n) of the right one.
        value: (T, n) of a leaf.
    """

    start: Floats
    feature: Ints
    threshold: Floats
    missing_left: Bools
    left: Ints
    right: Ints
    value: Floats

    @classmethod
    def of_sklearn(
        cls, model: HistGradientBoostingRegressor, *, trees: int | None = None
    ) -> "Trees":
        """The first trees of a fitted boosting with a logarithmic link (Poisson loss); by default all of them."""
        nodes = [stage[0].nodes for stage in model._predictors[:trees]]
        shape = (len(nodes), max(map(len, nodes), default=1))
        own = np.broadcast_to(np.arange(shape[1]), shape)
        found = {
            "feature": np.zeros(shape, np.int64),
            "threshold": np.zeros(shape),
            "value": np.zeros(shape),
            "missing_left": np.zeros(shape, bool),
            "left": own.copy(),
            "right": own.copy(),
        }
        names = {
            "feature": "feature_idx",
            "threshold": "num_threshold",
            "missing_left": "missing_go_to_left",
            "left": "left",
            "right": "right",
        }
        for t, tree in enumerate(nodes):
            inner = np.flatnonzero(tree["is_leaf"] == 0)
            for name, theirs in names.items():
                found[name][t, inner] = tree[theirs][inner]
            leaves = np.flatnonzero(tree["is_leaf"])
            found["value"][t, leaves] = tree["value"][leaves]
        return cls(np.asarray(model._baseline_prediction, dtype=np.float64).ravel()[0], **found)

    def __len__(self) -> int:
        return len(self.feature)

    @cached_property
    def depth(self) -> int:
        """Steps from the root to the deepest leaf."""
        steps, at = 0, np.zeros((len(self), 1), dtype=np.int64)
        while True:
            below = np.concatenate(
                [np.take_along_axis(side, at, axis=1) for side in (self.left, self.right)], axis=1
            )
            if not len(self) or (below == np.concatenate([at, at], axis=1)).all():
                return steps
            at, steps = below, steps + 1

    def predict(self, design: Floats32) -> Floats:
        """F of each row of (r, columns); NaN = unknown."""
        out = np.empty(len(design))
        for first in range(0, len(design), _CHUNK_ROWS):
            part = slice(first, first + _CHUNK_ROWS)
            out[part] = self._walk(np.asarray(design[part], dtype=np.float64))
        return out

    def _walk(self, x: Floats) -> Floats:
        flat = {name: getattr(self, name).ravel() for name in _OF_NODES}
        root = np.arange(len(self))[:, None] * self.feature.shape[1]
        at, row = np.repeat(root, len(x), axis=1), np.arange(len(x))
        for _ in range(self.depth):
            seen = x[row, flat["feature"][at]]
            goes_left = np.where(
                np.isnan(seen), flat["missing_left"][at], seen <= flat["threshold"][at]
            )
            at = root + np.where(goes_left, flat["left"][at], flat["right"][at])
        total = np.full(len(x), float(self.start))
        for tree in at:  # one after another, as they were added in training
            total += flat["value"][tree]
        return np.asarray(np.exp(total), dtype=np.float64)

    def with_columns(self, columns: Ints) -> "Trees":
        """The same trees where feature f stands in column `columns[f]`."""
        return replace(self, feature=columns[self.feature])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array by its name."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[Any]], *, columns: int, where: str) -> "Trees":
        """Trees from their arrays.

        Args:
            arrays: As `arrays` gave them.
            columns: Of the rows that will be asked about.
            where: Named in an error.

        Raises:
            EhrseqError: They are no trees: a shape, a column or a child is impossible.
        """
        try:
            found = cls(**{field.name: arrays[field.name] for field in fields(cls)})
            shape, own = found.feature.shape, np.arange(found.feature.shape[1])
            leaf = (found.left == own) & (found.right == own)
            inner = (
                (found.left > own)
                & (found.right > own)
                & (found.left < shape[1])
                & (found.right < shape[1])
            )
            fits = bool((leaf | inner).all()) and all(
                getattr(found, name).shape == shape for name in _OF_NODES
            )
            fits = fits and bool(((found.feature >= 0) & (found.feature < columns)).all())
            fits = fits and bool(np.isfinite(found.value).all() and np.isfinite(found.start).all())
            fits = fits and found.start.shape == ()
        except (KeyError, IndexError, ValueError) as error:
            raise EhrseqError("holds no trees", where=where, fix="train again") from error
        if not fits:
            raise EhrseqError("holds impossible trees", where=where, fix="train again")
        return found


_OF_NODES = tuple(field.name for field in fields(Trees) if field.name != "start")
