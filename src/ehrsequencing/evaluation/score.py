"""Evaluates anybody's risk curves as a run's are: same cohort, metrics, intervals, baselines and report.

Predictions, in a file or a table, and MEDS data go in. The records are prepared for the task, with labels and splits
by the same code as `ehrseq prepare`. The predictions of one split are matched to them, baselines are fitted on the
training split, and `Evaluation` compares both on the same rows.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ehrsequencing.baselines.base import Baseline
from ehrsequencing.baselines.fit import BASELINES
from ehrsequencing.config import StudyConfig, TaskConfig, format_days, load_task, refuse_other_task
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import private_folder, refuse_overlap, sha256
from ehrsequencing.core.outputs import SCORE, complete_folder, write_manifest
from ehrsequencing.evaluation.comparison import NETWORK, ORACLE
from ehrsequencing.evaluation.evaluate import Evaluation
from ehrsequencing.evaluation.file_risks import FileRisks, Matched, match, people
from ehrsequencing.evaluation.population import Population, drawn_subjects
from ehrsequencing.evaluation.results import write_result
from ehrsequencing.evaluation.trained_baselines import FLAT
from ehrsequencing.prediction.prediction_file import SUFFIXES, read_predictions
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepare import data_name, prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.scales import grid_edges
from ehrsequencing.records.timelines import TaskRecords

_PREPARED = "prepared"  # the set that is made inside the output, and removed again


def score(
    predictions: Path | str | Any,
    data: Path | str,
    task: TaskConfig | Path | str,
    *,
    out: Path | str | None = None,
    name: str | None = None,
    split: str = "held_out",
    study: StudyConfig | None = None,
    prepared: Path | str | None = None,
    beside: Mapping[str, Path] | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    draw: Callable[[dict[str, Any], Path], None] = lambda result, folder: None,
) -> tuple[dict[str, Any], Path]:
    """Evaluate a file of predictions, and write the result into a folder of its own, which appears when complete.

    Args:
        predictions: Risks of any model: a file in the format of `predictions.parquet`, or a table with its columns (a
            data frame of pandas or Polars, a `pyarrow.Table`, a mapping of names to arrays). The table in `file_risks`
            says what is refused and what is ignored.
        data: The MEDS data set that they are about.
        task: The question, or its file.
        out: The folder; default: `NAME-score` beside the file.
        name: What the model is called; default: the name of the file, or `predictions`.
        split: Whose predictions are evaluated: `held_out`, `tuning` or `train`.
        study: How records become visits and who is in which split, as for `prepare`; baselines, resamples, seed.
        prepared: The prepared set of this data, if there is one with this task; without it, it is made for the time of
            this call.
        beside: Other models' predictions by the models' names. They are evaluated on the same prediction times and
            resamples, each with every metric and the difference of the first file to it, as a baseline is.
        overwrite: Whether an earlier score there that nobody has changed is replaced.
        progress: Called with the name of each stage.
        draw: Called with the result and the folder that is being written, to add a report.

    Returns:
        The exact result, and the folder.

    Raises:
        EhrseqError: Predictions, data or task cannot be used, or do not fit together; or a table comes without `out`.

    Example:
        Everybody in a simulation gets the same risks. They rank nobody, and the true hazards rank better.

        >>> import tempfile
        >>> import pandas as pd
        >>> from ehrsequencing.config import load_study, load_task
        >>> from ehrsequencing.evaluation.score import score
        >>> from ehrsequencing.records.prepare import prepare
        >>> from ehrsequencing.simulate import simulate
        >>> folder = Path(tempfile.mkdtemp())
        >>> simulate(folder / "data", subjects=200, seed=1)
        >>> task = load_task(folder / "data" / "task.yaml")
        >>> study = load_study(None, ["evaluation.baselines=none", "evaluation.bootstrap=0"])
        >>> _ = prepare(folder / "data", folder / "prepared", study=study, tasks=[task])
        >>> cohort = pd.read_parquet(folder / "prepared" / "tasks" / task.name / "cohort.parquet")
        >>> asked = cohort.loc[cohort["split"] == "held_out", ["subject_id", "prediction_time"]]
        >>> by_horizon = pd.DataFrame({"horizon_days": task.horizons, "risk": [0.03, 0.1, 0.15, 0.3]})
        >>> mine = asked.merge(pd.DataFrame({"cause": task.causes}), how="cross").merge(by_horizon, how="cross")
        >>> result, _ = score(
        ...     mine, folder / "data", task, out=folder / "score", study=study, prepared=folder / "prepared"
        ... )
        >>> c = {row["model"]: row["value"] for row in result["metrics"] if row["metric"] == "c"}
        >>> round(c["predictions"], 3), c["true hazards"] > 0.5
        (0.5, True)
        >>> shutil.rmtree(folder)
    """
    given: dict[str, Any] = {"name": name, "split": split, "study": study, "beside": beside}
    given |= {"overwrite": overwrite, "progress": progress, "draw": draw}
    data, out, prepared = (
        Path(data),
        None if out is None else Path(out),
        None if prepared is None else Path(prepared),
    )
    if not isinstance(predictions, str | Path):
        with private_folder() as folder_of_table:
            path = _written(predictions, folder_of_table, out)
            return score(path, data, task, out=out, prepared=prepared, **given)
    predictions = Path(predictions)
    question = task if isinstance(task, TaskConfig) else load_task(Path(task))
    stem = _stem(predictions)
    folder, study = out or predictions.parent / f"{stem}-score", study or StudyConfig()
    others = dict(beside or {})
    refuse_overlap(folder, data, predictions, *others.values())
    _require_own_names([name or stem, *others])
    progress("reading the predictions")
    table = read_predictions(predictions)
    with complete_folder(folder, SCORE, overwrite=overwrite or out is None) as temporary:
        if prepared is None:
            progress("preparing the records")
            prepare(data, temporary / _PREPARED, study=study, tasks=[question])
        store = _opened(prepared or temporary / _PREPARED, data, question, is_ours=prepared is None)
        whole = Population.of_split(store, question, split)
        rest = {other: store.records(question.name, other) for other in SPLITS if other != split}
        found = match(table, whole.records, question, others=rest, path=predictions)
        population, risk, left_out = _evaluated(
            replace(whole, source=data), found, question, predictions
        )
        chosen = drawn_subjects(population.records, study.evaluation)
        risk = risk if chosen is None else risk[population.records.rows.numbers(chosen)]
        population = population.take(chosen)
        source = FileRisks(
            name=name or stem,
            where=str(predictions),
            task=question,
            study=store.study.model_copy(update={"evaluation": study.evaluation}),
            vocabulary=store.vocabulary,
            edges_days=_grid(store, question, study),
            horizons_days=found.horizons_days,
            values=risk,
            labels=population.records,
        )
        models = [_beside(source, label, path, rest) for label, path in others.items()]
        evaluation = _Scoring(
            source, population, prepared=store, settings=study.evaluation, beside=models
        )
        result = evaluation.result(progress=progress)
        told = [*left_out, *found.warnings, *source.warnings()]
        result |= {
            "score": {
                "file": predictions.name,
                "sha256": sha256(predictions),
                "horizons_days": [*found.horizons_days],
            },
            "warnings": [*told, *result["warnings"]],
        }
        with suppress(FileNotFoundError):
            shutil.rmtree(temporary / _PREPARED)
        write_result(result, temporary)
        draw(result, temporary)
        write_manifest(temporary, {**SCORE.facts, "predictions": result["score"]["sha256"]})
    return result, folder


def _written(table: Any, folder: Path, out: Path | None) -> Path:
    """A table of predictions as a file, of which there is a checksum."""
    if out is None:
        raise EhrseqError(
            "has no place for the result of a table", where="score(out=None)", fix="name a folder"
        )
    try:
        columns = table if isinstance(table, pa.Table) else pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        fix = "give a file, a data frame, a pyarrow.Table or a mapping of names to arrays"
        raise EhrseqError("are no table", where="predictions", fix=fix) from error
    pq.write_table(columns, folder / "predictions.parquet")
    return folder / "predictions.parquet"


@dataclass
class _OtherFile:
    """Another file's risks at the prediction times of the first, in the place of a baseline."""

    name: str
    source: FileRisks

    def risk(
        self, records: TaskRecords, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`; the file's risks are given no event until the task's blanking already."""
        return replace(self.source, values=self.source.values[chosen]).risk(records, horizons_days)

    def nll(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `Baseline`; NaN where the file gives no curve."""
        own = self.source.nll(records)
        return np.full(len(chosen), np.nan) if own is None else own[chosen]


class _Scoring(Evaluation):
    """The evaluation of one file with other files beside it."""

    def __init__(
        self, source: FileRisks, *given: Any, beside: Sequence[Baseline], **settings: Any
    ) -> None:
        super().__init__(source, *given, **settings)
        self.beside = list(beside)

    def _others(self) -> list[Baseline]:
        return [*super()._others(), *self.beside]


def _beside(
    source: FileRisks, name: str, path: Path, others: Mapping[str, TaskRecords]
) -> _OtherFile:
    """Another model's file, at the prediction times of the first.

    Raises:
        EhrseqError: It cannot be used, or lacks some of these prediction times.
    """
    found = match(read_predictions(path), source.labels, source.task, others=others, path=path)
    if not found.answered.all():
        what = f"has no prediction at {people(int((~found.answered).sum())).lower()} of the evaluated prediction times"
        raise EhrseqError(
            what, where=str(path), fix="models are compared where all of them have a prediction"
        )
    here = replace(
        source, name=name, where=str(path), horizons_days=found.horizons_days, values=found.risk
    )
    return _OtherFile(name, here)


def _stem(predictions: Path) -> str:
    """The file's name without its ending."""
    ending = next(
        (suffix for suffix in reversed(SUFFIXES) if predictions.name.endswith(suffix)), ""
    )
    return predictions.name.removesuffix(ending) or predictions.name


def _require_own_names(names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if not name.strip() or name in (NETWORK, ORACLE, FLAT, *BASELINES, *names[:number]):
            what = f"{name!r} is the name of another model of the report"
            raise EhrseqError(what, where="--name", fix="choose another")


def _opened(folder: Path, data: Path, task: TaskConfig, *, is_ours: bool) -> Prepared:
    """The prepared set, which must be of this data and task."""
    store = Prepared(folder, verify=not is_ours)
    if is_ours:
        return store
    refuse_other_task(task, store.task(task.name), file=Path("--task"), by=folder)
    if store.manifest["data"] != data_name(data):
        raise EhrseqError(
            f"was not made from {data}",
            where=str(folder),
            fix="leave out --prepared, or name that set",
        )
    return store


def _grid(store: Prepared, task: TaskConfig, study: StudyConfig) -> tuple[float, ...]:
    """The time grid that baselines are fitted on, as training makes it."""
    rows = store.rows(task.name, "train")
    return grid_edges(
        rows.duration_days,
        rows.cause,
        horizons_days=task.horizons,
        bins=study.training.grid_bins,
        subject=rows.subject,
        enough=store.study.vocabulary.min_subjects,
    )


def _evaluated(
    whole: Population, found: Matched, task: TaskConfig, path: Path
) -> tuple[Population, np.ndarray[Any, np.dtype[np.float64]], list[str]]:
    """The prediction times that are evaluated, their risks, and what is left out.

    A landmark is evaluated where everybody at risk at it has a prediction: whoever is left out may be those who are
    hard to predict. All prediction times together are evaluated where all of them have one.

    Raises:
        EhrseqError: Somebody at a landmark has none while others have one, or no landmark has any.
    """
    rows, answered = whole.records.rows, found.answered
    left_out: list[float | None] = []
    warnings: list[str] = []
    kept = np.zeros(len(rows), dtype=bool)
    for landmark in task.landmarks:
        at = rows.at_landmark(landmark)
        missing = int((at & ~answered).sum())
        if missing and missing < at.sum():
            what = f"{people(missing).lower()} of the subjects at risk {format_days(landmark)} after the"
            fix = "predict everybody, by the mean risk where nothing else is known"
            raise EhrseqError(f"{what} index have no prediction", where=str(path), fix=fix)
        if missing:
            left_out.append(landmark)
            warnings.append(
                f"The file has no prediction {format_days(landmark)} after the index: it is left out."
            )
        else:
            kept |= at
    if not kept.any():
        days = ", ".join(map(format_days, task.landmarks))
        fix = "predict at the task's landmarks: their prediction times are in cohort.parquet of ehrseq prepare"
        raise EhrseqError(
            f"has no prediction at any landmark ({days} after the index)", where=str(path), fix=fix
        )
    if answered.all():
        return whole, found.risk, warnings
    missing = int((~answered).sum())
    warnings.append(
        f"{people(missing)} of {len(rows):,} prediction times have no prediction: only landmarks are evaluated."
    )
    chosen = np.flatnonzero(kept)
    offsets = np.r_[
        0, np.cumsum(np.bincount(rows.subject[chosen], minlength=len(whole.records.timelines)))
    ]
    records = TaskRecords(whole.records.timelines, rows.select(chosen, offsets.astype(np.int64)))
    counts = {**whole.counts, "prediction_times": len(chosen)}
    attrition = {**whole.attrition, "splits": {**whole.attrition["splits"], whole.split: counts}}
    kept_population = replace(
        whole, records=records, attrition=attrition, left_out=(*left_out, None)
    )
    return kept_population, found.risk[chosen], warnings
