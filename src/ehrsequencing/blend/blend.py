"""A network, boosted visits and a landmark Cox model as one model of hazards; its answers, and its two files."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ehrsequencing.answers import VISIT_BUDGET
from ehrsequencing.arrays import Floats, Floats32, Ints
from ehrsequencing.baselines.base import HazardPart
from ehrsequencing.baselines.boosted import BoostedHazards, BoostedVisits
from ehrsequencing.baselines.history import FeatureSpec, LinearDesign
from ehrsequencing.baselines.landmark_cox import CoxHazards, LandmarkCox
from ehrsequencing.baselines.trees import Trees
from ehrsequencing.blend.weights import BlendWeights, blended_hazards
from ehrsequencing.errors import EhrseqError
from ehrsequencing.loader import SubjectLoader
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.records.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.storage import read_json, write_bytes, write_json
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
    """

    boosted: BoostedHazards
    cox: CoxHazards
    weights: BlendWeights
    edges_days: tuple[float, ...]

    def hazards(self, model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None) -> Floats:
        """(R, causes, bins) hazards per day at every prediction time.

        Args:
            model: The network, in evaluation mode.
            records: Visits and prediction times.
            code_types: (V,) type of each token, where the network wants types.
        """
        out = np.empty((len(records), *self.boosted.base.shape))
        for rows, part in in_parts(records):
            found = part_hazards(model, (self.boosted, self.cox), part, code_types=code_types)
            out[rows] = blended_hazards(found, self.weights.value, self.edges_days)
        return out

    def risk(
        self, model: SurvivalModel, records: TaskRecords, *, horizons_days: Sequence[float] | Floats,
        code_types: Ints | None = None, start_days: float = 0.0,
    ) -> Floats32:  # fmt: skip
        """Cumulative incidence (R, causes, horizons), as `answers.risk_of_rows` gives a network's."""
        hazards, days = self.hazards(model, records, code_types=code_types), np.asarray(horizons_days, dtype=np.float64)
        return cumulative_incidence(hazards, self.edges_days, days, start_days=start_days).astype(np.float32)

    def nll(self, model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None) -> Floats:
        """Negative log-likelihood (R,) of every labelled prediction time."""
        rows = records.rows
        return horizon_nll(
            self.hazards(model, records, code_types=code_types), self.edges_days,
            duration_days=np.asarray(rows.duration_days), cause=rows.cause, entry_days=rows.entry_days,
        )  # fmt: skip

    # ---- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `blend.json` and `blend.safetensors`."""
        trees = {str(e): found for e, found in enumerate(self.boosted.trees) if found is not None}
        cuts = self.boosted.cuts
        arrays: dict[str, NDArray[Any]] = {
            "boosted.cuts": np.concatenate([np.zeros(0, np.float32), *cuts]),
            "boosted.cut_offsets": np.cumsum([0, *map(len, cuts)]),
            "boosted.part_of": self.boosted.part_of, "boosted.base": self.boosted.base,
            **{f"boosted.trees.{e}.{name}": array for e, own in trees.items() for name, array in own.arrays().items()},
            **{f"cox.{name}": getattr(self.cox, name) for name in _OF_COX},
            **{f"cox.design.{name}": np.asarray(getattr(self.cox.design, name)) for name in _OF_DESIGN},
            **{f"weights.{name}": getattr(self.weights, name) for name in _OF_WEIGHTS},
            "edges_days": np.array(self.edges_days),
        }  # fmt: skip
        write_bytes(folder / ARRAYS_FILE, save({name: np.array(array, order="C") for name, array in arrays.items()}))
        specs = {"boosted": asdict(self.boosted.columns), "cox": asdict(self.cox.design.columns)}
        write_json(folder / BLEND_FILE, {"format": 1, "parts": list(PARTS), "features": specs, "trees": sorted(trees)})

    @classmethod
    def load(cls, folder: Path, vocabulary: Vocabulary, *, edges_days: Sequence[float]) -> "Blend":
        """Read what `save` wrote.

        Args:
            folder: The run.
            vocabulary: The run's.
            edges_days: Of the run's network.

        Raises:
            EhrseqError: A file is damaged, or does not belong to the run.
        """
        where, fix = str(folder / BLEND_FILE), "copy the whole run folder, or train again"
        text = read_json(folder / BLEND_FILE)
        try:
            arrays = load_file(folder / ARRAYS_FILE)
            if text["format"] != 1 or text["parts"] != list(PARTS):
                raise EhrseqError("is a blend of another version of ehrseq", where=where, fix=fix)
            specs = {name: _spec(text["features"][name], vocabulary) for name in ("boosted", "cox")}
            bounds = arrays["boosted.cut_offsets"]
            flat = arrays["boosted.cuts"]
            cuts = [flat[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
            base, weights = arrays["boosted.base"], BlendWeights(*(arrays[f"weights.{name}"] for name in _OF_WEIGHTS))
            used = sum(len(cut) > 0 for cut in cuts) + 1
            trees = [
                _trees(arrays, e, columns=used, where=where) if str(e) in text["trees"] else None
                for e in range(len(base))
            ]
            boosted = BoostedHazards(vocabulary, specs["boosted"], cuts, arrays["boosted.part_of"], base, trees)
            used_columns, fill, low, high, marked = (arrays[f"cox.design.{name}"] for name in _OF_DESIGN)
            design = LinearDesign(specs["cox"], used_columns, fill, low, high, tuple(marked.tolist()))
            cox = CoxHazards(vocabulary, design, *(arrays[f"cox.{name}"] for name in _OF_COX))
            edges = tuple(arrays["edges_days"].tolist())
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError, SafetensorError) as error:
            raise EhrseqError("the files of the blend are damaged", where=where, fix=fix) from error
        shape = (len(base), len(edges) + 1)
        sizes = {base.shape, cox.base.shape, (len(base), len(boosted.part_of)), (len(weights.value), shape[1])}
        if edges != tuple(edges_days) or sizes != {shape} or len(cuts) != len(specs["boosted"]):
            raise EhrseqError("the blend is not that of the run's network", where=where, fix=fix)
        if not (weights.value >= 0).all() or not np.allclose(weights.value.sum(axis=1), 1.0):
            raise EhrseqError("its weights are not convex", where=where, fix=fix)
        return cls(boosted, cox, weights, edges)


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


def part_hazards(
    model: SurvivalModel, others: Sequence[HazardPart], records: TaskRecords, *, code_types: Ints | None = None
) -> list[Floats]:
    """Hazards (R, causes, bins) of the network and of the other parts, at every prediction time."""
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    rows, eta = log_hazards(model, loader, visit_budget=VISIT_BUDGET, device=torch.device("cpu"))
    of_network = np.empty(eta.shape)
    of_network[rows] = np.exp(eta.astype(np.float64))
    every = np.arange(len(records))
    return [of_network, *(part.hazards(records, every) for part in others)]


def _trees(arrays: dict[str, NDArray[Any]], e: int, *, columns: int, where: str) -> Trees:
    prefix = f"boosted.trees.{e}."
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return Trees.of_arrays(own, columns=columns, where=where)


def _spec(saved: dict[str, Any], vocabulary: Vocabulary) -> FeatureSpec:
    """History features from JSON; codes that the vocabulary does not have are an error."""
    ids = {name: tuple(map(int, saved[name])) for name in ("codes", "numeric", "static_codes")}
    pairs = tuple((int(first), int(second)) for first, second in saved["pairs"])
    named = [*(code for found in ids.values() for code in found), *(code for pair in pairs for code in pair)]
    if not all(0 <= code < len(vocabulary) for code in named):
        raise ValueError("a code is not in the vocabulary")
    return FeatureSpec(**ids, names=tuple(map(str, saved["names"])), pairs=pairs)
