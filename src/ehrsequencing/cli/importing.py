"""The commands `ehrseq import FORMAT SOURCE OUT`, one for each source format of `readers.registry`.

The formats are loaded only when somebody asks for one of them or for their list.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ehrsequencing.cli.console import CommandLine, bar, finish, say, warn
from ehrsequencing.cli.options import Overwrite
from ehrsequencing.core.errors import EhrseqError

if TYPE_CHECKING:
    from ehrsequencing.config import ImportConfig
    from ehrsequencing.readers.registry import Reader

Out = Annotated[Path, typer.Argument(help="Folder to make")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings as import.key=value, as in import.dates=dmy", show_default=False),
]


class _Formats(TyperGroup):
    """Makes its commands from the registry when they are first needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._load()
        return super().get_command(ctx, cmd_name)

    def _load(self) -> None:
        from ehrsequencing.readers.registry import all_readers

        self.commands = {name: _command(reader) for name, reader in all_readers().items()}


import_app = CommandLine(
    cls=_Formats,
    help="Turn other formats into a MEDS data set.",
    epilog="Example: ehrseq import omop export meds",
    no_args_is_help=True,
)


def _command(reader: "Reader") -> Any:
    """The command of one format."""
    app = CommandLine(group="import", add_completion=False)
    if reader.needs_map:

        @app.command(
            reader.name,
            help=reader.help,
            example=f"ehrseq import {reader.name} visits.csv --map map.yaml meds",
        )
        def import_by_map(
            source: Annotated[str, typer.Argument(help=reader.source)],
            out: Out,
            overrides: Overrides = None,
            map: Annotated[
                Path | None, typer.Option(help="YAML file that says what the columns mean")
            ] = None,
            overwrite: Overwrite = False,
        ) -> None:
            result = _import(reader, source, out, overrides or [], map, overwrite=overwrite)
            finish(wrote={"data": out}, then=["check", out], result=result)

    elif reader.sql is not None:
        statements = reader.sql

        @app.command(
            reader.name, help=reader.help, example=f"ehrseq import {reader.name} export meds"
        )
        def import_tables(
            source: Annotated[str, typer.Argument(help=reader.source)],
            out: Out,
            overrides: Overrides = None,
            show_sql: Annotated[
                bool,
                typer.Option(
                    "--show-sql", help="Print the SQL that would read SOURCE, and do nothing else"
                ),
            ] = False,
            overwrite: Overwrite = False,
        ) -> None:
            if show_sql:
                _settings(overrides or [], out)
                sql = statements(source)
                say("\n\n".join(sql))
                finish(wrote={}, then=None, result={"sql": sql})
                return
            result = _import(reader, source, out, overrides or [], overwrite=overwrite)
            finish(wrote={"data": out}, then=["check", out], result=result)

    else:

        @app.command(
            reader.name, help=reader.help, example=f"ehrseq import {reader.name} export meds"
        )
        def import_source(
            source: Annotated[str, typer.Argument(help=reader.source)],
            out: Out,
            overrides: Overrides = None,
            overwrite: Overwrite = False,
        ) -> None:
            result = _import(reader, source, out, overrides or [], overwrite=overwrite)
            finish(wrote={"data": out}, then=["check", out], result=result)

    return typer.main.get_command(app)


def _import(
    reader: "Reader",
    source: str,
    out: Path,
    overrides: list[str],
    table_map: Path | None = None,
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Import a source, print the report and return it as JSON."""
    settings = _settings(overrides, out)
    if table_map is not None:
        settings = settings.model_copy(update={"map": table_map})
    with bar("importing") as tick:
        report = reader(source, out, settings=settings, overwrite=overwrite, progress=tick)
    for line in report.lines():
        say(line)
    for line in report.warnings():
        warn(line)
    return report.as_json()


def _settings(overrides: list[str], out: Path) -> "ImportConfig":
    """The settings, read after a look at the output's name."""
    from ehrsequencing.config import load_import

    _refuse_database(out)
    return load_import(overrides)


def _refuse_database(out: Path) -> None:
    """Refuse a database's URL as the output, without repeating it, since it may hold a password."""
    if re.match(r"[A-Za-z][A-Za-z0-9+]*:/", str(out)) or "password=" in str(out):
        raise EhrseqError(
            "is a database, not a folder", where="OUT", fix="name SOURCE first, then OUT"
        )
