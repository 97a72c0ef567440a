"""Evaluates anybody's risk curves as a run's are: same cohort, metrics, intervals, baselines and report.

A file of predictions and MEDS data go in. The records are prepared for the task, with labels and splits
by the same code as `ehrseq prepare`. The predictions of one split are matched to them, baselines are fitted on the
training split, and `Evaluation` compares both on the same rows.

| what is wrong | what happens |
|---|---|
| a column, a cause of the task or a horizon of the task is missing | error |
| a risk outside [0, 1], or not a number | error |
| two rows for one prediction time, cause and horizon | error |
| a prediction time with some of its causes and horizons | error |
| `start_days` that is not the task's blanking | error |
| somebody at risk at a landmark has no prediction | error |
| a prediction time between landmarks has no prediction | warning with the count; only landmarks are evaluated |
| prediction times outside the split or cohort, causes that are not the task's | ignored; warning with the count |
| risks that fall with the horizon, causes that sum to more than 1 | warning with the count; no likelihood |
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ehrsequencing.config import (
    StudyConfig,
    TaskConfig,
    format_days,
    refuse_changes,
    refuse_other_task,
)
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, refuse_overlap, sha256
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import SCORE, complete_folder, write_manifest
from ehrsequencing.evaluation.comparison import NETWORK, ORACLE
from ehrsequencing.evaluation.evaluate import evaluate_predictors
from ehrsequencing.evaluation.population import Population, drawn_subjects, people, rows_of
from ehrsequencing.evaluation.results import write_result
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.metrics.outcomes import ROUNDING
from ehrsequencing.prediction.prediction_file import SUFFIXES, RiskTable, read_predictions
from ehrsequencing.predictors.fit import BASELINES
from ehrsequencing.predictors.from_file import FromFile
from ehrsequencing.records.account import CohortCounts
from ehrsequencing.records.prepare import prepare, require_made_of
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.results.result_types import Exact
from ehrsequencing.training.plan import training_edges

_SECTIONS = {"data", "visits", "values", "vocabulary", "splits", "evaluation"}  # that matter here
_SAME_DAYS = 1e-6  # relative difference up to which two horizons are the same
_PREPARED = "prepared"  # the set that is made inside the output, and removed again


def score(
    predictions: Path,
    data: Path,
    task: TaskConfig,
    *,
    out: Path | None = None,
    name: str | None = None,
    split: str = "held_out",
    study: StudyConfig | None = None,
    prepared: Path | None = None,
    beside: Mapping[str, Path] | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    draw: Callable[[Exact, Path], None] = lambda result, folder: None,
) -> tuple[Exact, Path]:
    """Evaluate a file of predictions, and write the result into a folder of its own, which appears when complete.

    Args:
        predictions: Risks of any model: a file in the format of `predictions.parquet`. The table above says what is
            refused and what is ignored.
        data: The MEDS data set that they are about.
        task: The question.
        out: The folder; default: `NAME-score` beside the file.
        name: What the model is called; default: the name of the file.
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
        EhrseqError: Predictions, data or task cannot be used, or do not fit together.

    Example:
        Everybody in a simulation gets the same risks. They rank nobody, and the true hazards rank better.

        >>> import tempfile
        >>> import pandas as pd
        >>> from ehrsequencing.config import load_study, load_task
        >>> from ehrsequencing.evaluation.score import score
        >>> from ehrsequencing.records.prepare import prepare
        >>> from ehrsequencing.simulate import simulate
        >>> folder = Path(tempfile.mkdtemp())
        >>> simulate(folder / "data", subjects=500, seed=1)
        >>> task = load_task(folder / "data" / "task.yaml")
        >>> study = load_study(None, ["evaluation.baselines=none", "evaluation.bootstrap=0"])
        >>> _ = prepare(folder / "data", folder / "prepared", study=study, tasks=[task])
        >>> cohort = pd.read_parquet(folder / "prepared" / "tasks" / task.name / "cohort.parquet")
        >>> asked = cohort.loc[cohort["split"] == "held_out", ["subject_id", "prediction_time"]]
        >>> by_horizon = pd.DataFrame({"horizon_days": task.horizons, "risk": [0.03, 0.1, 0.15, 0.3]})
        >>> mine = asked.merge(pd.DataFrame({"cause": task.causes}), how="cross").merge(by_horizon, how="cross")
        >>> mine.to_parquet(folder / "mine.parquet")
        >>> result, _ = score(
        ...     folder / "mine.parquet", folder / "data", task, study=study, prepared=folder / "prepared"
        ... )
        >>> first = [row for row in result["metrics"] if row["cause"] == task.causes[0]]
        >>> c = {row["model"]: row["value"] for row in first if row["metric"] == "c"}
        >>> round(c["mine"], 3), c["true hazards"] > 0.5
        (0.5, True)
        >>> shutil.rmtree(folder)
    """
    ending = next((one for one in reversed(SUFFIXES) if predictions.name.endswith(one)), "")
    stem = predictions.name.removesuffix(ending) or predictions.name
    folder, study = out or predictions.parent / f"{stem}-score", study or StudyConfig()
    others = dict(beside or {})
    refuse_overlap(folder, data, predictions, *others.values())
    names = [name or stem, *others]
    for number, one in enumerate(names):
        if not one.strip() or one in (NETWORK, ORACLE, *BASELINES, *names[:number]):
            raise EhrseqError(
                f"{one!r} is the name of another model of the report",
                where="--name",
                fix="choose another",
            )
    progress("reading the predictions")
    table = read_predictions(predictions)
    tables = {path: read_predictions(path) for path in others.values()}
    with complete_folder(folder, SCORE, overwrite=overwrite or out is None) as temporary:
        if prepared is None:
            progress("preparing the records")
            prepare(data, temporary / _PREPARED, study=study, tasks=[task])
        store = Prepared(prepared or temporary / _PREPARED, verify=prepared is not None)
        if prepared is not None:
            _require_same(store, prepared, data, task, study)
        _require_records_of({predictions: table, **tables}, store)
        whole = Population.of_split(store, task, split)
        horizons, risk, ignored = match(table, whole.records, task, path=predictions)
        population, risk, notes = _evaluated(replace(whole, source=data), risk, task, predictions)
        chosen = drawn_subjects(population.records, study.evaluation)
        risk = risk if chosen is None else risk[population.records.rows.numbers(chosen)]
        population = population.take(chosen)
        settings = store.study.model_copy(update={"evaluation": study.evaluation})
        file = FromFile(
            name or stem,
            population.records,
            horizons,
            risk,
            edges_days=training_edges(store, task, bins=study.training.grid_bins),
            start_days=task.blanking,
        )
        evaluated = Evaluated(
            name=file.name,
            predictor=file,
            where=str(predictions),
            task=task,
            study=settings,
            config=settings.model_dump(mode="json", include=_SECTIONS),
            vocabulary=store.vocabulary,
        )
        result = evaluate_predictors(
            evaluated,
            population,
            prepared=store,
            settings=study.evaluation,
            beside={
                label: _beside(file, task, label, path, tables[path])
                for label, path in others.items()
            },
            progress=progress,
        )
        notes += [*ignored, *file.warnings()]
        result |= {
            "score": {
                "file": predictions.name,
                "sha256": sha256(predictions),
                "horizons_days": [*horizons],
            },
            "warnings": [*notes, *result["warnings"]],
        }
        made = store.manifest["made_of"] | made_of(
            predictions=[sha256(path) for path in (predictions, *others.values())],
            split=split,
            evaluation=study.evaluation.model_dump(mode="json", exclude={"tripod"}),
            tripod=result["tripod"],
        )
        result["made_of"] = digest(made)
        shutil.rmtree(temporary / _PREPARED, ignore_errors=True)
        write_result(result, temporary)
        draw(result, temporary)
        write_manifest(temporary, {**SCORE.facts, "made_of": made})
    return result, folder


def _require_same(
    store: Prepared, prepared: Path, data: Path, task: TaskConfig, study: StudyConfig
) -> None:
    """Refuse a prepared set of other records, of another task, or with other settings."""
    refuse_changes(study, store.study, "score --prepared", file=Path("study"), by=prepared)
    refuse_other_task(task, store.task(task.name), file=Path("--task"), by=prepared)
    require_made_of(store, data)


def _require_records_of(tables: Mapping[Path, RiskTable], store: Prepared) -> None:
    """Refuse files whose risks were predicted from other records."""
    for path, own in tables.items():
        if own.made_from not in (None, store.manifest["made_of"]["records"]):
            raise EhrseqError(
                "its risks were predicted from other records",
                where=str(path),
                fix="predict from these records; if those risks are meant for these, write them as CSV",
            )


def match(
    table: RiskTable,
    records: TaskRecords,
    task: TaskConfig,
    *,
    path: Path,
) -> tuple[Floats, Floats, list[str]]:
    """Find the risks of each prediction time, and refuse what cannot be evaluated.

    Args:
        table: The file.
        records: The prediction times that are evaluated.
        task: The question.
        path: The file, for messages.

    Returns:
        (H,) every horizon of the file, rising; (R, causes, H) risks, NaN at prediction times without one; and what was
        ignored.

    Raises:
        EhrseqError: See the table at the top of this file.
    """
    where, causes, warnings = str(path), task.causes, list[str]()
    _require_risks(table, task, where)
    place = np.array([causes.index(name) if name in causes else -1 for name in table.causes])[
        table.cause
    ]
    if (place < 0).any():
        known = sum(name not in causes for name in table.causes)
        warnings.append(f"Rows of {known} causes that the task does not have are ignored.")
    owner = rows_of(records, table.subject_id, table.prediction_us)
    chosen = np.flatnonzero((owner >= 0) & (place >= 0))
    if not len(chosen):
        raise EhrseqError(
            "has no prediction for anybody of the cohort",
            where=where,
            fix="check subject_id and prediction_time: cohort.parquet of ehrseq prepare lists those of the task",
        )
    horizons, column = _horizons(table.horizon_days[chosen], task, where)
    shape = (len(records), len(causes), len(horizons))
    flat = np.ravel_multi_index((owner[chosen], place[chosen], column), shape)
    if len(np.unique(flat)) < len(flat):
        twice = len(flat) - len(np.unique(flat))
        raise EhrseqError(
            f"{twice:,} rows have the subject, prediction time, cause and horizon of another row",
            where=where,
            fix="keep one of them",
        )
    risk = np.full(shape, np.nan)
    risk.reshape(-1)[flat] = np.clip(table.risk[chosen], 0.0, 1.0)
    some = ~np.isnan(risk)
    partly = some.any(axis=(1, 2)) & ~some.all(axis=(1, 2))
    if partly.any():
        raise EhrseqError(
            f"{int(partly.sum()):,} prediction times lack the risk of some cause at some horizon",
            where=where,
            fix="give every prediction time all causes and the same horizons",
        )
    outside = owner < 0
    if outside.any():
        pairs = np.stack([table.subject_id[outside], table.prediction_us[outside]], axis=1)
        warnings.append(
            f"{people(len(np.unique(pairs, axis=0)))} prediction times of the file are not evaluated (another split, "
            "not eligible, not at risk any more, or no prediction time of the task): ignored."
        )
    return horizons, risk, warnings


def _require_risks(table: RiskTable, task: TaskConfig, where: str) -> None:
    """Refuse what are no risks of the task's causes after its blanking."""
    if not ((table.risk >= -ROUNDING) & (table.risk <= 1 + ROUNDING)).all():
        bad = int((~((table.risk >= -ROUNDING) & (table.risk <= 1 + ROUNDING))).sum())
        raise EhrseqError(
            f"{bad:,} risks are outside 0..1",
            where=where,
            fix="a risk is a probability, not percent",
        )
    if table.start_days is None and task.blanking:
        fix = f"give it the column start_days: risks must be given no event in the {format_days(task.blanking)}"
        raise EhrseqError(
            "does not tell from when its risks count",
            where=where,
            fix=f"{fix} of the task's blanking",
        )
    if table.start_days is not None and abs(table.start_days - task.blanking) > _SAME_DAYS:
        what = f"its risks are given no event for {format_days(table.start_days)}, the task's for"
        raise EhrseqError(
            f"{what} {format_days(task.blanking)}", where=where, fix="use the task's blanking"
        )
    causes = task.causes
    absent = [name for name in causes if name not in table.causes]
    if absent:
        raise EhrseqError(
            f"has no risk of {', '.join(absent)}",
            where=where,
            fix=f"the task's causes are {', '.join(causes)}; a cause that you do not model can have its mean risk",
        )


