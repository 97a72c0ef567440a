"""The terminal: exit codes, lines without control characters, streams of any encoding, and outputs without a name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from ehrsequencing.cli import console
from ehrsequencing.core.errors import EhrseqError
from helpers.command_line import TASK, ehrseq
from helpers.meds import record, write_meds

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
    assert done.stderr.startswith(b"ehrseq: F")
    assert done.stderr.count(b"\n") == 1


def test_a_file_name_that_is_no_text_is_one_line_of_the_real_command(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + "/Fälle–東".encode() + b"\xff\xfe")
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([*MAIN, "check", odd], capture_output=True, env=environment, check=False)
    assert done.returncode == 2
    assert b"is not a folder" in done.stderr
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
    rows = [row for s in range(12) for row in record(s, "0 A, 3 DIS\x1b[2JCHAR\x1b]0;title\x07\u202eGE")]
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
    data: Path, task: Path, tmp_path: Path, sim_prepared: Path, sim_run: Path, monkeypatch: pytest.MonkeyPatch,
    command: str, out: str,
) -> None:  # fmt: skip
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


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}
