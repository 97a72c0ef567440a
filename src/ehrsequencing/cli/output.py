"""What a command prints: text for people on stdout, or with `--json` one JSON object; notes and warnings on stderr.

`conventions.py` opens an `Output` around every command. Inside, `say` prints results, `note` and `warn` print remarks,
and `finish` names what the command wrote and the next command to type.
"""

import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

# CSI, OSC, the others
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


@dataclass
class Output:
    """What one command has told so far.

    Attributes:
        command: As people type it, without `ehrseq`.
        json: Print one JSON object at the end, and nothing else on stdout.
        quiet: Print warnings and errors only.
        wrote: What it is → path.
        next: The command to type next.
        result: The command's own facts.
        notes: Remarks.
        warnings: Remarks that `quiet` does not silence.
        error: What went wrong, where, and how to fix it.
    """

    command: str = ""
    json: bool = False
    quiet: bool = False
    wrote: dict[str, str] = field(default_factory=dict)
    next: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: dict[str, str] | None = None

    def as_json(self, exit_code: int) -> str:
        """The JSON object, on one line."""
        facts = {
            "command": self.command,
            "exit_code": exit_code,
            "error": self.error,
            "wrote": self.wrote,
            "next": self.next,
            "notes": self.notes,
            "warnings": self.warnings,
            "result": self.result,
        }
        return json.dumps(_finite(facts), default=str)


def _finite(value: Any) -> Any:
    """JSON without NaN and infinity, which many readers refuse: null instead."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


_open: list[Output] = [Output()]  # the last one is that of the command that runs
_bars: list[
    Callable[[str], None]
] = []  # prints a line above the progress bar that the terminal shows


def current() -> Output:
    """The output of the command that runs."""
    return _open[-1]


@contextmanager
def output_of(command: str, *, as_json: bool, quiet: bool) -> Iterator[Output]:
    """Collect what a command tells; with `as_json`, print it as one JSON object at the end, also after an error."""
    output = Output(command, json=as_json, quiet=quiet)
    _open.append(output)
    code: int | None = 0
    try:
        yield output
    except BaseException as stop:
        code = stop.exit_code if isinstance(stop, typer.Exit) else None
        raise
    finally:
        _open.pop()
        if output.json and code is not None:
            typer.echo(output.as_json(code))


@contextmanager
def above_bar(show: Callable[[str], None]) -> Iterator[None]:
    """Print lines with `show` while a progress bar occupies the last line of the terminal."""
    _bars.append(show)
    try:
        yield
    finally:
        _bars.remove(show)


def plain(text: str) -> str:
    r"""Text without escape sequences, control characters and invisible ones, which codes and file names may hold.

    >>> plain("a\x1b[31mb\x07c")
    'abc'
    """
    return "".join(
        c
        for c in _ESCAPES.sub("", text)
        if c.isprintable() or c in "\n\t" or "\ud800" <= c <= "\udfff"
    )


def say(text: str, *, err: bool = False) -> None:
    """Print a line without anything that could change the terminal: a result, or with `err` an error.

    `--quiet` and `--json` drop results. An error always goes to stderr.
    """
    if not err and (current().quiet or current().json):
        return
    if _bars and (err or sys.stdout.isatty()):
        _bars[-1](plain(text))
    else:
        typer.echo(plain(text), err=err)


def note(text: str) -> None:
    """Print a remark on stderr, unless `--quiet`; `--json` keeps it under `notes`."""
    current().notes.append(plain(text))
    if not current().quiet:
        say(text, err=True)


def warn(text: str) -> None:
    """Print a warning on stderr, also with `--quiet`; `--json` keeps it under `warnings`."""
    current().warnings.append(plain(text))
    say(f"warning: {text}", err=True)


def finish(
    *,
    wrote: Mapping[str, Path | None],
    then: Sequence[object] | str | None,
    result: Mapping[str, Any] | None = None,
) -> None:
    """End a command: name what it wrote and the next command to type.

    Args:
        wrote: What it is → path; a path that is None was not written.
        then: The words of the next command, after `ehrseq`, or another thing to do as a sentence; None where an error
            follows.
        result: What `--json` tells under `result`.
    """
    output, lines = current(), {what: str(path) for what, path in wrote.items() if path is not None}
    output.wrote |= lines
    output.result |= dict(result or {})
    if then is not None:
        command = (
            then
            if isinstance(then, str)
            else " ".join(["ehrseq", *(shlex.quote(str(word)) for word in then)])
        )
        output.next = lines["next"] = plain(command)
    width = max(map(len, lines), default=0)
    for what, text in lines.items():
        say(f"{what:<{width}}  {text}")
