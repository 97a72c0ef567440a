"""Output of every command: plain lines, progress bars, and errors as one line with an exit code.

Exit codes: 0 done, 1 a leak found (`ehrseq audit` alone), 2 a user's error, 3 an unexpected one, 128 + n a signal.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ehrsequencing.errors import EhrseqError

if TYPE_CHECKING:
    from ehrsequencing.training.loop import Progress

USER_ERROR, UNEXPECTED, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")  # CSI, OSC, the others


def plain(text: str) -> str:
    r"""Text without escape sequences, control characters and invisible ones, which codes and file names may hold.

    >>> plain("a\x1b[31mb\x07c")
    'abc'
    """
    return "".join(c for c in _ESCAPES.sub("", text) if c.isprintable() or c in "\n\t" or "\ud800" <= c <= "\udfff")


def say(text: str, *, err: bool = False) -> None:
    """Print a line without anything that could change the terminal."""
    typer.echo(plain(text), err=err)


@contextmanager
def errors(debug: bool) -> Iterator[None]:
    """Turn an error into one line on stderr and an exit code; with `debug`, print the traceback instead."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):  # BrokenPipeError: for `run`
        raise
    except KeyboardInterrupt as error:
        say("ehrseq: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        line, code = _line_and_code(error)
        say(traceback.format_exc() if debug else line, err=True)
        raise typer.Exit(code) from error


def _line_and_code(error: Exception) -> tuple[str, int]:
    """One line for an error, and its exit code. The text of an unexpected error is left out: it may hold data."""
    code, reason = USER_ERROR, error.strerror if isinstance(error, OSError) else None
    if isinstance(error, EhrseqError):
        text = str(error)
    elif isinstance(error, OSError) and error.filename is not None and reason:
        text = f"{os.fsdecode(error.filename)}: {reason}"
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "ehrsequencing" in frame.filename]
        where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        name = type(error).__name__ + (f": {reason}" if reason else "")
        text, code = f"unexpected {name}{where} (run again with --debug; please report it)", UNEXPECTED
    return f"ehrseq: {' '.join(text.split())}", code


def run(app: typer.Typer) -> None:
    """Run the command line so that every character can be printed, and only a leak has exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SystemExit as stop:
        if stop.code != 1 or isinstance(stop.__context__, typer.Exit):
            raise
        # Typer also exits with 1 for a closed output pipe and for a prompt without an answer.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise SystemExit(UNEXPECTED) from stop
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that Python's last flush of stdout raises no error
        raise SystemExit(BROKEN_PIPE) from stop
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        line, code = _line_and_code(error)
        say(line, err=True)
        raise SystemExit(code) from error


@contextmanager
def bar(label: str) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr that appears when the work takes longer than two seconds."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    progress, started = Progress(*columns, console=Console(stderr=True), transient=True), time.monotonic()
    task = progress.add_task(label, total=None)

    def tick(done: int, total: int, text: str = label) -> None:
        if not progress.live.is_started and time.monotonic() - started > 2:
            progress.start()
        progress.update(task, completed=done, total=total, description=text)

    try:
        yield tick
    finally:
        progress.stop() if progress.live.is_started else None


@contextmanager
def stages(label: str) -> Iterator[Callable[[str], None]]:
    """A progress bar for work that only names its stages."""
    done: list[str] = []
    with bar(label) as tick:

        def stage(name: str) -> None:
            tick(len(done), max(len(done) + 1, 6), name)
            done.append(name)

        yield stage


@contextmanager
def training_bar(label: str = "training", tuning: str = "tuning NLL") -> Iterator[Callable[["Progress"], None]]:
    """The progress bar of training, with loss, tuning loss and subjects per second; prints a line per epoch."""
    with bar(label) as tick:
        before: list[Progress] = []

        def show(p: "Progress") -> None:
            nll = "" if p.tuning_nll is None else f"  {tuning} {p.tuning_nll:.4f}"
            who = f"member {p.member} of {p.members}  " if p.members > 1 else ""
            text = f"{label}  {who}loss {p.loss:.4f}{nll}  {p.subjects_per_second:.0f} subjects/s"
            epoch = (p.member - 1) * p.epochs + p.epoch
            tick((epoch - 1) * p.steps + p.step, p.members * p.epochs * p.steps, text)
            if before and before[0].epoch != p.epoch and p.tuning_nll is not None:
                last = before[0]
                say(
                    f"{who}epoch {last.epoch:3d}  loss {last.loss:.4f}  {tuning} {p.tuning_nll:.4f}  "
                    f"{last.subjects_per_second:.0f} subjects/s",
                    err=True,
                )
            before[:] = [p]

        yield show
