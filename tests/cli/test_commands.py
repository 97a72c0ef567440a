"""The command line as a user meets it: quick help, one-line errors, nothing half-written, the whole way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ehrsequencing.api import study as demo
from ehrsequencing.core.errors import EhrseqError
from helpers.command_line import ehrseq, refused
from helpers.meds import record, write_meds


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [row for s in range(40) for row in record(s, "0 A, 3 B=2, 9 A, 20 C" + (", 30 MEDS_DEATH" if s % 3 else ""))]
    return write_meds(tmp_path / "data", rows)


def test_the_commands_are_declared_without_the_heavy_imports() -> None:
    heavy = "[m for m in ('torch', 'pandas', 'numpy', 'pyarrow', 'sklearn', 'pydantic', 'rich') if m in sys.modules]"
    command = [sys.executable, "-c", f"import sys, ehrsequencing.cli.app; print({heavy})"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_reading_records_needs_no_torch_and_no_scikit_learn(data: Path, task: Path) -> None:
    run = "import sys; from typer.testing import CliRunner; from ehrsequencing.cli.app import app"
    given = [["check", str(data), "--task", str(task)], ["codes", str(data), "A"]]
    lines = f"{run}; codes = [CliRunner().invoke(app, words).exit_code for words in {given}]"
    heavy = "[m for m in ('torch', 'sklearn', 'scipy') if m in sys.modules]"
    command = [sys.executable, "-c", f"{lines}; print(codes, {heavy})"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[0, 0] []\n"


def test_a_run_without_a_network_needs_no_torch(sim_data: Path, tmp_path: Path) -> None:
    out, few = tmp_path / "study", ["evaluation.bootstrap=0"]
    given = [
        ["run", str(sim_data), "--task", str(sim_data / "task.yaml"), "--out", str(out), "--quick", *few],
        ["evaluate", str(out / "run"), "evaluation.bootstrap=0"],
        ["predict", str(out / "run"), str(sim_data), "--out", str(tmp_path / "list.csv")],
    ]
    run = "import sys; from typer.testing import CliRunner; from ehrsequencing.cli.app import app"
    lines = f"{run}; codes = [CliRunner().invoke(app, words).exit_code for words in {given}]"
    command = [sys.executable, "-c", f"{lines}; print(codes, 'torch' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[0, 0, 0] False\n"


def test_one_command_goes_the_whole_way_and_then_on(sim_data: Path, tmp_path: Path) -> None:
    tiny = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "evaluation.bootstrap=0")
    few = (
        "evaluation.baselines=none",
        "training.distillation=0",
        "training.blend=false",
    )
    words = ("run", sim_data, "--task", sim_data / "task.yaml", "--out", tmp_path / "study", *tiny, *few)
    first, again = ehrseq(*words), ehrseq(*words, "--json")
    assert first.exit_code == again.exit_code == 0, first.output
    assert [line[:3] for line in first.stdout.splitlines() if line[1:3] == "/5"] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert json.loads(again.stdout)["wrote"]["report"] == str(tmp_path / "study" / "run" / "report.html")
    run = tmp_path / "study" / "run"
    told = ehrseq("compare", run, run, "--bootstrap", 20)
    assert told.exit_code == 0, told.output
    assert "minus each other run" in told.stdout
    assert "two runs or more" in refused("compare", run)
    assert "--overwrite would do nothing without --out" in refused("check", sim_data, "--overwrite")
    assert "--task would do nothing with --suggest" in refused("check", sim_data, "--suggest", "--task", "task.yaml")
    assert "--megabytes would do nothing with" in refused("explore", run, sim_data, "--no-what-if", "--megabytes", 3)
    assert "needs one task" in refused("run", sim_data, "--out", tmp_path / "other")


TINY = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "training.distillation=0")
STAGES = ("0/5", "1/5", "2/5", "3/5", "4/5", "5/5")


@pytest.mark.slow
def test_a_demo_goes_on_where_it_stopped_and_a_second_call_does_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("training.blend=false", "evaluation.bootstrap=5", "evaluation.baselines=none")
    monkeypatch.setattr(demo, "SETTINGS", (*TINY, *few))
    out, lines = tmp_path / "demo", list[str]()

    def stop(line: str) -> None:
        if line.startswith("4/5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(out, subjects=300, seed=0, say=stop)
    first = demo.run_demo(out, subjects=300, seed=0, say=lines.append)
    assert [line[:3] for line in lines if line.startswith(STAGES)] == ["4/5", "5/5"]
    assert sorted(path.name for path in out.iterdir()) == ["data", "explorer.html", "prepared", "run"]
    lines.clear()
    assert demo.run_demo(out, subjects=300, seed=0, say=lines.append) == first
    assert not any(line.startswith(STAGES) for line in lines)
    with pytest.raises(EhrseqError, match="something else"):
        demo.run_demo(out, subjects=300, seed=1, say=lines.append)
