"""`ehrseq export RUN`: a folder that may be shared, or risks for MEDS-DEV."""

from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import bar, finish, remark, say
from ehrsequencing.cli.options import Overwrite, RunFolder, open_run
from ehrsequencing.core.errors import EhrseqError

_BELONGS = {"share": {"--license"}, "meds-dev": {"DATA", "--labels", "--cause", "--horizon"}}


def export(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Argument(help="meds-dev: folder of a MEDS data set, seen or not")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder or file to make")] = ...,  # type: ignore[assignment]
    overwrite: Overwrite = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="share: a folder for others; meds-dev: a risk for each of --labels (docs/scale.md)",
        ),
    ] = "share",
    labels: Annotated[
        Path | None, typer.Option("--labels", help="meds-dev: MEDS labels, a file or a folder")
    ] = None,
    cause: Annotated[
        str | None, typer.Option("--cause", help="meds-dev: which cause [the first]")
    ] = None,
    horizon: Annotated[
        str | None, typer.Option("--horizon", help="meds-dev: as in 90d [the task's only one]")
    ] = None,
    license_: Annotated[
        str | None,
        typer.Option(
            "--license", help="share: the licence that the model card names, as in cc-by-nc-4.0"
        ),
    ] = None,
) -> None:
    """Write the run for other people, or its risks for MEDS-DEV.

    share: a folder for ehrseq predict and ehrseq evaluate --data elsewhere, with a model card and without ids, dates,
    results and paths. It needs a run that was prepared with vocabulary.min_subjects of at least 11. meds-dev: the
    risk of one cause by one horizon for each label, as MEDS-DEV reads it.
    """
    given = {
        "--license": license_,
        "DATA": data,
        "--labels": labels,
        "--cause": cause,
        "--horizon": horizon,
    }
    _refuse_unused(format_, {name for name, value in given.items() if value is not None})
    open_run(run)
    if format_ == "share":
        from ehrsequencing.reporting.share import CARD, share_run

        with bar("exporting"):
            files = share_run(run, out, license_id=license_, overwrite=overwrite)
        say(f"read {out / CARD} before you give the folder away")
        then = ["predict", out, "DATA", "--at", "last", "--out", "risks.csv"]
        finish(wrote={"shared": out}, then=then, result={"files": files})
        return
    from ehrsequencing.api.predictions import days_of
    from ehrsequencing.prediction.predict_labels import predict_labels

    if data is None or labels is None:
        fix = "name records and labels"
        raise EhrseqError("needs DATA and --labels", where="--format meds-dev", fix=fix)
    days = None if horizon is None else days_of(horizon, where="--horizon")
    with bar("predicting") as tick:
        count = predict_labels(
            run,
            data,
            out,
            labels=labels,
            cause=cause,
            horizons_days=days,
            overwrite=overwrite,
            progress=tick,
            say=remark,
        )
    say(f"risks at {count:,} labels")
    finish(
        wrote={"predictions": out},
        then=f"meds-dev-evaluation predictions_path={out} output_dir=results",
        result={"labels": count},
    )


def _refuse_unused(chosen: str, given: set[str]) -> None:
    """Refuse a format that there is not, and options that belong to the other one."""
    if chosen not in _BELONGS:
        raise EhrseqError(
            f"{chosen!r} is not a choice", where="--format", fix=f"use {' or '.join(_BELONGS)}"
        )
    if other := sorted(given - _BELONGS[chosen]):
        fix = f"leave it out, or use --format {next(n for n in _BELONGS if n != chosen)}"
        raise EhrseqError(f"does not belong to --format {chosen}", where=other[0], fix=fix)
