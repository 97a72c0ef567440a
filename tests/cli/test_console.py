"""The terminal: exit codes, lines without control characters, streams of any encoding, and outputs without a name."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from ehrsequencing.api import progress
from ehrsequencing.cli import console
from ehrsequencing.cli.console import output_of, shown
from ehrsequencing.cli.train import kept_epochs
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json_lines
from ehrsequencing.training.loop import Progress
from helpers.command_line import TASK, ehrseq
from helpers.meds import record, write_meds
from helpers.storage import snapshot

MAIN = [sys.executable, "-c", "from ehrsequencing.cli.app import main; main()"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [row for s in range(12) for row in record(s, "0 A, 3 B=2, 9 A" + (", 30 MEDS_DEATH" if s % 3 else ""))]
    return write_meds(tmp_path / "data", rows)


def failing(error: BaseException) -> Result:
    """What a command that raises this error shows."""
    small = typer.Typer()

    @small.command()
    def fail(debug: bool = False) -> None:
        with console.errors(debug):
            raise error

    return CliRunner().invoke(small, [])


@pytest.mark.unexpected
@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (EhrseqError("is wrong", where="x.yaml", fix="fix it"), 2, "ehrseq: x.yaml: is wrong (fix it)"),
        (PermissionError(13, "Permission denied", "/a/b"), 2, "ehrseq: /a/b: Permission denied"),
        (TypeError("patient 4711 born 1950"), 3, "ehrseq: unexpected TypeError in "),
        (RecursionError("4711"), 3, "ehrseq: unexpected RecursionError"),
        (MemoryError(), 3, "ehrseq: unexpected MemoryError"),
        (OSError(28, "No space left on device"), 2, "ehrseq: the output cannot be written: No space left on device"),
        (KeyboardInterrupt(), 130, "ehrseq: interrupted"),
    ],
)
def test_every_error_is_one_line_with_its_own_exit_code(error: BaseException, code: int, line: str) -> None:
    done = failing(error)
    assert done.exit_code == code
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(line)
    assert "4711" not in done.stderr


@pytest.mark.unexpected
def test_an_unexpected_error_of_a_command_is_3_and_debug_shows_the_traceback(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("4711")

    monkeypatch.setattr("ehrsequencing.api.records.check_data", crash)
    done = ehrseq("check", data)
    assert done.exit_code == 3
    assert done.stderr.splitlines() == [
        "ehrseq: unexpected ZeroDivisionError in records.py, line "
        f"{done.stderr.split('line ')[1].split(' ')[0]} (run again with --debug; please report it)"
    ]
    done = ehrseq("check", data, "--debug")
    assert done.exit_code == 3
    assert "Traceback" in done.stderr


# A command that prints what many terminals cannot show, run as `ehrseq` is run; Typer alone is quick to import.
PRINTS = """
import typer
from ehrsequencing.cli import console
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
def show() -> None:
    with console.errors(False):
        print("Fälle – ± 東")
        console.say("Fälle – ± 東")
        raise console.EhrseqError("Fälle – ± 東 \\udcff")
console.run(app)
"""


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, {}],
    ids=["ascii", "latin-1", "C", "UTF-8"],
)
def test_a_terminal_of_any_encoding_shows_what_it_can(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], capture_output=True, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.count(b"\n") == 2
    assert re.match(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ERROR ehrseq: F", done.stderr)  # no terminal
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_is_a_signal_and_no_leak() -> None:
    """`ehrseq … | head`: Typer would exit with 1, which says "leak"."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*MAIN, "--help"], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr


def test_control_characters_never_reach_the_terminal(task: Path, tmp_path: Path) -> None:
    rows = [row for s in range(20) for row in record(s, "0 A, 3 DIS\x1b[2JCHAR\x1b]0;title\x07\u202eGE")]
    data = write_meds(tmp_path / "escapes", rows)
    task.write_text(TASK.replace("MEDS_DEATH", "DISCHARGED"))
    done = ehrseq("prepare", data, "--task", task, "--out", tmp_path / "set")
    assert done.exit_code == 2
    assert "DISCHARGE?" in done.stderr or "DISCHARGE)" in done.stderr  # what comes close is suggested
    assert not {"\x1b", "\x07", "\u202e"} & set(done.output)


def test_plain_text_keeps_letters_of_every_script() -> None:
    assert console.plain("\x1b[1;31mÄ 東 א\x1b[0m\n\tb\x00\x9b\r") == "Ä 東 א\n\tb"


