"""One writer for each output folder: a lock that the system releases when its process ends, however it ends.

While a command writes a folder, the folder holds `.ehrseq-lock`, which names the process. The file is locked by
`flock`, so that one which a killed process left is no obstacle.
"""

import errno
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.output_kinds import LOCK
from ehrsequencing.core.temporaries import make_folders

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_held: dict[
    tuple[int, Path], int
] = {}  # (process, folder) → how many blocks of this process are inside


@contextmanager
def locked(folder: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of an output folder. A process that holds it already passes.

    A folder that is not there is made, and removed at the end if it is still empty.

    Args:
        folder: The output.
        wait_seconds: How long to wait for another process.

    Raises:
        EhrseqError: Another process holds it, or the disk refused.
    """
    target = Path(os.path.realpath(folder))
    key = (os.getpid(), target)
    if _held.get(key, 0):
        _held[key] += 1
        try:
            yield
        finally:
            _held[key] -= 1
        return
    made: list[Path] = []
    try:
        descriptor = _acquire(target, folder, made, time.monotonic() + wait_seconds)
    except BaseException as error:
        _remove_empty(made)
        if not isinstance(error, OSError):
            raise
        fix = (
            "name a folder" if target.is_file() else error.strerror or "check the path and the disk"
        )
        raise EhrseqError("cannot be written", where=str(folder), fix=fix) from error
    _held[key] = 1
    try:
        yield
    finally:
        del _held[key]
        _release(target / LOCK, descriptor)
        _remove_empty(made)


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Claim a piece of work that several processes share, by locking a file of its own while the block runs.

    The system releases the claim when the process ends, however it ends. On a file system without locks every claim
    succeeds, so that work may be done twice.

    Args:
        path: The file; its folder is there. It is removed when the block ends.

    Yields:
        Whether the claim is ours; False while another process holds it.
    """
    descriptor, is_mine = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), False
    try:
        is_mine = _lock(descriptor) and _is_same(descriptor, path)
        if is_mine:
            _write_holder(descriptor)
        yield is_mine
    finally:
        if is_mine:
            _release(path, descriptor)
        else:
            os.close(descriptor)


def _acquire(target: Path, folder: Path, made: list[Path], until: float) -> int:
    """The descriptor of the locked file; folders that had to be made are added to `made`."""
    path = target / LOCK
    while True:
        descriptor, is_mine = _open(target, made), False
        try:
            is_mine = _lock(descriptor) and _is_same(descriptor, path)
            if is_mine:
                _write_holder(descriptor)
                return descriptor
            if time.monotonic() >= until and _is_same(descriptor, path):
                raise _in_use(_read_holder(descriptor), folder)
        except BaseException:
            if is_mine:
                _release(path, descriptor)
            else:
                os.close(descriptor)
            raise
        os.close(descriptor)  # it was released and removed meanwhile, or we wait
        time.sleep(0.05)


def _open(target: Path, made: list[Path]) -> int:
    """Open the lock's file; a process that ends removes the folder that it made, and then we make it again."""
    for _ in range(100):
        with suppress(FileNotFoundError):
            made += make_folders(target)
            return os.open(target / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    raise FileNotFoundError(errno.ENOENT, "the folder vanishes again and again", str(target))


def _lock(descriptor: int) -> bool:
    """Lock a file, if nobody else has; a file system without locks has nobody else."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether a path still names an open file: who releases a lock removes the file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _release(path: Path, descriptor: int) -> None:
    with suppress(OSError):
        if _is_same(descriptor, path):
            path.unlink()
    os.close(descriptor)


def _remove_empty(made: list[Path]) -> None:
    for path in reversed(made):
        try:
            path.rmdir()
        except OSError:
            return  # something is in it


def _write_holder(descriptor: int) -> None:
    command = (
        " ".join(["ehrseq", *sys.argv[1:2]])
        if Path(sys.argv[0]).name.startswith("ehrseq")
        else "a Python program"
    )
    holder = {
        "pid": os.getpid(),
        "host": platform.node(),
        "command": command,
        "since": time.strftime("%H:%M on %F"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 10_000, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_use(holder: dict[str, Any], folder: Path) -> EhrseqError:
    who = f"{holder.get('command', 'a process')} (process {holder.get('pid', '?')}"
    who += f" on {holder.get('host', '?')}, since {holder.get('since', '?')})"
    fix = "wait until it has ended, stop it, or name another folder"
    return EhrseqError(f"is being written by {who}", where=str(folder), fix=fix)
