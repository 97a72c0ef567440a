"""The population of an evaluation: subjects with prediction times and labels, and how they were chosen."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import EvaluationConfig, TaskConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.cohort import NEVER
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords

DRAWN = "drawn at random for the evaluation"  # the last step of the flow, where some were drawn


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
        only_landmarks: Whether only landmarks are evaluated, since a file of predictions has none elsewhere.
        dataset_end_us: Last timestamp of the data set.
    """

    split: str
    data: str
    records: TaskRecords
    attrition: Mapping[str, Any]
    source: Path | None
    only_landmarks: bool = False
    dataset_end_us: int = NEVER

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
            raise EhrseqError(
                f"{split!r} is no split", where="--split", fix=f"use one of {', '.join(SPLITS)}"
            )
        source = prepared.manifest.get("data_path")
        return cls(
            split=split,
            data=prepared.manifest["data"],
            records=prepared.records(task.name, split),
            attrition=prepared.attrition(task.name),
            source=None if source is None else Path(source),
            dataset_end_us=int(prepared.manifest["dataset_end_us"]),
        )

    def drawn(self, settings: EvaluationConfig) -> "Population":
        """At most `evaluation.subjects` of the subjects."""
        return self.take(drawn_subjects(self.records, settings))

    def take(self, subjects: Ints | None) -> "Population":
        """Some of the subjects, with counts of those alone; all where `subjects` is None.

        Args:
            subjects: (s,) rows of the timelines, as `drawn_subjects` draws them: each has a prediction time.
        """
        if subjects is None:
            return self
        records, whole = self.records.take(subjects), self.counts
        rows, names, before = records.rows, list(whole["events"]), whole["steps"][-1]["subjects"]
        outcomes = np.bincount(rows.cause[rows.row_offsets[:-1]], minlength=len(names)).tolist()
        counts = {
            **whole,
            "steps": [
                *whole["steps"],
                {"step": DRAWN, "subjects": len(subjects), "excluded": before - len(subjects)},
            ],
            "prediction_times": len(rows),
            "queries": int(rows.is_query.sum()),
            "events": dict(zip(names, outcomes, strict=True)),
            "records_before": [],  # counted for everybody only
        }
        attrition = {**self.attrition, "splits": {**self.attrition["splits"], self.split: counts}}
        return replace(self, records=records, attrition=attrition)

    @property
    def counts(self) -> Mapping[str, Any]:
        """Flow, prediction times and events of these subjects alone."""
        own: Mapping[str, Any] = self.attrition["splits"][self.split]
        return own

    def warnings(self) -> list[str]:
        """What a reader must know of the draw; nothing where everybody is evaluated."""
        last = self.counts["steps"][-1]
        if last["step"] != DRAWN:
            return []
        some, whole = count_text(last["subjects"]), count_text(last["subjects"] + last["excluded"])
        return [
            f"Only {some} of {whole} subjects of {self.split}, drawn at random, are evaluated (evaluation.subjects)."
        ]


def drawn_subjects(records: TaskRecords, settings: EvaluationConfig) -> Ints | None:
    """At most `evaluation.subjects` of the subjects with a prediction time, drawn at random; None for all of them.

    Everybody is as likely as anybody else, whatever happens to them and however long their record is.
    """
    asked = np.flatnonzero(np.diff(records.rows.row_offsets))
    if settings.subjects is None or len(asked) <= settings.subjects:
        return None
    return np.sort(
        np.random.default_rng(settings.seed).choice(asked, settings.subjects, replace=False)
    )


class RowFinder:
    """Finds the prediction times that pairs of a subject's id and a moment are about."""

    def __init__(self, records: TaskRecords) -> None:
        moment_us = np.asarray(records.rows.prediction_us)
        self.ids, self.times = np.unique(records.subject_id), np.unique(moment_us)
        keys = self._keys(records.subject_id, moment_us)
        self.order = np.argsort(keys)
        self.keys = keys[self.order]

    def __call__(self, subject_id: Ints, moment_us: Ints) -> Ints:
        """(n,) number of each pair's prediction time; -1: none."""
        place = _places(self.keys, self._keys(subject_id, moment_us))
        return np.where(place < 0, -1, self.order[place]) if len(self.order) else place

    def _keys(self, subject_id: Ints, moment_us: Ints) -> Ints:
        """(n,) a number of each pair; -1 where there is nobody, or nothing, of that kind."""
        a, b = _places(self.ids, subject_id), _places(self.times, moment_us)
        return np.where((a < 0) | (b < 0), -1, a * len(self.times) + b)


def _places(values: Ints, wanted: Ints) -> Ints:
    """(n,) where each number stands in rising values; -1: nowhere."""
    if not len(values):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[place] == wanted, place, -1)


def people(count: int) -> str:
    """A count that may be about few people, as it may be shared.

    >>> people(3), people(1234)
    ('Fewer than 11', '1,235')
    """
    return count_text(count) if count >= SMALLEST_COUNT else f"Fewer than {SMALLEST_COUNT}"
