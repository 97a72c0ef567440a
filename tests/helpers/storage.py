"""A small set of files, and kills at every change of the disk while it is replaced."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import write_bytes
from ehrsequencing.core.outputs import Kind, complete_folder, read_manifest, write_manifest

SET = Kind("set", "a set", (b"a set of ",))
CALLS = ("replace", "mkdir", "rmdir", "unlink")  # of the system, that change what is on the disk


def everything(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file with its bytes, and every folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def make_set(folder: Path, content: bytes, *, overwrite: bool = True, then: Callable[[], None] = lambda: None) -> None:
    with complete_folder(folder, SET, overwrite=overwrite) as temporary:
        write_bytes(temporary / "part" / "x.bin", content)
        write_manifest(temporary, SET.facts)
        then()


def in_a_process(call: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that call one of these functions in a fresh process, which may fork and be killed."""
    command = [sys.executable, "-c", f"import sys; from pathlib import Path; from helpers.storage import *; {call}"]
    return command, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def kill_everywhere(folder: Path) -> int:
    """Kill a process that replaces a set before its first, second, … change of the disk, and look at what is left.

    Returns:
        How often it was killed.
    """
    killed = 0
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        make_set(folder / "set", b"one")
        child = os.fork()
        if child == 0:
            left = iter(range(killed, -1, -1))
            make_set(folder / "set", b"two", then=lambda left=left: be_killed(left))  # type: ignore[misc]
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return killed
        killed += 1
        with pytest.raises(EhrseqError, match="is there already"):
            make_set(folder / "set", b"none", overwrite=False)  # brings back what was put aside
        read_manifest(folder / "set", what="a set")
        assert (folder / "set" / "part" / "x.bin").read_bytes() in (b"one", b"two"), killed
        make_set(folder / "set", b"three")
        assert set(everything(folder)) == {"set/part/x.bin", "set/manifest.json"}, killed
        assert (folder / "set" / "part" / "x.bin").read_bytes() == b"three", killed


def fill_disk(folder: Path) -> None:
    """Replace a set on a disk of 1 MB by one that does not fit, then by one that does."""
    make_set(folder / "set", b"1" * 300_000)
    with pytest.raises(EhrseqError, match="No space left on device"):
        make_set(folder / "set", b"2" * 3_000_000)
    read_manifest(folder / "set", what="a set")
    assert set(everything(folder)) == {"set/part/x.bin", "set/manifest.json"}, everything(folder).keys()
    assert (folder / "set" / "part" / "x.bin").read_bytes()[:1] == b"1"
    make_set(folder / "set", b"3" * 300_000)


def be_killed(left: Iterator[int]) -> None:
    """From now on count the changes of the disk, and die before one of them."""

    def fatal(call: Callable[..., Any]) -> Callable[..., Any]:
        def kill_or_call(*arguments: Any, **named: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return kill_or_call

    for name in CALLS:
        setattr(os, name, fatal(getattr(os, name)))
