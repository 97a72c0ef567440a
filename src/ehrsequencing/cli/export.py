"""`ehrseq export RUN --format torch`: the run's network as a program that needs torch and NumPy only."""

from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import bar, finish, say
from ehrsequencing.cli.inputs import open_run
from ehrsequencing.cli.options import RunFolder
from ehrsequencing.errors import EhrseqError


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", help="Folder to make")],
    format_: Annotated[str, typer.Option("--format", help="torch: a program of torch.export")] = "torch",
    network_only: Annotated[
        bool, typer.Option("--network-only", help="Of a blend, its network alone; its risks are not the blend's")
    ] = False,
) -> None:
    """Write the run's network as a program for one subject at a time, with an example that needs torch and NumPy only.

    The example is checked against the run on made-up records before the folder is there.
    """
    if format_ != "torch":
        raise EhrseqError(f"{format_!r} is not a choice", where="--format", fix="use torch")
    open_run(run)
    from ehrsequencing.export.folder import EXAMPLE, export_run

    with bar("exporting"):
        found = export_run(run, out, network_only=network_only)
    say(f"{found.answers}; {found.questions} questions about made-up records: risks differ by {found.difference:.1e}")
    finish(
        wrote={"export": out},
        then=f"python {out / EXAMPLE} rows.csv",
        result={"answers": found.answers, "questions": found.questions, "difference": found.difference},
    )
