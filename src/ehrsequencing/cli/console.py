"""Errors of every command as one line with an exit code; and, for the commands, what they print and their progress.

Exit codes: 0 done, 1 a leak found (`ehrseq audit` alone), 2 a user's error, 3 an unexpected one, 128 + n a signal.
"""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from ehrsequencing.cli.output import Output, current, finish, note, plain, say, warn
from ehrsequencing.cli.progress import bar, stages, training_bar
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.signals import number_of, raise_at_signals

__all__ = [
    "BY_SIGNAL",
    "as_parts",
    "bar",
    "current",
    "errors",
    "finish",
    "note",
    "plain",
    "run",
    "say",
    "stages",
    "training_bar",
    "unfinished",
    "warn",
]
USER_ERROR, UNEXPECTED, BY_SIGNAL, BROKEN_PIPE = 2, 3, 128, 141
_UsageError: type[Any] = typer.BadParameter.__mro__[1]  # Typer has no public name for it


@contextmanager
def errors(debug: bool) -> Iterator[None]:
    """Turn an error into one line on stderr and an exit code; with `debug`, print the traceback instead."""
    try:
        yield
    except (
        typer.Exit,
        typer.Abort,
        typer.BadParameter,
        BrokenPipeError,
    ):  # BrokenPipeError: for `run`
        raise
    except KeyboardInterrupt as error:
        number = number_of(error)
        what = (
            "interrupted"
            if number == signal.SIGINT
            else f"stopped by {signal.Signals(number).name}"
        )
        current().error = {"what": what, "where": "", "fix": ""}
        say(f"ehrseq: {what}", err=True)
        raise typer.Exit(BY_SIGNAL + number) from error
    except Exception as error:
        line, code = _line_and_code(error)
        current().error = as_parts(error)[0]
        say(traceback.format_exc() if debug else line, err=True)
        raise typer.Exit(code) from error


@contextmanager
def unfinished(out: Path) -> Iterator[None]:
    """Tell how to go on with what trains into a folder, when it is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"the run in {out} is unfinished: repeat the command with --resume to continue")
        raise


def _line_and_code(error: Exception) -> tuple[str, int]:
    """One line for an error, and its exit code. The text of an unexpected error is left out: it may hold data."""
    code, reason = USER_ERROR, error.strerror if isinstance(error, OSError) else None
    if isinstance(error, EhrseqError):
        text = str(error)
    elif isinstance(error, OSError) and error.filename is not None and reason:
        text = f"{os.fsdecode(error.filename)}: {reason}"
    else:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "ehrsequencing" in frame.filename
        ]
        where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        name = type(error).__name__ + (f": {reason}" if reason else "")
        text, code = (
            f"unexpected {name}{where} (run again with --debug; please report it)",
            UNEXPECTED,
        )
    return f"ehrseq: {' '.join(text.split())}", code


def as_parts(error: Exception) -> tuple[dict[str, str], int]:
    """What, where and how to fix it, for `--json`; and the exit code."""
    line, code = _line_and_code(error)
    if isinstance(error, EhrseqError):
        parts = {"what": error.what, "where": error.where, "fix": error.fix}
    else:
        parts = {"what": line.removeprefix("ehrseq: "), "where": "", "fix": ""}
    return {name: " ".join(plain(text).split()) for name, text in parts.items()}, code


def _name_setting(option: str) -> None:
    """Answer an unknown option that has the name of a setting."""
    from ehrsequencing.config.files import setting_names
    from ehrsequencing.config.study import StudyConfig

    wanted = option.strip("-").replace("-", "_")
    near = [name for name in setting_names(StudyConfig) if name.rpartition(".")[2] == wanted]
    if near:
        say(
            f"It is a setting: write {' or '.join(f'{name}=…' for name in near)}, without dashes.",
            err=True,
        )


def run(app: typer.Typer) -> None:
    """Run the command line so that every character can be printed, and only a leak has exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    raise_at_signals()
    try:
        app(prog_name="ehrseq")
    except SystemExit as stop:
        if "--json" in sys.argv and isinstance(
            stop.__context__, _UsageError
        ):  # no command has begun
            parts = {
                "what": stop.__context__.format_message(),
                "where": "",
                "fix": "see ehrseq --help",
            }
            typer.echo(Output(error=parts).as_json(USER_ERROR))
        if asked := getattr(stop.__context__, "option_name", ""):
            _name_setting(str(asked))
        if stop.code != 1 or isinstance(stop.__context__, typer.Exit):
            raise
        if isinstance(
            interrupted := getattr(stop.__context__, "__cause__", None), KeyboardInterrupt
        ):
            raise SystemExit(BY_SIGNAL + number_of(interrupted)) from stop  # before a command began
        # Typer also exits with 1 for a closed output pipe and for a prompt without an answer.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise SystemExit(UNEXPECTED) from stop
        # so that Python's last flush of stdout raises no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(BROKEN_PIPE) from stop
    except KeyboardInterrupt as error:
        raise SystemExit(BY_SIGNAL + number_of(error)) from None
    except Exception as error:
        line, code = _line_and_code(error)
        say(line, err=True)
        raise SystemExit(code) from error
