"""The population of an evaluation: subjects with prediction times, labels and follow-up, and how they were chosen."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ehrsequencing.config import EvaluationConfig, TaskConfig, format_days
from ehrsequencing.core.arrays import Floats, Ints, row_blocks
from ehrsequencing.core.disclosure import SMALLEST_COUNT, TOO_FEW, count_text
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.evaluation.results import number
from ehrsequencing.metrics.bootstrap import interval_around
from ehrsequencing.metrics.calibration import quantile_groups
from ehrsequencing.metrics.censoring import (
    RiskSets,
    StepFunction,
    SubjectClock,
    censoring_survival,
    dropout_cause,
    median_follow_up_days,
)
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.account import Attrition, CohortCounts
from ehrsequencing.records.attrition import FEWEST_SUBJECTS
from ehrsequencing.records.events import DAY_US, NEVER
from ehrsequencing.records.labels import potential_days
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, TaskRows

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
        is_simulated: Whether they are a simulation's; people otherwise.
        only_landmarks: Whether only landmarks are evaluated, since a file of predictions has none elsewhere.
        dataset_end_us: Last timestamp of the data set.
    """

    split: str
    data: str
    records: TaskRecords
    attrition: Attrition
    source: Path | None
    only_landmarks: bool = False
    is_simulated: bool = False
    dataset_end_us: int = NEVER
    cut_us: int = NEVER  # when everybody's follow-up ends by design, because the splits are by date

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
            is_simulated=bool(prepared.manifest.get("simulated")),
            dataset_end_us=int(prepared.manifest["dataset_end_us"]),
            cut_us=prepared.cut_us(split),
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
        counts: CohortCounts = {
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
        return replace(self, records=records, attrition=self.with_counts(counts))

    def indexed_before(self, moment_us: int) -> Ints:
        """(s,) subjects with a prediction time whose first index lies before a moment, rows of the timelines."""
        rows = self.records.rows
        able = np.flatnonzero(np.diff(rows.row_offsets))
        return able[rows.index_us[rows.row_offsets[:-1][able]] < moment_us]

    def with_counts(self, counts: CohortCounts) -> Attrition:
        """The attrition with other counts of these subjects."""
        return {**self.attrition, "splits": {**self.attrition["splits"], self.split: counts}}

    @property
    def counts(self) -> CohortCounts:
        """Flow, prediction times and events of these subjects alone."""
        return self.attrition["splits"][self.split]

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
    with_row = np.flatnonzero(np.diff(records.rows.row_offsets))
    if settings.subjects is None or len(with_row) <= settings.subjects:
        return None
    return np.sort(
        np.random.default_rng(settings.seed).choice(with_row, settings.subjects, replace=False)
    )


def rows_of(records: TaskRecords, subject_id: ArrayLike, moment_us: ArrayLike) -> Ints:
    """(n,) number of the prediction time that each pair of a subject's id and a moment is about; -1: none."""
    own = pd.MultiIndex.from_arrays([records.subject_id, np.asarray(records.rows.prediction_us)])
    wanted = pd.MultiIndex.from_arrays([np.asarray(subject_id), np.asarray(moment_us)])
    return own.get_indexer(wanted).astype(np.int64)


def people(count: int) -> str:
    """A count that may be about few people, as it may be shared.

    >>> people(3), people(1234)
    ('Fewer than 11', '1,235')
    """
    return count_text(count) if count >= SMALLEST_COUNT else f"Fewer than {SMALLEST_COUNT}"


# ---- follow-up -------------------------------------------------------------------------------------------------------


THIN_FOLLOW_UP = 0.1  # below this chance of being followed, a few subjects carry a number
TENTHS = 10
FEWEST_ROWS = 20 * TENTHS  # below, a tenth is a handful


class Weights:
    """The distribution of drop-out at each landmark, and at all prediction times together.

    Args:
        population: The subjects that are evaluated.
        task: The question.
        train: Training subjects, where the curves are to come from them.
        train_cut_us: When everything of training ends by design.

    Attributes:
        potential: (R,) days from each evaluated prediction time until follow-up ends by design.
    """

    def __init__(
        self,
        population: Population,
        task: TaskConfig,
        train: TaskRecords | None,
        train_cut_us: int = NEVER,
    ) -> None:
        self.records, self.train, self.train_cut_us = population.records, train, train_cut_us
        self.task, self.end_us = task, population.dataset_end_us
        self.potential = potential_days(self.records, task, self.end_us, population.cut_us)
        # G₀ by time since the index, of the training subjects or of those that are evaluated
        own, cut_us = self.records, population.cut_us
        if train is not None:
            own, cut_us = train, train_cut_us
        rows, since = own.rows, days_since_first_index(own.rows)
        dropout = self.dropout(own, cut_us)
        self.clock = SubjectClock.fit(since, rows.duration_days, dropout, rows.subject)

    def at(self, landmark_days: float | None, chosen: Ints) -> StepFunction | SubjectClock | None:
        """G of the chosen rows: on each subject's own clock where subjects have several, else one curve for all.

        That of a landmark is fitted on the evaluated rows (None), or on the training subjects at risk there.
        """
        subject = self.records.rows.subject[chosen]
        if len(np.unique(subject)) < len(chosen):
            return self.clock.of_rows(days_since_first_index(self.records.rows)[chosen])
        if self.train is None:
            return None
        at = self.train.at_landmark(landmark_days or 0.0)
        if not len(at):
            return None
        dropout = self.dropout(self.train, self.train_cut_us)
        return censoring_survival(self.train.rows.duration_days[at], dropout[at])

    def dropout(self, records: TaskRecords, cut_us: int) -> Ints:
        """(R,) causes, 0 only where the subject dropped out."""
        ends = potential_days(records, self.task, self.end_us, cut_us)
        return dropout_cause(records.rows.duration_days, records.rows.cause, ends)


def days_since_first_index(rows: TaskRows) -> Floats:
    """(R,) days from the subject's first index to each prediction time."""
    first = rows.index_us[rows.row_offsets[:-1][rows.subject]]
    return np.asarray((rows.prediction_us - first) / DAY_US, dtype=np.float64)


def unobserved_tenths(scope: Comparison, records: TaskRecords) -> list[str]:
    """Warnings where nobody in a tenth of the ages, or of the prediction times, is observed up to a horizon.

    Args:
        scope: A landmark, or all prediction times.
        records: The prediction times that it is made of.
    """
    rows, landmark = records.rows, scope.landmark_days
    at = np.arange(len(rows)) if landmark is None else records.at_landmark(landmark)
    sides = {"ages": np.asarray(rows.age_years[at], dtype=np.float64)}
    if landmark is None:
        sides["prediction times"] = (rows.prediction_us[at] - rows.index_us[at]) / DAY_US
    warnings: list[str] = []
    for (name, values), horizon in itertools.product(sides.items(), scope.horizons_days.tolist()):
        inside = scope.followed(horizon) & ~np.isnan(values)
        if inside.sum() < FEWEST_ROWS:
            continue
        tenth = quantile_groups(values[inside], TENTHS)
        duration, event = scope.duration_days[inside], (scope.cause[inside] > 0).astype(np.int64)
        counts = [
            RiskSets.count(duration[tenth == k], event[tenth == k], 1, None)
            for k in np.unique(tenth)
        ]
        if not all(one.reaches([horizon])[0] for one in counts):
            warnings.append(
                f"In at least one tenth of the {name} {scope.where} nobody is observed for {format_days(horizon)}: "
                "no weight stands in for them, so that all numbers by then may be biased. If follow-up ends at a fixed "
                "age or date, name it, as in censoring: {age: 80y}."
            )
    return warnings


def at_risk(scope: Comparison, causes: Sequence[str]) -> dict[str, Any]:
    """How many were at risk at a landmark, and how many are evaluated by each horizon.

    `evaluated` are the subjects who could be followed until the horizon, and `events` those of them with each event.
    """
    parts = scope.alone(next(iter(scope.risk))).parts()
    events = np.concatenate([part.subjects_with_event() for part in parts], axis=1).tolist()
    return {
        "landmark_days": scope.landmark_days,
        "subjects": scope.subjects,
        "evaluated": [part.subjects for part in parts for _ in part.horizons_days],
        "events": dict(zip(causes, events, strict=True)),
    }


def smallest_g(scopes: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The smallest chance of being followed, G: the largest weight is 1 / G."""
    return [
        {
            "landmark_days": scope.landmark_days,
            "horizon_days": float(horizon),
            "g": number(g),
            "thin": bool(g < THIN_FOLLOW_UP),
        }
        for scope in scopes
        for horizon, g in zip(scope.horizons_days, scope.smallest_g(), strict=True)
    ]


def follow_up(scope: Comparison) -> dict[str, Any]:
    """Median follow-up by the reverse Kaplan–Meier method, with its interval."""
    median = median_follow_up_days(scope.duration_days, scope.cause)
    few = scope.subjects < FEWEST_SUBJECTS
    blocks = [] if few else scope.blocks()
    samples = [
        median_follow_up_days(scope.duration_days, scope.cause, weights=weights)
        for weights in blocks
    ]
    low, high = interval_around(median, np.concatenate(samples) if samples else ())
    return {
        "landmark_days": scope.landmark_days,
        "median_days": number(median),
        "low": number(low),
        "high": number(high),
        "reason": TOO_FEW if few else None,
    }


# ---- people whom several runs answer for ----------------------------------------------------------------------------


class OnOwnRecords(Predictor):
    """A run's predictor on its own records, asked at the prediction times that all runs have in common."""

    by_hazards = False

    def __init__(self, inner: Predictor, own: TaskRecords, place: Ints) -> None:
        self.inner, self.own, self.place, self.name = inner, own, place, inner.name
        self.edges_days, self.n_causes = inner.edges_days, inner.n_causes

    @cached_property
    def _hazards(self) -> Floats:
        return self.inner.all_hazards(self.own)[self.place]

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """Those of the run's own records, at the same prediction times."""
        for rows in row_blocks(len(self.place)):
            yield rows, self._hazards[rows]


def in_common(
    whole: Population, runs: Sequence[Run], records: Sequence[TaskRecords]
) -> tuple[Population, list[Ints]]:
    """The prediction times of the first run's split that all runs have, and their numbers in each run's records.

    Raises:
        EhrseqError: There are none, or the labels of a prepared set are others.
    """
    rows, times = whole.records.rows, np.asarray(whole.records.rows.prediction_us)
    places = [rows_of(own, whole.records.subject_id, times) for own in records]
    chosen = np.flatnonzero(np.min(places, axis=0) >= 0)
    if not len(chosen):
        fix = "prepare them from the same records with the same splits"
        where = f"split {whole.split}"
        raise EhrseqError("the runs have no person in common", where=where, fix=fix)
    places = [place[chosen] for place in places]
    for run, own, place in zip(runs, records, places, strict=True):
        for name in ("duration_days", "cause"):
            if not np.array_equal(getattr(own.rows, name)[place], getattr(rows, name)[chosen]):
                fix = "prepare both from the same records"
                raise EhrseqError("has other labels", where=str(run.folder), fix=fix)
    owners = np.bincount(rows.subject[chosen], minlength=len(whole.records.timelines))
    own_rows = rows.select(chosen, np.r_[0, np.cumsum(owners)].astype(np.int64))
    common = TaskRecords(whole.records.timelines, own_rows)
    return replace(whole, records=common, source=None, only_landmarks=True), places
