"""`evaluate` and `score` in Python, and the reports that they and `ehrseq audit` write."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow.parquet as pq

from ehrsequencing.api.data import as_settings, as_table, is_path, meds_folder, one_task, study_of
from ehrsequencing.api.evaluation import EvaluationResult
from ehrsequencing.api.progress import bar, stages
from ehrsequencing.api.run import warn_of
from ehrsequencing.config import DataConfig, EvaluationConfig, StudyConfig, validated
from ehrsequencing.core.errors import EhrseqError, refuse_idle
from ehrsequencing.core.files import private_folder, write_shareable
from ehrsequencing.evaluation.context import read_tripod
from ehrsequencing.evaluation.evaluate import evaluate as evaluate_run
from ehrsequencing.evaluation.external import validate
from ehrsequencing.evaluation.pooling import FOLDER as WALK, walk as walk_run
from ehrsequencing.evaluation.repeated_splits import FIRST_SEED, add_splits, repeated_splits
from ehrsequencing.evaluation.results import place_in_run, read_for_owner
from ehrsequencing.evaluation.score import score as score_file
from ehrsequencing.prediction.run import (
    Run,
    add_to_run,
    is_as_written,
    opened,
    require_room,
    saved_audit,
)
from ehrsequencing.reporting.pages import render_outcomes, render_pooled
from ehrsequencing.reporting.report import ANSWER, PAGES, pages, write_page, write_report
from ehrsequencing.results.result_types import Exact, Shared, SharedAudit

if TYPE_CHECKING:
    from ehrsequencing.evaluation.outcome_table import Progress

OUTCOME_NUMBERS, OUTCOME_PAGE = "outcome-metrics.json", "outcomes.html"


def evaluate(
    run: str | os.PathLike[str] | Run,
    *,
    bootstrap: int | None = None,
    baselines: str | None = None,
    split: str | None = None,
    data: Any = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    facts: DataConfig | Mapping[str, Any] | None = None,
    prepared: str | os.PathLike[str] | None = None,
    splits: int | None = None,
    split_seed: int | None = None,
    walk: str | None = None,
    report: bool = True,
    progress: bool = True,
    say: Callable[[str], None] = warn_of,
    **settings: Any,
) -> EvaluationResult:
    """Evaluate a run beside baselines on the same subjects, and write `metrics.json` and `report.html`.

    Args:
        run: A run, or its folder.
        bootstrap: Resamples of subjects for the intervals; default: the run's setting.
        baselines: `fast` or `none`.
        split: Whose subjects of the run's own data are evaluated: `held_out` (default), or `tuning` or `train`, which
            have a place of their own, `RUN/evaluations/SPLIT`.
        data: Other MEDS data that the model has never seen (a folder or a frame): external validation. With `splits`:
            the folder of the run's own records, if it has moved.
        out: With `data`: the folder to make; default: `RUN/external-NAME`.
        overwrite: With `data`: whether an earlier validation at `out` that nobody has changed is replaced.
        facts: With `data`: what its files do not tell, as in `{"extracted": "2026-03-01"}`.
        prepared: The prepared set that the run was trained on, if it has moved.
        splits: Also train and evaluate on so many random 80/20 splits of the subjects.
        split_seed: With `splits`: seed of the first of them; default: 1234.
        walk: Also train before each window of index dates and test in it (`date`), or leave one site out at a time
            (`site`); writes the pooled table into `RUN/walk`.
        report: Whether to write `report.html`, and the table and the page of every outcome where the run has some.
        progress: Whether to show a bar.
        say: Called with remarks about `data`; default: warnings are raised as such.
        settings: Other settings of the section `evaluation`, as in `bootstrap=200`.

    Returns:
        The evaluation, with `metrics`, `differences`, `outcomes()` and plots.

    Raises:
        EhrseqError: The run or the data cannot be used, a setting is unknown, or an argument would do nothing.

    Example:
        >>> import ehrsequencing as eh
        >>> ev = eh.evaluate("runs/hf", bootstrap=20, baselines="none", report=False, progress=False)
        >>> ev.metrics.metric.unique().tolist()[:4]
        ['c', 'auc', 'brier', 'ipa']
    """
    is_external = data is not None and splits is None and walk is None
    refuse_idle(
        {"out": out, "overwrite": overwrite, "facts": facts},
        "without data for an external validation",
        where="evaluate",
        when=not is_external,
    )
    refuse_idle(
        {"split": split},
        "beside data, which is evaluated whole",
        where="evaluate",
        when=is_external,
    )
    refuse_idle({"split_seed": split_seed}, "without splits", where="evaluate", when=splits is None)
    known = opened(run)
    named = {"bootstrap": bootstrap, "baselines": baselines}
    settings |= {name: value for name, value in named.items() if value is not None}
    values = known.study.evaluation.model_dump() | settings
    given: dict[str, Any] = {
        "settings": validated(EvaluationConfig, values, where="evaluate"),
        "prepared": None if prepared is None else Path(prepared),
    }
    moved = data if is_path(data) else None
    with bar("evaluating", show=progress) as tick:

        def stage(name: str) -> None:
            tick(0, 0, name)

        if is_external:
            draw = partial(report_external, known.folder) if report else _draw_nothing
            with meds_folder(data) as source:
                result, folder = validate(
                    known,
                    source,
                    out=None if out is None else Path(out),
                    overwrite=overwrite,
                    facts=as_settings(DataConfig, facts),
                    progress=stage,
                    say=say,
                    draw=draw,
                    **given,
                )
            return EvaluationResult(
                result, folder, run=known, data=data, prepared=given["prepared"]
            )
        chosen = "held_out" if split is None else split
        result = evaluate_run(known, split=chosen, progress=stage, **given)
        again: dict[str, Any] = {"data": moved and Path(moved), "progress": tick, **given}
        if splits is not None:
            first_seed = FIRST_SEED if split_seed is None else split_seed
            repeated_splits(known, splits=splits, first_seed=first_seed, **again)
        if walk is not None:
            walked = walk_run(known, over=walk, **again)
            pooled = known.folder / WALK / walk
            write_shareable(pooled / "pooled.json", walked)
            write_shareable(pooled / "pooled.html", walked.drawn(render_pooled))
        result, every_outcome = add_splits(known, result), None
        if report:
            report_evaluation(known.folder, result)
            every_outcome = report_outcomes(known, split=chosen, progress=tick, **given)
    return EvaluationResult(
        result,
        known.folder / place_in_run(chosen),
        run=known,
        prepared=given["prepared"],
        every_outcome=every_outcome,
    )


def audit(
    run: str | os.PathLike[str] | Run,
    *,
    split: str = "held_out",
    subjects: int = 200,
    seed: int = 0,
    allow: Mapping[str, str] | None = None,
    prepared: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Test a run and its data for leaks of the future; writes `audit.json`, and the verdict into the run's report.

    Args:
        run: A run, or its folder.
        split: Whose subjects the model is tested on.
        subjects: How many subjects of each split to sample.
        seed: Of the sample.
        allow: Codes that may say so much, each with the reason, which the report prints.
        prepared: The prepared set, if it has moved.
        data: The MEDS records, if they have moved.
        progress: Whether to show a bar.

    Returns:
        One row a check: `name`, `verdict` (`passed`, `warning`, `leak`, `not_tested`), `reason` and others. What
        `audit.json` holds is in `attrs["audit"]`, a warning about the report in `attrs["report"]`.

    Raises:
        EhrseqError: The run, its prepared set or the records cannot be used.

    Example:
        >>> import ehrsequencing as eh
        >>> checks = eh.audit("runs/hf", subjects=10, progress=False)
        >>> bool((checks.verdict == "leak").any())
        False
    """
    from ehrsequencing.audit.audit import audit as audit_run  # which an evaluation need not load

    folder = run.folder if isinstance(run, Run) else Path(run)
    with bar("auditing", show=progress) as tick:
        result = audit_run(
            folder,
            split=split,
            subjects=subjects,
            seed=seed,
            allow=allow,
            prepared=None if prepared is None else Path(prepared),
            data=None if data is None else Path(data),
            progress=tick,
        )
    checks, told = pd.DataFrame(result["checks"]), ""
    metrics = read_for_owner(folder)
    # a report that somebody has edited, or whose metrics somebody has, stays as it is
    if metrics is not None and is_as_written(folder, ANSWER):
        page = folder / ANSWER
        try:
            drawn = pages(_with_audit(metrics, result))
        except Exception as error:  # metrics of an earlier version, for example
            told = f"warning: {page} does not show this audit; run ehrseq evaluate again ({error})"
        else:
            _add_drawn(folder, drawn)
            told = f"report: {page}"
    checks.attrs |= {"audit": result, "report": told}
    return checks


