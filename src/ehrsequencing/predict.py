"""A run and records → risk curves.

A `RUN` folder is all that prediction needs: the model, the vocabulary, how visits are cut, and the task. New records go
the way that training records went, shard by shard, but nothing about the end of follow-up is assumed to be known.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from ehrsequencing.config import DataConfig, StudyConfig, TaskConfig, load_study
from ehrsequencing.errors import EhrseqError
from ehrsequencing.loader import SubjectLoader
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.build import load_model
from ehrsequencing.models.recalibrated import Recalibrated
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.cohort import CohortBuilder, CohortRows
from ehrsequencing.records.meds import STATIC, MedsReader, parse_date_us
from ehrsequencing.records.prepared import Progress
from ehrsequencing.records.timelines import TaskRows, Timelines, encode_rows, encode_timelines, make_record
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.storage import RUN_NEEDS, altered, atomic_path, read_json, read_manifest, require_facts

RECALIBRATION = "recalibration.json"  # in a run: what `ehrseq evaluate --recalibrate` fitted
_FACTS: dict[str, type] = {"excluded": list, "fingerprint": str, "labels": str, "prepared": str, "vocabulary": str}
VISIT_BUDGET = 16_384  # visits in one forward pass of prediction
_PREDICTIONS = pa.schema([
    ("subject_id", pa.int64()), ("prediction_time", pa.timestamp("us")), ("cause", pa.string()),
    ("horizon_days", pa.float64()), ("risk", pa.float32()),
])  # fmt: skip


class Run:
    """A trained run, read from its folder.

    Args:
        folder: What `ehrseq train` made.

    Raises:
        EhrseqError: The folder is not a complete run, or its files do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder, what="a finished run")
        if self.manifest.get("kind") != "run":
            raise EhrseqError("is not a run", where=str(folder), mend="name a folder that ehrseq train made")
        require_facts(folder, self.manifest, _FACTS)
        if not set(RUN_NEEDS) <= set(self.manifest.get("required", self.manifest["files"])):
            raise EhrseqError("its manifest lacks files of the model", where=str(folder), mend="train again")
        self.study: StudyConfig = load_study(folder / "config.yaml")
        self.vocabulary = Vocabulary.load(folder)
        if self.study.task is None or self.vocabulary.digest != self.manifest.get("vocabulary"):
            mend = "train again, or copy the whole run folder"
            raise EhrseqError(
                "the vocabulary is not the one that the model was trained with", where=str(folder), mend=mend
            )
        self.task: TaskConfig = self.study.task

    @cached_property
    def altered(self) -> dict[str, str]:
        """Files that prediction does not need and that are missing or changed since they were written, and which."""
        return altered(self.folder, self.manifest)

    @cached_property
    def model(self) -> SurvivalModel:
        """The model, in evaluation mode."""
        model = load_model(self.folder)
        if model.config.vocab_size != len(self.vocabulary):
            mend = "copy the whole run folder"
            raise EhrseqError("model and vocabulary differ in size", where=str(self.folder), mend=mend)
        return model

    @property
    def recalibrated(self) -> SurvivalModel:
        """The model with what `ehrseq evaluate --recalibrate` fitted.

        Raises:
            EhrseqError: Nothing has been fitted.
        """
        if RECALIBRATION not in self.manifest["files"]:
            mend = f"run ehrseq evaluate {self.folder} --recalibrate first"
            raise EhrseqError("has not been recalibrated", where=str(self.folder), mend=mend)
        if RECALIBRATION in self.altered:
            mend = f"run ehrseq evaluate {self.folder} --recalibrate again"
            raise EhrseqError(self.altered[RECALIBRATION], where=str(self.folder / RECALIBRATION), mend=mend)
        fitted = read_json(self.folder / RECALIBRATION)["fitted"]
        pairs = [(fitted[name]["intercept"], fitted[name]["slope"]) for name in self.task.causes]
        return Recalibrated(self.model, [a for a, _ in pairs], [b for _, b in pairs]).eval()

    @property
    def code_types(self) -> NDArray[np.int64] | None:
        """Type of each token, where the model has an embedding for it."""
        return self.vocabulary.code_types if self.model.config.code_types else None

    @property
    def is_visit_head(self) -> bool:
        """Whether the model gives hazards per visit, which have no calendar."""
        return self.study.model.head == "visit"

    def excluded(self, data: Path) -> CodeMatcher:
        """Codes that made no token when this run's data was prepared."""
        return CodeMatcher(self.manifest["excluded"], parents=read_parents(data))


