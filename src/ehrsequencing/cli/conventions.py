"""What every command of `ehrseq` shares: `--quiet`, `--json`, `--debug`, an example in its help, errors as one line.

`CommandLine.command` adds all of this, so that a new command only reads its own options, calls one function, and ends
with `finish` (`console.py`). `tests/cli/test_conventions.py` walks over all commands.
"""

import functools
import inspect
import os
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from ehrsequencing.cli.console import errors, output_of
from ehrsequencing.core.errors import EhrseqError

Function = TypeVar("Function", bound=Callable[..., Any])
SHARED: dict[str, Any] = {
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only")],
    "as_json": Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout, nothing else")
    ],
    "debug": Annotated[bool, typer.Option("--debug", help="Show the traceback of an error")],
}


class CommandLine(typer.Typer):
    """A Typer application whose commands keep the conventions.

    Args:
        group: Name of the command that these are commands of, as in `import`.
        settings: Of `typer.Typer`.
    """

    def __init__(self, *, group: str = "", **settings: Any) -> None:
        super().__init__(pretty_exceptions_enable=False, rich_markup_mode=None, **settings)
        self.group = group

    def command(
        self, name: str | None = None, *, example: str = "", **settings: Any
    ) -> Callable[[Function], Function]:
        """Declare a command.

        Args:
            name: What people type; by default the function's name.
            example: A command line to copy, for the end of the help. Without it the docstring has one ("Example: …").
            settings: Of `typer.Typer.command`.
        """
        if example:
            # \b: Click breaks no line, so that it can be copied
            settings["epilog"] = f"\b\nExample: {example}"

        def declare(function: Function) -> Function:
            path = f"{self.group} {name or function.__name__}".strip()
            super(CommandLine, self).command(name, **settings)(with_conventions(function, path))
            return function

        return declare


def with_conventions(function: Callable[..., Any], command: str) -> Callable[..., None]:
    """The function with the options that it lacks, its output collected and its errors as one line."""
    signature, hints = (
        inspect.signature(function),
        typing.get_type_hints(function, include_extras=True),
    )
    added = [name for name in SHARED if name not in signature.parameters]

    @functools.wraps(function)
    def with_shared_options(**given: Any) -> None:
        shared = {name: bool(given.pop(name)) for name in added}
        shared = {name: bool(given.get(name)) for name in SHARED} | shared
        with (
            output_of(command, as_json=shared["as_json"], quiet=shared["quiet"]),
            errors(shared["debug"]),
        ):
            if command != "train":
                _refuse_torchrun(command)
            function(**given)

    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=SHARED[name]
        )
        for name in added
    ]
    kept = [
        p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()
    ]
    with_shared_options.__signature__ = signature.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
    with_shared_options.__annotations__ = hints | {name: SHARED[name] for name in added}
    return with_shared_options


def _refuse_torchrun(command: str) -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ:
        fix = "start it without torchrun; only ehrseq train uses several processes"
        raise EhrseqError("runs in one process", where=f"ehrseq {command}", fix=fix)
