"""A network, boosted visits and a landmark Cox model as one model of hazards; what a run predicts by it or without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from ehrsequencing.baselines.blend.weights import BlendWeights, blended_hazards
from ehrsequencing.baselines.boosted import BoostedVisits, Trees
from ehrsequencing.baselines.history import FeatureSpec
from ehrsequencing.baselines.landmark_cox import CoxHazards, LandmarkCox, LinearDesign
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_bytes, write_json
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import Recalibrated
from ehrsequencing.records.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.inference import VISIT_BUDGET, batches, nll_of_rows, risk_of_rows
from ehrsequencing.training.recalibration import log_hazards

BLEND_FILE, ARRAYS_FILE = "blend.json", "blend.safetensors"
NETWORK = "network"
PARTS = (NETWORK, BoostedVisits.name, LandmarkCox.name)  # the order of the weights
_CHUNK_ROWS = 20_000  # prediction times answered at a time


@dataclass(frozen=True)
class Blend:
    """The parts beside the network, and the weights of all; a `log H` is a convex mean of the parts' (`weights.py`).

    Attributes:
        boosted: The trees.
        cox: The regressions.
        weights: Of `PARTS`, per cause.
        edges_days: The inner edges of the run's grid.
        correction: a and b (causes,), where the hazards were recalibrated: log λ' = a + b · log λ.
    """

    boosted: BoostedVisits
    cox: CoxHazards
    weights: BlendWeights
    edges_days: tuple[float, ...]
    correction: tuple[Floats, Floats] | None = None

    def hazards(
        self,
        models: Sequence[SurvivalModel],
        records: TaskRecords,
        *,
        code_types: Ints | None = None,
    ) -> Iterator[tuple[slice, list[Floats]]]:
        """Some rows at a time, and for each network the hazards (r, causes, bins) per day of the blend with it.

        Args:
            models: Networks, in evaluation mode: the run's, or members of it.
            records: Visits and prediction times.
            code_types: (V,) type of each token, where the networks want types.
        """
        for rows, part in in_parts(records):
            every = np.arange(len(part))
            others = [other.hazards(part, every) for other in (self.boosted, self.cox)]
            found = [network_hazards(model, part, code_types=code_types) for model in models]
            yield rows, [self._corrected([network, *others]) for network in found]

    def _corrected(self, parts: Sequence[Floats]) -> Floats:
        blended = blended_hazards(parts, self.weights.value, self.edges_days)
        if self.correction is None:
            return blended
        a, b = (column[:, None] for column in self.correction)
        return np.asarray(np.exp(a + b * np.log(blended)), dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write `blend.json` and `blend.safetensors`."""
        boosted, design = self.boosted, self.cox.design
        arrays: dict[str, NDArray[Any]] = {
            "boosted.cuts": np.concatenate([np.zeros(0), *boosted.cuts]),
            "boosted.cut_offsets": np.cumsum([0, *map(len, boosted.cuts)]),
            "boosted.part_of": boosted.part_of,
            "boosted.base": boosted.base,
        }
        fitted = {e: trees for e, trees in enumerate(boosted.trees) if trees is not None}
        for e, trees in fitted.items():
            arrays |= {f"boosted.trees.{e}.{name}": getattr(trees, name) for name in _OF_TREES}
        arrays |= {f"cox.{name}": getattr(self.cox, name) for name in _OF_COX}
        arrays |= {f"cox.design.{name}": getattr(design, name) for name in _OF_DESIGN}
        data = save({name: np.array(array, order="C") for name, array in arrays.items()})
        write_bytes(folder / ARRAYS_FILE, data)
        facts = {
            "parts": list(PARTS),
            "weights": {name: getattr(self.weights, name).tolist() for name in _OF_WEIGHTS},
            "features": {"boosted": asdict(boosted.columns), "cox": asdict(design.columns)},
            "trees": sorted(map(str, fitted)),
        }
        write_json(folder / BLEND_FILE, facts)

    @classmethod
    def load(cls, folder: Path, vocabulary: Vocabulary, *, edges_days: Sequence[float]) -> Blend:
        """Read what `save` wrote.

        Args:
            folder: The run, whose manifest has been checked.
            vocabulary: The run's.
            edges_days: Of the run's network.

        Raises:
            EhrseqError: A part looks at a column that its features do not have.
        """
        text, arrays = read_json(folder / BLEND_FILE), load_file(folder / ARRAYS_FILE)
        features = {part: _spec(saved) for part, saved in text["features"].items()}
        edges, cut_offsets = tuple(edges_days), arrays["boosted.cut_offsets"]
        # of features with a cut, and the part of time
        columns = int((np.diff(cut_offsets) > 0).sum()) + 1
        _require_trees(arrays, columns, folder)
        _require(arrays, "cox.design.used", len(features["cox"]), folder)
        weights = BlendWeights(*(np.array(text["weights"][name]) for name in _OF_WEIGHTS))
        base = arrays["boosted.base"]
        trees = [
            Trees(*(arrays[f"boosted.trees.{e}.{name}"] for name in _OF_TREES))
            if str(e) in text["trees"]
            else None
            for e in range(base.shape[1])
        ]
        boosted = BoostedVisits(
            vocabulary,
            features["boosted"],
            np.split(arrays["boosted.cuts"], cut_offsets[1:-1]),
            arrays["boosted.part_of"],
            base,
            edges,
            trees,
        )
        design = LinearDesign(
            features["cox"],
            *(arrays[f"cox.design.{name}"] for name in _OF_DESIGN),
        )
        mean, scale, beta, cox_base = (arrays[f"cox.{name}"] for name in _OF_COX)
        cox = CoxHazards(vocabulary, design, mean, scale, beta, cox_base, edges)
        return cls(boosted, cox, weights, edges)


