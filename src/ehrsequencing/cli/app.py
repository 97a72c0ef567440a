"""The commands of `ehrseq`: each reads its options, calls one function, and prints the result.

A command imports what it needs when it runs, so that `ehrseq --help` stays fast.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ehrsequencing.cli.codes import codes
from ehrsequencing.cli.compare import compare
from ehrsequencing.cli.console import CommandLine, bar, finish, say, stages, warn
from ehrsequencing.cli.console import run as run_app
from ehrsequencing.cli.explain import explain
from ehrsequencing.cli.explore import explore
from ehrsequencing.cli.export import export
from ehrsequencing.cli.importing import import_app
from ehrsequencing.cli.inputs import open_run as _run
from ehrsequencing.cli.inputs import read_study as _study
from ehrsequencing.cli.inputs import read_tasks as _tasks
from ehrsequencing.cli.options import (
    Config,
    DataFolder,
    MovedSet,
    NewFolder,
    Overrides,
    Overwrite,
    RunFolder,
    TaskFiles,
)
from ehrsequencing.cli.predict import predict
from ehrsequencing.cli.pretrain import pretrain
from ehrsequencing.cli.score import score
from ehrsequencing.cli.serve import serve
from ehrsequencing.cli.train import train
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.process import keep_freed_memory, safe_children
from ehrsequencing.core.version import __version__

app = CommandLine(
    name="ehrseq",
    help="Survival models for electronic health records: records in MEDS go in, calibrated risk curves come out.",
    epilog="Begin with: ehrseq demo",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(import_app, name="import")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ehrseq {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of `ehrseq` itself."""


@app.command(example="ehrseq demo --out demo")
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder to make")] = Path("demo"),
    subjects: Annotated[int, typer.Option(help="Simulated subjects")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of simulation and training")] = 0,
    pretrain: Annotated[
        bool,
        typer.Option(
            "--pretrain", help="Instead, show what pretraining gains where few patients have labels"
        ),
    ] = False,
) -> None:
    """Simulate records, train on them, evaluate, and write the report."""
    keep_freed_memory()
    from ehrsequencing.cli.demo import run_demo
    from ehrsequencing.cli.results import main_results

    run, data = out / "run", out / "data"
    if pretrain:
        found = run_demo(out, subjects=subjects, seed=seed, pretrain=True)
        run = out / "few-labels-pretrained"
        wrote = {"pretrained": out / "pretrained", "run": run}
        finish(wrote=wrote, then=["evaluate", run], result=found)
        return
    run_demo(out, subjects=subjects, seed=seed)
    finish(
        wrote={"data": data, "run": run, "report": run / "report.html"},
        then=["predict", run, data, "--at", "last", "--out", out / "predictions.parquet"],
        result=main_results(run),
    )


@app.command(example="ehrseq simulate sim --subjects 4000 --seed 0")
def simulate(
    out: NewFolder,
    overrides: Overrides = None,
    subjects: Annotated[int, typer.Option(help="How many subjects")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed")] = 0,
    overwrite: Overwrite = False,
    truth: Annotated[
        str, typer.Option(help="Whose truth to compute: held_out or all")
    ] = "held_out",
    config: Config = None,
) -> None:
    """Write a simulated MEDS data set with its true risks and its task.

    Settings are those of the simulator, as in pairs=12.
    """
    from ehrsequencing.config import read_settings, validated
    from ehrsequencing.simulate import SimulationConfig
    from ehrsequencing.simulate import simulate as write

    if truth not in ("held_out", "all"):
        raise EhrseqError(f"{truth!r} is not a choice", where="--truth", fix="use held_out or all")
    simulation = validated(
        SimulationConfig, read_settings(config, overrides or ()), where="settings"
    )
    with bar("simulating") as tick:
        write(
            out,
            subjects=subjects,
            seed=seed,
            truth=truth,  # type: ignore[arg-type]
            config=simulation,
            overwrite=overwrite,
            progress=tick,
        )
    task = out / "task.yaml"
    say(f"{subjects:,} simulated subjects, with their true risks")
    finish(
        wrote={"data": out, "task": task},
        then=["prepare", out, "--task", task, "--out", f"{out}-prepared"],
        result={"subjects": subjects, "seed": seed},
    )


app.command(example='ehrseq codes meds "diabetes"')(codes)


@app.command(example="ehrseq check meds --task task.yaml")
def check(
    data: DataFolder,
    overrides: Overrides = None,
    task: TaskFiles = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write what was found to this file (JSON)")
    ] = None,
    overwrite: Overwrite = False,
    config: Config = None,
) -> None:
    """Report problems in the data, the automatic fixes, and the cohort's attrition.

    Exits with 2 only if prepare would refuse the data.
    """
    from ehrsequencing.core.files import write_json
    from ehrsequencing.core.outputs import CHECK, output_file, refuse_existing
    from ehrsequencing.records.check import check_data, format_check

    study = _study(config, overrides, "check")
    if out is not None:
        refuse_existing(out, CHECK, overwrite=overwrite)
    with bar("checking") as tick:
        found = check_data(data, study=study, tasks=_tasks(task, study), progress=tick)
    if out is not None:
        with output_file(out, CHECK, overwrite=overwrite) as temporary:
            write_json(temporary, {**CHECK.facts, **found.as_json()})
    say(format_check(found))
    given = [word for path in task or () for word in ("--task", path)]
    named = given or ([] if study.task else ["--task", "TASK.yaml"])
    settings = [*(["--config", config] if config else []), *(overrides or ())]
    then = ["prepare", data, *named, "--out", "prepared", *settings]
    finish(wrote={"check": out}, then=then, result=found.as_json())


