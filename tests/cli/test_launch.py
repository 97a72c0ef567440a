"""`ehrseq train --devices 2`: what is started, what is printed, and how it ends."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ehrsequencing.cli.launch import LAUNCHED, RENDEZVOUS, environments, launches
from ehrsequencing.core.errors import EhrseqError
from helpers.command_line import ehrseq

TINY = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=2", "training.min_steps=4")
MAIN = [sys.executable, "-m", "ehrsequencing"]
PLAIN = {name: value for name, value in os.environ.items() if name not in (*RENDEZVOUS, LAUNCHED)}


def start(*words: object, command: str = "train", **variables: str) -> subprocess.Popen[str]:
    command_line = [*MAIN, command, *map(str, words)]
    return subprocess.Popen(
        command_line, env={**PLAIN, "OMP_NUM_THREADS": "1", **variables}, stdout=-1, stderr=-1, text=True
    )


def test_the_variables_are_those_of_torchrun() -> None:
    first, second = environments(2, 1, {})
    assert [first[name] for name in RENDEZVOUS[:4]] == ["0", "2", "0", "127.0.0.1"]
    assert [second[name] for name in RENDEZVOUS[:3]] == ["1", "2", "1"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    slurm = {"SLURM_NODEID": "1", "MASTER_ADDR": "node7", "MASTER_PORT": "1234"}
    third, fourth = environments(2, 2, slurm)
    assert [third[name] for name in RENDEZVOUS] == ["2", "4", "0", "node7", "1234"]
    assert (fourth["RANK"], fourth["LOCAL_RANK"]) == ("3", "1")
    for missing in ({}, {"NODE_RANK": "0"}, {"MASTER_ADDR": "a"}, {"NODE_RANK": "2", "MASTER_ADDR": "a"}):
        with pytest.raises(EhrseqError, match="NODE_RANK"):
            environments(2, 2, missing)


def test_nothing_is_started_for_one_process_or_under_torchrun() -> None:
    assert not launches(1, 1, {})
    assert launches(2, 1, {})
    assert launches(1, 2, {})
    under = {**dict.fromkeys(RENDEZVOUS, "1"), "WORLD_SIZE": "4"}
    assert not launches(1, 1, under)
    assert not launches(2, 2, under)
    with pytest.raises(EhrseqError, match="asks for 2 processes, but 4 were started"):
        launches(2, 1, under)


def test_more_than_one_machine_without_an_address_is_one_line(sim_prepared: Path, tmp_path: Path) -> None:
    done = ehrseq("train", sim_prepared, "--out", tmp_path / "run", "--nodes", 2)
    assert done.exit_code == 2
    assert "MASTER_ADDR" in done.stderr


@pytest.mark.slow
def test_one_process_does_not_load_what_several_need(sim_prepared: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from ehrsequencing.cli.app import app; "
        f"app(['train', {str(sim_prepared)!r}, '--out', {str(tmp_path / 'run')!r}, *{list(TINY)!r}],"
        " standalone_mode=False); print([m for m in sys.modules if m.endswith('training.group')])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=PLAIN, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.slow
def test_two_processes_are_one_command(sim_prepared: Path, tmp_path: Path) -> None:
    process = start(sim_prepared, "--out", tmp_path / "run", "--devices", 2, "--json", *TINY)
    told, text = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert json.loads(told)["wrote"] == {"run": str(tmp_path / "run")}
    assert text.count("epoch 1 of 2: loss") == text.count("epoch 2 of 2: loss") == 1
    again = start(sim_prepared, "--out", tmp_path / "run", "--devices", 2, *TINY)
    told, text = again.communicate(timeout=300)
    assert (again.returncode, told) == (2, "")
    assert len(text.strip().splitlines()) == 1, text
    assert "is not empty" in text


@pytest.mark.slow
def test_two_machines_predict_as_one_process(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    """Two commands on this machine stand for those of two."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sim_run, sim_data, "--out", tmp_path / "two.parquet", "--nodes", 2]
    both = [
        start(*words, command="predict", NODE_RANK=str(node), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for node in (1, 0)
    ]
    one = start(sim_run, sim_data, "--out", tmp_path / "one.parquet", command="predict")
    for process in (*both, one):
        _, text = process.communicate(timeout=300)
        assert process.returncode == 0, text
    assert (tmp_path / "two.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


@pytest.mark.slow
def test_two_processes_predict_and_evaluate_as_one_command(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sim_run, tmp_path / "run")
    words = {"predict": [run, sim_data, "--out", tmp_path / "p.parquet"], "evaluate": [run, "--baselines", "none"]}
    for command, given in words.items():
        process = start(*given, "--devices", 2, "--json", command=command)
        told, text = process.communicate(timeout=300)
        assert process.returncode == 0, text
        assert all(Path(path).exists() for path in json.loads(told)["wrote"].values())
    process = start(run, tmp_path / "nowhere", "--out", tmp_path / "x.parquet", "--devices", 2, command="predict")
    told, text = process.communicate(timeout=300)
    assert (process.returncode, told) == (2, "")
    assert text.splitlines() == [text.strip()]
    assert "nowhere: is not a folder" in text
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1])
def test_a_killed_process_ends_all_with_one_message(sim_prepared: Path, tmp_path: Path, place: int) -> None:
    process = start(sim_prepared, "--out", tmp_path / "run", "--devices", 2, *TINY, "training.epochs=500")
    wait_for(process, tmp_path / "run" / "history.jsonl")
    os.kill(children(process.pid)[place], signal.SIGKILL)
    _, text = process.communicate(timeout=100)
    lines = [line for line in text.splitlines() if not line.startswith("epoch")]
    assert process.returncode == 2
    assert len(lines) == 1, text
    assert f"process {place} on this machine was ended by SIGKILL" in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("to", ["parent", "child"])
def test_a_signal_saves_and_ends_all(sim_prepared: Path, tmp_path: Path, to: str) -> None:
    words = (sim_prepared, "--out", tmp_path / "run", "--devices", 2, *TINY)
    process = start(*words, "training.epochs=500", "training.checkpoint_seconds=1e9")
    wait_for(process, tmp_path / "run" / "history.jsonl")
    everybody = children(process.pid)
    os.kill(process.pid if to == "parent" else everybody[1], signal.SIGTERM)
    _, text = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM
    assert text.count("stopped by SIGTERM") == text.count("repeat the command with --resume") == 1
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    done = [json.loads(line)["epoch"] for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    again = start(*words, "--resume", f"training.epochs={max(done) + 1}")
    assert again.communicate(timeout=300)[1].count("loss") == 1
    assert again.returncode == 0


@pytest.mark.slow
def test_processes_end_when_the_command_that_started_them_is_killed(sim_prepared: Path, tmp_path: Path) -> None:
    process = start(sim_prepared, "--out", tmp_path / "run", "--devices", 2, *TINY, "training.epochs=500")
    wait_for(process, tmp_path / "run" / "history.jsonl")
    both = children(process.pid)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in both) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in both if Path(f"/proc/{pid}").exists()]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def wait_for(process: subprocess.Popen[str], path: Path) -> None:
    while process.poll() is None and not path.exists():
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