_OF_TREES = ("start", "feature", "threshold", "missing_left", "left", "right", "value")
_OF_COX = ("mean", "scale", "beta", "base")
_OF_DESIGN = ("used", "fill", "low", "high", "marked")
_OF_WEIGHTS = ("value", "low", "high")


def in_parts(records: TaskRecords) -> Iterator[tuple[slice, TaskRecords]]:
    """Consecutive subjects with at most `_CHUNK_ROWS` prediction times together (or one subject), and their rows."""
    bounds, start = records.rows.row_offsets, 0
    while start < len(bounds) - 1:
        stop = int(np.searchsorted(bounds, bounds[start] + _CHUNK_ROWS, side="right")) - 1
        stop = min(max(stop, start + 1), len(bounds) - 1)
        if bounds[stop] > bounds[start]:
            yield slice(int(bounds[start]), int(bounds[stop])), records.take(slice(start, stop))
        start = stop


def network_hazards(
    model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None
) -> Floats:
    """Hazards (R, causes, bins) per day of a network at every prediction time."""
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    rows, eta = log_hazards(model, loader, visit_budget=VISIT_BUDGET, device=torch.device("cpu"))
    out = np.empty(eta.shape)
    out[rows] = np.exp(eta.astype(np.float64))
    return out


def _require_trees(arrays: Mapping[str, NDArray[Any]], columns: int, folder: Path) -> None:
    """Refuse trees that name other columns or nodes than there are, or that never end: hashes prove no author."""
    for name in arrays:
        if name.startswith("boosted.trees.") and name.endswith((".left", ".right")):
            nodes = arrays[name].shape[-1]
            _require(arrays, name, nodes, folder, least=np.arange(nodes))  # a leaf is its own child
        elif name.startswith("boosted.trees.") and name.endswith(".feature"):
            _require(arrays, name, columns, folder)


def _require(
    arrays: Mapping[str, NDArray[Any]], name: str, count: int, folder: Path, least: Any = 0
) -> None:
    if np.any((arrays[name] < least) | (arrays[name] >= count)):
        what, where = f"{name} names what there is not", str(folder / ARRAYS_FILE)
        raise EhrseqError(what, where=where, fix="train the run again")


def _spec(saved: dict[str, Any]) -> FeatureSpec:
    """History features from JSON."""
    pairs = tuple((int(first), int(second)) for first, second in saved["pairs"])
    lists = {name: tuple(saved[name]) for name in ("codes", "numeric", "static_codes", "names")}
    return FeatureSpec(**lists, pairs=pairs)


