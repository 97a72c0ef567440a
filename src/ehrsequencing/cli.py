"""The command line: thin commands over the rooms. Heavy imports wait until a command needs them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ehrsequencing.cli_import import import_app
from ehrsequencing.errors import EhrseqError

if TYPE_CHECKING:
    from ehrsequencing.config import StudyConfig
    from ehrsequencing.training.loop import Progress

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


@contextmanager
def _errors(debug: bool) -> Iterator[None]:
    """Turn a user's error into one line on stderr and exit code 2; `--debug` lets the traceback through."""
    try:
        yield
    except EhrseqError as error:
        if debug:
            raise
        typer.echo(f"ehrseq: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        typer.echo("ehrseq: interrupted", err=True)
        raise typer.Exit(130) from error


@contextmanager
def _bar(label: str) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr that shows itself only when the work takes longer than two seconds."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    progress, started = Progress(*columns, console=Console(stderr=True), transient=True), time.monotonic()
    task = progress.add_task(label, total=None)

    def tick(done: int, total: int, text: str = label) -> None:
        if not progress.live.is_started and time.monotonic() - started > 2:
            progress.start()
        progress.update(task, completed=done, total=total, description=text)

    try:
        yield tick
    finally:
        progress.stop() if progress.live.is_started else None


@contextmanager
def _stages(label: str) -> Iterator[Callable[[str], None]]:
    """A bar for work that only tells the names of its stages."""
    done: list[str] = []
    with _bar(label) as tick:

        def stage(name: str) -> None:
            tick(len(done), max(len(done) + 1, 6), name)
            done.append(name)

        yield stage


@contextmanager
def _training_bar() -> Iterator[Callable[["Progress"], None]]:
    """The training's bar: epoch, loss, tuning NLL and subjects per second."""
    with _bar("training") as tick:
        before: list[Progress] = []

        def show(p: "Progress") -> None:
            nll = "" if p.tuning_nll is None else f"  tuning NLL {p.tuning_nll:.4f}"
            who = f"member {p.member} of {p.members}  " if p.members > 1 else ""
            text = f"training  {who}loss {p.loss:.4f}{nll}  {p.subjects_per_second:.0f} subjects/s"
            epoch = (p.member - 1) * p.epochs + p.epoch
            tick((epoch - 1) * p.steps + p.step, p.members * p.epochs * p.steps, text)
            if before and before[0].epoch != p.epoch and p.tuning_nll is not None:
                last = before[0]
                typer.echo(
                    f"{who}epoch {last.epoch:3d}  loss {last.loss:.4f}  tuning NLL {p.tuning_nll:.4f}  "
                    f"{last.subjects_per_second:.0f} subjects/s",
                    err=True,
                )
            before[:] = [p]

        yield show


def _study(config: Path | None, overrides: list[str] | None) -> "StudyConfig":
    from ehrsequencing.config import load_study

    return load_study(config, overrides or ())


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder to make")] = Path("demo"),
    subjects: Annotated[int, typer.Option(help="Simulated subjects")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of simulation and training")] = 0,
    debug: Debug = False,
) -> None:
    """Simulate records, train on them, evaluate, and write the report."""
    with _errors(debug):
        from ehrsequencing.demo import run_demo

        run_demo(out, subjects=subjects, seed=seed, say=typer.echo, bar=_bar, training_bar=_training_bar)


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
    with _errors(debug):
        from ehrsequencing.config import read_settings, validated
        from ehrsequencing.simulate import SimulationConfig
        from ehrsequencing.simulate import simulate as write

        if truth not in ("held_out", "all"):
            raise EhrseqError(f"{truth!r} is no choice", where="--truth", mend="use held_out or all")
        knobs = validated(SimulationConfig, read_settings(config, overrides or ()), where="settings")
        with _bar("simulating") as tick:
            write(out, subjects=subjects, seed=seed, truth=truth, config=knobs, progress=tick)  # type: ignore[arg-type]
        typer.echo(f"{subjects} subjects, their truth and task.yaml are in {out}")


@app.command()
def check(
    data: Annotated[Path, typer.Argument(help="Folder of a MEDS data set")],
    overrides: Overrides = None,
    task: Annotated[list[Path] | None, typer.Option("--task", help="Task file; may be repeated")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write what was found to this file")] = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Say what is wrong with the data, what would be mended, and the cohort's attrition.

    Exits with 2 only where prepare would refuse.
    """
    with _errors(debug):
        from ehrsequencing.records.check import check_data, format_check
        from ehrsequencing.storage import CHECK, is_json_of, refuse_foreign_file, write_json

        study = _study(config, overrides)
        if json is not None:
            refuse_foreign_file(json, lambda path: is_json_of(path, CHECK))
        with _bar("checking") as tick:
            found = check_data(data, study=study, tasks=_tasks(task, study), progress=tick)
        if json is not None:
            write_json(json, {**CHECK.facts, **found.as_json()})
        if text := format_check(found):
            typer.echo(text)
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
    with _errors(debug):
        from ehrsequencing.records.check import attrition_lines, mend_lines, vocabulary_warnings
        from ehrsequencing.records.prepared import Prepared
        from ehrsequencing.records.prepared import prepare as make

        study = _study(config, overrides)
        with _bar("preparing") as tick:
            make(data, out, study=study, tasks=_tasks(task, study), progress=tick)
        prepared = Prepared(out, verify=False)
        for line in mend_lines(prepared.manifest["mends"]):
            typer.echo(line)
        typer.echo(f"{prepared.manifest['subjects']} subjects, {len(prepared.vocabulary)} tokens in {out}")
        known = prepared.manifest["known_training_rows"]
        for text in vocabulary_warnings(known, min_subjects=study.vocabulary.min_subjects):
            typer.echo(f"warning: {text}")
        for name in prepared.tasks:
            typer.echo("\n".join(attrition_lines(prepared.task(name), prepared.attrition(name))))


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
    with _errors(debug):
        study = _study(config, overrides)
        from ehrsequencing.records.prepared import Prepared
        from ehrsequencing.training.loop import Trainer

        store = Prepared(prepared)
        trainer = Trainer(store, task or store.only_task(), out, study=study)
        with _training_bar() as show:
            trainer.fit(resume=resume, on_progress=show)
        typer.echo(f"run complete in {out}; next: ehrseq evaluate {out}")


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
    with _errors(debug):
        given = [*(overrides or ()), *([f"evaluation.baselines={baselines}"] if baselines else ())]
        study = _study(config, [*given, *(["evaluation.recalibrate=true"] if recalibrate else [])])
        settings = study.evaluation
        external = data is not None and splits is None
        if (out is not None and not external) or (external and split != "held_out"):
            what = "--out belongs to --data" if not external else "--split and --data exclude each other"
            raise EhrseqError(what, where="ehrseq evaluate", mend="leave one of them out")
        from ehrsequencing.evaluation.audit import saved_audit
        from ehrsequencing.evaluation.evaluate import add_to_run
        from ehrsequencing.evaluation.evaluate import evaluate as judge
        from ehrsequencing.evaluation.external import validate
        from ehrsequencing.evaluation.splits import add_splits, repeated_splits
        from ehrsequencing.reporting.report import write_report
        from ehrsequencing.reporting.terminal import metric_lines

        with _stages("evaluating") as stage:
            if data is not None and external:
                result, folder = validate(
                    run, data, out=out, prepared=prepared, settings=settings, facts=study.data, progress=stage,
                    draw=lambda result, to: write_report(result | {"audit": saved_audit(run)}, to / "report.html"),
                )  # fmt: skip
            else:
                result, folder = judge(run, split=split, prepared=prepared, settings=settings, progress=stage), run
        if splits is not None:
            with _bar("splits") as tick:
                repeated_splits(
                    run, splits=splits, first_seed=split_seed, data=data, prepared=prepared, settings=settings,
                    progress=tick,
                )  # fmt: skip
        if not external:
            report = add_splits(run, result) | {"audit": saved_audit(run)}
            add_to_run(run, "report.html", lambda path: write_report(report, path))
        typer.echo("\n".join(metric_lines(result)))
        typer.echo(f"report: {folder / 'report.html'}")


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
    with _errors(debug):
        from ehrsequencing.config import parse_days
        from ehrsequencing.predict import predict as write

        try:
            days = [parse_days(text) for text in horizons.split(",")] if horizons else None
        except ValueError as error:
            raise EhrseqError(str(error), where="--horizons", mend="write them as 90d,2y") from error
        notes: list[str] = []
        with _bar("predicting") as tick:
            facts = _study(config, overrides).data
            count = write(
                run, data, out, at=at, horizons_days=days, facts=facts, recalibrated=recalibrate, force=force,
                progress=tick, say=notes.append,
            )  # fmt: skip
        for note in notes:
            typer.echo(note, err=note.startswith("warning"))
        typer.echo(f"risks at {count} prediction times are in {out}")


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
    with _errors(debug):
        from ehrsequencing.evaluation.audit import audit as make
        from ehrsequencing.reporting.terminal import audit_lines

        with _bar("auditing") as tick:
            result = make(
                run, split=split, subjects=subjects, seed=seed, shuffled_labels=shuffled_labels, prepared=prepared,
                data=data, progress=tick,
            )  # fmt: skip
        typer.echo("\n".join(audit_lines(result)))
        typer.echo(f"details: {run / 'audit.json'}")
        _show_audit(run, result)
        if result["leaks"]:
            raise typer.Exit(1)


def _show_audit(run: Path, result: dict[str, Any]) -> None:
    """Draw the run's report again, if it has one, from the metrics as they are and the audit that was just made."""
    from ehrsequencing.evaluation.checks import audit_summary, predictor_cutoff
    from ehrsequencing.evaluation.evaluate import add_to_run
    from ehrsequencing.reporting.report import render
    from ehrsequencing.storage import read_json, read_manifest, write_bytes

    if not {"metrics.json", "report.html"} <= set(read_manifest(run, what="a finished run", verify=False)["files"]):
        return
    metrics, summary = read_json(run / "metrics.json"), audit_summary(run)
    told = {"audit": summary, "predictor_cutoff": predictor_cutoff(summary)}
    try:
        page = render(metrics | {"audit": result, "checks": (metrics.get("checks") or {}) | told}).encode()
    except Exception as error:  # metrics of an older version, say: the verdict counts, and it stands
        typer.echo(f"{run / 'report.html'} is as it was (run ehrseq evaluate again): {error}", err=True)
        return
    add_to_run(run, "report.html", lambda path: write_bytes(path, page))
    typer.echo(f"report: {run / 'report.html'}")


def _tasks(paths: list[Path] | None, study: "StudyConfig") -> list[Any]:
    from ehrsequencing.config import load_task

    return [load_task(path) for path in paths] if paths else [study.task] if study.task else []


def main() -> None:
    """Entry point of `ehrseq`."""
    app()
