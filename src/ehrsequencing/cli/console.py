"""What commands print: text for people, or with `--json` one JSON object; and errors as one line with an exit code.

`CommandLine.command` opens an `Output` around every command, and gives it `--quiet`, `--json`, `--debug`, an example.
Inside, `say` prints results, `note` and `warn` print remarks, `shown` tells whether progress is, and `finish` names
what was written and the next command to type.

Exit codes: 0 done, 1 a leak found (`ehrseq audit` alone), 2 a user's error, 3 an unexpected one, 4 refused
because of the data (`drift`, `predict --strict`), 128 + n a signal.
"""

import errno
import functools
import inspect
import os
import shlex
import signal
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ehrsequencing.api import progress
from ehrsequencing.api.progress import logged, plain, print_line
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.options import OPTIONS, SHARED, Option
from ehrsequencing.core.signals import number_of, raise_at_signals

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota or size limit of a file
USER_ERROR, UNEXPECTED, REFUSED, BY_SIGNAL, BROKEN_PIPE = 2, 3, 4, 128, 141
UsageError: type[Any] = typer.BadParameter.__mro__[1]  # Typer has no public name for it


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
        from pydantic_core import to_json

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
        # many readers refuse NaN and infinity
        return to_json(facts, inf_nan_mode="null", fallback=str).decode()


outputs: list[Output] = [Output()]  # the last one is that of the command that runs


@contextmanager
def output_of(command: str, *, as_json: bool, quiet: bool) -> Iterator[Output]:
    """Collect what a command tells; with `as_json`, print it as one JSON object at the end, also after an error."""
    output = Output(command, json=as_json, quiet=quiet)
    outputs.append(output)
    code: int | None = 0
    try:
        yield output
    except BaseException as stop:
        code = stop.exit_code if isinstance(stop, typer.Exit) else None
        raise
    finally:
        outputs.pop()
        if output.json and code is not None:
            typer.echo(output.as_json(code))


def say(text: str, *, err: bool = False, level: str = "INFO") -> None:
    """Print a result, or with `err` an error. `--quiet` and `--json` drop results; an error always goes to stderr."""
    show = err or not (outputs[-1].quiet or outputs[-1].json)
    print_line(text, err=err, level=level, show=show)


def note(text: str) -> None:
    """Print a remark on stderr, unless `--quiet`; `--json` keeps it under `notes`."""
    outputs[-1].notes.append(plain(text))
    print_line(text, show=not outputs[-1].quiet)


def warn(text: str) -> None:
    """Print a warning on stderr, also with `--quiet`; `--json` keeps it under `warnings`."""
    outputs[-1].warnings.append(plain(text))
    say(f"warning: {text}", err=True, level="WARNING")


def remark(text: str) -> None:
    """Print what a function of the package remarks: a warning where it begins so, else a note."""
    if text.startswith("warning: "):
        warn(text.removeprefix("warning: "))
    else:
        note(text)


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
    output, lines = (
        outputs[-1],
        {what: str(path) for what, path in wrote.items() if path is not None},
    )
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


def shown() -> bool:
    """Whether progress is shown: not with `--quiet`."""
    return not outputs[-1].quiet


@contextmanager
def errors(debug: bool) -> Iterator[None]:
    """Turn an error into one line on stderr and an exit code; with `debug`, print the traceback instead."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):  # the last for `run`
        raise
    except KeyboardInterrupt as error:
        number = number_of(error)
        what = (
            "interrupted"
            if number == signal.SIGINT
            else f"stopped by {signal.Signals(number).name}"
        )
        outputs[-1].error = {"what": what, "where": "", "fix": ""}
        _say_last(f"ehrseq: {what}")
        raise typer.Exit(BY_SIGNAL + number) from error
    except Exception as error:
        line, code = _line_and_code(error)
        parts = {"what": line.removeprefix("ehrseq: "), "where": "", "fix": ""}
        if isinstance(error, EhrseqError):
            parts = {"what": error.what, "where": error.where, "fix": error.fix}
        outputs[-1].error = {name: " ".join(plain(text).split()) for name, text in parts.items()}
        _say_last(traceback.format_exc() if debug else line)
        raise typer.Exit(code) from error


@contextmanager
def unfinished(out: Path) -> Iterator[None]:
    """Tell how to go on with what trains into a folder, when it is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"the run in {out} is unfinished: repeat the command with --resume to continue")
        raise


