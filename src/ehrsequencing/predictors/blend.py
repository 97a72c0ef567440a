"""The blend: a network, boosted visits and a landmark Cox model as one predictor.

Its weights are convex and fitted by likelihood, a super learner for competing risks.

For each cause e, with H_{m,e}(t) the cumulative hazard of model m, at the edges of the run's grid

    log H_e(t) = Σ_m w_{e,m} · log H_{m,e}(t)        w_{e,m} ≥ 0,  Σ_m w_{e,m} = 1

A convex mean of logarithms of rising functions rises, so that the hazard between two edges is never negative. After the
last edge the hazard stays what the mean's slope is there. The likelihood is a sum over causes, and convex in w.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
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
from ehrsequencing.metrics.hazards import horizon_nll
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import CoxHazards, LandmarkCox
from ehrsequencing.predictors.fitting_data import FittingData, LinearDesign
from ehrsequencing.predictors.history import FeatureSpec
from ehrsequencing.predictors.predictor import (
    Known,
    Predictor,
    Recalibrated,
    hazards_of_each,
)
from ehrsequencing.predictors.recalibration import Labels
from ehrsequencing.predictors.trees import Trees
from ehrsequencing.records.timelines import TaskRecords

PRIOR_SD = 0.2  # of a weight around equal weights
_LEAST = 1e-290  # of a cumulative hazard, so that its logarithm is finite
_SAME = 1e-9  # of a weight
_STEP = 1e-4  # of a weight, over which the likelihood's slope and curvature are measured
_FLAT = 1e-6  # curvature for each event, below which the two models say the same


def blended_hazards(
    parts: Sequence[Floats], weights: Floats, edges_days: Sequence[float]
) -> Floats:
    """Hazards of the blend.

    Args:
        parts: Of each model (R, E, K) hazards per day, above 0.
        weights: (E, models), each row convex.
        edges_days: The K − 1 inner edges.

    Returns:
        (R, E, K) hazards per day, above 0.

    >>> parts = [np.full((1, 1, 2), 0.01), np.full((1, 1, 2), 0.04)]
    >>> blended_hazards(parts, np.array([[0.5, 0.5]]), [100.0]).round(6).tolist()  # the geometric mean of the two
    [[[0.02, 0.02]]]
    """
    days = np.diff(edges_days, prepend=0.0)
    # log H at the edges
    logs = [np.log(np.maximum((part[..., :-1] * days).cumsum(-1), _LEAST)) for part in parts]
    mean = sum(weights[:, m, None] * log for m, log in enumerate(logs))
    cumulative = np.exp(mean)
    rate = sum(
        weights[:, m] * part[..., -1] * np.exp(-log[..., -1])
        for m, (part, log) in enumerate(zip(parts, logs, strict=True))
    )
    inner = np.diff(cumulative, axis=-1, prepend=0.0) / days
    last = cumulative[..., -1] * rate
    return np.maximum(np.concatenate([inner, last[..., None]], axis=-1), _LEAST)


@dataclass(frozen=True)
class BlendWeights:
    """Weights of some models with 95 % intervals.

    Attributes:
        value: (E, models), each row convex.
        low: (E, models).
        high: (E, models).
    """

    value: Floats
    low: Floats
    high: Floats

    @classmethod
    def equal(cls, n_causes: int, models: int) -> "BlendWeights":
        """Equal weights, of which nothing is known."""
        value = np.full((n_causes, models), 1 / models)
        return cls(value, np.zeros_like(value), np.ones_like(value))

    def before(self, others: "BlendWeights") -> "BlendWeights":
        """Those of a model with weight w and then of others, whose weights share out 1 − w.

        Args:
            others: Whose convex mean is the second of the two models that these weights are of.

        >>> one, rest = BlendWeights.equal(1, 2), BlendWeights.equal(1, 2)
        >>> one.before(rest).value.tolist()
        [[0.5, 0.25, 0.25]]
        """
        pairs = ((self.value, others.value), (self.low, others.low), (self.high, others.high))
        first, left = [own[:, :1] for own, _ in pairs], 1 - self.value[:, :1]
        parts = [np.hstack([own, left * rest]) for own, (_, rest) in zip(first, pairs, strict=True)]
        return BlendWeights(*parts)


def fit_weights(
    hazards: Sequence[Floats],
    edges_days: Sequence[float],
    labels: Labels,
    *,
    prior_sd: float = PRIOR_SD,
) -> BlendWeights:
    """The weights of two models, of most likelihood (ŵ), drawn towards ½; ½ for a cause without an event.

        w = a ŵ + (1 − a) / 2        a = τ² / (τ² + v)

    v is the variance of ŵ by the sandwich, summed by subject (Lin & Wei 1989), since prediction times of one subject
    share their future; τ = `prior_sd` says how far from ½ the best weights of a study are. With many events v is small
    and w is ŵ. With few, ŵ follows chance. Where the likelihood does not depend on w, v is infinite.

    Args:
        hazards: Of each model (R, E, K) per day; they were fitted without these rows' subjects.
        edges_days: The K − 1 inner edges.
        labels: Of the R rows.
        prior_sd: τ.
    """
    from scipy.optimize import brentq  # which predictions need not load

    made = BlendWeights.equal(hazards[0].shape[1], 2)
    _, owner = np.unique(labels.subject, return_inverse=True)
    for e in range(len(made.value)):
        had = (labels.cause == e + 1).astype(np.int64)
        if not had.any():
            continue
        of_cause = [one[:, [e]].astype(np.float64) for one in hazards]
        score = partial(_score, of_cause, edges_days, replace(labels, cause=had))

        def slope(weight: float, score: Callable[[float], Floats] = score) -> float:
            return float(score(weight).sum())

        if slope(0.0) >= 0:
            best = 0.0
        elif slope(1.0) <= 0:
            best = 1.0
        else:
            best = float(brentq(slope, 0.0, 1.0, xtol=_SAME))
        curvature = (slope(best + _STEP) - slope(best - _STEP)) / (2 * _STEP)
        if curvature > _FLAT * had.sum():
            variance = float((np.bincount(owner, score(best)) ** 2).sum()) / curvature**2
            share = prior_sd**2 / (prior_sd**2 + variance)
            reach = 1.96 * share * np.sqrt(variance)
            value = share * best + (1 - share) / 2
            made.value[e] = value, 1 - value
            made.low[e] = np.clip(made.value[e] - reach, 0, 1)
            made.high[e] = np.clip(made.value[e] + reach, 0, 1)
    return made


def _score(
    hazards: Sequence[Floats], edges_days: Sequence[float], labels: Labels, weight: float
) -> Floats:
    """(R,) slope of each row's NLL of one cause by the weight of the first of two models, by differences."""

    def nll(first: float) -> Floats:
        blended = blended_hazards(hazards, np.array([[first, 1 - first]]), edges_days)
        return horizon_nll(
            blended,
            edges_days,
            duration_days=labels.duration_days,
            cause=labels.cause,
            entry_days=labels.entry_days,
        )

    return (nll(weight + _STEP) - nll(weight - _STEP)) / (2 * _STEP)


