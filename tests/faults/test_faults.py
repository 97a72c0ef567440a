"""Commands that are killed, or whose disk refuses, at any call that changes the disk: `make test-faults`.

After each fault the command runs again, and every byte is compared with a run without faults. Kills come at drawn
calls, refusals at every call; commands that write by the same functions as others get few. The default suite has one
kill.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import HISTORY
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from helpers.faults.driver import COMMANDS, FURTHER
from helpers.storage import in_a_process

Faults = Callable[..., list[dict[str, Any]]]
Keep = Callable[[str, object], None]
EVERY = tuple(name for name in COMMANDS if name not in FURTHER)
FEWEST = {name: {"explore": 4, "share": 30}.get(name, 50) for name in EVERY}  # calls that each makes at least
KILLS = 100  # drawn calls of each command, or all it has
REFUSALS = ("full", "broken", "denied", "read-only")
FEW = {name: (8, 4) for name in FURTHER} | {
    "blend": (2, 1),
    "audit": (2, 1),
    "evaluate --data": (3, 2),
}  # kills, and refusals of each kind, at drawn calls


def judge(found: list[dict[str, Any]], *, least: int, keep: Keep) -> None:
    """No problem at all, and so many faults of each kind at least; `keep` keeps the figures for the end of the run."""
    assert [problem for one in found for problem in one.pop("problems")] == []
    for one in found:
        assert one["faults"] >= least, one
        keep("fault", one)


def test_a_kill(faults: Faults, record_property: Keep) -> None:
    judge(faults("train=kill:1"), least=1, keep=record_property)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("command", EVERY)
def test_a_killed_command_ends_in_the_same_bytes_when_it_runs_again(
    faults: Faults, command: str, record_property: Keep
) -> None:
    judge(faults(f"{command}=kill:{KILLS}"), least=min(KILLS, FEWEST[command]), keep=record_property)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("command", EVERY)
def test_a_disk_that_refuses_any_call_is_one_clear_error_and_leaves_the_earlier_state(
    faults: Faults, command: str, record_property: Keep
) -> None:
    judge(faults(*(f"{command}={kind}:0" for kind in REFUSALS)), least=FEWEST[command], keep=record_property)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("command", FURTHER)
def test_a_few_faults_of_the_other_commands(faults: Faults, further: Path, command: str, record_property: Keep) -> None:
    kills, refusals = FEW[command]
    asked = [f"{command}=kill:{kills}", *(f"{command}={kind}:{refusals}" for kind in REFUSALS)]
    judge(faults(*asked), least=refusals, keep=record_property)


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
    done = subprocess.run(
        [*mount, words, tmp_path, *command, tmp_path], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


OPENS: dict[str, Callable[[Path], object]] = {"run": Run, "prepared": Prepared}


@pytest.mark.parametrize("kind", OPENS)
def test_no_file_can_be_changed_in_silence(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    """A flipped bit near the start, in the middle and at the end; three bytes less, half the file, nothing."""
    folder = Path(shutil.copytree(request.getfixturevalue(f"sim_{kind}"), tmp_path / kind))
    # prediction does not need the history, and it may be edited
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != HISTORY]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        flipped = [content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :] for at in places(len(content))]
        for spoilt in (*flipped, content[:-3], content[: len(content) // 2], b""):
            path.write_bytes(spoilt)
            assert is_seen(OPENS[kind], folder, path.name), path
        path.write_bytes(content)
    OPENS[kind](folder)


def is_seen(opened: Callable[[Path], object], folder: Path, name: str) -> bool:
    """Whether a changed file is refused, or, where prediction does not need it, listed."""
    try:
        return name in getattr(opened(folder), "altered", ())
    except EhrseqError:
        return True


def places(length: int) -> list[int]:
    return sorted({min(9, length - 1), length // 2, max(length - 3, 0)})
