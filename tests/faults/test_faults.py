"""Commands that are killed, stopped, or whose disk refuses, at any call that changes the disk; and damaged files.

After each fault the command runs again, and every byte is compared with a run without faults. The default suite has
one kill; `make test-faults` has many.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.config import load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import HISTORY, MANIFEST
from ehrsequencing.core.signals import Stopped, noted_signals
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.loop import Progress
from helpers.faults.driver import COMMANDS, TINY
from helpers.storage import everything, in_a_process
from helpers.training import NetworkTrainer as Trainer

Faults = Callable[..., list[dict[str, Any]]]
REFUSALS = ("full", "broken", "denied", "read-only")
OFTEN = [pytest.mark.faults, pytest.mark.slow]


# ---- kills and refusals ----------------------------------------------------------------------------------------------


def judge(found: list[dict[str, Any]]) -> None:
    """Faults were made, and none led to a problem; `make test-faults` prints how many."""
    for one in found:
        print(f"{one['command']:>9} {one['kind']:>9}: {one['faults']} faults at {one['calls']} calls")
    assert [problem for one in found for problem in one["problems"]] == []
    assert all(one["faults"] for one in found)


@pytest.mark.parametrize("asked", ["prepare=kill:2", pytest.param("train=kill:1", marks=pytest.mark.slow)])
def test_a_kill(faults: Faults, asked: str) -> None:
    judge(faults(asked))


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_again_after_a_kill_or_a_refusal(faults: Faults, command: str) -> None:
    judge(faults(f"{command}=kill:20", *(f"{command}={kind}:5" for kind in REFUSALS)))


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A file system in memory with room for 1 MB."""
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    words = 'mount -t tmpfs -o size=1m tmpfs "$0" && "$@"'
    if (
        shutil.which("unshare") is None
        or subprocess.run([*mount, words, tmp_path, "true"], capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount a file system")
    command, env = in_a_process("fill_disk(Path(sys.argv[1]))")
    done = subprocess.run([*mount, words, tmp_path, *command, tmp_path], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("opened", [Run, Prepared])
def test_no_file_can_be_changed_in_silence(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[Path], object]
) -> None:
    """A flipped bit and a cut file; of the manifest, which nothing else vouches for, at more places."""
    source = request.getfixturevalue("sim_run" if opened is Run else "sim_prepared")
    folder = Path(shutil.copytree(source, tmp_path / "copy"))
    # prediction does not need the history, and it may be edited
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != HISTORY]
    assert len(files) > 5
    for number, path in enumerate(files):
        content = path.read_bytes()
        length = len(content)
        cuts = [content[:-3], content[: length // 2], b""]
        places = [min(9, length - 1), length // 2, max(length - 3, 0)]
        if path.name == MANIFEST:
            chosen = [*cuts, *(flipped(content, at) for at in range(9, length, length // 12))]
        else:
            chosen = [flipped(content, places[number % 3]), cuts[number % 3]]
        for spoilt in chosen:
            path.write_bytes(spoilt)
            with suppress(EhrseqError):  # refused, or, where prediction does not need it, listed
                assert path.name in getattr(opened(folder), "altered", ()), path
        path.write_bytes(content)
    opened(folder)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_signal_is_ignored() -> Iterator[None]:
    """A background job of a shell ignores SIGINT, and nohup SIGHUP; ehrseq leaves ignored what is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in zip((signal.SIGINT, signal.SIGHUP), before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("_no_signal_is_ignored")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=OFTEN)])
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
        saved = (out / "checkpoints").glob("step-*/state.json")
        assert max(json.loads(path.read_text())["global_step"] for path in saved) > 0
        assert not (out / "manifest.json").exists()
    Trainer(Prepared(inputs / "prepared"), "simulated", out, study=study).fit(resume=True)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    of_both = []
    for run in (whole, out):
        rows = map(json.loads, (run / HISTORY).read_text().splitlines())
        of_both.append([(row["train_nll"], row["tuning_nll"]) for row in rows])
    assert of_both[0] == of_both[1]


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.usefixtures("_no_signal_is_ignored")
@pytest.mark.parametrize(
    ("command", "number"), [("train", signal.SIGTERM), ("pretrain", signal.SIGINT), ("simulate", signal.SIGHUP)]
)
def test_the_exit_code_is_that_of_the_signal(inputs: Path, tmp_path: Path, command: str, number: int) -> None:
    """A training leaves a checkpoint and says how to go on, another command leaves no file."""
    out, trains = tmp_path / "deep" / "out", command != "simulate"
    words: list[object] = ["simulate", out, "--subjects", 20_000]
    if trains:
        words = [command, inputs / "prepared", "--out", out, *TINY, "training.epochs=500", "training.patience=500"]
    started = [sys.executable, "-m", "ehrsequencing", *map(str, words)]
    process = subprocess.Popen(started, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=-1, text=True)
    while process.poll() is None and not list(tmp_path.rglob(HISTORY if trains else ".tmp-*")):
        time.sleep(0.02)
    process.send_signal(number)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + number, told
    why = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    assert f"ehrseq: {why}\n" in told
    if trains:
        assert f"the run in {out} is unfinished: repeat the command with --resume" in told
        assert list((out / "checkpoints").glob("step-*"))
        assert not [path for path in tmp_path.rglob("*") if path.name.startswith((".tmp-", ".ehrseq-lock"))]
    else:
        assert list(out.parent.iterdir()) == []  # the parent folder that the command made stays


def get(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)
        time.sleep(0.01)


def noting(*numbers: int, ask: bool) -> None:
    """Get signals while they are only noted."""
    with noted_signals() as stop:
        get(*numbers)
        if ask:
            stop.leave_if_asked()
            pytest.fail("the question stops")


@pytest.mark.usefixtures("_no_signal_is_ignored")
def test_signals_are_noted_and_a_second_one_stops_at_once() -> None:
    with pytest.raises(Stopped, match="SIGTERM"):
        noting(signal.SIGTERM, ask=True)
    with pytest.raises(KeyboardInterrupt) as stopped:
        noting(signal.SIGTERM, signal.SIGINT, ask=True)
    assert not isinstance(stopped.value, Stopped)
    with pytest.raises(Stopped, match="SIGHUP"):
        noting(signal.SIGHUP, ask=False)  # nobody asks any more: the end of the block stops


@pytest.mark.faults
@pytest.mark.slow
def test_no_seed_of_hashes_changes_a_byte(inputs: Path, tmp_path: Path) -> None:
    """Of a prepared set and of weights. `test_shards.py` has processes, and cuts of shards."""
    made = []
    for seed in ("0", "1", "random"):
        out, data = tmp_path / seed, inputs / "sim"
        prepare = ["prepare", data, "--task", data / "task.yaml", "--out", out / "set"]
        for words in (prepare, ["train", out / "set", "--out", out / "run", *TINY]):
            env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, "-m", "ehrsequencing", *map(str, words), "-q"], env=env, check=True)
        made.append([everything(out / "set"), (out / "run" / "model.safetensors").read_bytes()])
    assert len(made[0][0]) > 40
    assert made[0] == made[1] == made[2]