def _horizons(days: Floats, task: TaskConfig, where: str) -> tuple[Floats, Ints]:
    """The distinct horizons, those of the task exactly as it has them, and the position of each row's."""
    distinct, position = np.unique(days, return_inverse=True)
    wanted = np.array(task.horizons)
    if not (np.isfinite(distinct).all() and distinct[0] > task.blanking):
        raise EhrseqError(
            "has horizons that are not numbers of days after the start of the risks",
            where=where,
            fix="leave these rows out",
        )
    near = np.abs(distinct[:, None] - wanted) <= _SAME_DAYS * wanted
    lacking = [format_days(float(h)) for h in wanted[~near.any(axis=0)]]
    if lacking:
        raise EhrseqError(
            f"has no risk within {', '.join(lacking)}",
            where=where,
            fix="predict them, or take them out of the task file",
        )
    distinct = np.where(near.any(axis=1), wanted[near.argmax(axis=1)], distinct)
    merged, again = np.unique(distinct, return_inverse=True)
    return merged, again[position]


def _beside(file: FromFile, task: TaskConfig, name: str, path: Path, table: RiskTable) -> FromFile:
    """Another model's file, at the prediction times of the first.

    Raises:
        EhrseqError: It cannot be used, or lacks some of these prediction times.
    """
    horizons, risk, _ = match(table, file.labels, task, path=path)
    unanswered = np.isnan(risk[:, 0, 0])
    if unanswered.any():
        without = people(int(unanswered.sum())).lower()
        raise EhrseqError(
            f"has no prediction at {without} of the evaluated prediction times",
            where=str(path),
            fix="models are compared where all of them have a prediction",
        )
    return FromFile(
        name,
        file.labels,
        horizons,
        risk,
        edges_days=file.edges_days,
        start_days=file.start_days,
    )


