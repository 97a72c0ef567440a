"""The commands `ehrseq import omop` and `ehrseq import synthea`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ehrsequencing.console import bar, errors, say

if TYPE_CHECKING:
    from ehrsequencing.readers.meds_out import ImportReport

import_app = typer.Typer(
    help="Turn foreign records into a MEDS data set.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Out = Annotated[Path, typer.Argument(help="Folder to make; an earlier import there is replaced")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error")]


@import_app.command("omop")
def omop(
    source: Annotated[
        str, typer.Argument(help="Folder of CSV, CSV.gz or Parquet tables, or postgres://… or duckdb://FILE")
    ],
    out: Out,
    debug: Debug = False,
) -> None:
    """OMOP CDM 5.3 or 5.4, from files or from a live database."""
    with errors(debug):
        from ehrsequencing.readers.omop import import_omop

        with bar("importing") as tick:
            report = import_omop(source, out, progress=tick)
        _say(report, out)


@import_app.command("synthea")
def synthea(
    source: Annotated[Path, typer.Argument(help="Folder of Synthea's CSV files, plain or gz")],
    out: Out,
    debug: Debug = False,
) -> None:
    """Synthea's CSV export."""
    with errors(debug):
        from ehrsequencing.readers.synthea import import_synthea

        with bar("importing") as tick:
            report = import_synthea(source, out, progress=tick)
        _say(report, out)


def _say(report: "ImportReport", out: Path) -> None:
    for line in report.lines():
        say(line)
    say(f"next: ehrseq check {out}")
