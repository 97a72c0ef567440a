"""Runs `ehrseq` within the test's process, and a task file that most commands accept."""

from click.testing import Result
from typer.testing import CliRunner

from ehrsequencing.cli.app import app

TASK = "name: t\nindex: {code: A}\noutcome: {death: MEDS_DEATH}\nhorizons: [1y]\n"


def ehrseq(*arguments: object) -> Result:
    """Run a command in this process. The result keeps an exception that a shell would show as a traceback."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """Run a command that must fail with exit code 2, and return its one line of error."""
    done = ehrseq(*arguments)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    errors = [line for line in done.stderr.strip().splitlines() if line.startswith("ehrseq: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]
