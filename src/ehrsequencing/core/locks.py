"""Claims of pieces of work that several processes share."""

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


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
