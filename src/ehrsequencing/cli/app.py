"""The commands of `ehrseq`: each reads its options, calls one function, and prints the result.

A command imports what it needs when it runs, so that `ehrseq --help` stays fast.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ehrsequencing.cli.console import bar, errors, say, stages, training_bar
from ehrsequencing.cli.console import run as run_app
from ehrsequencing.cli.importing import import_app
from ehrsequencing.cli.options import Config, DataFolder, Debug, MovedSet, NewFolder, Overrides, RunFolder, TaskFiles
from ehrsequencing.errors import EhrseqError
from ehrsequencing.memory import keep_freed_memory

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


def _study(config: Path | None, overrides: Sequence[str] | None, command: str) -> "StudyConfig":
    """The settings of the study file and the command line, which must be settings that the command uses."""
    from ehrsequencing.config import load_study, refuse_unused

    refuse_unused(overrides or (), command)
    return load_study(config, overrides or ())


def _run(folder: Path) -> "Run":
    """Open a run, and print a line if somebody has changed its files."""
    from ehrsequencing.run import Run

    run = Run(folder)
    if run.altered:
        changes = ", ".join(f"{name} {what}" for name, what in run.altered.items())
        say(f"note: {folder}: {changes}; the model and its settings are unchanged", err=True)
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
        keep_freed_memory()
        from ehrsequencing.cli.demo import run_demo

        run_demo(out, subjects=subjects, seed=seed)


@app.command()
def simulate(
    out: NewFolder,
    overrides: Overrides = None,
    subjects: Annotated[int, typer.Option(help="How many subjects")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed")] = 0,
    truth: Annotated[str, typer.Option(help="Whose truth to compute: held_out or all")] = "held_out",
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Write a simulated MEDS data set with its true risks and its task.

    Settings are those of the simulator, as in pairs=12.
    """
    with errors(debug):
        from ehrsequencing.config import read_settings, validated
        from ehrsequencing.simulate import SimulationConfig
        from ehrsequencing.simulate import simulate as write

        if truth not in ("held_out", "all"):
            raise EhrseqError(f"{truth!r} is not a choice", where="--truth", fix="use held_out or all")
        simulation = validated(SimulationConfig, read_settings(config, overrides or ()), where="settings")
        with bar("simulating") as tick:
            write(out, subjects=subjects, seed=seed, truth=truth, config=simulation, progress=tick)  # type: ignore[arg-type]
        say(f"{subjects} subjects, their truth and task.yaml are in {out}")


