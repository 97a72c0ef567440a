"""One writer for each output folder, and temporaries of a living process that nobody else touches."""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ehrsequencing as eh
from ehrsequencing.core import locks, owners, temporaries
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.locks import locked
from ehrsequencing.core.output_kinds import LOCK
from ehrsequencing.core.owners import this_process
from ehrsequencing.core.storage import complete_folder, write_bytes, write_manifest
from ehrsequencing.core.temporaries import sweep_temporaries, temporary_name
from helpers.command_line import refused
from helpers.storage import SET, everything, in_a_process, make_set

HOLD = (
    "lock = storage.locked(Path(sys.argv[1])); lock.__enter__(); print('held', flush=True); sys.stdin.read(); del lock"
)


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder's lock until its input ends, or it is killed."""
    command, env = in_a_process(HOLD)
    with subprocess.Popen([*command, folder], env=env, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_and_told_who_writes_until_the_first_one_dies(tmp_path: Path) -> None:
    make_set(tmp_path / "set", b"one")
    with holding(tmp_path / "set") as other:
        before = everything(tmp_path)
        says = rf"set: is being written by .*\(process {other.pid} on .*wait until it has"
        with pytest.raises(EhrseqError, match=says):
            make_set(tmp_path / "set", b"two")
        assert everything(tmp_path) == before
        make_set(tmp_path / "other", b"two")  # another output is free
    assert (tmp_path / "set" / LOCK).is_file(), "a killed process cannot remove its file"
    make_set(tmp_path / "set", b"three")
    assert set(everything(tmp_path / "set")) == {"part/x.bin", "manifest.json"}


def test_a_process_may_wait_for_the_lock(tmp_path: Path) -> None:
    with holding(tmp_path / "set") as other:
        assert other.stdin is not None
        started = time.monotonic()
        with pytest.raises(EhrseqError, match="is being written"), locked(tmp_path / "set", wait_seconds=0.2):
            pass
        assert time.monotonic() - started >= 0.2
        other.stdin.close()
        with locked(tmp_path / "set", wait_seconds=30):
            assert json.loads((tmp_path / "set" / LOCK).read_text())["pid"] == os.getpid()


def test_a_folder_that_its_maker_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made the folder removes it, if it is empty, at the very moment between our look and our lock."""
    calls = []

    def vanish(folder: Path) -> list[Path]:
        made = temporaries.make_folders(folder)
        calls.append(folder)
        if len(calls) < 3:
            folder.rmdir()
        return made

    monkeypatch.setattr(locks, "make_folders", vanish)
    with locked(tmp_path / "set"):
        assert (tmp_path / "set" / LOCK).is_file()
    assert len(calls) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_lock_leaves_no_trace_and_passes_its_own_process(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b"), locked(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / LOCK).is_file()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EhrseqError, match="cannot be written"), locked(Path(__file__)):
        pass


def test_a_lock_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "set" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(EhrseqError, match="cannot be written"):
        make_set(tmp_path / "set", b"one")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    make_set(tmp_path / "set", b"one")
    assert set(everything(tmp_path)) == {"set/part/x.bin", "set/manifest.json"}


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the file still fits on it, but not what is in the file."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(EhrseqError, match="No space left on device"):
        make_set(tmp_path / "deep" / "set", b"one")
    assert list(tmp_path.iterdir()) == []


RACE = "[make_set(Path(sys.argv[1]), sys.argv[2].encode() * 1000) for _ in range(20)]"


def test_two_processes_in_one_output_leave_one_whole_result(tmp_path: Path) -> None:
    """Each of both either replaces the folder or is refused; nothing is ever mixed or left over."""
    command, env = in_a_process(RACE)
    pair = [
        subprocess.Popen([*command, tmp_path / "set", name], env=env, stderr=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    for process in pair:
        text = process.communicate()[1]
        assert process.returncode == 0 or "is being written by" in text, text
    assert set(everything(tmp_path)) == {"set/part/x.bin", "set/manifest.json"}
    assert len(set((tmp_path / "set" / "part" / "x.bin").read_bytes())) == 1


# ---- whose a temporary is --------------------------------------------------------------------------------------------


def orphan_of(owner: owners.Owner, folder: Path, name: str = "x") -> Path:
    """A temporary as another process would call it."""
    path = folder / f".tmp-{owner}.0123abcd-new-{name}"
    path.write_bytes(b"half")
    return path


def changed(**parts: object) -> owners.Owner:
    return owners.Owner(**{**this_process().__dict__, **parts})  # type: ignore[arg-type]


def test_a_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    """As in a container, where every first process has the number 1."""
    if not this_process().start:
        pytest.skip("this system does not tell when a process started")
    alive = orphan_of(this_process_of(os.getppid()), tmp_path, "alive")
    again = orphan_of(changed(pid=os.getppid(), start=this_process_of(os.getppid()).start + 1), tmp_path, "again")
    booted = orphan_of(changed(pid=os.getppid(), boot="0" * 8), tmp_path, "booted")
    sweep_temporaries(tmp_path)
    assert (alive.exists(), again.exists(), booted.exists()) == (True, False, False)


def this_process_of(pid: int) -> owners.Owner:
    return changed(pid=pid, start=owners._start(pid))


def test_what_another_container_makes_is_an_orphan_only_when_it_is_old_or_its_output_is_ours(tmp_path: Path) -> None:
    for name in ("young", "old", "set"):
        orphan_of(changed(host="f" * 8), tmp_path, name)
    past = time.time() - (temporaries.ABANDONED_DAYS + 1) * 86_400
    os.utime(next(tmp_path.glob("*-old")), (past, past))
    sweep_temporaries(tmp_path)
    assert sorted(path.name[-5:] for path in tmp_path.iterdir()) == ["w-set", "young"]
    make_set(tmp_path / "set", b"one")  # who holds the lock knows that nobody else writes this output
    assert [path.name for path in tmp_path.glob(".tmp-*-set")] == []
    assert len(list(tmp_path.glob(".tmp-*-young"))) == 1


def test_names_are_drawn_and_tell_the_owner(tmp_path: Path) -> None:
    names = {temporary_name(tmp_path / "x", "new").name for _ in range(50)}
    assert len(names) == 50
    assert all(str(this_process()) in name for name in names)
    with complete_folder(tmp_path / "set", SET) as temporary:
        write_bytes(temporary / "x", b"one")
        write_manifest(temporary, SET.facts)
        sweep_temporaries(tmp_path)
        assert (temporary / "x").is_file(), "what is being written is no orphan"


def test_a_forked_process_is_another_owner() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os; from ehrsequencing.core.owners import this_process as me; a = me();\n"
         "if os.fork() == 0: os._exit(me() == a)\nraise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_a_second_training_is_refused_before_it_begins(tmp_path: Path, command: str) -> None:
    """Even the prepared set, which is none, is not looked at."""
    with holding(tmp_path / "run"):
        error = refused(command, tmp_path, "--out", tmp_path / "run")
    assert "is being written by" in error
    assert "prepared" not in error


@pytest.mark.parametrize("function", [eh.fit, eh.pretrain])
def test_a_second_training_in_python_is_refused_before_it_begins(tmp_path: Path, function: Callable[..., Any]) -> None:
    with holding(tmp_path / "run"), pytest.raises(EhrseqError, match="is being written by"):
        function(tmp_path / "no-prepared-set", out=tmp_path / "run")