BLEND, STACKED = "blend", "trees and Cox"


class Blend(Predictor):
    """Predictors of one grid as one: its `log H` is a convex mean of theirs (`blended_hazards`).

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
    def stacked(self) -> "Blend":
        """Trees and Cox alone, without their last step."""
        last = self.parts[-1].inner if isinstance(self.parts[-1], Recalibrated) else self.parts[-1]
        return last if isinstance(last, Blend) else self

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
        boosted, cox = stacked.parts
        assert isinstance(boosted, BoostedVisits)
        assert isinstance(cox, CoxHazards)
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
        arrays |= {f"cox.design.{name}": getattr(cox.design, name) for name in _OF_DESIGN}
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
    def load(cls, folder: Path, network: Predictor | None) -> Predictor:
        """Read what `save` wrote.

        Args:
            folder: The run, whose manifest has been checked.
            network: The run's, if it has one.

        Raises:
            EhrseqError: A part looks at a column that its features do not have.
        """
        text, arrays = read_json(folder / BLEND_FILE), load_file(folder / ARRAYS_FILE)
        if "stacked" not in text:  # 2.0 has one weight for each of the network, trees and Cox
            each = {name: np.array(text["weights"][name]) for name in _OF_WEIGHTS}
            value = each["value"][:, -2:]
            total = value.sum(axis=1, keepdims=True)
            share = np.divide(value, total, out=np.full_like(value, 0.5), where=total > 0)
            text["weights"] = {
                name: np.c_[one[:, :1], 1 - one[:, :1]] for name, one in each.items()
            }
            text["stacked"] = {**each, "value": share}
        # history features from JSON
        saved = text["features"]
        pairs = tuple((int(first), int(second)) for first, second in saved["pairs"])
        lists = {name: tuple(saved[name]) for name in ("codes", "numeric", "static_codes", "names")}
        features, edges = FeatureSpec(**lists, pairs=pairs), tuple(text["edges_days"])
        cut_offsets = arrays["boosted.cut_offsets"]
        # of features with a cut, and the part of time
        columns = int((np.diff(cut_offsets) > 0).sum()) + 1
        _require_places(arrays, columns, len(features), folder)
        weights, of_two = (
            BlendWeights(*(np.array(text[shares][name]) for name in _OF_WEIGHTS))
            for shares in ("weights", "stacked")
        )
        base = arrays["boosted.base"]
        trees = [
            Trees(*(arrays[f"boosted.trees.{e}.{name}"] for name in _OF_TREES))
            if str(e) in text["trees"]
            else None
            for e in range(base.shape[1])
        ]
        boosted = BoostedVisits(
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
        cox = CoxHazards(design, mean, scale, beta, cox_base, bounds, edges)
        stacked: Predictor = cls([boosted, cox], of_two, name=STACKED)
        if _CORRECTION[0] in arrays:
            stacked = stacked.recalibrated(*(arrays[name] for name in _CORRECTION))
        return stacked if network is None else cls([network, stacked], weights)


_OF_TREES = ("start", "feature", "threshold", "missing_left", "left", "right", "value")
_OF_COX = ("mean", "scale", "beta", "base", "bounds")
_OF_DESIGN = ("used", "fill", "low", "high", "marked")
_OF_WEIGHTS = ("value", "low", "high")
_CORRECTION = ("correction.intercept", "correction.slope")


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
# rows that weights are fitted to; above, those of subjects spread evenly over all
MOST_WEIGHED = 100_000


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
    weighed = train.rows.subject % max(1, -(-len(train) // MOST_WEIGHED)) == 0  # rows
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


def folds_of(rows_of_subject: Ints, *, folds: int, seed: int) -> list[Ints]:
    """Subjects with prediction times, in so many folds of about equal size, at random.

    >>> [len(fold) for fold in folds_of(np.array([1, 0, 2, 1, 1, 3]), folds=2, seed=0)]
    [3, 2]
    """
    subjects = np.flatnonzero(rows_of_subject)
    order = np.random.default_rng([seed, folds, len(subjects)]).permutation(subjects)
    return [np.sort(order[number::folds]) for number in range(folds)]