def _draw_nothing(metrics: Exact, folder: Path) -> None:
    """In the place of a report."""


def score(
    predictions: Any,
    data: Any,
    task: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    name: str | None = None,
    split: str = "held_out",
    prepared: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    report: bool = True,
    study: StudyConfig | None = None,
    progress: bool = True,
    **sections: Any,
) -> EvaluationResult:
    """Evaluate a file of any model's predictions on MEDS records as a run is evaluated: same cohort and report.

    For risks in arrays take `compare_risks`, for trained runs `compare`.

    Args:
        predictions: A file, or a frame, with the columns of `ehrseq predict`: `subject_id`, `prediction_time`, `cause`,
            `horizon_days`, `risk`.
        data: The MEDS data that they are about: a folder or a frame.
        task: The task file, or its content as a mapping.
        out: The folder to make; needed for a frame; default for a file: `NAME-score` beside it.
        name: What the model is called; default: the file's name.
        split: Whose predictions are evaluated.
        prepared: The prepared set of this data and task, if there is one; its settings are those of the records.
        overwrite: Whether an earlier score there that nobody has changed is replaced.
        report: Whether to write `report.html`.
        study: All settings in one, in the place of sections.
        progress: Whether to show a bar.
        sections: Sections of a study, as in `evaluation={"bootstrap": 200}` or `splits={"by": "hash"}`.

    Returns:
        The evaluation. It has no `outcomes()` and no `plot_incidence()`: the risks are known at the horizons only.

    Raises:
        EhrseqError: Predictions, data or task cannot be used, or do not fit together.

    Example:
        >>> import ehrsequencing as eh
        >>> wide = eh.load("runs/hf").predict("meds/", at="all")
        >>> wide = wide.drop(columns=["kind", "index_time", "days_since_index"])
        >>> risks = wide.melt(["subject_id", "prediction_time"], value_name="risk")
        >>> risks[["cause", "horizon_days"]] = risks["variable"].str.split("_", expand=True)
        >>> risks["horizon_days"] = risks["horizon_days"].map({"1y": 365.25, "2y": 730.5})
        >>> ev = eh.score(risks, "meds/", "task.yaml", out="scored", name="mine", prepared="prepared", report=False,
        ...               progress=False, evaluation={"bootstrap": 20, "baselines": "none"})
        >>> ev.metrics.model.unique().tolist()
        ['mine']
    """
    if isinstance(predictions, Mapping):
        raise EhrseqError(
            "expected a file or a frame of risks",
            where="score",
            fix="write eh.compare_risks(risks, time, cause, horizon=…) for arrays",
        )
    settings = study_of(study, sections, where="score" if prepared is None else "score --prepared")
    if not is_path(predictions) and out is None:
        raise EhrseqError(
            "a frame has no place beside it", where="score", fix="name a folder to make with out="
        )
    with (
        stages("scoring", show=progress) as stage,
        meds_folder(data) as source,
        private_folder() as temporary,
    ):
        path = Path(predictions) if is_path(predictions) else temporary / "predictions.parquet"
        if not is_path(predictions):
            pq.write_table(as_table(predictions), path)
        result, folder = score_file(
            path,
            source,
            one_task(task, settings, where="score"),
            out=None if out is None else Path(out),
            name=name,
            split=split,
            study=settings,
            prepared=None if prepared is None else Path(prepared),
            overwrite=overwrite,
            progress=stage,
            draw=write_report if report else _draw_nothing,
        )
    return EvaluationResult(result, folder)


