"""Replace a folder by a new one, so that after a kill at any moment one of the two is there or is recovered.

Where system and file system can (Linux: `renameat2`), the two exchange their names in one step.
"""

import ctypes
import errno
import os
from pathlib import Path

from ehrsequencing.core.temporaries import INSIDE, fsync, move_entries, recover, temporary_name

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders, so that both exist at every moment.

    Returns:
        Whether system and file system could.

    Raises:
        OSError: The disk refused.
    """
    call = (
        getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if os.name == "posix"
        else None
    )
    if call is None:
        return False
    if call(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
        return True
    found = ctypes.get_errno()
    if found in _CANNOT:
        return False
    raise OSError(found, os.strerror(found), str(second))


def must_stay(folder: Path) -> bool:
    """Whether a folder cannot be renamed (a mount point) or should not be (the working directory)."""
    if is_mounted(folder):
        return True
    return not os.access(folder.parent, os.W_OK) or Path.cwd().is_relative_to(folder)


def is_mounted(path: Path) -> bool:
    """Whether a file or folder is a mount point."""
    mounts = Path("/proc/self/mountinfo")
    mounted = (
        [line.split()[4] for line in mounts.read_text().splitlines()] if mounts.is_file() else []
    )
    return os.path.ismount(path) or str(path).replace(" ", "\\040") in mounted


def replace_folder(target: Path, new: Path) -> None:
    """Give the new folder the name of the earlier one: in one step, or where the system has none, in two."""
    if exchange(new, target):
        new.chmod(0o700)  # the earlier folder: a temporary from now on
        fsync(target.parent)
        return
    old = temporary_name(target, "old")
    try:
        os.replace(target, old)
        os.replace(new, target)
        fsync(target.parent)
    finally:
        if old.exists():
            recover(old)


def replace_content(target: Path, new: Path) -> None:
    """Move the old content out, then the new content in. `put` exists only once the first move is done."""
    out, put = (temporary_name(target / INSIDE, role) for role in ("out", "put"))
    try:
        out.mkdir(mode=0o700)
        move_entries(target, out, manifest_first=True)
        os.replace(new, put)
        move_entries(put, target)
    finally:
        for left in (put, out):
            if left.exists():
                recover(left)
