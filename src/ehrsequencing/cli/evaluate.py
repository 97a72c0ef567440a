"""`ehrseq evaluate`, `audit`, `score` and `compare`: how good a model is, and whether to believe it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ehrsequencing.cli.console import finish, note, remark, say, shown, warn
from ehrsequencing.cli.options import (
    Config,
    DataFolder,
    MovedSet,
    Overrides,
    Overwrite,
    RunFolder,
    open_run,
    read_study,
)
from ehrsequencing.core.errors import EhrseqError, refuse_idle
from ehrsequencing.core.signals import keep_freed_memory
from ehrsequencing.results.result_types import Shared


def main_results(metrics: Shared) -> dict[str, Any]:
    """The cause of interest as rows for `--json`, from the content of `metrics.json`."""
    cause = metrics["causes"][0]
    columns = ("model", "metric", "landmark_days", "horizon_days", "value", "low", "high", "reason")
    rows = [
        {key: row.get(key) for key in columns}
        for row in metrics["metrics"]
        if row["cause"] == cause
    ]
    named = {"cause": cause, "strongest": metrics["strongest"]}
    return {**named, "metrics": rows, "warnings": metrics["warnings"]}


# options of the command
_EvaluateSplit = Annotated[
    str | None, typer.Option("--split", hidden=True, help="train, tuning or [held_out]")
]
_EvaluateData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Other MEDS data: external validation. With --splits: the records, if moved",
    ),
]
_EvaluateOut = Annotated[
    Path | None, typer.Option("--out", help="With --data: folder to make [RUN/external-NAME]")
]
_EvaluateSplits = Annotated[
    int | None,
    typer.Option("--splits", help="Also train and evaluate on this many random 80/20 splits"),
]
_EvaluateSplitSeed = Annotated[
    int | None,
    typer.Option("--split-seed", hidden=True, help="Seed of the first of the --splits [1234]"),
]
_EvaluateWalk = Annotated[
    str | None,
    typer.Option(
        "--walk",
        help="date: also train before, and test in, windows of index dates; site: leave out one at a time",
    ),
]
_EvaluateRedraw = Annotated[
    bool,
    typer.Option("--redraw", help="Only draw the report of the last evaluation again"),
]


def evaluate(
    run: RunFolder,
    overrides: Overrides = None,
    split: _EvaluateSplit = None,
    prepared: MovedSet = None,
    baselines: Annotated[str | None, typer.Option("--baselines", help="fast or none")] = None,
    data: _EvaluateData = None,
    out: _EvaluateOut = None,
    overwrite: Overwrite = False,
    splits: _EvaluateSplits = None,
    split_seed: _EvaluateSplitSeed = None,
    walk: _EvaluateWalk = None,
    redraw: _EvaluateRedraw = False,
    config: Config = None,
) -> None:
    """Evaluate a run: write metrics.json and report.html, with baselines on the same subjects.

    Uses a split of the run's own data or, with --data, data that the model has never seen.
    """
    keep_freed_memory()
    given = [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]
    external = data is not None and splits is None and walk is None
    command = "evaluate --data" if external else "evaluate"
    study = read_study(config, given, command)
    from ehrsequencing.api.evaluate import evaluate as evaluate_run, redraw as redraw_report
    from ehrsequencing.config import load_study
    from ehrsequencing.prediction.run import AUDIT
    from ehrsequencing.reporting.pages import outcome_lines
    from ehrsequencing.reporting.scores import Scores
    from ehrsequencing.reporting.terminal import metric_lines

    if redraw:
        of_settings = sorted(study.evaluation.model_fields_set - {"tripod"})
        others: dict[str, object] = {
            "--split": split,
            "--prepared": prepared,
            "--data": data,
            "--out": out,
            "--overwrite": overwrite,
            "--splits": splits,
            "--split-seed": split_seed,
            "--walk": walk,
            **{f"evaluation.{name}": True for name in of_settings},
        }
        refuse_idle(
            others,
            "beside --redraw, which only draws the last evaluation again",
            where="ehrseq evaluate",
        )
    opened = open_run(run, study, command, config=config, data=data)
    if redraw:
        page = redraw_report(run, tripod=study.evaluation.tripod)
        finish(wrote={"report": page}, then=["predict", run, "DATA"])
        return
    settings = load_study(config, given, evaluation=opened.study.evaluation).evaluation
    evaluated = evaluate_run(
        opened,
        split=split,
        data=data,
        out=out,
        overwrite=overwrite,
        facts=study.data if external else None,
        prepared=prepared,
        splits=splits,
        split_seed=split_seed,
        walk=walk,
        progress=shown(),
        say=remark,
        **dict(settings),
    )
    say("\n".join(metric_lines(evaluated.result)))
    pages = {"report": evaluated.report, "metrics": evaluated.folder / "metrics.json"}
    if walk is not None:
        pages[f"walk over {walk}s"] = opened.folder / "walk" / walk / "pooled.html"
    if evaluated.every_outcome is not None:
        say("\n".join(outcome_lines(evaluated.every_outcome)))
        pages["every outcome"] = evaluated.folder / "outcomes.html"
    audited = external or (run / AUDIT).is_file()
    then = ["predict", run, data or "DATA"] if audited else ["audit", run]
    table = Scores(evaluated.result)
    if table.too_few(*table.main()) and not (external or evaluated.result["repeated_splits"]):
        then = ["evaluate", run, "--splits", "25"]
    finish(
        wrote=pages,
        then=then,
        result=main_results(evaluated.result),
    )


def audit(
    run: RunFolder,
    split: Annotated[
        str,
        typer.Option("--split", hidden=True, help="Split whose subjects the model is tested on"),
    ] = "held_out",
    subjects: Annotated[
        int, typer.Option("--subjects", help="How many subjects of each split to sample")
    ] = 200,
    seed: Annotated[int, typer.Option("--seed", hidden=True, help="Seed of the sample")] = 0,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="CODE=REASON: this code may say so much; may be repeated"),
    ] = None,
    prepared: MovedSet = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The MEDS records, if they have moved")
    ] = None,
) -> None:
    """Test a run and its data for leaks of the future.

    Exits with 1 if a leak is found, else with 0. Exit code 0 is not a proof, since checks may only warn or may not be
    possible. The report of the run, if it has one, is updated.
    """
    from ehrsequencing.api.evaluate import audit as audit_run
    from ehrsequencing.reporting.terminal import audit_lines

    open_run(run)
    findings = audit_run(
        run,
        split=split,
        subjects=subjects,
        seed=seed,
        prepared=prepared,
        data=data,
        allow=dict(_allowed(one) for one in allow or ()),
        progress=shown(),
    )
    result, line = findings.attrs["audit"], findings.attrs["report"]
    say("\n".join(audit_lines(result)))
    if line.startswith("warning: "):
        remark(line)
    redrawn = run / "report.html" if line.startswith("report: ") else None
    leaks = [check["name"] for check in result["checks"] if check["verdict"] == "leak"]
    finish(
        wrote={"audit": run / "audit.json", "report": redrawn},
        then=f"explain the leaks: see {run / 'audit.json'}" if leaks else ["predict", run, "DATA"],
        result=result,
    )
    if leaks:
        warn(f"{run} leaks: {', '.join(leaks)}")
        raise typer.Exit(1)


def _allowed(text: str) -> tuple[str, str]:
    code, _, reason = text.rpartition("=")
    if not code or not reason.strip():
        raise EhrseqError(
            "names no code with its reason", where=f"--allow {text}", fix="write CODE=REASON"
        )
    return code, reason.strip()


def score(
    predictions: Annotated[
        Path, typer.Argument(help="Risks of any model: .parquet, .csv or .csv.gz")
    ],
    data: DataFolder,
    overrides: Overrides = None,
    task: Annotated[Path, typer.Option("--task", help="Task file")] = ...,  # type: ignore[assignment]
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to make [NAME-score beside PREDICTIONS]")
    ] = None,
    overwrite: Overwrite = False,
    name: Annotated[
        str | None, typer.Option("--name", help="What the model is called [the file's name]")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", hidden=True, help="train, tuning or held_out")
    ] = "held_out",
    prepared: Annotated[
        Path | None,
        typer.Option(
            "--prepared", help="What ehrseq prepare made of DATA and the task, to save time"
        ),
    ] = None,
    baselines: Annotated[str | None, typer.Option("--baselines", help="fast or none")] = None,
    config: Config = None,
) -> None:
    """Evaluate the risks of any model as evaluate does: same cohort, metrics, baselines and report.

    PREDICTIONS has the columns of what ehrseq predict writes: subject_id, prediction_time, cause, horizon_days, risk.
    Settings of prepare say how records become visits and splits; they matter for the baselines and the cohort.
    """
    keep_freed_memory()
    given = [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]
    study = read_study(config, given, "score" if prepared is None else "score --prepared")
    from ehrsequencing.api.evaluate import score as score_file
    from ehrsequencing.reporting.terminal import metric_lines

    scored = score_file(
        predictions,
        data,
        task,
        study=study,
        out=out,
        overwrite=overwrite,
        name=name,
        split=split,
        prepared=prepared,
        progress=shown(),
    )
    for text in scored.result["warnings"]:
        note(f"note: {text}")
    say("\n".join(metric_lines(scored.result)))
    finish(
        wrote={"report": scored.report, "metrics": scored.folder / "metrics.json"},
        then=f"open {scored.report} in a browser",
        result=main_results(scored.result),
    )


# options of the command
_CompareRuns = Annotated[
    list[Path],
    typer.Argument(
        help="Two runs or more; with --pool: the metrics.json of each site; with --ablate: a prepared set"
    ),
]
_CompareSplit = Annotated[
    str | None, typer.Option("--split", hidden=True, help="train, tuning or [held_out]")
]
_CompareBootstrap = Annotated[
    int | None, typer.Option("--bootstrap", hidden=True, help="Resamples of subjects [500]")
]
_ComparePool = Annotated[
    bool, typer.Option("--pool", help="Instead, pool one run's evaluations at several sites")
]
_CompareAblate = Annotated[
    str | None,
    typer.Option("--ablate", help="Instead, train networks that differ in SETTING=ONE,OTHER"),
]
_CompareTask = Annotated[
    str | None, typer.Option("--task", help="With --ablate: task of the prepared set")
]
_CompareSeeds = Annotated[
    int | None, typer.Option("--seeds", min=2, help="With --ablate: trainings a value [5]")
]
_CompareOut = Annotated[
    Path | None, typer.Option("--out", help="With --pool or --ablate: folder to make")
]


def compare(
    runs: _CompareRuns,
    split: _CompareSplit = None,
    bootstrap: _CompareBootstrap = None,
    pool: _ComparePool = False,
    ablate: _CompareAblate = None,
    task: _CompareTask = None,
    seeds: _CompareSeeds = None,
    out: _CompareOut = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare runs on the same subjects, side by side and paired; settings that differ; or pool sites.

    Differences are the first run minus each other one. With --pool, each site runs ehrseq evaluate RUN --data on its
    own records and sends its metrics.json. C, O/E, IPA and the calibration slope are pooled by random effects, with an
    interval for their mean and one for another site.
    """
    where, more = "ehrseq compare", pool or ablate is not None
    given = {"split": split, "bootstrap": bootstrap}
    refuse_idle({"--out": out}, "without --pool or --ablate", where=where, when=not more)
    refuse_idle({"--overwrite": overwrite}, "without --pool", where=where, when=not pool)
    of_ablation = {"--task": task, "--seeds": seeds}
    refuse_idle(of_ablation, "without --ablate", where=where, when=ablate is None)
    refuse_idle(given, "beside --pool or --ablate", where=where, when=more)
    refuse_idle({"--ablate": ablate}, "beside --pool", where=where, when=pool)
    if more and out is None:
        raise EhrseqError(
            "--pool and --ablate need --out", where=where, fix="name a folder to make"
        )
    if out is not None:
        if pool:
            _pool(runs, out, overwrite=overwrite)
        else:
            _ablate(runs, str(ablate), out, task=task, seeds=seeds or 5)
        return
    from ehrsequencing.api.compare import compare as compare_runs

    for run in runs:
        open_run(run)
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    comparison = compare_runs(runs, progress=shown(), **chosen)
    table = comparison.table()
    people = f"{comparison.subjects} {(split or 'held_out').replace('_', '-')} subjects"
    say(f"{table.caption}, {people}")
    say(table.frame.to_string())
    columns = ["against", "horizon", "metric", "value", "low", "high"]
    gaps = comparison.differences.query("cause == @comparison.causes[0]")[columns]
    say(f"\n{runs[0]} minus each other run, {comparison.causes[0]}")
    say(gaps.to_string(index=False, float_format=lambda value: f"{value:+.4f}"))
    rows = {name: comparison.result[name] for name in ("metrics", "differences")}
    finish(wrote={}, then=["predict", runs[0], "DATA"], result=rows)


