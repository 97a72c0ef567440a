"""The command line: thin commands over the rooms. Heavy imports wait until a command needs them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ehrsequencing.cli.console import bar, errors, say, stages, training_bar
from ehrsequencing.cli.console import run as run_app
from ehrsequencing.cli.importing import import_app
from ehrsequencing.errors import EhrseqError

if TYPE_CHECKING:
    from ehrsequencing.config import StudyConfig
    from ehrsequencing.run import Run

app = typer.Typer(
    name="ehrseq",
    help="Survival models for electronic health records: records in MEDS go in, calibrated risk curves come out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(import_app, name="import")
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings as section.key=value, as in model.size=small", show_default=False)
]
Config = Annotated[Path | None, typer.Option("--config", help="Study file (YAML) with any of the sections")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error")]


def _study(config: Path | None, overrides: Sequence[str] | None, command: str) -> "StudyConfig":
    """Settings of a command: those of the study file, then those of the command line, which must be the command's."""
    from ehrsequencing.config import load_study, refuse_unused

    refuse_unused(overrides or (), command)
    return load_study(config, overrides or ())


def _run(folder: Path) -> "Run":
    """A run, with one line for what somebody has changed in it."""
    from ehrsequencing.run import Run

    run = Run(folder)
    if run.altered:
        told = ", ".join(f"{name} {what}" for name, what in run.altered.items())
        say(f"note: {folder}: {told}; the model and its settings are as they were written", err=True)
    return run


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder to make")] = Path("demo"),
    subjects: Annotated[int, typer.Option(help="Simulated subjects")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of simulation and training")] = 0,
    debug: Debug = False,
) -> None:
    """Simulate records, train on them, evaluate, and write the report."""
    with errors(debug):
        from ehrsequencing.cli.demo import run_demo

        run_demo(out, subjects=subjects, seed=seed, say=say, bar=bar, training_bar=training_bar)


