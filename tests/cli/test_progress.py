"""Progress: plain lines in a pipe, and in a terminal a bar that lines never touch."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ehrsequencing.api import progress
from ehrsequencing.cli.console import bar, output_of
from ehrsequencing.cli.train import kept_epochs
from ehrsequencing.core.files import read_json_lines

# Training of three epochs by a loop that does nothing; SAY prints a line while the bar is there.
TRAINS = """
import sys, time
from ehrsequencing.api import progress
from ehrsequencing.cli import console
from types import SimpleNamespace
progress.BAR_AFTER = 0.0
say = {say}
with progress.training_bar() as show:
    time.sleep(0.3)
    for epoch in (1, 2, 3):
        facts = dict(epoch=epoch, epochs=3, steps=2, subjects_per_second=9.0, member=1, members=1)
        for step in (1, 2):
            show(SimpleNamespace(**facts, step=step, loss=1.0, tuning_nll=None, ended=False, best=False))
            time.sleep(0.05)
        show(SimpleNamespace(**facts, step=2, loss=1.0, tuning_nll=2.0, ended=True, best=epoch == 1))
        say(f"note {{epoch}}")
        time.sleep(0.05)
console.say("done")
"""
THROUGH_THE_BAR, PAST_IT = "console.note", "lambda text: (sys.__stderr__.write(text), sys.__stderr__.flush())"


def in_a_terminal(script: str, **environment: str) -> str:
    """All that a process writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    given = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", **environment}
    process = subprocess.Popen([sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env=given)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0, written
    os.close(ours)
    return written.decode()


def screen(written: str) -> list[str]:
    """What stays in the terminal: a cursor that prints, returns, goes up and clears lines."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", written):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token.endswith("A") and token.startswith("\x1b"):
            row = max(0, row - int(token[2:-1] or 1))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif not token.startswith("\x1b"):
            lines[row] = f"{lines[row]:<{column}}"[:column] + token + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]


def expected() -> list[str]:
    lines = []
    for epoch in (1, 2, 3):
        best = ", best so far" if epoch == 1 else ""
        lines += [f"epoch {epoch} of 3: loss 1.0000, tuning NLL 2.0000{best}", f"note {epoch}"]
    return [*lines, "done"]


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}], ids=["colours", "NO_COLOR"])
def test_lines_stand_above_the_bar_and_the_bar_is_gone_at_the_end(environment: dict[str, str]) -> None:
    written = in_a_terminal(TRAINS.format(say=THROUGH_THE_BAR), **environment)
    assert screen(written) == expected()
    assert "━" in written  # there was a bar
    assert bool(re.search(r"\x1b\[(3|4|9)[0-7]", written)) != ("NO_COLOR" in environment)


def test_the_screen_tells_a_line_that_is_printed_past_the_bar() -> None:
    assert screen(in_a_terminal(TRAINS.format(say=PAST_IT))) != expected()


def test_a_pipe_gets_a_plain_line_in_time_even_in_a_long_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress.LINE_EVERY <= 20
    monkeypatch.setattr(progress, "LINE_EVERY", 0.1)
    with progress.bar("fitting") as tick:
        tick(1, 4, "fitting \x1b[31mtrees")
        time.sleep(0.35)
    told = capsys.readouterr()
    assert len(told.err.splitlines()) >= 2
    assert all(
        re.fullmatch(r"fitting trees: 25%, \d s so far, about \d+ s left", line) for line in told.err.splitlines()
    )
    assert told.out == ""
    with progress.stages("evaluating") as stage:
        stage("risk curves")
        time.sleep(0.15)
    assert capsys.readouterr().err.startswith("risk curves: ")
    with output_of("x", as_json=False, quiet=True), bar("fitting") as tick:
        time.sleep(0.15)
    assert capsys.readouterr() == ("", "")


def test_the_kept_epoch_is_that_of_the_lowest_tuning_nll(sim_run: Path) -> None:
    history = read_json_lines(sim_run / "history.jsonl")
    best = min(history, key=lambda row: row["tuning_nll"])
    (line,), facts = kept_epochs(sim_run)
    assert f"kept epoch {best['epoch']} of {len(history)}, whose tuning NLL is lowest" in line
    assert facts["kept"] == [{"epoch": best["epoch"], "epochs": len(history), "tuning_nll": best["tuning_nll"]}]
