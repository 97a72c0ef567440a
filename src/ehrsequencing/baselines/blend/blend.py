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

from ehrsequencing.baselines.blend.weights import BlendWeights, blended_hazards
from ehrsequencing.baselines.boosted import BoostedHazards, BoostedVisits
from ehrsequencing.baselines.history import FeatureSpec, LinearDesign
from ehrsequencing.baselines.landmark_cox import CoxHazards, LandmarkCox
from ehrsequencing.baselines.trees import Trees
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_bytes, write_json
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.inference import VISIT_BUDGET
from ehrsequencing.training.recalibration import log_hazards

BLEND_FILE, ARRAYS_FILE = "blend.json", "blend.safetensors"
NETWORK = "network"
PARTS = (NETWORK, BoostedVisits.name, LandmarkCox.name)  # the order of the weights
_FORMAT = 2  # of both files: 2 has the weights as text
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

    boosted: BoostedHazards
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

    # ---- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `blend.json` and `blend.safetensors`."""
        trees = {str(e): found for e, found in enumerate(self.boosted.trees) if found is not None}
        cuts = self.boosted.cuts
        arrays: dict[str, NDArray[Any]] = {
            "boosted.cuts": np.concatenate([np.zeros(0), *cuts]),
            "boosted.cut_offsets": np.cumsum([0, *map(len, cuts)]),
            "boosted.part_of": self.boosted.part_of,
            "boosted.base": self.boosted.base,
            **{
                f"boosted.trees.{e}.{name}": array
                for e, own in trees.items()
                for name, array in own.arrays().items()
            },
            **{f"cox.{name}": getattr(self.cox, name) for name in _OF_COX},
            **{
                f"cox.design.{name}": np.asarray(getattr(self.cox.design, name))
                for name in _OF_DESIGN
            },
            "edges_days": np.array(self.edges_days),
        }
        write_bytes(
            folder / ARRAYS_FILE,
            save({name: np.array(array, order="C") for name, array in arrays.items()}),
        )
        specs = {"boosted": asdict(self.boosted.columns), "cox": asdict(self.cox.design.columns)}
        weights = {name: getattr(self.weights, name).tolist() for name in _OF_WEIGHTS}
        facts = {
            "format": _FORMAT,
            "parts": list(PARTS),
            "weights": weights,
            "features": specs,
            "trees": sorted(trees),
        }
        write_json(folder / BLEND_FILE, facts)

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
            if text["format"] != _FORMAT or text["parts"] != list(PARTS):
                raise EhrseqError("is a blend of another version of ehrseq", where=where, fix=fix)
            specs = {name: _spec(text["features"][name], vocabulary) for name in ("boosted", "cox")}
            bounds = arrays["boosted.cut_offsets"]
            flat = arrays["boosted.cuts"]
            cuts = [
                flat[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
            ]
            base = arrays["boosted.base"]
            weights = BlendWeights(
                *(np.array(text["weights"][name], dtype=np.float64) for name in _OF_WEIGHTS)
            )
            used = sum(len(cut) > 0 for cut in cuts) + 1
            trees = [
                _trees(arrays, e, columns=used, where=where) if str(e) in text["trees"] else None
                for e in range(len(base))
            ]
            boosted = BoostedHazards(
                vocabulary, specs["boosted"], cuts, arrays["boosted.part_of"], base, trees
            )
            used_columns, fill, low, high, marked = (
                arrays[f"cox.design.{name}"] for name in _OF_DESIGN
            )
            design = LinearDesign(
                specs["cox"], used_columns, fill, low, high, tuple(marked.tolist())
            )
            cox = CoxHazards(vocabulary, design, *(arrays[f"cox.{name}"] for name in _OF_COX))
            edges = tuple(arrays["edges_days"].tolist())
        except (
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            AttributeError,
            OSError,
            SafetensorError,
        ) as error:
            raise EhrseqError("the files of the blend are damaged", where=where, fix=fix) from error
        shape = (len(base), len(edges) + 1)
        sizes = {base.shape, cox.base.shape, (len(base), len(boosted.part_of))}
        given = {getattr(weights, name).shape for name in _OF_WEIGHTS}
        fits = (
            edges == tuple(edges_days) and sizes == {shape} and given == {(len(base), len(PARTS))}
        )
        if not fits or len(cuts) != len(specs["boosted"]):
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


def network_hazards(
    model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None
) -> Floats:
    """Hazards (R, causes, bins) per day of a network at every prediction time."""
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    rows, eta = log_hazards(model, loader, visit_budget=VISIT_BUDGET, device=torch.device("cpu"))
    out = np.empty(eta.shape)
    out[rows] = np.exp(eta.astype(np.float64))
    return out


def _trees(arrays: dict[str, NDArray[Any]], e: int, *, columns: int, where: str) -> Trees:
    prefix = f"boosted.trees.{e}."
    own = {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
    return Trees.of_arrays(own, columns=columns, where=where)


def _spec(saved: dict[str, Any], vocabulary: Vocabulary) -> FeatureSpec:
    """History features from JSON; codes that the vocabulary does not have are an error."""
    ids = {name: tuple(map(int, saved[name])) for name in ("codes", "numeric", "static_codes")}
    pairs = tuple((int(first), int(second)) for first, second in saved["pairs"])
    named = [
        *(code for found in ids.values() for code in found),
        *(code for pair in pairs for code in pair),
    ]
    if not all(0 <= code < len(vocabulary) for code in named):
        raise ValueError("a code is not in the vocabulary")
    return FeatureSpec(**ids, names=tuple(map(str, saved["names"])), pairs=pairs)