@app.command()
def simulate(
    out: Annotated[Path, typer.Argument(help="Folder to make")],
    overrides: Overrides = None,
    subjects: Annotated[int, typer.Option(help="How many subjects")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed")] = 0,
    truth: Annotated[str, typer.Option(help="Whose truth to compute: held_out or all")] = "held_out",
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Write a simulated MEDS data set with its true risks and its task.

    Settings are the simulator's knobs, as in pairs=12.
    """
    with errors(debug):
        from ehrsequencing.config import read_settings, validated
        from ehrsequencing.simulate import SimulationConfig
        from ehrsequencing.simulate import simulate as write

        if truth not in ("held_out", "all"):
            raise EhrseqError(f"{truth!r} is no choice", where="--truth", fix="use held_out or all")
        knobs = validated(SimulationConfig, read_settings(config, overrides or ()), where="settings")
        with bar("simulating") as tick:
            write(out, subjects=subjects, seed=seed, truth=truth, config=knobs, progress=tick)  # type: ignore[arg-type]
        say(f"{subjects} subjects, their truth and task.yaml are in {out}")


@app.command()
def check(
    data: Annotated[Path, typer.Argument(help="Folder of a MEDS data set")],
    overrides: Overrides = None,
    task: Annotated[list[Path] | None, typer.Option("--task", help="Task file; may be repeated")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write what was found to this file")] = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Say what is wrong with the data, what would be fixed, and the cohort's attrition.

    Exits with 2 only where prepare would refuse.
    """
    with errors(debug):
        from ehrsequencing.records.check import check_data, format_check
        from ehrsequencing.storage import CHECK, is_json_of, refuse_foreign_file, write_json

        study = _study(config, overrides, "check")
        if json is not None:
            refuse_foreign_file(json, lambda path: is_json_of(path, CHECK))
        with bar("checking") as tick:
            found = check_data(data, study=study, tasks=_tasks(task, study), progress=tick)
        if json is not None:
            write_json(json, {**CHECK.facts, **found.as_json()})
        if text := format_check(found):
            say(text)
        if found.refused:
            raise found.refused[0]


@app.command()
def prepare(
    data: Annotated[Path, typer.Argument(help="Folder of a MEDS data set")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to make")] = ...,  # type: ignore[assignment]
    task: Annotated[list[Path] | None, typer.Option("--task", help="Task file; may be repeated")] = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Turn MEDS records into packed arrays and labels."""
    with errors(debug):
        from ehrsequencing.records.check import attrition_lines, fix_lines, vocabulary_warnings
        from ehrsequencing.records.prepared import Prepared
        from ehrsequencing.records.prepared import prepare as make

        study = _study(config, overrides, "prepare")
        with bar("preparing") as tick:
            make(data, out, study=study, tasks=_tasks(task, study), progress=tick)
        prepared = Prepared(out, verify=False)
        for line in fix_lines(prepared.manifest["fixes"]):
            say(line)
        say(f"{prepared.manifest['subjects']} subjects, {len(prepared.vocabulary)} tokens in {out}")
        known = prepared.manifest["known_training_rows"]
        for text in vocabulary_warnings(known, min_subjects=study.vocabulary.min_subjects):
            say(f"warning: {text}")
        for name in prepared.tasks:
            say("\n".join(attrition_lines(prepared.task(name), prepared.attrition(name))))


@app.command()
def train(
    prepared: Annotated[Path, typer.Argument(help="What ehrseq prepare made")],
    overrides: Overrides = None,
    task: Annotated[str | None, typer.Option("--task", help="Name of the task; the only one by default")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run")] = ...,  # type: ignore[assignment]
    resume: Annotated[bool, typer.Option("--resume", help="Go on after an interruption")] = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Fit a model; early stop on the tuning split."""
    with errors(debug):
        study = _study(config, overrides, "train")
        from ehrsequencing.config import refuse_changes, refuse_other_task
        from ehrsequencing.records.prepared import Prepared
        from ehrsequencing.training.loop import Trainer

        store = Prepared(prepared)
        refuse_changes(study, store.study, "train", file=config, by=prepared)
        if config is not None and study.task is not None:
            refuse_other_task(study.task, store.task(study.task.name), file=config, by=prepared)
            task = task or study.task.name
        trainer = Trainer(store, task or store.only_task(), out, study=study)
        with training_bar() as show:
            trainer.fit(resume=resume, on_progress=show)
        say(f"run complete in {out}; next: ehrseq evaluate {out}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="What ehrseq train made")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option("--split", help="train, tuning or held_out")] = "held_out",
    prepared: Annotated[Path | None, typer.Option("--prepared", help="The prepared set, if it has moved")] = None,
    baselines: Annotated[str | None, typer.Option("--baselines", help="fast, all or none")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Other MEDS data: external validation. With --splits: the records, if moved"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="With --data: folder to make [RUN/external-NAME]")] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Fit a recalibration on the tuning split; say what it changes")
    ] = False,
    splits: Annotated[
        int | None, typer.Option("--splits", help="Train and judge again on so many random 80/20 splits, as in 25")
    ] = None,
    split_seed: Annotated[int, typer.Option("--split-seed", help="Seed of the first of the --splits")] = 1234,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Judge a run: metrics.json and report.html, with baselines on the same subjects.

    On a split of its own data, or with --data on data that it has never seen.
    """
    with errors(debug):
        given = [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]
        given += ["evaluation.recalibrate=true"] if recalibrate else []
        external = data is not None and splits is None
        command = "evaluate --data" if external else "evaluate"
        study = _study(config, given, command)
        if (out is not None and not external) or (external and split != "held_out"):
            what = "--out belongs to --data" if not external else "--split and --data exclude each other"
            raise EhrseqError(what, where="ehrseq evaluate", fix="leave one of them out")
        from ehrsequencing.config import load_study, refuse_changes
        from ehrsequencing.evaluation.evaluate import evaluate as judge
        from ehrsequencing.evaluation.external import validate
        from ehrsequencing.evaluation.repeated_splits import add_splits, repeated_splits
        from ehrsequencing.reporting.report import write_report
        from ehrsequencing.reporting.terminal import metric_lines
        from ehrsequencing.run import add_to_run, saved_audit

        made = _run(run).study
        refuse_changes(study, made, command, file=config, by=run)
        settings = load_study(config, given, evaluation=made.evaluation).evaluation
        with stages("evaluating") as stage:
            if data is not None and external:
                result, folder = validate(
                    run, data, out=out, prepared=prepared, settings=settings, facts=study.data, progress=stage,
                    draw=lambda result, to: write_report(result | {"audit": saved_audit(run)}, to / "report.html"),
                )  # fmt: skip
            else:
                result, folder = judge(run, split=split, prepared=prepared, settings=settings, progress=stage), run
        if splits is not None:
            with bar("splits") as tick:
                repeated_splits(
                    run, splits=splits, first_seed=split_seed, data=data, prepared=prepared, settings=settings,
                    progress=tick,
                )  # fmt: skip
        if not external:
            report = add_splits(run, result) | {"audit": saved_audit(run)}
            add_to_run(run, "report.html", lambda path: write_report(report, path))
        say("\n".join(metric_lines(result)))
        say(f"report: {folder / 'report.html'}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="What ehrseq train made")],
    data: Annotated[Path, typer.Argument(help="Folder of a MEDS data set, seen or not")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="File to write: .parquet, .csv or .csv.gz")] = Path(
        "predictions.parquet"
    ),
    at: Annotated[str, typer.Option("--at", help="all prediction times, each subject's last, or a date")] = "all",
    horizons: Annotated[str | None, typer.Option("--horizons", help="As in 90d,2y; default: the task's")] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Use what ehrseq evaluate --recalibrate has fitted")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Answer even if nearly all codes are unknown")] = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Write risk curves for any MEDS data."""
    with errors(debug):
        from ehrsequencing.config import parse_days, refuse_changes
        from ehrsequencing.predict import predict as write

        try:
            days = [parse_days(text) for text in horizons.split(",")] if horizons else None
        except ValueError as error:
            raise EhrseqError(str(error), where="--horizons", fix="write them as 90d,2y") from error
        notes: list[str] = []
        study = _study(config, overrides, "predict")
        refuse_changes(study, _run(run).study, "predict", file=config, by=run)
        with bar("predicting") as tick:
            count = write(
                run, data, out, at=at, horizons_days=days, facts=study.data, recalibrated=recalibrate, force=force,
                progress=tick, say=notes.append,
            )  # fmt: skip
        for note in notes:
            say(note, err=note.startswith("warning"))
        say(f"risks at {count} prediction times are in {out}")


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="What ehrseq train made")],
    split: Annotated[str, typer.Option("--split", help="Whose subjects to ask the model about")] = "held_out",
    subjects: Annotated[int, typer.Option("--subjects", help="How many subjects of each split to draw")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Of the draw")] = 0,
    shuffled_labels: Annotated[
        bool, typer.Option("--shuffled-labels", help="Also train a small model on shuffled labels")
    ] = False,
    prepared: Annotated[Path | None, typer.Option("--prepared", help="The prepared set, if it has moved")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The MEDS records, if they have moved")] = None,
    debug: Debug = False,
) -> None:
    """Test a run, and the data that it was made from, for leaks of the future.

    Exits with 1 where a leak is found, with 0 where none is: also where checks warn or could not be made, so that exit
    code 0 is no proof. A report that the run has is drawn again.
    """
    with errors(debug):
        from ehrsequencing.audit.audit import audit as make
        from ehrsequencing.reporting.terminal import audit_lines

        _run(run)
        with bar("auditing") as tick:
            result = make(
                run, split=split, subjects=subjects, seed=seed, shuffled_labels=shuffled_labels, prepared=prepared,
                data=data, progress=tick,
            )  # fmt: skip
        say("\n".join(audit_lines(result)))
        say(f"details: {run / 'audit.json'}")
        _show_audit(run, result)
        if result["leaks"]:
            raise typer.Exit(1)


def _show_audit(run: Path, result: dict[str, Any]) -> None:
    """Draw the run's report again, if it has one, from the metrics as they are and the audit that was just made."""
    from ehrsequencing.evaluation.context import audit_summary, predictor_cutoff
    from ehrsequencing.evaluation.results import read_result
    from ehrsequencing.reporting.report import render
    from ehrsequencing.run import add_to_run
    from ehrsequencing.storage import altered, read_manifest, write_bytes

    manifest, metrics = read_manifest(run, what="a finished run", verify=False), read_result(run)
    if metrics is None or "report.html" not in set(manifest["files"]) - set(altered(run, manifest)):
        return  # nothing to draw again, or not ours any more: ehrseq evaluate makes both anew
    summary = audit_summary(run)
    told = {"audit": summary, "predictor_cutoff": predictor_cutoff(summary)}
    try:
        page = render(metrics | {"audit": result, "checks": (metrics.get("checks") or {}) | told}).encode()
    except Exception as error:  # metrics of an older version, say: the verdict counts, and it stands
        say(f"{run / 'report.html'} is as it was (run ehrseq evaluate again): {error}", err=True)
        return
    add_to_run(run, "report.html", lambda path: write_bytes(path, page))
    say(f"report: {run / 'report.html'}")


def _tasks(paths: list[Path] | None, study: "StudyConfig") -> list[Any]:
    """The tasks of `--task`, else that of the study; both only where they agree."""
    from ehrsequencing.config import load_task

    tasks = [load_task(path) for path in paths or ()]
    if tasks and study.task is not None and study.task not in tasks:
        what = f"the settings hold the task {study.task.name!r}, which is none of these"
        raise EhrseqError(what, where="--task", fix="leave out one of the two")
    return tasks or ([study.task] if study.task is not None else [])


def main() -> None:
    """Entry point of `ehrseq`."""
    run_app(app)
