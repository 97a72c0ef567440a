"""Runs `ehrseq` within the test's process, and a task file that most commands accept."""

from functools import cache

from click import Command
from click.testing import CliRunner, Result
from typer.main import get_command

from ehrsequencing.cli.app import app

TASK = "name: t\nindex: {code: A}\noutcome: {death: MEDS_DEATH}\nhorizons: [1y]\n"


def ehrseq(*arguments: object) -> Result:
    """Run a command in this process. The result keeps an exception that a shell would show as a traceback."""
    return CliRunner().invoke(_commands(), [str(argument) for argument in arguments])


@cache
def _commands() -> Command:
    return get_command(app)  # Typer would make all commands again for each call


def refused(*arguments: object) -> str:
    """Run a command that must fail with exit code 2, and return its one line of error."""
    done = ehrseq(*arguments)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    errors = [line for line in done.stderr.strip().splitlines() if line.startswith("ehrseq: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]