@app.command(example="ehrseq prepare meds --task task.yaml --out prepared visits.by=day")
def prepare(
    data: DataFolder,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to make")] = ...,  # type: ignore[assignment]
    task: TaskFiles = None,
    overwrite: Overwrite = False,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", help="Where shards are worked on: a Dask cluster, dask://HOST:PORT"
        ),
    ] = "processes",
    config: Config = None,
) -> None:
    """Turn MEDS records into packed arrays and labels."""
    from ehrsequencing.records.attrition import attrition_lines, task_warnings
    from ehrsequencing.records.check import fix_lines, vocabulary_warnings
    from ehrsequencing.records.prepare import prepare as make
    from ehrsequencing.records.prepared import Prepared

    study = _study(config, overrides, "prepare")
    tasks = _tasks(task, study)
    with bar("preparing") as tick:
        make(data, out, study=study, tasks=tasks, overwrite=overwrite, progress=tick, engine=engine)
    prepared = Prepared(out, verify=False)
    for line in fix_lines(prepared.manifest["fixes"]):
        say(line)
    say(f"{prepared.manifest['subjects']:,} subjects, {len(prepared.vocabulary):,} tokens")
    known = prepared.manifest["known_training_rows"]
    for text in vocabulary_warnings(known, min_subjects=study.vocabulary.min_subjects):
        warn(text)
    attrition = {name: prepared.attrition(name) for name in prepared.tasks}
    for name, counts in attrition.items():
        say("\n".join(attrition_lines(prepared.task(name), counts, warnings=())))
        for text in task_warnings(prepared.task(name), counts):
            warn(text)
    one = [] if len(attrition) == 1 else ["--task", next(iter(attrition), "TASK")]
    facts = {
        "subjects": prepared.manifest["subjects"],
        "tokens": len(prepared.vocabulary),
        "tasks": attrition,
    }
    finish(wrote={"prepared": out}, then=["train", out, *one, "--out", "run"], result=facts)


app.command(example="ehrseq pretrain prepared --out pretrained --task death")(pretrain)


app.command(example="ehrseq train prepared --out run model.size=small training.epochs=30")(train)