def _with_audit(metrics: Exact | Shared, audit: SharedAudit | None) -> Shared:
    return cast(Shared, {**metrics, "audit": audit})


def report_evaluation(run: Path, metrics: Exact | Shared) -> None:
    """Write the report of an evaluation, with the audit that the run has."""
    place = place_in_run(metrics["split"])
    require_room(run, *(place + name for name in PAGES))
    drawn = pages(_with_audit(metrics, saved_audit(run)))
    _add_drawn(run, {place + name: page for name, page in drawn.items()})


def report_outcomes(
    run: Run | Path,
    *,
    split: str,
    prepared: Path | None,
    settings: EvaluationConfig,
    progress: "Progress",
) -> dict[str, Any] | None:
    """Evaluate every outcome of a run, and write its numbers and its page; both may be shared.

    Returns:
        The numbers; None where the run has no outcomes.
    """
    run = opened(run)
    if not run.outcomes:
        return None
    from ehrsequencing.evaluation.outcome_table import evaluate_outcomes

    result = evaluate_outcomes(
        run, run.prepared(prepared), split=split, settings=settings, progress=progress
    )
    page = result.drawn(partial(render_outcomes, title=run.task.heading))
    place = place_in_run(split)
    add_to_run(run.folder, place + OUTCOME_NUMBERS, lambda path: write_shareable(path, result))
    add_to_run(run.folder, place + OUTCOME_PAGE, lambda path: write_shareable(path, page))
    return result.content


def report_external(run: Path, metrics: Exact | Shared, folder: Path) -> None:
    """Write the report of an external validation to its own folder."""
    write_report(_with_audit(metrics, saved_audit(run)), folder)


def redraw(run: Path, *, tripod: str | None = None) -> Path:
    """Draw the report of a run again from what its evaluation and its audit found.

    Args:
        run: A run that has been evaluated.
        tripod: File with the answers of people (`evaluation.tripod`), instead of what the evaluation knew.

    Returns:
        The file of the answer.

    Raises:
        EhrseqError: The run has no results, or somebody has edited them or the pages.
    """
    metrics = read_for_owner(run)
    if metrics is None:
        raise EhrseqError(
            "has no results of an evaluation, or they have been edited",
            where=str(run),
            fix=f"run ehrseq evaluate {run}",
        )
    if tripod is not None:
        metrics = metrics | {"tripod": read_tripod(Path(tripod))}
    report_evaluation(run, metrics)
    return run / place_in_run(metrics["split"]) / ANSWER


def _add_drawn(run: Path, drawn: Mapping[str, str]) -> None:
    for name, page in drawn.items():
        add_to_run(run, name, partial(write_page, text=page))
