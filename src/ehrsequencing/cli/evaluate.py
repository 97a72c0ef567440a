"""`ehrseq evaluate`, `audit`, `score` and `compare`: how good a model is, and whether to believe it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ehrsequencing.cli.console import finish, note, remark, say, shown, warn
from ehrsequencing.cli.options import open_run, read_study
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


def evaluate(
    run: Path,
    data: Path | None,
    overrides: Sequence[str] | None,
    config: Path | None,
    baselines: str | None,
    redraw: bool,
    **given: Any,
) -> None:
    """Evaluate a run: write metrics.json and report.html, with baselines on the same subjects.

    Uses a split of the run's own data or, with --data, data that the model has never seen.
    """
    keep_freed_memory()
    settings = _with_baselines(overrides, baselines)
    walk = given["walk"]
    external = data is not None and given["splits"] is None and walk is None
    command = "evaluate --data" if external else "evaluate"
    opened, study = open_run(run, command, settings, config, data=None if redraw else data)
    from ehrsequencing.api.evaluate import evaluate as evaluate_run, redraw as redraw_report
    from ehrsequencing.prediction.run import AUDIT
    from ehrsequencing.reporting.pages import outcome_lines
    from ehrsequencing.reporting.scores import Scores
    from ehrsequencing.reporting.terminal import metric_lines

    if redraw:
        of_settings = sorted(study.evaluation.model_fields_set - {"tripod"})
        others = {"--" + name.replace("_", "-"): value for name, value in given.items()}
        others |= {"--data": data} | {f"evaluation.{name}": True for name in of_settings}
        refuse_idle(
            others,
            "beside --redraw, which only draws the last evaluation again",
            where="ehrseq evaluate",
        )
        page = redraw_report(run, tripod=study.evaluation.tripod)
        finish(wrote={"report": page}, then=["predict", run, "DATA"])
        return
    given |= study.evaluation.model_dump(exclude_unset=True)
    given |= {"facts": study.data if external else None, "progress": shown(), "say": remark}
    evaluated = evaluate_run(opened, data=data, **given)
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


def _with_baselines(overrides: Sequence[str] | None, baselines: str | None) -> list[str]:
    """The settings, with the option that is one, too."""
    return [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]


def audit(run: Path, allow: Sequence[str] | None, **given: Any) -> None:
    """Test a run and its data for leaks of the future.

    Exits with 1 if a leak is found, else with 0. Exit code 0 is not a proof, since checks may only warn or may not be
    possible. The report of the run, if it has one, is updated.
    """
    from ehrsequencing.api.evaluate import audit as audit_run
    from ehrsequencing.reporting.terminal import audit_lines

    open_run(run)
    given["allow"] = {}
    for text in allow or ():
        code, _, reason = text.rpartition("=")
        if not code or not reason.strip():
            what, fix = "names no code with its reason", "write CODE=REASON"
            raise EhrseqError(what, where=f"--allow {text}", fix=fix)
        given["allow"][code] = reason.strip()
    findings = audit_run(run, progress=shown(), **given)
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


def score(
    predictions: Path,
    data: Path,
    task: Path,
    overrides: Sequence[str] | None,
    config: Path | None,
    baselines: str | None,
    **given: Any,
) -> None:
    """Evaluate the risks of any model as evaluate does: same cohort, metrics, baselines and report.

    PREDICTIONS has the columns of what ehrseq predict writes: subject_id, prediction_time, cause, horizon_days, risk.
    Settings of prepare say how records become visits and splits; they matter for the baselines and the cohort.
    """
    keep_freed_memory()
    command = "score" if given["prepared"] is None else "score --prepared"
    study = read_study(config, _with_baselines(overrides, baselines), command)
    from ehrsequencing.api.evaluate import score as score_file
    from ehrsequencing.reporting.terminal import metric_lines

    scored = score_file(predictions, data, task, study=study, progress=shown(), **given)
    for text in scored.result["warnings"]:
        note(f"note: {text}")
    say("\n".join(metric_lines(scored.result)))
    finish(
        wrote={"report": scored.report, "metrics": scored.folder / "metrics.json"},
        then=f"open {scored.report} in a browser",
        result=main_results(scored.result),
    )


def compare(
    runs: list[Path],
    pool: bool,
    ablate: str | None,
    out: Path | None,
    overwrite: bool,
    **given: Any,
) -> None:
    """Compare runs on the same subjects, side by side and paired; settings that differ; or pool sites.

    Differences are the first run minus each other one. With --pool, each site runs ehrseq evaluate RUN --data on its
    own records and sends its metrics.json. C, O/E, IPA and the calibration slope are pooled by random effects, with an
    interval for their mean and one for another site.
    """
    where, more = "ehrseq compare", pool or ablate is not None
    of_ablation = {name: given.pop(name) for name in ("task", "seeds")}
    refuse_idle({"--out": out}, "without --pool or --ablate", where=where, when=not more)
    refuse_idle({"--overwrite": overwrite}, "without --pool", where=where, when=not pool)
    idle = {f"--{name}": value for name, value in of_ablation.items()}
    refuse_idle(idle, "without --ablate", where=where, when=ablate is None)
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
            _ablate(runs, str(ablate), out, **of_ablation)
        return
    from ehrsequencing.api.compare import compare as compare_runs

    for run in runs:
        open_run(run)
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    comparison = compare_runs(runs, progress=shown(), **chosen)
    table = comparison.table()
    people = f"{comparison.subjects} {(given['split'] or 'held_out').replace('_', '-')} subjects"
    say(f"{table.caption}, {people}")
    say(table.frame.to_string())
    columns = ["against", "horizon", "metric", "value", "low", "high"]
    gaps = comparison.differences.query("cause == @comparison.causes[0]")[columns]
    say(f"\n{runs[0]} minus each other run, {comparison.causes[0]}")
    say(gaps.to_string(index=False, float_format=lambda value: f"{value:+.4f}"))
    rows = {name: comparison.result[name] for name in ("metrics", "differences")}
    finish(wrote={}, then=["predict", runs[0], "DATA"], result=rows)


def _ablate(
    sets: list[Path], asked: str, out: Path, *, task: str | None, seeds: int | None
) -> None:
    from ehrsequencing.api.study import ABLATION, ablate
    from ehrsequencing.records.prepared import Prepared

    setting, _, values = asked.partition("=")
    if len(sets) != 1 or not values:
        raise EhrseqError(
            "takes one prepared set and one setting",
            where="--ablate",
            fix="write ehrseq compare PREPARED --ablate SETTING=ONE,OTHER --out DIR",
        )
    found = ablate(
        Prepared(sets[0]),
        setting,
        values.split(","),
        out=out,
        task=task,
        seeds=seeds or 5,
        progress=shown(),
        say=note,
    )
    say(str(found.means()))
    say(f"\n{values.partition(',')[0]} minus each other value, seed by seed")
    say(found.paired.to_string(float_format=lambda value: f"{value:.4f}"))
    table = out / ABLATION
    finish(wrote={"table": table}, then=f"read {table}", result={"runs": found.runs()})


def _pool(files: list[Path], out: Path, *, overwrite: bool) -> None:
    from ehrsequencing.api.study import pool_sites
    from ehrsequencing.metrics.registry import METRICS
    from ehrsequencing.reporting.pages import mean, where

    result = pool_sites(files, out=out, overwrite=overwrite)
    for row in result["rows"]:
        say(f"{where(row)}: {METRICS[row['metric']].name} {mean(row)}, {row['pooled']} sites")
    page = out / "pooled.html"
    finish(wrote={"report": page}, then=f"open {page} in a browser", result=result)
