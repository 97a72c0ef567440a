"""`ehrseq predict RUN DATA`: risk curves for any MEDS data."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ehrsequencing.cli.console import bar, finish, note, say, warn
from ehrsequencing.cli.inputs import open_run, read_study
from ehrsequencing.cli.options import Config, Overrides, Overwrite, RunFolder
from ehrsequencing.core.errors import EhrseqError


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
    force: Annotated[
        bool, typer.Option("--force", help="Predict even if nearly all codes are unknown")
    ] = False,
    overwrite: Overwrite = False,
    config: Config = None,
) -> None:
    """Write risk curves for any MEDS data."""
    from ehrsequencing.config import parse_days, refuse_changes
    from ehrsequencing.prediction.predict import predict as write
    from ehrsequencing.prediction.predict_outcomes import predict_outcomes

    try:
        days = [parse_days(text) for text in horizons.split(",")] if horizons else None
    except ValueError as error:
        raise EhrseqError(str(error), where="--horizons", fix="write them as 90d,2y") from error
    notes: list[str] = []
    study = read_study(config, overrides, "predict")
    made = open_run(run).study
    refuse_changes(study, made, "predict", file=config, by=run)
    write_to: Any
    with bar("predicting") as tick:
        if outcome or top is not None:
            if recalibrate:
                what, fix = "--recalibrate is for the task's causes", "leave it out"
                raise EhrseqError(what, where="ehrseq predict", fix=fix)
            write_to = partial(predict_outcomes, run, data, out, outcomes=outcome or (), top=top)
        else:
            write_to = partial(write, run, data, out, recalibrated=recalibrate)
        write_to = partial(write_to, at=at, horizons_days=days, force=force, overwrite=overwrite)
        count = write_to(facts=study.data, progress=tick, say=notes.append)
    for text in notes:
        warn(text.removeprefix("warning: ")) if text.startswith("warning: ") else note(text)
    say(f"risks at {count:,} prediction times")
    # score knows a task's own causes alone, and evaluate every outcome
    of_outcomes = bool(outcome) or top is not None
    finish(
        wrote={"predictions": out},
        then=["evaluate", run] if of_outcomes else ["score", out, data, "--task", "TASK.yaml"],
        result={"prediction_times": count},
    )
