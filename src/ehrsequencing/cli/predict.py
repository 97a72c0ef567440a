"""`ehrseq predict RUN DATA`: risk curves for any MEDS data."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ehrsequencing.cli.console import bar, finish, note, say, warn
from ehrsequencing.cli.inputs import open_run, read_study
from ehrsequencing.cli.launch import launch, launches, one_of_several
from ehrsequencing.cli.options import Config, Devices, Nodes, Overrides, Overwrite, RunFolder
from ehrsequencing.core.errors import EhrseqError

_JUDGE = {  # format → the command that judges such a file
    "meds-dev": "meds-dev-evaluation predictions_path={} output_dir=results",
    "meds-evaluation": "python -m meds_evaluation predictions_path={} output_file=results.json",
}


def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(help="Folder of a MEDS data set, seen or not")],
    overrides: Overrides = None,
    out: Annotated[
        Path, typer.Option("--out", help="File to write: .parquet, .csv or .csv.gz")
    ] = Path("predictions.parquet"),
    at: Annotated[
        str, typer.Option("--at", help="all prediction times, each subject's last, or a date")
    ] = "all",
    horizons: Annotated[
        str | None, typer.Option("--horizons", help="As in 90d,2y; default: the task's")
    ] = None,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Apply the recalibration that ehrseq evaluate --recalibrate fitted",
        ),
    ] = False,
    outcome: Annotated[
        list[str] | None,
        typer.Option(
            "--outcome",
            help="A code or pattern of the run's outcomes (docs/outcomes.md); may be repeated",
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", help="So many most likely outcomes of each moment")
    ] = None,
    style: Annotated[
        str,
        typer.Option(
            "--format",
            help="risks; meds-dev, meds-evaluation: a risk for each of --labels (docs/scale.md)",
        ),
    ] = "risks",
    labels: Annotated[
        Path | None,
        typer.Option("--labels", help="With --format meds-…: MEDS labels, a file or a folder"),
    ] = None,
    cause: Annotated[
        str | None, typer.Option("--cause", help="With --format meds-…: which cause [the first]")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Predict even if nearly all codes are unknown")
    ] = False,
    overwrite: Overwrite = False,
    devices: Devices = 1,
    nodes: Nodes = 1,
    config: Config = None,
) -> None:
    """Write risk curves for any MEDS data."""
    if launches(devices, nodes):
        raise SystemExit(launch("predict", devices, nodes))
    with one_of_several(gpus=False) as group:
        from ehrsequencing.config import parse_days, refuse_changes
        from ehrsequencing.prediction.predict import predict as write
        from ehrsequencing.prediction.predict_labels import predict_labels
        from ehrsequencing.prediction.predict_outcomes import predict_outcomes
        from ehrsequencing.training.processes import ALONE

        try:
            days = [parse_days(text) for text in horizons.split(",")] if horizons else None
        except ValueError as error:
            raise EhrseqError(str(error), where="--horizons", fix="write them as 90d,2y") from error
        _require_fitting(
            style,
            labels=labels,
            cause=cause,
            others=at != "all" or outcome is not None or top is not None,
        )
        notes: list[str] = []
        study = read_study(config, overrides, "predict")
        made = open_run(run).study
        refuse_changes(study, made, "predict", file=config, by=run)
        write_to: Any
        processes = group or ALONE
        with bar("predicting") as tick:
            if outcome or top is not None:
                if recalibrate:
                    what, fix = "--recalibrate is for the task's causes", "leave it out"
                    raise EhrseqError(what, where="ehrseq predict", fix=fix)
                write_to = partial(
                    predict_outcomes, run, data, out, outcomes=outcome or (), top=top
                )
            else:
                write_to = partial(write, run, data, out, recalibrated=recalibrate)
            if labels is not None:
                write_to = partial(predict_labels, run, data, out, labels=labels, style=style)
                write_to = partial(write_to, cause=cause, recalibrated=recalibrate)
            else:
                write_to = partial(write_to, at=at)
            write_to = partial(write_to, horizons_days=days, force=force, processes=processes)
            write_to = partial(write_to, overwrite=overwrite)
            count = write_to(facts=study.data, progress=tick, say=notes.append)
        if not processes.is_first:
            return
        for text in notes:
            warn(text.removeprefix("warning: ")) if text.startswith("warning: ") else note(text)
        say(f"risks at {count:,} prediction times")
        finish(
            wrote={"predictions": out},
            then=_next(run, data, out, style=style, outcomes=bool(outcome) or top is not None),
            result={"prediction_times": count},
        )


def _next(
    run: Path, data: Path, out: Path, *, style: str, outcomes: bool
) -> Sequence[object] | str:
    """The command to type next: `score` knows a task's own causes alone, and `evaluate` every outcome."""
    if style in _JUDGE:
        return _JUDGE[style].format(out)
    return ["evaluate", run] if outcomes else ["score", out, data, "--task", "TASK.yaml"]


def _require_fitting(style: str, *, labels: Path | None, cause: str | None, others: bool) -> None:
    """Refuse options of one format beside the other format."""
    where = f"--format {style}"
    if style not in ("risks", *_JUDGE):
        raise EhrseqError(
            f"{style!r} is not a format", where="--format", fix=f"use risks, {', '.join(_JUDGE)}"
        )
    if style == "risks" and (labels is not None or cause is not None):
        fix = "add it, or --format meds-evaluation"
        raise EhrseqError(
            "--labels and --cause need --format meds-dev", where="ehrseq predict", fix=fix
        )
    if style in _JUDGE and labels is None:
        raise EhrseqError(
            "needs the labels of the task", where=where, fix="name them with --labels"
        )
    if style in _JUDGE and others:
        what = "takes its moments from the labels, and one cause of the task"
        raise EhrseqError(what, where=where, fix="leave out --at, --outcome and --top")
