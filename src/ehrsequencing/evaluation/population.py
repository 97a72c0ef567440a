"""The population of an evaluation: subjects with prediction times and labels, and how they were chosen."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ehrsequencing.config import TaskConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords


@dataclass(frozen=True)
class Population:
    """The subjects that a run is evaluated on: a split of its prepared set, or other data encoded with its vocabulary.

    Attributes:
        split: Their name in `metrics.json`: `held_out`, or `external`.
        data: What their data set calls itself.
        records: Their visits and labelled prediction times.
        attrition: As `attrition.json`: `steps` of the flow, and under `splits` at least this split's `steps`,
            `prediction_times` and `events`.
        source: Folder of the MEDS records, where a simulation keeps its truth; None where it is not known.
        left_out: Landmarks at which nothing is evaluated, since a file of predictions has none there; None among
            them: all prediction times together.
    """

    split: str
    data: str
    records: TaskRecords
    attrition: Mapping[str, Any]
    source: Path | None
    left_out: tuple[float | None, ...] = ()

    @classmethod
    def of_split(cls, prepared: Prepared, task: TaskConfig, split: str) -> "Population":
        """The subjects of one split of a prepared set.

        Args:
            prepared: The prepared set.
            task: One of its tasks.
            split: `train`, `tuning` or `held_out`.

        Raises:
            EhrseqError: There is no such split.
        """
        if split not in SPLITS:
            raise EhrseqError(f"{split!r} is no split", where="--split", fix=f"use one of {', '.join(SPLITS)}")
        source = prepared.manifest.get("data_path")
        return cls(
            split=split,
            data=prepared.manifest["data"],
            records=prepared.records(task.name, split),
            attrition=prepared.attrition(task.name),
            source=None if source is None else Path(source),
        )

    @property
    def counts(self) -> Mapping[str, Any]:
        """Flow, prediction times and events of these subjects alone."""
        own: Mapping[str, Any] = self.attrition["splits"][self.split]
        return own
