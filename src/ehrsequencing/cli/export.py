"""`ehrseq export RUN`: a folder that may be shared, or risks for MEDS-DEV."""

from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import finish, remark, say, shown
from ehrsequencing.cli.options import Overwrite, RunFolder, open_run


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
    from ehrsequencing.api.export import export as write

    open_run(run)
    found = write(
        run,
        out,
        data,
        format=format_,
        license=license_,
        labels=labels,
        cause=cause,
        horizon=horizon,
        overwrite=overwrite,
        progress=shown(),
        say=remark,
    )
    if isinstance(found, list):
        say(f"read {out / 'README.md'} before you give the folder away")
        then = ["predict", out, "DATA", "--at", "last", "--out", "risks.csv"]
        finish(wrote={"shared": out}, then=then, result={"files": found})
        return
    say(f"risks at {found:,} labels")
    finish(
        wrote={"predictions": out},
        then=f"meds-dev-evaluation predictions_path={out} output_dir=results",
        result={"labels": found},
    )
