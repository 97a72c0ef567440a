"""SIGTERM, SIGINT and SIGHUP: a training saves and says how to go on, any other command leaves no trace."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ehrsequencing.config import load_study
from ehrsequencing.core.signals import Stopped, noted_signals
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.checkpoint import load_checkpoint, saved_at_signals
from ehrsequencing.training.loop import Progress
from ehrsequencing.training.train import Trainer
from helpers.faults.driver import TINY

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
SLOW = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture(autouse=True)
def _no_signal_is_ignored() -> Iterator[None]:
    """A background job of a shell ignores SIGINT, and nohup SIGHUP; ehrseq leaves ignored what is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in zip((signal.SIGINT, signal.SIGHUP), before, strict=True):
        signal.signal(number, handler)


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ehrsequencing", *map(str, words)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=-1, stderr=-1, text=True)


@pytest.mark.parametrize("number", [SIGNALS[0], *(pytest.param(other, marks=SLOW) for other in SIGNALS[1:])])
def test_a_training_saves_and_goes_on_to_the_same_bytes(inputs: Path, tmp_path: Path, number: int) -> None:
    """The signal comes in the middle of an epoch, and in the look at the tuning split."""
    study = load_study(None, [*TINY, "training.epochs=3", "training.checkpoint_seconds=1e9"])
    whole, out = tmp_path / "whole", tmp_path / "out"
    Trainer(Prepared(inputs / "prepared"), "simulated", whole, study=study).fit()
    for step in (2, 5):
        trainer = Trainer(Prepared(inputs / "prepared"), "simulated", out, study=study)
        seen = []

        def tell(progress: Progress, seen: list[Progress] = seen, step: int = step) -> None:
            seen.append(progress)
            if len(seen) == step:
                os.kill(os.getpid(), number)

        with pytest.raises(Stopped) as stopped:
            trainer.fit(resume=True, on_progress=tell)
        assert stopped.value.number == number
        saved = load_checkpoint(out / "checkpoints")
        assert saved is not None
        assert saved[0].global_step > 0
        assert not (out / "manifest.json").exists()
    Trainer(Prepared(inputs / "prepared"), "simulated", out, study=study).fit(resume=True)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    of_both = []
    for run in (whole, out):
        rows = map(json.loads, (run / "history.jsonl").read_text().splitlines())
        of_both.append([(row["train_nll"], row["tuning_nll"]) for row in rows])
    assert of_both[0] == of_both[1]


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_the_exit_code_is_that_of_the_signal(inputs: Path, tmp_path: Path, command: str, number: int) -> None:
    settings = (*TINY, "training.epochs=500", "training.patience=500")
    process = start(command, inputs / "prepared", "--out", tmp_path / "out", *settings)
    assert process.stderr is not None
    while process.poll() is None and not (tmp_path / "out" / "history.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(number)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + number, told
    assert f"ehrseq: stopped by {signal.Signals(number).name}" in told
    assert f"the run in {tmp_path / 'out'} is unfinished: repeat the command with --resume" in told
    assert list((tmp_path / "out" / "checkpoints").glob("step-*"))
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith((".tmp-", ".ehrseq-lock"))]


@pytest.mark.slow
@pytest.mark.faults
def test_another_command_leaves_no_trace(inputs: Path, tmp_path: Path) -> None:
    process = start("simulate", tmp_path / "deep" / "out", "--subjects", 20_000)
    while process.poll() is None and not list(tmp_path.rglob(".tmp-*")):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=120)
    assert (process.returncode, told.strip().splitlines()[-1]) == (143, "ehrseq: stopped by SIGTERM")
    assert list(tmp_path.iterdir()) == []


def noting(*numbers: int, ask: bool) -> None:
    """Get signals while they are only noted."""
    with noted_signals() as stop:
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        if ask:
            stop.leave_if_asked()
            pytest.fail("the question stops")


def test_signals_are_noted_and_a_second_one_stops_at_once() -> None:
    with pytest.raises(Stopped, match="SIGTERM"):
        noting(signal.SIGTERM, ask=True)
    with pytest.raises(KeyboardInterrupt) as stopped:
        noting(signal.SIGTERM, signal.SIGINT, ask=True)
    assert not isinstance(stopped.value, Stopped)
    with pytest.raises(Stopped, match="SIGHUP"):
        noting(signal.SIGHUP, ask=False)  # nobody asks any more: the end of the block stops


@pytest.mark.parametrize(("numbers", "saves"), [((signal.SIGTERM,), 1), ((signal.SIGTERM, signal.SIGTERM), 0)])
def test_nothing_is_saved_in_the_middle_of_a_step(numbers: tuple[int, ...], saves: int) -> None:
    saved: list[int] = []

    def train() -> None:
        with saved_at_signals(lambda: saved.append(1)):
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        train()
    assert len(saved) == saves