@dataclass(frozen=True)
class RunAnswers:
    """A run's network, and its blend where it is one.

    Attributes:
        model: The network, in evaluation mode.
        blend: The other parts and the weights; None where the network answers alone.
        code_types: (V,) type of each token, where the network wants types.
        members: Of an ensemble: its networks. Each answers as the run does, in a blend beside the same other parts.
    """

    model: SurvivalModel
    blend: Blend | None
    code_types: Ints | None
    members: tuple[SurvivalModel, ...] = ()

    def risk(
        self,
        records: TaskRecords,
        *,
        horizons_days: Sequence[float] | Floats,
        start_days: float = 0.0,
    ) -> Floats32:
        """Risk at every prediction time; see `training.inference.risk_of_rows`."""
        found: Floats32 = self._risks((self.model,), records, horizons_days, start_days)[0]
        return found

    def with_members(
        self,
        records: TaskRecords,
        *,
        horizons_days: Sequence[float] | Floats,
        start_days: float = 0.0,
    ) -> tuple[Floats32, Floats32]:
        """Risk (R, causes, horizons), and that of each member (members, R, causes, horizons)."""
        found = self._risks((self.model, *self.members), records, horizons_days, start_days)
        return found[0], found[1:]

    def _risks(
        self,
        models: Sequence[SurvivalModel],
        records: TaskRecords,
        horizons_days: Sequence[float] | Floats,
        start_days: float,
    ) -> Floats32:
        if self.blend is None:
            of_rows = [
                risk_of_rows(
                    model,
                    records,
                    horizons_days=horizons_days,
                    code_types=self.code_types,
                    start_days=start_days,
                )
                for model in models
            ]
            return np.stack(of_rows)
        days, edges = np.asarray(horizons_days, dtype=np.float64), self.blend.edges_days
        out = np.empty(
            (len(models), len(records), self.model.config.causes, len(days)), dtype=np.float32
        )
        for rows, found in self.blend.hazards(models, records, code_types=self.code_types):
            for m, hazards in enumerate(found):
                out[m, rows] = cumulative_incidence(hazards, edges, days, start_days=start_days)
        return out

    def batches(self, records: TaskRecords) -> tuple[Ints, Ints]:
        """First subject (b,) and cost (b,) of each batch: records cut there get the same answers to the last bit."""
        if self.blend is None:
            return batches(self.model, records, code_types=self.code_types)
        rows = [rows for rows, _ in in_parts(records)]
        first = (
            np.searchsorted(records.rows.row_offsets, [one.start for one in rows], side="right") - 1
        )
        return first, np.array([one.stop - one.start for one in rows], dtype=np.int64)

    def nll(self, records: TaskRecords) -> Floats:
        """Negative log-likelihood (R,) of every labelled prediction time; see `training.inference.nll_of_rows`."""
        if self.blend is None:
            return nll_of_rows(self.model, records, code_types=self.code_types)
        labels, out = records.rows, np.empty(len(records))
        for rows, hazards in self.hazards(records):
            out[rows] = horizon_nll(
                hazards,
                self.blend.edges_days,
                duration_days=np.asarray(labels.duration_days[rows]),
                cause=labels.cause[rows],
                entry_days=labels.entry_days[rows],
            )
        return out

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """Some rows at a time, and their hazards (r, causes, bins) per day; the `visit` head has none."""
        if self.blend is None:
            yield (
                slice(0, len(records)),
                network_hazards(self.model, records, code_types=self.code_types),
            )
        else:
            for rows, found in self.blend.hazards(
                (self.model,), records, code_types=self.code_types
            ):
                yield rows, found[0]

    def recalibrated(self, intercept: Floats, slope: Floats) -> RunAnswers:
        """The same with log λ' = a + b · log λ, a and b (causes,); in a blend λ is the blended hazard.

        Raises:
            EhrseqError: The head is `visit`.
        """
        if self.blend is not None:
            return replace(self, blend=replace(self.blend, correction=(intercept, slope)))
        model, *members = (
            Recalibrated(model, intercept, slope).eval() for model in (self.model, *self.members)
        )
        return replace(self, model=model, members=tuple(members))