def risk_of_rows(
    model: SurvivalModel,
    timelines: Timelines,
    rows: TaskRows,
    *,
    horizons_days: Sequence[float] | NDArray[np.float64],
    code_types: NDArray[np.int64] | None = None,
    start_days: float = 0.0,
) -> NDArray[np.float32]:
    """Risk at every prediction time; memory does not grow with the length of a record (see `ehrsequencing.loader`).

    Args:
        model: In evaluation mode.
        timelines: Visits.
        rows: Prediction times of the same subjects.
        horizons_days: Days after the prediction time; ignored by the `visit` head.
        code_types: (V,) type of each token, where the model wants types (`Run.code_types`).
        start_days: Given no event for so long after the prediction time (a task's blanking).

    Returns:
        (R, causes, horizons) cumulative incidence; for the `visit` head (R, 1, 1), the hazard before the next visit,
        NaN for queries that fall on no visit's end.
    """
    is_visit = model.config.head == "visit"
    shape = (len(rows), 1, 1) if is_visit else (len(rows), model.config.causes, len(horizons_days))
    out = np.full(shape, np.nan, dtype=np.float32)
    loader = SubjectLoader.of_model(model.config, timelines, rows, code_types=code_types)
    with torch.no_grad():
        for step in loader.in_order(visit_budget=VISIT_BUDGET):
            if is_visit:
                answers = model(step.batch).double().sigmoid()[:, None, None]
            else:
                days = [float(horizon) for horizon in horizons_days]
                answers = model.risk(step.batch, horizons_days=days, start_days=start_days)
            out[step.rows] = answers.numpy()[step.positions]
    return out


