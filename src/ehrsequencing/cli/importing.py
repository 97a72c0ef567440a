"""The commands `ehrseq import omop` and `ehrseq import synthea`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ehrsequencing.cli.console import bar, errors, say
from ehrsequencing.errors import EhrseqError

if TYPE_CHECKING:
    from ehrsequencing.readers.meds_out import ImportReport

import_app = typer.Typer(
    help="Turn foreign records into a MEDS data set.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Out = Annotated[Path, typer.Argument(help="Folder to make; an earlier import there is replaced")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings as import.key=value, as in import.dates=dmy", show_default=False),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error")]


@import_app.command("omop")
def omop(
    source: Annotated[
        str, typer.Argument(help="Folder of CSV, CSV.gz or Parquet tables, or postgres://… or duckdb://FILE")
    ],
    out: Out,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """OMOP CDM 5.3 or 5.4, from files or from a live database."""
    with errors(debug):
        from ehrsequencing.config import load_import
        from ehrsequencing.readers.omop import import_omop

        settings = load_import(overrides or ())
        _check_out(out)
        with bar("importing") as tick:
            report = import_omop(source, out, settings=settings, progress=tick)
        _say(report, out)


@import_app.command("synthea")
def synthea(
    source: Annotated[Path, typer.Argument(help="Folder of Synthea's CSV files, plain or gz")],
    out: Out,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Synthea's CSV export."""
    with errors(debug):
        from ehrsequencing.config import load_import
        from ehrsequencing.readers.synthea import import_synthea

        settings = load_import(overrides or ())
        _check_out(out)
        with bar("importing") as tick:
            report = import_synthea(source, out, settings=settings, progress=tick)
        _say(report, out)


def _check_out(out: Path) -> None:
    """Refuse a database's URL in the place of the output, without repeating it: it may hold a password."""
    if re.match(r"[A-Za-z][A-Za-z0-9+]*:/", str(out)) or "password=" in str(out):
        raise EhrseqError("is a database, not a folder", where="OUT", fix="name SOURCE first, then OUT")


def _say(report: "ImportReport", out: Path) -> None:
    for line in report.lines():
        say(line)
    for line in report.warnings():
        say(f"warning: {line}", err=True)
    say(f"next: ehrseq check {out}")
