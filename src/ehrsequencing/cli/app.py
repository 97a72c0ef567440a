"""The commands of `ehrseq`: each reads its options, calls one function of `api/`, and prints the result.

A command imports what it needs when it runs, so that `ehrseq --help` stays fast.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ehrsequencing.api.progress import bar
from ehrsequencing.cli.console import (
    CommandLine,
    UsageError,
    finish,
    run as run_app,
    say,
    shown,
    warn,
)
from ehrsequencing.cli.evaluate import audit, compare, evaluate, main_results, score
from ehrsequencing.cli.importing import import_app
from ehrsequencing.cli.options import read_study
from ehrsequencing.cli.predict import drift, explain, explore, monitor, predict
from ehrsequencing.cli.train import export, pretrain, serve, train, update
from ehrsequencing.core.errors import refuse_idle
from ehrsequencing.core.version import __version__

if TYPE_CHECKING:
    from ehrsequencing.config import StudyConfig

START, DATA, MODEL = "Start here", "Data", "Model"  # panels of `ehrseq --help`
AFTER, SHARING = "After training", "Sharing"


class Panels(TyperGroup):
    """Lists the commands by what they are for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Of a command that is not there, the one line to type in its place."""
        known, name = self.list_commands(ctx), str(args[0])
        if name in known or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        from ehrsequencing.core.elsewhere import right_way

        close = [f"ehrseq {one}" for one in get_close_matches(name, known, n=1, cutoff=0.75)]
        others = ("EvaluationResult", "ehrsequencing", "TrainedRun")
        ways = [right_way("commands", name), *close, *(right_way(one, name) for one in others)]
        way = next(filter(None, ways), "")
        raise UsageError(f"There is no command {name!r}" + (f": use {way}" if way else ""), ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section a panel, in the order in which commands were declared."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            panel = command.rich_help_panel
            title = panel if isinstance(panel, str) else "Commands"
            panels.setdefault(title, []).append((name, command.get_short_help_str(limit=100)))
        for panel in sorted(panels, key=[START, DATA, MODEL, AFTER, SHARING, "Commands"].index):
            with formatter.section(panel):
                formatter.write_dl(panels[panel])


app = CommandLine(
    name="ehrseq",
    cls=Panels,
    help="Survival models for electronic health records: records in MEDS go in, calibrated risk curves come out.",
    epilog="Begin with: ehrseq demo",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(import_app, name="import", rich_help_panel=DATA)


def _show_version(wanted: bool) -> None:
    if wanted:
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


@app.command(example="ehrseq demo --out demo", panel=START)
def demo(out: Path, **given: Any) -> None:
    """Simulate records, train on them, evaluate, audit, and write the report."""
    from ehrsequencing.api.study import run_demo

    run, data = out / "run", out / "data"
    metrics = run_demo(out, progress=shown(), say=say, **given)
    finish(
        wrote={
            "data": data,
            "run": run,
            "report": run / "report.html",
            "explorer": out / "explorer.html",
        },
        then=["predict", run, data, "--at", "last", "--out", out / "predictions.parquet"],
        result=main_results(metrics),
    )


@app.command(example="ehrseq run meds --task task.yaml --out study", panel=START)
def run(
    data: Path,
    out: Path,
    overrides: Sequence[str] | None,
    config: Path | None,
    quick: bool,
    **asked: Any,
) -> None:
    """Check, prepare, train, evaluate, audit, and write the report; goes on where it was.

    With --quick no network is trained (training.network=false): the answer is a blend of boosted trees and a Cox model.
    """
    given = [*(overrides or ()), *(["training.network=false"] if quick else ())]
    study = read_study(config, given, "run")
    from ehrsequencing.api.study import run as run_all
    from ehrsequencing.core.files import read_json
    from ehrsequencing.reporting.terminal import audit_lines, metric_lines

    made = run_all(data, out=out, study=study, progress=shown(), say=say, **asked)
    metrics, checks = (read_json(made.folder / f"{name}.json") for name in ("metrics", "audit"))
    say("\n".join([*metric_lines(metrics), *audit_lines(checks)]))
    report = made.folder / "report.html"
    say(f"\nopen {report} in a browser\n")
    at = made.task.index.moment
    finish(
        wrote={"run": made.folder, "report": report},
        then=["predict", made.folder, data, "--at", at, "--out", out / "predictions.parquet"],
        result=main_results(metrics) | {"leaks": checks["leaks"]},
    )
    if checks["leaks"]:
        warn(f"the audit found leaks: see {report}")


@app.command(example="ehrseq simulate sim --subjects 4000 --seed 0", panel=DATA)
def simulate(out: Path, overrides: Sequence[str] | None, config: Path | None, **given: Any) -> None:
    """Write a simulated MEDS data set with its true risks and its task."""
    from ehrsequencing.api.records import simulate as write
    from ehrsequencing.config import read_settings

    write(out, progress=shown(), **given, **read_settings(config, overrides or ()))
    subjects, seed = given["subjects"], given["seed"]
    task = out / "task.yaml"
    say(f"{subjects:,} simulated subjects, with their true risks")
    finish(
        wrote={"data": out, "task": task},
        then=["prepare", out, "--task", task, "--out", f"{out}-prepared"],
        result={"subjects": subjects, "seed": seed},
    )


@app.command(example='ehrseq codes meds "diabetes"', panel=DATA)
def codes(
    data: Path, text: str, overrides: Sequence[str] | None, top: int, config: Path | None
) -> None:
    """Find codes by text in codes and descriptions, or list the most frequent.

    Use them in a task file. Counts from 1 to 10 are hidden, except in simulated data.
    """
    from ehrsequencing.api.records import codes as find

    if "=" in text and not overrides:  # a setting in the place of the text
        text, overrides = "", [text]
    study = read_study(config, overrides, "codes")
    matches = find(data, text, progress=shown(), **dict(study.data))
    first = matches[["code", "subjects", "rows", "description"]].head(top).copy()
    first["rows"] = first["rows"].map(lambda rows: "hidden" if rows is None else rows)
    first["description"] = first.description.str.slice(0, 45).str.ljust(45)
    say(first.to_string(index=False))
    if len(matches) > top:
        say(f"and {len(matches) - top:,} more (--top {len(matches)} prints all)")
    finish(
        wrote={},
        then=["check", data, "--task", "TASK.yaml"],
        result={"text": text, "codes": matches.to_dict("records")},
    )


@app.command(example="ehrseq check meds --task task.yaml", panel=DATA)
def check(
    data: Path,
    overrides: Sequence[str] | None,
    task: Sequence[Path] | None,
    out: Path | None,
    suggest: bool,
    overwrite: bool,
    config: Path | None,
) -> None:
    """Report problems in the data, the automatic fixes, and the cohort's attrition.

    Exits with 2 only if prepare would refuse the data.
    """
    from ehrsequencing.api.records import check as check_records
    from ehrsequencing.core.files import write_json
    from ehrsequencing.core.outputs import CHECK, output_file, refuse_existing

    refuse_idle(
        {"--task": task, "--overwrite": overwrite}, "with --suggest", where="check", when=suggest
    )
    refuse_idle({"--overwrite": overwrite}, "without --out", where="check", when=out is None)
    study = read_study(config, overrides, "check")
    if suggest:
        _suggest(data, study, out)
        return
    if out is not None:
        refuse_existing(out, CHECK, overwrite=overwrite)
    checked = check_records(data, task, study=study, progress=shown())
    if out is not None:
        with output_file(out, CHECK, overwrite=overwrite) as temporary:
            write_json(temporary, {**CHECK.facts, **checked.as_json()})
    say(str(checked))
    given = [word for path in task or () for word in ("--task", path)]
    named = given or ([] if study.task else ["--task", "TASK.yaml"])
    settings = [*(["--config", config] if config else []), *(overrides or ())]
    finish(
        wrote={"check": out},
        then=["prepare", data, *named, "--out", "prepared", *settings],
        result=checked.as_json(),
    )


def _suggest(data: Path, study: "StudyConfig", out: Path | None) -> None:
    """Print which task templates fit, and write them into a new folder."""
    from ehrsequencing.core.files import write_bytes
    from ehrsequencing.core.outputs import TASKS, refuse_existing
    from ehrsequencing.records.code_search import suggest as fitting

    if out is not None:
        refuse_existing(out, TASKS)
    with bar("looking at the codes", show=shown()) as tick:
        templates = fitting(data, settings=study.data, progress=tick)
    for one in templates:
        none = f" (fill in the code of {' and of '.join(one.missing)})" if one.missing else ""
        say(f"{'blank' if none else 'fits '}  {one.name:<21}  {one.title}{none}")
        if one.covers:
            say(f"      {one.covers}")
    fits = [one for one in templates if not one.missing] or templates
    result = {
        "templates": [
            {"name": one.name, "missing": one.missing, "covers": one.covers} for one in templates
        ]
    }
    then: list[object] = ["check", data, "--suggest", "--out", "tasks"]
    if out is not None:
        for one in templates:
            write_bytes(out / f"{one.name}.yaml", one.text.encode())
        then = ["check", data, "--task", out / f"{fits[0].name}.yaml"]
    finish(wrote={"tasks": out}, then=then, result=result)


@app.command(
    example="ehrseq prepare meds --task task.yaml --out prepared visits.by=day", panel=DATA
)
def prepare(
    data: Path,
    out: Path,
    overrides: Sequence[str] | None,
    config: Path | None,
    task: Sequence[Path] | None,
    **given: Any,
) -> None:
    """Turn MEDS records into packed arrays and labels."""
    from ehrsequencing.config.files import agreed_tasks, load_task
    from ehrsequencing.records.attrition import attrition_lines, task_warnings
    from ehrsequencing.records.check import data_warnings, fix_lines
    from ehrsequencing.records.prepare import prepare as make
    from ehrsequencing.records.prepared import Prepared

    study = read_study(config, overrides, "prepare")
    tasks = agreed_tasks([load_task(path) for path in task or ()], study)
    with bar("preparing", show=shown()) as tick:
        make(data, out, study=study, tasks=tasks, progress=tick, **given)
    prepared = Prepared(out, verify=False)
    for line in fix_lines(prepared.manifest["fixes"]):
        say(line)
    say(f"{prepared.manifest['subjects']:,} subjects, {len(prepared.vocabulary):,} tokens")
    for text in data_warnings(prepared.manifest, min_subjects=study.vocabulary.min_subjects):
        warn(text)
    attrition = {name: prepared.attrition(name) for name in prepared.tasks}
    for name, counts in attrition.items():
        say("\n".join(attrition_lines(prepared.task(name), counts, warnings=())))
        for text in task_warnings(prepared.task(name), counts):
            warn(text)
    one = [] if len(attrition) == 1 else ["--task", *list(attrition)[:1]]
    then = (
        ["train", out, *one, "--out", "run"] if tasks else ["pretrain", out, "--out", "pretrained"]
    )
    facts = {
        "subjects": prepared.manifest["subjects"],
        "tokens": len(prepared.vocabulary),
        "tasks": attrition,
    }
    finish(wrote={"prepared": out}, then=then, result=facts)


for function, panel, example in (
    (pretrain, MODEL, "ehrseq pretrain prepared --out pretrained --task death"),
    (train, MODEL, "ehrseq train prepared --out run model.size=small training.epochs=30"),
    (evaluate, MODEL, "ehrseq evaluate run --baselines fast evaluation.bootstrap=1000"),
    (drift, AFTER, "ehrseq drift run meds"),
    (predict, AFTER, "ehrseq predict run meds --at index --horizons 90d,1y --out risks.csv"),
    (monitor, AFTER, "ehrseq monitor run meds --journal journal --out monitor.html"),
    (explain, AFTER, "ehrseq explain run meds --subject 1234 --horizon 1y --out why.csv"),
    (explore, AFTER, "ehrseq explore run meds --out explorer.html"),
    (audit, AFTER, "ehrseq audit run --subjects 200"),
    (update, AFTER, "ehrseq update run meds --out updated"),
    (compare, AFTER, "ehrseq compare run other-run"),
    (serve, SHARING, "ehrseq serve run meds --port 8000"),
    (export, SHARING, "ehrseq export run --format share --out shared"),
    (score, SHARING, "ehrseq score cox.csv meds --task task.yaml splits.by=hash"),
):
    app.command(example=example, panel=panel)(function)


def main() -> None:
    """Entry point of `ehrseq`."""
    os.environ["PYTHONSAFEPATH"] = "1"  # a child process imports nothing of the working directory
    run_app(app)
