"""Commands that are killed, or whose disk refuses, at any call that changes the disk: `make test-faults`.

After each fault the command runs again, and every byte is compared with a run without faults. The default suite has
one kill.
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
from helpers.faults.driver import COMMANDS
from helpers.storage import in_a_process

Faults = Callable[..., list[dict[str, Any]]]
REFUSALS = ("full", "broken", "denied", "read-only")


def judge(found: list[dict[str, Any]]) -> None:
    """Faults were made, and none led to a problem."""
    assert [problem for one in found for problem in one["problems"]] == []
    assert all(one["faults"] for one in found)


def test_a_kill(faults: Faults) -> None:
    judge(faults("train=kill:1"))


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