def _ablate(sets: list[Path], asked: str, out: Path, *, task: str | None, seeds: int) -> None:
    from ehrsequencing.api.ablate import RESULT, ablate
    from ehrsequencing.records.prepared import Prepared

    setting, _, values = asked.partition("=")
    if len(sets) != 1 or not values:
        raise EhrseqError(
            "takes one prepared set and one setting",
            where="--ablate",
            fix="write ehrseq compare PREPARED --ablate SETTING=ONE,OTHER --out DIR",
        )
    table, result = ablate(
        Prepared(sets[0]),
        setting,
        values.split(","),
        out=out,
        task=task,
        seeds=seeds,
        progress=shown(),
        say=note,
    )
    say(table.to_string(float_format=lambda value: f"{value:.4f}"))
    finish(wrote={"table": out / RESULT}, then=f"read {out / RESULT}", result=result)


def _pool(files: list[Path], out: Path, *, overwrite: bool) -> None:
    from ehrsequencing.api.compare import pool_sites
    from ehrsequencing.metrics.registry import METRICS
    from ehrsequencing.reporting.pages import mean, where

    result = pool_sites(files, out=out, overwrite=overwrite)
    for row in result["rows"]:
        say(f"{where(row)}: {METRICS[row['metric']].name} {mean(row)}, {row['pooled']} sites")
    page = out / "pooled.html"
    finish(wrote={"report": page}, then=f"open {page} in a browser", result=result)