def _evaluated(
    whole: Population, risk: Floats, task: TaskConfig, path: Path
) -> tuple[Population, Floats, list[str]]:
    """The prediction times that are evaluated, their risks, and what is left out.

    All of them are evaluated where all have a prediction, else those at landmarks: there everybody needs one, since
    whoever is left out may be those who are hard to predict.

    Raises:
        EhrseqError: Somebody at a landmark has none.
    """
    rows, answered = whole.records.rows, ~np.isnan(risk[:, 0, 0])
    if answered.all():
        return whole, risk, []
    at_landmark = np.any([rows.at_landmark(days) for days in task.landmarks], axis=0)
    missing = int((at_landmark & ~answered).sum())
    if missing:
        days = ", ".join(map(format_days, task.landmarks))
        raise EhrseqError(
            f"{people(missing).lower()} prediction times at a landmark ({days} after the index) have no prediction",
            where=str(path),
            fix="predict everybody in cohort.parquet of ehrseq prepare, by the mean risk where nothing else is known",
        )
    missing = int((~answered).sum())
    of = f"{people(len(rows))} prediction times"
    note = f"{people(missing)} of {of} have no prediction: only landmarks are evaluated."
    chosen = np.flatnonzero(at_landmark)
    offsets = np.r_[
        0, np.cumsum(np.bincount(rows.subject[chosen], minlength=len(whole.records.timelines)))
    ]
    records = TaskRecords(whole.records.timelines, rows.select(chosen, offsets.astype(np.int64)))
    counts: CohortCounts = {**whole.counts, "prediction_times": len(chosen)}
    population = replace(
        whole,
        records=records,
        attrition=whole.with_counts(counts),
        only_landmarks=True,
    )
    return population, risk[chosen], [note]