@app.command(example="ehrseq evaluate run --baselines fast evaluation.bootstrap=1000")
def evaluate(
    run: RunFolder,
    overrides: Overrides = None,
    split: Annotated[str, typer.Option("--split", help="train, tuning or held_out")] = "held_out",
    prepared: MovedSet = None,
    baselines: Annotated[
        str | None, typer.Option("--baselines", help="fast, forest, all or none")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Other MEDS data: external validation. With --splits: the records, if moved",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --data: folder to make [RUN/external-NAME]")
    ] = None,
    overwrite: Overwrite = False,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate", help="Fit a recalibration on the tuning split and report its effect"
        ),
    ] = False,
    splits: Annotated[
        int | None,
        typer.Option("--splits", help="Also train and evaluate on this many random 80/20 splits"),
    ] = None,
    split_seed: Annotated[
        int, typer.Option("--split-seed", help="Seed of the first of the --splits")
    ] = 1234,
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Only draw the report of the last evaluation again"),
    ] = False,
    config: Config = None,
) -> None:
    """Evaluate a run: write metrics.json and report.html, with baselines on the same subjects.

    Uses a split of the run's own data or, with --data, data that the model has never seen.
    """
    keep_freed_memory()
    given = [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]
    given += ["evaluation.recalibrate=true"] if recalibrate else []
    external = data is not None and splits is None
    command = "evaluate --data" if external else "evaluate"
    study = _study(config, given, command)
    if (out is not None and not external) or (external and split != "held_out"):
        what = "--out needs --data" if not external else "--split and --data exclude each other"
        raise EhrseqError(what, where="ehrseq evaluate", fix="leave one of them out")
    from ehrsequencing.api.evaluate import redraw as redraw_report
    from ehrsequencing.api.evaluate import report_evaluation, report_external, report_outcomes
    from ehrsequencing.cli.results import main_results
    from ehrsequencing.config import load_study, refuse_changes
    from ehrsequencing.evaluation.evaluate import evaluate as evaluate_run
    from ehrsequencing.evaluation.external import validate
    from ehrsequencing.evaluation.repeated_splits import repeated_splits
    from ehrsequencing.prediction.run import AUDIT
    from ehrsequencing.reporting.terminal import metric_lines

    made = _run(run).study
    refuse_changes(study, made, command, file=config, by=run)
    if redraw:
        page = redraw_report(run, tripod=study.evaluation.tripod)
        finish(wrote={"report": page}, then=["predict", run, "DATA"])
        return
    settings = load_study(config, given, evaluation=made.evaluation).evaluation
    asked: dict[str, Any] = {"prepared": prepared, "settings": settings}
    with stages("evaluating") as stage:
        if data is not None and external:
            external_run = partial(validate, run, data, out=out, overwrite=overwrite, **asked)
            draw = partial(report_external, run)
            result, folder = external_run(facts=study.data, draw=draw, progress=stage)
        else:
            result, folder = evaluate_run(run, split=split, progress=stage, **asked), run
    if splits is not None:
        with bar("splits") as tick:
            repeat = partial(repeated_splits, run, data=data, prepared=prepared, settings=settings)
            repeat(splits=splits, first_seed=split_seed, progress=tick)
    if not external:
        report_evaluation(run, result)
    say("\n".join(metric_lines(result)))
    if not external:
        with bar("evaluating every outcome") as tick:
            lines = report_outcomes(
                run, split=split, prepared=prepared, settings=settings, progress=tick
            )
        say("\n".join(lines)) if lines else None
    finish(
        wrote={"report": folder / "report.html", "metrics": folder / "metrics.json"},
        then=["audit", run]
        if not external and not (run / AUDIT).is_file()
        else ["predict", run, data or "DATA"],
        result=main_results(folder),
    )


app.command(example="ehrseq predict run meds --at last --horizons 90d,1y --out risks.csv")(predict)
app.command(example="ehrseq explain run meds --subject 1234 --horizon 1y --out why.csv")(explain)
app.command(example="ehrseq explore run meds --out explorer.html")(explore)
app.command(
    example='ehrseq score cox.csv meds --task task.yaml --name "Cox on labs" splits.by=hash'
)(score)


app.command(example="ehrseq compare --pool north/metrics.json south/metrics.json --out pooled")(
    compare
)
app.command(example="ehrseq serve run meds --port 8000")(serve)


app.command(example="ehrseq export run --format share --out shared")(export)


@app.command(example="ehrseq audit run --subjects 200")
def audit(
    run: RunFolder,
    split: Annotated[
        str, typer.Option("--split", help="Split whose subjects the model is tested on")
    ] = "held_out",
    subjects: Annotated[
        int, typer.Option("--subjects", help="How many subjects of each split to sample")
    ] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sample")] = 0,
    shuffled_labels: Annotated[
        bool, typer.Option("--shuffled-labels", help="Also train a small model on shuffled labels")
    ] = False,
    prepared: MovedSet = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The MEDS records, if they have moved")
    ] = None,
) -> None:
    """Test a run and its data for leaks of the future.

    Exits with 1 if a leak is found, else with 0. Exit code 0 is not a proof, since checks may only warn or may not be
    possible. The report of the run, if it has one, is updated.
    """
    from ehrsequencing.api.evaluate import report_audit
    from ehrsequencing.audit.audit import audit as audit_run
    from ehrsequencing.reporting.terminal import audit_lines

    _run(run)
    with bar("auditing") as tick:
        tested = partial(
            audit_run, run, split=split, subjects=subjects, seed=seed, prepared=prepared, data=data
        )
        result = tested(shuffled_labels=shuffled_labels, progress=tick)
    say("\n".join(audit_lines(result)))
    line = report_audit(run, result)
    if line.startswith("warning: "):
        warn(line.removeprefix("warning: "))
    redrawn = run / "report.html" if line.startswith("report: ") else None
    then = (
        f"explain the leaks: see {run / 'audit.json'}"
        if result["leaks"]
        else ["predict", run, "DATA"]
    )
    finish(wrote={"audit": run / "audit.json", "report": redrawn}, then=then, result=result)
    if result["leaks"]:
        leaks = [check["name"] for check in result["checks"] if check["verdict"] == "leak"]
        warn(f"{run} leaks: {', '.join(leaks)}")
        raise typer.Exit(1)


def main() -> None:
    """Entry point of `ehrseq`."""
    with safe_children():
        run_app(app)
