"""`ehrseq export RUN`: a folder that may be shared."""

from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import bar, finish, say
from ehrsequencing.cli.inputs import open_run
from ehrsequencing.cli.options import RunFolder
from ehrsequencing.core.errors import EhrseqError


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", help="Folder to make")],
    format_: Annotated[
        str, typer.Option("--format", help="share: a folder for other people")
    ] = "share",
    license_: Annotated[
        str | None,
        typer.Option("--license", help="The licence that the model card names, as in cc-by-nc-4.0"),
    ] = None,
) -> None:
    """Write the run for other people.

    share: a folder for ehrseq predict and ehrseq evaluate --data elsewhere, with a model card and without ids, dates,
    results and paths. It needs a run that was prepared with vocabulary.min_subjects of at least 11.
    """
    from ehrsequencing.reporting.share import CARD, share_run

    if format_ != "share":
        raise EhrseqError(f"{format_!r} is not a choice", where="--format", fix="use share")
    open_run(run)
    with bar("exporting"):
        files = share_run(run, out, license_id=license_)
    say(f"read {out / CARD} before you give the folder away")
    then = ["predict", out, "DATA", "--at", "last", "--out", "risks.csv"]
    finish(wrote={"shared": out}, then=then, result={"files": files})
