"""The blend: a network, boosted visits and a landmark Cox model as one predictor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_bytes, write_json
from ehrsequencing.core.outputs import ARRAYS_FILE, BLEND_FILE
from ehrsequencing.core.signals import give_back_freed_memory
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import CoxHazards, LandmarkCox
from ehrsequencing.predictors.features import LinearDesign
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.history import FeatureSpec
from ehrsequencing.predictors.predictor import (
    Known,
    Predictor,
    Recalibrated,
    hazards_of_each,
)
from ehrsequencing.predictors.recalibration import Labels
from ehrsequencing.predictors.trees import Trees
from ehrsequencing.predictors.weights import BlendWeights, blended_hazards, fit_weights
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary

BLEND, STACKED = "blend", "trees and Cox"


class Blend(Predictor):
    """Predictors of one grid as one: its `log H` is a convex mean of theirs (`weights.py`).

    Args:
        parts: The first may be an ensemble; its members then make the band.
        weights: Of the parts, per cause.
        name: What tables call it.
    """

    def __init__(
        self, parts: Sequence[Predictor], weights: BlendWeights, *, name: str = BLEND
    ) -> None:
        self.parts, self.weights, self.name = tuple(parts), weights, name
        self.edges_days, self.n_causes = parts[0].edges_days, parts[0].n_causes
        self.members = [Blend([one, *parts[1:]], weights, name=name) for one in parts[0].members]

    def _of_part(self, part: TaskRecords, known: Known) -> Floats:
        parts = [one.of_part(part, known) for one in self.parts]
        return blended_hazards(parts, self.weights.value, self.edges_days)

    @property
    def stacked(self) -> Blend:
        """Trees and Cox alone, without their last step."""
        last = self.parts[-1].inner if isinstance(self.parts[-1], Recalibrated) else self.parts[-1]
        return last if isinstance(last, Blend) else self

    @property
    def boosted(self) -> BoostedVisits:
        """The trees."""
        return next(part for part in self.stacked.parts if isinstance(part, BoostedVisits))

    @property
    def cox(self) -> CoxHazards:
        """The regressions."""
        return next(part for part in self.stacked.parts if isinstance(part, CoxHazards))

    @property
    def shares(self) -> tuple[list[Predictor], BlendWeights]:
        """The network, if there is one, trees and Cox, and what each has of the whole."""
        stacked = self.stacked
        if stacked is self:
            return [*self.parts], self.weights
        return [self.parts[0], *stacked.parts], self.weights.before(stacked.weights)

    def save(self, folder: Path, correction: tuple[Floats, Floats] | None = None) -> None:
        """Write `blend.json` and `blend.safetensors`: all but the network, which has files of its own.

        Args:
            folder: Of the run.
            correction: Intercept and slope (causes, bins), the last step of trees and Cox where they answer alone.
        """
        stacked, last = self.stacked, self.parts[-1]
        if isinstance(last, Recalibrated):
            correction = last.intercept, last.slope
        boosted, cox, design = self.boosted, self.cox, self.cox.design
        arrays: dict[str, NDArray[Any]] = {
            "boosted.cuts": np.concatenate([np.zeros(0), *boosted.cuts]),
            "boosted.cut_offsets": np.cumsum([0, *map(len, boosted.cuts)]),
            "boosted.part_of": boosted.part_of,
            "boosted.base": boosted.base,
        }
        fitted = {e: trees for e, trees in enumerate(boosted.trees) if trees is not None}
        for e, trees in fitted.items():
            arrays |= {f"boosted.trees.{e}.{name}": getattr(trees, name) for name in _OF_TREES}
        arrays |= {f"cox.{name}": getattr(cox, name) for name in _OF_COX}
        arrays |= {f"cox.design.{name}": getattr(design, name) for name in _OF_DESIGN}
        arrays |= dict(zip(_CORRECTION, correction or (), strict=False))
        data = save({name: np.array(array, order="C") for name, array in arrays.items()})
        write_bytes(folder / ARRAYS_FILE, data)
        facts = {
            "parts": [part.name for part in self.parts],
            "weights": {name: getattr(self.weights, name).tolist() for name in _OF_WEIGHTS},
            "stacked": {name: getattr(stacked.weights, name).tolist() for name in _OF_WEIGHTS},
            "features": asdict(boosted.columns),
            "edges_days": self.edges_days,
            "trees": sorted(map(str, fitted)),
        }
        write_json(folder / BLEND_FILE, facts)

    @classmethod
    def load(cls, folder: Path, vocabulary: Vocabulary, network: Predictor | None) -> Predictor:
        """Read what `save` wrote.

        Args:
            folder: The run, whose manifest has been checked.
            vocabulary: The run's.
            network: The run's, if it has one.

        Raises:
            EhrseqError: A part looks at a column that its features do not have.
        """
        text, arrays = _of_now(read_json(folder / BLEND_FILE)), load_file(folder / ARRAYS_FILE)
        # history features from JSON
        saved = text["features"]
        pairs = tuple((int(first), int(second)) for first, second in saved["pairs"])
        lists = {name: tuple(saved[name]) for name in ("codes", "numeric", "static_codes", "names")}
        features, edges = FeatureSpec(**lists, pairs=pairs), tuple(text["edges_days"])
        cut_offsets = arrays["boosted.cut_offsets"]
        # of features with a cut, and the part of time
        columns = int((np.diff(cut_offsets) > 0).sum()) + 1
        _require_places(arrays, columns, len(features), folder)
        weights, of_two = (_weights(text[name]) for name in ("weights", "stacked"))
        base = arrays["boosted.base"]
        trees = [
            Trees(*(arrays[f"boosted.trees.{e}.{name}"] for name in _OF_TREES))
            if str(e) in text["trees"]
            else None
            for e in range(base.shape[1])
        ]
        boosted = BoostedVisits(
            vocabulary,
            features,
            np.split(arrays["boosted.cuts"], cut_offsets[1:-1]),
            arrays["boosted.part_of"],
            base,
            edges,
            trees,
        )
        design = LinearDesign(
            features,
            *(arrays[f"cox.design.{name}"] for name in _OF_DESIGN),
        )
        mean, scale, beta, cox_base, bounds = (arrays[f"cox.{name}"] for name in _OF_COX)
        cox = CoxHazards(vocabulary, design, mean, scale, beta, cox_base, bounds, edges)
        stacked: Predictor = cls([boosted, cox], of_two, name=STACKED)
        if _CORRECTION[0] in arrays:
            stacked = stacked.recalibrated(*(arrays[name] for name in _CORRECTION))
        return stacked if network is None else cls([network, stacked], weights)


_OF_TREES = ("start", "feature", "threshold", "missing_left", "left", "right", "value")
_OF_COX = ("mean", "scale", "beta", "base", "bounds")
_OF_DESIGN = ("used", "fill", "low", "high", "marked")
_OF_WEIGHTS = ("value", "low", "high")
_CORRECTION = ("correction.intercept", "correction.slope")


def _weights(saved: dict[str, Any]) -> BlendWeights:
    return BlendWeights(*(np.array(saved[name]) for name in _OF_WEIGHTS))


def _of_now(text: dict[str, Any]) -> dict[str, Any]:
    """The content of `blend.json`; of 2.0 it has one weight for each of the network, trees and Cox."""
    if "stacked" in text:
        return text
    each = {name: np.array(text["weights"][name]) for name in _OF_WEIGHTS}
    value = each["value"][:, -2:]
    total = value.sum(axis=1, keepdims=True)
    share = np.divide(value, total, out=np.full_like(value, 0.5), where=total > 0)
    own = {name: np.c_[one[:, :1], 1 - one[:, :1]] for name, one in each.items()}
    return {**text, "weights": own, "stacked": {**each, "value": share}}


def _require_places(
    arrays: Mapping[str, NDArray[Any]], columns: int, features: int, folder: Path
) -> None:
    """Refuse trees and Cox that name other columns or nodes than there are, or trees that never end.

    Hashes prove no author.
    """
    for name, array in arrays.items():
        least: Any = 0
        most = {"feature": columns, "used": features}.get(name.rpartition(".")[2])
        if name.endswith((".left", ".right")):
            # numbers of nodes are bytes, and a leaf is its own child
            least, most = np.arange(array.shape[-1]), min(array.shape[-1], 256)
        if most is not None and np.any((array < least) | (array >= most)):
            raise EhrseqError(
                f"{name} names what there is not",
                where=str(folder / ARRAYS_FILE),
                fix="train the run again",
            )


# ---- trees and Cox, each fitted without every fold and once on all ---------------------------------------------------


FOLDS = 5
MOST_ROWS = 100_000  # training rows that weights are fitted to; above, those of subjects spread evenly over all


@dataclass(frozen=True)
class Stack:
    """Trees and Cox.

    Attributes:
        fitted: The two on all training subjects, with their weights.
        out_of_fold: (R, causes, bins) mean hazards per day of the two at the training rows, each row by fits without
            its subject; NaN at rows of subjects in no fold.
    """

    fitted: Blend
    out_of_fold: Floats32


def fit_stack(
    data: FittingData,
    *,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Stack:
    """Fit both, without each fold and on all.

        λ̃_e(k | x) = (λ_e(k | x; trees) + λ_e(k | x; Cox)) / 2

    Args:
        data: What to fit; its seed divides the subjects.
        progress: Called with fits done, and of how many.
    """
    train, shape = data.train, (len(data.task.causes), len(data.edges_days) + 1)
    mean = np.full((len(train), *shape), np.nan, dtype=np.float32)
    weighed = train.rows.subject % max(1, -(-len(train) // MOST_ROWS)) == 0  # rows
    each = np.empty((2, int(weighed.sum()), *shape), dtype=np.float32)
    place = np.cumsum(weighed) - 1
    folds = folds_of(np.diff(train.rows.row_offsets), folds=FOLDS, seed=data.seed)

    def divided(data: FittingData, done: int) -> Iterator[FittingData]:
        """The data without each fold, then all of it."""
        for number in range(len(folds) + 1):
            give_back_freed_memory()  # what the fit before was made of
            progress(done + number, 2 * len(folds) + 2)
            yield data.without(folds[number]) if number < len(folds) else data

    shared = replace(data, made=data.features)
    cox = list(map(LandmarkCox, divided(shared, 0)))  # first: trees need the memory of covariates
    none = np.zeros((0, 0))
    of_trees = replace(shared.features, linear=np.arange(0), x=none, tuning_x=none)
    shared = replace(data, made=of_trees)
    trees = map(BoostedVisits.fit, divided(shared, len(cox)))  # `map` keeps no data
    *models, of_all = [[*both] for both in zip(trees, cox, strict=True)]
    del shared, of_trees
    give_back_freed_memory()
    for parts, fold in zip(models, folds, strict=True):
        rows = np.flatnonzero(np.isin(train.rows.subject, fold))
        for some, hazards in hazards_of_each(parts, train.take(fold)):
            here = rows[some]
            mean[here] = np.mean(hazards, axis=0)
            each[:, place[here[weighed[here]]]] = np.stack(hazards)[:, weighed[here]]
    weights = fit_weights([*each], data.edges_days, Labels.of(train.rows, weighed))
    return Stack(Blend(of_all, weights, name=STACKED), mean)


def sampled(records: TaskRecords) -> TaskRecords:
    """The records of subjects spread evenly over all, with about `MOST_ROWS` rows; of fewer rows all."""
    step = max(1, -(-len(records) // MOST_ROWS))
    return records if step == 1 else records.take(np.arange(0, len(records.timelines), step))


def folds_of(rows_of_subject: Ints, *, folds: int, seed: int) -> list[Ints]:
    """Subjects with prediction times, in so many folds of about equal size, at random.

    >>> [len(fold) for fold in folds_of(np.array([1, 0, 2, 1, 1, 3]), folds=2, seed=0)]
    [3, 2]
    """
    subjects = np.flatnonzero(rows_of_subject)
    order = np.random.default_rng([seed, folds, len(subjects)]).permutation(subjects)
    return [np.sort(order[number::folds]) for number in range(folds)]