@app.command()
def check(
    data: DataFolder,
    overrides: Overrides = None,
    task: TaskFiles = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write what was found to this file")] = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Report problems in the data, the automatic fixes, and the cohort's attrition.

    Exits with 2 only if prepare would refuse the data.
    """
    with errors(debug):
        from ehrsequencing.output_kinds import CHECK, is_json_of
        from ehrsequencing.records.check import check_data
        from ehrsequencing.records.check_text import format_check
        from ehrsequencing.storage import refuse_foreign_file, write_json

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
    data: DataFolder,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to make")] = ...,  # type: ignore[assignment]
    task: TaskFiles = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Turn MEDS records into packed arrays and labels."""
    with errors(debug):
        from ehrsequencing.records.attrition import attrition_lines
        from ehrsequencing.records.check import vocabulary_warnings
        from ehrsequencing.records.check_text import fix_lines
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
    resume: Annotated[bool, typer.Option("--resume", help="Continue after an interruption")] = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Fit a model, with early stopping on the tuning split."""
    with errors(debug):
        keep_freed_memory()
        study = _study(config, overrides, "train")
        from ehrsequencing.blend.train import trainer_of
        from ehrsequencing.config import refuse_changes, refuse_other_task
        from ehrsequencing.records.prepared import Prepared

        store = Prepared(prepared)
        refuse_changes(study, store.study, "train", file=config, by=prepared)
        if config is not None and study.task is not None:
            refuse_other_task(study.task, store.task(study.task.name), file=config, by=prepared)
            task = task or study.task.name
        trainer = trainer_of(store, task or store.only_task(), out, study=study)
        with training_bar() as show:
            trainer.fit(resume=resume, on_progress=show)
        say(f"run complete in {out}; next: ehrseq evaluate {out}")


@app.command()
def evaluate(
    run: RunFolder,
    overrides: Overrides = None,
    split: Annotated[str, typer.Option("--split", help="train, tuning or held_out")] = "held_out",
    prepared: MovedSet = None,
    baselines: Annotated[str | None, typer.Option("--baselines", help="fast, forest, all or none")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Other MEDS data: external validation. With --splits: the records, if moved"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="With --data: folder to make [RUN/external-NAME]")] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Fit a recalibration on the tuning split and report its effect")
    ] = False,
    splits: Annotated[
        int | None, typer.Option("--splits", help="Also train and evaluate on this many random 80/20 splits")
    ] = None,
    split_seed: Annotated[int, typer.Option("--split-seed", help="Seed of the first of the --splits")] = 1234,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Evaluate a run: write metrics.json and report.html, with baselines on the same subjects.

    Uses a split of the run's own data or, with --data, data that the model has never seen.
    """
    with errors(debug):
        keep_freed_memory()
        given = [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]
        given += ["evaluation.recalibrate=true"] if recalibrate else []
        external = data is not None and splits is None
        command = "evaluate --data" if external else "evaluate"
        study = _study(config, given, command)
        if (out is not None and not external) or (external and split != "held_out"):
            what = "--out needs --data" if not external else "--split and --data exclude each other"
            raise EhrseqError(what, where="ehrseq evaluate", fix="leave one of them out")
        from ehrsequencing.cli.report import report_evaluation, report_external, report_outcomes
        from ehrsequencing.config import load_study, refuse_changes
        from ehrsequencing.evaluation.evaluate import evaluate as evaluate_run
        from ehrsequencing.evaluation.external import validate
        from ehrsequencing.evaluation.repeated_splits import repeated_splits
        from ehrsequencing.reporting.terminal import metric_lines

        made = _run(run).study
        refuse_changes(study, made, command, file=config, by=run)
        settings = load_study(config, given, evaluation=made.evaluation).evaluation
        with stages("evaluating") as stage:
            if data is not None and external:
                external_run = partial(validate, run, data, out=out, prepared=prepared, settings=settings)
                draw = partial(report_external, run)
                result, folder = external_run(facts=study.data, draw=draw, progress=stage)
            else:
                result = evaluate_run(run, split=split, prepared=prepared, settings=settings, progress=stage)
                folder = run
        if splits is not None:
            with bar("splits") as tick:
                repeat = partial(repeated_splits, run, data=data, prepared=prepared, settings=settings)
                repeat(splits=splits, first_seed=split_seed, progress=tick)
        if not external:
            report_evaluation(run, result)
        say("\n".join(metric_lines(result)))
        if not external:
            with bar("evaluating every outcome") as tick:
                lines = report_outcomes(run, split=split, prepared=prepared, settings=settings, progress=tick)
            say("\n".join(lines)) if lines else None
        say(f"report: {folder / 'report.html'}")


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(help="Folder of a MEDS data set, seen or not")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="File to write: .parquet, .csv or .csv.gz")] = Path(
        "predictions.parquet"
    ),
    at: Annotated[str, typer.Option("--at", help="all prediction times, each subject's last, or a date")] = "all",
    horizons: Annotated[str | None, typer.Option("--horizons", help="As in 90d,2y; default: the task's")] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Apply the recalibration that ehrseq evaluate --recalibrate fitted")
    ] = False,
    outcome: Annotated[
        list[str] | None,
        typer.Option("--outcome", help="A code or pattern of the run's outcomes (docs/outcomes.md); may be repeated"),
    ] = None,
    top: Annotated[int | None, typer.Option("--top", help="So many most likely outcomes of each moment")] = None,
    force: Annotated[bool, typer.Option("--force", help="Predict even if nearly all codes are unknown")] = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Write risk curves for any MEDS data."""
    with errors(debug):
        from ehrsequencing.config import parse_days, refuse_changes
        from ehrsequencing.predict import predict as write
        from ehrsequencing.predict_outcomes import predict_outcomes

        try:
            days = [parse_days(text) for text in horizons.split(",")] if horizons else None
        except ValueError as error:
            raise EhrseqError(str(error), where="--horizons", fix="write them as 90d,2y") from error
        notes: list[str] = []
        study = _study(config, overrides, "predict")
        refuse_changes(study, _run(run).study, "predict", file=config, by=run)
        with bar("predicting") as tick:
            if outcome or top is not None:
                if recalibrate:
                    what, fix = "--recalibrate is for the task's causes", "leave it out"
                    raise EhrseqError(what, where="ehrseq predict", fix=fix)
                write_to = partial(predict_outcomes, run, data, out, outcomes=outcome or (), top=top)
            else:
                write_to = partial(write, run, data, out, recalibrated=recalibrate)
            write_to = partial(write_to, at=at, horizons_days=days, force=force)
            count = write_to(facts=study.data, progress=tick, say=notes.append)
        for note in notes:
            say(note, err=note.startswith("warning"))
        say(f"risks at {count} prediction times are in {out}")


@app.command()
def score(
    predictions: Annotated[Path, typer.Argument(help="Risks of any model: .parquet, .csv or .csv.gz")],
    data: DataFolder,
    overrides: Overrides = None,
    task: Annotated[Path, typer.Option("--task", help="Task file")] = ...,  # type: ignore[assignment]
    out: Annotated[Path | None, typer.Option("--out", help="Folder to make [NAME-score beside PREDICTIONS]")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the model is called [the file's name]")] = None,
    split: Annotated[str, typer.Option("--split", help="train, tuning or held_out")] = "held_out",
    prepared: Annotated[
        Path | None, typer.Option("--prepared", help="What ehrseq prepare made of DATA and the task, to save time")
    ] = None,
    baselines: Annotated[str | None, typer.Option("--baselines", help="fast or none")] = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Evaluate the risks of any model as evaluate does: same cohort, metrics, baselines and report.

    PREDICTIONS has the columns of what ehrseq predict writes: subject_id, prediction_time, cause, horizon_days, risk.
    Settings of prepare say how records become visits and splits; they matter for the baselines and the cohort.

    Example: ehrseq score cox.csv DATA --task task.yaml --name "Cox on labs" splits.by=hash
    """
    with errors(debug):
        keep_freed_memory()
        given = [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]
        study = _study(config, given, "score" if prepared is None else "score --prepared")
        from ehrsequencing.cli.report import report_score
        from ehrsequencing.evaluation.score import score as score_file
        from ehrsequencing.reporting.terminal import metric_lines

        question = _tasks([task], study)[0]
        with stages("scoring") as stage:
            scored = partial(score_file, predictions, data, question, out=out, name=name, split=split, study=study)
            result, folder = scored(prepared=prepared, progress=stage, draw=report_score)
        for text in result["warnings"]:
            say(f"note: {text}", err=True)
        say("\n".join(metric_lines(result)))
        say(f"report: {folder / 'report.html'}")