def _drop(descriptor: int) -> None:
    """Send what is left for stdout (1) or stderr (2) nowhere, so that Python's last flush raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _say_last(line: str) -> None:
    """Print an error; where stderr takes it no more, the exit code alone says it."""
    try:
        say(line, err=True, level="ERROR")
    except OSError:
        _drop(2)


def _line_and_code(error: Exception) -> tuple[str, int]:
    """One line for an error, and its exit code. The text of an unexpected error is left out: it may hold data."""
    code, reason = USER_ERROR, error.strerror if isinstance(error, OSError) else None
    if isinstance(error, EhrseqError):
        text = str(error)
    elif isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
        text = f"the output cannot be written: {reason}"
        try:
            sys.stdout.flush()
        except OSError:
            _drop(1)
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


# ---- the command line ------------------------------------------------------------

Function = TypeVar("Function", bound=Callable[..., Any])


def _show_everything(ctx: typer.Context, wanted: bool) -> None:
    """Print the help with the options that it hides."""
    if wanted:
        for param in ctx.command.params:
            param.hidden = False  # type: ignore[attr-defined]
        typer.echo(ctx.get_help())
        raise typer.Exit


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
        self,
        name: str | None = None,
        *,
        example: str = "",
        panel: str = "",
        options: Mapping[str, Option] | None = None,
        **settings: Any,
    ) -> Callable[[Function], Function]:
        """Declare a command.

        Args:
            name: What people type; by default the function's name.
            example: A command line to copy, for the end of the help. Without it the docstring has one ("Example: …").
            panel: Where `ehrseq --help` lists it.
            options: Its options; default: those of its name in `core/options.py`, else what the function takes.
            settings: Of `typer.Typer.command`.
        """
        if panel:
            settings["rich_help_panel"] = panel
        if example:
            # \b keeps Click from breaking the line, so that it can be copied
            settings["epilog"] = f"\b\nExample: {example}"

        def declare(function: Function) -> Function:
            path = f"{self.group} {name or function.__name__}".strip()
            taken = OPTIONS.get(path) if options is None else options
            made = with_conventions(function, path, taken)
            super(CommandLine, self).command(name, **settings)(made)
            return function

        return declare


def with_conventions(
    function: Callable[..., Any], command: str, options: Mapping[str, Option] | None
) -> Callable[..., None]:
    """The function with its options and the shared ones, its output collected and its errors as one line."""

    @functools.wraps(function)
    def with_shared_options(
        *,
        quiet: bool,
        as_json: bool,
        debug: bool,
        log: Path | None,
        help_all: object = None,
        **given: Any,
    ) -> None:
        output = output_of(command, as_json=as_json, quiet=quiet)
        lines = nullcontext() if log is None else logged(log)
        with output, errors(debug), lines, errors(debug):
            if (
                command != "train"
                and "RANK" in os.environ
                and os.environ.get("WORLD_SIZE", "1") != "1"
            ):
                raise EhrseqError(
                    "runs in one process",
                    where=f"ehrseq {command}",
                    fix="start it without torchrun; only ehrseq train uses several processes",
                )
            for name, option in (options or {}).items():
                option.check(given[name], "--" + name.replace("_", "-"))
            function(**given)

    if options is None:
        hints = typing.get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters.values()
        parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in own]
    else:
        parameters = [_parameter(name, option) for name, option in options.items()]
    parameters += [_parameter(name, option) for name, option in SHARED.items()]
    signature = inspect.Signature(parameters)
    with_shared_options.__signature__ = signature  # type: ignore[attr-defined]
    with_shared_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_shared_options


def _parameter(name: str, option: Option) -> inspect.Parameter:
    """An argument or option of the command line."""
    settings: dict[str, Any] = {
        "help": option.help,
        "hidden": option.is_rare,
        "min": option.least,
        "max": option.most,
        "envvar": option.variable,
    }
    if name == "help_all":
        settings |= {"is_eager": True, "expose_value": False, "callback": _show_everything}
    if name == "overrides":
        settings |= {"show_default": False}
    if option.is_word:
        made = typer.Argument(**settings)
    else:
        made = typer.Option(*(option.names or ["--" + name.replace("_", "-")]), **settings)
    kind = option.type if option.default is not None else option.type | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default,
        annotation=Annotated[kind, made],
    )


def run(app: typer.Typer) -> None:
    """Run the command line so that every character can be printed, and only a leak has exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    progress.stamps = not sys.stderr.isatty()
    raise_at_signals()
    try:
        app(prog_name="ehrseq")
    except SystemExit as stop:
        if "--json" in sys.argv and isinstance(
            stop.__context__, UsageError
        ):  # no command has begun
            what = stop.__context__.format_message()
            parts = {"what": what, "where": "", "fix": "see ehrseq --help"}
            typer.echo(Output(error=parts).as_json(USER_ERROR))
        if option := str(getattr(stop.__context__, "option_name", "")):
            from ehrsequencing.config import StudyConfig, settings_named
            from ehrsequencing.core.elsewhere import right_way

            near = settings_named(StudyConfig, option.strip("-").replace("-", "_"))
            if way := right_way("options", option):
                say(f"Use {way}.", err=True)
            elif near:
                settings = " or ".join(f"{name}=…" for name in near)
                say(f"It is a setting: write {settings}, without dashes.", err=True)
        if stop.code != 1 or isinstance(stop.__context__, typer.Exit):
            raise
        if isinstance(
            interrupted := getattr(stop.__context__, "__cause__", None), KeyboardInterrupt
        ):
            raise SystemExit(BY_SIGNAL + number_of(interrupted)) from stop  # before a command began
        # Typer also exits with 1 for a closed output pipe and for a prompt without an answer.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise SystemExit(UNEXPECTED) from stop
        _drop(1)
        raise SystemExit(BROKEN_PIPE) from stop
    except KeyboardInterrupt as error:
        raise SystemExit(BY_SIGNAL + number_of(error)) from None
    except Exception as error:
        line, code = _line_and_code(error)
        _say_last(line)
        raise SystemExit(code) from error
