"""The commands `ehrseq import FORMAT SOURCE OUT`, one for each source format of `readers.registry`.

The formats are loaded only when somebody asks for one of them or for their list.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from ehrsequencing.cli.console import CommandLine, finish, say, shown, warn
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.options import OPTIONS

if TYPE_CHECKING:
    from ehrsequencing.readers.registry import Reader


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
        source: str,
        out: Path | None,
        overrides: Sequence[str] | None,
        named: Path | None,
        map: Path | None = None,
        draft: bool = False,
        **given: Any,
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
        # a database's URL is not repeated, since it may hold a password
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
        settings = dict(load_import(overrides or ()))
        if map is not None:
            settings["map"] = map
        report = import_source(reader.name, source, out, progress=shown(), **given, **settings)
        for line in report.lines():
            say(line)
        for line in report.warnings():
            warn(line)
        finish(
            wrote={"data": out},
            then=["check", out, "--suggest"],
            result=report.as_json(),
        )

    options = dict(
        OPTIONS["import"], source=replace(OPTIONS["import"]["source"], help=reader.source)
    )
    for name in () if reader.needs_map else ("map", "draft"):
        del options[name]
    files = "visits.csv --map map.yaml meds" if reader.needs_map else "export meds"
    example = f"ehrseq import {reader.name} {files}"
    declare = app.command(reader.name, help=reader.help, example=example, options=options)
    declare(import_records)
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
