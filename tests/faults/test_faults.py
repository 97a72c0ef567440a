"""Commands that are killed, or whose disk refuses, at any call that changes the disk: `make test-faults`.

After each fault the command runs again, and every byte is compared with a run without faults. The default suite has one
of these.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.errors import EhrseqError
from ehrsequencing.output_kinds import HISTORY
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.run import Run
from helpers.faults.driver import COMMANDS
from helpers.storage import in_a_process

Faults = Callable[..., dict[str, Any]]
EVERY = tuple(COMMANDS)
FEWEST = {name: {"explore": 4, "share": 30}.get(name, 50) for name in EVERY}  # calls that each makes at least


Keep = Callable[[str, object], None]


def judge(found: dict[str, Any], *, least: int, kind: str, keep: Keep) -> None:
    """No problem at all, and so many faults at least; `keep` keeps the figures for the end of the run."""
    assert [problem for one in found.values() for problem in one["problems"]] == []
    assert sum(one["faults"] for one in found.values()) >= least, found
    for name, one in found.items():
        keep("fault", {"kind": kind, "command": name, **{key: one[key] for key in FIGURES}})


FIGURES = ("faults", "calls", "inside", "cpu_seconds")


def test_a_kill(faults: Faults, record_property: Keep) -> None:
    judge(faults("kill", "train", count=1), least=1, kind="kill", keep=record_property)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("command", EVERY)
def test_a_killed_command_ends_in_the_same_bytes_when_it_runs_again(
    faults: Faults, command: str, record_property: Keep
) -> None:
    judge(faults("kill", command, count=15), least=min(15, FEWEST[command]), kind="kill", keep=record_property)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("command", EVERY)
def test_a_disk_that_fills_at_any_call_leaves_the_earlier_state(
    faults: Faults, command: str, record_property: Keep
) -> None:
    judge(faults("full", command, count=0), least=FEWEST[command], kind="full", keep=record_property)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["broken", "denied", "read-only"])
@pytest.mark.parametrize("command", EVERY)
def test_a_disk_that_refuses_a_call_is_one_clear_error(
    faults: Faults, command: str, kind: str, record_property: Keep
) -> None:
    judge(faults(kind, command, count=20), least=min(20, FEWEST[command]), kind=kind, keep=record_property)


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


MADE = Path(__file__).parents[1] / "compatibility" / "0.1.0"
OPENS: dict[str, Callable[[Path], object]] = {"run": Run, "prepared": Prepared}
EACH = [
    (kind, path.relative_to(MADE / kind).as_posix())
    for kind in OPENS
    for path in sorted((MADE / kind).rglob("*"))
    if path.is_file() and path.name != HISTORY  # prediction does not need it, and it may be edited
]


@pytest.mark.parametrize(("kind", "name"), EACH, ids=map("/".join, EACH))
def test_no_file_can_be_changed_in_silence(tmp_path: Path, kind: str, name: str) -> None:
    """A flipped bit near the start, in the middle and at the end; three bytes less, half the file, nothing."""
    folder = Path(shutil.copytree(MADE / kind, tmp_path / kind))
    content = (folder / name).read_bytes()
    flipped = [content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :] for at in places(len(content))]
    for spoilt in (*flipped, content[:-3], content[: len(content) // 2], b""):
        (folder / name).write_bytes(spoilt)
        with pytest.raises(EhrseqError):
            OPENS[kind](folder)
    (folder / name).write_bytes(content)
    OPENS[kind](folder)


def places(length: int) -> list[int]:
    return sorted({min(9, length - 1), length // 2, max(length - 3, 0)})