@pytest.mark.parametrize("out", [".", "/", "task.yaml", "task.yaml/set", "x" * 300])
@pytest.mark.parametrize("command", ["prepare", "simulate", "demo", "import synthea", "train", "predict", "check"])
def test_an_output_that_cannot_be_made_is_one_line_and_touches_nothing(
    data: Path,
    task: Path,
    tmp_path: Path,
    sim_prepared: Path,
    sim_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    out: str,
) -> None:
    synthea = tmp_path / "synthea"
    synthea.mkdir()
    arguments: dict[str, list[object]] = {
        "prepare": ["prepare", data, "--task", task, "--out", out],
        "simulate": ["simulate", out, "--subjects", 20],
        "demo": ["demo", "--out", out],
        "import synthea": ["import", "synthea", synthea, out],
        "train": ["train", sim_prepared, "--out", out],
        "predict": ["predict", sim_run, data, "--out", out],
        "check": ["check", data, "--out", out],
    }
    if command in ("predict", "check") and out == "task.yaml":
        pytest.skip("a file may be replaced by a file")
    monkeypatch.chdir(tmp_path)
    before = snapshot(tmp_path)
    done = ehrseq(*arguments[command])
    assert done.exit_code == 2, done.output
    assert len([line for line in done.stderr.splitlines() if line.startswith("ehrseq: ")]) == 1
    assert snapshot(tmp_path) == before


# ---- progress: plain lines in a pipe ---------------------------------------------------------------------------------


def test_a_pipe_gets_a_plain_line_in_time_even_in_a_long_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress.LINE_EVERY <= 20
    monkeypatch.setattr(progress, "LINE_EVERY", 0.1)
    with progress.bar("fitting") as tick:
        time.sleep(0.15)
        tick(1, 4, "fitting \x1b[31mtrees")
        time.sleep(0.2)
        tick(2, 4)
        time.sleep(0.25)
    told = capsys.readouterr()
    first, *_, last = told.err.splitlines()
    assert re.fullmatch(r"fitting: \d s so far", first)
    assert "fitting trees: 25%, 0 s so far" in told.err.splitlines()  # no piece is timed yet
    assert re.fullmatch(r"fitting trees: 50%, \d s so far, about \d+ s left", last)
    assert told.out == ""
    with progress.training_bar() as show:  # a GPU's losses come back some steps later
        show(Progress(1, 3, 1, 2, loss=None, tuning_nll=None))
        time.sleep(0.15)
    assert capsys.readouterr().err.startswith("epoch 1 of 3: ")


def test_time_left_is_that_of_counted_pieces_not_of_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees take 1,000 s before a network's first step; then a step takes 2 s."""
    clock = iter([0.0, 1000.0, 1000.0, 1020.0, 1020.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    work = progress.Work("training", time.monotonic(), may_end_early=True)
    work.tick(1, 101)
    assert work.line() == "training: 1%, 16 min 40 s so far"
    work.tick(11, 101)
    assert work.line() == "training: 11%, 17 min 0 s so far, at most about 3 min 0 s left"


def test_a_command_that_prints_json_or_nothing_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with output_of("x", as_json=False, quiet=True), progress.bar("fitting", show=shown()):
        time.sleep(0.15)
    assert capsys.readouterr() == ("", "")


def test_the_kept_epoch_is_that_of_the_lowest_tuning_nll(sim_run: Path) -> None:
    history = read_json_lines(sim_run / "history.jsonl")
    best = min(history, key=lambda row: row["tuning_nll"])
    (line,), facts = kept_epochs(sim_run)
    assert f"kept epoch {best['epoch']} of {len(history)}, whose tuning NLL is lowest" in line
    assert facts["kept"] == [{"epoch": best["epoch"], "epochs": len(history), "tuning_nll": best["tuning_nll"]}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["check", "no-such-folder"]], ids=["help", "check"])
def test_a_command_that_can_print_nothing_ends_with_2(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        assert subprocess.run([*MAIN, *arguments], stdout=full, stderr=full).returncode == 2


# ---- logs ------------------------------------------------------------------------------------------------------------


STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"


def test_a_log_keeps_what_quiet_drops_and_is_added_to(data: Path, tmp_path: Path) -> None:
    log, task = tmp_path / "night.log", tmp_path / "task.yaml"
    task.write_text(TASK)
    done = ehrseq("check", data, "--task", task, "--log", log, "--quiet")
    assert (done.exit_code, done.stdout) == (0, "")
    first = log.read_text().splitlines()
    assert all(re.match(f"{STAMP} (INFO|WARNING) ", line) for line in first)
    assert "next  ehrseq prepare" in first[-1]
    assert ehrseq("check", tmp_path / "nowhere", "--log", log).exit_code == 2
    lines = log.read_text().splitlines()
    assert lines[: len(first)] == first
    assert re.fullmatch(f"{STAMP} ERROR ehrseq: .*nowhere: is not a folder.*", lines[-1])
    assert progress._logs == []


def test_a_log_is_no_file_of_somebody_else(data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("years of work")
    done = ehrseq("check", data, "--log", mine)
    assert done.exit_code == 2
    assert "notes.txt: is there already, and no log" in done.stderr
    assert mine.read_text() == "years of work"
    assert ehrseq("check", data, "--log", tmp_path / "no" / "folder.log").exit_code == 2


def test_lines_on_stderr_have_time_and_level_where_it_is_no_terminal(data: Path) -> None:
    assert not re.search(STAMP, ehrseq("codes", data, "ZZZ").stdout)
    failed = subprocess.run([*MAIN, "codes", "nowhere"], capture_output=True, text=True, check=False)
    assert re.fullmatch(f"{STAMP} ERROR ehrseq: nowhere: is not a folder .*\n", failed.stderr)