def nll_of_rows(
    model: SurvivalModel, timelines: Timelines, rows: TaskRows, *, code_types: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Negative log-likelihood (R,) of every labelled prediction time; NaN for rows that the head does not answer."""
    out = np.full(len(rows), np.nan)
    loader = SubjectLoader.of_model(model.config, timelines, rows, code_types=code_types)
    with torch.no_grad():
        for step in loader.in_order(visit_budget=VISIT_BUDGET):
            out[step.rows] = model.nll(step.batch).double().numpy()[step.positions]
    return out


@dataclass(frozen=True)
class Moment:
    """Which prediction times are asked for: every one (`all`), each subject's newest (`last`), or a date."""

    at: str = "all"

    def __post_init__(self) -> None:
        if self.at not in ("all", "last") and not re.match(r"\d{4}-\d{2}-\d{2}", self.at):
            raise EhrseqError(f"{self.at!r} is no moment", where="--at", mend="use all, last or a date: 2026-03-01")

    @property
    def as_of_us(self) -> int | None:
        """The date asked for, at midnight unless it has a time of day."""
        return None if self.at in ("all", "last") else parse_date_us(self.at)

    def choose(self, rows: CohortRows) -> CohortRows:
        """Keep what was asked for."""
        if self.at != "last" or not len(rows):
            return rows
        return rows.take(np.r_[rows.subject[1:] != rows.subject[:-1], True])


def encode_for_prediction(
    run: Run, data: Path, *, moment: Moment, facts: DataConfig | None = None, progress: Progress | None = None
) -> Iterator[tuple[Timelines, TaskRows]]:
    """Read MEDS records shard by shard and encode them the way the run's training data was."""
    column = run.study.visits.column if run.study.visits.by == "encounter" else None
    reader = MedsReader(data, facts, encounter_column=column)
    excluded = run.excluded(data)
    builder = CohortBuilder(run.task, parents=read_parents(data))
    end_us = int(STATIC)
    if moment.as_of_us is None and max(run.task.landmarks) > 0:  # a landmark in the future has no answer yet
        end_us = max(int(events.time_us.max(initial=STATIC)) for events in reader)
    for number, events in enumerate(reader, start=1):
        record = make_record(events, excluded=excluded, settings=run.study.visits)
        cohort = builder.build(
            record.events, record.subject, record.visits, birth_us=record.birth_us,
            dataset_end_us=end_us, labelled=False, as_of_us=moment.as_of_us,
        )  # fmt: skip
        timelines, _ = encode_timelines(record, run.vocabulary)
        yield timelines, encode_rows(record, moment.choose(cohort.rows), run.vocabulary)
        if progress is not None:
            progress(number, len(reader.shards))


def predict(
    run_folder: Path,
    data: Path,
    out: Path,
    *,
    at: str = "all",
    horizons_days: Sequence[float] | None = None,
    facts: DataConfig | None = None,
    recalibrated: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write `predictions.parquet` for any MEDS data, seen or not.

    Args:
        run_folder: A trained run.
        data: A MEDS data set.
        out: The Parquet file to write.
        at: `all` prediction times, each subject's `last`, or a date ("as of that day").
        horizons_days: Default: the task's horizons.
        facts: What the data set's own files do not tell.
        recalibrated: Whether to use what `ehrseq evaluate --recalibrate` fitted.
        progress: Called with (shards done, shards).

    Returns:
        The number of prediction times.

    Raises:
        EhrseqError: Run or data cannot be used, or nobody has a prediction time.
    """
    run, moment = Run(run_folder), Moment(at)
    horizons = tuple(horizons_days or run.task.horizons)
    if min(horizons) <= 0:
        raise EhrseqError("horizons must be positive", where="--horizons", mend="write them as 90d,2y")
    model, count = run.recalibrated if recalibrated else run.model, 0
    with atomic_path(out) as temporary, pq.ParquetWriter(temporary, _PREDICTIONS) as writer:
        for timelines, rows in encode_for_prediction(run, data, moment=moment, facts=facts, progress=progress):
            risk = risk_of_rows(model, timelines, rows, horizons_days=horizons, code_types=run.code_types)
            answered = ~np.isnan(risk[:, 0, 0])
            writer.write_table(long_table(run, timelines, rows, risk, horizons, chosen=np.flatnonzero(answered)))
            count += int(answered.sum())
        if not count:
            mend = "check the index codes of the task against the data with ehrseq check"
            raise EhrseqError("nobody has a prediction time", where=str(data), mend=mend)
    return count


def long_table(
    run: Run,
    timelines: Timelines,
    rows: TaskRows,
    risk: NDArray[np.float32],
    horizons_days: Sequence[float],
    *,
    chosen: NDArray[np.int64],
) -> pa.Table:
    """Risks (R, causes, horizons) of the chosen rows in the long format of `predictions.parquet`."""
    _, n_causes, n_horizons = risk.shape
    subject_id = np.asarray(timelines.subject_id)[rows.subject[chosen]]
    causes = np.array(run.task.causes[:n_causes], dtype=object)
    horizons: Any = [None] if run.is_visit_head else list(horizons_days)
    repeat = n_causes * n_horizons
    return pa.Table.from_arrays([
        pa.array(np.repeat(subject_id, repeat)),
        pa.array(np.repeat(np.asarray(rows.prediction_us)[chosen], repeat)).cast(pa.timestamp("us")),
        pa.array(np.tile(np.repeat(causes, n_horizons), len(chosen)).tolist(), pa.string()),
        pa.array(horizons * (n_causes * len(chosen)), pa.float64()),
        pa.array(risk[chosen].reshape(-1)),
    ], schema=_PREDICTIONS)  # fmt: skip