@app.command()
def audit(
    run: RunFolder,
    split: Annotated[str, typer.Option("--split", help="Split whose subjects the model is tested on")] = "held_out",
    subjects: Annotated[int, typer.Option("--subjects", help="How many subjects of each split to sample")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sample")] = 0,
    shuffled_labels: Annotated[
        bool, typer.Option("--shuffled-labels", help="Also train a small model on shuffled labels")
    ] = False,
    prepared: MovedSet = None,
    data: Annotated[Path | None, typer.Option("--data", help="The MEDS records, if they have moved")] = None,
    debug: Debug = False,
) -> None:
    """Test a run and its data for leaks of the future.

    Exits with 1 if a leak is found, else with 0. Exit code 0 is not a proof, since checks may only warn or may not be
    possible. The report of the run, if it has one, is updated.
    """
    with errors(debug):
        from ehrsequencing.audit.audit import audit as audit_run
        from ehrsequencing.cli.report import report_audit
        from ehrsequencing.reporting.terminal import audit_lines

        _run(run)
        with bar("auditing") as tick:
            tested = partial(audit_run, run, split=split, subjects=subjects, seed=seed, prepared=prepared, data=data)
            result = tested(shuffled_labels=shuffled_labels, progress=tick)
        say("\n".join(audit_lines(result)))
        say(f"details: {run / 'audit.json'}")
        if line := report_audit(run, result):
            say(line, err=line.startswith("warning"))
        if result["leaks"]:
            raise typer.Exit(1)


def _tasks(paths: list[Path] | None, study: "StudyConfig") -> list[Any]:
    """The tasks of `--task`, else that of the study; if both are given, they must agree."""
    from ehrsequencing.config import load_task

    tasks = [load_task(path) for path in paths or ()]
    if tasks and study.task is not None and study.task not in tasks:
        what = f"the settings hold the task {study.task.name!r}, which is none of these"
        raise EhrseqError(what, where="--task", fix="leave out one of the two")
    return tasks or ([study.task] if study.task is not None else [])


def main() -> None:
    """Entry point of `ehrseq`."""
    run_app(app)
