"""The commands `ehrseq import FORMAT SOURCE OUT`, one for each source format of `readers.registry`.

The formats are loaded only when somebody asks for one of them or for their list.
"""

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ehrsequencing.cli.console import CommandLine, finish, say, shown, warn
from ehrsequencing.cli.options import Overwrite
from ehrsequencing.core.errors import EhrseqError

if TYPE_CHECKING:
    from ehrsequencing.readers.registry import Reader

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

    def import_records(
        source: Annotated[str, typer.Argument(help=reader.source)],
        out: Annotated[Path | None, typer.Argument(help="Folder to make")] = None,
        overrides: Overrides = None,
        map: Annotated[
            Path | None, typer.Option(help="YAML file that says what the columns mean")
        ] = None,
        draft: Annotated[
            bool,
            typer.Option(
                "--draft", help="Write a map to edit for these files (SOURCE and all that follow)"
            ),
        ] = False,
        named: Annotated[
            Path | None, typer.Option("--out", hidden=True, help="The same as OUT")
        ] = None,
        overwrite: Overwrite = False,
    ) -> None:
        from ehrsequencing.api.records import import_source
        from ehrsequencing.config import load_import

        if draft:
            _write_draft(
                [Path(source), *filter(None, [out]), *(Path(one) for one in overrides or ())], map
            )
            return
        if named is not None and out is not None:
            out, overrides = None, [str(out), *(overrides or ())]
        out = named or out
        if out is None:
            raise EhrseqError("is missing", where="OUT", fix="name the folder to make after SOURCE")
        _refuse_database(out)
        settings = dict(load_import(overrides or ()))
        if map is not None:
            settings["map"] = map
        report = import_source(
            reader.name, source, out, overwrite=overwrite, progress=shown(), **settings
        )
        for line in report.lines():
            say(line)
        for line in report.warnings():
            warn(line)
        finish(
            wrote={"data": out},
            then=["check", out, "--suggest"],
            result=report.as_json(),
        )

    # the signature keeps the options that this format has
    signature = inspect.signature(import_records)
    missing = {
        "map": not reader.needs_map,
        "draft": not reader.needs_map,
    }
    parameters = [p for name, p in signature.parameters.items() if not missing.get(name)]
    import_records.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    files = "visits.csv --map map.yaml meds" if reader.needs_map else "export meds"
    example = f"ehrseq import {reader.name} {files}"
    app.command(reader.name, help=reader.help, example=example)(import_records)
    return typer.main.get_command(app)


def _write_draft(files: list[Path], out: Path | None) -> None:
    """Write a map to edit."""
    from ehrsequencing.core.files import write_bytes
    from ehrsequencing.readers.draft import draft_map

    path = out or Path("map.yaml")
    if path.exists():
        raise EhrseqError("exists", where=str(path), fix="name another file with --map")
    text = draft_map(files, str(path))
    write_bytes(path, text.encode())
    say(text)
    finish(wrote={"map": path}, then=["import", "csv", files[0].parent, "--map", path, "meds"])


def _refuse_database(out: Path) -> None:
    """Refuse a database's URL as the output, without repeating it, since it may hold a password."""
    if re.match(r"[A-Za-z][A-Za-z0-9+]*:/", str(out)) or "password=" in str(out):
        raise EhrseqError(
            "is a database, not a folder", where="OUT", fix="name SOURCE first, then OUT"
        )
    if out.is_file():
        raise EhrseqError(
            "is a file, not a folder to make",
            where=str(out),
            fix="one command reads one source: join several tables into one file, then name OUT",
        )
