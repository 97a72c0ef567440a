"""Gradient-boosted trees as plain arrays: read from LightGBM, answered by NumPy, kept without a pickle."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ehrsequencing.core.arrays import Bools, Bytes, Floats, Ints
from ehrsequencing.predictors.fitting_data import UNKNOWN

if TYPE_CHECKING:
    import lightgbm

_CHUNK_CELLS = 2**19  # rows × trees that are walked through together: their bytes fit the cache


@dataclass(frozen=True)
class Trees:
    """T trees of at most n nodes as plain arrays, kept without a pickle.

        f(x) = exp(start + Σ_t value_t(leaf of x in tree t))

    At an inner node a row goes left where the bin of its feature is at most the threshold, or `UNKNOWN` and
    `missing_left`. A leaf is its own left and right.

    Attributes:
        start: () the sum before the first tree.
        feature: (T, n) column that a node looks at.
        threshold: (T, n) float64, from −1 to 254.
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
    def from_lightgbm(
        cls, booster: "lightgbm.Booster", columns: Ints, *, start: float, trees: int
    ) -> "Trees":
        """The first trees of a fitted boosting with a logarithmic link (Poisson loss).

        A node whose feature was known in every training row sends a row without it where more of them went.

        Args:
            booster: The boosting.
            columns: Where each of its features stands in the rows to predict for.
            start: The sum before the first tree.
            trees: How many.
        """
        text = booster.model_to_string(num_iteration=trees) if trees else ""
        stages = [_fields(one) for one in text.split("\nTree=")[1:]]
        nodes = max((2 * len(stage["leaf_value"]) - 1 for stage in stages), default=1)
        shape = (len(stages), nodes)
        own = np.broadcast_to(np.arange(nodes), shape)  # a leaf adds nothing until it has its value
        made = cls(
            np.array(start),
            np.zeros(shape, np.int64),
            np.zeros(shape),
            np.zeros(shape, bool),
            own.copy(),
            own.copy(),
            np.zeros(shape),
        )
        for t, stage in enumerate(stages):
            leaves, inner = len(stage["leaf_value"]), len(stage["leaf_value"]) - 1
            made.value[t, inner : inner + leaves] = stage["leaf_value"]
            if not inner:
                continue
            rows = np.append(stage["internal_count"], stage["leaf_count"])
            # a leaf has the number −1, −2 … in the text, and stands after the inner nodes here
            left, right = (
                np.where(child < 0, inner - 1 - child, child).astype(np.int64)
                for child in (stage["left_child"], stage["right_child"])
            )
            made.feature[t, :inner] = columns[stage["split_feature"].astype(np.int64)]
            made.threshold[t, :inner] = stage["threshold"]
            made.left[t, :inner], made.right[t, :inner] = left, right
            kind = stage["decision_type"].astype(np.int64)
            was_missing, goes_left = kind >> 2 & 3 == 2, kind >> 1 & 1 == 1
            made.missing_left[t, :inner] = np.where(
                was_missing, goes_left, rows[left] >= rows[right]
            )
        return made

    def predict(self, design: Bytes) -> Floats:
        """F of each row of (r, columns) bins.

        A child comes after its parent, so that one pass over the nodes of all trees brings each row to its leaf. Bytes
        are added and multiplied, which is several times as fast as a choice.
        """
        # what is not known comes first in the second half of the bins: 255 + 1 = 0
        column = self.feature + design.shape[1] * self.missing_left
        highest = np.clip(np.floor(self.threshold), -1, UNKNOWN - 1) + self.missing_left
        first = (highest + 1).clip(max=UNKNOWN).astype(np.uint8)  # that goes right, or none does
        own = np.arange(self.left.shape[1])
        left, more = ((x % 256).astype(np.uint8) for x in (self.left - own, self.right - self.left))
        more[highest >= UNKNOWN] = 0
        inner = np.flatnonzero((self.left != own).any(axis=0)).tolist()
        total = np.empty(len(design))
        step = max(1, _CHUNK_CELLS // max(1, len(self.value)))
        for start in range(0, len(design), step):
            some = design[start : start + step].T
            bins = np.concatenate([some, some + np.uint8(1)])
            node = np.zeros((len(self.value), some.shape[1]), dtype=np.uint8)
            for n in inner:
                here = node == n
                right = here & (bins[column[:, n]] >= first[:, n, None])
                node += here.view(np.uint8) * left[:, n, None]  # modulo 256
                node += right.view(np.uint8) * more[:, n, None]
            leaf = np.take_along_axis(self.value, node.astype(np.int64), axis=1)
            # one tree after another, as they were added in training
            sums = np.add.reduce(leaf, axis=0, initial=float(self.start))
            total[start : start + step] = sums
        return np.asarray(np.exp(total))


def _fields(tree: str) -> dict[str, Floats]:
    """The arrays of one tree in LightGBM's text."""
    lines = (line.partition("=") for line in tree.split("\n\n")[0].splitlines())
    wanted = {"leaf_value", "leaf_count", "internal_count", "left_child", "right_child"}
    wanted |= {"split_feature", "threshold", "decision_type"}
    return {name: np.array(text.split(), np.float64) for name, _, text in lines if name in wanted}
